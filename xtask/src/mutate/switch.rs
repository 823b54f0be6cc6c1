//! The switch of the mutants in a mutated copy of the workspace (`cargo xtask mutate`), where this file is a
//! crate.
//!
//! Every mutant is compiled in and asks [`active`] for its own number. The environment says which one is on
//! (`MUTATION`), or names a file to which the numbers that are asked are written, each once
//! (`MUTATION_REACHED`). Both are read once in each thread, so a run goes the same way whatever the time, and
//! a question costs one look at a thread's own variable.
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The environment hasn't been looked at.
const UNKNOWN: u32 = u32::MAX - 1;
/// No mutant is on, and what is asked is written down.
const RECORDING: u32 = u32::MAX;
/// One more than the largest number.
const LIMIT: usize = 1 << 16;

thread_local! {
    static ON: Cell<u32> = const { Cell::new(UNKNOWN) };
}

static REACHED: [AtomicBool; LIMIT] = [const { AtomicBool::new(false) }; LIMIT];
static RECORD: OnceLock<Option<File>> = OnceLock::new();

/// Whether this mutant is on.
#[inline]
pub fn active(number: u32) -> bool {
    let on = ON.get();
    if on < UNKNOWN { on == number } else { ask(on, number) }
}

#[cold]
fn ask(on: u32, number: u32) -> bool {
    if on == UNKNOWN {
        let number_on = std::env::var("MUTATION").ok().and_then(|text| text.parse().ok());
        let recording = std::env::var_os("MUTATION_REACHED").is_some();
        ON.set(number_on.unwrap_or(if recording { RECORDING } else { 0 }));
        return active(number);
    }
    record(number);
    false
}

fn record(number: u32) {
    let known = REACHED.get(number as usize);
    if known.is_none_or(|known| known.swap(true, Ordering::Relaxed)) {
        return;
    }
    let file = RECORD.get_or_init(|| {
        let path = std::env::var_os("MUTATION_REACHED")?;
        OpenOptions::new().append(true).create(true).open(path).ok()
    });
    if let Some(mut file) = file.as_ref() {
        // Four bytes at the end of a file are written whole; without the file the mutant counts as not
        // reached.
        let _ = file.write_all(&number.to_le_bytes());
    }
}
