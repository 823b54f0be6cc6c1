//! SQLite with a write-ahead log: transactions of one row, each durable when it is acknowledged.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::{Application, Load, acknowledged, compare, pipeline};
use crate::vm::server::said;

/// Inserts so many rows in a transaction each, and says each one that is committed. `$0` is the database.
pub fn script(rows: u32) -> String {
    format!(
        r#"
awk 'BEGIN {{
    print "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
    print "CREATE TABLE rows (number INTEGER PRIMARY KEY, body TEXT);"
    for (number = 1; number <= {rows}; number++) {{
        printf "INSERT INTO rows VALUES (%d, printf(\"%%0700d\", %d * 7919));\n", number, number
        printf "SELECT \"row \" || %d;\n", number
    }}
}}' | sqlite3 -bail "$0"
"#
    )
}

const ROWS: &str =
    "SELECT count(*), min(number), max(number), sum(body <> printf('%0700d', number * 7919)) FROM rows";

pub struct Sqlite {
    /// What was acknowledged.
    log: PathBuf,
}

impl Sqlite {
    pub fn new(scratch: &Path) -> Self {
        Self { log: scratch.join("sqlite.log") }
    }
}

impl Application for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn load(&self, folder: &Path) -> Result<Load> {
        let log = File::create(&self.log)?;
        let client = pipeline(&script(u32::MAX), &[&folder.join("rows.db")])
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Load { clients: vec![client], server: None })
    }

    fn verify(&self, folder: &Path) -> Result<String> {
        let ask = |question: &str| -> Result<String> {
            let output = said(Command::new("sqlite3").arg(folder.join("rows.db")).arg(question))?;
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let rows = acknowledged(&self.log)?;
        compare(rows, &ask(ROWS)?)?;
        let judgement = ask("PRAGMA integrity_check")?;
        ensure!(judgement == "ok", "integrity_check: {judgement}");
        Ok(format!("{rows} rows"))
    }
}
