//! Identify: what controllers and namespaces say of themselves. 4 KiB each, fields by their offsets.

/// Bytes of an Identify data structure.
pub const BYTES: usize = 4096;

/// Values of the CNS field.
pub mod cns {
    /// A namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// The list of active namespaces.
    pub const NAMESPACES: u8 = 0x02;
    /// The identifiers of a namespace.
    pub const DESCRIPTORS: u8 = 0x03;
}

/// Optional NVM commands (ONCS).
pub mod optional {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
}

/// Where our vendor area begins, in the controller's structure. Zeroes: no extension is announced.
pub const VENDOR_AREA: usize = 3072;

const HOST_ID_128: u32 = 1;
const TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
const SHARED_SUBSYSTEM: u8 = 1 << 1;
const LPA_EFFECTS_AND_EXTENDED: u8 = 1 << 1 | 1 << 2;
const SGLS_SUPPORTED: u32 = 1;
const SGLS_OFFSETS: u32 = 1 << 20;
const SGLS_TRANSPORT: u32 = 1 << 21;
/// Granularity of our keep-alive timer, in units of 100 ms.
pub const KEEP_ALIVE_UNITS: u16 = 10;

/// What a controller says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Serial number, at most 20 bytes.
    pub serial: String,
    /// Model, at most 40 bytes.
    pub model: String,
    /// Firmware revision, at most 8 bytes.
    pub firmware: String,
    /// The controller's number.
    pub controller: u16,
    /// Whether it serves discovery only.
    pub discovery: bool,
    /// Most bytes of data per command, as a power of two of pages of 4 KiB; 0 for no limit.
    pub transfer_shift: u8,
    /// Whether there is a volatile cache to flush.
    pub volatile_cache: bool,
    /// Commands that may be outstanding on a queue.
    pub commands_max: u16,
    /// Highest number of a namespace.
    pub namespaces_max: u32,
    /// Of [`optional`].
    pub optional_commands: u16,
    /// Optional events; see [`super::feature`].
    pub events: u32,
    /// Bytes that a command's capsule may carry behind the entry.
    pub capsule_data_bytes: u32,
    /// Event requests that may be outstanding.
    pub event_requests: u8,
    /// Whether any command counts as a sign of life (TBKAS). Such a controller may look once in a keep-alive
    /// time whether one came, so it ends a silent host after twice that time.
    pub traffic_keep_alive: bool,
    /// Granularity of the keep-alive timer, in units of 100 ms (KAS): the time that a host names is rounded
    /// up to it. Zero if none is said.
    pub keep_alive_units: u16,
    /// The subsystem's name.
    pub subsystem: String,
}

impl ControllerInfo {
    /// The structure.
    pub fn encode(&self) -> Box<[u8; BYTES]> {
        let mut bytes = Box::new([0; BYTES]);
        let out = &mut *bytes;
        super::put_text(&mut out[4..24], &self.serial, b' ');
        super::put_text(&mut out[24..64], &self.model, b' ');
        super::put_text(&mut out[64..72], &self.firmware, b' ');
        out[76] = SHARED_SUBSYSTEM;
        out[77] = self.transfer_shift;
        put16(out, 78, self.controller);
        put32(out, 80, super::fabrics::VERSION);
        put32(out, 92, self.events);
        put32(out, 96, HOST_ID_128 | if self.traffic_keep_alive { TRAFFIC_KEEP_ALIVE } else { 0 });
        out[111] = if self.discovery { 2 } else { 1 };
        // Abort: as many as an abort can name. It never has more than one effect: none.
        out[258] = 3;
        out[259] = self.event_requests.saturating_sub(1);
        out[261] = LPA_EFFECTS_AND_EXTENDED;
        put16(out, 320, self.keep_alive_units);
        out[512] = 0x66;
        out[513] = 0x44;
        put16(out, 514, self.commands_max);
        put32(out, 516, self.namespaces_max);
        put16(out, 520, self.optional_commands);
        // Bits 1 and 2: a flush of all namespaces is taken.
        out[525] = 3 << 1 | u8::from(self.volatile_cache);
        put32(out, 536, SGLS_SUPPORTED | SGLS_OFFSETS | SGLS_TRANSPORT);
        super::put_text(&mut out[768..1024], &self.subsystem, 0);
        put32(out, 1792, (64 + self.capsule_data_bytes) / 16);
        put32(out, 1796, 1);
        // One descriptor per command.
        out[1803] = 1;
        bytes
    }

