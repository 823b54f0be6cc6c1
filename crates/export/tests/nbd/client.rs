//! Messages of a client, built from numbers, so that the tests don't share the server's own layouts.

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
