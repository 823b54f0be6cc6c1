//! A small NBD client, written from the protocol's document and apart from the server that it talks to.
//!
//! Fixed newstyle with `NBD_OPT_GO`, simple replies, one request at a time; for more in flight, a test opens
//! more connections. <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::pattern::Store;

const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
/// The request's flag that its bytes are durable when it is answered.
const FORCED: u16 = 1;
/// How long the server may take for one answer.
const PATIENCE: Duration = Duration::from_mins(2);

/// A connection to the default export of a server.
pub struct Client {
    stream: UnixStream,
    /// Bytes of the export.
    pub size: u64,
    cookie: u64,
}

impl Client {
    /// Connects and negotiates.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).with_context(|| format!("connect {}", socket.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut client = Self { stream, size: 0, cookie: 0 };
        client.negotiate().context("NBD negotiation")?;
        Ok(client)
    }

    fn negotiate(&mut self) -> Result<()> {
        ensure!(self.take::<8>()? == *b"NBDMAGIC", "not an NBD server");
        ensure!(self.take_u64()? == OPTION_MAGIC, "not a newstyle server");
        let flags = u16::from_be_bytes(self.take()?);
        ensure!(flags & 3 == 3, "handshake flags {flags:#x}: fixed newstyle and no-zeroes are needed");
        let mut hello = Vec::new();
        hello.extend(3_u32.to_be_bytes());
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(OPTION_GO.to_be_bytes());
        hello.extend(6_u32.to_be_bytes()); // bytes that follow: no name, no information requests
        hello.extend([0; 6]);
        self.stream.write_all(&hello)?;
        loop {
            ensure!(self.take_u64()? == OPTION_REPLY_MAGIC, "not an option reply");
            ensure!(self.take_u32()? == OPTION_GO, "a reply to another option");
            let kind = self.take_u32()?;
            let mut payload = vec![0; usize::try_from(self.take_u32()?)?];
            self.stream.read_exact(&mut payload)?;
            match kind {
                REPLY_ACK => break,
                REPLY_INFO if payload.len() == 12 && payload[..2] == [0, 0] => {
                    self.size = u64::from_be_bytes(payload[2..10].try_into()?);
                }
                REPLY_INFO => {}
                _ => bail!("refused: {kind:#x} {}", String::from_utf8_lossy(&payload)),
            }
        }
        ensure!(self.size > 0, "the server did not send the size of the export");
        Ok(())
    }

    /// Sends a request and takes the head of its reply.
    fn request(&mut self, kind: u16, offset: u64, length: usize, payload: &[u8]) -> Result<()> {
        self.request_with(0, kind, offset, length, payload)
    }

    fn request_with(
        &mut self,
        flags: u16,
        kind: u16,
        offset: u64,
        length: usize,
        payload: &[u8],
    ) -> Result<()> {
        self.cookie += 1;
        let mut request = Vec::with_capacity(28 + payload.len());
        request.extend(REQUEST_MAGIC.to_be_bytes());
        request.extend(flags.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(u32::try_from(length)?.to_be_bytes());
        request.extend(payload);
        self.stream.write_all(&request)?;
        ensure!(self.take_u32()? == REPLY_MAGIC, "not a simple reply");
        let error = self.take_u32()?;
        ensure!(self.take_u64()? == self.cookie, "a reply to another request");
        ensure!(error == 0, "the server answered error {error}");
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn take_u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    fn take_u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.take()?))
    }
}

impl Store for Client {
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.request(READ, offset, bytes.len(), &[])?;
        Ok(self.stream.read_exact(bytes)?)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.request(WRITE, offset, bytes.len(), bytes)
    }

    fn flush(&mut self) -> Result<()> {
        self.request(FLUSH, 0, 0, &[])
    }

    fn write_forced(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.request_with(FORCED, WRITE, offset, bytes.len(), bytes)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // NBD_CMD_DISC, which has no reply; the server may be gone already.
        let mut request = Vec::from(REQUEST_MAGIC.to_be_bytes());
        request.extend([0, 0, 0, 2]);
        request.extend([0; 20]);
        let _ = self.stream.write_all(&request);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::{Child, Command};

    use super::*;
    use crate::pattern::{self, Run};

    struct Server(Child, PathBuf);

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
            let _ = std::fs::remove_file(&self.1);
        }
    }

    #[test]
    fn the_pattern_goes_through_a_foreign_server_and_back() {
        let socket = std::env::temp_dir().join(format!("xtask-nbd-{}", std::process::id()));
        let started = Command::new("nbdkit").arg("-fU").arg(&socket).args(["memory", "4M"]).spawn();
        let child = started.expect("this test needs nbdkit, which `cargo xtask test` installs");
        let server = Server(child, socket);
        let mut client = loop {
            match Client::connect(&server.1) {
                Ok(client) => break client,
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        assert_eq!(client.size, 4 << 20);
        let runs = [Run::new(0..100, 1), Run::new(7..9, 2)];
        pattern::write(&mut client, &runs).unwrap();
        pattern::verify(&mut client, 1024, &runs).unwrap();
        assert!(pattern::verify(&mut client, 1024, &runs[..1]).is_err());
        assert!(client.read(4 << 20, &mut [0; 512]).is_err(), "a read past the end is refused");
    }
}
