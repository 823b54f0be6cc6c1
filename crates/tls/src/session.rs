//! One end of a connection, without the connection: what s2n-tls makes of buffers.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ffi::{c_int, c_void},
    fmt,
    rc::Rc,
    task::{Poll, Waker},
};

use s2n_tls::{
    callbacks::{ClientHelloCallback, ConnectionFuture},
    config::Config,
    connection::Connection,
    enums::{Blinding, Mode, PskHmac, SerializationVersion, Version},
    error::{Error, ErrorType},
    psk::Psk,
    security::DEFAULT_TLS13,
};

use crate::hello::identities;

/// What keys are used with, and nothing else.
const CIPHERS: [&str; 2] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"];
/// Keys that a client may name: what is done for it before it has proved anything doesn't grow with them.
const OFFERS_MAX: usize = 4;
/// Bytes before each record: its kind, its version and its length.
const HEADER: usize = 5;

/// The hash function that a key was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256: TLS_AES_128_GCM_SHA256.
    Sha256,
    /// SHA-384: TLS_AES_256_GCM_SHA384.
    Sha384,
}

/// A key that both ends have, by the name that is sent in clear.
#[derive(Debug)]
pub struct Key {
    identity: Vec<u8>,
    psk: Psk,
}

/// Why there is no TLS with a peer. No key is repeated.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The key itself.
    #[error("the key can't be used: {0}")]
    Key(String),
    /// The peer has other keys or says something else.
    #[error("TLS can't be agreed on: {0}")]
    Refused(String),
    /// The peer has closed the connection, as it does if it knows no such key.
    #[error(
        "the other end closed the connection during TLS's handshake: perhaps it has another key, or none"
    )]
    Closed,
    /// The peer says nothing.
    #[error("the other end did not end TLS's handshake in time")]
    TimedOut,
    /// The connection can't be left to another process.
    #[error("the state of TLS can't be handed on: {0}")]
    Left(String),
}

impl Key {
    /// `secret` has 16 bytes at least.
    pub fn new(identity: &[u8], secret: &[u8], hash: Hash) -> Result<Self, TlsError> {
        let make = || -> Result<Psk, Error> {
            let mut builder = Psk::builder()?;
            builder.set_identity(identity)?;
            builder.set_secret(secret)?;
            builder.set_hmac(match hash {
                Hash::Sha256 => PskHmac::SHA256,
                Hash::Sha384 => PskHmac::SHA384,
            })?;
            builder.build()
        };
        let psk = make().map_err(|error| TlsError::Key(words(&error)))?;
        Ok(Self { identity: identity.to_vec(), psk })
    }
}

/// The keys of an end that is connected to.
pub struct Keys {
    config: Config,
    count: usize,
}

impl Keys {
    /// However many they are, a connection costs the same.
    pub fn new(keys: Vec<Key>) -> Result<Self, TlsError> {
        let known: BTreeMap<_, _> = keys.into_iter().map(|Key { identity, psk }| (identity, psk)).collect();
        let count = known.len();
        let config = config(Some(Known(known))).map_err(|error| TlsError::Key(words(&error)))?;
        Ok(Self { config, count })
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.count)
    }
}

/// By identity.
struct Known(BTreeMap<Vec<u8>, Psk>);

impl ClientHelloCallback for Known {
    /// Gives s2n-tls the first key that the client names and that is known; it compares each of the client's
    /// with each that it has.
    fn on_client_hello(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<std::pin::Pin<Box<dyn ConnectionFuture>>>, Error> {
        let hello = connection.client_hello()?.raw_message()?;
        let offered = identities(&hello, OFFERS_MAX);
        if let Some(psk) = offered.into_iter().find_map(|identity| self.0.get(identity)) {
            connection.append_psk(psk)?;
        }
        Ok(None)
    }
}

fn config(known: Option<Known>) -> Result<Config, Error> {
    let mut config = Config::builder();
    config.set_security_policy(&DEFAULT_TLS13)?;
    // A client trusts no certificate, so a server that knows no key has nothing to say.
    config.with_system_certs(false)?;
    config.set_serialization_version(SerializationVersion::V1)?;
    if let Some(known) = known {
        config.set_client_hello_callback(known)?;
    }
    config.build()
}

/// Records in both directions. s2n-tls has its address.
#[derive(Default)]
struct Records {
    received: RefCell<Received>,
    /// Nothing more will be received.
    closed: Cell<bool>,
    to_send: RefCell<Vec<u8>>,
}

/// What came from the peer. s2n-tls gets whole records only: between two of them it keeps nothing that is not
/// ours, so that a connection can be left to another process.
#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    /// Where what s2n-tls hasn't got begins.
    start: usize,
    /// Bytes of the record that it is getting.
    rest: usize,
}

