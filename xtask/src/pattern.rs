//! Content in pieces of 32 bytes, each of which says where it belongs and when it was written.
//!
//! A 4 KiB block `b` of generation `g` is 128 times: ASCII `MDGOLD` and two digits of `g`; then as
//! little-endian u64 `b`, `!b` and `b * 0x9E3779B97F4A7C15 + g`. The golden images of MD hold the same
//! pattern, so one verifier reads them, the VM's arrays and ours.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
const SECTOR: usize = 512;
/// Blocks per read and write.
const BATCH: u64 = 64;

/// Fills `out` (a block) with block `block` of `generation` (0 to 99; 0 means zeroes).
pub fn fill(block: u64, generation: u8, out: &mut [u8]) {
    if generation == 0 {
        out.fill(0);
        return;
    }
    let mut record = [0; 32];
    record[..6].copy_from_slice(b"MDGOLD");
    record[6] = b'0' + generation / 10 % 10;
    record[7] = b'0' + generation % 10;
    record[8..16].copy_from_slice(&block.to_le_bytes());
    record[16..24].copy_from_slice(&(!block).to_le_bytes());
    let mixed = block.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(u64::from(generation));
    record[24..].copy_from_slice(&mixed.to_le_bytes());
    for chunk in out.chunks_exact_mut(record.len()) {
        chunk.copy_from_slice(&record);
    }
}

/// Blocks `first..end` and the generations that may stand there; written `FIRST:END=G` or `FIRST:END=G,H`.
/// With several, each 512-byte sector may hold any of them: that is what a write cut short may leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Half-open range of blocks.
    pub blocks: Range<u64>,
    /// The generations allowed, at least one.
    pub generations: Vec<u8>,
}

impl Run {
    /// Blocks that hold just this generation.
    pub fn new(blocks: Range<u64>, generation: u8) -> Self {
        Self { blocks, generations: vec![generation] }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generations: Vec<String> = self.generations.iter().map(ToString::to_string).collect();
        write!(f, "{}:{}={}", self.blocks.start, self.blocks.end, generations.join(","))
    }
}

impl FromStr for Run {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (range, generations) = text.split_once('=')?;
            let (first, end) = range.split_once(':')?;
            let blocks = first.parse().ok()?..end.parse().ok()?;
            let generations = generations.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
            Some(Self { blocks, generations })
        };
        parse().with_context(|| format!("{text:?}: expected FIRST:END=GENERATION[,GENERATION]"))
    }
}

/// A list of runs as the guest's scripts take it: separated by spaces.
pub fn list(runs: &[Run]) -> String {
    runs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Something that holds blocks: a file, a block device, an NBD export. Offsets are bytes.
pub trait Store {
    /// Fills `bytes` from `offset`.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()>;
    /// Writes `bytes` at `offset`.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Makes what was written durable.
    fn flush(&mut self) -> Result<()>;
    /// Writes `bytes` at `offset`; they are durable at the end.
    fn write_forced(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write(offset, bytes)?;
        self.flush()
    }
}

impl Store for File {
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        Ok(self.read_exact_at(bytes, offset)?)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.write_all_at(bytes, offset)?)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(self.sync_all()?)
    }
}

/// Opens a file or block device for [`write()`] and [`verify`].
pub fn open(path: &Path, writable: bool) -> Result<File> {
    File::options().read(true).write(writable).open(path).with_context(|| format!("open {}", path.display()))
}

/// Writes the first generation of each run, in order, and makes it durable.
pub fn write(store: &mut impl Store, runs: &[Run]) -> Result<()> {
    for run in runs {
        for first in run.blocks.clone().step_by(usize::try_from(BATCH)?) {
            let end = run.blocks.end.min(first + BATCH);
            store
                .write(first * BLOCK as u64, &render(first..end, run.generations[0]))
                .with_context(|| format!("write block {first}"))?;
        }
    }
    store.flush().context("flush")
}

/// The bytes of these blocks.
pub fn render(blocks: Range<u64>, generation: u8) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK * usize::try_from(blocks.end - blocks.start).unwrap_or(0)];
    for (block, out) in blocks.zip(bytes.chunks_exact_mut(BLOCK)) {
        fill(block, generation, out);
    }
    bytes
}

/// In place of a generation: nothing is promised of what stands there.
pub const ANYTHING: u8 = u8::MAX;

