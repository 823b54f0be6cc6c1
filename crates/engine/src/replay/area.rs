//! A member's log as far as its medium gives it.
//!
//! What can't be read is unknown, and never taken for empty. Whether that matters is for the replay to say:
//! most of an area is records of writes that are over.

use std::ops::Range;

use pinstripe_runtime::DeviceErrorKind;

use crate::{
    assembly::{AssembleError, Found, read_bytes},
    members::LogArea,
    mutants::{Mutant, active},
    units::to_usize,
};

/// What is read at a time once something could not be.
const PIECE: usize = 4096;

/// The bytes of a log.
pub(super) struct AreaBytes {
    /// All of them; zero where they can't be read.
    pub(super) bytes: Vec<u8>,
    /// The pieces that can't be read.
    unreadable: Vec<Range<usize>>,
}

impl AreaBytes {
    /// Reads the log of a member. An error only if it is another than one of the medium.
    pub(super) async fn read(member: &Found, area: LogArea) -> Result<Self, AssembleError> {
        Self::read_range(member, area.offset, area.length).await
    }

    /// The same for a part of a device.
    pub(super) async fn read_range(member: &Found, offset: u64, length: u64) -> Result<Self, AssembleError> {
        let device = &*member.device;
        match read_bytes(device, offset, length).await {
            Err(error) if !is_of_the_medium(&error) => return Err(error),
            Err(_) => {}
            Ok(bytes) => return Ok(Self { bytes, unreadable: Vec::new() }),
        }
        let length = to_usize(length);
        let (mut bytes, mut unreadable) = (vec![0; length], Vec::new());
        for start in (0..length).step_by(PIECE) {
            let piece = start..length.min(start + PIECE);
            match read_bytes(device, offset + start as u64, piece.len() as u64).await {
                Ok(read) => bytes[piece].copy_from_slice(&read),
                Err(error) if is_of_the_medium(&error) => unreadable.push(piece),
                Err(error) => return Err(error),
            }
        }
        Ok(Self { bytes, unreadable })
    }

    /// Whether everything before byte `end` is known.
    pub(super) fn is_known_to(&self, end: usize) -> bool {
        active(Mutant::UnreadableLogEmpty) || self.unreadable.iter().all(|piece| piece.start >= end)
    }

    /// Whether all of it is known.
    pub(super) fn is_known(&self) -> bool {
        self.is_known_to(usize::MAX)
    }
}

fn is_of_the_medium(error: &AssembleError) -> bool {
    matches!(error, AssembleError::Device { error, .. } if error.kind == DeviceErrorKind::Media)
}
