//! What a client is told about an export, checked when it is made.

use thiserror::Error;

use super::wire::{PAYLOAD_BYTES_MAX, STRING_BYTES_MAX, transmission_flag as flag};

/// Why an [`ExportInfo`] can't be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ExportInfoError {
    /// The name or the description is longer than [`STRING_BYTES_MAX`] or has a NUL byte.
    #[error("{0:?} is not a legal NBD string: it must have no NUL and at most 4096 bytes")]
    Text(String),
    /// The block size is no power of two from 1 to 65536.
    #[error("NBD needs a block size that is a power of two up to 65536; the volume's is {0}")]
    BlockSize(u32),
    /// The size isn't a multiple of the block size, so that its end couldn't be reached.
    #[error("the size {size_bytes} is not a multiple of the block size {block_size}")]
    Size {
        /// Bytes of the export.
        size_bytes: u64,
        /// Bytes of a block.
        block_size: u32,
    },
}

/// An export's name, size, block sizes and abilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    name: String,
    description: String,
    size_bytes: u64,
    block_size: u32,
    preferred_block: u32,
    read_only: bool,
}

impl ExportInfo {
    /// Describes an export of `size_bytes` bytes that is addressed in blocks of `block_size` bytes.
    ///
    /// `preferred_block` is rounded to what the protocol can say: a power of two, not below the block size or
    /// 512, not above [`PAYLOAD_BYTES_MAX`].
    pub fn new(
        name: &str,
        description: &str,
        size_bytes: u64,
        block_size: u32,
        preferred_block: u32,
        read_only: bool,
    ) -> Result<Self, ExportInfoError> {
        for text in [name, description] {
            if text.len() > STRING_BYTES_MAX || text.contains('\0') {
                return Err(ExportInfoError::Text(text.chars().take(64).collect()));
            }
        }
        if !block_size.is_power_of_two() || block_size > 1 << 16 {
            return Err(ExportInfoError::BlockSize(block_size));
        }
        if !size_bytes.is_multiple_of(u64::from(block_size)) {
            return Err(ExportInfoError::Size { size_bytes, block_size });
        }
        let preferred = preferred_block.clamp(block_size.max(512), PAYLOAD_BYTES_MAX);
        let preferred_block = 1 << preferred.ilog2();
        Ok(Self {
            name: name.into(),
            description: description.into(),
            size_bytes,
            block_size,
            preferred_block,
            read_only,
        })
    }

    /// The name by which clients ask for the export.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A sentence for people; may be empty.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Bytes of the export.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Bytes of the smallest addressable block; offsets and lengths are multiples of it.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Bytes of a block that is handled without a read-modify-write, as far as the protocol can say it.
    pub fn preferred_block(&self) -> u32 {
        self.preferred_block
    }

    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// The transmission flags. DF exists only where `structured` replies were negotiated.
    pub fn transmission_flags(&self, structured: bool) -> u16 {
        let mut flags =
            flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_CACHE | flag::CAN_MULTI_CONN;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if structured {
            flags |= flag::SEND_DF;
        }
        flags
    }
}
