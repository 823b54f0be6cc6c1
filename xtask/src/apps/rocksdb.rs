//! RocksDB under YCSB's workload A, each write durable when it is acknowledged.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Application, Load};
use crate::net::{build_client, verify_tables};
use crate::vm::server::said;

pub struct RocksDb {
    ycsb: PathBuf,
    /// What was acknowledged.
    ledger: PathBuf,
    log: PathBuf,
}

impl RocksDb {
    pub fn new(root: &Path, scratch: &Path) -> Result<Self> {
        let (ledger, log) = (scratch.join("rocksdb.ledger"), scratch.join("rocksdb.log"));
        Ok(Self { ycsb: build_client(root)?, ledger, log })
    }
}

impl Application for RocksDb {
    fn name(&self) -> &'static str {
        "rocksdb"
    }

    fn load(&self, folder: &Path) -> Result<Load> {
        // That of the round before isn't this one's.
        let _ = fs::remove_file(&self.ledger);
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.ycsb).arg("run").arg(folder.join("database"));
        command.args(["--records", "2000", "--threads", "8", "--sync", "--seconds", "600", "--ledger"]);
        let client =
            command.arg(&self.ledger).stdin(Stdio::null()).stderr(File::create(&self.log)?).spawn()?;
        Ok(Load { clients: vec![client], server: None })
    }

    fn verify(&self, folder: &Path) -> Result<String> {
        let database = folder.join("database");
        let mut verify = Command::new(&self.ycsb);
        verify.arg("verify").arg(&database).arg("--ledger").arg(&self.ledger);
        said(&mut verify)?;
        verify_tables(&database)?;
        let ledger = fs::read(&self.ledger).context("the ledger")?;
        // Its first word is the values' size; each record's version counts its puts.
        let words = ledger.chunks_exact(8).skip(1).filter_map(|word| word.try_into().ok());
        let puts: u64 = words.map(u64::from_le_bytes).sum();
        ensure!(puts > 2000, "nothing was put but what was loaded");
        Ok(format!("{puts} puts"))
    }
}
