//! Updates of the superblocks.
//!
//! An update writes, in this order: the bitmap's header on every member (C9); one member's superblock alone;
//! all others. A crash can't tear all copies. The first update of a start writes what not all members'
//! bitmaps have before that (C8). If a member fails meanwhile, it is dropped and the update starts again with
//! one event more. A failure beyond redundancy is not written down (C3).

use std::rc::Rc;

use pinstripe_md::{
    bitmap::BitmapImage,
    superblock::Superblock,
    units::{SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, Submission, shard};

use crate::{
    controller::{
        ArrayController,
        superblocks::{DeviceHandle, Known},
    },
    error::{DeviceRole, IoError, MemberError, Operation},
    members::MemberId,
    membership::{
        model::{MemberState, Membership},
        snapshot::Snapshot,
    },
    mutants::{Mutant, active},
    shared::Failure,
    units::to_usize,
};

/// Pages of the bitmap that are written to each member at a time where many are.
const PAGES_AT_ONCE: usize = 32;

/// A write of metadata that is under way, or why there is none.
struct MetadataWrite {
    role: DeviceRole,
    member: MemberId,
    name: String,
    offset: u64,
    submission: Result<Submission, DeviceError>,
}

impl MetadataWrite {
    fn new(id: MemberId, record: &Known, offset: u64, bytes: Option<&[u8]>) -> Self {
        // Our own output breaks a rule: nothing is written, and the member is given up rather than damaged.
        let submission = bytes
            .map(|bytes| record.handle.device.write(offset, copy(bytes), true))
            .ok_or(DeviceError::of(DeviceErrorKind::Invalid));
        Self { role: record.slot.into(), member: id, name: record.name.clone(), offset, submission }
    }

    /// The superblock that a record has for its device.
    fn superblock(id: MemberId, record: &Known) -> Self {
        let block = u64::from(record.handle.device.info().logical_block);
        let offset = record.superblock.member.super_offset.0 * SECTOR_BYTES;
        Self::new(id, record, offset, record.superblock.encode(block).ok().as_deref())
    }

    async fn done(self) -> Result<(), Failure> {
        let result = match self.submission {
            Ok(submission) => submission.await.result.map(|_| ()),
            Err(error) => Err(error),
        };
        result.map_err(|error| {
            failure(self.role, self.member, &self.name, Operation::Metadata, self.offset, error)
        })
    }
}

/// What of the bitmap is written to a device with this superblock. `None` if it has no room for it: the
/// member is given up rather than damaged.
pub(crate) fn written_part<'a>(
    bitmap: &'a BitmapImage,
    superblock: &Superblock,
    device: &dyn Device,
) -> Option<&'a [u8]> {
    let length = superblock.bitmap_bytes(bitmap.header(), device.info().logical_block.into())?;
    Some(&bitmap.as_bytes()[..to_usize(length).min(bitmap.as_bytes().len())])
}

/// Waits for all. Returns the failures.
async fn all(writes: Vec<MetadataWrite>) -> Vec<Failure> {
    let mut failures = Vec::new();
    for write in writes {
        failures.extend(write.done().await.err());
    }
    failures
}

impl ArrayController {
    /// Writes every member's superblock as the membership has it now, until all that are left have it.
    pub(crate) async fn update_superblocks(&self) -> Result<(), IoError> {
        if self.is_static() {
            // Nothing is written that could be acknowledged too early.
            self.shared().set_durable(self.shared().snapshot().generation);
            return Ok(());
        }
        let overtaken = self.overtaken().await;
        if !overtaken.is_empty() {
            self.drop_members(overtaken).await;
        }
        loop {
            self.shared().check()?;
            let failures = self.align_bitmaps().await;
            if !failures.is_empty() {
                if !self.drop_members(failures).await {
                    return Err(self.shared().failure());
                }
                continue;
            }
            let snapshot = self.shared().snapshot();
            let dirty_from = self.dirty_from(&snapshot);
            let needs_log = dirty_from.is_some() && (snapshot.log.keeps_md_out() || self.unlisted.get());
            let (now, complete) = ((self.shared().options.wall_clock)(), snapshot.is_complete());
            let before = self.superblocks.borrow_mut().begin_update(now, dirty_from, needs_log, complete);
            let failures = self.write_everywhere().await;
            if let Some(events) = before.filter(|_| !failures.is_empty()) {
                self.superblocks.borrow_mut().clearing_from(events);
            }
            let is_recorded = self.superblocks.borrow_mut().membership.end_update(failures.is_empty());
            if is_recorded {
                self.shared().set_durable(snapshot.generation);
                return Ok(());
            }
            if !failures.is_empty() && !self.drop_members(failures).await {
                return Err(self.shared().failure());
            }
        }
    }

