//! What a target tells its service manager: which namespaces there are, and how many hosts have it.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use pinstripe_nvme::controller::Subsystem;
use pinstripe_runtime::shard;

use crate::supervisor;

/// Between two looks at whether something has changed.
const LOOK_NANOSECONDS: u64 = 5_000_000_000;

/// Namespaces that have failed a flush or a forced write, by number.
#[derive(Clone, Default)]
pub struct Losses(Arc<Mutex<BTreeSet<usize>>>);

impl Losses {
    pub fn note(&self, number: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
    }

    fn all(&self) -> Vec<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

/// See the module.
pub struct Condition {
    /// Whether the device of each namespace is there, from number 1.
    pub present: Vec<bool>,
    pub losses: Losses,
}

impl Condition {
    /// Tells it whenever it has changed, for as long as this is polled.
    pub async fn tell(&self, subsystem: &Subsystem) {
        let mut before = String::new();
        loop {
            let hosts: BTreeSet<String> = subsystem.hosts().into_iter().collect();
            let now = self.words(hosts.len());
            if now != before {
                supervisor::tell_status(&now);
            }
            before = now;
            shard::sleep(LOOK_NANOSECONDS).await;
        }
    }

    fn words(&self, hosts: usize) -> String {
        let all = self.present.len();
        let missing: Vec<usize> =
            (1..).zip(&self.present).filter(|(_, there)| !**there).map(|(number, _)| number).collect();
        let list = |what: &str, numbers: &[usize]| {
            let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
            if numbers.is_empty() { String::new() } else { format!("; {what}: {}", numbers.join(", ")) }
        };
        let (away, lost) = (list("missing", &missing), list("lost writes, perhaps", &self.losses.all()));
        format!("{} of {all} namespaces, hosts: {hosts}{away}{lost}", all - missing.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_may_be_lost_is_told_by_number() {
        let condition = |present: &[bool]| Condition { present: present.to_vec(), losses: Losses::default() };
        assert_eq!(condition(&[true]).words(2), "1 of 1 namespaces, hosts: 2");
        let condition = condition(&[true, false, true, false]);
        condition.losses.note(3);
        assert_eq!(condition.words(0), "2 of 4 namespaces, hosts: 0; missing: 2, 4; lost writes, perhaps: 3");
    }
}
