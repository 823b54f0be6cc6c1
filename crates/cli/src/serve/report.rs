//! The engine's state in the words of the control protocol.

use std::os::unix::ffi::OsStrExt;

use pinstripe_control::{
    detail::{Address, Bitmap, Detail, Failed, Journal, Member, MemberOffload, Sync, UnusableSpare},
    latency::{Histogram, Latencies},
    limit::Limit,
};
use pinstripe_engine::{
    array::Array,
    events::SyncAction,
    latency::{self, ClientOperation},
    maintenance::SyncProgress,
    status::detail::{FailedMember, SlotDetail},
};
use pinstripe_md::level::Level;

/// Work over the whole array.
pub fn sync(progress: &SyncProgress) -> Sync {
    let action = match progress.action {
        SyncAction::Resync => "resync",
        SyncAction::Rebuild => "rebuild",
        SyncAction::Check => "check",
        SyncAction::Repair => "repair",
    };
    Sync {
        action: action.to_owned(),
        done: progress.done,
        total: progress.total,
        mismatched_sectors: progress.mismatched_sectors,
        unreadable_stripes: progress.errors,
        uncompared_stripes: progress.uncompared_stripes,
        paused: progress.paused,
        speed_kib: progress.speed / 1024,
        finish_seconds: progress.finish_seconds,
    }
}

/// A slot of an array that has attached its members' servers under `epoch`; `plain` says why none of them
/// computes.
fn member(slot: usize, member: SlotDetail, epoch: u64, plain: Option<&str>) -> Member {
    Member {
        slot,
        state: member.state.to_owned(),
        device: member.device,
        replacement: member.replacement,
        by_bitmap: member.by_bitmap,
        read_latency_ns: member.read_latency_ns.into(),
        write_latency_ns: member.write_latency_ns.into(),
        slow: member.slow,
        late_requests: member.late_requests,
        bad_sectors: member.bad_sectors,
        bad_sectors_by_part: member.bad_sectors_by_part,
        offload: member.offload.map(|offload| MemberOffload {
            plain: offload.plain.or_else(|| plain.map(str::to_owned)),
            epoch,
            outstanding: offload.outstanding,
            operations_max: offload.operations_max,
            free_bandwidth: offload.free_bandwidth,
        }),
        statistics: member.statistics.fields().map(|(name, value)| (name.to_owned(), value)).collect(),
    }
}

fn failed(failed: FailedMember) -> Failed {
    Failed {
        slot: failed.slot,
        device: failed.device,
        error: failed.error.to_string(),
        late_requests: failed.late_requests,
        reconnecting: None,
        gone: false,
        statistics: failed.statistics.fields().map(|(name, value)| (name.to_owned(), value)).collect(),
    }
}

/// The state of `array`, which is served at `addresses`.
pub fn detail(array: &Array, addresses: Vec<Address>) -> Detail {
    let now = array.detail();
    let of_nbd = addresses.iter().filter(|address| address.protocol == "nbd");
    let (epoch, array_plain) = now.offload.map_or((0, None), |offload| (offload.epoch, offload.plain));
    let members = now.slots.into_iter().enumerate();
    let members = members.map(|(slot, detail)| member(slot, detail, epoch, array_plain.as_deref()));
    let failed = now.failed.into_iter().map(failed);
    let unusable = now.unusable_spares.into_iter();
    let unusable_spares = unusable.map(|spare| UnusableSpare { device: spare.device, reason: spare.reason });
    Detail {
        name: now.name,
        full_name: now.full_name,
        uuid: now.uuid,
        level: Level::from_number(now.level)
            .map_or_else(|| now.level.to_string(), |level| level.name().to_owned()),
        layout: now.layout,
        chunk_bytes: now.chunk_bytes.into(),
        logical_block_bytes: now.logical_block.into(),
        size_bytes: now.size_bytes,
        state: now.state.to_owned(),
        degraded: now.missing > 0,
        events: now.events,
        members: members.collect(),
        spares: now.spares,
        unusable_spares: unusable_spares.collect(),
        failed: failed.collect(),
        bitmap: now.bitmap.map(|bitmap| Bitmap {
            chunk_bytes: bitmap.chunk_bytes,
            bits: bitmap.bits as u64,
            bits_set: bitmap.bits_set as u64,
            bits_set_by_part: counts(bitmap.bits_set_by_part),
            outdated: bitmap.outdated,
        }),
        journal: now.journal.map(|journal| Journal {
            device: journal.device,
            failed: journal.failed,
            slow: journal.slow,
            mode: journal.mode.to_owned(),
            cached_bytes: journal.cached_bytes,
            size_bytes: journal.size_bytes,
            used_bytes: journal.used_bytes,
        }),
        consistency_policy: now.consistency_policy.to_owned(),
        regions_to_resync: now.regions_to_resync as u64,
        regions_to_resync_by_part: counts(now.regions_to_resync_by_part),
        sync: now.sync.as_ref().map(sync),
        compared: None,
        sync_paused: array.is_sync_paused(),
        sync_speed_min_kib: array.sync_speed().min_kib,
        sync_speed_max_kib: array.sync_speed().max_kib,
        errors: now.last_errors.iter().map(ToString::to_string).collect(),
        advice: now.advice,
        warnings: Vec::new(),
        nbd: of_nbd.map(|address| address.uri.clone()).collect(),
        addresses,
        clients: Vec::new(),
        limit: Limit::default(),
        recorded: false,
        shards: array.shared().shards.len(),
        pinstripe: env!("CARGO_PKG_VERSION").to_owned(),
        program_replaced: is_program_replaced(),
        statistics: now.statistics.fields().map(|(name, value)| (name.to_owned(), value)).collect(),
        latency: latency(&now.latencies),
    }
}

/// Whether the file that this process runs is removed by now, as by an update.
fn is_program_replaced() -> bool {
    std::env::current_exe().is_ok_and(|program| program.as_os_str().as_bytes().ends_with(b" (deleted)"))
}

fn counts(of: Vec<usize>) -> Vec<u64> {
    of.into_iter().map(|count| count as u64).collect()
}

fn latency(latencies: &latency::Latencies) -> Latencies {
    let operation = |operation: ClientOperation| {
        let own = latencies.of(operation);
        (operation.name().to_owned(), Histogram { buckets: own.buckets.to_vec(), sum_ns: own.sum_ns })
    };
    Latencies {
        bounds_ns: latency::bounds_ns().to_vec(),
        operations: ClientOperation::ALL.map(operation).into(),
    }
}

/// The array's state in a few words.
pub fn state(array: &Array) -> String {
    let now = array.detail();
    match now.missing {
        0 => now.state.to_owned(),
        missing => format!("{}, degraded: {missing} of {} members missing", now.state, now.slots.len()),
    }
}