/// Verifies the first `blocks` blocks: later runs override earlier ones, the rest is zero. The error names
/// the first wrong blocks.
pub fn verify(store: &mut impl Store, blocks: u64, runs: &[Run]) -> Result<()> {
    let mut wrong = Vec::new();
    let mut bytes = vec![0; BLOCK * usize::try_from(BATCH)?];
    let allowed = allowed(usize::try_from(blocks)?, runs);
    for first in (0..blocks).step_by(usize::try_from(BATCH)?) {
        let end = blocks.min(first + BATCH);
        let part = &mut bytes[..BLOCK * usize::try_from(end - first)?];
        store.read(first * BLOCK as u64, part).with_context(|| format!("read block {first}"))?;
        let blocks = (first..end).zip(part.chunks_exact(BLOCK));
        wrong.extend(
            blocks
                .zip(&allowed[usize::try_from(first)?..])
                .filter(|((block, found), generations)| !block_matches(*block, found, generations))
                .map(|(block, _)| block)
                .map(|(block, found)| describe(block, found)),
        );
    }
    ensure!(blocks > 0, "nothing to verify");
    if !wrong.is_empty() {
        let shown = wrong.iter().take(5).cloned().collect::<Vec<_>>().join("; ");
        bail!("{} of {blocks} blocks wrong: {shown}", wrong.len());
    }
    Ok(())
}

/// What each block may hold.
fn allowed(blocks: usize, runs: &[Run]) -> Vec<&[u8]> {
    let mut allowed: Vec<&[u8]> = vec![&[0]; blocks];
    for run in runs {
        let end = usize::try_from(run.blocks.end).unwrap_or(blocks).min(blocks);
        let start = usize::try_from(run.blocks.start).unwrap_or(end).min(end);
        allowed[start..end].fill(&run.generations);
    }
    allowed
}

fn block_matches(block: u64, found: &[u8], generations: &[u8]) -> bool {
    if generations.contains(&ANYTHING) {
        return true;
    }
    let mut expected = [0; BLOCK];
    let mut matched = [false; BLOCK / SECTOR];
    for generation in generations {
        fill(block, *generation, &mut expected);
        let sectors = found.chunks_exact(SECTOR).zip(expected.chunks_exact(SECTOR));
        for (matched, (found, expected)) in matched.iter_mut().zip(sectors) {
            *matched |= found == expected;
        }
    }
    matched.iter().all(|matched| *matched)
}

fn describe(block: u64, found: &[u8]) -> String {
    let what = if found.iter().all(|byte| *byte == 0) {
        "zeroes".to_owned()
    } else if found.starts_with(b"MDGOLD") {
        let mut number = [0; 8];
        number.copy_from_slice(&found[8..16]);
        let generation = String::from_utf8_lossy(&found[6..8]).into_owned();
        format!("block {} of generation {generation}", u64::from_le_bytes(number))
    } else {
        format!("{:02x?}", &found[..16])
    };
    format!("block {block} holds {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str, blocks: u64) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("pattern-{name}-{}", std::process::id()));
        File::create(&path).unwrap().set_len(blocks * BLOCK as u64).unwrap();
        path
    }

    #[test]
    fn a_block_is_as_the_golden_manifest_says() {
        let mut block = [0; BLOCK];
        fill(7, 2, &mut block);
        assert_eq!(&block[..8], b"MDGOLD02");
        assert_eq!(block[8..16], 7u64.to_le_bytes());
        assert_eq!(block[16..24], (!7u64).to_le_bytes());
        assert_eq!(block[24..32], 7u64.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(2).to_le_bytes());
        assert_eq!(block[..32], block[BLOCK - 32..]);
    }

    #[test]
    fn what_was_written_verifies_and_a_single_wrong_byte_does_not() {
        let path = scratch("verify", 300);
        let runs = [Run::new(0..200, 1), Run::new(5..6, 2), Run::new(299..300, 1)];
        let mut file = open(&path, true).unwrap();
        write(&mut file, &runs).unwrap();
        verify(&mut file, 300, &runs).unwrap();
        for place in [0, 5 * BLOCK + 4095, 250 * BLOCK + 7] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, place as u64).unwrap();
            file.write_all_at(&[byte[0] ^ 1], place as u64).unwrap();
            let error = verify(&mut file, 300, &runs).unwrap_err().to_string();
            assert!(error.contains(&format!("block {} holds", place / BLOCK)), "{error}");
            file.write_all_at(&byte, place as u64).unwrap();
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_cut_write_may_be_old_or_new_by_sector_but_nothing_else() {
        let path = scratch("torn", 1);
        let mut file = open(&path, true).unwrap();
        write(&mut file, &[Run::new(0..1, 1)]).unwrap();
        file.write_all_at(&render(0..1, 2)[..SECTOR], 0).unwrap();
        let both: Run = "0:1=1,2".parse().unwrap();
        verify(&mut file, 1, std::slice::from_ref(&both)).unwrap();
        assert!(verify(&mut file, 1, &[Run::new(0..1, 2)]).is_err());
        file.write_all_at(b"x", 100).unwrap();
        assert!(verify(&mut file, 1, &[both]).is_err());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_run_reads_back_as_it_is_written() {
        for text in ["0:640=1", "3:4=1,2"] {
            assert_eq!(text.parse::<Run>().unwrap().to_string(), text);
        }
        for text in ["", "1:2", "1=2", "a:2=1", "1:2=", "1:2=300"] {
            assert!(text.parse::<Run>().is_err(), "{text}");
        }
    }
}
