//! The few functions of RocksDB's C interface (`rocksdb/c.h`, version 7.8) that the workloads need.

use std::ffi::{CStr, CString, c_char, c_uchar};
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, bail};

/// RocksDB's objects, of which only pointers exist here.
mod raw {
    use std::ffi::{c_char, c_uchar};

    macro_rules! opaque {
        ($($name:ident),*) => { $(#[repr(C)] pub struct $name([u8; 0]);)* };
    }
    opaque!(Database, Options, ReadOptions, WriteOptions, Iterator);

    #[link(name = "rocksdb")]
    unsafe extern "C" {
        pub fn rocksdb_options_create() -> *mut Options;
        pub fn rocksdb_options_destroy(options: *mut Options);
        pub fn rocksdb_get_options_from_string(
            base: *const Options,
            text: *const c_char,
            made: *mut Options,
            error: *mut *mut c_char,
        );
        pub fn rocksdb_readoptions_create() -> *mut ReadOptions;
        pub fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
        pub fn rocksdb_writeoptions_create() -> *mut WriteOptions;
        pub fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
        pub fn rocksdb_writeoptions_set_sync(options: *mut WriteOptions, sync: c_uchar);
        pub fn rocksdb_open(
            options: *const Options,
            name: *const c_char,
            error: *mut *mut c_char,
        ) -> *mut Database;
        pub fn rocksdb_close(database: *mut Database);
        pub fn rocksdb_put(
            database: *mut Database,
            options: *const WriteOptions,
            key: *const c_char,
            key_bytes: usize,
            value: *const c_char,
            value_bytes: usize,
            error: *mut *mut c_char,
        );
        pub fn rocksdb_get(
            database: *mut Database,
            options: *const ReadOptions,
            key: *const c_char,
            key_bytes: usize,
            value_bytes: *mut usize,
            error: *mut *mut c_char,
        ) -> *mut c_char;
        pub fn rocksdb_create_iterator(database: *mut Database, options: *const ReadOptions)
        -> *mut Iterator;
        pub fn rocksdb_iter_destroy(iterator: *mut Iterator);
        pub fn rocksdb_iter_seek(iterator: *mut Iterator, key: *const c_char, key_bytes: usize);
        pub fn rocksdb_iter_valid(iterator: *const Iterator) -> c_uchar;
        pub fn rocksdb_iter_next(iterator: *mut Iterator);
        pub fn rocksdb_iter_key(iterator: *const Iterator, bytes: *mut usize) -> *const c_char;
        pub fn rocksdb_iter_value(iterator: *const Iterator, bytes: *mut usize) -> *const c_char;
        pub fn rocksdb_iter_get_error(iterator: *const Iterator, error: *mut *mut c_char);
        pub fn rocksdb_compact_range(
            database: *mut Database,
            first: *const c_char,
            first_bytes: usize,
            last: *const c_char,
            last_bytes: usize,
        );
        pub fn rocksdb_free(memory: *mut std::ffi::c_void);
    }
}

/// An open database. It checks the checksum of every block that it reads, which is RocksDB's default.
pub struct Database {
    open: *mut raw::Database,
    read: *mut raw::ReadOptions,
    write: *mut raw::WriteOptions,
}

// SAFETY: RocksDB lets any threads use a database at the same time (its include/rocksdb/db.h); the options
// are only read after `open`.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Database {
    /// Opens the database in this folder with options in RocksDB's own text form (`name=value;...`). With
    /// `sync` a put is acknowledged when it is durable.
    pub fn open(folder: &Path, options: &str, sync: bool) -> Result<Self> {
        let name = CString::new(folder.as_os_str().as_encoded_bytes()).context("the folder's name")?;
        let text = CString::new(options).context("the options")?;
        // SAFETY: the texts end with zero and outlive the calls; options are made here, and destroyed once.
        unsafe {
            let (base, made) = (raw::rocksdb_options_create(), raw::rocksdb_options_create());
            let database = fallible(|error| {
                raw::rocksdb_get_options_from_string(base, text.as_ptr(), made, error);
            })
            .and_then(|()| fallible(|error| raw::rocksdb_open(made, name.as_ptr(), error)));
            raw::rocksdb_options_destroy(made);
            raw::rocksdb_options_destroy(base);
            let database = database?;
            let (read, write) = (raw::rocksdb_readoptions_create(), raw::rocksdb_writeoptions_create());
            raw::rocksdb_writeoptions_set_sync(write, c_uchar::from(sync));
            Ok(Self { open: database, read, write })
        }
    }

    /// Puts a value in the place of the one that there was.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let (key_at, value_at) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: the database is open until `self` goes, and the slices are as long as is said.
        fallible(|error| unsafe {
            raw::rocksdb_put(self.open, self.write, key_at, key.len(), value_at, value.len(), error);
        })
    }

