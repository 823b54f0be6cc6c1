//! A small NBD client: fixed newstyle, simple replies, one request at a time. Enough for the demo.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use crate::failure::Failure;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const CLIENT_FIXED_NEWSTYLE: u32 = 1 | 2;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
/// A server that is silent for so long is taken for hung.
const PATIENCE: Duration = Duration::from_mins(1);

/// A connection in its transmission phase.
pub struct Client {
    stream: UnixStream,
    cookie: u64,
}

impl Client {
    /// Connects and asks for the export `name`.
    pub fn connect(socket: &Path, name: &str) -> Result<Self, Failure> {
        let mut stream = UnixStream::connect(socket)
            .map_err(|error| Failure::new(format!("can't connect to {}: {error}", socket.display())))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let greeting: [u8; 18] = receive(&mut stream)?;
        if greeting[..8] != MAGIC.to_be_bytes() || greeting[8..16] != OPTION_MAGIC.to_be_bytes() {
            return Err(Failure::new("the server does not speak NBD"));
        }
        let length = u32::try_from(name.len())?;
        let mut option = CLIENT_FIXED_NEWSTYLE.to_be_bytes().to_vec();
        option.extend(OPTION_MAGIC.to_be_bytes());
        option.extend(OPTION_GO.to_be_bytes());
        // The name with its length, and a count of information requests: none.
        option.extend((4 + length + 2).to_be_bytes());
        option.extend(length.to_be_bytes());
        option.extend(name.as_bytes());
        option.extend([0, 0]);
        stream.write_all(&option)?;
        let mut client = Self { stream, cookie: 0 };
        while client.option_reply()? != REPLY_ACK {}
        Ok(client)
    }

    fn option_reply(&mut self) -> Result<u32, Failure> {
        let header: [u8; 20] = receive(&mut self.stream)?;
        let kind = big_u32(&header[12..]);
        if header[..8] != OPTION_REPLY_MAGIC.to_be_bytes() || !matches!(kind, REPLY_ACK | REPLY_INFO) {
            return Err(Failure::new(format!("the server refused the export with {kind:#x}")));
        }
        let payload = u64::from(big_u32(&header[16..]));
        std::io::copy(&mut Read::by_ref(&mut self.stream).take(payload), &mut std::io::sink())?;
        Ok(kind)
    }

    /// Reads `buffer.len()` bytes from `offset`.
    pub fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Failure> {
        self.request(READ, offset, u32::try_from(buffer.len())?, &[])?;
        self.reply()?;
        Ok(self.stream.read_exact(buffer)?)
    }

    /// Writes `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        self.request(WRITE, offset, u32::try_from(data.len())?, data)?;
        self.reply()
    }

    /// Makes everything durable that was written.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.request(FLUSH, 0, 0, &[])?;
        self.reply()
    }

    /// Leaves. The server does not answer to it.
    pub fn disconnect(&mut self) -> Result<(), Failure> {
        self.request(DISCONNECT, 0, 0, &[])
    }

    fn request(&mut self, kind: u16, offset: u64, length: u32, data: &[u8]) -> Result<(), Failure> {
        self.cookie += 1;
        let mut header = REQUEST_MAGIC.to_be_bytes().to_vec();
        header.extend([0, 0]);
        header.extend(kind.to_be_bytes());
        header.extend(self.cookie.to_be_bytes());
        header.extend(offset.to_be_bytes());
        header.extend(length.to_be_bytes());
        self.stream.write_all(&header)?;
        Ok(self.stream.write_all(data)?)
    }

    fn reply(&mut self) -> Result<(), Failure> {
        let header: [u8; 16] = receive(&mut self.stream)?;
        if big_u32(&header) != REPLY_MAGIC || header[8..] != self.cookie.to_be_bytes() {
            return Err(Failure::new("the server answered something else than was asked"));
        }
        match big_u32(&header[4..]) {
            0 => Ok(()),
            error => Err(Failure::new(format!("the server answered with error {error}"))),
        }
    }
}

fn receive<const N: usize>(stream: &mut UnixStream) -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn big_u32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |word| u32::from_be_bytes(*word))
}