    /// Writes the pages of the bitmap that some members have otherwise (C8). A bit that only some have, or
    /// that counts as set because a bitmap was out of date, is set in memory, so no write that relies on it
    /// has it written. It must be on all members before a header of new events makes the bits beside it
    /// valid. Returns the failures.
    async fn align_bitmaps(&self) -> Vec<Failure> {
        let pages: Vec<usize> = self.superblocks.borrow().pages_unlike.iter().copied().collect();
        if pages.is_empty() {
            return Vec::new();
        }
        let _pages = self.pages.take().await;
        for some in pages.chunks(PAGES_AT_ONCE).filter(|_| !active(Mutant::BitmapsLeftUnlike)) {
            let failures = self.write_bitmap_pages(some).await;
            if !failures.is_empty() {
                return failures;
            }
        }
        self.superblocks.borrow_mut().bitmaps_are_alike();
        Vec::new()
    }

    /// From which member sector parity can't be trusted after a crash; `None` for clean.
    fn dirty_from(&self, snapshot: &Snapshot) -> Option<Sector> {
        let is_dirty = self.dirty.get() && !snapshot.log.keeps_clean() || self.unlisted.get();
        if is_dirty || snapshot.log.is_lost() {
            return Some(Sector(0));
        }
        let intent = &snapshot.intent;
        if intent.is_torn(0..=intent.len() - 1) {
            // "From some sector on" would tell the next start that a clean stop cut the resync short, and
            // that no row is torn.
            return Some(Sector(0));
        }
        intent.out_of_sync_from().map(|bytes| Sector(bytes / SECTOR_BYTES))
    }

    /// Writes every member's bitmap header and superblock, once, and the journal's. That comes behind the
    /// first member's: mdadm takes a journal that is ahead of all members for a stray one, and one event
    /// behind for current. Returns the failures.
    async fn write_everywhere(&self) -> Vec<Failure> {
        let _pages = self.pages.take().await;
        let mut failures = self.write_bitmap_pages(&[0]).await;
        let order = self.superblocks.borrow().membership.update_order();
        for (turn, together) in order.into_iter().enumerate() {
            if turn == 1 {
                self.write_journal_superblock().await;
            }
            let writes = {
                let superblocks = self.superblocks.borrow();
                let write = |id| MetadataWrite::superblock(id, superblocks.membership.device(id));
                together.into_iter().map(write).collect()
            };
            failures.extend(all(writes).await);
        }
        failures
    }

    /// Writes pages of the bitmap to every member that has a slot, or is about to take one over. The caller
    /// holds the page lock. Returns the failures.
    pub(crate) async fn write_bitmap_pages(&self, pages: &[usize]) -> Vec<Failure> {
        let mut writes = Vec::new();
        {
            let superblocks = self.superblocks.borrow();
            let Some(bitmap) = &superblocks.bitmap else { return Vec::new() };
            for (id, record) in superblocks.seated() {
                let Some(sector) = record.superblock.bitmap_sector() else { continue };
                let room = written_part(bitmap, &record.superblock, &*record.handle.device);
                for &page in pages {
                    let (start, end) = (page * 4096, (page + 1) * 4096);
                    let offset = sector.0 * SECTOR_BYTES + start as u64;
                    match room {
                        None => writes.push(MetadataWrite::new(id, record, offset, None)),
                        Some(room) if start < room.len() => {
                            let bytes = &room[start..end.min(room.len())];
                            writes.push(MetadataWrite::new(id, record, offset, Some(bytes)));
                        }
                        Some(_) => {}
                    }
                }
            }
        }
        self.volume.base().counters().bitmap_writes.add(writes.len() as u64);
        all(writes).await
    }

