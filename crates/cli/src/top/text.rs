//! Samples in words: the cells of a table of all arrays, and a page of one. Nothing in them steers the
//! terminal, whatever a disk or a server says.

use std::{path::Path, time::Duration};

use pinstripe_control::{detail::Sync, latency::Nanoseconds, size::ByteSize, text::printable};

use super::sample::{ArraySample, MemberRates, MemberSample, Rates, Sample};

/// The head of the table.
pub const HEADS: [&str; 12] = [
    "ARRAY",
    "LEVEL",
    "STATE",
    "MEMBERS",
    "READS/s",
    "WRITES/s",
    "READ",
    "WRITTEN",
    "READ MEAN, P99",
    "WRITE MEAN, P99",
    "UNDER WAY",
    "SYNC",
];

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Heading,
    Good,
    Warning,
    Bad,
}

/// A line of a page.
#[derive(Clone, Debug)]
pub struct Line {
    pub tone: Tone,
    pub text: String,
}

fn line(tone: Tone, text: impl Into<String>) -> Line {
    Line { tone, text: text.into() }
}

/// How the array stands.
pub fn tone(sample: &Sample) -> Tone {
    match &sample.array {
        _ if sample.error.is_some() => Tone::Bad,
        None => Tone::Bad,
        Some(array) if array.state == "failed" => Tone::Bad,
        Some(array) if array.degraded || array.state == "read-only" => Tone::Warning,
        Some(_) => Tone::Good,
    }
}

/// The array's line in the table.
pub fn cells(sample: &Sample) -> [String; HEADS.len()] {
    let state = |array: &ArraySample| match &sample.error {
        Some(_) => "no answer".to_owned(),
        None => state(array),
    };
    let Some(array) = &sample.array else {
        let empty = || "-".to_owned();
        let mut cells = std::array::from_fn(|_| empty());
        cells[0] = name(sample);
        "no answer".clone_into(&mut cells[2]);
        return cells;
    };
    let rates = array.rates.as_ref().filter(|_| sample.error.is_none());
    let of = |operation: &'static str| move |rates: &Rates| rates.operations.get(operation).copied();
    let often = |operation| rates.and_then(of(operation)).map(|rate| few(rate.per_second));
    let took = |operation| {
        let rate = rates.and_then(of(operation))?;
        Some(format!("{}, {}", Nanoseconds(rate.mean_ns?), Nanoseconds(rate.p99_ns?)))
    };
    let bytes = |value: fn(&Rates) -> u64| rates.map(|rates| format!("{}/s", ByteSize(value(rates))));
    let under_way = rates.map(|rates| few(rates.operations.values().map(|rate| rate.under_way).sum::<f64>()));
    let known = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
    [
        name(sample),
        printable(&array.level),
        state(array),
        format!("[{}]", array.members.iter().map(letter).collect::<String>()),
        known(often("read")),
        known(often("write")),
        known(bytes(|rates| rates.read_bytes_per_second)),
        known(bytes(|rates| rates.write_bytes_per_second)),
        known(took("read")),
        known(took("write")),
        known(under_way),
        known(array.sync.as_ref().map(progress)),
    ]
}

/// As clients name it; by its socket if it never answered.
pub fn name(sample: &Sample) -> String {
    let of_socket =
        || Path::new(&sample.control).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    printable(&sample.array.as_ref().map_or_else(of_socket, |array| array.name.clone()))
}

fn state(array: &ArraySample) -> String {
    format!("{}{}", printable(&array.state), if array.degraded { ", degraded" } else { "" })
}

/// MD's letters, and some more.
fn letter(member: &MemberSample) -> char {
    match member.state.as_str() {
        "missing" => '_',
        "recovering" => 'R',
        _ if member.slow => 's',
        _ => 'U',
    }
}

/// With a digit behind the point where there are few.
fn few(many: f64) -> String {
    if many < 10.0 { format!("{many:.1}") } else { format!("{many:.0}") }
}

fn progress(sync: &Sync) -> String {
    // A total of 0 is none yet.
    let percent = sync.done.saturating_mul(100).checked_div(sync.total).unwrap_or(0);
    let action = printable(&sync.action);
    match sync.finish_seconds {
        _ if sync.paused => format!("{action} {percent}%, paused"),
        Some(left) => {
            let left = humantime::format_duration(Duration::from_secs(left));
            format!("{action} {percent}%, {left} left")
        }
        None => format!("{action} {percent}%"),
    }
}