    /// What another controller says; `None` if it speaks no SGLs or no text where text must be.
    pub fn parse(bytes: &[u8; BYTES]) -> Option<Self> {
        if take32(bytes, 536).trailing_zeros() >= 2 || take16(bytes, 1800) != 0 {
            return None;
        }
        Some(Self {
            serial: super::text(&bytes[4..24])?.to_owned(),
            model: super::text(&bytes[24..64])?.to_owned(),
            firmware: super::text(&bytes[64..72])?.to_owned(),
            controller: take16(bytes, 78),
            discovery: bytes[111] == 2,
            transfer_shift: bytes[77],
            volatile_cache: bytes[525] & 1 != 0,
            commands_max: take16(bytes, 514),
            namespaces_max: take32(bytes, 516),
            optional_commands: take16(bytes, 520),
            events: take32(bytes, 92),
            capsule_data_bytes: take32(bytes, 1792).saturating_mul(16).saturating_sub(64),
            event_requests: bytes[259].saturating_add(1),
            traffic_keep_alive: take32(bytes, 96) & TRAFFIC_KEEP_ALIVE != 0,
            keep_alive_units: take16(bytes, 320),
            subsystem: super::text(&bytes[768..1024])?.to_owned(),
        })
    }
}

/// What a namespace says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Size in blocks.
    pub blocks: u64,
    /// Bytes of a block as a power of two.
    pub block_shift: u8,
    /// Bytes of metadata per block; other than 0 can't be served by us.
    pub metadata_bytes: u16,
    /// Whether reservations are served.
    pub reservations: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Blocks of a range that is written well when aligned to itself; 0 if nothing is known.
    pub preferred_blocks: u16,
    /// Globally unique identifier; zeroes if it has none.
    pub nguid: [u8; 16],
    /// The shorter one; zeroes if it has none.
    pub eui64: [u8; 8],
}

/// Reservations: all kinds but those that survive a loss of power, as revision 1.3 has them.
const RESERVATIONS: u8 = 0b1111_1110;
const OPTIMAL_PERFORMANCE: u8 = 1 << 4;
/// Deallocating Write Zeroes are taken; what deallocated blocks read as isn't said.
const DEALLOCATING_WRITE_ZEROES: u8 = 1 << 3;

impl NamespaceInfo {
    /// The structure.
    pub fn encode(&self) -> Box<[u8; BYTES]> {
        let mut bytes = Box::new([0; BYTES]);
        let out = &mut *bytes;
        for at in [0, 8, 16] {
            put64(out, at, self.blocks);
        }
        if self.preferred_blocks > 0 {
            out[24] = OPTIMAL_PERFORMANCE;
            for at in [64, 66, 68, 70, 72] {
                put16(out, at, self.preferred_blocks - 1);
            }
        }
        out[30] = 1;
        out[31] = if self.reservations { RESERVATIONS } else { 0 };
        out[33] = DEALLOCATING_WRITE_ZEROES;
        out[99] = u8::from(self.read_only);
        out[104..120].copy_from_slice(&self.nguid);
        out[120..128].copy_from_slice(&self.eui64);
        put32(out, 128, u32::from(self.block_shift) << 16);
        bytes
    }

