//! The stripe write with a journal that writes back; see
//! [`write_back`](crate::consistency::journal::write_back).

use std::sync::Arc;

use pinstripe_md::units::{SECTOR_BYTES, Sector};
use pinstripe_runtime::{Slice, shard};

use super::Aborted;
use crate::{
    consistency::{
        Log,
        journal::{
            Journal,
            cache::Key,
            ring::{Page, PageAddress},
        },
        ragged_rows,
    },
    error::IoError,
    geometry::{ParityGeometry, StripeId},
    io::{parity::ParityVolume, write::context::WriteContext},
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

/// The journal, if anything is cached or may be.
#[inline]
pub(super) fn caching_journal(view: &View) -> Option<&Arc<Journal>> {
    match &view.snapshot.log {
        Log::Journal(journal) if journal.caches() => Some(journal),
        _ => None,
    }
}

impl ParityVolume {
    /// See [`caching_journal`].
    pub(crate) fn caching_journal(&self) -> Option<Arc<Journal>> {
        self.members.ask(|view| caching_journal(view).map(Arc::clone))
    }

    fn cache_key(&self, stripe: StripeId) -> Key {
        Key { slot: self.shared.stripes.bucket_number(stripe.0), stripe: stripe.0 }
    }

    /// Acknowledges a batch from the journal. `None` if it must be written through; then nothing is cached
    /// any more of its stripe, nor of any other that has the same claim.
    pub(super) async fn write_back(
        &self,
        journal: &Arc<Journal>,
        stripe: StripeId,
        claim: &mut Claim<'_, Piece, Answer>,
        context: &mut WriteContext,
    ) -> Option<Answer> {
        loop {
            match self.try_write_back(journal, stripe, claim, context).await {
                Ok(Some(generation)) => return Some(self.shared.durable(generation).await),
                // What can't be read to fill a page may be mended by a write that goes to the members.
                Ok(None) | Err(Aborted::Fatal(IoError::Unreadable { .. })) => break,
                Err(Aborted::Replan) => {}
                Err(Aborted::Without(member)) => {
                    if let Err(error) = self.shared.dropped(member).await {
                        return Some(Err(error));
                    }
                }
                Err(Aborted::Fatal(error)) => return Some(Err(error)),
            }
        }
        if active(Mutant::CachedLeftBehind) {
            None
        } else {
            self.write_out_claimed(stripe).await.err().map(Err)
        }
    }

    /// The generation under which the batch was logged; `None` if it can't be cached.
    async fn try_write_back(
        &self,
        journal: &Arc<Journal>,
        stripe: StripeId,
        claim: &mut Claim<'_, Piece, Answer>,
        context: &mut WriteContext,
    ) -> Result<Option<u64>, Aborted> {
        // Nothing is written to a member here, and the journal looks for itself whether the membership is
        // still the one.
        let inside = self.enter().await?;
        let view = inside.view();
        // The mode is the journal's own affair, which looks at it when it sets room aside.
        if !view.snapshot.is_complete() {
            return Ok(None);
        }
        self.join(claim, context);
        let (geometry, key) = (&self.geometry, self.cache_key(stripe));
        fill_from_cache(journal, key, geometry.chunk_bytes(), &mut context.image);
        self.widen(view, stripe, &mut context.image).await?;
        context.image.build_extents(geometry.chunk_bytes());
        let pages = pages_of(geometry, stripe, &context.image);
        let logged = journal.log_data(&self.log_view(view), key, pages).await?;
        Ok(logged.then(|| inside.generation()))
    }

    /// Writes out what is cached of a stripe, and of any other that has the same claim. The caller holds it.
    pub(crate) async fn write_out_claimed(&self, stripe: StripeId) -> Answer {
        let Some(journal) = self.caching_journal() else { return Ok(()) };
        for key in journal.cached_in_slot(self.cache_key(stripe).slot) {
            self.write_out(StripeId(key.stripe)).await?;
        }
        Ok(())
    }

    /// Writes what is cached of a stripe to the members. The caller holds the claim.
    pub(crate) async fn write_out(&self, stripe: StripeId) -> Answer {
        let Some(journal) = self.caching_journal() else { return Ok(()) };
        let key = self.cache_key(stripe);
        let pages = journal.cached_stripe(key);
        if pages.is_empty() {
            return Ok(());
        }
        let answer = self.write_claimed(stripe, pages, true).await;
        match &answer {
            Ok(()) => journal.written_out(key),
            Err(_) => journal.not_written_out(key),
        }
        answer
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
        context.is_written_out = written_out;
        for (start, data) in data {
            context.image.add(Piece { start, data, fua: false });
        }
        let answer = Box::pin(self.write_members_until_done(stripe, None, &mut context)).await;
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
