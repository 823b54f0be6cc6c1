//! Several requests at a time: flash, and memory that keeps its contents.

use super::{SECOND_NS, Speed};

/// How many requests are served at a time, and what long writing does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Requests at a time.
    pub count: usize,
    /// Whether reads and writes have bandwidth, and a rate of commands, of their own.
    pub duplex: bool,
    /// Of flash.
    pub spare: Option<Spare>,
}

/// Room that is written without collecting garbage for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spare {
    /// So much of it when the drive is fresh.
    pub bytes: u64,
    /// How writes go once there is none. A drive that has nothing to do gets it back at this bandwidth.
    /// Writes that go on where the last one ended leave no garbage: they come as often as on a fresh drive.
    pub used_up: Speed,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    /// By channel: until when it is busy.
    channels: Vec<u64>,
    /// Until when commands and transfers are; with duplex of reads, and of writes.
    occupied_until: [u64; 2],
    /// The last end of a request so far.
    busy_until: u64,
    /// Of the spare area.
    used: u64,
    /// Where the last write ended.
    written_to: Option<u64>,
}

impl State {
    pub(super) fn new(channels: &Channels) -> Self {
        let channels = vec![0; channels.count];
        Self { channels, occupied_until: [0; 2], busy_until: 0, used: 0, written_to: None }
    }

    pub(super) fn use_up(&mut self, model: &Channels) {
        self.used = model.spare.map_or(0, |spare| spare.bytes);
    }

    pub(super) fn busy_until(&self) -> u64 {
        self.busy_until
    }

    pub(super) fn transfer(
        &mut self,
        model: &Channels,
        speed: Speed,
        now: u64,
        writes: bool,
        offset: u64,
        length: u64,
    ) -> u64 {
        let speed = match model.spare.filter(|_| writes) {
            Some(spare) => self.write_speed(&spare, speed, now, offset, length),
            None => speed,
        };
        let channel = self.channels.iter_mut().min().unwrap_or_else(|| unreachable!("a drive has a channel"));
        let occupied_until = &mut self.occupied_until[usize::from(model.duplex && writes)];
        let start = now.max(*channel).max(*occupied_until);
        *occupied_until = start + speed.occupied_ns(length);
        *channel = *occupied_until + speed.access_ns;
        self.busy_until = self.busy_until.max(*channel);
        *channel
    }

    fn write_speed(&mut self, spare: &Spare, fresh: Speed, now: u64, offset: u64, length: u64) -> Speed {
        let idle_ns = u128::from(now.saturating_sub(self.busy_until));
        let collected = idle_ns * u128::from(spare.used_up.bytes_per_second) / u128::from(SECOND_NS);
        self.used = self.used.saturating_sub(u64::try_from(collected).unwrap_or(u64::MAX));
        self.used = (self.used + length).min(spare.bytes);
        let goes_on = self.written_to.replace(offset + length) == Some(offset);
        if self.used < spare.bytes {
            return fresh;
        }
        let interval_ns = if goes_on { fresh.interval_ns } else { spare.used_up.interval_ns };
        Speed { interval_ns, ..spare.used_up }
    }
}
