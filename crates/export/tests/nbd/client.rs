//! Messages of a client, built from numbers, so that the tests don't share the server's own layouts.

use std::rc::Rc;

use crate::world::Pipe;

/// What a client speaks through.
pub trait Wire {
    /// Has all of `bytes` sent. False if the other end is gone.
    async fn send_all(&self, bytes: &[u8]) -> bool;
    /// Receives exactly `length` bytes; `None` if the end comes before.
    async fn receive_exactly(&self, length: usize) -> Option<Vec<u8>>;
}

impl Wire for Pipe {
    async fn send_all(&self, bytes: &[u8]) -> bool {
        self.send_all(bytes).await
    }

    async fn receive_exactly(&self, length: usize) -> Option<Vec<u8>> {
        self.receive_exactly(length).await
    }
}

/// Client flags with fixed newstyle and without zeroes.
pub const FLAGS: [u8; 4] = [0, 0, 0, 3];

pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Data of INFO and GO.
pub fn info_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend(u16::try_from(wanted.len()).unwrap().to_be_bytes());
    bytes.extend(wanted.iter().flat_map(|fact| fact.to_be_bytes()));
    bytes
}

/// Data of the metadata options.
pub fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend(u32::try_from(queries.len()).unwrap().to_be_bytes());
    bytes.extend(queries.iter().flat_map(|query| string(query)));
    bytes
}

pub fn string(text: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// A reply to an option.
#[derive(Debug, PartialEq, Eq)]
pub struct OptionReply {
    pub option: u32,
    pub kind: u32,
    pub data: Vec<u8>,
}

/// Splits what the server sent in answer to options.
pub fn option_replies(mut bytes: &[u8]) -> Vec<OptionReply> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(u64::from_be_bytes(bytes[..8].try_into().unwrap()), 0x0003_e889_0455_65a9);
        let length = word(&bytes[16..]) as usize;
        let data = bytes[20..20 + length].to_vec();
        replies.push(OptionReply { option: word(&bytes[8..]), kind: word(&bytes[12..]), data });
        bytes = &bytes[20 + length..];
    }
    replies
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// A reply of the transmission phase. `length` is what a READ with this cookie asked for, 0 for other
/// commands.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
}

impl<W: Wire> Wire for Rc<W> {
    async fn send_all(&self, bytes: &[u8]) -> bool {
        (**self).send_all(bytes).await
    }

    async fn receive_exactly(&self, length: usize) -> Option<Vec<u8>> {
        (**self).receive_exactly(length).await
    }
}

/// Takes the greeting, and answers it.
pub async fn greet(pipe: &impl Wire) {
    assert_eq!(pipe.receive_exactly(18).await.unwrap(), b"NBDMAGICIHAVEOPT\x00\x03");
    assert!(pipe.send_all(&FLAGS).await);
}

/// Options that choose the array, with or without structured replies.
pub async fn choose(pipe: &impl Wire, structured: bool) {
    greet(pipe).await;
    choose_greeted(pipe, structured).await;
}

/// The same, after the greeting.
pub async fn choose_greeted(pipe: &impl Wire, structured: bool) {
    let mut bytes = Vec::new();
    if structured {
        bytes.extend(option(8, &[]));
    }
    bytes.extend(option(7, &info_data("array", &[3])));
    assert!(pipe.send_all(&bytes).await);
    loop {
        let header = pipe.receive_exactly(20).await.unwrap();
        let (option, kind) = (word(&header[8..]), word(&header[12..]));
        let length = word(&header[16..]) as usize;
        if length > 0 {
            pipe.receive_exactly(length).await.unwrap();
        }
        if (option, kind) == (7, 1) {
            return;
        }
        assert!(kind < 1 << 31, "option {option} was refused");
    }
}

/// Receives the next reply; `None` at the end. `length_of` gives the length of the READ with a cookie, else
/// 0.
pub async fn reply(pipe: &impl Wire, length_of: impl Fn(u64) -> usize) -> Option<Reply> {
    let magic = word(&pipe.receive_exactly(4).await?);
    if magic == 0x6744_6698 {
        let rest = pipe.receive_exactly(12).await?;
        let cookie = u64::from_be_bytes(rest[4..].try_into().unwrap());
        let error = word(&rest);
        let length = if error == 0 { length_of(cookie) } else { 0 };
        let data = if length > 0 { pipe.receive_exactly(length).await? } else { Vec::new() };
        return Some(Reply { cookie, error, data });
    }
    assert_eq!(magic, 0x668e_33ef);
    let rest = pipe.receive_exactly(16).await?;
    let (flags, kind) = (rest[..2].to_vec(), u16::from_be_bytes(rest[2..4].try_into().unwrap()));
    assert_eq!(flags, [0, 1], "every reply of this server is one chunk");
    let cookie = u64::from_be_bytes(rest[4..12].try_into().unwrap());
    let length = word(&rest[12..]) as usize;
    let payload = if length > 0 { pipe.receive_exactly(length).await? } else { Vec::new() };
    Some(match kind {
        0 => Reply { cookie, error: 0, data: Vec::new() },
        1 => Reply { cookie, error: 0, data: payload[8..].to_vec() },
        0x8001 => Reply { cookie, error: word(&payload), data: Vec::new() },
        other => panic!("chunk of type {other}"),
    })
}
