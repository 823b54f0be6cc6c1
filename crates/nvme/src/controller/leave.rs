//! Connections and controllers that another process goes on with: what it has to know of them.
//!
//! A queue is left between two commands, when the host owes no data and no part of a proof. Commands that
//! have begun are carried out and answered. Those that wait for memory, or whose data would have to be asked
//! for, are deferred: the other process begins them. A controller goes over with its admin queue, or not at
//! all, and the host's silence goes on.

use serde::{Deserialize, Serialize};
use zerocopy::FromBytes;

use crate::framing::Encoding;
use crate::wire::command::Command;

/// A queue of a controller that is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftQueue {
    pub(super) controller: u16,
    pub(super) number: u16,
    pub(super) entries: u16,
    pub(super) flow_control: bool,
    pub(super) header_digests: bool,
    pub(super) data_digests: bool,
    pub(super) alignment: u8,
    pub(super) head: u16,
    /// Event requests that wait.
    pub(super) events: Vec<u16>,
    /// Commands that were not begun, one after the other.
    pub(super) deferred: Vec<u8>,
    /// The beginning of what is to be received next.
    pub(super) received: Vec<u8>,
    /// Of a connection of TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) secured: Option<LeftSecured>,
}

/// What a connection of TLS is besides, its keys among it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftSecured {
    pub host: String,
    pub state: Vec<u8>,
    /// Records of what is to be received after the rest.
    pub received: Vec<u8>,
}

impl std::fmt::Debug for LeftSecured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LeftSecured({})", self.host)
    }
}

impl LeftQueue {
    pub(super) fn encoding(&self) -> Encoding {
        let Self { header_digests, data_digests, alignment, .. } = *self;
        Encoding { header_digests, data_digests, alignment }
    }

    pub(super) fn commands(&self) -> Vec<Command> {
        self.deferred
            .chunks_exact(size_of::<Command>())
            .filter_map(|bytes| Command::read_from_bytes(bytes).ok())
            .collect()
    }

    /// Which controller it belongs to.
    pub fn controller(&self) -> u16 {
        self.controller
    }

    /// Whether its controller lives and ends with it.
    pub fn is_admin(&self) -> bool {
        self.number == 0
    }
}

/// What is left of a subsystem: its controllers and reservations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftSubsystem {
    pub(super) next_controller: u16,
    pub(super) controllers: Vec<LeftController>,
    /// By namespace, from number 1.
    pub(super) reservations: Vec<LeftReservations>,
}

impl LeftSubsystem {
    /// How many controllers go over.
    pub fn controllers_left(&self) -> usize {
        self.controllers.len()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftController {
    pub id: u16,
    pub host_id: [u8; 16],
    pub host: String,
    pub discovery: bool,
    pub keep_alive_ms: u64,
    /// When the host was heard of last, by the machine's monotonic clock.
    pub heard_ns: u64,
    pub configuration: u32,
    pub status: u32,
    pub events: u32,
    pub settings: Vec<(u8, u32)>,
    pub changed_namespaces: Vec<u32>,
    pub noticed: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftReservations {
    pub generation: u32,
    /// Hosts and their keys.
    pub registrants: Vec<([u8; 16], u64)>,
    /// The number of its kind, and the holder.
    pub held: Option<(u32, [u8; 16])>,
}
