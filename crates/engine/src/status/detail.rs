//! What `pinstripe detail` shows: the state of a running array as plain values.

use pinstripe_md::{
    bad_blocks::BadBlocks,
    identity::Uuid,
    units::{SECTOR_BYTES, SectorCount},
};

use crate::{
    array::Array,
    controller::superblocks::{MemberState, Superblocks},
    error::MemberError,
    intent::{IntentTable, Tally},
    latency::Latencies,
    maintenance::SyncProgress,
    members::{Member, MemberStatistics},
    membership::snapshot::{Seat, Snapshot},
    parts::parts,
    statistics::Statistics,
    status::advice::{Facts, TornData},
    units::to_usize,
};

pub use crate::{
    consistency::journal::JournalDetail,
    offload::{MemberOffload, OffloadDetail},
};

/// See the module.
#[derive(Clone, Debug)]
pub struct Detail {
    /// The array's name, without the host.
    pub name: String,
    /// The name with its host, if it has one.
    pub full_name: String,
    /// Its identity, as mdadm prints it.
    pub uuid: String,
    /// MD's level number.
    pub level: i32,
    /// mdadm's name of the layout; empty on level 0.
    pub layout: String,
    /// Chunk in bytes.
    pub chunk_bytes: u32,
    /// Logical block in bytes.
    pub logical_block: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// `clean`, `active`, `read-only` or `failed`.
    pub state: &'static str,
    /// Slots without a member that has everything.
    pub missing: usize,
    /// The superblocks' events.
    pub events: u64,
    /// By slot.
    pub slots: Vec<SlotDetail>,
    /// Devices that wait for a slot, and can take one.
    pub spares: Vec<String>,
    /// Devices that wait for a slot in vain.
    pub unusable_spares: Vec<UnusableSpare>,
    /// Devices that were dropped: MD's `faulty`.
    pub failed: Vec<FailedMember>,
    /// The bitmap, if there is one.
    pub bitmap: Option<BitmapDetail>,
    /// MD's word for what keeps parity consistent over a crash: `resync`, `bitmap`, `ppl`; empty on level 0.
    pub consistency_policy: &'static str,
    /// The journal, if there is one.
    pub journal: Option<JournalDetail>,
    /// Regions in which parity may not match.
    pub regions_to_resync: usize,
    /// How many of them lie in each part of the members' data: at most 64 parts of the same length.
    pub regions_to_resync_by_part: Vec<usize>,
    /// What resync, rebuild or scrub is under way.
    pub sync: Option<SyncProgress>,
    /// Counters since the assembly.
    pub statistics: Statistics,
    /// How long clients waited, since the assembly.
    pub latencies: Latencies,
    /// What the members' servers do, if any of them computes.
    pub offload: Option<OffloadDetail>,
    /// The latest errors for which members were dropped.
    pub last_errors: Vec<MemberError>,
    /// What the user can do, if something is wrong.
    pub advice: Option<String>,
}

/// A slot.
#[derive(Clone, Debug, Default)]
pub struct SlotDetail {
    /// `in-sync`, `resyncing` (it has all of its data, and parity is still to be made to match), `recovering`
    /// or `missing`.
    pub state: &'static str,
    /// The device that holds the slot, if there is one.
    pub device: Option<String>,
    /// The device that it is being copied to, if it is being replaced: MD's `replacement`.
    pub replacement: Option<String>,
    /// How much of a recovering device, or of the replacement, the superblocks call valid, in bytes.
    pub recovery_offset: Option<u64>,
    /// Whether only what the bitmap's bits cover is recovered.
    pub by_bitmap: bool,
    /// Latency of a small read in nanoseconds; 0 until one was measured.
    pub read_latency_ns: u32,
    /// Latency of a small write in nanoseconds; 0 until one was measured.
    pub write_latency_ns: u32,
    /// Whether a request has been under way for longer than usual.
    pub slow: bool,
    /// Requests that were given up and are not over; until they are, nothing is asked of the member.
    pub late_requests: u64,
    /// Whether a flush of it has ever failed, or a forced write that was made of one: no later one is
    /// believed (C5).
    pub lost_flush: bool,
    /// Sectors that its bad-block log lists.
    pub bad_sectors: u64,
    /// How many of them lie in each part of its data: at most 64 parts of the same length. Empty if it lists
    /// none.
    pub bad_sectors_by_part: Vec<u64>,
    /// What its server does, if any server computes.
    pub offload: Option<MemberOffload>,
    /// What was asked of it since the assembly.
    pub statistics: MemberStatistics,
}

