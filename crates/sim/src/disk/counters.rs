//! What a simulated disk was asked for.

use crate::trace::Operation;

/// Requests that a disk has taken, refused and failed ones too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Number of reads.
    pub reads: u64,
    /// Bytes of reads.
    pub bytes_read: u64,
    /// Number of writes, zeroing and discards included.
    pub writes: u64,
    /// Bytes of writes.
    pub bytes_written: u64,
    /// Number of flushes.
    pub flushes: u64,
}

impl DiskCounters {
    pub(super) fn count(&mut self, operation: Operation, length: u64) {
        match operation {
            Operation::Read => {
                self.reads += 1;
                self.bytes_read += length;
            }
            Operation::Flush => self.flushes += 1,
            _ => {
                self.writes += 1;
                self.bytes_written += length;
            }
        }
    }
}
