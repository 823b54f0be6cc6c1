//! As much of an NBD client as the tests need.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use crate::world::PATIENCE;

pub struct Client {
    stream: UnixStream,
    pub size_bytes: u64,
    pub flags: u16,
}

impl Client {
    /// Opens the default export, with the oldest of the options.
    pub fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
        let mut export = [0; 10];
        stream.read_exact(&mut export).unwrap();
        let size_bytes = u64::from_be_bytes(*export.first_chunk().unwrap());
        let flags = u16::from_be_bytes([export[8], export[9]]);
        Self { stream, size_bytes, flags }
    }

    fn request(&mut self, kind: u16, offset: u64, length: usize, data: &[u8]) -> u32 {
        self.say(&[&header(kind, offset, length), data].concat());
        self.answer()
    }

    /// Sends bytes of requests.
    pub fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Waits for the answer to a request; its error number. What was read follows it.
    pub fn answer(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        u32::from_be_bytes(*reply[4..].first_chunk().unwrap())
    }

    /// Writes; the error number, 0 for none.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.request(1, offset, data.len(), data)
    }

    pub fn read(&mut self, offset: u64, length: usize) -> Vec<u8> {
        self.say(&header(0, offset, length));
        self.answer_of_read(length)
    }

    /// What a read has found that was asked for with [`Client::say`].
    pub fn answer_of_read(&mut self, length: usize) -> Vec<u8> {
        assert_eq!(self.answer(), 0);
        self.rest(length)
    }

    /// What follows the answer to a read.
    pub fn rest(&mut self, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data).unwrap();
        data
    }

    /// Waits for the end of the connection, on which nothing is due.
    pub fn is_ended(&mut self) -> bool {
        self.stream.read(&mut [0]).is_ok_and(|count| count == 0)
    }

    pub fn flush(&mut self) {
        assert_eq!(self.request(3, 0, 0, &[]), 0);
    }
}

/// Of a request: 0 reads, 1 writes, 3 flushes.
pub fn header(kind: u16, offset: u64, length: usize) -> Vec<u8> {
    let mut header = 0x2560_9513u32.to_be_bytes().to_vec();
    header.extend([0, 0]);
    header.extend(kind.to_be_bytes());
    header.extend([7; 8]);
    header.extend(offset.to_be_bytes());
    header.extend(u32::try_from(length).unwrap().to_be_bytes());
    header
}

/// Bytes that differ by place and `seed`.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let word = |index: u64| (index + (seed << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..).flat_map(word).take(length).collect()
}
