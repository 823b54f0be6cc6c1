//! A folder with member files, and the binary to run over them.

use std::{
    fs,
    hash::{DefaultHasher, Hasher},
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{fs::FileExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::FlockOperation;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use serde_json::Value;

/// For what comes at last, however much else the machine has to do: it ends what would hang, and measures
/// nothing.
pub const PATIENCE: Duration = Duration::from_mins(2);

pub const MIB: u64 = 1 << 20;
/// The user of [`without_privileges`], and its group.
const UNPRIVILEGED: u32 = 65534;
/// Bytes of a member file.
pub const MEMBER_BYTES: u64 = 8 * MIB;

/// How a command ended.
pub struct Ran {
    pub status: i32,
    pub out: String,
    pub error: String,
}

impl Ran {
    pub fn of(output: &Output) -> Self {
        Self {
            status: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout.clone()).unwrap(),
            error: String::from_utf8(output.stderr.clone()).unwrap(),
        }
    }

    /// It must have gone well.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.status, 0, "{}{}", self.out, self.error);
        self
    }

    /// It must have failed with this status, and said all of these words in one line.
    #[track_caller]
    pub fn refused(self, status: i32, words: &[&str]) -> Self {
        assert_eq!(self.status, status, "{}{}", self.out, self.error);
        for word in words {
            assert!(self.error.contains(word), "'{word}' is missing in: {}", self.error);
        }
        assert!(!self.error.contains("panicked"), "{}", self.error);
        self
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

pub struct World {
    folder: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a file of zeroes.
    pub fn file(&self, name: &str, bytes: u64) -> String {
        fs::File::create(self.path(name)).unwrap().set_len(bytes).unwrap();
        name.to_owned()
    }

    /// Writes a program. Not this process: a child that another test starts has what is open here until its
    /// exec, and the kernel runs nothing that is open for writing.
    pub fn program(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        let mut writer = Command::new("sh");
        writer.args(["-c", "mkdir -p \"${0%/*}\" && cat >\"$0\" && chmod 755 \"$0\""]).arg(&path);
        let mut writer = writer.stdin(Stdio::piped()).spawn().unwrap();
        writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(writer.wait().unwrap().success());
        path.display().to_string()
    }

    pub fn members(&self, count: usize) -> Vec<String> {
        (0..count).map(|slot| self.file(&format!("member{slot}"), MEMBER_BYTES)).collect()
    }

    pub fn poke(&self, name: &str, offset: u64, bytes: &[u8]) {
        fs::OpenOptions::new()
            .write(true)
            .open(self.path(name))
            .unwrap()
            .write_all_at(bytes, offset)
            .unwrap();
    }

    /// The command, run in the folder with sockets there too.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pinstripe"));
        command.args(arguments).current_dir(self.folder.path());
        command.env("PINSTRIPE_RUNTIME_DIR", self.path("pinstripe"));
        command.env("PINSTRIPE_STATE_DIR", self.path("state"));
        command.stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(&self.command(arguments).output().unwrap())
    }

    /// Runs it with a variable in its environment.
    pub fn run_with(&self, (name, value): (&str, &str), arguments: &[&str]) -> Ran {
        Ran::of(&self.command(arguments).env(name, value).output().unwrap())
    }

    /// Runs `create` with options and members.
    pub fn create(&self, options: &[&str], members: &[String]) -> Ran {
        let members = members.iter().map(String::as_str);
        self.run(&["create"].into_iter().chain(options.iter().copied()).chain(members).collect::<Vec<_>>())
    }

    /// A RAID5 called `data` on new files, in sync.
    pub fn raid5(&self, count: usize) -> Vec<String> {
        let members = self.members(count);
        self.create(&["--level", "5", "--name", "data", "--assume-clean"], &members).ok();
        members
    }

    /// Runs `serve`, which must fail.
    pub fn serve_refused(&self, options: &[&str], members: &[String]) -> Ran {
        let members = members.iter().map(String::as_str);
        self.run(
            &["serve", "--shards", "1"]
                .into_iter()
                .chain(options.iter().copied())
                .chain(members)
                .collect::<Vec<_>>(),
        )
    }

    /// Starts a server and waits until it is ready.
    pub fn serve(&self, options: &[&str], members: &[String]) -> Server {
        start(self.command(&["serve", "--json"]), options, members)
    }

    /// Starts a server as a user without rights. See [`World::give_away`].
    pub fn serve_without_privileges(&self, options: &[&str], members: &[String]) -> Server {
        let mut command = self.command(&["serve", "--json"]);
        without_privileges(&mut command);
        start(command, options, members)
    }

    /// Starts a server of root's that may give files away, and nothing else that others may not.
    pub fn serve_with_chown_alone(&self, options: &[&str], members: &[String]) -> Server {
        let plain = self.command(&["serve", "--json"]);
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-all,+chown"]).arg(plain.get_program()).args(plain.get_args());
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("PINSTRIPE_RUNTIME_DIR", self.path("pinstripe"));
        start(command, options, members)
    }

    /// Gives the folder, and all in it, to the user of [`without_privileges`], if that is another one.
    pub fn give_away(&self) {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let mut chown = Command::new("chown");
        let done =
            chown.args(["-R", &format!("{UNPRIVILEGED}:{UNPRIVILEGED}")]).arg(self.folder.path()).status();
        assert!(done.unwrap().success());
    }

    /// Starts a server with a variable in its environment.
    pub fn serve_with(&self, (name, value): (&str, &str), options: &[&str], members: &[String]) -> Server {
        let mut command = self.command(&["serve", "--json"]);
        command.env(name, value);
        start(command, options, members)
    }

    /// Starts `pinstripe target` and waits until it is ready.
    pub fn target(&self, options: &[&str], devices: &[String]) -> Server {
        start(self.command(&["target", "--json"]), options, devices)
    }

    /// What every file holds, to see that nothing changed.
    pub fn hashes(&self, names: &[String]) -> Vec<u64> {
        names.iter().map(|name| hash(&self.path(name))).collect()
    }
}

/// Waits until it is so.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "never {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A port of this machine's that no other socket gets by chance while this lives. A server can be told to
/// listen on it, since both may use it again (`SO_REUSEADDR`); until then connections are refused.
pub struct Port {
    pub address: SocketAddr,
    socket: OwnedFd,
}

impl Port {
    pub fn new() -> Self {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = rustix::net::getsockname(&socket).unwrap().try_into().unwrap();
        Self { address, socket }
    }

    pub fn listen(self) -> TcpListener {
        rustix::net::listen(&self.socket, 128).unwrap();
        self.socket.into()
    }
}

/// Starts `serve` or `target`, and waits until it is ready.
fn start(mut command: Command, options: &[&str], devices: &[String]) -> Server {
    command.args(options).args(devices).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    for line in lines.by_ref() {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if line["event"] == "ready" {
            let (ready, said) = (line, said);
            let later = Arc::new(Mutex::new(Vec::new()));
            let told = Arc::clone(&later);
            thread::spawn(move || {
                for line in lines.map_while(Result::ok) {
                    told.lock().unwrap().push(serde_json::from_str(&line).unwrap());
                }
            });
            return Server { child, ready, said, later };
        }
        said.push(line);
    }
    let output = child.wait_with_output().unwrap();
    panic!("the server did not start: {}", Ran::of(&output).error);
}

fn hash(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(&fs::read(path).unwrap());
    hasher.finish()
}

/// A running server; killed if the test ends without stopping it.
pub struct Server {
    child: Child,
    pub ready: Value,
    /// Lines before it was ready.
    pub said: Vec<Value>,
    /// Lines since.
    pub later: Arc<Mutex<Vec<Value>>>,
}

impl Server {
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// Kills it, and waits until the kernel has let go of these members too: it takes an io_uring apart after
    /// the process has gone, and on a busy machine that lasts longer than the next server has patience.
    pub fn kill(self, world: &World, members: &[String]) {
        self.signal("KILL");
        self.ended();
        let is_free = |member: &String| {
            let file = fs::File::options().write(true).open(world.path(member)).unwrap();
            rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        };
        wait_until("free members", || members.iter().all(is_free));
    }

    /// Waits for its end; the exit status.
    pub fn ended(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    /// Waits for its end, and for no longer than this; the exit status, if it has ended.
    pub fn ended_within(&mut self, limit: Duration) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status.code().unwrap_or(-1));
            }
            if begun.elapsed() > limit {
                return None;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until it says these words on standard error, and for no longer than this; the line, if it comes.
    /// Can be called once.
    pub fn says(&mut self, words: &str, limit: Duration) -> Option<String> {
        let lines = BufReader::new(self.child.stderr.take().unwrap()).lines();
        let (say, said) = std::sync::mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| say.send(line)));
        let end = Instant::now() + limit;
        let next = || said.recv_timeout(end.saturating_duration_since(Instant::now())).ok();
        std::iter::from_fn(next).find(|line| line.contains(words))
    }

    /// Ends it by SIGTERM; the exit status, and what it has said on standard error.
    pub fn end(mut self) -> (i32, String) {
        self.signal("TERM");
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code().unwrap_or(-1), said)
    }

    /// Waits until it has told of so many events of this name, in words. A line comes a while after what it
    /// tells of can be seen.
    #[track_caller]
    pub fn told(&self, name: &str, count: usize) -> Vec<String> {
        let told = || {
            let lines = self.later.lock().unwrap();
            let named = lines.iter().filter(|line| line["event"] == name);
            named.map(|line| line["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        wait_until(&format!("{count} of {name}"), || told().len() >= count);
        told()
    }

    /// Where its NBD socket is.
    pub fn nbd(&self) -> PathBuf {
        let uri = self.ready["nbd"][0].as_str().unwrap();
        PathBuf::from(uri.split_once("socket=").unwrap().1)
    }

    pub fn size_bytes(&self) -> u64 {
        self.ready["size_bytes"].as_u64().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loop device over a file of a world; it goes with this.
pub struct LoopDevice {
    pub path: String,
}

impl LoopDevice {
    /// None for a user without the right to make one. Root has it: without one the test would show nothing.
    pub fn new(world: &World, file: &str, options: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root makes loop devices");
            return None;
        }
        let file = world.path(file);
        let output =
            Command::new("losetup").args(["-f", "--show"]).args(options).arg(&file).output().unwrap();
        assert!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        let path = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        let backing = format!("/sys/block/{}/loop/backing_file", path.trim_start_matches("/dev/"));
        let backing = fs::read_to_string(backing).unwrap();
        assert_eq!(Path::new(backing.trim()), file, "the loop device is not ours");
        Some(Self { path })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.path]).status();
    }
}

/// Runs a command as a user without rights, where the tests run as root.
pub fn without_privileges(command: &mut Command) -> &mut Command {
    if rustix::process::geteuid().is_root() { command.uid(UNPRIVILEGED).gid(UNPRIVILEGED) } else { command }
}
