//! What every record must hold: each put has a version, and the ledger knows the last acknowledged one.
//!
//! A value is made of its record's number and version alone, so a read shows by itself what it is. Puts of a
//! record follow each other, so that at most one version is unacknowledged: the one after the last.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use pinstripe_ycsb::generator::{Random, scatter};

use crate::rocksdb::Database;

/// Most records that a run may insert; zeroes that aren't used take no memory.
const INSERTS_MAX: usize = 4_000_000;
/// Records share locks.
const LOCKS: u64 = 4096;
/// Number and version.
const HEAD: usize = 2 * WORD;
const WORD: usize = 8;

/// See the module.
pub struct Ledger {
    /// By number; 0 is no put yet.
    versions: Vec<AtomicU64>,
    locks: Vec<Mutex<()>>,
    next: AtomicU64,
    value_bytes: usize,
    /// See [`Self::keep`].
    file: Option<File>,
}

impl Ledger {
    /// Of a database without records. Values have so many bytes, a multiple of 8 from 16 on.
    pub fn new(records: usize, value_bytes: usize) -> Result<Self> {
        ensure!(value_bytes >= HEAD && value_bytes.is_multiple_of(8), "a value has 16, 24, 32 or more bytes");
        Ok(Self {
            versions: (0..records + INSERTS_MAX).map(|_| AtomicU64::new(0)).collect(),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            next: AtomicU64::new(0),
            value_bytes,
            file: None,
        })
    }

    /// Keeps it in a file from now on, which is right whenever this process ends: the size of values, then
    /// the versions by number, words of 64 bits, little-endian.
    pub fn keep(&mut self, path: &Path) -> Result<()> {
        let file = File::create(path).with_context(|| format!("make {}", path.display()))?;
        file.write_all_at(&(self.value_bytes as u64).to_le_bytes(), 0)?;
        self.file = Some(file);
        Ok(())
    }

