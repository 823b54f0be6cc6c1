//! Authentication of a queue: until its host has proved its identity, nothing else is carried out.
//!
//! Every queue authenticates by itself, as Linux's target has it: a connection that says that it belongs to
//! an association proves it. A queue that is open may authenticate again, and goes on being served meanwhile.
//! A failure ends the connection once the host has fetched why, and with the admin queue the association.
//!
//! What a message costs to answer is computed off the shard (see [`Calculator`](crate::auth::Calculator)): a
//! host that has proved nothing yet must not have others wait.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use pinstripe_block::BlockService;
use pinstripe_runtime::{Buffer, shard};

use super::gate::TRANSACTION_NANOSECONDS;
use super::session::Session;
use crate::auth::Names;
use crate::auth::exchange::{ControllerEnd, Outcome};
use crate::wire::auth::command_bytes;
use crate::wire::command::{Command, DataPlace, fabrics};
use crate::wire::status::Status;

/// Whether this is a command of ours.
pub(super) fn is_for<S>(session: &Session<S>, command: &Command) -> bool {
    session.inner.subsystem.authentication().is_some()
        && command.opcode == fabrics::OPCODE
        && matches!(command.fabrics_kind(), fabrics::AUTHENTICATION_SEND | fabrics::AUTHENTICATION_RECEIVE)
}

/// Carries out Authentication Send or Receive.
pub(super) async fn execute<S: BlockService>(
    session: &Session<S>,
    command: &Command,
    capsule: Option<Buffer>,
) {
    let Some(bytes) = command_bytes(command) else {
        return session.complete(command, Err(Status::INVALID_FIELD));
    };
    let outcome = if command.fabrics_kind() == fabrics::AUTHENTICATION_SEND {
        match session.host_data(command, capsule, bytes).await {
            Ok(Some(data)) => {
                let message = data.buffer.to_vec();
                drop(data.buffer);
                session.link.release(data.held);
                let Some(outcome) = session.take(message).await else { return };
                session.complete(command, Ok(0));
                outcome
            }
            Ok(None) => return,
            Err(status) => return session.complete(command, Err(status)),
        }
    } else {
        session.give(command, bytes)
    };
    match outcome {
        Outcome::Open => {}
        Outcome::Authenticated => {
            session.proved();
            session.gate.deadline.set(None);
            session.changed.notify();
            session.link.look_whether_to_leave();
        }
        Outcome::Failed => session.link.finish().await,
    }
}

impl<S: BlockService> Session<S> {
    fn names(&self) -> Names {
        let subsystem = if self.controller.discovery {
            crate::wire::DISCOVERY_NQN.to_owned()
        } else {
            self.inner.subsystem.config().nqn.clone()
        };
        Names { host: self.controller.host.clone(), subsystem }
    }

    /// The host says something. `None` at the connection's end.
    async fn take(&self, message: Vec<u8>) -> Option<Outcome> {
        let Some(authentication) = self.inner.subsystem.authentication() else {
            return Some(Outcome::Failed);
        };
        if self.gate.deadline.get().is_none() {
            self.gate.deadline.set(Some(shard::now() + TRANSACTION_NANOSECONDS));
            self.changed.notify();
        }
        let mut end = self.gate.end.replace(ControllerEnd::taking());
        let (subsystem, names) = (Arc::clone(&self.inner.subsystem), self.names());
        let taken = authentication.compute(move || {
            let keys = subsystem.authentication();
            let outcome = keys.map_or(Outcome::Failed, |keys| end.take(keys, &names, &message));
            (end, outcome)
        });
        // Dropped, it isn't computed at all if it hasn't begun: a host that comes and goes has nothing pile
        // up.
        let (mut taken, mut gone) = (pin!(taken), pin!(self.changed.wait_until(|| self.ended.get())));
        let taken = poll_fn(|cx| match taken.as_mut().poll(cx) {
            Poll::Ready(taken) => Poll::Ready(taken),
            Poll::Pending => gone.as_mut().poll(cx).map(|()| None),
        });
        let (end, outcome) = taken.await?;
        if end.has_failed() {
            self.gate.open.set(false);
        }
        self.gate.end.replace(end);
        Some(outcome)
    }

    /// The host fetches what is to be said, with zeroes behind it up to the length that it asks for.
    fn give(&self, command: &Command, bytes: u32) -> Outcome {
        let mut end = self.gate.end.borrow_mut();
        let Some(message) = end.due() else {
            self.complete(command, Err(Status::COMMAND_SEQUENCE));
            return Outcome::Open;
        };
        let room = bytes as usize;
        if message.len() > room || !matches!(command.data(), Ok(DataPlace::Transport(told)) if told == bytes)
        {
            self.complete(command, Err(Status::INVALID_FIELD));
            return Outcome::Open;
        }
        let mut message = message.to_vec();
        message.resize(room, 0);
        let outcome = end.given();
        // Open before the host hears of it: its next command may come at once.
        if outcome == Outcome::Authenticated && !self.proved() {
            return Outcome::Open;
        }
        self.send_data(command, &message);
        outcome
    }

    /// Cuts the connection when a transaction takes too long.
    pub(super) async fn watch_gate(&self) {
        loop {
            let next = || match self.gate.deadline.get() {
                _ if self.ended.get() => Some(None),
                deadline => deadline.map(Some),
            };
            let Some(deadline) = self.changed.wait_for(next).await else { return };
            let left = deadline.saturating_sub(shard::now());
            let moved = || self.ended.get() || self.gate.deadline.get() != Some(deadline);
            if shard::timeout(left.max(1), self.changed.wait_until(moved)).await.is_none() {
                return self.link.cut();
            }
        }
    }
}
