//! `pinstripe demo`: the whole life of an array, on six files, over the real command and the real protocol.
//!
//! Each step runs `pinstripe` as a user would; only the NBD client is the demo's own, so that nothing needs to be
//! installed. What is read is compared with what was written, byte by byte, and every step that does not do what it should
//! ends the demo.

mod load;
mod nbd;
mod server;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use self::{load::Load, server::Server};
use crate::{command_line::DemoArguments, failure::Failure, size::ByteSize};

const MEMBERS: usize = 6;
/// The member that is lost.
const LOST_SLOT: &str = "2";
const NAME: &str = "demo";
/// How long a spare may take.
const PATIENCE: Duration = Duration::from_mins(1);

pub fn run(arguments: &DemoArguments) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut builder = tempfile::Builder::new();
    builder.prefix("pinstripe-demo-");
    let folder = match &arguments.folder {
        Some(parent) => builder.tempdir_in(parent),
        None => builder.tempdir(),
    };
    let folder =
        folder.map_err(|error| Failure::new(format!("can't make a folder for the demo: {error}")))?;
    let demo = Demo::new(folder.path(), arguments.size)?;
    demo.play()?;
    println!("All well, in {:.1} seconds. The files are removed again.", begun.elapsed().as_secs_f64());
    Ok(())
}

struct Demo {
    pinstripe: PathBuf,
    folder: PathBuf,
    control: String,
    socket: PathBuf,
    member_bytes: u64,
}

impl Demo {
    fn new(folder: &Path, size: ByteSize) -> Result<Self, Failure> {
        Ok(Self {
            pinstripe: std::env::current_exe()?,
            folder: folder.to_owned(),
            control: folder.join("control.sock").display().to_string(),
            socket: folder.join("nbd.sock"),
            member_bytes: size.0,
        })
    }

    fn play(&self) -> Result<(), Failure> {
        step(&format!("Six files of {} in {}", ByteSize(self.member_bytes), self.folder.display()));
        let members: Vec<String> =
            (0..MEMBERS).map(|slot| self.file(&format!("member{slot}"))).collect::<Result<_, _>>()?;
        let spare = self.file("spare")?;
        step("A RAID5 on them");
        let create = ["create", "--level", "5", "--chunk", "64K", "--name", NAME];
        self.pinstripe(&create.into_iter().chain(members.iter().map(String::as_str)).collect::<Vec<_>>())?;
        step("Serve it over NBD");
        let server = Server::start(&self.pinstripe, &self.socket, &self.control, &members)?;
        let load = Arc::new(Load::new(&self.socket, NAME, server.size_bytes()));
        step("Write all of it, and read it back");
        timed("write", &load, |bar| load.write_all(1, bar))?;
        timed("verify", &load, |bar| load.verify(1, bar))?;
        step("Lose a member while everything is written anew");
        self.lose_a_member(&load)?;
        step("Everything is still there, though a sixth of it must be reconstructed");
        timed("verify", &load, |bar| load.verify(2, bar))?;
        step("A spare comes in, and is rebuilt");
        self.pinstripe(&["add", &self.control, &spare, "--wait"])?;
        timed("verify", &load, |bar| load.verify(2, bar))?;
        let current = self.change_members(members, spare)?;
        timed("verify", &load, |bar| load.verify(2, bar))?;
        step("Compare all parity with all data");
        self.pinstripe(&["check", &self.control])?;
        step("Stop, and look at the superblocks");
        self.pinstripe(&["stop", &self.control])?;
        server.ended()?;
        self.examine(&current)
    }

    fn file(&self, name: &str) -> Result<String, Failure> {
        let path = self.folder.join(name);
        let made = fs::File::create(&path).and_then(|file| file.set_len(self.member_bytes));
        made.map_err(|error| Failure::new(format!("can't make {}: {error}", path.display())))?;
        Ok(path.display().to_string())
    }

    /// Runs a command and shows it, as the user could have typed it.
    fn pinstripe(&self, arguments: &[&str]) -> Result<(), Failure> {
        println!("  $ pinstripe {}", self.abbreviated(arguments));
        let ran = Command::new(&self.pinstripe).args(arguments).output()?;
        for line in String::from_utf8_lossy(&ran.stdout).lines() {
            println!("    {}", line.replace(&format!("{}/", self.folder.display()), ""));
        }
        if ran.status.success() {
            return Ok(());
        }
        Err(Failure::new(format!("the demo failed: {}", String::from_utf8_lossy(&ran.stderr).trim())))
    }

