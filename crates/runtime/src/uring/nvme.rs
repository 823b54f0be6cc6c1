//! NVMe commands as the kernel's passthrough takes them, and what their answers mean. No I/O.
//!
//! Layouts: NVM Express Base Specification 2.0 (Identify: figures 275 and 276; status: 4.6.1) and NVM Command
//! Set Specification 1.0 (the commands of section 3.2, Identify Namespace in 4.1.5). The kernel's own
//! structures, `nvme_uring_cmd` and `nvme_passthru_cmd` of linux/nvme_ioctl.h, have the same fields in the
//! same places.

use crate::DeviceError;

/// `NVME_IOCTL_ID`, `_IO('N', 0x40)`: the namespace's number.
pub(super) const IOCTL_ID: u32 = 0x4e40;
/// `NVME_IOCTL_ADMIN_CMD`, `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
pub(super) const IOCTL_ADMIN: u32 = 0xc048_4e41;
/// `NVME_URING_CMD_IO`, `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
pub(super) const URING_IO: u32 = 0xc048_4e80;
/// Bytes of both structures.
pub(super) const COMMAND_BYTES: usize = 72;
/// Bytes of what Identify answers.
pub(super) const IDENTIFY_BYTES: usize = 4096;
/// Bytes of one range of Dataset Management.
pub(super) const RANGE_BYTES: usize = 16;

const FLUSH: u8 = 0x00;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const WRITE_ZEROES: u8 = 0x08;
const DATASET_MANAGEMENT: u8 = 0x09;
const IDENTIFY: u8 = 0x06;

/// In command dword 12: durable at completion.
const FUA: u32 = 1 << 30;
/// In command dword 12 of Write Zeroes: the blocks may be deallocated.
const DEAC: u32 = 1 << 25;
/// In command dword 11 of Dataset Management.
const DEALLOCATE: u32 = 1 << 2;
/// Blocks that one command can name.
const BLOCKS_MAX: u64 = 1 << 16;
/// The smallest unit in which a controller may count its limits.
const PAGE_BYTES: u64 = 4096;

/// What Identify tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identify {
    Namespace,
    Controller,
    /// What the NVM command set says of the controller.
    CommandSet,
}

/// A command for a range of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Write { fua: bool },
    Flush,
    Deallocate,
    Zeroes,
}

/// What is known of a namespace. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of Identify")]
pub(super) struct Namespace {
    pub(super) id: u32,
    pub(super) size: u64,
    pub(super) block_shift: u8,
    pub(super) volatile_cache: bool,
    pub(super) deallocates: bool,
    pub(super) zeroes: bool,
    /// Write Zeroes may deallocate: deallocated blocks read back zero.
    pub(super) zeroes_deallocate: bool,
    /// The most that one read or write may move.
    pub(super) transfer_max: u64,
    /// The most that one Write Zeroes may cover.
    pub(super) zeroes_max: u64,
    /// The most that one range of Dataset Management may cover.
    pub(super) deallocate_max: u64,
}

/// Why a namespace can't be used by passthrough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unusable {
    #[error("its blocks carry metadata (protection information, for example)")]
    Metadata,
    #[error("its blocks have 2^{0} bytes")]
    Block(u8),
    #[error("it is not active")]
    Inactive,
}

