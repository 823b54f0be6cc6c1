//! Limits of what the clients of an array ask for.

use serde::{Deserialize, Serialize};

use crate::size::ByteSize;

/// Seconds that can be saved up, unless told.
pub const BURST_SECONDS: u32 = 1;

/// Of `limit`; what isn't there stays as it is. All clients of the array share each limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitParameters {
    /// Requests in a second, flushes aside; 0 for any number.
    #[serde(default)]
    pub iops: Option<u64>,
    /// Bytes in a second that are read, written and zeroed; 0 for any number.
    #[serde(default)]
    pub bytes_per_second: Option<u64>,
    /// Seconds of what a limit allows that can be saved up while less is asked for.
    #[serde(default)]
    pub burst_seconds: Option<u32>,
}

/// Of `limit`, and in `detail`: what holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Requests in a second; 0 for any number.
    pub iops: u64,
    /// Bytes in a second; 0 for any number.
    pub bytes_per_second: u64,
    /// Seconds of both that can be saved up.
    pub burst_seconds: u32,
    /// Requests that wait for their turn now.
    pub waiting: u64,
}

impl Limit {
    /// Whether there is one.
    pub fn is_on(&self) -> bool {
        self.iops > 0 || self.bytes_per_second > 0
    }

    /// For people.
    pub fn in_words(&self) -> String {
        let iops = (self.iops > 0).then(|| format!("{} requests", self.iops));
        let bytes = (self.bytes_per_second > 0).then(|| ByteSize(self.bytes_per_second).to_string());
        let limits: Vec<String> = iops.into_iter().chain(bytes).collect();
        if limits.is_empty() {
            return "no limit".to_owned();
        }
        let burst = match self.burst_seconds {
            0 => "nothing saved up".to_owned(),
            seconds => format!("{seconds} s saved up"),
        };
        format!("at most {} per second, {burst}, {} waiting", limits.join(" and "), self.waiting)
    }
}