    /// What another namespace says; `None` for one that isn't there or has blocks without a size.
    pub fn parse(bytes: &[u8; BYTES]) -> Option<Self> {
        let blocks = take64(bytes, 0);
        let format = usize::from(bytes[26] & 0xf | bytes[26] >> 1 & 0x30);
        let format = take32(bytes, 128 + 4 * format);
        #[expect(clippy::cast_possible_truncation, reason = "fields of 8 and 16 bits")]
        let (block_shift, metadata_bytes) = ((format >> 16) as u8, format as u16);
        let preferred_blocks =
            if bytes[24] & OPTIMAL_PERFORMANCE == 0 { 0 } else { take16(bytes, 64).saturating_add(1) };
        let sized = (9..=16).contains(&block_shift) && blocks <= u64::MAX >> block_shift;
        (blocks > 0 && sized).then(|| Self {
            blocks,
            block_shift,
            metadata_bytes,
            reservations: bytes[31] != 0,
            read_only: bytes[99] & 1 != 0,
            preferred_blocks,
            nguid: take(bytes, 104),
            eui64: take(bytes, 120),
        })
    }
}

/// The list of active namespaces above `after`, at most 1024.
pub fn namespace_list(active: impl Iterator<Item = u32>, after: u32) -> Box<[u8; BYTES]> {
    let mut bytes = Box::new([0; BYTES]);
    for (index, number) in active.filter(|number| *number > after).take(BYTES / 4).enumerate() {
        put32(&mut *bytes, index * 4, number);
    }
    bytes
}

/// The numbers in such a list.
pub fn parse_namespace_list(bytes: &[u8; BYTES]) -> Vec<u32> {
    (0..BYTES / 4).map(|index| take32(bytes, index * 4)).take_while(|number| *number != 0).collect()
}

fn put16(out: &mut [u8], at: usize, value: u16) {
    out[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

fn put32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put64(out: &mut [u8], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn take<const N: usize>(bytes: &[u8; BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

fn take16(bytes: &[u8; BYTES], at: usize) -> u16 {
    u16::from_le_bytes(take(bytes, at))
}

fn take32(bytes: &[u8; BYTES], at: usize) -> u32 {
    u32::from_le_bytes(take(bytes, at))
}

fn take64(bytes: &[u8; BYTES], at: usize) -> u64 {
    u64::from_le_bytes(take(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_read_as_it_was_written() {
        let info = ControllerInfo {
            serial: "0123456789abcdef".into(),
            model: "Pinstripe".into(),
            firmware: "0.1.0".into(),
            controller: 7,
            discovery: false,
            transfer_shift: 8,
            volatile_cache: true,
            commands_max: 128,
            namespaces_max: 3,
            optional_commands: optional::COMPARE | optional::RESERVATIONS,
            events: 1 << 8,
            capsule_data_bytes: 32 << 10,
            event_requests: 4,
            traffic_keep_alive: true,
            keep_alive_units: 100,
            subsystem: "nqn.2026-01.example:a".into(),
        };
        assert_eq!(ControllerInfo::parse(&info.encode()), Some(info));
    }

    #[test]
    fn a_namespace_is_read_as_it_was_written_and_an_absent_one_is_none() {
        let info = NamespaceInfo {
            blocks: 1 << 40,
            block_shift: 12,
            metadata_bytes: 0,
            reservations: true,
            read_only: false,
            preferred_blocks: 96,
            nguid: [7; 16],
            eui64: [8; 8],
        };
        assert_eq!(NamespaceInfo::parse(&info.encode()), Some(info));
        assert_eq!(NamespaceInfo::parse(&[0; BYTES]), None);
        let absurd = NamespaceInfo { blocks: u64::MAX, ..info };
        assert_eq!(NamespaceInfo::parse(&absurd.encode()), None);
    }

    #[test]
    fn a_list_of_namespaces_begins_above_the_number_asked_for() {
        let list = namespace_list([1, 2, 5].into_iter(), 1);
        assert_eq!(parse_namespace_list(&list), [2, 5]);
    }
}
