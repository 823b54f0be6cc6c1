//! What the operator can do in each state that is not the good one: a sentence for each thing that is wrong.

use pinstripe_runtime::DeviceErrorKind;

use crate::{
    array::Array,
    controller::superblocks::MemberState,
    error::{IoError, MemberError},
    status::detail::{FailedMember, SlotDetail, UnusableSpare},
};

/// What the sentences are made from.
pub(crate) struct Facts<'a> {
    /// Why nothing is acknowledged any more, if so.
    pub(crate) failure: Option<IoError>,
    /// The latest errors of members.
    pub(crate) errors: &'a [MemberError],
    /// It has a journal, and that failed.
    pub(crate) journal_failed: bool,
    /// The user asked for it, or the array's superblocks do.
    pub(crate) read_only: bool,
    pub(crate) slots: &'a [SlotDetail],
    pub(crate) unusable_spares: &'a [UnusableSpare],
    pub(crate) failed: &'a [FailedMember],
    /// How long a member may take for a request; 0 for ever.
    pub(crate) limit_ns: u64,
    /// How many members may be missing.
    pub(crate) redundancy: usize,
    pub(crate) torn_data: TornData,
}

/// Where the data of rows is that may be torn. There is no resync of them without it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TornData {
    /// On members that are here.
    Here,
    /// On one that is away, and can come back by the bitmap.
    Away,
    /// On one that is away, and can't.
    Lost,
}

impl TornData {
    /// Whether a member is away that has some, and whether one that is can come back by the bitmap.
    pub(crate) fn of(is_away: bool, can_come_back: bool) -> Self {
        match (is_away, can_come_back) {
            (false, _) => Self::Here,
            (true, true) => Self::Away,
            (true, false) => Self::Lost,
        }
    }
}

impl Facts<'_> {
    /// The sentences, the most urgent first.
    pub(crate) fn advice(&self) -> Option<String> {
        let mut sentences = Vec::new();
        if self.failure == Some(IoError::TakenOver) {
            sentences.push(
                "another host has taken the array over: nothing is read or written here any more; stop the array here, and assemble \
                 it anew when the other host has stopped it"
                    .to_owned(),
            );
        } else if self.failure.is_some() {
            sentences.push(self.steps());
        } else if self.journal_failed {
            sentences.push(
                "the journal device failed: stop the array and assemble it with --force, which does without the journal and resyncs"
                    .to_owned(),
            );
        } else if self.read_only {
            sentences.push("the array is read-only: nothing on its members changes".to_owned());
        }
        self.missing(&mut sentences);
        for (slot, detail) in self.slots.iter().enumerate() {
            self.trouble(slot, detail, &mut sentences);
        }
        for UnusableSpare { device, reason } in self.unusable_spares {
            sentences.push(format!(
                "the spare {device} can take no slot ({reason}): `pinstripe remove` it, and add another device"
            ));
        }
        for failed in self.failed {
            failed_words(failed, &mut sentences);
        }
        (!sentences.is_empty()).then(|| sentences.join(". "))
    }

    /// What is to be done about too many failures: other things where the space behind the devices is used up
    /// than where they are gone.
    fn steps(&self) -> String {
        let holds = |error: &&MemberError| {
            self.slots.iter().any(|slot| slot.device.as_deref() == Some(error.name.as_str()))
        };
        let (full, lost): (Vec<&MemberError>, Vec<&MemberError>) =
            self.errors.iter().filter(holds).partition(|error| error.error.kind == DeviceErrorKind::NoSpace);
        let mut full: Vec<&str> = full.iter().map(|error| error.name.as_str()).collect();
        full.dedup();
        let room = format!("make room for {} (a full file system, or a thin volume)", full.join(", "));
        let connection = "check the connection of the devices, or bring their servers back".to_owned();
        let steps = match (full.is_empty(), lost.is_empty()) {
            (true, _) => connection,
            (false, true) => room,
            (false, false) => format!("{room}, {connection}"),
        };
        let first = self.slots.iter().any(|slot| slot.state == "missing");
        let force = if first {
            ". One was missing before the others: without a log (ppl, a journal) the start asks for --force, and blocks beside those \
             that were being written may read wrong after it, flushed ones too"
        } else {
            ""
        };
        format!(
            "too many members failed: nothing is acknowledged any more, and what can be read is read; {steps}, stop the array, and \
             assemble it again (the superblocks were left as they were){force}"
        )
    }

    fn missing(&self, sentences: &mut Vec<String>) {
        let empty = self.slots.iter().filter(|slot| slot.state == "missing").count();
        let missing = self.slots.iter().filter(|slot| matches!(slot.state, "missing" | "recovering")).count();
        if self.redundancy == 0 || self.failure.is_some() {
            return;
        }
        if self.torn_data != TornData::Here {
            let back = if self.torn_data == TornData::Away {
                "Bring it back, and `pinstripe add` it. If it is lost, stop"
            } else {
                "Nothing tells what it has missed, so it can't come back either. Stop"
            };
            sentences.push(format!(
                "a member went before the resync after an unclean stop was over: its blocks there can't be made of the others, and \
                 no other device can take its place. {back} the array, and assemble it with --force: that takes parity for true, and \
                 what was being written when it stopped may read wrong"
            ));
        } else if empty > 0 && !self.read_only {
            sentences.push(
                "a member is missing: put a device in with `pinstripe add`, and its content is rebuilt"
                    .to_owned(),
            );
        }
        if missing == self.redundancy {
            sentences.push("no further member may fail before the rebuild is over".to_owned());
        }
    }

    fn trouble(&self, slot: usize, detail: &SlotDetail, sentences: &mut Vec<String>) {
        let name = detail.device.as_deref().unwrap_or_default();
        if detail.slow {
            let end = match self.limit_ns / 1_000_000_000 {
                0 => "it is waited for as long as it takes; `pinstripe fail` drops it".to_owned(),
                seconds => format!("it is dropped when it has not answered for {seconds} s"),
            };
            sentences.push(format!(
                "slot {slot} ({name}) is slow to answer: {end}. Look for errors of the device in the kernel's log"
            ));
        } else if detail.late_requests > 0 {
            sentences.push(format!(
                "slot {slot} ({name}) does not answer, and nothing is asked of it until the {} requests are over that were \
                 given up",
                detail.late_requests
            ));
        }
        if detail.bad_sectors > 0 {
            sentences.push(format!(
                "slot {slot} ({name}) has {} sectors that could not be written or rebuilt: replace it soon",
                detail.bad_sectors
            ));
        }
    }
}

