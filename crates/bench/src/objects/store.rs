//! A store of objects straight on a volume: a hash of the key says where an object is.
//!
//! The volume is slots of one size, an object's with its header. A key's slot is the one that its hash names,
//! or the first free one after it. Which slot has which key is kept in memory, and can be read back from the
//! headers: [`Store::opened_anew`]. So a get is one read and a put is one write.
//!
//! A put writes in place. It holds its slot alone and a get shares it, so that no get sees half of a put. A
//! crash in a put may tear the object; the checksum tells.

use std::{
    rc::Rc,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use crc_fast::{CrcAlgorithm, checksum};
use pinstripe_block::locks::Locks;
use pinstripe_runtime::{Buffer, shard};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U32, U64},
};

use crate::{
    destination::{Destination, RequestError},
    rng::Rng,
    run::BenchError,
    worker::end_all,
};

/// What a slot begins with, and its version.
const MAGIC: [u8; 8] = *b"PSOBJ\0\0\x01";
/// Regions of [`Locks`], one for each slot.
const REGION_BYTES: u64 = 1 << 20;
/// Slots that share a lock with others wait for each other.
const LOCKS_MAX: usize = 1 << 16;
/// Headers that are read at a time.
const SCAN_DEPTH: usize = 16;

/// Before an object's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    /// The store's: objects of one that was on the volume before are none of this one.
    store: U64,
    key: U64,
    /// Puts of this key so far.
    version: U32,
    /// Of the whole slot, as CRC-32C with a checksum of 0.
    checksum: U32,
}

const HEADER: usize = size_of::<Header>();

/// A slot of the table in memory.
#[derive(Default)]
struct Slot {
    /// One more than the key, 0 if there is none.
    key: AtomicU64,
    /// The version that was acknowledged last, 0 if there is none.
    version: AtomicU32,
}

/// The store, as all shards know it.
pub(super) struct Store {
    /// Drawn when it is made.
    id: u64,
    slot_bytes: usize,
    slots: Box<[Slot]>,
    locks: Locks,
}

impl Store {
    /// An empty store of so many slots. Whatever the volume holds is no object of it.
    pub(super) fn new(id: u64, slots: usize, slot_bytes: usize) -> Self {
        Self {
            id,
            slot_bytes,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            locks: Locks::new(slots.min(LOCKS_MAX)),
        }
    }

    /// Bytes of an object with its header.
    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The put of a key that was acknowledged last.
    pub(super) fn version(&self, key: u64) -> Option<u32> {
        let slot = &self.slots[self.find(key)?];
        Some(slot.version.load(Ordering::Acquire)).filter(|&version| version > 0)
    }

    /// The same store, as its headers on the volume tell of it, where nothing puts meanwhile.
    pub(super) async fn opened_anew(&self, destination: &Destination) -> Result<Self, BenchError> {
        let store = Rc::new(Self::new(self.id, self.slots.len(), self.slot_bytes));
        let tasks: Vec<_> = (0..SCAN_DEPTH)
            .map(|first| {
                let (store, destination) = (Rc::clone(&store), destination.clone());
                shard::spawn_joined(async move { store.scan(&destination, first).await })
            })
            .collect();
        end_all(tasks).await?;
        Ok(Rc::into_inner(store).unwrap_or_else(|| unreachable!("all tasks that had it have ended")))
    }

