//! The one thing that is read of a client's first message before s2n-tls has a key: which keys it names.

/// The number of the extension with the keys' names (RFC 8446, 4.2.11).
const PRE_SHARED_KEY: u16 = 41;

/// A message from its front to its end. Every length in it is the client's word.
struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(front)
    }

    fn number(&mut self) -> Option<u16> {
        let &[high, low] = self.take(2)? else { return None };
        Some(u16::from_be_bytes([high, low]))
    }

    /// Bytes with their length in two bytes before them.
    fn field(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.take(length.into())
    }

    /// The same with their length in one byte.
    fn short_field(&mut self) -> Option<&'a [u8]> {
        let &[length] = self.take(1)? else { return None };
        self.take(length.into())
    }
}

/// The names of the first keys that a ClientHello offers, `max` at most; none if it can't be read.
pub(crate) fn identities(hello: &[u8], max: usize) -> Vec<&[u8]> {
    keys(hello).map_or_else(Vec::new, |mut offered| {
        std::iter::from_fn(move || {
            let identity = offered.field()?;
            // Its age, which keys of this kind don't have.
            offered.take(4)?;
            Some(identity)
        })
        .take(max)
        .collect()
    })
}

/// The list of keys in it.
fn keys(hello: &[u8]) -> Option<Message<'_>> {
    let mut hello = Message(hello);
    // Version and random bytes, then what TLS 1.2 would go by.
    hello.take(2 + 32)?;
    hello.short_field()?;
    hello.field()?;
    hello.short_field()?;
    let mut extensions = Message(hello.field()?);
    loop {
        let (kind, mut extension) = (extensions.number()?, Message(extensions.field()?));
        if kind == PRE_SHARED_KEY {
            return extension.field().map(Message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(bytes: &[u8]) -> Vec<u8> {
        [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
    }

    fn hello(names: &[&[u8]]) -> Vec<u8> {
        let offered: Vec<u8> = names.iter().flat_map(|name| [field(name), vec![0; 4]].concat()).collect();
        let binders = field(&[33, 0]);
        let keys = [vec![0, 41], field(&[field(&offered), binders].concat())].concat();
        let extensions = [vec![0, 43], field(&[2, 3, 4]), keys].concat();
        [vec![3, 3], vec![7; 32], vec![2, 1, 1], field(&[19, 1]), vec![1, 0], field(&extensions)].concat()
    }

    #[test]
    fn the_first_names_are_found() {
        let names: [&[u8]; 3] = [b"one", b"", b"three"];
        assert_eq!(identities(&hello(&names), 4), names);
        assert_eq!(identities(&hello(&names), 2), names[..2]);
        assert!(identities(&hello(&[]), 4).is_empty());
    }

    #[test]
    fn what_is_cut_or_changed_anywhere_is_read_as_far_as_it_goes() {
        let whole = hello(&[b"one", b"two"]);
        for length in 0..whole.len() {
            assert!(identities(&whole[..length], 4).len() <= 2);
            for byte in [0, 1, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[length] = byte;
                assert!(identities(&changed, 4).len() <= 4);
            }
        }
    }
}
