//! Linux MD's on-disk format: bytes to validated values and back. No I/O.
//!
//! The caller reads a device and gives the bytes and where they were; to write one, it gets the bytes and
//! puts them there. Nothing in here panics on bytes from outside, however damaged, and nothing is encoded
//! that the kernel would refuse. The reference is `docs/formats.md`; the proof are the images in
//! `tests/golden`, which mdadm and the kernel wrote.
//!
//! Begin with [`superblock`]: what a member says of the array and of itself, and which rules that keeps.
//! [`placement`] makes the superblocks of a new array, or of a device that joins. The areas that a superblock
//! names are [`bitmap`], [`ppl`], [`double_parity_log`], [`journal`] and [`bad_block_table`]; [`level`],
//! [`identity`] and [`units`] are the types of their fields.
#![forbid(unsafe_code)]

pub mod bad_block_table;
pub mod bad_blocks;
pub mod bitmap;
pub mod checksum;
pub mod double_parity_log;
pub mod identity;
pub mod journal;
pub mod level;
pub mod placement;
pub mod ppl;
pub mod superblock;
pub mod units;
