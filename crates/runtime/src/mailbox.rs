//! What reaches a shard from others: wakes and messages.
//!
//! A wake is one bit per task, so it never allocates, never overflows, and many wakes of one task are one. A
//! summary word per 64 words says where bits are, and one word in which summaries. A wake sets its bits in
//! this order; the shard clears the upper ones first when it takes them. The shard sets `asleep` before it
//! blocks and looks once more; a sender that finds `asleep` set clears it and kicks the driver. Both sides
//! use sequentially consistent operations, so one of them sees the other and no wake is lost (model-checked
//! in `pinstripe-models`).

use std::collections::VecDeque;

use crate::atomics::{AtomicBool, AtomicU64, Mutex, Ordering};

/// Tasks that a shard can hold at a time: several times what clients can start. 256 connections of 128
/// requests over NBD are 2^15, as many over NVMe are as many, and the stripes of long writes are limited by
/// the engine.
pub const TASKS_MAX: usize = 1 << 18;
const WORDS: usize = TASKS_MAX / 64;
const SUMMARIES: usize = WORDS / 64;
const _: () = assert!(SUMMARIES <= 64);

/// Code that another shard wants to have run.
pub type Message = Box<dyn FnOnce() + Send>;

/// The shared end of a shard.
pub struct Mailbox {
    wakes: Box<[AtomicU64]>,
    summaries: [AtomicU64; SUMMARIES],
    /// A bit for each summary.
    top: AtomicU64,
    inbox: Mutex<VecDeque<Message>>,
    /// Which of the shards that use this mailbox in turn is its owner now. Changed under the lock of the
    /// messages.
    generation: AtomicU64,
    has_messages: AtomicBool,
    asleep: AtomicBool,
    kick: Mutex<Option<Kick>>,
}

/// Wakes the thread of a shard when it is blocked in the kernel.
type Kick = Box<dyn Fn() + Send + Sync>;

impl Default for Mailbox {
    fn default() -> Self {
        Self {
            wakes: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            summaries: std::array::from_fn(|_| AtomicU64::new(0)),
            top: AtomicU64::new(0),
            inbox: Mutex::default(),
            generation: AtomicU64::new(0),
            has_messages: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            kick: Mutex::default(),
        }
    }
}

impl Mailbox {
    /// How to wake the thread when it is blocked in the kernel. The driver sets it; it goes with the shard.
    /// It must not block and must not come back to this mailbox.
    pub fn set_kick(&self, kick: impl Fn() + Send + Sync + 'static) {
        *lock(&self.kick) = Some(Box::new(kick));
    }

    /// Asks for task `index` to be polled.
    pub fn wake(&self, index: u32) {
        let (word, bit) = (index as usize / 64, index % 64);
        if self.wakes[word].fetch_or(1 << bit, Ordering::SeqCst) >> bit & 1 == 0 {
            self.summaries[word / 64].fetch_or(1 << (word % 64), Ordering::SeqCst);
            self.top.fetch_or(1 << (word / 64), Ordering::SeqCst);
            self.rouse();
        }
    }

    /// Has `message` run on the shard that owns the mailbox now.
    pub fn send(&self, message: Message) {
        let _ = self.post(None, message);
    }

    /// Has `message` run, unless the shard of `generation` is gone. A mailbox serves many shards in turn: a
    /// message for a dead one must not run on its successor. Returns false, and drops the message, if it is
    /// gone.
    pub fn send_to(&self, generation: u64, message: Message) -> bool {
        self.post(Some(generation), message).is_ok()
    }

    /// The message comes back if it is for a shard that is gone, so that it is dropped outside of the lock.
    fn post(&self, generation: Option<u64>, message: Message) -> Result<(), Message> {
        {
            let mut inbox = lock(&self.inbox);
            if generation.is_some_and(|generation| generation != self.generation()) {
                return Err(message);
            }
            inbox.push_back(message);
            self.has_messages.store(true, Ordering::SeqCst);
        }
        self.rouse();
        Ok(())
    }

    /// Names the shard that owns the mailbox now, for [`Mailbox::send_to`] and for wakers.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn rouse(&self) {
        if self.asleep.load(Ordering::SeqCst)
            && self.asleep.swap(false, Ordering::SeqCst)
            && let Some(kick) = &*lock(&self.kick)
        {
            kick();
        }
    }

    /// Whether anything waits.
    pub fn has_mail(&self) -> bool {
        self.has_messages.load(Ordering::SeqCst) || self.top.load(Ordering::SeqCst) != 0
    }

    /// Announces that the shard is about to block. It must not if this returns false: mail has come.
    pub fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.has_mail() {
            self.asleep.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// The shard runs again.
    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Takes every wake, in ascending order of tasks.
    pub fn take_wakes(&self, mut each: impl FnMut(u32)) {
        if self.top.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut summaries = self.top.swap(0, Ordering::SeqCst);
        while summaries != 0 {
            let s = summaries.trailing_zeros() as usize;
            summaries &= summaries - 1;
            let mut words = self.summaries[s].swap(0, Ordering::SeqCst);
            while words != 0 {
                let word = s * 64 + words.trailing_zeros() as usize;
                words &= words - 1;
                let mut bits = self.wakes[word].swap(0, Ordering::SeqCst);
                while bits != 0 {
                    #[expect(clippy::cast_possible_truncation, reason = "below TASKS_MAX")]
                    each((word * 64) as u32 + bits.trailing_zeros());
                    bits &= bits - 1;
                }
            }
        }
    }

    /// Takes the oldest message.
    pub fn take_message(&self) -> Option<Message> {
        if !self.has_messages.load(Ordering::SeqCst) {
            return None;
        }
        let mut inbox = lock(&self.inbox);
        let message = inbox.pop_front();
        if inbox.is_empty() {
            self.has_messages.store(false, Ordering::SeqCst);
        }
        message
    }

    /// Empties it, for reuse by another shard. Wakers of the one before know that they are not its: but for
    /// one that is just being used, which reaches the next owner as a spurious wake.
    pub(crate) fn reset(&self) {
        drop(lock(&self.kick).take());
        let left = {
            let mut inbox = lock(&self.inbox);
            self.generation.fetch_add(1, Ordering::SeqCst);
            self.has_messages.store(false, Ordering::SeqCst);
            std::mem::take(&mut *inbox)
        };
        self.take_wakes(|_| ());
        self.wake_up();
        drop(left);
    }
}

/// A panic aborts the process (C12), so a poisoned lock can't be seen; in tests it is as good as a clean one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> crate::atomics::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
