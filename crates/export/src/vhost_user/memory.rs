//! What a ring asks of a machine's memory.

use std::{cell::RefCell, ops::Range};

use pinstripe_runtime::uring::guest_memory::{self, GuestFault};

/// Memory that another program reads and writes at any moment. Addresses are the machine's.
pub trait GuestMemory {
    /// Copies from `at` on.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), GuestFault>;

    /// Copies to `at` and behind it.
    fn write(&self, at: u64, data: &[u8]) -> Result<(), GuestFault>;

    /// Loads the little-endian word at `at`, and with it what was stored before it (acquire).
    fn load(&self, at: u64) -> Result<u16, GuestFault>;

    /// Stores a little-endian word at `at`, after what was stored before (release).
    fn store(&self, at: u64, value: u16) -> Result<(), GuestFault>;
}

impl GuestMemory for guest_memory::GuestMemory {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), GuestFault> {
        guest_memory::GuestMemory::read(self, at, into)
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), GuestFault> {
        guest_memory::GuestMemory::write(self, at, data)
    }

    fn load(&self, at: u64) -> Result<u16, GuestFault> {
        guest_memory::GuestMemory::load(self, at)
    }

    fn store(&self, at: u64, value: u16) -> Result<(), GuestFault> {
        guest_memory::GuestMemory::store(self, at, value)
    }
}

/// Plain memory from address 0 on, for tests and the fuzzer.
pub(super) struct Bytes(pub RefCell<Vec<u8>>);

impl Bytes {
    fn range(&self, at: u64, length: usize) -> Result<Range<usize>, GuestFault> {
        let start = usize::try_from(at).map_err(|_| GuestFault::Outside)?;
        let end = start.checked_add(length).ok_or(GuestFault::Outside)?;
        if end <= self.0.borrow().len() { Ok(start..end) } else { Err(GuestFault::Outside) }
    }
}

impl GuestMemory for Bytes {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), GuestFault> {
        let range = self.range(at, into.len())?;
        into.copy_from_slice(&self.0.borrow()[range]);
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), GuestFault> {
        let range = self.range(at, data.len())?;
        self.0.borrow_mut()[range].copy_from_slice(data);
        Ok(())
    }

    fn load(&self, at: u64) -> Result<u16, GuestFault> {
        let mut bytes = [0; 2];
        self.read(at, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn store(&self, at: u64, value: u16) -> Result<(), GuestFault> {
        self.write(at, &value.to_le_bytes())
    }
}
