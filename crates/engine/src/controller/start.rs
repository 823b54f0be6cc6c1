//! From what assembly found to a controller.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use pinstripe_md::{
    bitmap::BitmapImage,
    superblock::{ArrayRecord, ResyncOffset},
    units::{SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{ShardHandle, Signal};

use super::{ArrayController, attach::Attaching, superblocks::Superblocks};
use crate::{
    assembly::{Assembled, OldLog},
    controller::Log,
    events::{EventKind, Events},
    geometry::{Geometry, ParityGeometry},
    intent::{IntentTable, REGION_BYTES_WITHOUT_BITMAP},
    io::volume::Volume,
    membership::snapshot::Snapshot,
    mutants::{Mutant, active},
    options::ArrayOptions,
    shared::Shared,
    supervision::bounded::JoiningDevices,
    turn::Turn,
    units::to_usize,
};

impl ArrayController {
    /// The controller of an array that was assembled, to be served on `shards`, of which the current one must
    /// be the first.
    pub(crate) fn start(assembled: Assembled, options: ArrayOptions, shards: Vec<ShardHandle>) -> Rc<Self> {
        let Assembled {
            geometry,
            mut seated,
            freshest,
            bitmap,
            read_only,
            dirty_from,
            journal_left_out,
            left_out,
            forced,
            log,
            old_log,
            epoch,
            ..
        } = assembled;
        let unclean = was_cut_off(&freshest.array, journal_left_out);
        let torn = dirty_from == Some(Sector(0)) && unclean && !forced && !log.keeps_clean();
        let image = bitmap.as_ref().map(|merged| &merged.image);
        let intent = Arc::new(initial_intent(&geometry, image, dirty_from, torn));
        let stale = std::mem::take(&mut seated.stale);
        let mut superblocks = Superblocks::new(freshest.array, seated, bitmap);
        if (unclean || forced) && !active(Mutant::ForcedKeepsCheckpoint) {
            // Below what was recorded a recovering member may have missed what was being written.
            superblocks.membership.recover_anew();
        }
        // C17: a partial parity log is taken up when parity matches everywhere, a journal at once.
        let in_sync = intent.resync_count() == 0 || active(Mutant::LogBeforeSync);
        let now = if in_sync || log.keeps_clean() { log.clone() } else { Log::None };
        let dirty = first_dirty(&intent);
        let distrusted = unclean && superblocks.distrust_copies(dirty);
        let snapshot = Snapshot::new(1, superblocks.seats(), intent, now);
        if distrusted || !snapshot.is_complete() {
            keep_all(&snapshot.intent);
        }
        let events = Events::new(options.wall_clock);
        if !snapshot.absent().is_empty() {
            events.add(EventKind::DegradedArray { slots: snapshot.absent().iter().collect() });
        }
        let served = RefCell::new(Arc::clone(&snapshot.intent));
        let shared = Arc::new(Shared::new(geometry, options, snapshot, shards));
        let controller = Self {
            served,
            // No bit may go before the superblocks say what is to be copied again.
            bits_frozen: Cell::new(distrusted),
            spares_rest: Cell::new(false),
            wanted_log: RefCell::new(log),
            log_is_old: Cell::new(old_log == OldLog::InUse),
            volume: Volume::new(shared),
            superblocks: RefCell::new(superblocks),
            dirty: Cell::new(false),
            unlisted: Cell::new(false),
            stopped: Cell::new(false),
            stopping: Cell::new(false),
            work: Signal::default(),
            events,
            attaching: Attaching::under(epoch),
            joining: JoiningDevices::default(),
            commands: RefCell::default(),
            pages: Turn::default(),
            changes: Turn::default(),
            read_only,
            stale,
            journal_left_out,
            left_out,
            last_errors: RefCell::default(),
        };
        controller.supervise_members();
        Rc::new(controller)
    }
}

/// Whether there may be half-written rows, but for those that a journal puts right. A resync that was
/// interrupted by a clean stop, or has not begun, leaves none; of those that a journal leaves which is left
/// out, the superblocks know nothing.
fn was_cut_off(array: &ArrayRecord, journal_left_out: bool) -> bool {
    let dirty = array.resync_offset == ResyncOffset::DirtyFrom(Sector(0));
    (dirty || journal_left_out) && array.events > 0
}

/// The table that goes with what assembly found.
fn initial_intent(
    geometry: &Geometry,
    bitmap: Option<&BitmapImage>,
    dirty_from: Option<Sector>,
    torn: bool,
) -> IntentTable {
    let member_bytes = geometry.parity().map_or(1, ParityGeometry::member_bytes);
    let region_bytes = bitmap.map_or(REGION_BYTES_WITHOUT_BITMAP, |b| b.header().chunk().0 * SECTOR_BYTES);
    let intent = IntentTable::new(member_bytes, region_bytes, bitmap.is_some());
    if let Some(bitmap) = bitmap {
        for bit in bitmap.set_bits() {
            if let Some(region) = usize::try_from(bit).ok().filter(|region| *region < intent.len()) {
                intent.load_set(region);
            }
        }
    }
    let Some(from) = dirty_from.filter(|_| !active(Mutant::UncleanNotResynced)) else { return intent };
    // A disk may say any sector; one past the end is as good as the end.
    let from = from.0.saturating_mul(SECTOR_BYTES);
    let first = to_usize(from / region_bytes);
    for region in first.min(intent.len())..intent.len() {
        if bitmap.is_none() || intent.is_set(region) {
            intent.set_needs_resync(region, torn);
        }
    }
    if bitmap.is_none() && !torn {
        // Also in the middle of a region.
        intent.resynced_to(from);
    }
    intent
}

/// What a missing member may have missed stays marked until it is rebuilt (C8).
fn keep_all(intent: &IntentTable) {
    let set = (0..intent.len()).filter(|&region| intent.is_set(region));
    set.for_each(|region| intent.set_missed(region..=region));
}

/// The first member byte that may have been under write at a crash.
fn first_dirty(intent: &IntentTable) -> u64 {
    if !intent.is_persistent() {
        return 0;
    }
    let first = (0..intent.len()).find(|&region| intent.is_set(region));
    first.map_or(u64::MAX, |region| region as u64 * intent.region_bytes())
}
