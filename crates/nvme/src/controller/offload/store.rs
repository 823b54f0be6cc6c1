//! Epochs in files: one for each namespace, in a directory of the target's own.
//!
//! A record is written to a new file, which takes the old one's place when it is durable: so a crash leaves
//! the one or the other. A damaged one stops the target: an epoch that is forgotten lets a host write that
//! was fenced off.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Ended, EpochRecord, EpochStore, NotStored, Storing};
use crate::uuid::uuid_text;
use crate::wire::Crc;

const MAGIC: &[u8; 8] = b"PSEPOCH2";
const BYTES: usize = 512;
/// Of the form of before, which knew no owners that were ended.
const FIRST_MAGIC: &[u8; 8] = b"PSEPOCH1";
const FIRST_BYTES: usize = 64;
/// Bytes of the checksum, at the end.
const CHECK_BYTES: usize = 4;
/// Where the owners that were ended begin.
const ENDED: usize = 64;

/// See the module.
#[derive(Debug, Clone)]
pub struct EpochFiles {
    directory: PathBuf,
}

impl EpochFiles {
    /// In this directory, which is there: one that isn't may lie on a disk that isn't mounted, and what it
    /// knows would be forgotten.
    pub fn open(directory: &Path) -> io::Result<Self> {
        if !fs::metadata(directory)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Self { directory: directory.to_owned() })
    }

    fn path(&self, namespace: &[u8; 16]) -> PathBuf {
        self.directory.join(format!("{}.epoch", uuid_text(namespace)))
    }
}

impl EpochStore for EpochFiles {
    fn load(&self, namespace: &[u8; 16]) -> io::Result<Option<EpochRecord>> {
        let path = self.path(namespace);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let damaged = || {
            let words = format!(
                "{} is damaged: it records which host may write. If no host uses the namespace, remove the file",
                path.display()
            );
            io::Error::new(io::ErrorKind::InvalidData, words)
        };
        parse(&bytes).map(Some).ok_or_else(damaged)
    }

    #[cfg(target_os = "linux")]
    fn store(&self, namespace: &[u8; 16], record: &EpochRecord) -> Storing {
        let (path, bytes) = (self.path(namespace), encode(record));
        Box::pin(pinstripe_runtime::uring::blocking(move || replace(&path, &bytes)))
    }

    #[cfg(not(target_os = "linux"))]
    fn store(&self, namespace: &[u8; 16], record: &EpochRecord) -> Storing {
        let (path, bytes) = (self.path(namespace), encode(record));
        Box::pin(async move { replace(&path, &bytes) })
    }
}

fn replace(path: &Path, bytes: &[u8]) -> Result<(), NotStored> {
    replace_by(path, bytes, File::sync_all)
}

/// The same, with `sync` to make a file or directory durable.
fn replace_by(path: &Path, bytes: &[u8], sync: impl Fn(&File) -> io::Result<()>) -> Result<(), NotStored> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    sync(&file)?;
    // Opened before: what fails from here on leaves the one or the other.
    let directory = path.parent().map(File::open).transpose()?;
    let unknown = |error| NotStored { error, is_unchanged: false };
    fs::rename(&new, path).map_err(unknown)?;
    directory.map_or(Ok(()), |directory| sync(&directory)).map_err(unknown)
}

fn encode(record: &EpochRecord) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..24].copy_from_slice(&record.array);
    bytes[24..32].copy_from_slice(&record.epoch.to_le_bytes());
    bytes[32..48].copy_from_slice(&record.owner);
    bytes[48] = u8::from(record.given_up) | u8::from(record.has_instance) << 1;
    let owners = record.ended.owners();
    bytes[49] = owners.len().to_le_bytes()[0];
    for (place, owner) in bytes[ENDED..].chunks_exact_mut(16).zip(owners) {
        place.copy_from_slice(owner);
    }
    let (checked, check) = bytes.split_at_mut(BYTES - CHECK_BYTES);
    check.copy_from_slice(&sum(checked));
    bytes
}

fn sum(bytes: &[u8]) -> [u8; CHECK_BYTES] {
    let mut crc = Crc::default();
    crc.update(bytes);
    crc.bytes()
}

