//! PostgreSQL with checksums: a client of which the rows are counted, and pgbench; its balances must add up.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{Application, Load, PATIENCE, acknowledged, compare};
use crate::vm::server::said;

/// Debian's folder of the server's programs.
pub const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
/// Says each row that is committed. `$0` is the folder of the socket.
const SCRIPT: &str = r#"
awk 'BEGIN {
    print "CREATE TABLE rows (number integer PRIMARY KEY, body text);"
    for (number = 1; ; number++) {
        printf "INSERT INTO rows VALUES (%d, lpad((%d * 7919::bigint)::text, 700, chr(48)));\n", number, number
        printf "\\echo row %d\n", number
    }
}' | psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --host="$0" postgres
"#;
const ROWS: &str = "SELECT count(*), min(number), max(number), \
    count(*) FILTER (WHERE body <> lpad((number * 7919::bigint)::text, 700, chr(48))) FROM rows";
/// What pgbench's transactions keep equal.
const BALANCES: &str = "SELECT count(DISTINCT sum) FROM (SELECT sum(abalance) FROM pgbench_accounts \
    UNION ALL SELECT sum(bbalance) FROM pgbench_branches UNION ALL SELECT sum(tbalance) FROM pgbench_tellers \
    UNION ALL SELECT coalesce(sum(delta), 0) FROM pgbench_history) AS sums";

pub struct Postgres {
    /// For the socket and logs.
    scratch: PathBuf,
}

impl Postgres {
    pub fn new(scratch: &Path) -> Self {
        Self { scratch: scratch.to_owned() }
    }

    /// Makes an empty cluster.
    pub fn make(&self, folder: &Path) -> Result<PathBuf> {
        let data = folder.join("cluster");
        fs::create_dir(&data)?;
        for place in [&data, &self.sockets()?] {
            said(Command::new("chown").arg("postgres:").arg(place))?;
        }
        said(
            as_postgres(format!("{PROGRAMS}/initdb"))
                .args(["--data-checksums", "--auth=trust", "--pgdata"])
                .arg(&data),
        )?;
        Ok(data)
    }

    /// Starts the server and waits until it answers.
    pub fn start(&self, data: &Path) -> Result<Child> {
        let sockets = self.sockets()?;
        let log = File::options().create(true).append(true).open(self.scratch.join("postgres.log"))?;
        let mut command = as_postgres(format!("{PROGRAMS}/postgres"));
        command.arg("-D").arg(data).arg("-k").arg(&sockets).args(["-c", "listen_addresses="]);
        // Its pages come from the array, and checkpoints happen while it is watched.
        command.args([
            "-c",
            "shared_buffers=16MB",
            "-c",
            "checkpoint_timeout=30s",
            "-c",
            "max_wal_size=64MB",
        ]);
        let mut server = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
        let start = Instant::now();
        while said(self.client("pg_isready").args(["--dbname", "postgres"])).is_err() {
            if let Some(status) = server.try_wait()? {
                bail!("PostgreSQL ended with {status}: {}", self.said_last());
            }
            if start.elapsed() > PATIENCE {
                let _ = server.kill();
                bail!("PostgreSQL doesn't answer: {}", self.said_last());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// A program that asks the server.
    pub fn client(&self, program: &str) -> Command {
        let mut command = as_postgres(program.to_owned());
        command.arg("--host").arg(self.scratch.join("sockets"));
        command
    }

    fn sockets(&self) -> Result<PathBuf> {
        let sockets = self.scratch.join("sockets");
        fs::create_dir_all(&sockets)?;
        Ok(sockets)
    }

    fn ask(&self, question: &str) -> Result<String> {
        let mut command = self.client("psql");
        command.args(["--no-psqlrc", "--tuples-only", "--no-align", "--command", question, "postgres"]);
        Ok(String::from_utf8_lossy(&said(&mut command)?.stdout).trim().to_owned())
    }

    fn said_last(&self) -> String {
        let text = fs::read_to_string(self.scratch.join("postgres.log")).unwrap_or_default();
        text.lines().rev().take(5).collect::<Vec<_>>().join(" / ")
    }

    fn judge(&self) -> Result<u64> {
        let rows = acknowledged(&self.scratch.join("rows.log"))?;
        compare(rows, &self.ask(ROWS)?)?;
        let sums = self.ask(BALANCES)?;
        ensure!(sums == "1", "pgbench's balances add up to {sums} sums");
        let mut check = self.client(&format!("{PROGRAMS}/pg_amcheck"));
        said(check.args(["--all", "--install-missing", "--heapallindexed", "--parent-check"]))?;
        Ok(rows)
    }
}

impl Application for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn load(&self, folder: &Path) -> Result<Load> {
        let data = self.make(folder)?;
        let mut load = Load { clients: Vec::new(), server: Some(self.start(&data)?) };
        said(self.client("pgbench").args(["--initialize", "--quiet", "postgres"]))?;
        let logs =
            [File::create(self.scratch.join("rows.log"))?, File::create(self.scratch.join("pgbench.log"))?];
        let mut rows = as_postgres("sh".to_owned());
        rows.args(["-c", SCRIPT]).arg(self.scratch.join("sockets"));
        let mut pgbench = self.client("pgbench");
        pgbench.args(["--client=4", "--time=600", "--no-vacuum", "postgres"]);
        for (mut command, log) in [rows, pgbench].into_iter().zip(logs) {
            let client = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
            load.clients.push(client);
        }
        Ok(load)
    }

    fn verify(&self, folder: &Path) -> Result<String> {
        let data = folder.join("cluster");
        // That of the server that was killed names a process that isn't there.
        let server = self.start(&data)?;
        let mut load = Load { clients: Vec::new(), server: Some(server) };
        let rows = self.judge()?;
        if let Some(server) = load.server.take() {
            stop(&data, server)?;
        }
        said(as_postgres(format!("{PROGRAMS}/pg_checksums")).args(["--check", "--pgdata"]).arg(&data))?;
        Ok(format!("{rows} rows"))
    }
}

/// Stops the server in order.
pub fn stop(data: &Path, mut server: Child) -> Result<()> {
    said(as_postgres(format!("{PROGRAMS}/pg_ctl")).args(["stop", "--mode=fast", "--pgdata"]).arg(data))?;
    server.wait().map(drop).context("wait for PostgreSQL")
}

/// A program run by the user that PostgreSQL wants, which the kernel ends with us.
fn as_postgres(program: String) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig", "KILL", "--"]);
    command.arg(program).env("LC_ALL", "C").current_dir("/");
    command
}