    /// What [`Self::keep`] has kept.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let mut words = bytes.chunks_exact(WORD).map(|bytes| word(bytes, 0));
        let value_bytes = words.next().context("the ledger is empty")??;
        let versions: Vec<u64> = words.collect::<Result<_>>()?;
        let ledger = Self::new(versions.len(), usize::try_from(value_bytes)?)?;
        for (kept, version) in ledger.versions.iter().zip(&versions) {
            kept.store(*version, Ordering::Relaxed);
        }
        ledger.next.store(versions.len() as u64, Ordering::Relaxed);
        Ok(ledger)
    }

    fn note(&self, number: u64, version: u64) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        file.write_all_at(&version.to_le_bytes(), (number + 1) * WORD as u64).context("write the ledger")
    }

    /// The number of a new record.
    pub fn new_record(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The next new record is this one: numbers from here on were drawn in vain.
    pub fn end_at(&self, records: u64) {
        self.next.store(records, Ordering::Relaxed);
    }

    /// How many records were begun.
    pub fn records(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// The record, or the last one before it that is acknowledged.
    pub fn acknowledged_record(&self, mut number: u64) -> u64 {
        while number > 0 && self.version(number) == 0 {
            number -= 1;
        }
        number
    }

    /// Writes the record's next version.
    pub fn put(&self, database: &Database, number: u64) -> Result<()> {
        let place = index(number);
        ensure!(place < self.versions.len(), "a run inserts at most {INSERTS_MAX} records");
        let lock = &self.locks[index(number % LOCKS)];
        let _held = lock.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.version(number) + 1;
        if version == 1 {
            self.note(number, 0)?;
        }
        database.put(&key(number), &value(number, version, self.value_bytes))?;
        self.versions[place].store(version, Ordering::Release);
        self.note(number, version)
    }

    /// Reads a record that there is.
    pub fn get(&self, database: &Database, number: u64) -> Result<()> {
        let acknowledged = self.version(number);
        match database.get(&key(number))? {
            Some(value) => self.check(number, acknowledged, &value),
            None => bail!("record {number} has gone, of which version {acknowledged} is acknowledged"),
        }
    }

    /// Reads so many records from `number` on in the order of keys.
    pub fn scan(&self, database: &Database, number: u64, most: u64) -> Result<u64> {
        let mut last: Option<[u8; 8]> = None;
        database.scan(&key(number), most, |key_bytes, value| {
            let found: [u8; 8] = key_bytes.try_into().context("a key of another length")?;
            ensure!(last.is_none_or(|last| last < found), "a scan goes backwards");
            ensure!(last.is_some() || found == key(number), "a scan doesn't begin with record {number}");
            last = Some(found);
            let number = word(value, 0)?;
            ensure!(key(number) == found, "record {number} is found under another's key");
            // Reading a version before the value isn't possible here, so only what it is made of is checked.
            self.check(number, 0, value)
        })
    }

    /// Reads every record that was begun, and the whole database: each has its last acknowledged version or
    /// the one after it, and there are no others. Returns how many there are.
    pub fn verify(&self, database: &Database) -> Result<u64> {
        let mut found = 0;
        for number in 0..self.records() {
            if self.version(number) > 0 {
                self.get(database, number)?;
            } else if let Some(value) = database.get(&key(number))? {
                self.check(number, 0, &value)?;
            } else {
                continue;
            }
            found += 1;
        }
        let scanned = database.scan(&[], u64::MAX, |key_bytes, value| {
            let number = word(value, 0)?;
            ensure!(key(number) == *key_bytes, "record {number} is found under another's key");
            ensure!(number < self.records(), "record {number} was never put");
            self.check(number, self.version(number), value)
        })?;
        ensure!(scanned == found, "{found} records are found one by one, {scanned} by a scan");
        Ok(found)
    }

    /// Whether a value is of this record, and of a version from `least` to the first one that may not be
    /// acknowledged yet.
    fn check(&self, number: u64, least: u64, found: &[u8]) -> Result<()> {
        let version = word(found, 8)?;
        let most = self.version(number) + 1;
        ensure!(
            (least..=most).contains(&version),
            "record {number} is of version {version}, which isn't between {least} and {most}"
        );
        ensure!(
            found == value(number, version, self.value_bytes),
            "record {number}, version {version}: its bytes are others"
        );
        Ok(())
    }

    fn version(&self, number: u64) -> u64 {
        self.versions.get(index(number)).map_or(0, |version| version.load(Ordering::Acquire))
    }
}

/// A record's key.
fn key(number: u64) -> [u8; 8] {
    scatter(number).to_be_bytes()
}

fn value(number: u64, version: u64, bytes: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(bytes);
    value.extend(number.to_le_bytes());
    value.extend(version.to_le_bytes());
    let mut random = Random::new(number ^ version.rotate_left(40));
    while value.len() < bytes {
        value.extend(random.bits().to_le_bytes());
    }
    value
}

fn word(value: &[u8], at: usize) -> Result<u64> {
    let bytes = value.get(at..at + 8).context("a value is too short")?;
    Ok(u64::from_le_bytes(bytes.try_into()?))
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(name: &str) -> (Database, std::path::PathBuf) {
        let folder = std::env::temp_dir().join(format!("ycsb-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        (Database::open(&folder, "create_if_missing=true", false).unwrap(), folder)
    }

    fn loaded(database: &Database, records: u64) -> Ledger {
        let ledger = Ledger::new(10, 64).unwrap();
        for _ in 0..records {
            ledger.put(database, ledger.new_record()).unwrap();
        }
        ledger
    }

    #[test]
    fn what_was_put_is_found_one_by_one_and_by_scans() {
        let (database, folder) = database("found");
        let ledger = loaded(&database, 50);
        ledger.put(&database, 7).unwrap();
        ledger.get(&database, 7).unwrap();
        assert!(ledger.scan(&database, 7, 20).unwrap() >= 1);
        assert_eq!(ledger.verify(&database).unwrap(), 50);
        drop(database);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let (database, folder) = database("kept");
        let path = folder.join("ledger");
        let mut ledger = Ledger::new(10, 64).unwrap();
        ledger.keep(&path).unwrap();
        for number in [0, 1, 2, 1] {
            ledger.put(&database, number).unwrap();
        }
        let kept = Ledger::load(&path).unwrap();
        assert_eq!((kept.verify(&database).unwrap(), kept.records()), (3, 3));
        database.put(&key(1), &value(1, 1, 64)).unwrap();
        assert!(kept.verify(&database).is_err(), "a lost update");
        database.put(&key(1), &value(1, 2, 64)).unwrap();
        // A first put that was under way when the process ended may be there.
        ledger.note(3, 0).unwrap();
        database.put(&key(3), &value(3, 1, 64)).unwrap();
        assert_eq!(Ledger::load(&path).unwrap().verify(&database).unwrap(), 4);
        drop(database);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_is_wrong_is_found() {
        let (database, folder) = database("wrong");
        let ledger = loaded(&database, 5);
        let put = |number: u64, bytes: &[u8]| database.put(&key(number), bytes).unwrap();
        let said = |ledger: &Ledger| format!("{:#}", ledger.verify(&database).unwrap_err());
        let mut flipped = value(3, 1, 64);
        flipped[40] ^= 1;
        put(3, &flipped);
        assert!(said(&ledger).contains("its bytes are others"));
        put(3, &value(3, 1, 64));
        ledger.put(&database, 2).unwrap();
        put(2, &value(2, 1, 64));
        assert!(said(&ledger).contains("between 2 and 3"), "a lost update");
        // Under way when the run ended: either version is right, and no later one.
        put(2, &value(2, 3, 64));
        ledger.verify(&database).unwrap();
        put(2, &value(2, 4, 64));
        assert!(said(&ledger).contains("between 2 and 3"));
        put(2, &value(1, 1, 64));
        assert!(ledger.verify(&database).is_err(), "another record's value");
        put(2, &value(2, 2, 64));
        put(9, &value(9, 1, 64));
        assert!(said(&ledger).contains("record 9"), "a record that was never put");
        drop(database);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_lost_record_is_found() {
        let (database, folder) = database("lost");
        let ledger = loaded(&database, 5);
        ledger.versions[5].store(1, Ordering::Relaxed);
        ledger.next.store(6, Ordering::Relaxed);
        assert!(format!("{:#}", ledger.verify(&database).unwrap_err()).contains("record 5 has gone"));
        drop(database);
        fs::remove_dir_all(&folder).unwrap();
    }
}
