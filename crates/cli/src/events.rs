//! `pinstripe events`: what has happened, as the daemon keeps it.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufRead, BufReader},
    thread,
    time::{Duration, UNIX_EPOCH},
};

use pinstripe_config::Configuration;
use pinstripe_control::text::printable;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    ask_daemon,
    command_line::{EventsArguments, Since},
    failure::Failure,
    history::{Age, Begin, HISTORY, HISTORY_BEFORE, Told},
    output,
    scan::Served,
    state,
};

/// How often it is looked for new events.
const LOOK: Duration = Duration::from_millis(500);

pub fn run(arguments: &EventsArguments) -> Result<(), Failure> {
    let folder = state::folder_with(&[HISTORY, HISTORY_BEFORE]);
    let failed = |name: &str, error: &io::Error| {
        Failure::new(format!("the history {} can't be read: {error}", folder.join(name).display()))
    };
    let open = |name: &str| match File::open(folder.join(name)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(name, &error)),
    };
    let now = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let begin = arguments.since.map(|since| match since {
        Since::Ago(time) => Begin::new(now.saturating_sub(time.as_secs()), now),
        Since::Date(seconds) => Begin::new(seconds, now),
    });
    let mut wanted = Wanted { arguments, begin, held: Vec::new(), arrays: BTreeSet::new() };
    // The newer one first: meanwhile it may become the older one, and what stands twice is better than
    // nothing.
    let newer = open(HISTORY)?;
    let is_none = newer.is_none() && open(HISTORY_BEFORE)?.is_none();
    if is_none && !arguments.follow && !ask_daemon::is_there() {
        let folder = folder.display();
        return Err(Failure::new(format!("there is no history in {folder}: `pinstripe daemon` keeps it")));
    }
    if let Some(older) = open(HISTORY_BEFORE)? {
        wanted.print_all(&mut BufReader::new(older)).map_err(|error| failed(HISTORY_BEFORE, &error))??;
    }
    let mut reader = newer.map(BufReader::new);
    let mut first = true;
    loop {
        if let Some(reader) = &mut reader {
            wanted.print_all(reader).map_err(|error| failed(HISTORY, &error))??;
        }
        if first {
            wanted.end_of_past()?;
            wanted.check_array()?;
            first = false;
        }
        if !arguments.follow {
            return Ok(());
        }
        thread::sleep(LOOK);
        let is_same = reader.as_ref().is_some_and(|reader| is_at(reader.get_ref(), &folder.join(HISTORY)));
        if !is_same {
            if let Some(reader) = &mut reader {
                // What came before the file was put aside.
                wanted.print_all(reader).map_err(|error| failed(HISTORY, &error))??;
            }
            reader = open(HISTORY)?.map(BufReader::new);
        }
    }
}

/// Whether a file is still the one at a path.
fn is_at(file: &File, path: &std::path::Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let numbers = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), path.metadata()), (Ok(one), Ok(other)) if numbers(one.clone()) == numbers(other.clone()))
}

/// Which events are shown.
struct Wanted<'a> {
    arguments: &'a EventsArguments,
    /// Those that came since then.
    begin: Option<Begin>,
    /// Of these it isn't known whether they did.
    held: Vec<String>,
    /// Those that the history has had so far.
    arrays: BTreeSet<String>,
}

/// Whether the array that is called `label` in the history may be meant by `name`: beside another one of its
/// name it has its UUID there.
fn is_called(label: &str, name: &str) -> bool {
    let is_beside = |rest: &str| rest.starts_with(" (") && rest.ends_with(')');
    label.strip_prefix(name).is_some_and(|rest| rest.is_empty() || is_beside(rest))
}

impl Wanted<'_> {
    /// An array that was asked for is one that the history has, or that there is now: without events its
    /// name may be right, and without either it is none.
    fn check_array(&self) -> Result<(), Failure> {
        let Some(name) = self.arguments.array.as_ref() else { return Ok(()) };
        if self.arrays.iter().any(|array| is_called(array, name)) {
            return Ok(());
        }
        let is_configured = || {
            // An error in it may be of another array.
            let configuration = Configuration::known(None);
            configuration.arrays.iter().any(|array| array.label() == *name)
        };
        let is_served = || Served::all().0.iter().any(|served| served.detail.name == *name);
        if is_configured() || is_served() {
            return Ok(());
        }
        let known: Vec<String> = self.arrays.iter().map(|array| printable(array)).collect();
        let known = match known.as_slice() {
            [] => "the history is of no array yet".to_owned(),
            names => format!("the history is of {}", names.join(", ")),
        };
        Err(Failure::new(format!(
            "{}: no array of this name has a history, is configured or is served; {known}",
            printable(name)
        )))
    }

    /// Shows the rest of a file. A line that isn't whole yet, or is damaged, is left out.
    fn print_all(&mut self, reader: &mut impl BufRead) -> io::Result<Result<(), Failure>> {
        let mut text = Vec::new();
        loop {
            text.clear();
            if reader.read_until(b'\n', &mut text)? == 0 {
                return Ok(Ok(()));
            }
            if let Err(failure) = self.take(&text) {
                return Ok(Err(failure));
            }
        }
    }

    /// Shows an event, if it is to be shown; holds it back as long as that isn't known.
    fn take(&mut self, text: &[u8]) -> Result<(), Failure> {
        let Ok(value) = serde_json::from_slice::<Value>(text) else { return Ok(()) };
        let Ok(line) = Told::deserialize(&value) else { return Ok(()) };
        if !self.arrays.contains(&line.array) {
            self.arrays.insert(line.array.clone());
        }
        let age = self.begin.as_mut().map_or(Age::Wanted, |begin| begin.age(line.time));
        if age == Age::Older {
            self.held.clear();
            return Ok(());
        }
        self.held.extend(self.shown(&line, &value));
        if age == Age::Wanted { self.show_held() } else { Ok(()) }
    }

    /// What is held back may have come since then, as far as is known now; what comes next has.
    fn end_of_past(&mut self) -> Result<(), Failure> {
        self.begin.iter_mut().for_each(Begin::end);
        self.show_held()
    }

    fn show_held(&mut self) -> Result<(), Failure> {
        let print = if self.arguments.follow { output::print_or_end } else { output::print };
        self.held.drain(..).try_for_each(|line| print(&line))
    }

    fn shown(&self, line: &Told, value: &Value) -> Option<String> {
        let is_meant = self.arguments.array.as_ref().is_none_or(|name| is_called(&line.array, name))
            && (line.alarming || !self.arguments.alarming);
        if !is_meant {
            return None;
        }
        if self.arguments.json {
            return Some(format!("{value}\n"));
        }
        let time =
            humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(line.time.min(LAST_DATE)));
        let mark = if line.alarming { "!" } else { " " };
        let (event, array, message) =
            (printable(&line.event), printable(&line.array), printable(&line.message));
        Some(format!("{time} {mark} {array}: {event}: {message}\n"))
    }
}

/// The last second that can be written as a date.
const LAST_DATE: u64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use super::is_called;

    #[test]
    fn an_array_beside_another_one_of_its_name_is_meant_by_the_name_too() {
        let beside = "data (6d41c174:a7)";
        for (label, name) in [("data", "data"), (beside, "data"), (beside, beside)] {
            assert!(is_called(label, name), "{label} {name}");
        }
        for (label, name) in [("data2", "data"), ("dat", "data"), ("data (x", "data"), ("data", beside)] {
            assert!(!is_called(label, name), "{label} {name}");
        }
    }
}
