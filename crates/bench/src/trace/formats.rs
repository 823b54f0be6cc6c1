//! The formats of traces, line by line.

use super::{Action, Format, LENGTH_MAX, Request, Trace};

/// Bytes of a sector, whatever the device's.
const SECTOR: u64 = 512;

type Parsed<T> = Result<T, &'static str>;

/// What has been read of a trace.
#[derive(Debug)]
pub(super) struct Parser {
    format: Format,
    /// The device whose requests are taken: the first one that has some.
    device: Option<String>,
    /// The time of the first request, in the trace's own units.
    first: Option<u64>,
    /// The time that waits have come to, in nanoseconds.
    waited_ns: u64,
    found: Found,
    /// Of blkparse: what was issued, if nothing was queued.
    issued: Found,
    is_timed: bool,
}

#[derive(Debug, Default)]
struct Found {
    requests: Vec<Request>,
    skipped: u64,
}

impl Found {
    /// Takes a request, if there is something to do.
    fn take(&mut self, at_ns: u64, action: Action, offset: u64, length: u64) -> Parsed<()> {
        if length == 0 && action != Action::Flush {
            self.skipped += 1;
            return Ok(());
        }
        offset.checked_add(length).ok_or("the request ends beyond 2^64 bytes")?;
        let length = u32::try_from(length).ok().filter(|&length| u64::from(length) <= LENGTH_MAX);
        let length = length.ok_or("the request is longer than 32 MiB")?;
        self.requests.push(Request { at_ns, offset, length, action });
        Ok(())
    }
}

fn number(word: &str) -> Parsed<u64> {
    word.parse().map_err(|_| "a number is expected")
}

fn next<'a>(words: &mut impl Iterator<Item = &'a str>) -> Parsed<&'a str> {
    words.next().ok_or("the line is too short")
}

/// `8,16`, as blkparse names a device.
fn is_device(word: &str) -> bool {
    word.split_once(',')
        .is_some_and(|(major, minor)| major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok())
}

impl Parser {
    /// For the format that has such a first line.
    pub(super) fn by_first_line(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (first, commas) = (words.next()?, line.matches(',').count());
        let format = match line {
            "fio version 2 iolog" => Format::Iolog2,
            "fio version 3 iolog" => Format::Iolog3,
            _ if matches!(first, "R" | "W") && line.contains('\t') => Format::Plain,
            _ if commas == 6 && words.next().is_none() => Format::Msr,
            _ if is_device(first) => Format::Blkparse,
            _ => return None,
        };
        Some(Self {
            format,
            device: None,
            first: None,
            waited_ns: 0,
            found: Found::default(),
            issued: Found::default(),
            is_timed: !matches!(format, Format::Plain | Format::Iolog2),
        })
    }

    /// Takes a line, the first one too.
    pub(super) fn line(&mut self, line: &str) -> Parsed<()> {
        match self.format {
            Format::Msr => self.msr(line),
            Format::Plain => self.plain(line),
            Format::Iolog2 | Format::Iolog3 if line.starts_with("fio version ") => Ok(()),
            Format::Iolog2 => self.iolog2(line),
            Format::Iolog3 => self.iolog3(line),
            Format::Blkparse => self.blkparse(line),
            Format::Synthetic => unreachable!("no line makes a parser of it"),
        }
    }

    /// What came of it.
    pub(super) fn end(self) -> Trace {
        let Found { requests, skipped } =
            if self.found.requests.is_empty() && !self.issued.requests.is_empty() {
                self.issued
            } else {
                self.found
            };
        Trace { format: self.format, requests, is_timed: self.is_timed, skipped }
    }

    /// Whether this is the device whose requests are taken.
    fn is_of(&mut self, device: &str) -> bool {
        self.device.get_or_insert_with(|| device.to_owned()) == device
    }

    /// A time since the first one. Some traces are a little out of order.
    fn since_first(&mut self, time: u64) -> u64 {
        time.saturating_sub(*self.first.get_or_insert(time))
    }

