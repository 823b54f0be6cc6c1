//! YCSB's core workloads on RocksDB: how many operations, at which latencies, and whether all is right.
//!
//! `pinstripe-ycsb run FOLDER` makes a database in an empty folder, loads it, does a workload and verifies
//! all records in the database opened anew. With `--ledger FILE`, elsewhere, what was acknowledged is kept:
//! if the storage fails in the middle, `pinstripe-ycsb verify FOLDER` compares later.
#![deny(unsafe_code)]

mod client;
mod ledger;
#[expect(unsafe_code, reason = "it calls a library in C")]
mod rocksdb;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser};
use pinstripe_ycsb::generator::{Generator, Workload};
use serde_json::json;

use self::client::{Done, Until};
use self::ledger::Ledger;
use self::rocksdb::Database;

/// YCSB's core workloads on RocksDB, with every record checked.
#[derive(Parser)]
#[command(name = "pinstripe-ycsb", version)]
enum Task {
    /// Make a database, load it, do a workload, and verify all records.
    Run(Run),
    /// Verify a database by the ledger of a run that failed.
    Verify {
        #[command(flatten)]
        place: Place,
        /// What the run has kept.
        #[arg(long)]
        ledger: PathBuf,
    },
}

#[derive(Args)]
struct Place {
    /// Folder of the database.
    folder: PathBuf,
    /// RocksDB's options, in its own text form, on top of ours.
    #[arg(long, default_value = "")]
    options: String,
}

#[derive(Args)]
struct Run {
    #[command(flatten)]
    place: Place,
    /// Which of the core workloads.
    #[arg(long, value_enum, default_value_t = Workload::A, ignore_case = true)]
    workload: Workload,
    /// Records that are loaded.
    #[arg(long, default_value_t = 100_000)]
    records: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1000)]
    value_size: usize,
    /// Clients, one operation each at a time.
    #[arg(long, default_value_t = 16)]
    threads: u64,
    /// Operations to do, if the time isn't over before.
    #[arg(long, default_value_t = u64::MAX)]
    operations: u64,
    /// Seconds to do them.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds of the same load before that, which don't count.
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Acknowledge a write when it is durable.
    #[arg(long)]
    sync: bool,
    /// Keep here what was acknowledged.
    #[arg(long)]
    ledger: Option<PathBuf>,
    /// Say when it is `ready`, `begins` and has `ended`, and wait for a line each time.
    #[arg(long)]
    attended: bool,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Past the page cache, with hardly a cache of its own and no compression: the array is to be measured.
const OPTIONS: &str = "create_if_missing=true;compression=kNoCompression;use_direct_reads=true;\
    use_direct_io_for_flush_and_compaction=true;write_buffer_size=8388608;target_file_size_base=8388608;\
    max_bytes_for_level_base=33554432;max_background_jobs=4;\
    block_based_table_factory={block_cache=1048576;block_size=4096;filter_policy=bloomfilter:10:false}";

fn main() -> ExitCode {
    let outcome = match Task::parse() {
        Task::Run(run) => run.run(),
        Task::Verify { place, ledger } => verify(&place, &ledger),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Place {
    fn open(&self, sync: bool) -> Result<Database> {
        Database::open(&self.folder, &format!("{OPTIONS};{}", self.options), sync)
    }
}

fn verify(place: &Place, ledger: &std::path::Path) -> Result<()> {
    let records = Ledger::load(ledger)?.verify(&place.open(false)?)?;
    println!("{records} records, all right");
    Ok(())
}

impl Run {
    fn run(&self) -> Result<()> {
        let mut ledger = Ledger::new(self.records, self.value_size)?;
        if let Some(path) = &self.ledger {
            ledger.keep(path)?;
        }
        let (done, seconds) = self.measure(&ledger)?;
        let verified = ledger.verify(&self.place.open(false)?)?;
        self.report(&done, seconds, verified);
        Ok(())
    }

    /// Loads and measures. The database is closed afterwards.
    fn measure(&self, ledger: &Ledger) -> Result<(Done, f64)> {
        let loaded = self.records as u64;
        let generator = Generator::new(self.workload, loaded);
        // Loading needs no write to be durable: the compaction makes all of them so.
        let database = self.place.open(false)?;
        client::load(&database, ledger, self.threads, loaded)?;
        database.compact();
        drop(database);
        let database = self.place.open(self.sync)?;
        let work = |until| client::work(&database, ledger, &generator, self.threads, until);
        let time = |seconds| Until { operations: self.operations, time: Duration::from_secs_f64(seconds) };
        self.say("ready")?;
        work(time(self.warm_up))?;
        self.say("begins")?;
        let (done, seconds) = work(time(self.seconds))?;
        self.say("ended")?;
        Ok((done, seconds))
    }

    fn say(&self, event: &str) -> Result<()> {
        if self.attended {
            println!("{}", json!({ "event": event }));
            std::io::stdout().flush()?;
            std::io::stdin().read_line(&mut String::new()).context("wait for the attendant")?;
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "operations are fewer than 2^53")]
    fn report(&self, done: &Done, seconds: f64, verified: u64) {
        let rate = done.operations() as f64 / seconds;
        let by_kind = done.kinds();
        if self.json {
            let mut report = json!({
                "operations": done.operations(), "seconds": seconds, "operations_per_second": rate,
                "scanned": done.scanned, "verified": verified,
            });
            for (kind, latency) in by_kind {
                let at = |quantile| latency.value_at_quantile(quantile);
                report[format!("{kind}_latency_ns")] = json!({
                    "samples": latency.len(), "p50": at(0.5), "p99": at(0.99), "p999": at(0.999),
                    "max": latency.max(),
                });
            }
            println!("{report}");
            return;
        }
        println!("{} operations in {seconds:.1} s, {rate:.0} a second", done.operations());
        for (kind, latency) in by_kind.into_iter().filter(|(_, latency)| !latency.is_empty()) {
            let at = |quantile| latency.value_at_quantile(quantile) as f64 / 1e6;
            let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
            println!("{kind}: {}, p50 {p50:.3} ms, p99 {p99:.3} ms, p99.9 {p999:.3} ms", latency.len());
        }
        println!("{verified} records, all right");
    }
}
