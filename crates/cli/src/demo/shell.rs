//! Commands as the user could have typed them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::failure::Failure;

/// How long the array may take to become what it should.
const PATIENCE: Duration = Duration::from_mins(1);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Runs `pinstripe` over files in the demo's folder.
pub struct Shell {
    pinstripe: PathBuf,
    folder: PathBuf,
    control: String,
}

impl Shell {
    pub fn new(folder: &Path) -> Result<Self, Failure> {
        Ok(Self {
            pinstripe: std::env::current_exe()?,
            folder: folder.to_owned(),
            control: folder.join("control.sock").display().to_string(),
        })
    }

    /// The program.
    pub fn pinstripe(&self) -> &Path {
        &self.pinstripe
    }

    /// The demo's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The array's control socket.
    pub fn control(&self) -> &str {
        &self.control
    }

    /// Makes a file of zeroes.
    pub fn file(&self, name: &str, bytes: u64) -> Result<String, Failure> {
        let path = self.folder.join(name);
        let made = fs::File::create(&path).and_then(|file| file.set_len(bytes));
        made.map_err(|error| Failure::new(format!("can't make {}: {error}", path.display())))?;
        Ok(path.display().to_string())
    }

    /// Runs a command and shows it.
    pub fn run(&self, arguments: &[&str]) -> Result<(), Failure> {
        self.run_as(arguments, &arguments.join(" "))
    }

    /// Runs a command and shows it in other words.
    pub fn run_as(&self, arguments: &[&str], shown: &str) -> Result<(), Failure> {
        println!("  $ pinstripe {}", self.abbreviated(shown));
        let ran = self.quietly(arguments)?;
        for line in String::from_utf8_lossy(&ran.stdout).lines() {
            println!("    {}", self.abbreviated(line));
        }
        if ran.status.success() {
            return Ok(());
        }
        Err(Failure::new(format!("the demo failed: {}", String::from_utf8_lossy(&ran.stderr).trim())))
    }

    /// Runs a command without a word.
    pub fn quietly(&self, arguments: &[&str]) -> Result<Output, Failure> {
        Ok(Command::new(&self.pinstripe).args(arguments).output()?)
    }

    /// Text without the folder's path.
    pub fn abbreviated(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.folder.display()), "")
    }

    /// The state of the array.
    pub fn detail(&self) -> Result<Value, Failure> {
        Ok(serde_json::from_slice(&self.quietly(&["detail", "--json", &self.control])?.stdout)?)
    }

    /// Waits until the array is as `wanted`, which is `what` in words; that state.
    pub fn wait_until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value, Failure> {
        let begun = Instant::now();
        loop {
            let detail = self.detail()?;
            if wanted(&detail) {
                return Ok(detail);
            }
            if begun.elapsed() > PATIENCE {
                return Err(Failure::new(format!("the demo failed: {what}, but: {detail}")));
            }
            thread::sleep(LOOK);
        }
    }

    /// The members must say that they are a whole and clean array. `shown` names them for the user.
    pub fn examine(&self, members: &[String], shown: &str) -> Result<(), Failure> {
        let names = members.iter().map(String::as_str);
        let arguments: Vec<&str> = ["examine", "--json"].into_iter().chain(names).collect();
        println!("  $ pinstripe examine --json {}", self.abbreviated(shown));
        let reports: Vec<Value> = serde_json::from_slice(&self.quietly(&arguments)?.stdout)?;
        if reports.len() != members.len() {
            return Err(Failure::new("the demo failed: not every member could be examined"));
        }
        for (slot, report) in reports.iter().enumerate() {
            let (array, device) = (&report["member"]["array"], &report["member"]["device"]);
            let whole =
                array["present"].as_array().is_some_and(|slots| slots.iter().all(|slot| *slot == true));
            if array["clean"] != true || device["slot"] != slot || !whole {
                return Err(Failure::new(format!(
                    "the demo failed: the superblock of slot {slot} is wrong: {report}"
                )));
            }
        }
        println!("    {} members, all of one clean and complete array", reports.len());
        Ok(())
    }
}
