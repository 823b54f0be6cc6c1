//! The stripe write with a journal that writes back; see
//! [`write_back`](crate::consistency::journal::write_back).

use std::{collections::BTreeSet, sync::Arc};

use pinstripe_md::units::{SECTOR_BYTES, Sector};
use pinstripe_runtime::{Slice, shard};

use super::{
    context::WriteContext,
    stripe_write::{Aborted, StripeWrite},
};
use crate::{
    consistency::{
        Log, Precedence,
        journal::{
            Journal,
            cache::Key,
            ring::{Page, PageAddress},
        },
        ragged_rows,
    },
    error::IoError,
    geometry::{MemberSlot, ParityGeometry, Set64, StripeId},
    io::{entry::Moved, parity::ParityVolume, row::Want},
    members::missed::Missed,
    membership::snapshot::View,
    mutants::{Mutant, active},
    shared::Answer,
    stripe::{
        image::{Image, Piece},
        parity_cache::PAGE_BYTES,
        table::Claim,
    },
    units::{to_u32, to_usize},
};

/// What became of a batch.
pub(super) enum Back {
    /// It was acknowledged from the journal, or has failed.
    Answered(Answer),
    /// It must be written through. Nothing is cached any more of its stripe, nor of any other that has the
    /// same claim, but for what can't be written out of others.
    Through {
        /// Something of its stripe can't be written out, and pages of that go with it. No other write may
        /// join: it could be of other such pages.
        is_alone: bool,
    },
}

/// The journal, if anything is cached or may be.
#[inline]
pub(super) fn caching_journal(view: &View) -> Option<&Arc<Journal>> {
    match &view.snapshot.log {
        Log::Journal(journal) if journal.caches() => Some(journal),
        _ => None,
    }
}

impl StripeWrite<'_> {
    /// Acknowledges a batch from the journal, or has it written through.
    pub(super) async fn write_back(
        &mut self,
        journal: &Arc<Journal>,
        claim: &mut Claim<'_, Piece, Answer>,
    ) -> Back {
        loop {
            match self.try_write_back(journal, claim).await {
                Ok(Some(generation)) => return Back::Answered(self.shared.durable(generation).await),
                // What can't be read to fill a page may be mended by a write that goes to the members.
                Ok(None) | Err(Aborted::Fatal(IoError::Unreadable { .. })) => break,
                Err(Aborted::Replan | Aborted::Unread) => {}
                Err(Aborted::Without(member)) => {
                    if let Err(error) = self.shared.dropped(member).await {
                        return Back::Answered(Err(error));
                    }
                }
                Err(Aborted::Fatal(error)) => return Back::Answered(Err(error)),
            }
        }
        let left = active(Mutant::CachedLeftBehind);
        let written = loop {
            match if left { Ok(()) } else { self.write_out_claimed(self.stripe).await } {
                // What is to be written without parity met another membership.
                Err(IoError::MembershipChanged) => {}
                written => break written,
            }
        };
        match written {
            Ok(()) => Back::Through { is_alone: false },
            Err(IoError::Unreadable { .. }) => {
                self.carry(journal);
                Back::Through { is_alone: true }
            }
            Err(error) => Back::Answered(Err(error)),
        }
    }

    /// Has a batch take along what is cached of the rows that it writes: with it there may be enough of them.
    fn carry(&mut self, journal: &Journal) {
        let chunk = self.geometry.chunk_bytes();
        let mut pages = journal.cached_stripe(self.cache_key(self.stripe));
        let image = &mut self.context.image;
        image.build_extents(chunk);
        let extents = image.extents();
        let is_written = |row: u32| extents.iter().any(|e| e.start < row + PAGE_BYTES && row < e.end());
        pages.retain(|(start, _)| is_written(start % chunk));
        for (start, page) in &pages {
            image.fill(*start, page);
        }
        self.context.carried = starts_of(&pages);
    }

    /// What a part of a batch has carried is on the members. It must leave the cache before the next part
    /// may wait for room, for then what is cached of the stripe is logged again, behind this part.
    pub(super) fn let_carried_go(&mut self) {
        let Some(journal) = self.caching_journal() else { return };
        let geometry = &self.volume.geometry;
        let WriteContext { image, carried, .. } = &mut *self.context;
        let is_written = |start: &mut u32| {
            let (column, row) = (geometry.column_of(*start).0, *start % geometry.chunk_bytes());
            image.find(column, row, row + PAGE_BYTES).is_some()
        };
        let written: Vec<u32> = carried.extract_if(.., is_written).collect();
        journal.written_out(self.cache_key(self.stripe), &written);
    }

    /// The generation under which the batch was logged; `None` if it can't be cached.
    async fn try_write_back(
        &mut self,
        journal: &Arc<Journal>,
        claim: &mut Claim<'_, Piece, Answer>,
    ) -> Result<Option<u64>, Aborted> {
        // Nothing is written to a member here, and the journal looks for itself whether the membership is
        // still the one.
        let volume = self.volume;
        let inside = volume.enter().await?;
        let view = inside.view();
        // The mode is the journal's own affair, which looks at it when it sets room aside.
        if !view.snapshot.can_write_back() {
            return Ok(None);
        }
        self.join(claim);
        let (geometry, key, stripe) = (&volume.geometry, volume.cache_key(self.stripe), self.stripe);
        let image = &mut self.context.image;
        fill_from_cache(journal, key, geometry.chunk_bytes(), image);
        volume.widen(view, stripe, image, Set64::EMPTY).await?;
        image.build_extents(geometry.chunk_bytes());
        let pages = pages_of(geometry, stripe, image);
        let logged = journal.log_data(&volume.log_view(view), key, pages).await?;
        Ok(logged.then(|| inside.generation()))
    }
}

