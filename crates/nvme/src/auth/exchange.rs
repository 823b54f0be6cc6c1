//! The two ends of a transaction ("DH-HMAC-CHAP Protocol"): messages in, messages out.
//!
//! ```text
//!   HostEnd                                ControllerEnd
//!      Negotiate (hashes, groups)   ──────>   chooses by its keyring
//!                <──────   Challenge (C1, S1, g^x)
//!      Reply (R1, C2, S2, g^y)      ──────>   compares R1
//!                <──────   Success1 (R2)
//!      compares R2, Success2        ──────>   (only if C2 was sent)
//! ```
//!
//! Either end answers what is wrong with Failure1 or Failure2, and that is the end of the connection. A
//! challenge is used for one reply only, right or wrong.

use super::Authentication;
use super::group::{Group, KeyPair};
use super::hash::{Hash, equal};
use super::keyring::Entry;
use super::random::NoRandom;
use crate::mutants::{Mutant, active};
use crate::wire::auth::{Envelope, Failed, Message};

/// The names of both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// NQN of the host.
    pub host: String,
    /// NQN of the subsystem.
    pub subsystem: String,
}

/// What both ends compute the same from.
struct Challenge<'a> {
    hash: Hash,
    transaction: u16,
    sequence: u32,
    /// C1 or C2.
    value: &'a [u8],
    /// g^xy mod p; empty in the NULL group.
    shared: &'a [u8],
}

impl Challenge<'_> {
    /// Ca1 or Ca2: the challenge, bound to what only both ends know.
    fn augmented(&self) -> Vec<u8> {
        if self.shared.is_empty() {
            return self.value.to_vec();
        }
        self.hash.hmac(&self.hash.digest(self.shared), &[self.value])
    }

    fn response(&self, key: &[u8], role: &[u8], first: &str, second: &str) -> Vec<u8> {
        // No secure channel is ever concatenated (SC_C).
        let parts: [&[u8]; 8] = [
            &self.augmented(),
            &self.sequence.to_le_bytes(),
            &self.transaction.to_le_bytes(),
            &[0],
            role,
            first.as_bytes(),
            &[0],
            second.as_bytes(),
        ];
        self.hash.hmac(key, &parts)
    }

    /// R1.
    fn of_host(&self, entry: &Entry, names: &Names) -> Vec<u8> {
        let key = entry.host.key_of(&names.host);
        self.response(&key, b"HostHost", &names.host, &names.subsystem)
    }

    /// R2; `None` without a secret of the controller.
    fn of_controller(&self, entry: &Entry, names: &Names) -> Option<Vec<u8>> {
        let key = entry.controller.as_ref()?.key_of(&names.subsystem);
        Some(self.response(&key, b"Controller", &names.subsystem, &names.host))
    }
}

fn envelope(transaction: u16, message: Message) -> Vec<u8> {
    Envelope { transaction, message }.encode()
}

/// A challenge of ours that waits for its reply.
struct Challenged {
    transaction: u16,
    hash: Hash,
    group: Group,
    sequence: u32,
    value: Vec<u8>,
    pair: KeyPair,
}

enum ExchangeState {
    /// Nothing is under way.
    Idle,
    /// The host is to fetch a message; what follows it.
    Due(Vec<u8>, Box<ExchangeState>),
    /// Reply is to come.
    Challenged(Challenged),
    /// The host is authenticated once it has fetched Success1.
    Passed,
    /// Success2 is to come.
    Confirming(u16),
    /// It has failed.
    Over,
}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It goes on.
    Open,
    /// The host has proved its identity.
    Authenticated,
    /// It hasn't, or it doesn't believe the controller: the connection must end.
    Failed,
}

/// The target's end, for one queue.
pub struct ControllerEnd(ExchangeState);

impl Default for ControllerEnd {
    fn default() -> Self {
        Self::new()
    }
}

impl ControllerEnd {
    /// Nothing is under way.
    pub fn new() -> Self {
        Self(ExchangeState::Idle)
    }

    /// Stands in while the end takes a message somewhere else. A host that goes on without the answer has
    /// failed.
    pub fn taking() -> Self {
        Self(ExchangeState::Over)
    }

