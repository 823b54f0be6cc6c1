//! One boot of the guest: disks and a script go in, the script's results come out.
//!
//! Each member of each array is a raw file of the host and a SCSI disk of the guest, so the same bytes are
//! used by both sides in turn without copying. The guest's console goes to a log, stamped with the time since
//! the start; results come over a second serial line as `@out NAME VALUE`, `@why TEXT` and `@exit STATUS`.
//! `@cut` asks for the power to fail at that moment: QEMU is killed, and what its disks hold stays as it is.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use pinstripe_runtime::uring::{OpenError, OpenFile, OpenOptions};

use super::cpio::Archive;
use super::image::{self, Image};

const LIBRARY: &str = include_str!("../../vm/lib.sh");
const SERVE: &str = include_str!("../../vm/serve.sh");
/// How often a guest is started if its kernel dies before our first process.
const BOOTS_MAX: usize = 4;
/// So long before its time is over a guest is asked what it does.
const WARNING: Duration = Duration::from_secs(45);
/// How long a killed server's disks may be held.
const PATIENCE_FOR_DISKS: Duration = Duration::from_secs(30);

/// A boot to be made.
#[derive(Clone)]
pub struct Machine {
    /// For the names of its log and archive.
    pub name: String,
    script: &'static str,
    modules: Vec<&'static str>,
    environment: Vec<(String, String)>,
    disks: Vec<Disk>,
    nvme_disks: Vec<NvmeDisk>,
    kernel_options: Vec<&'static str>,
    programs: Vec<(String, PathBuf)>,
    files: Vec<(String, Vec<u8>)>,
    time_limit: Duration,
    memory: &'static str,
    kill: Option<(&'static str, Duration)>,
    vhost_user: Option<PathBuf>,
}

#[derive(Clone)]
struct Disk {
    name: String,
    medium: Medium,
    logical_block: u32,
}

/// An NVMe disk: a controller with one namespace of blocks of 512 bytes.
#[derive(Clone)]
pub struct NvmeDisk {
    /// By which the guest knows it.
    pub serial: String,
    pub file: PathBuf,
    /// Reads of this sector fail.
    pub bad_sector: Option<u64>,
    /// Bytes that it writes in a second, if it is slow.
    pub writes_per_second: Option<u64>,
}

impl NvmeDisk {
    /// QEMU's options for the disk with this number.
    fn options(&self, number: usize) -> [String; 6] {
        let Self { serial, file, bad_sector, writes_per_second } = self;
        let mut drive = format!("if=none,id=nvme{number},driver=raw,cache.direct=off,discard=unmap");
        let below = match bad_sector {
            Some(sector) => {
                for (key, value) in [("event", "none"), ("iotype", "read"), ("errno", "5")] {
                    let _ = write!(drive, ",file.inject-error.0.{key}={value}");
                }
                let _ = write!(drive, ",file.inject-error.0.sector={sector},file.driver=blkdebug");
                "file.image"
            }
            None => "file",
        };
        let _ = write!(drive, ",{below}.driver=file,{below}.filename={}", file.display());
        if let Some(bytes) = writes_per_second {
            let _ = write!(drive, ",throttling.bps-write={bytes}");
        }
        [
            "-drive".into(),
            drive,
            "-device".into(),
            format!("nvme,id=controller{number},serial={serial}"),
            "-device".into(),
            format!("nvme-ns,drive=nvme{number},bus=controller{number},nsid=1"),
        ]
    }
}

/// What a disk's bytes lie on.
#[derive(Clone)]
enum Medium {
    File(PathBuf),
    /// An NBD server's export.
    Export {
        socket: PathBuf,
        export: String,
    },
}

impl Medium {
    /// QEMU's `-drive` option, but for the drive's name.
    fn drive(&self) -> String {
        match self {
            Self::File(file) => format!("file={},format=raw,cache=writeback,discard=unmap", file.display()),
            Self::Export { socket, export } => format!(
                "driver=nbd,server.type=unix,server.path={},export={export},cache=writeback,discard=ignore",
                socket.display()
            ),
        }
    }
}

/// What a boot gave.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Names and values that the script gave, in order.
    pub outputs: Vec<(String, String)>,
    /// Why it failed.
    pub why: Option<String>,
    /// Its status, once it has ended.
    pub exit: Option<i32>,
    cut: bool,
}

impl Outcome {
    /// The values that the script gave under this name, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.outputs.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The last value that the script gave under this name.
    pub fn last(&self, name: &str) -> Result<&str> {
        self.all(name).pop().with_context(|| format!("the guest gave no {name:?}"))
    }
}