impl Namespace {
    /// From what Identify says of the namespace, the controller and its command set (zeroes, if it doesn't
    /// say), and the most that the kernel passes on in one command.
    pub(super) fn parse(
        id: u32,
        namespace: &[u8; IDENTIFY_BYTES],
        controller: &[u8; IDENTIFY_BYTES],
        set: &[u8; IDENTIFY_BYTES],
        kernel_max: u64,
    ) -> Result<Self, Unusable> {
        let blocks = u64::from_le_bytes(field(namespace, 0));
        if blocks == 0 {
            return Err(Unusable::Inactive);
        }
        // The index of the format: bits 3:0, and bits 6:5 above them.
        let formatted = namespace[26];
        let index = usize::from(formatted & 0xf | (formatted >> 5 & 3) << 4);
        let [metadata_low, metadata_high, block_shift, _] = field(namespace, 128 + 4 * index);
        if metadata_low != 0 || metadata_high != 0 {
            return Err(Unusable::Metadata);
        }
        if !(9..=12).contains(&block_shift) {
            return Err(Unusable::Block(block_shift));
        }
        let block = 1 << block_shift;
        let supported = u16::from_le_bytes(field(controller, 520));
        let whole_blocks = |bytes: u64| (bytes / block * block).max(block);
        let data_max = limit(controller[77]);
        let transfer_max = whole_blocks(data_max.min(kernel_max).min(BLOCKS_MAX << block_shift));
        let zeroes_max = if set[1] == 0 { data_max } else { limit(set[1]) };
        let range_max = match u32::from_le_bytes(field(set, 4)) {
            0 => u32::MAX,
            blocks => blocks,
        };
        let all_max = match u64::from_le_bytes(field(set, 8)) {
            0 => u64::MAX,
            blocks => blocks,
        };
        // Reads of deallocated blocks give zeroes (bits 2:0), and Write Zeroes knows DEAC (bit 3).
        let deallocated = namespace[33];
        Ok(Self {
            id,
            size: blocks << block_shift,
            block_shift,
            volatile_cache: controller[525] & 1 != 0,
            deallocates: supported & 1 << 2 != 0,
            zeroes: supported & 1 << 3 != 0,
            zeroes_deallocate: deallocated & 0xf == 0b1001,
            transfer_max,
            zeroes_max: whole_blocks(zeroes_max.min(BLOCKS_MAX << block_shift)),
            deallocate_max: u64::from(range_max).min(all_max) << block_shift,
        })
    }

    /// How much of `left` bytes one command does.
    pub(super) fn step(&self, action: Action, left: u64) -> u64 {
        left.min(match action {
            Action::Read | Action::Write { .. } => self.transfer_max,
            Action::Zeroes => self.zeroes_max,
            Action::Deallocate => self.deallocate_max,
            Action::Flush => u64::MAX,
        })
    }

    /// The command for `length` bytes from `offset` on. Its data, or its list of ranges, is `data.1` bytes at
    /// `data.0`.
    pub(super) fn command(
        &self,
        action: Action,
        offset: u64,
        length: u64,
        data: (u64, u32),
    ) -> [u8; COMMAND_BYTES] {
        let first = offset >> self.block_shift;
        // The number is one less than the blocks.
        let count =
            u32::from(u16::try_from((length >> self.block_shift).saturating_sub(1)).unwrap_or(u16::MAX));
        let [low, high] = [low_half(first), low_half(first >> 32)];
        let (opcode, words) = match action {
            Action::Read => (READ, [low, high, count]),
            Action::Write { fua } => (WRITE, [low, high, count | if fua { FUA } else { 0 }]),
            Action::Zeroes if self.zeroes_deallocate => (WRITE_ZEROES, [low, high, count | DEAC]),
            Action::Zeroes => (WRITE_ZEROES, [low, high, count]),
            // One range.
            Action::Deallocate => (DATASET_MANAGEMENT, [0, DEALLOCATE, 0]),
            Action::Flush => (FLUSH, [0; 3]),
        };
        encode(opcode, self.id, data, words)
    }

    /// The one range of a Dataset Management command.
    pub(super) fn range(&self, offset: u64, length: u64) -> [u8; RANGE_BYTES] {
        let mut bytes = [0; RANGE_BYTES];
        let blocks = u32::try_from(length >> self.block_shift).unwrap_or(u32::MAX);
        bytes[4..8].copy_from_slice(&blocks.to_le_bytes());
        bytes[8..].copy_from_slice(&(offset >> self.block_shift).to_le_bytes());
        bytes
    }
}