/// All of one array.
pub fn page(sample: &Sample) -> Vec<Line> {
    let mut lines = Vec::new();
    lines.extend(sample.error.iter().map(|error| line(Tone::Bad, printable(error))));
    if let Some(array) = &sample.array {
        let Rows { head, rows } = operations(array);
        let size = ByteSize(array.size_bytes);
        lines.push(line(tone(sample), format!("{}, {}, {size}", state(array), printable(&array.level))));
        lines.push(line(Tone::Plain, format!("uuid {}", printable(&array.uuid))));
        lines.extend(array.sync.iter().map(|sync| line(Tone::Warning, printable(&sync.in_words()))));
        lines.push(line(Tone::Plain, ""));
        lines.push(line(Tone::Heading, head));
        lines.extend(rows.into_iter().map(|row| line(Tone::Plain, row)));
        lines.extend(array.limit.is_on().then(|| line(Tone::Plain, array.limit.in_words())));
        lines.push(line(Tone::Plain, ""));
        lines
            .push(line(Tone::Heading, format!("MEMBERS ({} spares, {} faulty)", array.spares, array.faulty)));
        lines.extend(array.members.iter().map(member));
        lines.push(line(Tone::Plain, ""));
        let Rows { head, rows } = asked_of_members(array, sample.error.is_none());
        lines.push(line(Tone::Heading, head));
        lines.extend(rows.into_iter().map(|row| line(Tone::Plain, row)));
        lines.push(line(Tone::Plain, ""));
        lines.push(line(Tone::Heading, format!("CLIENTS ({} connections)", array.connections())));
        lines.extend(array.clients.iter().map(|client| line(Tone::Plain, client.in_words())));
    }
    lines.push(line(Tone::Plain, ""));
    lines.push(line(Tone::Plain, format!("control socket {}", printable(&sample.control))));
    lines
}

struct Rows {
    head: String,
    rows: Vec<String>,
}

fn operations(array: &ArraySample) -> Rows {
    let row = |name: &str, [count, mean, p99, under_way]: [&str; 4]| {
        format!("{name:<14} {count:>10} {mean:>12} {p99:>12} {under_way:>10}")
    };
    let head = row("OPERATIONS", ["PER SECOND", "MEAN", "P99", "UNDER WAY"]);
    let rates = array.rates.iter().flat_map(|rates| &rates.operations);
    let time = |time: Option<u64>| time.map_or_else(|| "-".to_owned(), |ns| Nanoseconds(ns).to_string());
    let of_kind = |(name, rate): (&String, &super::sample::OperationRate)| {
        let name = printable(&name.replace('_', " "));
        let (count, under_way) = (few(rate.per_second), few(rate.under_way));
        row(&name, [&count, &time(rate.mean_ns), &time(rate.p99_ns), &under_way])
    };
    Rows { head, rows: rates.map(of_kind).collect() }
}

/// What is asked of each member. `is_current`: the rates are of now.
fn asked_of_members(array: &ArraySample, is_current: bool) -> Rows {
    let row = |cells: [&str; 8]| {
        let [slot, reads, writes, read, written, small_read, small_write, late] = cells;
        format!(
            "{slot:>4} {reads:>9} {writes:>9} {read:>12} {written:>12} {small_read:>11} {small_write:>11} {late:>5}"
        )
    };
    let known = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
    let of_member = |member: &MemberSample| {
        let rates = member.rates.as_ref().filter(|_| is_current);
        let count = |value: fn(&MemberRates) -> f64| known(rates.map(|rates| few(value(rates))));
        let bytes = |value: fn(&MemberRates) -> u64| {
            known(rates.map(|rates| format!("{}/s", ByteSize(value(rates)))))
        };
        let time = |ns: Option<u64>| known(ns.map(|ns| Nanoseconds(ns).to_string()));
        row([
            &member.slot.to_string(),
            &count(|rates| rates.reads_per_second),
            &count(|rates| rates.writes_per_second),
            &bytes(|rates| rates.read_bytes_per_second),
            &bytes(|rates| rates.write_bytes_per_second),
            &time(member.read_latency_ns),
            &time(member.write_latency_ns),
            &member.late_requests.to_string(),
        ])
    };
    let head = row(["SLOT", "READS/s", "WRITES/s", "READ", "WRITTEN", "SMALL READ", "SMALL WRITE", "LATE"]);
    Rows {
        head,
        rows: array.members.iter().filter(|member| member.device.is_some()).map(of_member).collect(),
    }
}