    /// Reads every [`SCAN_DEPTH`]th header.
    async fn scan(&self, destination: &Destination, first: usize) -> Result<(), RequestError> {
        let block = usize::try_from(destination.block()).unwrap_or(usize::MAX).max(HEADER);
        let mut buffer = shard::buffer(block);
        for (number, slot) in self.slots.iter().enumerate().skip(first).step_by(SCAN_DEPTH) {
            let result;
            (result, buffer) = destination.read(self.offset(number), buffer).await;
            result?;
            if let Ok((header, _)) = Header::read_from_prefix(&buffer)
                && header.magic == MAGIC
                && header.store.get() == self.id
            {
                slot.key.store(header.key.get().wrapping_add(1), Ordering::Relaxed);
                slot.version.store(header.version.get(), Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// The first byte of a slot.
    fn offset(&self, slot: usize) -> u64 {
        (slot * self.slot_bytes) as u64
    }

    /// The slots in which a key may be, the likeliest first.
    fn probes(&self, key: u64) -> impl Iterator<Item = usize> + '_ {
        let count = self.slots.len();
        let hash = Rng::new(key).below(count as u64);
        let first = usize::try_from(hash).unwrap_or_else(|_| unreachable!("it is below a usize"));
        (first..count).chain(0..first)
    }

    /// The slot of a key, if there is one.
    fn find(&self, key: u64) -> Option<usize> {
        for slot in self.probes(key) {
            match self.slots[slot].key.load(Ordering::Acquire) {
                0 => return None,
                found if found == key + 1 => return Some(slot),
                _ => {}
            }
        }
        None
    }

    /// The slot of a key, which it gets now if it had none.
    fn claim(&self, key: u64) -> Result<usize, BenchError> {
        for slot in self.probes(key) {
            let word = &self.slots[slot].key;
            match word.compare_exchange(0, key + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(slot),
                Err(found) if found == key + 1 => return Ok(slot),
                Err(_) => {}
            }
        }
        Err(BenchError::StoreFull(self.slots.len()))
    }

    /// Reads an object into a buffer of a slot's size; `None` if there is none.
    pub(super) async fn get(
        &self,
        destination: &Destination,
        key: u64,
        buffer: Buffer,
    ) -> Result<Option<Buffer>, BenchError> {
        let Some(slot) = self.find(key) else { return Ok(None) };
        let _held = self.locks.shared(slot as u64 * REGION_BYTES, 1).await;
        let version = self.slots[slot].version.load(Ordering::Acquire);
        if version == 0 {
            return Ok(None);
        }
        let (result, mut buffer) = destination.read(self.offset(slot), buffer).await;
        result?;
        self.check(&mut buffer, slot, key, version).map_err(BenchError::WrongData)?;
        Ok(Some(buffer))
    }

    /// Writes an object: the buffer is a slot's, with room for the header. Returns the buffer, unless the
    /// engine still has a hold on it.
    pub(super) async fn put(
        &self,
        destination: &Destination,
        key: u64,
        mut buffer: Buffer,
    ) -> Result<Option<Buffer>, BenchError> {
        let slot = self.claim(key)?;
        let _held = self.locks.alone(slot as u64 * REGION_BYTES, 1).await;
        let version = self.slots[slot].version.load(Ordering::Acquire) + 1;
        self.seal(&mut buffer, key, version);
        let data = buffer.freeze();
        destination.write(self.offset(slot), data.clone()).await?;
        self.slots[slot].version.store(version, Ordering::Release);
        Ok(data.try_into_buffer().ok())
    }

    /// Makes a slot's bytes an object.
    fn seal(&self, bytes: &mut [u8], key: u64, version: u32) {
        let header = Header {
            magic: MAGIC,
            store: self.id.into(),
            key: key.into(),
            version: version.into(),
            checksum: U32::ZERO,
        };
        bytes[..HEADER].copy_from_slice(header.as_bytes());
        let header = Header { checksum: crc32c(bytes).into(), ..header };
        bytes[..HEADER].copy_from_slice(header.as_bytes());
    }

    /// What is wrong with a slot that was read.
    fn check(&self, bytes: &mut [u8], slot: usize, key: u64, version: u32) -> Result<(), String> {
        let at = self.offset(slot);
        let Ok((header, _)) = Header::read_from_prefix(bytes) else { return Err("a short slot".to_owned()) };
        if header.magic != MAGIC || header.store.get() != self.id || header.key.get() != key {
            return Err(format!("the slot at byte {at} is not of object {key}"));
        }
        if header.version.get() != version {
            let found = header.version;
            return Err(format!(
                "object {key} at byte {at} is of put {found}, the last acknowledged is {version}"
            ));
        }
        bytes[..HEADER].copy_from_slice(Header { checksum: U32::ZERO, ..header }.as_bytes());
        if crc32c(bytes) != header.checksum.get() {
            return Err(format!("object {key} at byte {at} is torn: its checksum doesn't match"));
        }
        Ok(())
    }

    /// How many objects there are.
    pub(super) fn objects(&self) -> u64 {
        self.acknowledged().count() as u64
    }

    /// All objects, by slot: the key and the last acknowledged version.
    pub(super) fn acknowledged(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let pair = |slot: &Slot| (slot.key.load(Ordering::Acquire), slot.version.load(Ordering::Acquire));
        self.slots
            .iter()
            .map(pair)
            .filter(|(_, version)| *version > 0)
            .map(|(key, version)| (key - 1, version))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a CRC of 32 bits")]
fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_slot_until_all_are_taken() {
        let store = Store::new(1, 7, 4096);
        assert_eq!(store.find(3), None);
        let mut slots: Vec<usize> = (0..7).map(|key| store.claim(key).unwrap()).collect();
        for (key, &slot) in (0..).zip(&slots) {
            assert_eq!((store.claim(key).unwrap(), store.find(key)), (slot, Some(slot)));
        }
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6]);
        assert!(matches!(store.claim(7), Err(BenchError::StoreFull(7))));
        assert_eq!(store.find(7), None);
    }

    #[test]
    fn what_is_not_the_last_acknowledged_object_is_told() {
        let store = Store::new(1, 4, 4096);
        let mut bytes = vec![7; 4096];
        store.seal(&mut bytes, 5, 2);
        let checked = |change: &dyn Fn(&mut [u8]), key, version| {
            let mut bytes = bytes.clone();
            change(&mut bytes);
            store.check(&mut bytes, 1, key, version)
        };
        assert_eq!(checked(&|_| {}, 5, 2), Ok(()));
        let other = Store::new(2, 4, 4096).check(&mut bytes.clone(), 1, 5, 2);
        assert!(other.unwrap_err().contains("not of object 5"));
        assert!(checked(&|_| {}, 6, 2).unwrap_err().contains("not of object 6"));
        assert!(checked(&|_| {}, 5, 3).unwrap_err().contains("the last acknowledged is 3"));
        for torn in [HEADER, 512, 4095] {
            let torn = checked(&|bytes| bytes[torn] ^= 1, 5, 2);
            assert!(torn.unwrap_err().contains("torn"));
        }
        assert!(checked(&|bytes| bytes.fill(0), 5, 2).is_err());
    }
}
