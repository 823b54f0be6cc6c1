//! Writing out what a write-back journal has cached; see
//! [`write_back`](crate::consistency::journal::write_back).

use std::{rc::Rc, sync::Arc};

use pinstripe_runtime::shard;

use crate::{
    consistency::journal::Journal,
    controller::ArrayController,
    geometry::StripeId,
    io::{fan_out::FanOut, parity::ParityVolume},
    options::JournalMode,
    stripe::parity_cache::PAGE_BYTES,
};

/// What is cached is written out when nothing has come for so long.
const IDLE_NS: u64 = 1_000_000_000;
/// Stripes that are written out at a time.
const DEPTH: usize = 16;

impl ArrayController {
    /// Writes out what is cached: when room or memory gets short, when nothing has come for a while, and all
    /// of it when the mode changes or the array isn't whole any more.
    pub(crate) async fn write_out_journal(self: Rc<Self>, volume: Rc<ParityVolume>, journal: Arc<Journal>) {
        let over = || self.stopped.get() || self.shared().has_failed();
        let is_whole = || self.shared().snapshot().is_complete();
        loop {
            journal.out.wait_until(|| over() || journal.has_work(is_whole())).await;
            let seen = journal.arrivals();
            let pressed = journal.out.wait_until(|| over() || journal.wants_write_out() || !is_whole());
            let idle = shard::timeout(IDLE_NS, pressed).await.is_none();
            if over() {
                journal.changed.notify();
                return;
            }
            if !is_whole() {
                // As MD does: an array that isn't whole has no write-back journal.
                journal.set_mode(JournalMode::WriteThrough);
            }
            if (!idle || journal.arrivals() == seen) && !write_out_round(&volume, &journal).await {
                shard::sleep(IDLE_NS).await;
            }
        }
    }

    /// Before the array stops everything is to be on the members.
    pub(crate) async fn drain_journal(&self) {
        let Some(journal) = self.journal() else { return };
        journal.set_mode(JournalMode::WriteThrough);
        self.shared().drained(&journal).await;
    }
}

/// Writes out some stripes. False if one could not be.
async fn write_out_round(volume: &Rc<ParityVolume>, journal: &Journal) -> bool {
    let whole = volume.geometry.stripe_bytes() / PAGE_BYTES;
    let keys = journal.oldest(whole as usize);
    let next = Rc::new(std::cell::RefCell::new(keys.into_iter()));
    let all = FanOut::new();
    for _ in 0..DEPTH {
        let (volume, next, branch) = (Rc::clone(volume), Rc::clone(&next), all.branch());
        shard::spawn(async move {
            let mut answer = Ok(());
            loop {
                let Some(key) = next.borrow_mut().next() else { break };
                let stripe = StripeId(key.stripe);
                let _claim = volume.claim_alone(stripe).await;
                answer = answer.and(volume.write_out(stripe).await);
            }
            branch.finish(answer);
        });
    }
    all.wait().await.is_ok()
}
