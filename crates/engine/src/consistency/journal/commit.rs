//! Group commit: what has gathered in the queue goes into the log with one write, while the next gathers.

use std::{collections::VecDeque, rc::Rc};

use pinstripe_md::units::Sector;
use pinstripe_runtime::{Device, DeviceError, Slice};

use super::{
    GROUP_PAGES_MAX, Journal, JournalState, Request,
    ring::{Page, blocks_max},
};

/// Requests that go into the log together.
pub(crate) struct Taken {
    tickets: Vec<u64>,
    pages: Vec<Page>,
}

impl Journal {
    /// Logs what was taken; room for it is there.
    pub(crate) async fn log(
        &self,
        device: impl Fn() -> Result<Rc<dyn Device>, DeviceError>,
        mut taken: Taken,
    ) -> Result<(), DeviceError> {
        self.begin();
        let mut rest = &taken.pages[..];
        while !rest.is_empty() {
            let (place, bytes, pages) = self.pack(rest)?;
            self.ring.write(&device()?, place, &bytes).await?;
            self.advance((bytes.len() / super::BLOCK_BYTES) as u64);
            rest = &rest[pages..];
        }
        taken.pages.clear();
        self.logged(taken);
        Ok(())
    }

    /// Takes as many requests from the front of a queue as one meta block may hold, at least one: of the
    /// urgent ones first, and of the others in turn. Nothing if there is none, or no room for the first.
    pub(crate) fn take(&self) -> Option<Taken> {
        let mut state = self.state();
        let together_max = GROUP_PAGES_MAX.min(self.ring.blocks() / 4);
        let room = self.room(&state);
        // Room that is set aside is for the urgent ones only.
        let others = room.saturating_sub(state.cache.reserved() + state.promised);
        let JournalState { queue, urgent, spare, others_turn, .. } = &mut *state;
        let mut taken = None;
        if std::mem::take(others_turn) {
            taken = take_from(queue, spare, others, together_max);
        }
        if taken.is_none() {
            taken = take_from(urgent, spare, room, together_max);
            // Many that are urgent don't keep the others waiting for ever.
            *others_turn = taken.is_some();
        }
        if taken.is_none() {
            taken = take_from(queue, spare, others, together_max);
        }
        state.appending = taken.as_ref().map_or(0, |t| blocks_max(t.pages.len()));
        let starved = taken.is_none() && !(state.queue.is_empty() && state.urgent.is_empty());
        let begins = starved && !state.starved;
        state.starved = starved;
        drop(state);
        if begins {
            self.reclaim.notify();
            self.wake_pinned();
        }
        taken
    }

    /// Blocks that may be written before the head would meet the tail.
    fn room(&self, state: &JournalState) -> u64 {
        (self.ring.blocks() - state.used()).saturating_sub(1)
    }

    /// The next meta block with its pages, where it goes, and how many pages it took.
    fn pack(&self, pages: &[Page]) -> Result<(Sector, Slice, usize), DeviceError> {
        let state = self.state();
        let place = self.place(&state, state.head);
        let packed = self.ring.pack(pages, state.seq, place, self.room(&state));
        // There was room when the pages were taken, and no other task writes the log.
        let (packed, taken) = packed.ok_or(DeviceError::of(pinstripe_runtime::DeviceErrorKind::Invalid))?;
        Ok((place, packed.bytes, taken))
    }

    /// From the head on the log is needed, until [`logged`](Self::logged) knows for which batches: a group
    /// may be more meta blocks than one.
    fn begin(&self) {
        let mut state = self.state();
        state.logging = Some(state.head);
    }

    /// A meta block with its pages, `blocks` in all, is durable.
    fn advance(&self, blocks: u64) {
        let mut state = self.state();
        state.last = state.head;
        state.head += blocks;
        assert!(state.used() <= self.ring.blocks(), "C4: the log has overwritten what it holds");
        state.seq = state.seq.wrapping_add(1);
    }

    /// All pages that were taken are durable.
    fn logged(&self, taken: Taken) {
        let mut state = self.state();
        state.appending = 0;
        if let Some(first) = state.logging.take() {
            state.held.extend(taken.tickets.into_iter().map(|ticket| (ticket, first)));
        }
        state.spare.push(taken.pages);
        drop(state);
        self.changed.notify();
    }
}

fn take_from(
    queue: &mut VecDeque<Request>,
    spare: &mut Vec<Vec<Page>>,
    room: u64,
    together_max: u64,
) -> Option<Taken> {
    let mut taken: Option<Taken> = None;
    let mut pages = 0;
    while let Some(request) = queue.front() {
        let together = pages + request.pages.len();
        let fits = blocks_max(together) <= room;
        if !fits || taken.is_some() && together as u64 >= together_max {
            break;
        }
        pages = together;
        let Some(Request { ticket, pages: more }) = queue.pop_front() else { break };
        match &mut taken {
            None => taken = Some(Taken { tickets: vec![ticket], pages: more }),
            Some(taken) => {
                taken.tickets.push(ticket);
                let mut more = more;
                taken.pages.append(&mut more);
                spare.push(more);
            }
        }
    }
    taken
}
