//! In-band authentication, DH-HMAC-CHAP: keys and the exchange of messages, without I/O. The sessions of both
//! ends run it.
//!
//! * [`Secret`]: a key as `nvme gen-dhchap-key` writes it.
//! * [`Keyring`]: the peers that this side knows and their secrets, read from a file.
//! * [`Authentication`]: a keyring and a source of random bytes: what a target or an initiator is given.
//! * [`TlsKey`], [`TlsKeyring`]: the same for keys of TLS, which the connection has before.
//! * [`exchange`]: the two ends of a transaction.
//! * `hash`, `group`: the functions that are agreed on.
//!
//! **What it proves.** That the peer holds the secret, at the time of the exchange, for this connection's two
//! names. The bytes after it are neither encrypted nor signed. The choice of hash and group isn't signed
//! either: an attacker between the ends can have the weakest pair chosen that both allow. So both ends refuse
//! what their keyring doesn't allow.

mod calculator;
pub mod exchange;
mod file;
mod group;
mod hash;
mod keyring;
mod random;
mod secret;
mod tls;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub use calculator::{Calculator, InTurn};
pub use exchange::{AuthenticationError, Names};
pub use file::KeyFileProblem;
pub use group::Group;
pub use hash::Hash;
pub use keyring::{Entry, KeyFileError, Keyring};
pub use random::{NoRandom, Random, SystemRandom};
pub use secret::{BadSecret, Secret};
pub use tls::{BadTlsKey, TlsKey, TlsKeyring, TlsPsk};

/// See the module.
pub struct Authentication {
    keys: RwLock<Keyring>,
    random: Box<dyn Random>,
    calculator: Box<dyn Calculator>,
    /// The last sequence number; 0 before the first.
    sequence: AtomicU32,
}

impl Authentication {
    /// With random bytes of the system and threads of their own for what is to be computed.
    #[cfg(target_os = "linux")]
    pub fn new(keys: Keyring) -> Self {
        Self::with(keys, Box::new(SystemRandom), Box::new(calculator::Threads))
    }

    /// With random bytes of `random`, for tests; computed on the shard.
    pub fn with_random(keys: Keyring, random: Box<dyn Random>) -> Self {
        Self::with(keys, random, Box::new(InTurn))
    }

    /// With random bytes of `random`, and computed where `calculator` says: for the simulator.
    pub fn with(keys: Keyring, random: Box<dyn Random>, calculator: Box<dyn Calculator>) -> Self {
        Self { keys: RwLock::new(keys), random, calculator, sequence: AtomicU32::new(0) }
    }

    /// Has `work` computed and waits for its value.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let value = Arc::new(Mutex::new(None));
        let there = Arc::clone(&value);
        let run = move || *there.lock().unwrap_or_else(PoisonError::into_inner) = Some(work());
        self.calculator.compute(Box::new(run)).await;
        value.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// What is known of a peer.
    pub fn peer(&self, nqn: &str) -> Option<Entry> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).find(nqn).cloned()
    }

    /// Has these keys count from now on, also for transactions under way; those that did until now.
    pub fn replace(&self, keys: Keyring) -> Keyring {
        std::mem::replace(&mut *self.keys.write().unwrap_or_else(PoisonError::into_inner), keys)
    }

    pub(crate) fn random(&self) -> &dyn Random {
        &*self.random
    }

    fn bytes<const N: usize>(&self) -> Result<[u8; N], NoRandom> {
        let mut bytes = [0; N];
        self.random.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// The next sequence number. They begin anywhere, grow by one, and are never 0, which stands for none.
    fn next_sequence(&self) -> Result<u32, NoRandom> {
        let start = u32::from_le_bytes(self.bytes()?);
        let next = |last: u32| if last == 0 { start.max(1) } else { last.wrapping_add(1).max(1) };
        let update =
            self.sequence.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        Ok(next(update.unwrap_or_else(|last| last)))
    }
}

impl std::fmt::Debug for Authentication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authentication").field("keys", &self.keys).finish_non_exhaustive()
    }
}

/// Bytes as tests write them.
#[cfg(test)]
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
