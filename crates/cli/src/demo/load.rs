//! Writing and verifying the whole array, over several connections at a time.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use indicatif::ProgressBar;

use super::nbd::Client;
use crate::failure::Failure;

const CONNECTIONS: usize = 4;
/// Bytes of a request; no multiple of the stripe, so that partial stripes are written too.
const REQUEST_BYTES: u64 = 192 << 10;
/// Bytes of a request where all writes are to be partial ones.
const SCATTERED_BYTES: u64 = 64 << 10;
/// Requests that follow each other are so many apart: a prime number.
const STRIDE: u64 = 10_007;

/// The array as the demo's clients see it.
pub struct Load {
    socket: PathBuf,
    export: String,
    size_bytes: u64,
    scattered: bool,
}

impl Load {
    /// An array of `size_bytes` that is served as `export` on a unix socket.
    pub fn new(socket: &Path, export: &str, size_bytes: u64) -> Self {
        Self { socket: socket.to_owned(), export: export.to_owned(), size_bytes, scattered: false }
    }

    /// The same in small requests far from each other, so that no stripe is written as a whole.
    pub fn scattered(self) -> Self {
        Self { scattered: true, ..self }
    }

    /// Only the first `bytes` of it.
    pub fn of_first(self, bytes: u64) -> Self {
        Self { size_bytes: bytes.min(self.size_bytes), ..self }
    }

    /// Bytes of the array.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Writes every byte of the array, as `generation` has it, and flushes.
    pub fn write_all(&self, generation: u64, bar: &ProgressBar) -> Result<(), Failure> {
        self.each_request(bar, |client, offset, buffer| {
            fill(buffer, offset, generation);
            client.write(offset, buffer)
        })?;
        self.connect()?.flush()
    }

    /// Reads every byte of the array and compares it with what `generation` wrote.
    pub fn verify(&self, generation: u64, bar: &ProgressBar) -> Result<(), Failure> {
        self.each_request(bar, |client, offset, buffer| {
            client.read(offset, buffer)?;
            let mut expected = vec![0; buffer.len()];
            fill(&mut expected, offset, generation);
            match buffer.iter().zip(&expected).position(|(read, written)| read != written) {
                None => Ok(()),
                Some(at) => Err(Failure::new(format!(
                    "the demo failed: byte {} is not what was written",
                    offset + at as u64
                ))),
            }
        })
    }

    fn connect(&self) -> Result<Client, Failure> {
        Client::connect(&self.socket, &self.export)
    }

    /// Runs `request` for each piece of the array, with a buffer of its length.
    fn each_request(
        &self,
        bar: &ProgressBar,
        request: impl Fn(&mut Client, u64, &mut [u8]) -> Result<(), Failure> + Sync,
    ) -> Result<(), Failure> {
        let next = AtomicU64::new(0);
        let request_bytes = if self.scattered { SCATTERED_BYTES } else { REQUEST_BYTES };
        let requests = self.size_bytes.div_ceil(request_bytes);
        let work = || -> Result<(), Failure> {
            let mut client = self.connect()?;
            let mut buffer = vec![0; usize::try_from(request_bytes)?];
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= requests {
                    return client.disconnect();
                }
                let place = if self.scattered { place(number, requests) } else { number };
                let offset = place * request_bytes;
                let length = request_bytes.min(self.size_bytes - offset);
                request(&mut client, offset, &mut buffer[..usize::try_from(length)?])?;
                bar.inc(length);
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(work)).collect();
            let ended = workers.into_iter().map(|worker| {
                worker.join().unwrap_or_else(|_| Err(Failure::new("a worker of the demo panicked")))
            });
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }
}

/// Where request `number` of `requests` goes when they are scattered: each number has a place of its own.
fn place(number: u64, requests: u64) -> u64 {
    // A stride that has no factor in common with the number of requests, which a multiple of the prime has.
    if requests.is_multiple_of(STRIDE) { number } else { number * STRIDE % requests }
}

/// Bytes that follow from their place and the generation, so that they need not be kept. Each eight of them
/// are different, so data in a wrong place is seen.
fn fill(buffer: &mut [u8], offset: u64, generation: u64) {
    for (index, word) in (0u64..).zip(buffer.chunks_mut(8)) {
        // The mixing steps of SplitMix64.
        let mut mixed =
            (offset / 8 + index).wrapping_add(generation << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bytes = (mixed ^ mixed >> 31).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_requests_go_everywhere_once() {
        for requests in [1, 2, 96, 1536, STRIDE, 2 * STRIDE] {
            let mut places: Vec<u64> = (0..requests).map(|number| place(number, requests)).collect();
            places.sort_unstable();
            assert!(places.into_iter().eq(0..requests), "{requests}");
        }
    }

    #[test]
    fn the_pattern_depends_on_place_and_generation_only() {
        let (mut whole, mut part, mut other) = ([0; 64], [0; 16], [0; 64]);
        fill(&mut whole, 4096, 1);
        fill(&mut part, 4096 + 32, 1);
        fill(&mut other, 4096, 2);
        assert_eq!(whole[32..48], part);
        assert!(whole.chunks(8).zip(other.chunks(8)).all(|(one, two)| one != two));
    }
}
