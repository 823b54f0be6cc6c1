//! What a server says while it runs: failed members, the begin and end of resync, rebuild and check.
//!
//! As sentences on standard error, or as JSON lines on standard output.

use std::{collections::VecDeque, rc::Rc};

use pinstripe_engine::array::Array;
use pinstripe_runtime::shard;
use serde_json::json;

use super::{
    first_of::{First, first_of},
    report,
    stopping::Stopping,
};
use crate::{control::detail::Sync, output};

/// How often the array is looked at.
const LOOK_NANOSECONDS: u64 = 500_000_000;

/// See the module.
#[derive(Clone)]
pub struct Journal {
    json: bool,
}

impl Journal {
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether lines are JSON.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Something that the user should know.
    pub fn warn(&self, sentence: &str) {
        self.say("warning", sentence);
    }

    fn say(&self, event: &str, sentence: &str) {
        if self.json {
            let line = json!({ "event": event, "message": sentence });
            // Who doesn't read must not stop the server.
            let _ = output::print(&format!("{line}\n"));
        } else {
            eprintln!("pinstripe: {sentence}");
        }
    }

    /// Tells of what happens to `array`, until the end is wanted.
    pub fn watch(&self, array: Array, stopping: Rc<Stopping>) {
        let journal = self.clone();
        shard::spawn(async move {
            let mut errors_told = VecDeque::new();
            let mut last: Option<Sync> = None;
            while let First::Other(()) = first_of(stopping.wanted(), shard::sleep(LOOK_NANOSECONDS)).await {
                let errors = array.last_errors();
                for error in errors.iter().filter(|error| !errors_told.contains(*error)) {
                    journal.say("member-failed", &format!("a member was dropped: {error}"));
                }
                errors_told = errors.into();
                let now = array.progress().map(|progress| report::sync(&progress));
                journal.tell_change(last.as_ref(), now.as_ref());
                last = now;
            }
        });
    }

    fn tell_change(&self, last: Option<&Sync>, now: Option<&Sync>) {
        let action = |sync: Option<&Sync>| sync.map(|sync| sync.action.clone());
        let (before, after) = (action(last), action(now));
        if before == after {
            return;
        }
        if let Some(ended) = before {
            self.say("sync-ended", &format!("{ended} has ended"));
        }
        if let Some(begun) = after {
            self.say("sync-started", &format!("{begun} has begun"));
        }
    }
}