/// A dropped device.
#[derive(Clone, Debug)]
pub struct FailedMember {
    /// Its identity, as its superblock has it.
    pub identity: Uuid,
    /// The device.
    pub device: String,
    /// The slot that it held.
    pub slot: Option<usize>,
    /// Why it was dropped.
    pub error: MemberError,
    /// Requests that were given up and are not over; until they are, it can't be added again.
    pub late_requests: u64,
    /// What was asked of it since the assembly.
    pub statistics: MemberStatistics,
}

/// A spare that can take no slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableSpare {
    /// The device.
    pub device: String,
    /// Why it can't.
    pub reason: String,
}

/// The bitmap.
#[derive(Clone, Debug)]
pub struct BitmapDetail {
    /// Bytes of a member per bit.
    pub chunk_bytes: u64,
    /// Bits.
    pub bits: usize,
    /// Bits that are set.
    pub bits_set: usize,
    /// How many of them are in each part of the bitmap: at most 64 parts of the same length.
    pub bits_set_by_part: Vec<usize>,
    /// Devices of which it was out of date or damaged at the start, so that all bits counted as set.
    pub outdated: Vec<String>,
}

impl Array {
    /// The array's state now.
    pub fn detail(&self) -> Detail {
        let shared = self.shared();
        let snapshot = shared.snapshot();
        let superblocks = self.superblocks();
        let intent = &snapshot.intent;
        // One pass without a lock: numbers and places tell of the same moment.
        let tallies: Vec<Tally> = parts(intent.len() as u64)
            .map(|part| intent.tally(to_usize(part.start)..to_usize(part.end)))
            .collect();
        let bitmap =
            intent.is_persistent().then(|| bitmap_detail(intent, &tallies, &superblocks.outdated_bitmaps));
        let regions_to_resync_by_part: Vec<usize> = tallies.iter().map(|tally| tally.to_resync).collect();
        let regions_to_resync = regions_to_resync_by_part.iter().sum();
        let slots = self.slots(&snapshot, regions_to_resync > 0 && shared.geometry.has_parity());
        let (spares, unusable_spares) = self.spares();
        let last_errors = self.last_errors();
        let failed = self.failed_members();
        let advice = Facts {
            journal_failed: self.controller.journal().is_some_and(|journal| journal.failure().is_some()),
            failure: shared.has_failed().then(|| shared.failure()),
            errors: &last_errors,
            read_only: shared.options.read_only,
            slots: &slots,
            unusable_spares: &unusable_spares,
            failed: &failed,
            limit_ns: shared.member_limit_ns(),
            redundancy: shared.geometry.redundancy(),
            torn_data: TornData::of(self.controller.misses_torn_data(), intent.keeps_torn()),
        }
        .advice();
        Detail {
            name: superblocks.membership.array.name.short(),
            full_name: superblocks.membership.array.name.to_string(),
            uuid: superblocks.membership.array.set_uuid.to_string(),
            level: shared.geometry.level(),
            layout: shared.geometry.layout_name().to_owned(),
            chunk_bytes: shared.geometry.chunk_bytes(),
            logical_block: shared.geometry.logical_block(),
            size_bytes: shared.geometry.array_bytes(),
            state: self.state(),
            missing: snapshot.missing.len(),
            events: superblocks.membership.array.events,
            slots,
            spares,
            unusable_spares,
            failed,
            bitmap,
            consistency_policy: self.consistency_policy(),
            journal: self.controller.journal().map(|journal| {
                let slow = superblocks.journal.as_ref();
                let slow = slow.is_some_and(|device| device.member.health.is_slow());
                JournalDetail { slow, ..journal.detail() }
            }),
            regions_to_resync,
            regions_to_resync_by_part,
            sync: self.progress(),
            statistics: Statistics::sum(shared.counters.iter().map(|counters| &**counters)),
            latencies: Latencies::sum(shared.latencies.iter().map(|counters| &**counters)),
            offload: self.controller.offload_detail(&snapshot),
            last_errors,
            advice,
        }
    }

