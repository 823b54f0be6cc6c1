//! Group commit: what has gathered in the journal's queue goes into the log with one write, while the next
//! gathers.

use std::{rc::Rc, sync::Arc};

use crate::{
    consistency::{Log, journal::Journal},
    controller::ArrayController,
};

impl ArrayController {
    /// The journal of this array, if it has one.
    pub(crate) fn journal(&self) -> Option<Arc<Journal>> {
        match &self.shared().snapshot().log {
            Log::Journal(journal) => Some(Arc::clone(journal)),
            Log::None | Log::Ppl(_) | Log::DoubleParity(_) => None,
        }
    }

    /// Writes the log for all batches that are queued, one write at a time.
    pub(crate) async fn write_journal(self: Rc<Self>, journal: Arc<Journal>) {
        let over = || self.stopped.get() || journal.failure().is_some();
        loop {
            let taken =
                journal.wanted.wait_for(|| if over() { Some(None) } else { journal.take().map(Some) }).await;
            let Some(taken) = taken else { return };
            if let Err(error) = journal.log(|| self.journal_device(), taken).await {
                self.drop_journal(&journal, error);
                return;
            }
        }
    }
}