fn failed_words(failed: &FailedMember, sentences: &mut Vec<String>) {
    if failed.late_requests > 0 {
        sentences.push(format!(
            "{} was dropped and still has {} requests under way: it can be added again when they are over",
            failed.device, failed.late_requests
        ));
    }
    if failed.error.error.kind == DeviceErrorKind::NoSpace {
        sentences.push(format!(
            "{} had no space left behind it: make room there (a full file system, or a thin volume), then add it again",
            failed.device
        ));
    }
    if failed.error.error.kind == DeviceErrorKind::TooManyErrors {
        sentences.push(format!("{} had too many read errors: replace the device", failed.device));
    }
}

impl Array {
    /// Devices that were dropped, and why.
    pub(crate) fn failed_members(&self) -> Vec<FailedMember> {
        let superblocks = self.superblocks();
        let failed = superblocks.membership.devices.iter().filter_map(|record| match &record.state {
            MemberState::Failed(error) => Some(FailedMember {
                identity: record.superblock.member.device_uuid,
                device: record.name.clone(),
                slot: record.slot,
                error: error.clone(),
                late_requests: record.handle.member.health.late_requests(),
                statistics: record.handle.member.health.statistics(),
            }),
            _ => None,
        });
        failed.collect()
    }
}

#[cfg(test)]
mod tests {
    use pinstripe_runtime::DeviceError;

    use super::*;
    use crate::error::Operation;

    fn slot(state: &'static str) -> SlotDetail {
        SlotDetail { state, device: Some("/dev/x".to_owned()), ..SlotDetail::default() }
    }

    fn advice(slots: &[SlotDetail], change: impl FnOnce(&mut Facts)) -> Option<String> {
        let mut facts = Facts {
            failure: None,
            errors: &[],
            journal_failed: false,
            read_only: false,
            slots,
            unusable_spares: &[],
            failed: &[],
            limit_ns: 30_000_000_000,
            redundancy: 1,
            torn_data: TornData::Here,
        };
        change(&mut facts);
        facts.advice()
    }