    fn msr(&mut self, line: &str) -> Parsed<()> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [time, host, disk, kind, offset, length, _] = fields[..] else {
            return Err("seven fields are expected");
        };
        let action = match kind {
            _ if kind.eq_ignore_ascii_case("read") => Action::Read,
            _ if kind.eq_ignore_ascii_case("write") => Action::Write,
            _ => return Err("Read or Write is expected in the fourth field"),
        };
        let (time, offset, length) = (number(time)?, number(offset)?, number(length)?);
        if !self.is_of(&format!("{host}.{disk}")) {
            self.found.skipped += 1;
            return Ok(());
        }
        let at_ns = self.since_first(time).saturating_mul(100);
        self.found.take(at_ns, action, offset, length)
    }

    fn plain(&mut self, line: &str) -> Parsed<()> {
        let mut words = line.split_whitespace();
        let action = match next(&mut words)? {
            "R" => Action::Read,
            "W" => Action::Write,
            _ => return Err("R or W is expected"),
        };
        let (offset, length) = (number(next(&mut words)?)?, number(next(&mut words)?)?);
        self.found.take(0, action, offset, length)
    }

    fn iolog2(&mut self, line: &str) -> Parsed<()> {
        let mut words = line.split_whitespace();
        let (file, action) = (next(&mut words)?, next(&mut words)?);
        if action == "wait" {
            self.waited_ns = self.waited_ns.saturating_add(number(next(&mut words)?)?.saturating_mul(1000));
            self.is_timed = true;
            return Ok(());
        }
        self.iolog(self.waited_ns, file, action, &mut words)
    }

    fn iolog3(&mut self, line: &str) -> Parsed<()> {
        let mut words = line.split_whitespace();
        let (time, file, action) = (number(next(&mut words)?)?, next(&mut words)?, next(&mut words)?);
        self.iolog(time.saturating_mul(1000), file, action, &mut words)
    }

    fn iolog<'a>(
        &mut self,
        time_ns: u64,
        file: &str,
        action: &str,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Parsed<()> {
        let action = match action {
            "add" | "open" | "close" => return Ok(()),
            "read" => Action::Read,
            "write" => Action::Write,
            "sync" | "datasync" => Action::Flush,
            "trim" => {
                self.found.skipped += 1;
                return Ok(());
            }
            _ => return Err("no action of fio's is known by this name"),
        };
        let (offset, length) = match action {
            Action::Flush => (0, 0),
            Action::Read | Action::Write => (number(next(words)?)?, number(next(words)?)?),
        };
        if !self.is_of(file) {
            self.found.skipped += 1;
            return Ok(());
        }
        let at_ns = self.since_first(time_ns);
        self.found.take(at_ns, action, offset, length)
    }

    /// `8,0 3 11 0.000009 697 Q WS 223490 + 8 [name]`; summaries and other lines stand between and behind.
    fn blkparse(&mut self, line: &str) -> Parsed<()> {
        let mut words = line.split_whitespace();
        let (device, _processor, _number, time) = (words.next(), words.next(), words.next(), words.next());
        let (_process, event, kind) = (words.next(), words.next(), words.next());
        let (Some(device), Some(time), Some(event), Some(kind)) = (device, time, event, kind) else {
            return Ok(());
        };
        if !is_device(device) || !matches!(event, "Q" | "D") {
            return Ok(());
        }
        let (is_of, at_ns) = (self.is_of(device), seconds(time)?);
        let at_ns = if is_of { self.since_first(at_ns) } else { 0 };
        let found = if event == "Q" { &mut self.found } else { &mut self.issued };
        if !is_of {
            found.skipped += 1;
            return Ok(());
        }
        if kind.starts_with('F') {
            found.take(at_ns, Action::Flush, 0, 0)?;
        }
        let [Some(sector), Some("+"), Some(count)] = [words.next(), words.next(), words.next()] else {
            return Ok(());
        };
        let in_bytes =
            |sectors| number(sectors)?.checked_mul(SECTOR).ok_or("the sector lies beyond 2^64 bytes");
        // D is a discard, whatever else it is.
        let action = ['D', 'R', 'W'].into_iter().find(|&letter| kind.contains(letter));
        match action {
            Some('R') => found.take(at_ns, Action::Read, in_bytes(sector)?, in_bytes(count)?),
            Some('W') => found.take(at_ns, Action::Write, in_bytes(sector)?, in_bytes(count)?),
            _ => {
                found.skipped += 1;
                Ok(())
            }
        }
    }
}

