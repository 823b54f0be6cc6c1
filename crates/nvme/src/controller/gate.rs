//! What is let through before a queue's host has proved its identity.

use std::cell::{Cell, RefCell};

use pinstripe_runtime::shard;

use crate::auth::exchange::ControllerEnd;
use crate::mutants::{Mutant, active};
use crate::wire::command::{Command, fabrics};

/// Time from Connect to the proof, and for each transaction afterwards.
pub(super) const TRANSACTION_NANOSECONDS: u64 = 30_000_000_000;

/// What stands between a queue's host and everything else.
pub(super) struct Gate {
    pub open: Cell<bool>,
    /// It has been open once.
    proved: Cell<bool>,
    /// When a transaction must be over.
    pub deadline: Cell<Option<u64>>,
    pub end: RefCell<ControllerEnd>,
}

impl Gate {
    pub fn new(required: bool, queue: u16) -> Self {
        let open = !required || (queue > 0 && active(Mutant::QueueUnauthenticated));
        let deadline = (!open).then(|| shard::now() + TRANSACTION_NANOSECONDS);
        let (deadline, end) = (Cell::new(deadline), RefCell::new(ControllerEnd::new()));
        Self { open: Cell::new(open), proved: Cell::new(open), deadline, end }
    }

    /// Whether it is open, and no transaction under way.
    pub fn is_settled(&self) -> bool {
        self.is_open() && self.deadline.get().is_none()
    }

    pub fn is_open(&self) -> bool {
        self.open.get()
    }

    /// Whether the gate has ever been open. Until then the host can't send Keep Alive and may compute for
    /// long: so the deadline counts, not its silence.
    pub fn was_open(&self) -> bool {
        self.proved.get()
    }

    /// The host has proved its identity.
    pub fn open(&self) {
        self.open.set(true);
        self.proved.set(true);
    }

    /// Whether a command may be carried out now.
    pub fn lets_through(&self, command: &Command) -> bool {
        self.is_open()
            || command.opcode == fabrics::OPCODE
                && matches!(
                    command.fabrics_kind(),
                    fabrics::PROPERTY_GET | fabrics::AUTHENTICATION_SEND | fabrics::AUTHENTICATION_RECEIVE
                )
    }
}