/// The admin command that asks for one of the answers.
pub(super) fn identify(what: Identify, namespace: u32, address: u64) -> [u8; COMMAND_BYTES] {
    let (kind, namespace) = match what {
        Identify::Namespace => (0x00, namespace),
        Identify::Controller => (0x01, 0),
        Identify::CommandSet => (0x06, 0),
    };
    // Command set 0, in dword 11, is the NVM command set.
    encode(IDENTIFY, namespace, (address, 4096), [kind, 0, 0])
}

/// The fields that we use: `words` are command dwords 10 to 12. The kernel takes them as the CPU has them.
fn encode(opcode: u8, namespace: u32, data: (u64, u32), words: [u32; 3]) -> [u8; COMMAND_BYTES] {
    let mut bytes = [0; COMMAND_BYTES];
    bytes[0] = opcode;
    bytes[4..8].copy_from_slice(&namespace.to_ne_bytes());
    bytes[24..32].copy_from_slice(&data.0.to_ne_bytes());
    bytes[36..40].copy_from_slice(&data.1.to_ne_bytes());
    for (word, place) in words.iter().zip(bytes[40..52].chunks_exact_mut(4)) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// What becomes of a command that failed with `result` of the kernel: a status of the device, or an error
/// number below zero. The error is the one that the kernel's own block device would give.
pub(super) fn error(result: i32) -> DeviceError {
    DeviceError::from_errno(match result {
        // The driver has taken the command back, because the device did not answer or has gone.
        _ if -result == libc::EINTR => libc::ENOLINK,
        _ if result < 0 => -result,
        status => number(status & 0x7ff),
    })
}

/// The error number for a status code type (bits 10:8) and a status code (bits 7:0).
fn number(status: i32) -> i32 {
    match status {
        0x001 => libc::EOPNOTSUPP,
        // Invalid Field; LBA Out of Range; Conflicting Attributes, Command Size Limit Exceeded.
        0x002 | 0x080 | 0x180 | 0x183 => libc::EINVAL,
        // Command Interrupted.
        0x021 => libc::EBUSY,
        // Invalid Namespace or Format; Namespace Not Ready.
        0x00b | 0x082 => libc::ENODEV,
        0x081 => libc::ENOSPC,
        0x083 => libc::EBADE,
        // Namespace is Write Protected; Attempted Write to Read Only Range.
        0x020 | 0x182 => libc::EROFS,
        // Access Denied. All others of this type are errors of the medium and of data integrity.
        0x286 => libc::EACCES,
        0x200..=0x2ff => libc::ENODATA,
        0x300..=0x3ff => libc::ENOLINK,
        _ => libc::EREMOTE,
    }
}

/// Whether a command that failed with `result` may succeed when it is given once more: it was taken back or
/// aborted, or the device says so, and it isn't the medium.
pub(super) fn may_succeed_again(result: i32) -> bool {
    const DO_NOT_RETRY: i32 = 1 << 14;
    match result {
        _ if result < 0 => -result == libc::EINTR,
        _ if result & DO_NOT_RETRY != 0 => false,
        // Data Transfer Error, Internal Error, Command Abort Requested, aborted with its queue, Command
        // Interrupted, Namespace Not Ready, and what went wrong on the way.
        status => matches!(status & 0x7ff, 0x004 | 0x006 | 0x007 | 0x008 | 0x021 | 0x082 | 0x300..=0x3ff),
    }
}

/// A limit that is a power of two of pages; 0 is none.
fn limit(power: u8) -> u64 {
    match power {
        0 => u64::MAX,
        power => PAGE_BYTES.checked_shl(power.into()).filter(|bytes| *bytes > 0).unwrap_or(u64::MAX),
    }
}

fn low_half(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap_or_else(|_| unreachable!("it is masked"))
}

fn field<const N: usize>(bytes: &[u8; IDENTIFY_BYTES], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceErrorKind;

    /// 1 GiB in blocks of 4 KiB by format 17, with a cache, all commands and limits.
    fn answers() -> [[u8; IDENTIFY_BYTES]; 3] {
        let [mut namespace, mut controller, mut set] = [[0; IDENTIFY_BYTES]; 3];
        namespace[..8].copy_from_slice(&(1_u64 << 18).to_le_bytes());
        namespace[26] = 0b010_0001;
        namespace[33] = 0b1001;
        namespace[128 + 4 * 17..][..4].copy_from_slice(&[0, 0, 12, 0]);
        // Format 1 has metadata.
        namespace[128 + 4..][..4].copy_from_slice(&[8, 0, 9, 0]);
        controller[77] = 5;
        controller[520] = 0b1100;
        controller[525] = 0b111;
        set[1] = 3;
        set[4..8].copy_from_slice(&256_u32.to_le_bytes());
        [namespace, controller, set]
    }

    const NONE: [u8; IDENTIFY_BYTES] = [0; IDENTIFY_BYTES];

    fn parse(
        answer: &[u8; IDENTIFY_BYTES],
        controller: &[u8; IDENTIFY_BYTES],
    ) -> Result<Namespace, Unusable> {
        Namespace::parse(7, answer, controller, &NONE, 520 << 10)
    }

    fn namespace() -> Namespace {
        let [namespace, controller, set] = answers();
        Namespace::parse(7, &namespace, &controller, &set, u64::MAX).unwrap()
    }

    #[test]
    fn identify_gives_size_format_cache_commands_and_limits() {
        let expected = Namespace {
            id: 7,
            size: 1 << 30,
            block_shift: 12,
            volatile_cache: true,
            deallocates: true,
            zeroes: true,
            zeroes_deallocate: true,
            transfer_max: 128 << 10,
            zeroes_max: 32 << 10,
            deallocate_max: 1 << 20,
        };
        assert_eq!(namespace(), expected);
        let [mut answer, mut controller, _] = answers();
        controller[525] = 0b110;
        controller[520] = 0;
        // Without a limit of its own for zeroes there is that of data, and none for ranges.
        let plain = parse(&answer, &controller).unwrap();
        assert!(!plain.volatile_cache && !plain.deallocates && !plain.zeroes);
        assert_eq!((plain.zeroes_max, plain.deallocate_max), (128 << 10, u64::from(u32::MAX) << 12));
        controller[77] = 0;
        assert_eq!(parse(&answer, &controller).unwrap().transfer_max, 520 << 10, "the kernel's limit");
        let unlimited = Namespace::parse(7, &answer, &controller, &NONE, u64::MAX).unwrap();
        assert_eq!(unlimited.transfer_max, 65536 << 12, "as many blocks as a command can name");
        for behaviour in [0b0001, 0b1000, 0b1010] {
            answer[33] = behaviour;
            assert!(!parse(&answer, &controller).unwrap().zeroes_deallocate, "{behaviour:b}");
        }
        answer[26] = 1;
        assert_eq!(parse(&answer, &controller), Err(Unusable::Metadata));
        answer[26] = 2;
        assert_eq!(parse(&answer, &controller), Err(Unusable::Block(0)));
        assert_eq!(parse(&NONE, &controller), Err(Unusable::Inactive));
    }

    #[test]
    fn commands_have_the_layout_of_the_specification() {
        let word = |bytes: &[u8; COMMAND_BYTES], dword: usize| {
            // Dword 10 of the command is at byte 40.
            u32::from_ne_bytes(bytes[dword * 4..][..4].try_into().unwrap())
        };
        let namespace = namespace();
        let offset = 0x1_2345_6789 << 12;
        let data = (0x1122_3344_5566_7788, 8192);
        let write = namespace.command(Action::Write { fua: true }, offset, 8192, data);
        assert_eq!((write[0], word(&write, 1)), (0x01, 7));
        assert_eq!(write[24..32], data.0.to_ne_bytes());
        assert_eq!((word(&write, 8), word(&write, 9)), (0, 8192), "no metadata, data");
        assert_eq!([10, 11, 12].map(|at| word(&write, at)), [0x2345_6789, 1, 1 << 30 | 1]);
        assert_eq!(write[52..], [0; 20]);
        let read = namespace.command(Action::Read, offset, 4096, data);
        assert_eq!((read[0], word(&read, 12)), (0x02, 0), "one block");
        assert_eq!(word(&namespace.command(Action::Write { fua: false }, 0, 4096, data), 12), 0);
        let zeroes = namespace.command(Action::Zeroes, offset, 65536 << 12, (0, 0));
        assert_eq!((zeroes[0], word(&zeroes, 12)), (0x08, 1 << 25 | 0xffff));
        let kept = Namespace { zeroes_deallocate: false, ..namespace.clone() };
        assert_eq!(word(&kept.command(Action::Zeroes, 0, 4096, (0, 0)), 12), 0);
        let flush = namespace.command(Action::Flush, 0, 0, (0, 0));
        assert_eq!((flush[0], word(&flush, 1)), (0x00, 7));
        assert_eq!(flush[8..], [0; 64]);
        let deallocate = namespace.command(Action::Deallocate, offset, 8192, (16, 16));
        assert_eq!((deallocate[0], word(&deallocate, 9)), (0x09, 16));
        assert_eq!([10, 11, 12].map(|at| word(&deallocate, at)), [0, 4, 0]);
        let range = namespace.range(offset, 8192);
        assert_eq!(range[..8], [0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(range[8..], 0x1_2345_6789_u64.to_le_bytes());
    }

    #[test]
    fn identify_asks_for_one_answer() {
        for (what, kind, of) in
            [(Identify::Namespace, 0, 9_u32), (Identify::Controller, 1, 0), (Identify::CommandSet, 6, 0)]
        {
            let bytes = identify(what, 9, 0x7000);
            assert_eq!((bytes[0], bytes[40]), (0x06, kind));
            assert_eq!(bytes[4..8], of.to_ne_bytes());
            assert_eq!(bytes[24..32], 0x7000_u64.to_ne_bytes());
            assert_eq!(bytes[36..40], 4096_u32.to_ne_bytes());
        }
    }

    #[test]
    fn a_long_request_is_cut_to_what_a_command_may_do() {
        let namespace = namespace();
        for (action, most) in
            [(Action::Read, 128 << 10), (Action::Zeroes, 32 << 10), (Action::Deallocate, 1 << 20)]
        {
            assert_eq!(namespace.step(action, 1 << 30), most);
            assert_eq!(namespace.step(action, 4096), 4096);
        }
        assert_eq!(namespace.step(Action::Write { fua: true }, 1 << 30), 128 << 10);
    }

    #[test]
    fn each_status_is_the_error_that_it_means() {
        use DeviceErrorKind::{Busy, Gone, Invalid, Media, NoSpace, Other, Unsupported};
        let dnr = 1 << 14;
        let cases = [
            (0x281, Media),
            (0x281 | dnr, Media),
            (0x280, Media),
            (0x282, Media),
            (0x287, Media),
            (0x286, Other),
            (0x001 | dnr, Unsupported),
            (0x002 | dnr, Invalid),
            (0x080, Invalid),
            (0x081, NoSpace),
            (0x082, Gone),
            (0x00b | dnr, Gone),
            (0x021, Busy),
            (0x083, Other),
            (0x020, Other),
            (0x006, Other),
            (0x007, Other),
            (0x370, Gone),
            (0x301, Gone),
            (-libc::EINTR, Gone),
            (-libc::ENODEV, Gone),
            (-libc::EINVAL, Invalid),
            (-libc::EOPNOTSUPP, Unsupported),
        ];
        for (result, kind) in cases {
            assert_eq!(error(result).kind, kind, "{result:#x}");
        }
    }

    #[test]
    fn only_what_may_be_over_soon_is_tried_again() {
        for result in [-libc::EINTR, 0x006, 0x007, 0x008, 0x021, 0x082, 0x370] {
            assert!(may_succeed_again(result), "{result:#x}");
        }
        for result in [-libc::EINVAL, 0x281, 0x280, 0x002, 0x081, 0x006 | 1 << 14, 0x370 | 1 << 14] {
            assert!(!may_succeed_again(result), "{result:#x}");
        }
    }
}