    #[test]
    fn each_bad_state_has_a_sentence_that_says_what_to_do_and_the_good_one_has_none() {
        let good = [slot("in-sync"), slot("in-sync"), slot("in-sync")];
        assert_eq!(advice(&good, |_| ()), None);
        let says = |slots: &[SlotDetail], change: fn(&mut Facts), words: &str| {
            let advice = advice(slots, change).unwrap();
            assert!(advice.contains(words), "{advice}");
        };
        let failed = |facts: &mut Facts<'_>| facts.failure = Some(IoError::Failed);
        says(&good, failed, "stop the array, and assemble it again");
        assert!(!advice(&good, failed).unwrap().contains("--force"), "no member is missing for a start");
        says(&[slot("missing"), slot("in-sync")], failed, "the start asks for --force");
        let fenced = |facts: &mut Facts<'_>| facts.failure = Some(IoError::TakenOver);
        says(&good, fenced, "another host has taken the array over");
        says(&good, |facts| facts.read_only = true, "read-only");
        says(&[slot("resyncing"), slot("missing")], |_| (), "no further member may fail");
        assert_eq!(advice(&[slot("resyncing"), slot("resyncing")], |_| ()), None);
        let missing = [slot("missing"), slot("in-sync"), slot("in-sync")];
        says(&missing, |_| (), "pinstripe add");
        says(&missing, |_| (), "no further member may fail");
        let torn = |facts: &mut Facts<'_>| facts.torn_data = TornData::Away;
        says(&missing, torn, "assemble it with --force");
        assert!(!advice(&missing, torn).unwrap().contains("its content is rebuilt"));
        says(&missing, torn, "pinstripe add");
        let untold = |facts: &mut Facts<'_>| facts.torn_data = TornData::Lost;
        says(&missing, untold, "assemble it with --force");
        assert!(!advice(&missing, untold).unwrap().contains("pinstripe add"));
        let slow = [SlotDetail { slow: true, ..slot("in-sync") }];
        says(&slow, |_| (), "it is dropped when it has not answered for 30 s");
        says(&slow, |facts| facts.limit_ns = 0, "`pinstripe fail` drops it");
        says(&[SlotDetail { late_requests: 2, ..slot("in-sync") }], |_| (), "does not answer");
        says(&[SlotDetail { bad_sectors: 8, ..slot("in-sync") }], |_| (), "replace it soon");
    }

    #[test]
    fn a_full_file_system_is_called_that_and_no_connection_is_to_be_checked() {
        let error = |kind| MemberError {
            role: 0.into(),
            name: "/dev/x".to_owned(),
            operation: Operation::Write,
            offset: 0,
            error: DeviceError::of(kind),
        };
        let failed = |kinds: &[DeviceErrorKind]| {
            // What left the array before is no member's any more.
            let left = MemberError { name: "/dev/z".to_owned(), ..error(DeviceErrorKind::Media) };
            let errors: Vec<MemberError> = kinds.iter().map(|&kind| error(kind)).chain([left]).collect();
            let other = SlotDetail { device: Some("/dev/y".to_owned()), ..slot("in-sync") };
            let slots = [other, slot("in-sync")];
            let facts = Facts {
                failure: Some(IoError::Failed),
                errors: &errors,
                journal_failed: false,
                read_only: false,
                slots: &slots,
                unusable_spares: &[],
                failed: &[],
                limit_ns: 0,
                redundancy: 1,
                torn_data: TornData::Here,
            };
            facts.advice().unwrap()
        };
        let full = failed(&[DeviceErrorKind::NoSpace, DeviceErrorKind::NoSpace]);
        assert!(full.contains("make room for /dev/x (") && !full.contains("connection"), "{full}");
        let both = failed(&[DeviceErrorKind::NoSpace, DeviceErrorKind::Gone]);
        assert!(both.contains("make room") && both.contains("connection"), "{both}");
        assert!(!failed(&[DeviceErrorKind::Gone]).contains("room"));
        let words = crate::error::IoError::Failed.to_string();
        assert!(!words.contains("connection"), "{words}");
    }
}
