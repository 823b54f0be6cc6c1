//! Clients that load the database and do a workload.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use pinstripe_ycsb::generator::{Generator, Operation, Random};

use crate::ledger::Ledger;
use crate::rocksdb::Database;

/// When clients end: whatever comes first.
#[derive(Clone, Copy)]
pub struct Until {
    /// So many operations, all clients together.
    pub operations: u64,
    /// So much time.
    pub time: Duration,
}

/// Latencies in nanoseconds.
pub struct Done {
    read: Histogram<u64>,
    update: Histogram<u64>,
    insert: Histogram<u64>,
    scan: Histogram<u64>,
    read_modify_write: Histogram<u64>,
    /// Records that scans have found.
    pub scanned: u64,
}

impl Done {
    fn new() -> Result<Self> {
        let new = || Histogram::new(3);
        Ok(Self {
            read: new()?,
            update: new()?,
            insert: new()?,
            scan: new()?,
            read_modify_write: new()?,
            scanned: 0,
        })
    }

    /// By kind.
    pub fn kinds(&self) -> [(&'static str, &Histogram<u64>); 5] {
        [
            ("read", &self.read),
            ("update", &self.update),
            ("insert", &self.insert),
            ("scan", &self.scan),
            ("read_modify_write", &self.read_modify_write),
        ]
    }

    /// How many.
    pub fn operations(&self) -> u64 {
        self.kinds().iter().map(|(_, latency)| latency.len()).sum()
    }

    fn note(&mut self, operation: Operation, took: Duration) -> Result<()> {
        let latency = match operation {
            Operation::Read => &mut self.read,
            Operation::Update => &mut self.update,
            Operation::Insert => &mut self.insert,
            Operation::Scan(_) => &mut self.scan,
            Operation::ReadModifyWrite => &mut self.read_modify_write,
        };
        Ok(latency.record(u64::try_from(took.as_nanos())?)?)
    }

    fn add(mut self, other: &Self) -> Result<Self> {
        self.read.add(&other.read)?;
        self.update.add(&other.update)?;
        self.insert.add(&other.insert)?;
        self.scan.add(&other.scan)?;
        self.read_modify_write.add(&other.read_modify_write)?;
        self.scanned += other.scanned;
        Ok(self)
    }
}

/// Puts so many records.
pub fn load(database: &Database, ledger: &Ledger, threads: u64, records: u64) -> Result<()> {
    on_all(threads, |_| {
        loop {
            // Each client draws one number too many, which the next insert must be given again.
            let number = ledger.new_record();
            if number >= records {
                return Ok(());
            }
            ledger.put(database, number)?;
        }
    })?;
    ledger.end_at(records);
    Ok(())
}

/// Does the workload. Returns what came of it and how many seconds it took.
pub fn work(
    database: &Database,
    ledger: &Ledger,
    generator: &Generator,
    threads: u64,
    until: Until,
) -> Result<(Done, f64)> {
    let (start, left) = (Instant::now(), AtomicU64::new(until.operations));
    // Others' failures end a client, too.
    let over = AtomicBool::new(false);
    let client = |number: u64| -> Result<Done> {
        // Not the operations of the run before.
        let seed = u64::from(std::time::UNIX_EPOCH.elapsed()?.subsec_nanos()) ^ number << 32;
        let (mut random, mut done) = (Random::new(seed), Done::new()?);
        while !over.load(Ordering::Relaxed) && start.elapsed() < until.time {
            if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
                break;
            }
            let (began, operation) = (Instant::now(), generator.operation(&mut random));
            let outcome = carry_out(database, ledger, generator, operation, &mut random);
            done.scanned += outcome.inspect_err(|_| over.store(true, Ordering::Relaxed))?;
            done.note(operation, began.elapsed())?;
        }
        Ok(done)
    };
    let all = on_all(threads, client)?;
    let seconds = start.elapsed().as_secs_f64();
    let done = all.iter().try_fold(Done::new()?, Done::add)?;
    Ok((done, seconds))
}

/// Returns how many records a scan found.
fn carry_out(
    database: &Database,
    ledger: &Ledger,
    generator: &Generator,
    operation: Operation,
    random: &mut Random,
) -> Result<u64> {
    if operation == Operation::Insert {
        ledger.put(database, ledger.new_record())?;
        return Ok(0);
    }
    let record = ledger.acknowledged_record(generator.record(ledger.records() - 1, random));
    match operation {
        Operation::Read => ledger.get(database, record)?,
        Operation::ReadModifyWrite => {
            ledger.get(database, record)?;
            ledger.put(database, record)?;
        }
        Operation::Scan(length) => return ledger.scan(database, record, length),
        Operation::Update | Operation::Insert => ledger.put(database, record)?,
    }
    Ok(0)
}

/// Runs so many clients at a time.
fn on_all<T: Send>(threads: u64, client: impl Fn(u64) -> Result<T> + Sync) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let client = &client;
        let running: Vec<_> = (0..threads).map(|number| scope.spawn(move || client(number))).collect();
        let ended = running.into_iter().map(thread::ScopedJoinHandle::join);
        ended.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}
