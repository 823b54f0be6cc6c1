//! The bad-block log of a member as memory has it, and reports of sectors on their way into it or out of it.
//!
//! What is done with them is told in [`io::bad_blocks`](crate::io::bad_blocks).

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pinstripe_md::{
    bad_block_table::BadBlockTable,
    superblock::Superblock,
    units::{SECTOR_BYTES, SectorCount},
};
use pinstripe_runtime::{
    Device,
    atomics::{AtomicBool, AtomicU64, Ordering},
};

use crate::{error::MemberError, members::MemberId};

/// Where a member's log lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadBlockArea {
    pub(crate) offset: u64,
    pub(crate) size: SectorCount,
}

/// The bad blocks of a member: part of [`Member`](super::Member). Only the controller changes them; the
/// snapshot says what counts.
pub struct MemberBadBlocks {
    table: Mutex<Arc<BadBlockTable>>,
    /// Nothing where the member has no log that we could write, or one that counts in units larger than a
    /// sector: with a sector that is refused it would list others. What the member has there is right, and no
    /// other one would stand in for it when another member refuses a sector of the same unit, or goes.
    place: Option<BadBlockArea>,
}

impl MemberBadBlocks {
    /// What assembly read, of a member with this superblock.
    pub(crate) fn new(table: BadBlockTable, superblock: &Superblock, device: &dyn Device) -> Self {
        let sector = superblock.bad_block_log_sector().filter(|_| superblock.member.bad_block_log.is_some());
        let block = u64::from(device.info().logical_block).max(1);
        let place = sector.zip(superblock.member.bad_block_log).map(|(sector, log)| BadBlockArea {
            offset: sector.0 * SECTOR_BYTES,
            size: SectorCount(log.size.into()),
        });
        let fits = |place: &BadBlockArea| {
            table.blocks().shift() == 0
                && place.size.0 > 0
                && place.offset.is_multiple_of(block)
                && (place.size.0 * SECTOR_BYTES).is_multiple_of(block)
        };
        let place = place.filter(fits);
        Self { table: Mutex::new(Arc::new(table)), place }
    }

    /// Where the log lies; nothing where the member has none that we could write.
    pub(crate) fn place(&self) -> Option<BadBlockArea> {
        self.place
    }

    /// The log lists something else now. The controller's.
    pub(crate) fn set_table(&self, table: BadBlockTable) {
        *locked(&self.table) = Arc::new(table);
    }

    /// What the log lists now. Reads of the array go by the snapshot instead.
    pub(crate) fn table(&self) -> Arc<BadBlockTable> {
        Arc::clone(&locked(&self.table))
    }
}

/// What became of some sectors of a member.
pub(crate) struct Report {
    pub(crate) ticket: u64,
    pub(crate) member: MemberId,
    /// Absolute.
    pub(crate) sectors: Range<u64>,
    /// Why they are bad; nothing where they were written.
    pub(crate) bad: Option<MemberError>,
    /// Where they needn't be listed: to be set if there is no room for them.
    pub(crate) is_refused: Option<Arc<AtomicBool>>,
}

/// Reports on their way to the controller: part of [`Shared`](crate::shared::Shared).
#[derive(Default)]
pub struct Reports {
    queue: Mutex<(VecDeque<Report>, u64)>,
    /// Every report up to this ticket is dealt with.
    done: AtomicU64,
}

impl Reports {
    pub(crate) fn is_empty(&self) -> bool {
        locked(&self.queue).0.is_empty()
    }

    /// Queues a report. Returns its ticket.
    pub(crate) fn push(
        &self,
        member: MemberId,
        sectors: Range<u64>,
        bad: Option<MemberError>,
        is_refused: Option<Arc<AtomicBool>>,
    ) -> u64 {
        let mut queue = locked(&self.queue);
        queue.1 += 1;
        let ticket = queue.1;
        queue.0.push_back(Report { ticket, member, sectors, bad, is_refused });
        ticket
    }

    /// The ticket of the latest report.
    pub(crate) fn latest(&self) -> u64 {
        locked(&self.queue).1
    }

    /// The oldest report.
    pub(crate) fn take(&self) -> Option<Report> {
        locked(&self.queue).0.pop_front()
    }

    /// Whether every report up to this ticket is dealt with.
    pub(crate) fn is_settled(&self, ticket: u64) -> bool {
        self.done.load(Ordering::SeqCst) >= ticket
    }

    /// Every report up to this ticket is dealt with. To be told by `Shared::settle_bad`.
    pub(crate) fn settle(&self, ticket: u64) {
        self.done.store(ticket, Ordering::SeqCst);
    }
}

/// Sectors that a member could not take, on their way into its log.
pub(crate) struct Listing {
    pub(crate) ticket: u64,
    pub(crate) member: MemberId,
    /// Relative to the member's data, in bytes.
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// There was no room for them, and the member stays without.
    pub(crate) is_refused: Option<Arc<AtomicBool>>,
}

impl Listing {
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.as_ref().is_some_and(|is_refused| is_refused.load(Ordering::SeqCst))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
