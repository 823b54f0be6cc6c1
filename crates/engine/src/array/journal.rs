//! What an owner asks of the journal of an array: its mode, and to be without it.

use crate::{
    array::Array,
    controller::{
        control::Command,
        error::CommandError,
        journal::{NO_JOURNAL, refused},
    },
    error::IoError,
    options::JournalMode,
};

const HAS_NO_PLACE: &str = "what is written from now on goes through the journal to the members, but something stays in the journal alone: its member is out or refuses it, and too much of its row can't be read for parity to be computed. It goes to the members when a member is back, or when its row is written as a whole";

impl Array {
    /// Takes the journal device out as if it had failed, so that the array is read-only from then on (C18).
    /// What only the journal has is written to the members first. Refused while the array isn't whole: a
    /// crash would cost it what a journal is for. The device's name.
    pub async fn fail_journal(&self) -> Result<String, CommandError> {
        self.check_change()?;
        let Some(journal) = self.controller.journal() else { return Err(refused(NO_JOURNAL)) };
        self.set_journal_mode(JournalMode::WriteThrough).await?;
        self.controller.command(|reply| Command::FailJournal { reply }).await?;
        Ok(journal.name().to_owned())
    }

    /// The journal's mode, if there is a journal.
    pub fn journal_mode(&self) -> Option<JournalMode> {
        self.controller.journal().map(|journal| journal.mode())
    }

    /// Sets the journal's mode (MD: `journal_mode`). From write-back to write-through it returns when
    /// everything is on the members. An array that isn't whole can't have write-back, nor one with members
    /// that can't list bad blocks.
    pub async fn set_journal_mode(&self, mode: JournalMode) -> Result<(), CommandError> {
        let shared = self.shared();
        if shared.options.read_only {
            return Err(CommandError::ReadOnly);
        }
        let Some(journal) = self.controller.journal().filter(|_| shared.geometry.has_parity()) else {
            return Err(refused(NO_JOURNAL));
        };
        if mode == JournalMode::WriteThrough {
            journal.set_mode(mode);
            return match shared.drained(&journal).await {
                true => Ok(()),
                false if shared.has_failed() || shared.has_ended() => Err(shared.refusal().into()),
                false => Err(refused(HAS_NO_PLACE)),
            };
        }
        if journal.failure().is_some() {
            return Err(IoError::JournalLost.into());
        }
        if !shared.snapshot().is_complete() {
            return Err(refused(
                "a member is missing or being rebuilt: an array that isn't whole is written through its journal",
            ));
        }
        if !shared.snapshot().can_write_back() {
            return Err(refused(
                "a member has no bad-block log: what is acknowledged from the journal may turn out not to fit a row that can't be read, and has to be listed then",
            ));
        }
        if !journal.set_mode(mode) {
            return Err(IoError::Stopping.into());
        }
        Ok(())
    }
}
