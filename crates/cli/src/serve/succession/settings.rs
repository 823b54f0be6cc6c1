//! What was changed since the server's start.

use pinstripe_control::limit::Limit;
use pinstripe_engine::{
    array::Array,
    options::{JournalMode, SyncSpeed},
};
use serde::{Deserialize, Serialize};

use crate::command_line::JournalModeChoice;

/// See the module.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Settings {
    pub limit: Limit,
    pub sync_speed_min_kib: u64,
    pub sync_speed_max_kib: u64,
    pub sync_paused: bool,
    /// Whether the journal works write-back; nothing where that is only so for now.
    write_back: Option<bool>,
}

impl Settings {
    pub fn of(array: &Array, limit: Limit) -> Self {
        let SyncSpeed { min_kib, max_kib } = array.sync_speed();
        let write_back = match array.journal_mode() {
            Some(JournalMode::WriteBack) => Some(true),
            // A degraded array works so whatever is wanted.
            Some(JournalMode::WriteThrough) if array.detail().missing == 0 => Some(false),
            _ => None,
        };
        Self {
            limit,
            sync_speed_min_kib: min_kib,
            sync_speed_max_kib: max_kib,
            sync_paused: array.is_sync_paused(),
            write_back,
        }
    }

    /// If it isn't what the server was started with.
    pub fn journal_mode(&self) -> Option<JournalModeChoice> {
        let choice = |back| if back { JournalModeChoice::WriteBack } else { JournalModeChoice::WriteThrough };
        self.write_back.map(choice)
    }
}
