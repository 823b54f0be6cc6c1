//! Where the array's log lies on a member.

use pinstripe_md::{ppl::HEADER_BYTES, superblock::Superblock, units::SECTOR_BYTES};

/// Areas of this size and more hold several records, as in Linux: twice what one may need there.
const SEVERAL_RECORDS_BYTES: u64 = 2 * (132 << 10);

/// Where a member's log lies, in bytes of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogArea {
    /// Its first byte.
    pub offset: u64,
    /// Its length.
    pub length: u64,
    /// Whether records follow each other around it, rather than one overwriting the last.
    pub several: bool,
}

impl LogArea {
    /// Where the superblock says that it lies.
    pub(crate) fn of(superblock: &Superblock) -> Option<Self> {
        let sector = superblock.ppl_sector().or(superblock.double_parity_log_sector())?;
        let area = superblock.member.ppl.or(superblock.member.double_parity_log)?;
        let length = u64::from(area.size) * SECTOR_BYTES / HEADER_BYTES as u64 * HEADER_BYTES as u64;
        let several = superblock.member.ppl.is_none() || length >= SEVERAL_RECORDS_BYTES;
        Some(Self { offset: sector.0 * SECTOR_BYTES, length, several })
    }
}