    /// Takes what the host sends.
    pub fn take(&mut self, authentication: &Authentication, names: &Names, bytes: &[u8]) -> Outcome {
        let state = std::mem::replace(&mut self.0, ExchangeState::Over);
        if matches!(state, ExchangeState::Over) {
            return Outcome::Failed;
        }
        let envelope = match Envelope::decode(bytes) {
            Ok(envelope) => envelope,
            Err(malformed) => {
                // Its number, if there is one, so that the host knows what was refused.
                let transaction = bytes.get(4..6).map_or(0, |id| u16::from_le_bytes([id[0], id[1]]));
                return self.refuse(transaction, malformed.0);
            }
        };
        let transaction = envelope.transaction;
        let entry = authentication.peer(&names.host);
        let next = match (state, envelope.message, entry.as_ref()) {
            (_, Message::Failure2(_), _) => return Outcome::Failed,
            (ExchangeState::Idle, Message::Negotiate { secure_channel, hashes, groups }, Some(entry)) => {
                challenge(authentication, entry, transaction, (secure_channel, &hashes, &groups))
            }
            (ExchangeState::Challenged(ours), reply @ Message::Reply { .. }, Some(entry)) => {
                if ours.transaction == transaction {
                    answer(&ours, entry, names, reply)
                } else {
                    Err(Failed::PAYLOAD)
                }
            }
            (ExchangeState::Confirming(ours), Message::Success2, _) if ours == transaction => {
                self.0 = ExchangeState::Idle;
                return Outcome::Authenticated;
            }
            (_, _, None) => Err(Failed::AUTHENTICATION),
            _ => Err(Failed::MESSAGE),
        };
        match next {
            Ok(state) => {
                self.0 = state;
                Outcome::Open
            }
            Err(failed) => self.refuse(transaction, failed),
        }
    }

    fn refuse(&mut self, transaction: u16, failed: Failed) -> Outcome {
        self.0 = ExchangeState::Due(
            envelope(transaction, Message::Failure1(failed)),
            Box::new(ExchangeState::Over),
        );
        Outcome::Open
    }

    /// Whether the host has failed, though it may not have been told yet.
    pub fn has_failed(&self) -> bool {
        match &self.0 {
            ExchangeState::Over => true,
            ExchangeState::Due(_, next) => matches!(**next, ExchangeState::Over),
            _ => false,
        }
    }

    /// What the host is to fetch.
    pub fn due(&self) -> Option<&[u8]> {
        if let ExchangeState::Due(message, _) = &self.0 { Some(message) } else { None }
    }

    /// It has been given [`ControllerEnd::due`].
    pub fn given(&mut self) -> Outcome {
        match std::mem::replace(&mut self.0, ExchangeState::Over) {
            ExchangeState::Due(_, next) => match *next {
                ExchangeState::Passed => {
                    self.0 = ExchangeState::Idle;
                    Outcome::Authenticated
                }
                ExchangeState::Over => Outcome::Failed,
                next => {
                    self.0 = next;
                    Outcome::Open
                }
            },
            state => {
                self.0 = state;
                Outcome::Open
            }
        }
    }
}

/// The answer to Negotiate.
fn challenge(
    authentication: &Authentication,
    entry: &Entry,
    transaction: u16,
    (secure_channel, hashes, groups): (u8, &[u8], &[u8]),
) -> Result<ExchangeState, Failed> {
    if secure_channel != 0 {
        return Err(Failed::SECURE_CHANNEL);
    }
    let hash = entry.hashes.iter().find(|hash| hashes.contains(&hash.id())).ok_or(Failed::HASH)?;
    let group = entry.groups.iter().find(|group| groups.contains(&group.id())).ok_or(Failed::GROUP)?;
    let drawn = || {
        let mut value = vec![0; hash.bytes()];
        authentication.random().fill(&mut value)?;
        Ok((value, KeyPair::new(*group, authentication.random())?, authentication.next_sequence()?))
    };
    let (value, pair, sequence) = drawn().map_err(|_: NoRandom| Failed::AUTHENTICATION)?;
    let repeats = active(Mutant::ChallengeRepeated);
    let (value, sequence) = if repeats { (vec![0; value.len()], 1) } else { (value, sequence) };
    let message = Message::Challenge {
        hash: hash.id(),
        group: group.id(),
        sequence,
        challenge: value.clone(),
        exponential: pair.public.clone(),
    };
    let ours = Challenged { transaction, hash: *hash, group: *group, sequence, value, pair };
    Ok(ExchangeState::Due(envelope(transaction, message), Box::new(ExchangeState::Challenged(ours))))
}