impl ParityVolume {
    /// See [`caching_journal`].
    pub(crate) fn caching_journal(&self) -> Option<Arc<Journal>> {
        self.members.ask(|view| caching_journal(view).map(Arc::clone))
    }

    pub(crate) fn cache_key(&self, stripe: StripeId) -> Key {
        Key { slot: self.shared.stripes.bucket_number(stripe.0), stripe: stripe.0 }
    }

    /// Writes out what is cached of a stripe, and of any other that has the same claim. The caller holds it.
    /// What can't be written out of another stripe is no error of this one.
    pub(crate) async fn write_out_claimed(&self, stripe: StripeId) -> Answer {
        let Some(journal) = self.caching_journal() else { return Ok(()) };
        let mut answer = Ok(());
        for key in journal.cached_in_slot(self.cache_key(stripe).slot) {
            let generation = self.shared.admission.generation();
            let written = if journal.is_stuck_under(key, generation) {
                Err(IoError::Unreadable { stripe: key.stripe, missing: 1 })
            } else {
                self.write_out(StripeId(key.stripe)).await
            };
            match written {
                Err(IoError::Unreadable { .. }) if key.stripe != stripe.0 => {}
                _ => answer = answer.and(written),
            }
        }
        self.log_stuck_again(&journal, stripe).await;
        answer
    }

    /// Logs what can't be written out of the stripes with this one's claim once more, so that the log's
    /// beginning needn't be kept for it. Else a batch with the claim could wait for room for ever (C12). The
    /// caller holds the claim.
    pub(super) async fn log_stuck_again(&self, journal: &Arc<Journal>, stripe: StripeId) {
        for key in journal.pinning_in_slot(self.cache_key(stripe).slot) {
            self.log_again(journal, StripeId(key.stripe)).await;
        }
    }

    /// Logs what is cached of a stripe once more. If that fails, the array has failed, the journal is lost,
    /// or the next round does it. The caller holds the claim.
    pub(crate) async fn log_again(&self, journal: &Arc<Journal>, stripe: StripeId) {
        let key = self.cache_key(stripe);
        let page = |(start, bytes)| {
            let place = PageAddress::Data(Sector(self.geometry.array_offset(stripe, start) / SECTOR_BYTES));
            Page { place, bytes, ends_row: true }
        };
        let pages: Vec<_> = journal.cached_stripe(key).into_iter().map(page).collect();
        if pages.is_empty() {
            return;
        }
        let view = self.members.view();
        let _ = journal.log_again(&self.log_view(&view), key, pages).await;
    }

    /// Writes what is cached of a stripe to the members. The caller holds the claim.
    pub(crate) async fn write_out(&self, stripe: StripeId) -> Answer {
        let Some(journal) = self.caching_journal() else { return Ok(()) };
        let key = self.cache_key(stripe);
        let pages = journal.cached_stripe(key);
        if pages.is_empty() {
            return Ok(());
        }
        let generation = self.shared.admission.generation();
        let (at, chunk) = (self.geometry.member_offset(stripe), u64::from(self.geometry.chunk_bytes()));
        let view = self.members.view();
        // Beside listed blocks it would go in parts anyway, of which some may be logged in vain.
        if view.snapshot.with_bad_blocks.iter().all(|slot| !view.snapshot.is_bad(slot, at, chunk)) {
            let answer = self.write_claimed(stripe, pages.iter().cloned(), true).await;
            if answer.is_ok() {
                journal.written_out(key, &starts_of(&pages));
            }
            if !matches!(answer, Err(IoError::Unreadable { .. })) {
                return answer;
            }
        }
        let answer = self.write_out_rows(&journal, stripe, pages).await;
        if let Err(IoError::Unreadable { .. }) = answer {
            journal.not_written_out(key, generation);
            // It has taken the room that was set aside for it, all behind its own place in the log. Only from
            // a later place is that room to be had again, and the log's beginning may be this one (C12).
            self.log_again(&journal, stripe).await;
        }
        answer
    }