    fn state(&self) -> &'static str {
        let shared = self.shared();
        if shared.has_failed() {
            "failed"
        } else if shared.options.read_only || self.controller.journal().is_some_and(|j| j.failure().is_some())
        {
            "read-only"
        } else if shared.admission.is_open() {
            "active"
        } else {
            "clean"
        }
    }

    fn slots(&self, snapshot: &Snapshot, is_resyncing: bool) -> Vec<SlotDetail> {
        let superblocks = self.superblocks();
        let slot = |(slot, seat): (usize, &Seat)| {
            let mut detail = slot_detail(seat, &superblocks);
            detail.offload = self.controller.member_offload(snapshot, slot);
            if is_resyncing && detail.state == "in-sync" {
                detail.state = "resyncing";
            }
            detail
        };
        snapshot.seats.iter().enumerate().map(slot).collect()
    }

    /// Devices that wait for a slot: those that can take one, and the others.
    fn spares(&self) -> (Vec<String>, Vec<UnusableSpare>) {
        let superblocks = self.superblocks();
        let devices = superblocks.membership.devices.iter();
        let (mut usable, mut unusable) = (Vec::new(), Vec::new());
        for record in devices.filter(|record| record.state == MemberState::Spare) {
            let device = record.name.clone();
            match self.controller.spare_hindrance(record) {
                None => usable.push(device),
                Some(reason) => unusable.push(UnusableSpare { device, reason }),
            }
        }
        (usable, unusable)
    }
}

fn slot_detail(seat: &Seat, superblocks: &Superblocks) -> SlotDetail {
    let state = match seat {
        Seat::Empty => "missing",
        Seat::InSync(_) | Seat::Replacing { .. } => "in-sync",
        Seat::Recovering(_) => "recovering",
    };
    let member = seat.member();
    let copied_to = seat.target().or(member).map(|target| superblocks.membership.device(target.id));
    let recovery = copied_to.map(|record| &record.superblock.member);
    let bad_blocks = member.map(|member| member.bad_blocks.table());
    let bad_sectors_by_part = member.zip(bad_blocks.as_ref()).map(|(member, table)| {
        let data = superblocks.membership.device(member.id).superblock.member.data_size;
        bad_by_part(table.blocks(), member, data)
    });
    let [read_latency_ns, write_latency_ns] = member.map_or([0; 2], |member| member.cost.measured_ns());
    SlotDetail {
        state,
        replacement: seat.target().map(|target| target.name.clone()),
        recovery_offset: recovery.and_then(|record| record.recovery_offset).map(|offset| offset.0 * 512),
        by_bitmap: recovery.is_some_and(|record| record.recovery_by_bitmap),
        device: member.map(|m| m.name.clone()),
        read_latency_ns,
        write_latency_ns,
        slow: member.is_some_and(|m| m.health.is_slow()),
        late_requests: member.map_or(0, |m| m.health.late_requests()),
        lost_flush: member.is_some_and(|m| m.health.has_lost_flush()),
        bad_sectors: bad_blocks.map_or(0, |table| table.blocks().count_within(0..u64::MAX)),
        bad_sectors_by_part: bad_sectors_by_part.unwrap_or_default(),
        offload: None,
        statistics: member.map(|m| m.health.statistics()).unwrap_or_default(),
    }
}

fn bitmap_detail(intent: &IntentTable, tallies: &[Tally], outdated: &[String]) -> BitmapDetail {
    BitmapDetail {
        chunk_bytes: intent.region_bytes(),
        bits: intent.len(),
        bits_set: tallies.iter().map(|tally| tally.set).sum(),
        bits_set_by_part: tallies.iter().map(|tally| tally.set).collect(),
        outdated: outdated.to_vec(),
    }
}

fn bad_by_part(bad_blocks: &BadBlocks, member: &Member, data: SectorCount) -> Vec<u64> {
    if bad_blocks.is_empty() {
        return Vec::new();
    }
    let begin = member.data_offset / SECTOR_BYTES;
    // A superblock may say any size; what is beyond every sector holds none.
    let absolute = |sector: u64| begin.saturating_add(sector);
    parts(data.0).map(|part| bad_blocks.count_within(absolute(part.start)..absolute(part.end))).collect()
}
