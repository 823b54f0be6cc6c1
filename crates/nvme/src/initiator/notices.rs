//! What a server says by itself of its namespaces: one event request is always outstanding.
//!
//! A namespace can become another one while its association lives: a target of others takes a disk that was
//! pulled away, and the next disk gets its number. What had answered as the member would be read, and
//! written, without any error. So every notice that names a namespace makes its devices [gone], unless it has
//! just grown: also where everything is as it was, for it may have been away meanwhile, and have lost what
//! its cache held (C24). What was sent before the notice came may have reached the other one.
//!
//! [gone]: pinstripe_runtime::DeviceErrorKind::Gone

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pinstripe_runtime::shard;

use super::association::{Association, lock};
use super::device::Namespace;
use super::queue::Queue;
use super::{Address, InitiatorError};
use crate::wire::command::{Command, admin};
use crate::wire::{feature, log};

/// Pause after an event whose page the server refuses.
const REFUSED_NANOSECONDS: u64 = 1_000_000_000;

impl Association {
    /// Has the server tell of changes from now on, if it says that it can.
    pub(super) async fn hear_notices(self: &Arc<Self>, queue: &Rc<Queue>, events: u32) {
        if events & feature::EVENT_NAMESPACE_CHANGED == 0 {
            return;
        }
        let command = Command::new(admin::SET_FEATURES, 0)
            .with_dword(10, u32::from(feature::ASYNC_EVENTS))
            .with_dword(11, feature::EVENT_NAMESPACE_CHANGED);
        // One that refuses may tell all the same.
        let _ = queue.ask(command, None).await;
        let (association, queue) = (Arc::clone(self), Rc::clone(queue));
        shard::spawn(async move {
            let request = Command::new(admin::ASYNC_EVENT, 0);
            while let Ok((event, _)) = queue.ask(request, None).await {
                // To read its page is what lets the server tell the next event of this type.
                let page = event.to_le_bytes()[2];
                let read = association.log_page(&queue, page, log::CHANGED_NAMESPACES_BYTES).await;
                let changed = match &read {
                    Ok(bytes) => log::parse_changed_namespaces(bytes),
                    // What the server doesn't say may be any of them.
                    Err(InitiatorError::Refused { .. }) => None,
                    Err(_) => return,
                };
                if page == log::page::CHANGED_NAMESPACES {
                    association.look_at(changed).await;
                }
                if read.is_err() {
                    // It may tell the same again at once.
                    shard::sleep(REFUSED_NANOSECONDS).await;
                }
            }
        });
    }

    /// `changed`: numbers of namespaces; `None` if they are too many to be named. There may be none: a server
    /// may tell twice of what is read once.
    async fn look_at(self: &Arc<Self>, changed: Option<Vec<u32>>) {
        let is_changed = |used: &&Namespace| changed.as_ref().is_none_or(|some| some.contains(&used.number));
        let in_use = lock(&self.in_use).clone();
        for before in in_use.iter().filter(is_changed) {
            let address = Address { namespace: before.number, ..self.address().clone() };
            let now = self.identify(&address).await;
            if !now.is_ok_and(|now| has_only_grown(before, &now)) {
                before.gone.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Whether more than one namespace is used.
    pub(super) fn uses_several(&self) -> bool {
        let in_use = lock(&self.in_use);
        let mut used = in_use.iter().filter(|used| Arc::strong_count(&used.gone) > 1).map(|used| used.number);
        let first = used.next();
        used.any(|number| Some(number) != first)
    }

    /// Whether some namespace but this one is used.
    pub(super) fn uses_another_than(&self, number: u32) -> bool {
        let in_use = lock(&self.in_use);
        in_use.iter().any(|used| used.number != number && Arc::strong_count(&used.gone) > 1)
    }

    /// A namespace that is used from now on.
    pub(super) fn uses(&self, namespace: &Namespace) {
        let mut in_use = lock(&self.in_use);
        in_use.retain(|used| Arc::strong_count(&used.gone) > 1);
        in_use.push(namespace.clone());
    }
}

fn has_only_grown(before: &Namespace, now: &Namespace) -> bool {
    before.identity.is_one_with(&now.identity) == Some(true)
        && (before.block_shift, before.read_only) == (now.block_shift, now.read_only)
        && before.info.size < now.info.size
}
