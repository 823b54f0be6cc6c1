//! The one way to the members (C27): whatever changes stripes for a user enters under a membership here.
//!
//! ```text
//!   enter ─> Inside ─────> mark ─> Marked ─────> durable ─> Intended ─────> begin ─> Writing
//!            pass and view         intent is     C7         a promise       C1       the members may be written
//!            of one generation     asked for                of intent
//! ```
//!
//! Between entering and the first write the membership may become another: a thread can be taken off its CPU
//! for as long as it takes to drop a member and to take it back. So [`Inside::begin`] looks at the generation
//! once more, behind the intent, and whether the array has failed. Each step gives what the next one takes,
//! and the functions that write to members take a [`Writing`]: none of the steps can be left out.
//!
//! The look is one half. A change of the membership is the other: it is published first, and what then relies
//! on it (a recovery that reads intent bits) waits until every [`Inside`] of the membership before is gone.
//! So either the bit was there to be read, or the look sees the change. What waits for its intent gives way
//! to a change, which waits for it.

use std::{pin::pin, rc::Rc};

use futures_util::future::{Either, select};
use pinstripe_runtime::shard;

use crate::{
    error::IoError,
    geometry::StripeId,
    intent::{IntentTable, Mark},
    io::parity::ParityVolume,
    membership::{admission::Pass, snapshot::View},
    mutants::{Mutant, active},
    shared::Shared,
};

/// The membership has changed since it was entered under, or the array has failed: what was planned is to be
/// planned anew.
pub(crate) struct Moved;

/// The right to change stripes under a membership, and that membership.
pub(crate) struct Inside<'a> {
    shared: &'a Shared,
    pass: Pass<'a>,
    view: Rc<View>,
}

/// Intent that was asked for.
#[must_use = "nothing may be written before it is durable"]
pub(crate) struct Marked<'i> {
    inside: &'i Inside<'i>,
    table: &'i IntentTable,
    mark: Mark<'i>,
    is_durable: bool,
}

/// Intent that is durable, and stays while this lives.
#[must_use = "the bit may be cleared when this is dropped"]
pub(crate) struct Intended<'i>(#[expect(dead_code, reason = "it is kept to be dropped")] Mark<'i>);

/// The key to the members.
#[must_use = "the bits may be cleared when this is dropped"]
pub(crate) struct Writing<'i> {
    view: &'i View,
    #[expect(dead_code, reason = "it is kept to be dropped")]
    intended: (Intended<'i>, Option<Intended<'i>>),
}

impl ParityVolume {
    /// Waits until stripes may be changed.
    pub(crate) async fn enter(&self) -> Result<Inside<'_>, IoError> {
        let shared = &*self.shared;
        loop {
            let pass = shared.admission.enter(self.shard, &shared.controller_wake).await;
            let pass = pass.map_err(|_| shared.refusal())?;
            let view = self.members.view();
            if view.snapshot.generation == pass.generation() {
                shard::interruption().await;
                return Ok(Inside { shared, pass, view });
            }
        }
    }
}

impl Inside<'_> {
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    pub(crate) fn generation(&self) -> u64 {
        self.pass.generation()
    }

    /// Whether the membership is another by now.
    pub(crate) fn has_moved(&self) -> bool {
        self.shared.admission.generation() != self.generation()
    }

    /// Whether nothing may be begun any more: that, or the array has failed. It may be for want of intent.
    fn is_over(&self) -> bool {
        let looks = !active(Mutant::LookLeftOut) && !active(Mutant::EarlierMembershipTrusted);
        looks && self.shared.has_moved(self.generation())
    }

    /// Counts a change of `length` member bytes from `offset`, and asks for the bits that it needs.
    pub(crate) fn mark(&self, stripe: StripeId, (offset, length): (u64, u64)) -> Marked<'_> {
        let table = &*self.view.snapshot.intent;
        let mark = table.mark_rows(table.regions(offset, length), self.pass.shard(), stripe.0, length);
        let is_durable = table.is_durable(&mark);
        Marked { inside: self, table, mark, is_durable }
    }

    /// The look before the first write. `late` is the intent of what joined.
    pub(crate) async fn begin<'i>(
        &'i self,
        intended: Intended<'i>,
        late: Option<Intended<'i>>,
    ) -> Result<Writing<'i>, Moved> {
        if self.is_over() {
            return Err(Moved);
        }
        shard::interruption().await;
        Ok(Writing { view: &self.view, intended: (intended, late) })
    }
}

impl<'i> Marked<'i> {
    /// Waits until the bits are on the members. With the defect `forgets` it doesn't.
    pub(crate) async fn durable(self, forgets: Mutant) -> Result<Intended<'i>, Moved> {
        if !self.is_durable && !active(forgets) {
            // Boxed, so that writes that needn't wait carry no more than a pointer.
            Box::pin(self.until_durable()).await?;
        }
        Ok(Intended(self.mark))
    }

    async fn until_durable(&self) -> Result<(), Moved> {
        let durable = pin!(self.table.durable(&self.mark));
        let over = pin!(self.inside.shared.given_way(|| self.inside.is_over()));
        match select(durable, over).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => Err(Moved),
        }
    }
}

impl<'i> Writing<'i> {
    pub(crate) fn view(&self) -> &'i View {
        self.view
    }
}
