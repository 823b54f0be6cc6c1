//! NVMe over TCP: target and initiator.
//!
//! Each end is split in two. The *core* ([`wire`], [`framing`]) turns bytes into checked PDUs and back; it
//! does no I/O, has no clock, and is what the fuzzer drives. The *sessions* run it over a connected
//! [`Stream`](pinstripe_runtime::Stream), so that both ends run in the simulator too.
//!
//! * [`auth`]: the secrets by which hosts and controllers prove their identity.
//! * [`controller`]: serves block services as namespaces to any NVMe/TCP host.
//! * [`initiator`]: namespaces of any NVMe/TCP target as [`Device`](pinstripe_runtime::Device)s.
//!
//! TCP is the only transport. Another one (RDMA) would replace [`framing`] and what moves bytes in the two
//! sessions; [`wire`] but for its PDUs, and all above the queues, stays.
#![forbid(unsafe_code)]

pub mod auth;
pub mod controller;
pub mod framing;
pub mod initiator;
pub mod mutants;
pub mod wire;

mod fuzz;
mod inbound;
mod link;
mod lock;
mod uuid;

pub use fuzz::fuzz_nvme;
