//! Writing out what a write-back journal has cached; see
//! [`write_back`](crate::consistency::journal::write_back).

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
    sync::Arc,
};

use pinstripe_runtime::shard;

use crate::{
    consistency::journal::{Journal, cache::Key},
    controller::ArrayController,
    error::IoError,
    geometry::StripeId,
    io::{fan_out::FanOut, parity::ParityVolume},
    mutants::{Mutant, active},
    options::JournalMode,
    stripe::parity_cache::PAGE_BYTES,
};

/// What is cached is written out when nothing has come for so long.
const IDLE_NS: u64 = 1_000_000_000;
/// How long to wait before another look at stripes that are all claimed.
const CLAIMED_NS: u64 = 1_000_000;
/// Stripes that are written out at a time.
const DEPTH: usize = 16;

impl ArrayController {
    /// Writes out what is cached: when room or memory gets short, when nothing has come for a while, and all
    /// of it when the mode changes or the array isn't whole any more.
    pub(crate) async fn write_out_journal(self: Rc<Self>, volume: Rc<ParityVolume>, journal: Arc<Journal>) {
        let over = || self.stopped.get() || self.shared().has_failed();
        let is_whole = || self.shared().snapshot().can_write_back();
        let in_line = InLine::default();
        loop {
            journal.out.wait_until(|| over() || journal.has_work(is_whole())).await;
            let seen = journal.arrivals();
            let pressed = journal.out.wait_until(|| over() || journal.wants_write_out() || !is_whole());
            let idle = shard::timeout(IDLE_NS, pressed).await.is_none();
            if over() {
                journal.changed.notify();
                return;
            }
            if !is_whole() && journal.mode() == JournalMode::WriteBack {
                // As MD does: an array that isn't whole has no write-back journal.
                journal.set_mode(JournalMode::WriteThrough);
            }
            if idle && journal.arrivals() != seen {
                continue;
            }
            let round = write_out_round(&volume, &journal, &in_line).await;
            if journal.take_unflushed() && !active(Mutant::JournalLeftUnflushed) {
                // No log keeps it any more (C4).
                volume.flush_or_report(&volume.members.view()).await;
            }
            match round {
                Ok(Round { written: 0, claimed: 0 }) => {
                    // What there is can't be written out. A member may be back, or room get short.
                    let pinned = journal.out.wait_until(|| over() || !journal.pinning().is_empty());
                    shard::timeout(IDLE_NS, pinned).await;
                }
                Ok(Round { written: 0, .. }) => shard::sleep(CLAIMED_NS).await,
                Ok(_) => {}
                Err(_) => shard::sleep(IDLE_NS).await,
            }
        }
    }

    /// Before the array stops everything is to be on the members.
    pub(crate) async fn drain_journal(&self) {
        let Some(journal) = self.journal() else { return };
        journal.end_write_back();
        self.shared().drained(&journal).await;
    }
}

/// Stripes.
#[derive(Clone, Copy, Default)]
struct Round {
    written: usize,
    /// They were left out.
    claimed: usize,
}

/// Slots of the stripe table of which the claim is waited for.
type InLine = Rc<RefCell<BTreeSet<u64>>>;

/// Has a stripe that is claimed written out when the claim's turn comes, if that is urgent.
fn get_in_line(volume: &Rc<ParityVolume>, journal: &Arc<Journal>, key: Key, in_line: &InLine) {
    let is_new =
        journal.wants_write_out() && in_line.borrow().len() < DEPTH && in_line.borrow_mut().insert(key.slot);
    if !is_new {
        return;
    }
    let (volume, journal, in_line) = (Rc::clone(volume), Arc::clone(journal), Rc::clone(in_line));
    shard::spawn(async move {
        let stripe = StripeId(key.stripe);
        let claim = volume.claim_alone(stripe).await;
        // Where it fails, the next round says so.
        let _ = volume.write_out_claimed(stripe).await;
        drop(claim);
        in_line.borrow_mut().remove(&key.slot);
        journal.out.notify();
    });
}

/// Writes out some stripes, and logs anew what can't be and holds the log's beginning; says how many. An
/// error if one could not be written out.
///
/// A stripe that is claimed is left out: what has the claim writes it out itself, or ends without waiting for
/// room in the log. To wait for the claim would be to wait for room, if the stripe is written out by then and
/// its claim is that of a batch which waits. Room may have to come from the next round (C12). But readers may
/// hand a claim on to each other for ever, so a task that no round waits for gets in line.
async fn write_out_round(
    volume: &Rc<ParityVolume>,
    journal: &Arc<Journal>,
    in_line: &InLine,
) -> Result<Round, IoError> {
    let whole = volume.geometry.stripe_bytes() / PAGE_BYTES;
    let keys = journal.oldest(whole as usize, volume.shared.admission.generation());
    let stuck = journal.pinning();
    let next = keys.into_iter().map(|key| (key, false)).chain(stuck.into_iter().map(|key| (key, true)));
    let next = Rc::new(RefCell::new(next));
    let round = Rc::new(Cell::new(Round::default()));
    let all = FanOut::new();
    for _ in 0..DEPTH {
        let (volume, next, branch) = (Rc::clone(volume), Rc::clone(&next), all.branch());
        let (journal, round, in_line) = (Arc::clone(journal), Rc::clone(&round), Rc::clone(in_line));
        shard::spawn(async move {
            let mut answer = Ok(());
            loop {
                let Some((key, is_stuck)) = next.borrow_mut().next() else { break };
                let (stripe, stripes) = (StripeId(key.stripe), &volume.shared.stripes);
                let Round { written, claimed } = round.get();
                let Some(_claim) = stripes.try_claim(key.stripe) else {
                    round.set(Round { claimed: claimed + 1, written });
                    get_in_line(&volume, &journal, key, &in_line);
                    continue;
                };
                round.set(Round { written: written + 1, claimed });
                if is_stuck {
                    volume.log_again(&journal, stripe).await;
                } else {
                    match volume.write_out(stripe).await {
                        // That is noted of it.
                        Err(IoError::Unreadable { .. }) => {}
                        written => answer = answer.and(written),
                    }
                }
            }
            branch.finish(answer);
        });
    }
    all.wait().await.map(|()| round.get())
}