impl Machine {
    /// A machine that runs this script (after `lib.sh`, under `set -eu`).
    pub fn new(name: &str, script: &'static str) -> Self {
        Self {
            name: name.to_owned(),
            script,
            modules: image::BOOT_MODULES.to_vec(),
            environment: Vec::new(),
            disks: Vec::new(),
            nvme_disks: Vec::new(),
            kernel_options: Vec::new(),
            programs: Vec::new(),
            files: Vec::new(),
            time_limit: Duration::from_mins(5),
            memory: "1G",
            kill: None,
            vhost_user: None,
        }
    }

    /// Loads these kernel modules before the script starts.
    #[must_use]
    pub fn modules(mut self, names: &[&'static str]) -> Self {
        self.modules.extend(names);
        self
    }

    /// Sets a shell variable for the script.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Attaches a file as `/dev/member/NAME`. `logical_block` is 512 or 4096 bytes.
    pub fn disk(&mut self, name: &str, file: &Path, logical_block: u32) {
        self.disks.push(Disk { name: name.to_owned(), medium: Medium::File(file.to_owned()), logical_block });
    }

    /// Attaches an export of an NBD server on a unix socket as `/dev/member/EXPORT`, with blocks of 512 bytes
    /// and a volatile cache: the server gets the guest's flushes. Forced writes come as a write and a flush.
    pub fn export(&mut self, export: &str, socket: &Path) {
        let medium = Medium::Export { socket: socket.to_owned(), export: export.to_owned() };
        self.disks.push(Disk { name: export.to_owned(), medium, logical_block: 512 });
    }

    /// Attaches what a vhost-user server has on this socket as `/dev/vda`, with two queues. QEMU connects
    /// again when the server goes.
    pub fn vhost_user(&mut self, socket: &Path) {
        self.vhost_user = Some(socket.to_owned());
    }

    /// Attaches an NVMe disk. The guest finds it when it loads the module `nvme`.
    pub fn nvme(&mut self, disk: NvmeDisk) {
        self.nvme_disks.push(disk);
    }

    /// Gives the kernel an option, such as one of a module.
    #[must_use]
    pub fn kernel_option(mut self, option: &'static str) -> Self {
        self.kernel_options.push(option);
        self
    }

    /// Kills the guest so long after its script gave a value under this name; that is no failure.
    #[must_use]
    pub fn killed_after(mut self, output: &'static str, delay: Duration) -> Self {
        self.kill = Some((output, delay));
        self
    }

    /// Gives the guest this much memory.
    #[must_use]
    pub fn memory(mut self, memory: &'static str) -> Self {
        self.memory = memory;
        self
    }

    /// Lets the guest run for so long.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Puts a file into the guest as `/job/PATH`.
    pub fn file(&mut self, path: &str, contents: Vec<u8>) {
        self.files.push((path.to_owned(), contents));
    }

    /// Puts a program of the host, with its libraries, into the guest as `/sbin/NAME`.
    #[must_use]
    pub fn program(mut self, name: &str, path: &Path) -> Self {
        self.programs.push((name.to_owned(), path.to_owned()));
        self
    }

    /// Boots, runs the script, waits for the end. An error if the script failed, the time ran out, or the
    /// guest went down without a word; it names the log in `directory`.
    pub fn run(&self, image: &Image, directory: &Path) -> Result<Outcome> {
        let log = directory.join(format!("{}.log", self.name));
        let results = directory.join(format!("{}.results", self.name));
        let archive = self.write_archive(image, directory)?;
        self.wait_for_disks()?;
        let mut boots = 0;
        let (said, ended) = loop {
            let _ = fs::remove_file(&results);
            let ended = self.boot(image, &archive, &results, &log);
            let said = fs::read_to_string(&results).unwrap_or_default();
            boots += 1;
            // The kernel died before our first process began: that is the emulator's, on a busy host, and not
            // a result.
            if said.contains("@booted") || ended.is_err() || boots == BOOTS_MAX {
                break (said, ended);
            }
            println!("{}: the guest's kernel did not come up, again:\n{}", self.name, end_of(&log));
        };
        let _ = fs::remove_file(&archive);
        let mut outcome = parse(&said);
        outcome.cut |= ended.with_context(|| end_of(&log))?;
        match (outcome.exit, outcome.cut) {
            (Some(0), _) | (None, true) => Ok(outcome),
            (Some(status), _) => {
                let why = outcome.why.unwrap_or_else(|| format!("status {status}"));
                bail!("guest script of {}: {why}; {}", self.name, end_of(&log))
            }
            (None, false) => bail!("the guest went down without a word; {}", end_of(&log)),
        }
    }

    /// Waits until the disks are free.
    fn wait_for_disks(&self) -> Result<()> {
        let mut files = self.disks.iter().filter_map(|disk| match &disk.medium {
            Medium::File(file) => Some(file),
            Medium::Export { .. } => None,
        });
        files.try_for_each(|file| wait_until_free(file))?;
        self.nvme_disks.iter().try_for_each(|disk| wait_until_free(&disk.file))
    }

    /// The cached root and, behind it, what is for this boot only.
    fn write_archive(&self, image: &Image, directory: &Path) -> Result<PathBuf> {
        let mut job = Archive::default();
        job.file("job/modules", 0o644, self.modules.join("\n").as_bytes());
        let mut environment = String::new();
        // Before the time is over the guest tells what it waits for.
        let warning = self.time_limit.saturating_sub(WARNING).as_secs();
        writeln!(environment, "export WARNING_SECONDS={warning}")?;
        for (name, value) in &self.environment {
            writeln!(environment, "export {name}='{value}'")?;
        }
        job.file("job/environment", 0o644, environment.as_bytes());
        let mut disks = String::new();
        for (lun, disk) in self.disks.iter().enumerate() {
            writeln!(disks, "{lun} {}", disk.name)?;
        }
        job.file("job/disks", 0o644, disks.as_bytes());
        job.file("job/serve.sh", 0o644, SERVE.as_bytes());
        job.file("job/run.sh", 0o755, format!("{LIBRARY}\n{}", self.script).as_bytes());
        for (path, contents) in &self.files {
            job.file(&format!("job/{path}"), 0o644, contents);
        }
        let mut present = BTreeSet::new();
        for (name, program) in &self.programs {
            image::add_program(&mut job, &mut present, name, &image::stripped(program, directory)?)?;
        }
        let path = directory.join(format!("{}.cpio", self.name));
        fs::copy(&image.archive, &path)?;
        File::options().append(true).open(&path)?.write_all(&job.finish())?;
        Ok(path)
    }

    /// Runs QEMU to its end; true if that was the end that [`Machine::killed_after`] wants.
    fn boot(&self, image: &Image, archive: &Path, results: &Path, log: &Path) -> Result<bool> {
        let child = self.command(image, archive, results).spawn().context("start qemu-system-x86_64")?;
        let mut guest = Guest { child };
        let console = guest.child.stdout.take().context("the console is a pipe")?;
        let logger = stamp(console, File::create(log)?);
        let start = Instant::now();
        let mut killed_at = None;
        let ended = loop {
            if let Some(status) = guest.child.try_wait()? {
                break if status.success() { Ok(false) } else { bail!("QEMU ended with {status}") };
            }
            let said = fs::read_to_string(results).unwrap_or_default();
            if said.contains("@cut") {
                break guest.child.kill().map(|()| false).context("cut the power");
            }
            if let Some((output, delay)) = self.kill
                && said.contains(&format!("@out {output}"))
                && start.elapsed() >= *killed_at.get_or_insert(start.elapsed() + delay)
                && !said.contains("@exit")
            {
                break guest.child.kill().map(|()| true).context("kill the guest");
            }
            if start.elapsed() > self.time_limit {
                bail!("{} was not done after {} s", self.name, self.time_limit.as_secs());
            }
            std::thread::sleep(Duration::from_millis(if killed_at.is_some() { 3 } else { 20 }));
        };
        drop(guest);
        let _ = logger.join();
        ended
    }

    fn command(&self, image: &Image, archive: &Path, results: &Path) -> Command {
        let mut command = emulator(self.memory);
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(archive);
        let mut options = vec![
            "console=ttyS0 panic=-1 no_timer_check quiet loglevel=4 log_buf_len=4M mitigations=off nokaslr",
        ];
        options.extend(&self.kernel_options);
        command.arg("-append").arg(options.join(" "));
        command.args(["-serial", "stdio", "-serial"]).arg(format!("file:{}", results.display()));
        command.args(["-netdev", "user,id=net0", "-device", "virtio-net-pci,netdev=net0,romfile="]);
        command.args(["-device", "virtio-scsi-pci,id=scsi0"]);
        for (lun, disk) in self.disks.iter().enumerate() {
            command.arg("-drive").arg(format!("if=none,id=disk{lun},{}", disk.medium.drive()));
            command.arg("-device").arg(format!(
                "scsi-hd,drive=disk{lun},serial=disk{lun},bus=scsi0.0,scsi-id=0,lun={lun},logical_block_size={0},\
                 physical_block_size={0}",
                disk.logical_block
            ));
        }
        if let Some(socket) = &self.vhost_user {
            let chardev = format!("socket,id=vhost0,path={},reconnect=1", socket.display());
            command.arg("-chardev").arg(chardev);
            command.args(["-device", "vhost-user-blk-pci,chardev=vhost0,num-queues=2"]);
        }
        for (number, disk) in self.nvme_disks.iter().enumerate() {
            command.args(disk.options(number));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        command
    }
}

/// QEMU with two emulated processors, this memory, and no devices.
pub fn emulator(memory: &str) -> Command {
    // setpriv: the guest ends with us, even if we are killed.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]);
    // Shared, so that a server of one of its disks can map it.
    let backend = format!("memory-backend-memfd,id=memory,size={memory},share=on");
    command.arg("-object").arg(backend);
    command.args(["-machine", "q35,memory-backend=memory", "-accel", "tcg,thread=multi", "-cpu", "max"]);
    command.args(["-smp", "2", "-m", memory]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command
}

/// A running QEMU, ended when this goes out of scope.
pub struct Guest {
    pub child: Child,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a file is free: the kernel takes a killed server's io_uring apart after its process has gone,
/// and until then its writes go on.
pub fn wait_until_free(file: &Path) -> Result<()> {
    let start = Instant::now();
    while let Err(error) = OpenFile::open(file, &OpenOptions::default()) {
        if !matches!(error, OpenError::Busy { .. }) || start.elapsed() > PATIENCE_FOR_DISKS {
            return Err(error.into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Copies the console into the log, each line with the seconds since the start.
pub fn stamp(console: ChildStdout, mut log: File) -> JoinHandle<()> {
    let start = Instant::now();
    std::thread::spawn(move || {
        let mut console = BufReader::new(console);
        let mut line = Vec::new();
        while console.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line);
            let _ = writeln!(log, "{:8.3} {}", start.elapsed().as_secs_f64(), text.trim_end());
            line.clear();
        }
    })
}

/// The last lines of a guest's log and, if its script or its kernel complained before them, the first lines
/// of that.
pub fn end_of(log: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.len().saturating_sub(12);
    let mut said = String::new();
    if let Some(complaint) = lines[..last].iter().position(|line| is_complaint(line)) {
        let lines = &lines[complaint..last.min(complaint + 40)];
        let _ = writeln!(said, "what it complained of:\n{}", lines.join("\n"));
    }
    let _ = write!(said, "its last lines:\n{}\nsee {}", lines[last..].join("\n"), log.display());
    said
}

/// Whether a line begins the kernel's report of a fault of its own, or what `die` of `xtask/vm/lib.sh` says.
fn is_complaint(line: &str) -> bool {
    ["FAILED: ", "[ cut here ]", "BUG: ", "Oops: ", "general protection fault", "blocked for more than"]
        .iter()
        .any(|mark| line.contains(mark))
}

pub fn parse(results: &str) -> Outcome {
    let mut outcome = Outcome::default();
    for line in results.lines().map(str::trim_end) {
        if let Some(rest) = line.strip_prefix("@out ") {
            let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
            outcome.outputs.push((name.to_owned(), value.to_owned()));
        } else if let Some(why) = line.strip_prefix("@why ") {
            outcome.why = Some(why.to_owned());
        } else if let Some(status) = line.strip_prefix("@exit ") {
            outcome.exit = status.parse().ok();
        } else if line == "@cut" {
            outcome.cut = true;
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_order_and_the_last_one_wins() {
        let outcome = parse("@out a 1 2\r\n@out b\n@out a 3\nnoise\n@exit 0\n");
        assert_eq!(outcome.all("a"), ["1 2", "3"]);
        assert_eq!(outcome.last("a").unwrap(), "3");
        assert_eq!(outcome.last("b").unwrap(), "");
        assert!(outcome.last("c").is_err());
        assert_eq!(outcome.exit, Some(0));
    }

    #[test]
    fn a_failure_shows_the_first_complaint_and_the_last_lines() {
        let log = std::env::temp_dir().join(format!("pinstripe-xtask-log-{}", std::process::id()));
        let mut text = String::from("quiet\n[ cut here ]\nbad state\n");
        (0..80).for_each(|line| writeln!(text, "line {line}").unwrap());
        fs::write(&log, text).unwrap();
        let said = end_of(&log);
        fs::remove_file(&log).unwrap();
        assert!(said.starts_with("what it complained of:\n[ cut here ]\nbad state\nline 0\n"), "{said}");
        assert!(said.contains("its last lines:\nline 68\n") && !said.contains("line 67"), "{said}");
        assert!(said.contains("line 79\nsee "), "{said}");
    }

    #[test]
    fn a_guest_that_ends_without_a_status_is_not_a_success() {
        let outcome = parse("@out a 1\n@why it broke\n");
        assert_eq!((outcome.exit, outcome.cut), (None, false));
        assert_eq!(outcome.why.as_deref(), Some("it broke"));
    }
}
