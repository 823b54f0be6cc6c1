//! The guest's half of the power soak: writers that tell the host of each batch that is durable.

use std::io::{Write, stdout};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow};
use clap::Args;

use crate::nbd::Client;
use crate::pattern::{self, Store};
use crate::writer::Stretch;

/// Writes for ever, each writer on its stretch.
#[derive(Args)]
pub struct Guest {
    /// The NBD socket of a server, or a block device.
    path: PathBuf,
    /// The writers, each as FIRST:BLOCKS:SEED.
    writers: Vec<String>,
}

/// Writes until something fails, which is an error.
pub fn run(guest: &Guest) -> Result<()> {
    let word = Mutex::new(());
    thread::scope(|scope| {
        let threads: Vec<_> = guest
            .writers
            .iter()
            .enumerate()
            .map(|(number, writer)| {
                let (word, path) = (&word, &guest.path);
                scope.spawn(move || write(path, number, writer, word))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a writer panicked"))?)
    })
}

fn write(path: &Path, number: usize, writer: &str, word: &Mutex<()>) -> Result<()> {
    let numbers: Vec<u64> = writer.split(':').map(str::parse).collect::<Result<_, _>>()?;
    let &[first, blocks, seed] = numbers.as_slice() else {
        return Err(anyhow!("{writer:?}: expected FIRST:BLOCKS:SEED"));
    };
    let stretch = Stretch::new(first, blocks);
    let is_socket = std::fs::metadata(path).context("the store")?.file_type().is_socket();
    let mut store: Box<dyn Store> =
        if is_socket { Box::new(Client::connect(path)?) } else { Box::new(pattern::open(path, true)?) };
    stretch.write_batches(store.as_mut(), seed, |durable| {
        let _word = word.lock().unwrap_or_else(PoisonError::into_inner);
        tell(&format!("@out durable {number} {durable}\n"))
    })
}

/// Says a line on the serial port and waits until it is out: what is said must not be lost, or the host would
/// take batches for cut that were not.
fn tell(line: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()?;
    Ok(rustix::termios::tcdrain(&out)?)
}
