//! `pinstripe record`: writes down what the clients of a served array ask for, as an iolog of fio, version 3.
//!
//! The server keeps a bounded number of requests, which are fetched in pieces. Where this program is too
//! slow, requests are lost, never delayed, and their number is told at the end. So is what an iolog can't
//! say: it has no writes of zeroes, and no FUA.
//!
//! A server whose program is replaced forgets its recording. Another one is begun at once with the program
//! that took its place, and goes into the same file.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use pinstripe_control::{
    client::{Client, ClientError},
    code,
    record::{Operation, RecordAction, RecordParameters, RecordResult, Recorded},
    size::ByteSize,
    text::printable,
};
use serde::Serialize;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use crate::{command_line::RecordArguments, failure::Failure, output, patience, steer};

/// How long a call waits for many requests; a signal is seen after it.
const WAIT_MS: u64 = 100;
/// Before a server that is leaving is asked again.
const PAUSE: Duration = Duration::from_millis(50);

pub fn run(arguments: &RecordArguments) -> Result<(), Failure> {
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&is_over))?;
    }
    let mut client = Client::connect(&arguments.array.array)?;
    let array = steer::fetch(&mut client)?.name;
    let mut iolog = Iolog::create(&arguments.file, &array)?;
    let begun = call(&mut client, RecordAction::Start, None).inspect_err(|_| iolog.remove())?;
    output::remark(&format!("recording what is asked of {}; Ctrl-C ends it", printable(&array)));
    let began = Instant::now();
    let end = arguments.seconds.map(|seconds| began + Duration::from_secs(seconds.into()));
    let is_over = || is_over.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end);
    let mut recording = Recording { array: &arguments.array.array, client, number: begun.recording, began };
    let followed = recording.follow(&mut iolog, is_over);
    let closed = iolog.close(began.elapsed());
    let summary = iolog.summary;
    let text =
        if arguments.json { serde_json::to_string_pretty(&summary)? + "\n" } else { summary.in_words() };
    if is_standard_output(&arguments.file) {
        output::remark(&text);
    } else {
        output::print(&text)?;
    }
    followed.and(closed)
}

/// A recording that was begun.
struct Recording<'a> {
    /// As it was asked for.
    array: &'a str,
    client: Client,
    number: u64,
    /// The first one, if the program was replaced since.
    began: Instant,
}

impl Recording<'_> {
    /// Writes down what comes until it is over. What came before a failure is written.
    fn follow(&mut self, iolog: &mut Iolog, is_over: impl Fn() -> bool) -> Result<(), Failure> {
        loop {
            let action = if is_over() { RecordAction::Stop } else { RecordAction::Next };
            let result = match call(&mut self.client, action, Some(self.number)) {
                Err(error) if is_leaving(&error) => {
                    self.begin_again(iolog, &is_over).ok_or(error)?;
                    continue;
                }
                called => called?,
            };
            if let Err(failure) = iolog.take(&result) {
                // It would be over some seconds later anyway.
                let _ = call(&mut self.client, RecordAction::Stop, Some(self.number));
                return Err(failure);
            }
            if action == RecordAction::Stop && !result.more {
                return Ok(());
            }
        }
    }

    /// Goes on with the program that takes the place of the one before. None: there is none.
    fn begin_again(&mut self, iolog: &mut Iolog, is_over: impl Fn() -> bool) -> Option<()> {
        let start = |mut client| call(&mut client, RecordAction::Start, None).map(|begun| (begun, client));
        let (begun, client) = loop {
            match Client::connect(self.array).and_then(start) {
                Err(error) if is_leaving(&error) && !is_over() => thread::sleep(PAUSE),
                begun => break begun.ok()?,
            }
        };
        iolog.interrupted(self.began.elapsed());
        (self.client, self.number) = (client, begun.recording);
        Some(())
    }
}

/// Whether the server answers so while another program takes its place, or it stops.
fn is_leaving(error: &ClientError) -> bool {
    match error {
        ClientError::Ended { .. } => true,
        ClientError::Call(error) => error.code == code::STOPPING,
        _ => false,
    }
}

fn call(
    client: &mut Client,
    action: RecordAction,
    recording: Option<u64>,
) -> Result<RecordResult, ClientError> {
    patience::ask(client, "record", RecordParameters { action, recording, wait_ms: WAIT_MS })
}

fn is_standard_output(file: &Path) -> bool {
    file == Path::new("-")
}

/// A file that is written.
struct Iolog {
    path: PathBuf,
    file: BufWriter<Box<dyn Write>>,
    /// What the lines call the device.
    device: String,
    /// When the server's times begin, in nanoseconds.
    epoch: u64,
    /// Microseconds of the last line: fio wants them in order.
    last: u64,
    summary: Summary,
}

/// What was recorded.
#[derive(Debug, Default, Serialize)]
struct Summary {
    array: String,
    file: PathBuf,
    seconds: f64,
    reads: u64,
    writes: u64,
    flushes: u64,
    discards: u64,
    read_bytes: u64,
    written_bytes: u64,
    /// Requests that were durable when they were answered, which the file doesn't say.
    fua_left_out: u64,
    /// Writes of zeroes, which aren't in the file.
    write_zeroes_left_out: u64,
    /// Requests that came faster than they were fetched.
    lost: u64,
    /// How often the server's program was replaced. What was asked for then is only partly in the file.
    interruptions: u64,
}

