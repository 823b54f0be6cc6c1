//! What the connections of one shard share.

use std::cell::Cell;
use std::sync::Arc;

use pinstripe_block::budget::Budget;
use pinstripe_block::roster::Roster;
use pinstripe_runtime::Signal;

use super::subsystem::{Counters, Subsystem};
use crate::link::Link;

/// One shard's part of a target.
pub(super) struct Inner<S> {
    pub subsystem: Arc<Subsystem>,
    /// By namespace, from number 1.
    pub services: Vec<Option<S>>,
    pub counters: Arc<Counters>,
    pub links: Roster<Link>,
    pub budget: Arc<Budget>,
    pub stopping: Cell<bool>,
    pub changed: Signal,
}