    /// Writes what is cached of a stripe to the members row by row, where too much of some rows can't be read
    /// for parity to be computed. What was acknowledged has to have a place all the same. So the parity of
    /// such rows is listed as bad, and their pages are written without.
    async fn write_out_rows(
        &self,
        journal: &Journal,
        stripe: StripeId,
        mut pages: Vec<(u32, Slice)>,
    ) -> Answer {
        let (key, chunk) = (self.cache_key(stripe), self.geometry.chunk_bytes());
        let rows: BTreeSet<u32> = pages.iter().map(|(start, _)| start % chunk).collect();
        let mut all = Ok(());
        for row in rows {
            let pages: Vec<_> = pages.extract_if(.., |(start, _)| *start % chunk == row).collect();
            let starts = starts_of(&pages);
            let mut answer = self.write_claimed(stripe, pages.iter().cloned(), true).await;
            let is_unreadable = matches!(answer, Err(IoError::Unreadable { .. }));
            if is_unreadable && self.is_unmakeable(stripe, row, &pages).await {
                answer = self.write_bare(stripe, row, pages).await;
            }
            if answer.is_ok() {
                journal.written_out(key, &starts);
            }
            all = all.and(answer);
        }
        all
    }

    /// Whether parity of a row can't be computed of these pages and what the members hold besides, and won't
    /// be when a member is back: all are there.
    async fn is_unmakeable(&self, stripe: StripeId, row: u32, pages: &[(u32, Slice)]) -> bool {
        let (view, geometry) = (self.members.view(), &self.geometry);
        if !view.snapshot.is_complete() {
            return false;
        }
        let map = geometry.slots(stripe);
        let written: Set64 = pages.iter().map(|(start, _)| geometry.column_of(*start).0).collect();
        let want = Want {
            columns: Set64::below(map.columns()).without(written),
            parity: false,
            avoid: Set64::EMPTY,
        };
        let mut held = self.rows.take();
        let read = self.read_row_in_blocks(&view, stripe, (row, row + PAGE_BYTES), want, &mut held).await;
        held.clear(0);
        self.rows.give(held);
        matches!(read, Err(IoError::Unreadable { .. }))
            && self.is_row_lost(&view, stripe, row)
            && !self.shared.has_failures()
    }

    /// Has the parity of a row listed as bad, durably: what is written to the row next, it doesn't cover.
    /// False if a member can't list it, or is being replaced. Under the stripe's claim.
    pub(crate) async fn list_parity(&self, stripe: StripeId, row: u32) -> bool {
        let view = self.members.view();
        let slots = || self.geometry.slots(stripe).parity_slots().map(MemberSlot::index);
        let rows = (self.geometry.member_offset(stripe) + u64::from(row), u64::from(PAGE_BYTES));
        let may_list =
            |slot| self.has_room_in_list(&view, slot, rows) && view.replacement_place(slot).is_none();
        if !slots().all(may_list) {
            return false;
        }
        self.shared.cache.remove_rows(stripe.0, row, row + PAGE_BYTES);
        let list = |slot| Some((slot, self.list_if_room(&view, slot, rows)?));
        let listings: Vec<_> = slots().filter_map(list).collect();
        let mut all = true;
        for (slot, listing) in listings {
            all &= self.recorded(&view, slot, &[listing]).await;
        }
        all
    }