    /// Sets every bit of the bitmap on all members. Returns the failures.
    pub(super) async fn set_every_bit(&self) -> Vec<Failure> {
        let _pages = self.pages.take().await;
        let count = {
            let mut superblocks = self.superblocks.borrow_mut();
            let Some(bitmap) = &mut superblocks.bitmap else { return Vec::new() };
            bitmap.set_range(0..bitmap.header().bit_count());
            bitmap.page_count()
        };
        let pages: Vec<usize> = (0..count).collect();
        self.write_bitmap_pages(&pages).await
    }

    /// Has the superblock of `first` say what the membership is to become, before anything else does. All
    /// others are behind until the next update. If it can't be written, the device has failed, and the
    /// membership stays as it is but for that.
    pub(super) async fn introduce(
        &self,
        first: MemberId,
        next: Membership<DeviceHandle>,
    ) -> Result<Membership<DeviceHandle>, IoError> {
        let takes_slot = next.device(first).state != MemberState::InSync;
        self.superblocks.borrow_mut().expect(next);
        let introduced = if takes_slot { self.prepare(first).await } else { Ok(()) };
        let introduced = match introduced {
            Ok(()) => self.announce(first).await,
            Err(failed) => Err(failed),
        };
        let next = self.superblocks.borrow_mut().take_expected();
        match (introduced, next) {
            (Ok(()), Some(next)) => Ok(next),
            (introduced, _) => {
                let failures = introduced.err().into_iter().collect();
                if self.drop_members(failures).await {
                    self.update_superblocks().await?;
                }
                Err(IoError::MembershipChanged)
            }
        }
    }

    /// An empty log and the bitmap as it is, whole, on a device that takes a slot. From the first page on it
    /// gets every bit that is set.
    async fn prepare(&self, id: MemberId) -> Result<(), Failure> {
        let (log, record) =
            (self.shared().snapshot().log.clone(), self.superblocks.borrow().expected(id).clone());
        let device = Rc::clone(&record.handle.device);
        if let Err(error) = log.prepare(&record.superblock, &*device).await {
            return Err(failure(record.slot, id, &record.name, Operation::Metadata, 0, error));
        }
        let _pages = self.pages.take().await;
        let write = {
            let superblocks = self.superblocks.borrow();
            let whole = superblocks.bitmap.as_ref().zip(record.superblock.bitmap_sector());
            whole.map(|(bitmap, sector)| {
                MetadataWrite::new(
                    id,
                    &record,
                    sector.0 * SECTOR_BYTES,
                    written_part(bitmap, &record.superblock, &*record.handle.device),
                )
            })
        };
        match write {
            Some(write) => write.done().await,
            None => Ok(()),
        }
    }

    /// Writes the next superblock to one device, before all others. They are behind until the next update.
    async fn announce(&self, id: MemberId) -> Result<(), Failure> {
        let snapshot = self.shared().snapshot();
        let dirty_from = self.dirty_from(&snapshot);
        let now = (self.shared().options.wall_clock)();
        self.superblocks.borrow_mut().announce(now, dirty_from, snapshot.is_complete());
        let _pages = self.pages.take().await;
        // C9: the bitmap's header before the superblock. A member that can't write it is noticed at the
        // update that follows.
        let _ = self.write_bitmap_pages(&[0]).await;
        let write = MetadataWrite::superblock(id, self.superblocks.borrow().expected(id));
        write.done().await
    }
}

pub(crate) fn failure(
    role: impl Into<DeviceRole>,
    member: MemberId,
    name: &str,
    operation: Operation,
    offset: u64,
    error: DeviceError,
) -> Failure {
    Failure {
        member,
        error: MemberError { role: role.into(), name: name.to_owned(), operation, offset, error },
    }
}

fn copy(bytes: &[u8]) -> pinstripe_runtime::Slice {
    let mut buffer = shard::buffer(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.freeze()
}