impl Received {
    /// What s2n-tls may have now.
    fn next(&mut self) -> &[u8] {
        let bytes = &self.bytes[self.start..];
        if self.rest == 0
            && let Some(&[.., high, low]) = bytes.first_chunk::<HEADER>()
        {
            let whole = HEADER + usize::from(u16::from_be_bytes([high, low]));
            self.rest = if bytes.len() < whole { 0 } else { whole };
        }
        &bytes[..self.rest]
    }

    fn take(&mut self, count: usize) {
        self.start += count;
        self.rest -= count;
        if self.start == self.bytes.len() {
            // A connection that rests holds nothing.
            *self = Self::default();
        }
    }
}

/// One end.
pub(crate) struct Session {
    connection: Connection,
    /// Something was wrong: nothing that comes after it counts.
    failed: bool,
    /// The connection has its address: it is dropped after that one, as fields are in their order.
    records: Rc<Records>,
}

/// What [`Session::read`] found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// So many bytes, at least one.
    Bytes(usize),
    /// More records are needed.
    Nothing,
    /// The peer has said its last word.
    End,
}

impl Session {
    pub(crate) fn client(key: &Key) -> Result<Self, TlsError> {
        let make = || -> Result<Self, Error> {
            let mut session = Self::new(Mode::Client, config(None)?)?;
            session.connection.append_psk(&key.psk)?;
            Ok(session)
        };
        make().map_err(|error| TlsError::Key(words(&error)))
    }

    pub(crate) fn server(keys: &Keys) -> Result<Self, TlsError> {
        Self::new(Mode::Server, keys.config.clone()).map_err(|error| TlsError::Key(words(&error)))
    }

    /// Goes on with a connection that another process has left.
    pub(crate) fn resumed(keys: &Keys, state: &[u8], received: &[u8]) -> Result<Self, TlsError> {
        let make = || -> Result<Self, Error> {
            let mut session = Self::new(Mode::Server, keys.config.clone())?;
            session.connection.deserialize(state)?;
            session.feed(received);
            Ok(session)
        };
        make().map_err(|error| TlsError::Left(words(&error)))
    }

    fn new(mode: Mode, config: Config) -> Result<Self, Error> {
        let records = Rc::<Records>::default();
        let mut connection = Connection::new(mode);
        connection.set_config(config)?;
        // Or it would put the thread to sleep after an error.
        connection.set_blinding(Blinding::SelfService)?;
        // Callbacks want one; ours have their answer at once.
        connection.set_waker(Some(Waker::noop()))?;
        connection.set_receive_callback(Some(receive))?.set_send_callback(Some(send))?;
        let context = Rc::as_ptr(&records).cast_mut().cast::<c_void>();
        // SAFETY: the records outlive the connection, as said there. The callbacks make a shared reference of
        // the address only.
        unsafe { connection.set_receive_context(context)?.set_send_context(context)? };
        Ok(Self { connection, failed: false, records })
    }

    /// Records came from the peer.
    pub(crate) fn feed(&mut self, records: &[u8]) {
        let mut received = self.records.received.borrow_mut();
        // What s2n-tls has got goes, also where what comes never ends with a record.
        let start = std::mem::take(&mut received.start);
        received.bytes.drain(..start);
        received.bytes.extend_from_slice(records);
    }