/// `12.000000345` in nanoseconds.
fn seconds(word: &str) -> Parsed<u64> {
    let (whole, part) = word.split_once('.').ok_or("a time is expected")?;
    let nanoseconds = number(format!("{part:0<9}").get(..9).ok_or("a time is expected")?)?;
    Ok(number(whole)?.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{super::TraceError, *};

    fn parse(text: &str) -> Result<Trace, TraceError> {
        Trace::parse(Path::new("t"), &mut text.as_bytes())
    }

    fn requests(trace: &Trace) -> Vec<(u64, char, u64, u32)> {
        let letter = |action| match action {
            Action::Read => 'R',
            Action::Write => 'W',
            Action::Flush => 'F',
        };
        trace.requests.iter().map(|r| (r.at_ns, letter(r.action), r.offset, r.length)).collect()
    }

    #[test]
    fn a_trace_of_msr_cambridge_is_read_with_the_requests_of_its_first_disk() {
        let text = "128166372003061629,srv,0,Read,7014609920,24576,41286\r\n\
                    128166372003061729,srv,1,Write,0,512,10\n\
                    128166372013061629,srv,0,Write,1536,3584,7\n\
                    128166372003061600,srv,0,write,0,0,7\n\
                    128166372003061600,srv,0,read,512,512,7\n";
        let trace = parse(text).unwrap();
        assert_eq!((trace.format, trace.is_timed, trace.skipped), (Format::Msr, true, 2));
        let expected = [(0, 'R', 7_014_609_920, 24576), (1_000_000_000, 'W', 1536, 3584), (0, 'R', 512, 512)];
        assert_eq!(requests(&trace), expected, "a little out of order is at the beginning");
        assert_eq!((trace.longest(), trace.writes()), (24576, true));
    }

    #[test]
    fn plain_lines_are_read() {
        let trace = parse("R\t4096\t512\n\nW\t0\t65536").unwrap();
        assert_eq!((trace.format, trace.is_timed), (Format::Plain, false));
        assert_eq!(requests(&trace), [(0, 'R', 4096, 512), (0, 'W', 0, 65536)]);
    }

    #[test]
    fn logs_of_fio_are_read_with_waits_or_times_and_flushes() {
        let second = "fio version 2 iolog\n/dev/a add\n/dev/a open\n/dev/a write 0 4096\n/dev/a wait 250 0\n\
                      /dev/a sync\n/dev/a wait 750 0\n/dev/a read 8192 512\n/dev/a trim 0 4096\n/dev/a close\n";
        let trace = parse(second).unwrap();
        assert_eq!((trace.format, trace.is_timed, trace.skipped), (Format::Iolog2, true, 1));
        assert_eq!(requests(&trace), [(0, 'W', 0, 4096), (250_000, 'F', 0, 0), (1_000_000, 'R', 8192, 512)]);
        assert!(!parse("fio version 2 iolog\nf read 0 512\n").unwrap().is_timed);

        let third = "fio version 3 iolog\n19 f add\n129 f open\n133 f read 0 4096\n100533 f datasync 0 0\n\
                     200133 g write 0 512\n301133 f write 28672 4096\n603654 f close\n";
        let trace = parse(third).unwrap();
        assert_eq!((trace.format, trace.is_timed, trace.skipped), (Format::Iolog3, true, 1));
        let expected = [(0, 'R', 0, 4096), (100_400_000, 'F', 0, 0), (301_000_000, 'W', 28672, 4096)];
        assert_eq!(requests(&trace), expected);
    }

    #[test]
    fn of_blkparse_what_was_queued_is_read_and_else_what_was_issued() {
        let text = "  8,0    3        1     0.000000000   697  G   W 223490 + 8 [a b]\n\
                    8,0 3 2 0.000001000 697 Q WS 223490 + 8 [a b]\n\
                    8,0 3 3 0.000002000 697 D WS 223490 + 8 [a b]\n\
                    8,16 3 4 0.5 697 Q R 0 + 8 [x]\n\
                    8,0 1 5 1.000001000 697 Q FWS [jbd2]\n\
                    8,0 1 6 1.25 697 Q DS 64 + 128 [x]\n\
                    8,0 1 7 1.5 697 Q RA 16 + 1 [x]\n\
                    8,0 1 8 1.5 697 C RA 16 + 1 [0]\n\
                    CPU0 (8,0):\n Reads Queued:           1,        0KiB\t Writes Queued:           1,        4KiB\n";
        let trace = parse(text).unwrap();
        assert_eq!((trace.format, trace.is_timed, trace.skipped), (Format::Blkparse, true, 2));
        let expected =
            [(0, 'W', 223_490 * 512, 4096), (1_000_000_000, 'F', 0, 0), (1_499_999_000, 'R', 16 * 512, 512)];
        assert_eq!(requests(&trace), expected);
        let issued: String =
            text.lines().filter(|line| !line.contains(" Q ")).map(|line| line.to_owned() + "\n").collect();
        assert_eq!(requests(&parse(&issued).unwrap()), [(0, 'W', 223_490 * 512, 4096)]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, words) in [
            ("hello\n", "is no trace that is known"),
            ("", "has no request"),
            ("fio version 3 iolog\n0 f open\n", "has no request"),
            ("fio version 4 iolog\n", "is no trace that is known"),
            ("R\t0\t512\nX\t0\t512\n", "line 2: R or W is expected"),
            ("R\t0\t512\n\nW\t0\n", "line 3: the line is too short"),
            ("W\t0\t33554433\n", "line 1: the request is longer than 32 MiB"),
            ("W\t18446744073709551615\t512\n", "line 1: the request ends beyond 2^64 bytes"),
            ("W\t-1\t512\n", "line 1: a number is expected"),
            ("1,a,0,Read,0,512,0\n1,a,0,Trim,0,512,0\n", "line 2: Read or Write"),
            ("1,a,0,Read,0,512,0\n1,a,0,Read,0\n", "line 2: seven fields"),
            ("fio version 2 iolog\nf fly 0 512\n", "line 2: no action of fio's"),
            ("8,0 1 1 0,5 9 Q R 0 + 8 [x]\n", "line 1: a time is expected"),
        ] {
            let said = parse(text).unwrap_err().to_string();
            assert!(said.contains(words), "{text:?}: {said}");
        }
    }
}