    /// Merges everything into one level, by which everything becomes durable too.
    pub fn compact(&self) {
        // SAFETY: as in `put`. No bounds mean all keys.
        unsafe { raw::rocksdb_compact_range(self.open, ptr::null(), 0, ptr::null(), 0) }
    }

    /// The value, if there is one.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut bytes = 0;
        // SAFETY: as in `put`. RocksDB allocates the answer, null if there is no value.
        let value = fallible(|error| unsafe {
            raw::rocksdb_get(self.open, self.read, key.as_ptr().cast(), key.len(), &raw mut bytes, error)
        })?;
        if value.is_null() {
            return Ok(None);
        }
        // SAFETY: the answer has so many bytes, is ours, and isn't used after it is freed.
        unsafe {
            let copy = std::slice::from_raw_parts(value.cast::<u8>(), bytes).to_vec();
            raw::rocksdb_free(value.cast());
            Ok(Some(copy))
        }
    }

    /// Hands the first `most` records from `key` on to `see`. Returns how many there were.
    pub fn scan(
        &self,
        key: &[u8],
        most: u64,
        mut see: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<u64> {
        // SAFETY: the iterator is used by this call alone and destroyed before the database is closed. Key
        // and value are valid until the iterator moves, which it doesn't while `see` has them.
        unsafe {
            let iterator = raw::rocksdb_create_iterator(self.open, self.read);
            raw::rocksdb_iter_seek(iterator, key.as_ptr().cast(), key.len());
            let (mut count, mut outcome) = (0, Ok(()));
            while outcome.is_ok() && count < most && raw::rocksdb_iter_valid(iterator) != 0 {
                let slice = |of: unsafe extern "C" fn(*const raw::Iterator, *mut usize) -> *const c_char| {
                    let mut bytes = 0;
                    let at = of(iterator, &raw mut bytes);
                    std::slice::from_raw_parts(at.cast::<u8>(), bytes)
                };
                outcome = see(slice(raw::rocksdb_iter_key), slice(raw::rocksdb_iter_value));
                count += 1;
                raw::rocksdb_iter_next(iterator);
            }
            let ended = fallible(|error| raw::rocksdb_iter_get_error(iterator, error));
            raw::rocksdb_iter_destroy(iterator);
            outcome.and(ended).map(|()| count)
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: made by `open`, and nothing uses them any more.
        unsafe {
            raw::rocksdb_close(self.open);
            raw::rocksdb_readoptions_destroy(self.read);
            raw::rocksdb_writeoptions_destroy(self.write);
        }
    }
}

/// Calls what puts a message into its argument when it fails.
fn fallible<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T> {
    let mut error = ptr::null_mut();
    let value = call(&raw mut error);
    if error.is_null() {
        return Ok(value);
    }
    // SAFETY: RocksDB allocates a text that ends with zero and leaves it to us.
    let said = unsafe {
        let said = CStr::from_ptr(error).to_string_lossy().into_owned();
        raw::rocksdb_free(error.cast());
        said
    };
    bail!("RocksDB: {said}")
}