impl Iolog {
    /// Makes the file, which must not be there.
    fn create(path: &Path, array: &str) -> Result<Self, Failure> {
        let file: Box<dyn Write> = if is_standard_output(path) {
            Box::new(io::stdout())
        } else {
            Box::new(File::create_new(path).map_err(|error| unwritable(path, &error))?)
        };
        let device: String =
            printable(array).chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
        let summary = Summary { array: array.to_owned(), file: path.to_owned(), ..Summary::default() };
        let (path, file) = (path.to_owned(), BufWriter::new(file));
        let mut iolog = Self { path, file, device, epoch: 0, last: 0, summary };
        let device = &iolog.device;
        let begun = write!(iolog.file, "fio version 3 iolog\n0 {device} add\n0 {device} open\n");
        begun.and_then(|()| iolog.file.flush()).map_err(|error| unwritable(&iolog.path, &error))?;
        Ok(iolog)
    }

    /// Takes back that it was made.
    fn remove(&self) {
        if !is_standard_output(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }

    fn take(&mut self, result: &RecordResult) -> Result<(), Failure> {
        self.summary.lost += result.lost;
        let written = result.requests.iter().try_for_each(|recorded| self.line(*recorded));
        let written = if result.more { written } else { written.and_then(|()| self.file.flush()) };
        written.map_err(|error| unwritable(&self.path, &error))
    }

    fn line(&mut self, Recorded(at_ns, operation, offset, length, fua): Recorded) -> io::Result<()> {
        let summary = &mut self.summary;
        summary.fua_left_out += u64::from(fua && operation != Operation::WriteZeroes);
        let action = match operation {
            Operation::Read => {
                summary.reads += 1;
                summary.read_bytes += length;
                "read"
            }
            Operation::Write => {
                summary.writes += 1;
                summary.written_bytes += length;
                "write"
            }
            Operation::Flush => {
                summary.flushes += 1;
                "sync"
            }
            Operation::Discard => {
                summary.discards += 1;
                "trim"
            }
            Operation::WriteZeroes => {
                summary.write_zeroes_left_out += 1;
                return Ok(());
            }
        };
        self.last = self.last.max((self.epoch + at_ns) / 1000);
        writeln!(self.file, "{} {} {action} {offset} {length}", self.last, self.device)
    }

    /// What comes now was recorded by another program, which began so much later than the first one.
    fn interrupted(&mut self, after: Duration) {
        self.summary.interruptions += 1;
        self.epoch = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
    }

    /// Writes the last line.
    fn close(&mut self, after: Duration) -> Result<(), Failure> {
        self.summary.seconds = after.as_secs_f64();
        let micros = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        let written = writeln!(self.file, "{} {} close", self.last.max(micros), self.device);
        written.and_then(|()| self.file.flush()).map_err(|error| unwritable(&self.path, &error))
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("can't write to {}: {error}", path.display()))
}

impl Summary {
    fn in_words(&self) -> String {
        let Self { reads, writes, flushes, discards, seconds, .. } = self;
        let (read, written) = (ByteSize(self.read_bytes), ByteSize(self.written_bytes));
        let mut words = vec![format!(
            "recorded in {seconds:.1} s: {reads} reads ({read}), {writes} writes ({written}), {flushes} flushes, {discards} discards"
        )];
        if self.fua_left_out > 0 {
            words.push(format!(
                "{} of them had to be durable at once (FUA), which the file doesn't say",
                self.fua_left_out
            ));
        }
        if self.write_zeroes_left_out > 0 {
            words.push(format!("not in the file: {} writes of zeroes", self.write_zeroes_left_out));
        }
        if self.lost > 0 {
            words.push(format!("lost: {} requests, which came faster than they were fetched", self.lost));
        }
        if self.interruptions > 0 {
            words.push(format!(
                "interrupted {} times, as the server's program was replaced: some requests of those moments are missing",
                self.interruptions
            ));
        }
        words.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(requests: &[Recorded], lost: u64) -> RecordResult {
        RecordResult { recording: 1, requests: requests.to_vec(), lost, more: false }
    }

    #[test]
    fn lines_are_in_order_of_time_and_what_has_no_line_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let mut iolog = Iolog::create(&path, "a b\n").unwrap();
        let requests = [
            Recorded(5_999, Operation::Write, 4096, 512, true),
            Recorded(3_000, Operation::Read, 0, 1024, false),
            Recorded(9_000, Operation::WriteZeroes, 0, 65536, true),
            Recorded(9_500, Operation::Flush, 0, 0, false),
        ];
        iolog.take(&result(&requests, 2)).unwrap();
        iolog.interrupted(Duration::from_nanos(9_500));
        iolog.take(&result(&[Recorded(10_000, Operation::Discard, 8192, 4096, false)], 1)).unwrap();
        iolog.close(Duration::from_micros(7)).unwrap();
        let device = iolog.device.clone();
        assert!(!device.contains(char::is_whitespace), "{device:?}");
        let expected = "fio version 3 iolog\n0 D add\n0 D open\n5 D write 4096 512\n5 D read 0 1024\n9 D sync 0 0\n\
                        19 D trim 8192 4096\n19 D close\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), expected.replace('D', &device));
        let words = iolog.summary.in_words();
        for part in [
            "1 reads (1 KiB), 1 writes (512 bytes), 1 flushes, 1 discards",
            "1 of them had to be durable",
            "not in the file: 1 writes of zeroes",
            "lost: 3 requests",
            "interrupted 1 times",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert!(Iolog::create(&path, "a").is_err(), "nothing is overwritten");
    }

    #[test]
    fn a_full_device_is_told() {
        let mut iolog = Iolog::create(Path::new("-"), "a").unwrap();
        iolog.file = BufWriter::new(Box::new(File::options().write(true).open("/dev/full").unwrap()));
        let failure = iolog.take(&result(&[Recorded(1, Operation::Flush, 0, 0, false)], 0)).unwrap_err();
        assert!(failure.sentence().contains("can't write to -"), "{failure:?}");
    }
}