    fn abbreviated(&self, arguments: &[&str]) -> String {
        arguments.join(" ").replace(&format!("{}/", self.folder.display()), "")
    }

    /// Takes a member out in the middle of a second write of everything.
    fn lose_a_member(&self, load: &Arc<Load>) -> Result<(), Failure> {
        let bar = bar("write", load.size_bytes());
        let begun = Instant::now();
        let writing = thread::spawn({
            let (load, bar) = (Arc::clone(load), bar.clone());
            move || load.write_all(2, &bar)
        });
        while !writing.is_finished() && bar.position() < load.size_bytes() / 3 {
            thread::sleep(Duration::from_millis(2));
        }
        let failed = self.pinstripe(&["fail", &self.control, LOST_SLOT]);
        let written = writing.join().map_err(|_| Failure::new("the demo's writer panicked"))?;
        bar.finish_and_clear();
        failed?;
        written?;
        tell("write", load.size_bytes(), begun);
        Ok(())
    }

    /// A hot spare takes over, a member comes back by bitmap, another one is replaced in place. `spare` holds the lost slot
    /// already. Returns who holds which slot then.
    fn change_members(&self, members: Vec<String>, spare: String) -> Result<Vec<String>, Failure> {
        let mut current = members;
        let lost: usize = LOST_SLOT.parse()?;
        let (hot, back, replaced) = ((lost + 1) % MEMBERS, (lost + 2) % MEMBERS, (lost + 3) % MEMBERS);
        let mut free = std::mem::replace(&mut current[lost], spare);
        step("What was lost comes back as a spare, and takes over by itself when the next member fails");
        self.pinstripe(&["add", &self.control, &free])?;
        self.pinstripe(&["fail", &self.control, &hot.to_string()])?;
        self.wait_until_whole()?;
        std::mem::swap(&mut current[hot], &mut free);
        step("A member that was away gets only what it missed, by the bitmap");
        self.pinstripe(&["fail", &self.control, &back.to_string()])?;
        self.pinstripe(&["add", &self.control, &current[back], "--wait"])?;
        step("A member is replaced and stays in use until its copy is whole");
        self.pinstripe(&["remove", &self.control, &free])?;
        self.pinstripe(&["replace", &self.control, &replaced.to_string(), "--with", &free, "--wait"])?;
        std::mem::swap(&mut current[replaced], &mut free);
        self.pinstripe(&["remove", &self.control, &free])?;
        Ok(current)
    }

    fn wait_until_whole(&self) -> Result<(), Failure> {
        let begun = Instant::now();
        loop {
            let ran = Command::new(&self.pinstripe).args(["detail", "--json", &self.control]).output()?;
            let detail: Value = serde_json::from_slice(&ran.stdout)?;
            if detail["degraded"] == false {
                println!("    whole again");
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(Failure::new(format!("the demo failed: no spare has taken over: {detail}")));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The members must say that they are a whole and clean array.
    fn examine(&self, current: &[String]) -> Result<(), Failure> {
        let members = current.iter().map(String::as_str);
        let arguments: Vec<&str> = ["examine", "--json"].into_iter().chain(members).collect();
        println!("  $ pinstripe {}", self.abbreviated(&arguments));
        let ran = Command::new(&self.pinstripe).args(&arguments).output()?;
        let reports: Vec<Value> = serde_json::from_slice(&ran.stdout)?;
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

fn step(what: &str) {
    println!("{what}");
}

fn bar(what: &'static str, bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes).with_message(what);
    if let Ok(style) =
        ProgressStyle::with_template("    {msg:7} {bar:40} {bytes}/{total_bytes} {bytes_per_sec}")
    {
        bar.set_style(style);
    }
    bar
}

/// Does something with all bytes of the array, shows how far it is, and tells how long it took.
fn timed(
    what: &'static str,
    load: &Load,
    work: impl FnOnce(&ProgressBar) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let bar = bar(what, load.size_bytes());
    let begun = Instant::now();
    let done = work(&bar);
    bar.finish_and_clear();
    done?;
    tell(what, load.size_bytes(), begun);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "for the eye")]
fn tell(what: &str, bytes: u64, begun: Instant) {
    let seconds = begun.elapsed().as_secs_f64();
    let rate = bytes as f64 / f64::from(1 << 20) / seconds;
    println!("    {what}: {} in {seconds:.2} s, {rate:.0} MiB/s", ByteSize(bytes));
}
