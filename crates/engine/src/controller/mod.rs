//! The array's controller: what the home shard has of an array, and the task that alone changes it.
//!
//! Begin with [`control`], the task's life; [`update`] writes what it decides. What a membership becomes is
//! said by [`membership::transition`](crate::membership::transition), which is pure.

pub(crate) mod attach;
mod bad_blocks;
pub(crate) mod control;
pub(crate) mod error;
mod handles;
mod intent_writer;
pub(crate) mod journal;
mod logs;
pub(crate) mod policy;
pub(crate) mod seating;
mod start;
pub(crate) mod superblocks;
pub(crate) mod update;

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    sync::Arc,
};

use pinstripe_md::superblock::ReadOnlyReason;
use pinstripe_runtime::Signal;

use self::{
    attach::Attaching,
    control::{Command, Reply},
    superblocks::Superblocks,
};
use crate::{
    assembly::StaleMember,
    consistency::Log,
    error::{IoError, MemberError},
    events::Events,
    intent::IntentTable,
    io::volume::Volume,
    shared::Shared,
    supervision::bounded::JoiningDevices,
    turn::Turn,
};

/// The home shard's state.
pub(crate) struct ArrayController {
    pub(crate) volume: Volume,
    pub(crate) superblocks: RefCell<Superblocks>,
    /// Writes may have happened since the superblocks were last marked clean.
    pub(crate) dirty: Cell<bool>,
    /// What members refused as their logs were replayed isn't listed yet. The log alone makes that good.
    unlisted: Cell<bool>,
    pub(crate) stopped: Cell<bool>,
    /// It is being stopped: no command is taken any more.
    stopping: Cell<bool>,
    /// For maintenance: something may be to do.
    pub(crate) work: Signal,
    pub(crate) events: Events,
    /// The table that the intent writer serves. A new one takes over when the old one has no writer left.
    pub(crate) served: RefCell<Arc<IntentTable>>,
    /// The bitmap is going: no bit may be cleared.
    pub(crate) bits_frozen: Cell<bool>,
    /// The log that the array has, or shall have as soon as its parity matches.
    pub(crate) wanted_log: RefCell<Log>,
    /// It still has something from before the start, and must not have it when something is written without
    /// it.
    pub(crate) log_is_old: Cell<bool>,
    /// A rebuild failed for what the others can't deliver: no spare takes over before something has changed.
    pub(crate) spares_rest: Cell<bool>,
    /// The members' servers that compute.
    pub(crate) attaching: Attaching,
    /// Devices that are no members yet.
    pub(crate) joining: JoiningDevices,
    commands: RefCell<VecDeque<Command>>,
    /// The right to write bitmap pages and superblocks: one write per page at a time (C7).
    pub(crate) pages: Turn,
    /// The right to prepare a change of the array's devices or bitmap: what one such command has looked up,
    /// no other may change before it is done (two spares for one slot, or with one device number).
    pub(crate) changes: Turn,
    pub(crate) read_only: Option<ReadOnlyReason>,
    pub(crate) stale: Vec<StaleMember>,
    /// Devices that can't be used, and why.
    pub(crate) left_out: Vec<String>,
    pub(crate) journal_left_out: bool,
    last_errors: RefCell<VecDeque<MemberError>>,
}

impl ArrayController {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.volume.shared()
    }

    /// Whether nothing on the members may change, or there is nothing that could (level 0).
    pub(crate) fn is_static(&self) -> bool {
        self.shared().options.read_only || !self.shared().geometry.has_parity()
    }

    pub(crate) fn take_command(&self) -> Option<Command> {
        self.commands.borrow_mut().pop_front()
    }

    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.borrow().is_empty()
    }

    /// Has the controller do something, and waits for it.
    pub(crate) async fn command<E: From<IoError>>(
        &self,
        make: impl FnOnce(Reply<E>) -> Command,
    ) -> Result<(), E> {
        if self.stopping.get() {
            return Err(IoError::Stopping.into());
        }
        let (reply, answer) = Reply::expected();
        self.commands.borrow_mut().push_back(make(reply));
        self.shared().controller_wake.notify();
        answer.await
    }

    /// Takes no command any more. Those that wait are answered: the array is stopping.
    pub(crate) fn refuse_commands(&self) {
        self.stopping.set(true);
        let waiting = self.commands.take();
        drop(waiting);
    }

    /// The latest errors for which members were dropped, oldest first.
    pub(crate) fn last_errors(&self) -> Vec<MemberError> {
        self.last_errors.borrow().iter().cloned().collect()
    }

    /// Keeps an error for `detail`.
    pub(crate) fn note(&self, error: &MemberError) {
        let mut errors = self.last_errors.borrow_mut();
        errors.push_back(error.clone());
        if errors.len() > 16 {
            errors.pop_front();
        }
    }
}