fn member(member: &MemberSample) -> Line {
    let tone = match member.state.as_str() {
        "missing" => Tone::Bad,
        "recovering" => Tone::Warning,
        _ if member.slow => Tone::Warning,
        _ => Tone::Good,
    };
    let slow = if member.slow { ", slow" } else { "" };
    let device = member.device.as_deref().map(printable).unwrap_or_default();
    let state = format!("{}{slow}", printable(&member.state));
    line(tone, format!("{:>3}  {state:<14} {device}", member.slot).trim_end())
}

/// All arrays, for a reader without a screen: the table, and the page of each.
pub fn plain(samples: &[Sample]) -> String {
    if samples.is_empty() {
        return "no array is served\n".to_owned();
    }
    let head = HEADS.map(str::to_owned);
    let table: Vec<[String; HEADS.len()]> = std::iter::once(head).chain(samples.iter().map(cells)).collect();
    let widths = widths(&table);
    let mut text = String::new();
    for row in &table {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    for sample in samples {
        text.push_str(&format_page(sample));
    }
    text
}

/// The characters of each column's widest cell.
pub fn widths(table: &[[String; HEADS.len()]]) -> [usize; HEADS.len()] {
    let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    std::array::from_fn(width)
}

fn format_page(sample: &Sample) -> String {
    let indented =
        |line: Line| if line.text.is_empty() { "\n".to_owned() } else { format!("  {}\n", line.text) };
    let lines: String = page(sample).into_iter().map(indented).collect();
    format!("\n{}\n{lines}", name(sample))
}

#[cfg(test)]
mod tests {
    use super::{super::sample::tests::sample, *};

    #[test]
    fn the_table_says_how_each_array_stands_and_what_its_clients_get() {
        let cells = cells(&sample("data"));
        let expected = [
            "data",
            "raid5",
            "active, degraded",
            "[Us_]",
            "50",
            "0.0",
            "200 KiB/s",
            "0 bytes/s",
            "1.50 us, 1.99 us",
            "-",
            "0.0",
            "rebuild 25%, 3m 20s left",
        ];
        assert_eq!(cells, expected);
        assert_eq!(tone(&sample("data")), Tone::Warning);
    }

    #[test]
    fn an_array_without_an_answer_is_called_that_and_its_old_rates_are_not_shown() {
        let trouble = "the server does not answer";
        let stale = Sample { error: Some(trouble.to_owned()), ..sample("data") };
        let never = Sample { array: None, ..stale.clone() };
        for sample in [&stale, &never] {
            let cells = cells(sample);
            assert_eq!((cells[0].as_str(), cells[2].as_str(), cells[4].as_str()), ("data", "no answer", "-"));
            assert_eq!(tone(sample), Tone::Bad);
            let page = page(sample);
            assert!(page.iter().any(|line| line.tone == Tone::Bad && line.text == trouble));
            assert!(!page.iter().any(|line| line.text.contains("KiB/s   ")), "{page:?}");
        }
    }

    #[test]
    fn a_page_has_members_operations_sync_and_clients() {
        let text = plain(&[sample("data")]);
        for words in [
            "  2  missing\n",
            "  1  in-sync, slow  /dev/b\n",
            "SLOT   READS/s  WRITES/s         READ      WRITTEN  SMALL READ SMALL WRITE  LATE\n",
            "   1        50       0.0    200 KiB/s    0 bytes/s     90.0 us           -     3\n",
            "read                   50      1.50 us      1.99 us        0.0\n",
            "rebuild 25% (1 of 4 stripes), 3 KiB/s per member, 3m 20s left\n",
            "CLIENTS (2 connections)\n  host over nbd, 2 connections\n",
        ] {
            assert!(text.contains(words), "{words:?} is missing in\n{text}");
        }
        assert_eq!(plain(&[]), "no array is served\n");
    }

    #[test]
    fn names_do_not_steer_the_terminal() {
        let mut evil = sample("a\u{1b}[2Jb");
        evil.error = Some("\u{1b}]0;x".to_owned());
        let array = evil.array.as_mut().unwrap();
        array.members[0].device = Some("\u{1b}c".to_owned());
        array.sync.as_mut().unwrap().action = "\u{1b}c".to_owned();
        array.clients[0].name = "\u{1b}c".to_owned();
        let text = plain(&[evil]);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
}