/// The answer to Reply.
fn answer(ours: &Challenged, entry: &Entry, names: &Names, reply: Message) -> Result<ExchangeState, Failed> {
    let Message::Reply { response, challenge, sequence, exponential } = reply else {
        return Err(Failed::MESSAGE);
    };
    let Challenged { transaction, hash, .. } = *ours;
    if response.len() != hash.bytes() || exponential.len() != ours.group.bytes() {
        return Err(Failed::PAYLOAD);
    }
    let shared = ours.pair.shared(&exponential).ok_or(Failed::PAYLOAD)?;
    let wanted =
        Challenge { hash, transaction, sequence: ours.sequence, value: &ours.value, shared: &shared };
    if !equal(&response, &wanted.of_host(entry, names)) && !active(Mutant::ResponseUnchecked) {
        return Err(Failed::AUTHENTICATION);
    }
    let (response, next) = match challenge {
        None => (None, ExchangeState::Passed),
        Some(value) => {
            let theirs = Challenge { hash, transaction, sequence, value: &value, shared: &shared };
            let response = theirs.of_controller(entry, names).ok_or(Failed::AUTHENTICATION)?;
            (Some(response), ExchangeState::Confirming(transaction))
        }
    };
    let hash_bytes = u8::try_from(hash.bytes()).unwrap_or(u8::MAX);
    Ok(ExchangeState::Due(envelope(transaction, Message::Success1 { hash_bytes, response }), Box::new(next)))
}

/// Why a host doesn't get or doesn't want a server's service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticationError {
    /// The server wants a proof, and there is nothing to give it by.
    #[error(
        "it requires this host to authenticate, and no secret for it is known: add a line for it to the file of --dhchap-secrets"
    )]
    NoSecret,
    /// The server wants no proof, and so gives none.
    #[error(
        "it does not authenticate itself, although the file of secrets has a secret of its own: it may be another server"
    )]
    NotAsked,
    /// A secure channel is wanted.
    #[error("it requires a secure channel (TLS), which is not supported")]
    SecureChannel,
    /// The server doesn't believe this host.
    #[error("it refuses this host: {}", .0.words())]
    Refused(Failed),
    /// The server hasn't proved that it has the controller's secret.
    #[error(
        "it can't prove that it has the controller's secret: it may be another server, or have another secret"
    )]
    Unproven,
    /// A hash or group that isn't allowed.
    #[error("it chose a hash or a group that the file of secrets does not allow")]
    NotAllowed,
    /// What it says makes no sense.
    #[error("it sent an authentication message that is not valid ({})", .0.words())]
    Nonsense(Failed),
    /// This machine's fault.
    #[error("it can't be answered: {0}")]
    Random(#[from] NoRandom),
}

/// Why the host's end has failed, and what the controller is to be told, if it is.
pub struct Trouble {
    /// Why.
    pub error: AuthenticationError,
    /// Failure2.
    pub tell: Option<Vec<u8>>,
}

/// What the host is to send next.
pub enum HostStep {
    /// This, and then fetch an answer.
    Reply(Vec<u8>),
    /// This, if anything; all is proved.
    Done(Option<Vec<u8>>),
}

/// A challenge of ours to the controller.
struct Ours {
    hash: Hash,
    sequence: u32,
    value: Vec<u8>,
    shared: Vec<u8>,
}

/// The initiator's end, for one transaction.
pub struct HostEnd {
    entry: Entry,
    names: Names,
    transaction: u16,
    /// From Reply on.
    ours: Option<Ours>,
}