fn parse(bytes: &[u8]) -> Option<EpochRecord> {
    let (checked, check) = bytes.split_at_checked(bytes.len().checked_sub(CHECK_BYTES)?)?;
    // What there is besides the owners that were ended.
    let (flags, count) = match bytes.len() {
        BYTES if bytes.starts_with(MAGIC) => (0b11, usize::from(bytes[49])),
        FIRST_BYTES if bytes.starts_with(FIRST_MAGIC) => (0b01, 0),
        _ => return None,
    };
    if sum(checked) != check || bytes[48] & !flags != 0 || count > Ended::MAX {
        return None;
    }
    let part = |at: usize| std::array::from_fn(|index| bytes[at + index]);
    let mut ended = Ended::default();
    (0..count).for_each(|index| ended.push(part(ENDED + 16 * index)));
    Some(EpochRecord {
        array: part(8),
        epoch: u64::from_le_bytes(std::array::from_fn(|index| bytes[24 + index])),
        owner: part(32),
        has_instance: bytes[48] & 2 != 0,
        given_up: bytes[48] & 1 != 0,
        ended,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_a_damaged_one_is_none() {
        let mut record = record(1 << 40);
        (0..5).for_each(|owner| record.ended.push([owner; 16]));
        let bytes = encode(&record);
        assert_eq!(parse(&bytes), Some(record));
        for at in 0..BYTES {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert_eq!(parse(&bad), None, "byte {at}");
        }
        assert_eq!(parse(&bytes[..63]), None);
        assert_eq!(parse(&[]), None);
        (0..40).for_each(|owner| record.ended.push([owner; 16]));
        assert_eq!(parse(&encode(&record)), Some(record), "as many as there can be");
    }

    #[test]
    fn a_record_of_the_form_of_before_is_read() {
        let mut bytes = [0; FIRST_BYTES];
        bytes[..8].copy_from_slice(b"PSEPOCH1");
        bytes[8..24].fill(3);
        bytes[24] = 7;
        bytes[32..48].fill(5);
        bytes[48] = 1;
        let check = sum(&bytes[..60]);
        bytes[60..].copy_from_slice(&check);
        assert_eq!(parse(&bytes), Some(EpochRecord { has_instance: false, given_up: true, ..record(7) }));
        bytes[24] = 8;
        assert_eq!(parse(&bytes), None);
    }

    fn record(epoch: u64) -> EpochRecord {
        let (array, owner, has_instance, given_up) = ([3; 16], [5; 16], true, false);
        EpochRecord { array, epoch, owner, has_instance, given_up, ended: Ended::default() }
    }

    #[test]
    fn a_namespace_without_a_file_was_never_attached_and_a_damaged_file_is_an_error() {
        let directory = std::env::temp_dir().join(format!("pinstripe-epochs-{}", std::process::id()));
        assert!(EpochFiles::open(&directory).is_err(), "it was made");
        fs::create_dir(&directory).unwrap();
        let files = EpochFiles::open(&directory).unwrap();
        assert_eq!(files.load(&[1; 16]).unwrap(), None);
        let record = record(7);
        replace(&files.path(&[1; 16]), &encode(&record)).unwrap();
        assert_eq!(files.load(&[1; 16]).unwrap(), Some(record));
        fs::write(files.path(&[1; 16]), b"short").unwrap();
        assert!(files.load(&[1; 16]).unwrap_err().to_string().contains("damaged"));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_record_that_takes_no_place_is_an_error_and_the_one_before_stays() {
        let directory = std::env::temp_dir().join(format!("pinstripe-places-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let files = EpochFiles::open(&directory).unwrap();
        let path = files.path(&[1; 16]);
        let bytes = encode(&record(8));
        // The new file can be written, and not be given the name.
        fs::create_dir_all(path.join("there")).unwrap();
        assert!(replace(&path, &bytes).is_err());
        fs::remove_dir_all(&path).unwrap();
        replace(&path, &encode(&record(7))).unwrap();
        // The new file can't be made.
        fs::create_dir(path.with_extension("new")).unwrap();
        assert!(replace(&path, &bytes).is_err());
        assert_eq!(files.load(&[1; 16]).unwrap(), Some(record(7)));
        fs::remove_dir_all(&directory).unwrap();
    }

    /// What a power failure leaves: the record before, until the new one and then its name are durable.
    #[test]
    fn a_record_is_durable_before_it_has_the_name_and_so_is_the_name_before_the_answer() {
        let directory = std::env::temp_dir().join(format!("pinstripe-durable-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let files = EpochFiles::open(&directory).unwrap();
        let path = files.path(&[1; 16]);
        replace(&path, &encode(&record(7))).unwrap();
        let named = || files.load(&[1; 16]).unwrap().unwrap().epoch;
        let bytes = encode(&record(8));
        // Which call fails, what the store says of the record then, and the epoch that has the name.
        for (fails, is_unchanged, epoch) in [(0, Some(true), 7), (1, Some(false), 8), (2, None, 8)] {
            replace(&path, &encode(&record(7))).unwrap();
            let synced = std::cell::RefCell::new(Vec::new());
            let stored = replace_by(&path, &bytes, |file| {
                let metadata = file.metadata()?;
                synced.borrow_mut().push((
                    metadata.is_dir(),
                    metadata.len() * u64::from(metadata.is_file()),
                    named(),
                ));
                if synced.borrow().len() > fails { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
            });
            assert_eq!(stored.map_err(|error| error.is_unchanged).err(), is_unchanged);
            let all = [(false, BYTES as u64, 7), (true, 0, 8)];
            assert_eq!(*synced.borrow(), all[..2.min(fails + 1)]);
            assert_eq!(named(), epoch);
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
