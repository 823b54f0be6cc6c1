//! Group commit: what has gathered in the queue goes into the log with one write, while the next gathers.

use std::{rc::Rc, sync::Arc};

use pinstripe_md::units::Sector;
use pinstripe_runtime::{DeviceError, Slice};

use super::{
    ENTRY_BLOCKS_MAX, Journal, Request, State,
    ring::{Page, meta_blocks_max},
};
use crate::{array::Home, consistency::Log};

/// Requests that go into the log together.
struct Taken {
    tickets: Vec<u64>,
    pages: Vec<Page>,
}

impl Home {
    /// The journal of this array, if it has one.
    pub(crate) fn journal(&self) -> Option<Arc<Journal>> {
        match &self.shared().snapshot().log {
            Log::Journal(journal) => Some(Arc::clone(journal)),
            Log::None | Log::Ppl(_) | Log::DoubleParity(_) => None,
        }
    }

    /// Writes the log for everybody who asks, one write at a time.
    pub(crate) async fn write_journal(self: Rc<Self>, journal: Arc<Journal>) {
        let over = || self.stopped.get() || journal.failure().is_some();
        loop {
            let taken =
                journal.wanted.wait_for(|| if over() { Some(None) } else { journal.take().map(Some) }).await;
            let Some(taken) = taken else { return };
            if let Err(error) = self.log(&journal, taken).await {
                self.lose_journal(&journal, error);
                return;
            }
        }
    }

    /// Logs what was taken; room for it is there.
    async fn log(&self, journal: &Journal, mut taken: Taken) -> Result<(), DeviceError> {
        let first = journal.state().head;
        let mut rest = &taken.pages[..];
        while !rest.is_empty() {
            let (place, bytes, pages) = journal.pack(rest)?;
            let device = self.journal_device()?;
            journal.ring.write(&device, place, &bytes).await?;
            journal.advance((bytes.len() / super::BLOCK_BYTES) as u64);
            rest = &rest[pages..];
        }
        taken.pages.clear();
        journal.logged(first, taken);
        Ok(())
    }
}

impl Journal {
    /// Takes as many requests from the front of the queue as one meta block may hold, at least one. Nothing if there is none, or
    /// no room for the first.
    fn take(&self) -> Option<Taken> {
        let mut state = self.state();
        let mut taken: Option<Taken> = None;
        let mut pages = 0;
        while let Some(request) = state.queue.front() {
            let together = pages + request.pages.len();
            let fits = together as u64 + meta_blocks_max(together) <= self.room(&state);
            if !fits || taken.is_some() && together as u64 >= ENTRY_BLOCKS_MAX {
                break;
            }
            pages = together;
            let Some(Request { ticket, pages: more }) = state.queue.pop_front() else { break };
            match &mut taken {
                None => taken = Some(Taken { tickets: vec![ticket], pages: more }),
                Some(taken) => {
                    taken.tickets.push(ticket);
                    let mut more = more;
                    taken.pages.append(&mut more);
                    state.spare.push(more);
                }
            }
        }
        let starved = taken.is_none() && !state.queue.is_empty();
        let begins = starved && !state.starved;
        state.starved = starved;
        drop(state);
        if begins {
            self.reclaim.notify();
        }
        taken
    }

    /// Blocks that may be written before the head would meet the tail.
    fn room(&self, state: &State) -> u64 {
        (self.ring.blocks() - state.used()).saturating_sub(1)
    }

    /// The next meta block with its pages, where it goes, and how many pages it took.
    fn pack(&self, pages: &[Page]) -> Result<(Sector, Slice, usize), DeviceError> {
        let state = self.state();
        let place = self.place(&state, state.head);
        let packed = self.ring.pack(pages, state.seq, place, self.room(&state));
        // There was room when the pages were taken, and nobody else writes.
        let (packed, taken) = packed.ok_or(DeviceError::of(pinstripe_runtime::DeviceErrorKind::Invalid))?;
        Ok((place, packed.bytes, taken))
    }

    /// A meta block with its pages, `blocks` in all, is durable.
    fn advance(&self, blocks: u64) {
        let mut state = self.state();
        state.last = state.head;
        state.head += blocks;
        state.seq = state.seq.wrapping_add(1);
    }

    /// All pages that were taken are durable, from position `first` on.
    fn logged(&self, first: u64, taken: Taken) {
        let mut state = self.state();
        for ticket in taken.tickets {
            state.held.insert(ticket, first);
        }
        state.spare.push(taken.pages);
        drop(state);
        self.changed.notify();
    }
}
