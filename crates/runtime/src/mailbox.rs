//! What reaches a shard from others: wakes and messages.
//!
//! A wake is one bit per task, so it never allocates, never overflows, and many wakes of one task are one. A summary
//! word per 64 words says where bits are. The shard sets `asleep` before it blocks and looks once more; a sender that
//! finds `asleep` set clears it and kicks the driver. Both sides use sequentially consistent operations, so one of
//! them sees the other and no wake is lost (model-checked in `tests/shuttle.rs`).

use std::{collections::VecDeque, sync::OnceLock};

use crate::atomics::{AtomicBool, AtomicU64, Mutex, Ordering};

/// Tasks that a shard can hold at a time.
pub const TASKS_MAX: usize = 1 << 16;
const WORDS: usize = TASKS_MAX / 64;
const SUMMARIES: usize = WORDS / 64;

/// Code that another shard wants to have run.
pub type Message = Box<dyn FnOnce() + Send>;

/// The shared end of a shard.
pub struct Mailbox {
    wakes: Box<[AtomicU64]>,
    summaries: [AtomicU64; SUMMARIES],
    messages: Mutex<VecDeque<Message>>,
    has_messages: AtomicBool,
    asleep: AtomicBool,
    kick: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self {
            wakes: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
            summaries: std::array::from_fn(|_| AtomicU64::new(0)),
            messages: Mutex::default(),
            has_messages: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            kick: OnceLock::new(),
        }
    }
}

impl Mailbox {
    /// How to wake the thread when it is blocked in the kernel. Set once, by the driver.
    pub fn set_kick(&self, kick: impl Fn() + Send + Sync + 'static) {
        // A driver that starts anew on a reused mailbox keeps the first kick; drivers make it indirect.
        let _ = self.kick.set(Box::new(kick));
    }

    /// Asks for task `index` to be polled.
    pub fn wake(&self, index: u32) {
        let (word, bit) = (index as usize / 64, index % 64);
        if self.wakes[word].fetch_or(1 << bit, Ordering::SeqCst) >> bit & 1 == 0 {
            self.summaries[word / 64].fetch_or(1 << (word % 64), Ordering::SeqCst);
            self.rouse();
        }
    }

    /// Has `message` run on the shard.
    pub fn send(&self, message: Message) {
        lock(&self.messages).push_back(message);
        self.has_messages.store(true, Ordering::SeqCst);
        self.rouse();
    }

    fn rouse(&self) {
        if self.asleep.load(Ordering::SeqCst)
            && self.asleep.swap(false, Ordering::SeqCst)
            && let Some(kick) = self.kick.get()
        {
            kick();
        }
    }

    /// Whether anything waits.
    pub fn has_mail(&self) -> bool {
        self.has_messages.load(Ordering::SeqCst)
            || self.summaries.iter().any(|s| s.load(Ordering::SeqCst) != 0)
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
        for (s, summary) in self.summaries.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut words = summary.swap(0, Ordering::SeqCst);
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
        let mut messages = lock(&self.messages);
        let message = messages.pop_front();
        if messages.is_empty() {
            self.has_messages.store(false, Ordering::SeqCst);
        }
        message
    }

    /// Empties it, for reuse by another shard.
    pub(crate) fn reset(&self) {
        self.take_wakes(|_| ());
        let left = std::mem::take(&mut *lock(&self.messages));
        self.has_messages.store(false, Ordering::SeqCst);
        self.wake_up();
        drop(left);
    }
}

/// A panic aborts the process (C12), so a poisoned lock can't be seen; in tests it is as good as a clean one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> crate::atomics::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
