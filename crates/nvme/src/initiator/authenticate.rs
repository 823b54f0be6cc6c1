//! Authentication of a queue, after Connect and before anything else.

use std::rc::Rc;
use std::sync::Arc;

use pinstripe_runtime::shard;

use super::InitiatorError;
use super::association::Association;
use super::queue::Queue;
use super::request::{Data, Failure};
use crate::auth::exchange::{HostEnd, HostStep};
use crate::auth::{AuthenticationError, Entry, Names};
use crate::wire::DISCOVERY_NQN;
use crate::wire::auth::{
    CONNECT_AUTHENTICATE, CONNECT_SECURE_CHANNEL, MESSAGE_BYTES_MAX, receive_command, send_command,
};

/// What is known of the association's server.
fn entry(association: &Association) -> Option<Entry> {
    association.options().authentication.as_ref()?.peer(&association.address().nqn)
}

/// Proves this host's identity if Connect's answer asks for it. If the server's secret is known, the server
/// must prove its own.
pub(super) async fn after_connect(queue: &Rc<Queue>, answer: u64) -> Result<(), InitiatorError> {
    let association = &queue.association;
    let failed = |reason| InitiatorError::Authentication {
        server: association.address().server(),
        nqn: association.address().nqn.clone(),
        reason,
    };
    let known = association.options().authentication.as_ref().zip(entry(association));
    if answer & CONNECT_SECURE_CHANNEL != 0 {
        return Err(failed(AuthenticationError::SecureChannel));
    }
    if answer & CONNECT_AUTHENTICATE == 0 {
        // An attacker between the ends can remove the question, so the proof is needed without it too.
        // Linux's discovery controllers never ask, and the subsystems prove what those say: they must ask
        // only if they have a line of their own.
        let nqn = &association.address().nqn;
        let meant = |entry: &Entry| nqn != DISCOVERY_NQN || entry.peer == *nqn;
        let wanted = known.is_some_and(|(_, entry)| entry.controller.is_some() && meant(&entry));
        return if wanted { Err(failed(AuthenticationError::NotAsked)) } else { Ok(()) };
    }
    let (authentication, entry) = known.ok_or_else(|| failed(AuthenticationError::NoSecret))?;
    let refused = |failure| association.failed("authentication", failure);
    let host = association.options().host_nqn.clone();
    let names = Names { host, subsystem: association.address().nqn.clone() };
    let begun = HostEnd::begin(authentication, &entry, &names);
    let (mut end, mut message) = begun.map_err(|none| failed(none.into()))?;
    loop {
        send(queue, &message).await.map_err(refused)?;
        let answer = receive(queue).await.map_err(refused)?;
        // What it costs mustn't keep the shard.
        let keys = Arc::clone(authentication);
        let taken = authentication.compute(move || {
            let step = end.take(&keys, &answer);
            (end, step)
        });
        let Some((then, step)) = taken.await else { return Err(refused(Failure::Lost)) };
        end = then;
        match step {
            Ok(HostStep::Reply(reply)) => message = reply,
            Ok(HostStep::Done(None)) => return Ok(()),
            Ok(HostStep::Done(Some(last))) => return send(queue, &last).await.map_err(refused),
            Err(trouble) => {
                if let Some(words) = trouble.tell {
                    // It has failed, whether the server hears of it or not.
                    let _ = send(queue, &words).await;
                }
                return Err(failed(trouble.error));
            }
        }
    }
}

async fn send(queue: &Queue, message: &[u8]) -> Result<(), Failure> {
    let mut buffer = shard::buffer(message.len());
    buffer.copy_from_slice(message);
    let command = send_command(u32::try_from(message.len()).unwrap_or(u32::MAX));
    queue.ask_first(command, Data::Write(buffer.freeze()), None).await.map(|_| ())
}

async fn receive(queue: &Queue) -> Result<Vec<u8>, Failure> {
    let length = MESSAGE_BYTES_MAX as usize;
    let data = Data::Read { start: 0, length };
    let buffer =
        queue.ask_first(receive_command(MESSAGE_BYTES_MAX), data, Some(shard::zeroed(length))).await?;
    Ok(buffer.map(|buffer| buffer.to_vec()).unwrap_or_default())
}