    /// Nothing more will come.
    pub(crate) fn close(&mut self) {
        self.records.closed.set(true);
    }

    /// What is to be sent to the peer next.
    pub(crate) fn take_records(&mut self) -> Vec<u8> {
        self.records.to_send.take()
    }

    /// Goes on shaking hands. True when that is over.
    pub(crate) fn shake_hands(&mut self) -> Result<bool, TlsError> {
        match self.connection.poll_negotiate() {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(_)) => self.check().map(|()| true),
            Poll::Ready(Err(error)) if error.kind() == ErrorType::ConnectionClosed => Err(TlsError::Closed),
            Poll::Ready(Err(error)) => Err(TlsError::Refused(words(&error))),
        }
    }

    /// Nothing but a key that both have may have led here.
    fn check(&self) -> Result<(), TlsError> {
        let read = |error: Error| TlsError::Refused(words(&error));
        let version = self.connection.actual_protocol_version().map_err(read)?;
        let cipher = self.connection.cipher_suite().map_err(read)?;
        if version != Version::TLS13 || !CIPHERS.contains(&cipher) {
            return Err(TlsError::Refused(format!("the other end wants {version:?} with {cipher}")));
        }
        if self.identity()?.is_empty() {
            return Err(TlsError::Refused("the other end has used no key".to_owned()));
        }
        Ok(())
    }

    /// The name of the key that is used.
    pub(crate) fn identity(&self) -> Result<Vec<u8>, TlsError> {
        let read = |error: Error| TlsError::Refused(words(&error));
        let mut identity = vec![0; self.connection.negotiated_psk_identity_length().map_err(read)?];
        if !identity.is_empty() {
            self.connection.negotiated_psk_identity(&mut identity).map_err(read)?;
        }
        Ok(identity)
    }

    /// What another process needs to go on, keys among it, and the records that nothing was made of yet. All
    /// that could be read has been.
    pub(crate) fn leave(&self) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
        let make = || -> Result<Vec<u8>, Error> {
            let mut state = vec![0; self.connection.serialization_length()?];
            self.connection.serialize(&mut state)?;
            Ok(state)
        };
        let received = self.records.received.borrow();
        if self.failed || received.rest > 0 {
            return Err(TlsError::Left("it stands within a record".to_owned()));
        }
        let state = make().map_err(|error| TlsError::Left(words(&error)))?;
        Ok((state, received.bytes[received.start..].to_vec()))
    }

    /// What the peer said, into the front of `buffer`.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<Read, TlsError> {
        if self.failed {
            return Err(TlsError::Refused("it has failed".to_owned()));
        }
        match self.connection.poll_recv(buffer) {
            Poll::Pending => Ok(Read::Nothing),
            Poll::Ready(Ok(0)) => Ok(Read::End),
            Poll::Ready(Ok(count)) => Ok(Read::Bytes(count)),
            // Cut without a last word, as every connection of NVMe/TCP may end.
            Poll::Ready(Err(error)) if error.kind() == ErrorType::ConnectionClosed => Ok(Read::End),
            Poll::Ready(Err(error)) => {
                self.failed = true;
                Err(TlsError::Refused(words(&error)))
            }
        }
    }

    /// Makes records of all of `plain`.
    pub(crate) fn write(&mut self, plain: &[u8]) -> Result<(), TlsError> {
        let mut rest = plain;
        while !rest.is_empty() {
            match self.connection.poll_send(rest) {
                Poll::Ready(Ok(count)) if count > 0 => rest = &rest[count..],
                Poll::Ready(Err(error)) => return Err(TlsError::Refused(words(&error))),
                _ => return Err(TlsError::Refused("it takes no data".to_owned())),
            }
        }
        Ok(())
    }
}

fn words(error: &Error) -> String {
    format!("{} ({})", error.message(), error.name())
}

