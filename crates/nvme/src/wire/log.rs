//! Log pages.

use std::net::{IpAddr, SocketAddr};

/// Identifiers of log pages.
pub mod page {
    /// Error information.
    pub const ERRORS: u8 = 0x01;
    /// Health.
    pub const HEALTH: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// Changed namespaces.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands and their effects.
    pub const EFFECTS: u8 = 0x05;
    /// Discovery.
    pub const DISCOVERY: u8 = 0x70;
}

/// What was done so far, for the health page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Read and compare commands.
    pub reads: u64,
    /// Write commands.
    pub writes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

/// Bytes of a unit of the health page: a thousand sectors.
const DATA_UNIT: u64 = 512_000;

/// One entry, which says that there was no error.
pub fn errors() -> Vec<u8> {
    vec![0; 64]
}

/// The health page.
pub fn health(traffic: &Traffic) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    // No thermometer: what the specification's examples call room temperature, in Kelvin.
    bytes[1..3].copy_from_slice(&300_u16.to_le_bytes());
    // All of the spare is left.
    bytes[3] = 100;
    let fields = [
        (32, traffic.bytes_read.div_ceil(DATA_UNIT)),
        (48, traffic.bytes_written.div_ceil(DATA_UNIT)),
        (64, traffic.reads),
        (80, traffic.writes),
    ];
    for (at, value) in fields {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// The firmware slots: one, which is active.
pub fn firmware(revision: &str) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[0] = 1;
    super::put_text(&mut bytes[8..16], revision, b' ');
    bytes
}

/// The commands that are there (bit 0), and those that change blocks (bit 1).
pub fn effects(admin: &[u8], nvm: &[u8], changing: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    for &opcode in admin {
        bytes[usize::from(opcode) * 4] = 1;
    }
    for &opcode in nvm {
        bytes[1024 + usize::from(opcode) * 4] = 1 | u8::from(changing.contains(&opcode)) << 1;
    }
    bytes
}

/// Changed namespaces; more than fit are told as "all of them".
pub fn changed_namespaces(changed: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0; CHANGED_NAMESPACES_BYTES];
    let all = [0xffff_ffff];
    let changed = if changed.len() > 1024 { &all } else { changed };
    for (field, number) in bytes.chunks_exact_mut(4).zip(changed) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// Bytes of the page of changed namespaces.
pub const CHANGED_NAMESPACES_BYTES: usize = 4096;

/// The numbers on another controller's page; `None` if they are more than it can name.
pub fn parse_changed_namespaces(bytes: &[u8]) -> Option<Vec<u32>> {
    let (fields, _) = bytes.as_chunks();
    let numbers = fields.iter().map(|field| u32::from_le_bytes(*field)).take_while(|number| *number != 0);
    numbers.map(|number| (number != u32::MAX).then_some(number)).collect()
}

/// One subsystem that can be connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// Its name.
    pub subsystem: String,
    /// Where it listens.
    pub address: SocketAddr,
}

const HEADER_BYTES: usize = 1024;
const ENTRY_BYTES: usize = 1024;
const TRANSPORT_TCP: u8 = 3;
const SUBSYSTEM_NVM: u8 = 2;
/// Most entries that are read from another's page.
const ENTRIES_MAX: usize = 4096;

/// The discovery page.
pub fn discovery(generation: u64, entries: &[DiscoveryEntry]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes[0..8].copy_from_slice(&generation.to_le_bytes());
    bytes[8..16].copy_from_slice(&(entries.len() as u64).to_le_bytes());
    for (index, entry) in entries.iter().enumerate() {
        let mut record = [0; ENTRY_BYTES];
        record[0] = TRANSPORT_TCP;
        record[1] = if entry.address.is_ipv4() { 1 } else { 2 };
        record[2] = SUBSYSTEM_NVM;
        // Flow control of submission queues can be left out; a secure channel isn't asked for.
        record[3] = 1 << 2 | 2;
        record[4..6].copy_from_slice(&u16::try_from(index + 1).unwrap_or(u16::MAX).to_le_bytes());
        record[6..8].copy_from_slice(&0xffff_u16.to_le_bytes());
        record[8..10].copy_from_slice(&32_u16.to_le_bytes());
        super::put_text(&mut record[32..64], &entry.address.port().to_string(), b' ');
        super::put_text(&mut record[256..512], &entry.subsystem, 0);
        super::put_text(&mut record[512..768], &entry.address.ip().to_string(), b' ');
        bytes.extend_from_slice(&record);
    }
    bytes
}

/// How many entries the page with this header has.
pub fn discovery_count(header: &[u8]) -> Option<usize> {
    let count = u64::from_le_bytes(*header.get(8..16)?.first_chunk()?);
    usize::try_from(count).ok().filter(|count| *count <= ENTRIES_MAX)
}

/// Bytes of a page with so many entries.
pub fn discovery_bytes(count: usize) -> usize {
    HEADER_BYTES + count * ENTRY_BYTES
}

/// The entries for TCP of another's page; those that can't be understood are left out.
pub fn parse_discovery(page: &[u8]) -> Vec<DiscoveryEntry> {
    let records = page.get(HEADER_BYTES..).unwrap_or_default().chunks_exact(ENTRY_BYTES);
    records
        .take(discovery_count(page).unwrap_or(0))
        .filter(|record| record[0] == TRANSPORT_TCP && record[2] == SUBSYSTEM_NVM)
        .filter_map(|record| {
            let address: IpAddr = super::text(&record[512..768])?.parse().ok()?;
            let port: u16 = super::text(&record[32..64])?.parse().ok()?;
            let subsystem = super::text(&record[256..512])?.to_owned();
            Some(DiscoveryEntry { subsystem, address: SocketAddr::new(address, port) })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_discovery_page_is_read_as_it_was_written() {
        let entries: Vec<DiscoveryEntry> = ["127.0.0.1:4420", "[::1]:1"]
            .map(|address| DiscoveryEntry {
                subsystem: "nqn.2026-01.example:a".into(),
                address: address.parse().unwrap(),
            })
            .into();
        let page = discovery(3, &entries);
        assert_eq!(page.len(), discovery_bytes(2));
        assert_eq!(discovery_count(&page), Some(2));
        assert_eq!(parse_discovery(&page), entries);
        assert_eq!(parse_discovery(&page[..1500]), []);
    }

    #[test]
    fn that_nothing_has_changed_is_told_from_that_too_much_has() {
        for some in [&[][..], &[7], &[1, 2, 1024]] {
            assert_eq!(parse_changed_namespaces(&changed_namespaces(some)).as_deref(), Some(some));
        }
        let all: Vec<u32> = (1..=1024).collect();
        assert_eq!(parse_changed_namespaces(&changed_namespaces(&all)), Some(all));
        let too_many: Vec<u32> = (1..=1025).collect();
        assert_eq!(parse_changed_namespaces(&changed_namespaces(&too_many)), None);
    }
}