impl HostEnd {
    /// Begins: the end, and Negotiate.
    pub fn begin(
        authentication: &Authentication,
        entry: &Entry,
        names: &Names,
    ) -> Result<(Self, Vec<u8>), NoRandom> {
        let transaction = u16::from_le_bytes(authentication.bytes()?);
        let negotiate = Message::Negotiate {
            secure_channel: 0,
            hashes: entry.hashes.iter().map(|hash| hash.id()).collect(),
            groups: entry.groups.iter().map(|group| group.id()).collect(),
        };
        let end = Self { entry: entry.clone(), names: names.clone(), transaction, ours: None };
        Ok((end, envelope(transaction, negotiate)))
    }

    /// Takes what the controller gave.
    pub fn take(&mut self, authentication: &Authentication, bytes: &[u8]) -> Result<HostStep, Trouble> {
        let nonsense = |failed| (AuthenticationError::Nonsense(failed), failed);
        let step = match Envelope::decode(bytes) {
            Err(malformed) => Err(nonsense(malformed.0)),
            Ok(envelope) if envelope.transaction != self.transaction => Err(nonsense(Failed::PAYLOAD)),
            Ok(envelope) => match (self.ours.take(), envelope.message) {
                (_, Message::Failure1(failed)) => {
                    return Err(Trouble { error: AuthenticationError::Refused(failed), tell: None });
                }
                (None, challenge @ Message::Challenge { .. }) => self.reply(authentication, challenge),
                (Some(ours), Message::Success1 { response, .. }) => self.confirm(&ours, response.as_deref()),
                _ => Err(nonsense(Failed::MESSAGE)),
            },
        };
        step.map_err(|(error, failed)| {
            let tell = Some(envelope(self.transaction, Message::Failure2(failed)));
            Trouble { error, tell }
        })
    }

    fn reply(
        &mut self,
        authentication: &Authentication,
        challenge: Message,
    ) -> Result<HostStep, (AuthenticationError, Failed)> {
        let payload = (AuthenticationError::Nonsense(Failed::PAYLOAD), Failed::PAYLOAD);
        let Message::Challenge { hash, group, sequence, challenge, exponential } = challenge else {
            return Err(payload);
        };
        let Entry { hashes, groups, controller, .. } = &self.entry;
        let not_allowed = |failed| (AuthenticationError::NotAllowed, failed);
        let hash = Hash::of_id(hash).filter(|hash| hashes.contains(hash)).ok_or(not_allowed(Failed::HASH))?;
        let group =
            Group::of_id(group).filter(|group| groups.contains(group)).ok_or(not_allowed(Failed::GROUP))?;
        if challenge.len() != hash.bytes() || exponential.len() != group.bytes() {
            return Err(payload);
        }
        let drawn = || {
            let mut value = vec![0; hash.bytes()];
            authentication.random().fill(&mut value)?;
            let sequence = if controller.is_some() { authentication.next_sequence()? } else { 0 };
            Ok((value, KeyPair::new(group, authentication.random())?, sequence))
        };
        let (value, pair, our_sequence) =
            drawn().map_err(|none: NoRandom| (none.into(), Failed::AUTHENTICATION))?;
        let shared = pair.shared(&exponential).ok_or(payload)?;
        let transaction = self.transaction;
        let theirs = Challenge { hash, transaction, sequence, value: &challenge, shared: &shared };
        let reply = Message::Reply {
            response: theirs.of_host(&self.entry, &self.names),
            challenge: controller.is_some().then(|| value.clone()),
            sequence: our_sequence,
            exponential: pair.public,
        };
        self.ours = Some(Ours { hash, sequence: our_sequence, value, shared });
        Ok(HostStep::Reply(envelope(transaction, reply)))
    }

    fn confirm(
        &self,
        ours: &Ours,
        response: Option<&[u8]>,
    ) -> Result<HostStep, (AuthenticationError, Failed)> {
        let Ours { hash, sequence, value, shared } = ours;
        let wanted =
            Challenge { hash: *hash, transaction: self.transaction, sequence: *sequence, value, shared };
        let Some(wanted) = wanted.of_controller(&self.entry, &self.names) else {
            return Ok(HostStep::Done(None));
        };
        if !response.is_some_and(|response| equal(response, &wanted)) && !active(Mutant::ControllerUnchecked)
        {
            return Err((AuthenticationError::Unproven, Failed::AUTHENTICATION));
        }
        Ok(HostStep::Done(Some(envelope(self.transaction, Message::Success2))))
    }
}

#[cfg(test)]
mod tests;