    /// Writes pages of a row after its parity is listed as bad.
    async fn write_bare(&self, stripe: StripeId, row: u32, pages: Vec<(u32, Slice)>) -> Answer {
        if !self.list_parity(stripe, row).await {
            return Err(IoError::Unreadable { stripe: stripe.0, missing: 1 });
        }
        let geometry = &self.geometry;
        let map = geometry.slots(stripe);
        let offset = geometry.member_offset(stripe) + u64::from(row);
        let mut missed = Missed::default();
        let generation = {
            let inside = self.enter().await?;
            let marked = inside.mark(stripe, (offset, PAGE_BYTES.into()));
            // The next round sees what the membership is then.
            let moved = |Moved| IoError::MembershipChanged;
            let intended = marked.durable(Mutant::DataBeforeIntent).await.map_err(moved)?;
            let writing = inside.begin(intended, None).await.map_err(moved)?;
            let view = writing.view();
            let is_there =
                |start: &u32| view.member(map.data_slot(geometry.column_of(*start).0).index()).is_some();
            if !view.snapshot.is_bare(map, offset, PAGE_BYTES.into())
                || !pages.iter().all(|(start, _)| is_there(start))
            {
                return Err(IoError::MembershipChanged);
            }
            for (start, bytes) in &pages {
                let slot = map.data_slot(geometry.column_of(*start).0);
                for place in view.places(slot.index()) {
                    self.write_noted(view, place, offset, (bytes, false), &mut missed).await?;
                }
            }
            inside.generation()
        };
        // Outside of the membership, which what is waited for may change.
        let drops = missed.drops();
        if !self.settle_missed(stripe, &mut missed).await? || drops {
            return Err(IoError::MembershipChanged);
        }
        let parts = pages.iter().map(|(start, _)| (geometry.column_of(*start).0, row, row + PAGE_BYTES));
        self.taken_off_lists(stripe, parts).await?;
        self.shared.durable(generation).await
    }

    /// Writes data of a stripe, by where it begins there, to the members as a user's is: through the log,
    /// with its parity. The caller holds the claim. `written_out` if it was cached.
    pub(crate) async fn write_claimed(
        &self,
        stripe: StripeId,
        data: impl IntoIterator<Item = (u32, Slice)>,
        written_out: bool,
    ) -> Answer {
        let mut context = self.write_contexts.take();
        if written_out {
            context.precedence = Precedence::WrittenOut;
        }
        for (start, data) in data {
            context.image.add(Piece { start, data, fua: false });
        }
        let answer = Box::pin(self.stripe_write(stripe, &mut context).write_through(None)).await;
        self.note_if_torn(stripe, answer.is_err());
        context.end();
        self.write_contexts.give(context);
        answer
    }

    /// What is cached of a range of the array: where it begins in the range, and its bytes. `None` where
    /// nothing can be.
    pub(crate) fn cached(&self, offset: u64, length: u64) -> Option<Vec<(usize, Slice)>> {
        let journal = self.caching_journal().filter(|_| !active(Mutant::CacheNotRead))?;
        let mut found = Vec::new();
        for part in self.geometry.stripe_pieces(offset, length).ok()? {
            let (from, to) = (part.start, part.start + part.length);
            for (start, bytes) in journal.cached_range(self.cache_key(part.stripe), from, to) {
                let (begin, end) = (start.max(from), (start + PAGE_BYTES).min(to));
                let bytes = bytes.slice((begin - start) as usize, (end - begin) as usize);
                let at = part.request_offset + u64::from(begin - from);
                found.push((to_usize(at), bytes));
            }
        }
        Some(found)
    }
}

fn starts_of(pages: &[(u32, Slice)]) -> Vec<u32> {
    pages.iter().map(|(start, _)| *start).collect()
}

/// What a batch leaves alone of a page that is cached comes from there.
fn fill_from_cache(journal: &Journal, key: Key, chunk: u32, image: &mut Image) {
    image.build_extents(chunk);
    let ragged: Vec<_> = ragged_rows(image.extents()).collect();
    for (column, from) in ragged {
        let start = to_u32(column) * chunk + from;
        if let Some(page) = journal.cached_page(key, start) {
            image.fill(start, &page);
        }
    }
}

/// The pages of an image that covers whole ones, each with its place in the stripe's data. The bytes are
/// copies: what a user's buffer holds would be kept as long as its smallest part.
fn pages_of(geometry: &ParityGeometry, stripe: StripeId, image: &Image) -> Vec<(u32, Page)> {
    let mut pages = Vec::new();
    for extent in image.extents() {
        for from in (extent.start..extent.end()).step_by(PAGE_BYTES as usize) {
            let start = to_u32(extent.column) * geometry.chunk_bytes() + from;
            let place = PageAddress::Data(Sector(geometry.array_offset(stripe, start) / SECTOR_BYTES));
            let mut bytes = shard::buffer(PAGE_BYTES as usize);
            bytes.copy_from_slice(extent.range(from, from + PAGE_BYTES));
            pages.push((start, Page { place, bytes: bytes.freeze(), ends_row: true }));
        }
    }
    pages
}