/// s2n-tls asks for records of the peer.
///
/// # Safety
///
/// `context` is the address of [`Records`], and `buffer` has room for `length` bytes.
unsafe extern "C" fn receive(context: *mut c_void, buffer: *mut u8, length: u32) -> c_int {
    // SAFETY: as said above; nothing else uses the records meanwhile, for this is their only thread.
    let records = unsafe { &*context.cast::<Records>() };
    let mut received = records.received.borrow_mut();
    let next = received.next();
    let count = next.len().min(length as usize);
    if count == 0 && !records.closed.get() {
        errno::set_errno(errno::Errno(libc::EWOULDBLOCK));
        return -1;
    }
    // SAFETY: there is room for `length` bytes, which may have no values yet, and these are s2n-tls's own.
    unsafe { std::ptr::copy_nonoverlapping(next.as_ptr(), buffer, count) };
    received.take(count);
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// s2n-tls has records for the peer. All are taken.
///
/// # Safety
///
/// `context` is the address of [`Records`], and `data` has `length` bytes.
unsafe extern "C" fn send(context: *mut c_void, data: *const u8, length: u32) -> c_int {
    // SAFETY: as said above; nothing else uses the records meanwhile, for this is their only thread.
    let (records, data) =
        unsafe { (&*context.cast::<Records>(), std::slice::from_raw_parts(data, length as usize)) };
    records.to_send.borrow_mut().extend_from_slice(data);
    c_int::try_from(length).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(identity: &str, byte: u8, hash: Hash) -> Key {
        Key::new(identity.as_bytes(), &[byte; 32], hash).unwrap()
    }

    /// Both ends to the end of the handshake, or why not.
    fn meet(client: &Key, server: &Keys) -> Result<(Session, Session), TlsError> {
        let (mut client, mut server) = (Session::client(client)?, Session::server(server)?);
        loop {
            let (one, other) = (client.shake_hands()?, server.shake_hands()?);
            let (from_client, from_server) = (client.take_records(), server.take_records());
            client.feed(&from_server);
            server.feed(&from_client);
            if one && other {
                return Ok((client, server));
            }
            assert!(!from_client.is_empty() || !from_server.is_empty() || one != other, "nothing moves");
        }
    }

    #[test]
    fn ends_with_the_same_key_understand_each_other_and_know_which_it_was() {
        for (hash, cipher) in [(Hash::Sha256, CIPHERS[0]), (Hash::Sha384, CIPHERS[1])] {
            let keys = Keys::new(vec![key("a", 1, hash), key("b", 2, hash)]).unwrap();
            let (mut client, mut server) = meet(&key("b", 2, hash), &keys).unwrap();
            assert_eq!(server.identity().unwrap(), b"b");
            assert_eq!(client.connection.cipher_suite().unwrap(), cipher);
            let (plain, mut buffer) = (vec![7; 100_000], vec![0; 200_000]);
            client.write(&plain).unwrap();
            let records = client.take_records();
            assert!(records.len() > plain.len());
            assert!(!records.windows(64).any(|window| window == &plain[..64]), "it is in clear");
            // Cut anywhere: half of a record is nothing yet.
            let (mut got, mut at) = (0, 0);
            for part in [10, 40_000, records.len()] {
                server.feed(&records[at..part]);
                at = part;
                while let Read::Bytes(count) = server.read(&mut buffer[got..]).unwrap() {
                    got += count;
                }
            }
            assert_eq!(buffer[..got], plain);
            server.close();
            assert_eq!(server.read(&mut buffer).unwrap(), Read::End);
        }
    }

    #[test]
    fn without_a_common_key_there_is_no_session() {
        let server = Keys::new(vec![key("a", 1, Hash::Sha256)]).unwrap();
        for client in [key("a", 9, Hash::Sha256), key("b", 1, Hash::Sha256), key("a", 1, Hash::Sha384)] {
            assert!(meet(&client, &server).is_err(), "{client:?}");
        }
        assert!(meet(&key("a", 1, Hash::Sha256), &Keys::new(Vec::new()).unwrap()).is_err());
        assert!(matches!(Key::new(b"a", &[1; 15], Hash::Sha256), Err(TlsError::Key(_))), "too short");
    }

    #[test]
    fn a_changed_record_is_the_end() {
        let keys = Keys::new(vec![key("a", 1, Hash::Sha384)]).unwrap();
        let (mut client, mut server) = meet(&key("a", 1, Hash::Sha384), &keys).unwrap();
        client.write(b"data").unwrap();
        let mut records = client.take_records();
        *records.last_mut().unwrap() ^= 1;
        server.feed(&records);
        assert!(server.read(&mut [0; 64]).is_err());
        assert!(server.read(&mut [0; 64]).is_err(), "and stays so");
    }

    #[test]
    fn another_session_goes_on_where_one_was_left() {
        let keys = Keys::new(vec![key("a", 1, Hash::Sha256)]).unwrap();
        let (mut client, mut server) = meet(&key("a", 1, Hash::Sha256), &keys).unwrap();
        let mut buffer = [0; 64];
        // Before it is left, something went both ways, and half of a record has come.
        client.write(b"before").unwrap();
        server.feed(&client.take_records());
        assert_eq!(server.read(&mut buffer).unwrap(), Read::Bytes(6));
        server.write(b"answer").unwrap();
        client.feed(&server.take_records());
        assert_eq!(client.read(&mut buffer).unwrap(), Read::Bytes(6));
        client.write(b"between").unwrap();
        let records = client.take_records();
        server.feed(&records[..10]);
        assert_eq!(server.read(&mut buffer).unwrap(), Read::Nothing);
        let (state, received) = server.leave().unwrap();
        assert_eq!(received, records[..10]);
        drop(server);

        let mut server = Session::resumed(&keys, &state, &received).unwrap();
        server.feed(&records[10..]);
        assert_eq!(server.read(&mut buffer).unwrap(), Read::Bytes(7));
        assert_eq!(&buffer[..7], b"between");
        server.write(b"after").unwrap();
        client.feed(&server.take_records());
        assert_eq!(client.read(&mut buffer).unwrap(), Read::Bytes(5));
        assert_eq!(&buffer[..5], b"after");
        assert!(Session::resumed(&keys, &state[1..], &[]).is_err());
    }

    #[test]
    fn a_connection_costs_the_same_however_many_hosts_are_known() {
        let many: Vec<Key> = (0..2000).map(|host| key(&format!("host {host}"), 3, Hash::Sha256)).collect();
        let keys = Keys::new(many).unwrap();
        let (_, server) = meet(&key("host 1999", 3, Hash::Sha256), &keys).unwrap();
        assert_eq!(server.identity().unwrap(), b"host 1999");
        // At their cheapest, which other work of the machine disturbs least.
        let cost = |keys: &Keys| {
            let timed = |_| {
                let begun = std::time::Instant::now();
                (0..5).for_each(|_| drop(Session::server(keys).unwrap()));
                begun.elapsed()
            };
            (0..40).map(timed).min().unwrap()
        };
        let few = cost(&Keys::new(vec![key("host 0", 3, Hash::Sha256)]).unwrap());
        assert!(cost(&keys) < few * 10, "{:?} with many, {few:?} with one", cost(&keys));
    }

    #[test]
    fn what_was_read_is_not_kept_where_records_never_end_with_what_comes() {
        let keys = Keys::new(vec![key("a", 1, Hash::Sha256)]).unwrap();
        let (mut client, mut server) = meet(&key("a", 1, Hash::Sha256), &keys).unwrap();
        let (mut pending, mut buffer, mut got) = (Vec::new(), vec![0; 100_000], 0);
        for _ in 0..200 {
            client.write(&[9; 10_000]).unwrap();
            pending.extend(client.take_records());
            // All but the last byte.
            let most = pending.len() - 1;
            server.feed(&pending.drain(..most).collect::<Vec<_>>());
            while let Read::Bytes(count) = server.read(&mut buffer).unwrap() {
                got += count;
            }
            let kept = server.records.received.borrow().bytes.len();
            assert!(kept < 70_000, "{kept} bytes are kept after {got}");
        }
        assert!(got > 1_900_000, "{got}");
    }
}
