//! Looks at the devices that calls name.
//!
//! A path may lie on a file system that doesn't answer any more. A look at it then keeps one of the few
//! threads for work that blocks, for as long as that lasts: nothing can end it. So a call waits for a while,
//! and few looks may be under way.

use std::{cell::RefCell, rc::Rc};

use pinstripe_control::CallError;
use pinstripe_runtime::shard;

use super::refusal::refused;

/// Time that a device has to show what it is. There are clients that wait 30 s for the answer.
const LOOK_NANOSECONDS: u64 = 20_000_000_000;
const LOOKS_MAX: usize = 4;

/// See the module. Lives on shard 0.
pub struct Looks {
    limit_ns: u64,
    /// The devices.
    under_way: RefCell<Vec<String>>,
}

impl Looks {
    pub fn new() -> Rc<Self> {
        Self::within(LOOK_NANOSECONDS)
    }

    fn within(limit_ns: u64) -> Rc<Self> {
        Rc::new(Self { limit_ns, under_way: RefCell::default() })
    }

    /// What a look at a device finds, which changes nothing. It goes on when it takes too long, and what it
    /// finds then is let go of.
    pub async fn at<T: 'static>(
        self: &Rc<Self>,
        device: &str,
        look: impl Future<Output = Result<T, CallError>> + 'static,
    ) -> Result<T, CallError> {
        self.refuse(device)?;
        self.under_way.borrow_mut().push(device.to_owned());
        let (looks, name) = (Rc::clone(self), device.to_owned());
        let looking = shard::spawn_joined(async move {
            let found = look.await;
            let mut under_way = looks.under_way.borrow_mut();
            if let Some(over) = under_way.iter().position(|other| *other == name) {
                under_way.remove(over);
            }
            found
        });
        let late = || Err(refused(&format!("{device} doesn't answer; nothing was done")));
        shard::timeout(self.limit_ns, looking.join()).await.unwrap_or_else(late)
    }

    /// A device that a thread still waits for.
    pub fn awaited(&self) -> Option<String> {
        self.under_way.borrow().first().cloned()
    }

    fn refuse(&self, device: &str) -> Result<(), CallError> {
        let under_way = self.under_way.borrow();
        if under_way.iter().any(|other| other == device) {
            let message = format!("{device} hasn't answered an earlier call yet; nothing was done");
            return Err(refused(&message));
        }
        if under_way.len() >= LOOKS_MAX {
            let message =
                format!("these devices haven't answered yet: {}; nothing was done", under_way.join(", "));
            return Err(refused(&message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pinstripe_runtime::{
        Signal,
        uring::{RuntimeConfig, run},
    };

    use super::*;

    #[test]
    fn devices_that_do_not_answer_keep_no_call_and_few_threads() {
        let wrong = |found: Result<u32, CallError>, words: &str| {
            let message = found.unwrap_err().message;
            assert!(message.contains(words), "{message}");
        };
        run(&RuntimeConfig::unpinned(1), move |_| async move {
            let looks = Looks::within(10_000_000);
            let answers = Rc::new((Signal::default(), std::cell::Cell::new(false)));
            let hangs = || {
                let answers = Rc::clone(&answers);
                async move {
                    answers.0.wait_until(|| answers.1.get()).await;
                    Ok(1)
                }
            };
            let answers_at_once = || std::future::ready(Ok(2));
            wrong(looks.at("/a", hangs()).await, "/a doesn't answer");
            wrong(looks.at("/a", answers_at_once()).await, "/a hasn't answered an earlier call yet");
            assert_eq!(looks.at("/b", answers_at_once()).await, Ok(2));
            for device in ["/c", "/d", "/e"] {
                wrong(looks.at(device, hangs()).await, "doesn't answer");
            }
            wrong(looks.at("/b", answers_at_once()).await, "haven't answered yet: /a, /c, /d, /e");
            assert_eq!(looks.awaited().as_deref(), Some("/a"));
            answers.1.set(true);
            answers.0.notify();
            shard::sleep(1_000_000).await;
            assert_eq!(looks.at("/a", answers_at_once()).await, Ok(2));
            assert_eq!(looks.awaited(), None);
        })
        .unwrap();
    }
}
