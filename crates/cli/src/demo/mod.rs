//! `pinstripe demo`: the whole life of an array, on six files, over the real command and the real protocol.
//!
//! Each step runs `pinstripe` as a user would; only the NBD client is the demo's own, so that nothing needs
//! to be installed. What is read is compared with what was written, byte by byte, and every step that does
//! not do what it should ends the demo. [`disaggregated`] is the same for an array on servers.

mod disaggregated;
mod link;
mod load;
mod nbd;
mod shell;
mod store;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use pinstripe_control::size::ByteSize;
use serde_json::Value;

use self::{load::Load, shell::Shell};
use crate::{command_line::DemoArguments, failure::Failure, server_process::ServerProcess};

const MEMBERS: usize = 6;
/// Bytes of a member, unless the user says otherwise.
const MEMBER_BYTES: u64 = 64 << 20;
/// The member that is lost.
const LOST_SLOT: &str = "2";
/// The member that goes and comes back.
const BACK_SLOT: usize = 4;
/// What a bit of the bitmap covers: little, so that there are several even for small members.
const BITMAP_CHUNK: &str = "512K";
const NAME: &str = "demo";

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
    let shell = Shell::new(folder.path())?;
    if arguments.disaggregated {
        disaggregated::play(shell, arguments.size)?;
    } else {
        let member_bytes = arguments.size.map_or(MEMBER_BYTES, |size| size.0);
        Demo { socket: socket(folder.path()), shell, member_bytes }.play()?;
    }
    println!("All well, in {:.1} seconds. The files are removed again.", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Where the array is served.
fn socket(folder: &Path) -> PathBuf {
    folder.join("nbd.sock")
}

/// Serves `members` with more `options` until it is ready. The user is shown them, and `names` in place of
/// the members.
fn serve(
    pinstripe: &Path,
    (socket, control): (&Path, &str),
    options: &[&str],
    members: &[String],
    names: &str,
) -> Result<ServerProcess, Failure> {
    let shown = [options, &[names]].concat().join(" ");
    println!("  $ pinstripe serve --nbd unix:nbd.sock --control control.sock {shown}");
    let mut serve = Command::new(pinstripe);
    serve.args(["serve", "--json", "--control", control, "--nbd"]).arg(format!("unix:{}", socket.display()));
    serve.args(options).args(members);
    ServerProcess::start(serve)
}

struct Demo {
    shell: Shell,
    socket: PathBuf,
    member_bytes: u64,
}

impl Demo {
    fn play(&self) -> Result<(), Failure> {
        let shell = &self.shell;
        step(&format!("Six files of {} in {}", ByteSize(self.member_bytes), shell.folder().display()));
        let file = |name: &str| shell.file(name, self.member_bytes);
        let members: Vec<String> =
            (0..MEMBERS).map(|slot| file(&format!("member{slot}"))).collect::<Result<_, _>>()?;
        let spare = file("spare")?;
        step("A RAID5 on them: the files are zeroes, so parity matches already");
        let create = ["create", "--level", "5", "--chunk", "64K", "--bitmap-chunk", BITMAP_CHUNK];
        let create = [&create[..], &["--assume-clean", "--name", NAME]].concat();
        shell.run(&create.into_iter().chain(members.iter().map(String::as_str)).collect::<Vec<_>>())?;
        step("Serve it over NBD");
        let sockets = (self.socket.as_path(), shell.control());
        let server = serve(shell.pinstripe(), sockets, &[], &members, "member0 ... member5")?;
        let load = Arc::new(Load::new(&self.socket, NAME, server.size_bytes()));
        self.come_back(server.size_bytes(), &members[BACK_SLOT])?;
        step("Write all of it, and read it back");
        timed("write", &load, |bar| load.write_all(1, bar))?;
        timed("verify", &load, |bar| load.verify(1, bar))?;
        step("Lose a member while everything is written anew");
        write_while(&load, 2, || shell.run(&["fail", shell.control(), LOST_SLOT]))?;
        step("Everything is still there, though a sixth of it must be reconstructed");
        timed("verify", &load, |bar| load.verify(2, bar))?;
        step("A spare comes in, and is rebuilt");
        shell.run(&["add", shell.control(), &spare, "--wait"])?;
        timed("verify", &load, |bar| load.verify(2, bar))?;
        let current = self.change_members(members, spare)?;
        timed("verify", &load, |bar| load.verify(2, bar))?;
        step("Compare all parity with all data");
        shell.run(&["check", shell.control()])?;
        step("Stop, and look at the superblocks");
        shell.run(&["stop", shell.control()])?;
        server.ended()?;
        shell.examine(&current, &current.join(" "))
    }

    /// A member is away while an eighth of the array is written, and comes back by the bitmap: nothing else
    /// is copied to it.
    fn come_back(&self, size_bytes: u64, member: &str) -> Result<(), Failure> {
        let (shell, control) = (&self.shell, self.shell.control());
        step("A member that was away gets only what it missed, by the bitmap");
        shell.run(&["fail", control, &BACK_SLOT.to_string()])?;
        let part = Load::new(&self.socket, NAME, size_bytes).of_first(size_bytes / 8);
        timed("write", &part, |bar| part.write_all(1, bar))?;
        let before = shell.detail()?;
        shell.run(&["add", control, member, "--wait"])?;
        let after = shell.detail()?;
        let written = |detail: &Value| detail["statistics"]["member_write_bytes"].as_u64().unwrap_or(0);
        let copied = written(&after) - written(&before);
        let of_bitmap = |name: &str| before["bitmap"][name].as_u64().unwrap_or(0);
        let (set, bits) = (of_bitmap("bits_set"), of_bitmap("bits"));
        if set >= bits || copied == 0 || copied > set * of_bitmap("chunk_bytes") {
            return Err(Failure::new(format!(
                "the demo failed: with {set} of {bits} bits set, {copied} bytes were copied to the member"
            )));
        }
        println!("    {} were copied: {set} of the bitmap's {bits} bits were set", ByteSize(copied));
        timed("verify", &part, |bar| part.verify(1, bar))
    }

    /// A hot spare takes over, and another member is replaced in place. `spare` holds the lost slot already.
    /// Returns the device of each slot then.
    fn change_members(&self, members: Vec<String>, spare: String) -> Result<Vec<String>, Failure> {
        let (shell, control) = (&self.shell, self.shell.control());
        let mut current = members;
        let lost: usize = LOST_SLOT.parse()?;
        let (hot, replaced) = ((lost + 1) % MEMBERS, (lost + 3) % MEMBERS);
        let mut free = std::mem::replace(&mut current[lost], spare);
        step("What was lost comes back as a spare, and takes over by itself when the next member fails");
        shell.run(&["add", control, &free])?;
        shell.run(&["fail", control, &hot.to_string()])?;
        shell.wait_until("a spare should have taken over", |now| now["degraded"] == false)?;
        println!("    whole again");
        std::mem::swap(&mut current[hot], &mut free);
        step("A member is replaced and stays in use until its copy is whole");
        shell.run(&["remove", control, &free])?;
        shell.run(&["replace", control, &replaced.to_string(), "--with", &free, "--wait"])?;
        std::mem::swap(&mut current[replaced], &mut free);
        shell.run(&["remove", control, &free])?;
        Ok(current)
    }
}

/// Writes everything anew, and does something when a third is written.
fn write_while(
    load: &Arc<Load>,
    generation: u64,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let bar = bar("write", load.size_bytes());
    let begun = Instant::now();
    let writing = thread::spawn({
        let (load, bar) = (Arc::clone(load), bar.clone());
        move || load.write_all(generation, &bar)
    });
    while !writing.is_finished() && bar.position() < load.size_bytes() / 3 {
        thread::sleep(Duration::from_millis(2));
    }
    let worked = work();
    let written = writing.join().map_err(|_| Failure::new("the demo's writer panicked"))?;
    bar.finish_and_clear();
    worked?;
    written?;
    tell("write", load.size_bytes(), begun);
    Ok(())
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
