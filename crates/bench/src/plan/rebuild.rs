//! How long a rebuild takes: that of a small member, scaled.
//!
//! A rebuild goes over the member in order, so its rate depends on the drives and not on their size. It is
//! taken between two sizes, so that what the begin and the end take isn't in it, and the whole is
//! `seconds(small) + (whole - small) / rate`. A member that is smaller than the larger of the two is rebuilt
//! as it is.
//!
//! Of an array that lacks members it is that of the slowest of these, while the others are still missing.

use serde::Serialize;

use crate::{
    arguments::{BenchArgs, DEPTH, DeviceSpec, Pattern},
    run::{self, BenchError},
};

/// The two sizes.
const SMALL: u64 = 64 << 20;
const LARGE: u64 = 192 << 20;

/// The rebuild of a whole member, with no other load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RebuildTime {
    /// From the command to add the member until it is in sync.
    pub seconds: f64,
    /// Of the member, per second.
    pub bytes_per_second: f64,
    /// Whether it was computed from rebuilds of smaller members.
    pub scaled: bool,
}

/// The longest rebuild of a member that is lost, or of any model among all; none of a level without parity.
pub(super) fn time(bench: &BenchArgs, member_bytes: u64) -> Result<Option<RebuildTime>, BenchError> {
    if !bench.level.has_parity() {
        return Ok(None);
    }
    let mut longest: Option<RebuildTime> = None;
    for (slot, device) in bench.devices.iter().enumerate() {
        let is_wanted = if bench.lost.is_empty() {
            bench.devices[..slot].iter().all(|other| other != device)
        } else {
            bench.lost.contains(&slot)
        };
        if is_wanted {
            let time = of_slot(bench, slot, member_bytes)?;
            if longest.is_none_or(|longest| time.seconds > longest.seconds) {
                longest = Some(time);
            }
        }
    }
    Ok(longest)
}

fn of_slot(bench: &BenchArgs, slot: usize, member_bytes: u64) -> Result<RebuildTime, BenchError> {
    let rebuild = |size: u64| {
        let cut = |device: &DeviceSpec| match device {
            DeviceSpec::Model { model, bytes } => {
                DeviceSpec::Model { model: *model, bytes: size.min(*bytes) }
            }
            other => other.clone(),
        };
        let devices = bench.devices.iter().map(cut).collect();
        let lost = bench.lost.iter().copied().filter(|other| *other != slot).collect();
        // No load: its depth and size must fit a small array all the same.
        let no_load = BenchArgs {
            pattern: Pattern::Random,
            reads: 0,
            rate: None,
            depth: DEPTH,
            size: 4096,
            ..bench.clone()
        };
        let small = BenchArgs { devices, rebuild: Some(slot), lost, ..no_load };
        run::run(&small)?.recovery.ok_or(BenchError::NotRebuilt(slot))
    };
    let large = rebuild(LARGE)?;
    if member_bytes <= large.member_bytes {
        let (seconds, bytes_per_second) = (large.seconds, large.bytes_per_second);
        return Ok(RebuildTime { seconds, bytes_per_second, scaled: false });
    }
    let small = rebuild(SMALL)?;
    let bytes = |bytes: u64| crate::report::by(bytes, 1);
    let seconds = (large.seconds - small.seconds).max(1e-9);
    let rate = bytes(large.member_bytes - small.member_bytes) / seconds;
    let seconds = small.seconds + bytes(member_bytes - small.member_bytes) / rate;
    Ok(RebuildTime { seconds, bytes_per_second: bytes(member_bytes) / seconds, scaled: true })
}
