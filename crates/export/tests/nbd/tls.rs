//! TLS: what is agreed on before it, what is let in, and that what is said in it arrives.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_export::nbd::{Handshake, HandshakeEnd, Security, SessionEnd, Tls, Violation};
use pinstripe_export::tls::{Clients, Credentials};
use pinstripe_runtime::{Stream, shard};
use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::client::{
    FLAGS, Wire, choose_greeted, context_data, greet, info_data, option, option_replies, reply, request,
};
use crate::session::Client;
use crate::world::{Array, Pipe, Random, pipe, run};

const STARTTLS: u32 = 5;
const ACK: u32 = 1;
const INVALID: u32 = (1 << 31) + 3;
const TLS_REQD: u32 = (1 << 31) + 5;
const SECOND: u64 = 1_000_000_000;

/// Sends one option, which must not end the handshake. The kind of the last reply.
fn ask(handshake: &mut Handshake, number: u32, data: &[u8]) -> u32 {
    let bytes = option(number, data);
    assert_eq!(feed(handshake, &bytes), None, "option {number}");
    option_replies(&std::mem::take(handshake.output())).last().unwrap().kind
}

fn feed(handshake: &mut Handshake, mut bytes: &[u8]) -> Option<HandshakeEnd> {
    let exports = [pinstripe_export::nbd::ExportInfo::new("array", "", 1 << 20, 512, 4096, false).unwrap()];
    loop {
        let step = handshake.receive(&exports, bytes);
        bytes = &bytes[step.consumed..];
        if step.end.is_some() || bytes.is_empty() {
            return step.end;
        }
    }
}

fn greeted(tls: Tls) -> Handshake {
    let mut handshake = Handshake::new(tls);
    handshake.output().clear();
    assert_eq!(feed(&mut handshake, &FLAGS), None);
    handshake
}

#[test]
fn nothing_but_tls_is_agreed_on_where_it_is_required() {
    let mut handshake = greeted(Tls::Required);
    let options: [(u32, Vec<u8>); 9] = [
        (3, Vec::new()),
        (6, info_data("array", &[])),
        (7, info_data("array", &[])),
        (8, Vec::new()),
        (9, context_data("array", &[])),
        (10, context_data("array", &["base:allocation"])),
        (99, Vec::new()),
        (99, vec![1; 100]),
        (7, vec![0; 20_000]),
    ];
    for (number, data) in &options {
        assert_eq!(ask(&mut handshake, *number, data), TLS_REQD, "option {number}");
    }
    assert_eq!(ask(&mut handshake, STARTTLS, &[0]), INVALID, "it takes no data");
    assert_eq!(feed(&mut handshake, &option(STARTTLS, &[])), Some(HandshakeEnd::StartTls));
    assert_eq!(option_replies(&std::mem::take(handshake.output()))[0].kind, ACK);
    let mut handshake = handshake.secured();
    assert!(handshake.output().is_empty(), "there is no second greeting");
    assert_eq!(ask(&mut handshake, STARTTLS, &[]), INVALID, "it has begun");
    assert_eq!(ask(&mut handshake, 3, &[]), ACK);

    let mut handshake = greeted(Tls::Required);
    let end = feed(&mut handshake, &option(1, b"array"));
    assert_eq!(end, Some(HandshakeEnd::Violation(Violation::TlsRequired)));
    let mut handshake = greeted(Tls::Required);
    assert_eq!(feed(&mut handshake, &option(2, &[])), Some(HandshakeEnd::Aborted));
    let mut handshake = greeted(Tls::Required);
    handshake.stop();
    assert_eq!(ask(&mut handshake, STARTTLS, &[]), (1 << 31) + 7);
}

#[test]
fn what_was_negotiated_before_tls_is_forgotten() {
    let mut handshake = greeted(Tls::Offered);
    assert_eq!(ask(&mut handshake, 8, &[]), ACK);
    assert_eq!(ask(&mut handshake, 10, &context_data("array", &["base:allocation"])), ACK);
    assert_eq!(feed(&mut handshake, &option(STARTTLS, &[])), Some(HandshakeEnd::StartTls));
    let mut handshake = handshake.secured();
    let contexts = context_data("array", &["base:allocation"]);
    assert_eq!(ask(&mut handshake, 10, &contexts), INVALID, "structured replies are forgotten");
    let Some(HandshakeEnd::Transmission(negotiated)) =
        feed(&mut handshake, &option(7, &info_data("array", &[])))
    else {
        panic!("GO was refused")
    };
    assert!(!negotiated.structured && !negotiated.allocation);

    // Structured again, and still without the context that was selected before.
    let mut handshake = greeted(Tls::Offered);
    ask(&mut handshake, 8, &[]);
    ask(&mut handshake, 10, &contexts);
    feed(&mut handshake, &option(STARTTLS, &[]));
    let mut handshake = handshake.secured();
    ask(&mut handshake, 8, &[]);
    let end = feed(&mut handshake, &option(7, &info_data("array", &[])));
    let Some(HandshakeEnd::Transmission(negotiated)) = end else { panic!("GO was refused") };
    assert!(negotiated.structured && !negotiated.allocation);
}

#[test]
fn options_are_counted_across_the_beginning_of_tls() {
    let mut handshake = greeted(Tls::Offered);
    for _ in 0..200 {
        ask(&mut handshake, 3, &[]);
    }
    feed(&mut handshake, &option(STARTTLS, &[]));
    let mut handshake = handshake.secured();
    let ended = (0..100).find_map(|_| {
        let end = feed(&mut handshake, &option(3, &[]));
        handshake.output().clear();
        end
    });
    assert_eq!(ended, Some(HandshakeEnd::Violation(Violation::OptionCount(256))));
}

/// What signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Certificate and key, in PEM.
    fn sign(&self, name: &str, serial: u64) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    fn revoking(&self, serial: u64) -> String {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }

    /// A server's folder.
    fn folder(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        put(folder.path(), "ca-cert.pem", &self.0.pem());
        self.identify(folder.path());
        folder
    }

    /// Gives the server of a folder a new certificate.
    fn identify(&self, folder: &Path) {
        let (certificate, key) = self.sign("server.example", 1);
        put(folder, "server-cert.pem", &certificate);
        put(folder, "server-key.pem", &key);
    }

    /// A client that believes this authority, with or without a certificate.
    fn client(&self, identity: Option<(String, String)>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                use rustls::pki_types::pem::PemObject;
                let certificate =
                    rustls::pki_types::CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        })
    }
}

fn put(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).unwrap();
    fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o600)).unwrap();
}

fn certified(names: &[&str]) -> Clients {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    Clients::certified(&names).unwrap()
}

fn required(folder: &Path, clients: Clients) -> Security {
    Security::Required(Credentials::load(folder, clients).unwrap().acceptor())
}

/// A client's end of TLS.
struct Secured {
    pipe: Rc<Pipe>,
    connection: RefCell<ClientConnection>,
    /// Records that rustls hasn't taken.
    received: RefCell<VecDeque<u8>>,
}

impl Secured {
    /// Says STARTTLS and shakes hands. `None` if the server hangs up or what it says isn't believed.
    async fn start(pipe: &Rc<Pipe>, config: &Arc<ClientConfig>) -> Option<Self> {
        greet(pipe).await;
        Self::ask(pipe, config).await
    }

    /// The same after the greeting.
    async fn ask(pipe: &Rc<Pipe>, config: &Arc<ClientConfig>) -> Option<Self> {
        assert!(pipe.send_all(&option(STARTTLS, &[])).await);
        let answer = pipe.receive_exactly(20).await?;
        assert_eq!(option_replies(&answer)[0].kind, ACK);
        Self::shake_hands(pipe, config).await
    }

    /// The same, when STARTTLS was answered.
    async fn shake_hands(pipe: &Rc<Pipe>, config: &Arc<ClientConfig>) -> Option<Self> {
        let name = ServerName::try_from("server.example").unwrap();
        let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
        let secured = Self {
            pipe: Rc::clone(pipe),
            connection: RefCell::new(connection),
            received: RefCell::default(),
        };
        while secured.connection.borrow().is_handshaking() {
            if !secured.flush().await || !secured.more().await {
                return None;
            }
        }
        secured.flush().await.then_some(secured)
    }

    async fn flush(&self) -> bool {
        let mut records = Vec::new();
        while self.connection.borrow().wants_write() {
            self.connection.borrow_mut().write_tls(&mut records).unwrap();
        }
        records.is_empty() || self.pipe.send_all(&records).await
    }

    async fn more(&self) -> bool {
        if self.received.borrow().is_empty() {
            let outcome = self.pipe.receive(shard::buffer(4000)).await;
            let count = outcome.result.unwrap_or(0);
            self.received.borrow_mut().extend(&outcome.buffer.unwrap()[..count]);
        }
        let mut connection = self.connection.borrow_mut();
        let taken = connection.read_tls(&mut *self.received.borrow_mut()).unwrap();
        taken > 0 && connection.process_new_packets().is_ok()
    }
}

impl Wire for Secured {
    async fn send_all(&self, bytes: &[u8]) -> bool {
        for part in bytes.chunks(30_000) {
            self.connection.borrow_mut().writer().write_all(part).unwrap();
            if !self.flush().await {
                return false;
            }
        }
        true
    }

    async fn receive_exactly(&self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let read = self.connection.borrow_mut().reader().read(&mut bytes[filled..]);
            match read {
                Ok(0) => return None,
                Ok(count) => filled += count,
                Err(_) if self.more().await => {}
                Err(_) => return None,
            }
        }
        Some(bytes)
    }
}

/// Connects a client to a server of an array, and gives the end of its session.
fn connect(
    random: &Rc<Random>,
    array: &Array,
    security: Security,
    capacity: usize,
) -> (Rc<Pipe>, shard::JoinHandle<SessionEnd>) {
    let (client, there) = pipe(random, capacity);
    let server = array.server();
    let session = async move { server.serve_securely(there, security, |secure| assert!(secure)).await };
    (client, shard::spawn_joined(session))
}

fn random_conversation(seed: u64) {
    let authority = Authority::new();
    let folder = authority.folder();
    let config = authority.client(Some(authority.sign("client.example", 2)));
    let security = required(folder.path(), certified(&[]));
    let random = Random::new(seed);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let random = inner;
        let size = 1 << 20;
        let array = Array::new(&random, size, [0, 1000, 100_000][random.below(3)]);
        let model = Rc::new(RefCell::new(vec![0; size]));
        let (pipe, session) = connect(&random, &array, security, [100, 5000, 200_000][random.below(3)]);
        let secured = Rc::new(Secured::start(&pipe, &config).await.unwrap());
        let client = Client::new(&random, Rc::clone(&secured), &model);
        client.talk(0, size, 40, random.chance(2)).await;
        assert_eq!(session.join().await, SessionEnd::Disconnected);
        assert!(array.seen.borrow().data == *model.borrow(), "the array differs from the model");
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn random_requests_in_tls_do_what_a_plain_vector_does(seed in any::<u64>()) {
        random_conversation(seed);
    }
}

/// One client of a server whose folder and clients are given: whether it comes in, and how its session ends.
fn attempt(security: Security, config: Arc<ClientConfig>) -> (bool, SessionEnd) {
    let result = Rc::new(RefCell::new(None));
    let (random, told) = (Random::new(7), Rc::clone(&result));
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 1 << 20, 0);
        let (pipe, session) = connect(&inner, &array, security, 100_000);
        let mut is_in = false;
        if let Some(client) = Secured::start(&pipe, &config).await
            // In TLS 1.3 a client is done before the server has looked at its certificate.
            && client.send_all(&option(7, &info_data("array", &[]))).await
            && client.receive_exactly(20).await.is_some()
        {
            is_in = true;
        }
        pipe.shutdown();
        let end = session.join().await;
        told.replace(Some((is_in, end)));
    });
    result.take().unwrap()
}

#[test]
fn clients_come_in_with_a_certificate_of_the_authority_for_an_allowed_name() {
    let (authority, other) = (Authority::new(), Authority::new());
    let folder = authority.folder();
    let good = || Some(authority.sign("client.example", 2));
    let is_in = |clients: Clients, identity| {
        let (is_in, end) = attempt(required(folder.path(), clients), authority.client(identity));
        assert_eq!(is_in, !matches!(end, SessionEnd::Insecure(_)), "{end:?}");
        is_in
    };
    assert!(is_in(certified(&[]), good()));
    assert!(is_in(certified(&["other.example", "client.example"]), good()));
    assert!(is_in(Clients::Any, None));
    assert!(!is_in(certified(&[]), None), "a client without a certificate came in");
    assert!(!is_in(certified(&[]), Some(other.sign("client.example", 2))), "another authority's came in");
    assert!(!is_in(certified(&["other.example"]), good()), "one for another name came in");
    assert!(!is_in(certified(&["192.0.2.1"]), good()));
    assert!(is_in(certified(&["192.0.2.1"]), Some(authority.sign("192.0.2.1", 2))));
    put(folder.path(), "ca-crl.pem", &authority.revoking(2));
    assert!(!is_in(certified(&[]), good()), "a revoked one came in");
    assert!(is_in(certified(&[]), Some(authority.sign("client.example", 3))));
    assert!(Clients::certified(&["no name".into()]).is_err());
}

#[test]
fn new_files_are_used_and_bad_ones_are_not() {
    let (authority, next) = (Authority::new(), Authority::new());
    let folder = authority.folder();
    let credentials = Credentials::load(folder.path(), Clients::Any).unwrap();
    let believes =
        |authority: &Authority| attempt(Security::Required(credentials.acceptor()), authority.client(None)).0;
    assert!(believes(&authority) && !believes(&next));
    assert!(!credentials.refresh().unwrap(), "nothing has changed");

    // The certificate first, the key later, as files are copied: between the two they don't fit.
    let (certificate, key) = next.sign("server.example", 1);
    put(folder.path(), "server-cert.pem", &certificate);
    let error = credentials.refresh().unwrap_err().to_string();
    assert!(error.contains("server-cert.pem and server-key.pem"), "{error}");
    assert!(!credentials.refresh().unwrap(), "it is said once");
    assert!(believes(&authority), "what was good before stays");
    put(folder.path(), "server-key.pem", &key);
    assert!(credentials.refresh().unwrap());
    assert!(believes(&next) && !believes(&authority));

    fs::set_permissions(folder.path().join("server-key.pem"), fs::Permissions::from_mode(0o644)).unwrap();
    let error = credentials.refresh().unwrap_err().to_string();
    assert!(error.contains("server-key.pem") && error.contains("chmod o="), "{error}");
    fs::remove_file(folder.path().join("server-key.pem")).unwrap();
    assert!(credentials.refresh().is_err());
    assert!(believes(&next));

    // What keeps them from use is not always in the files.
    let (certificate, key) = authority.sign("server.example", 9);
    let mode = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o777);
    put(folder.path(), "server-cert.pem", &certificate);
    put(folder.path(), "server-key.pem", &key);
    assert!(credentials.refresh().unwrap_err().to_string().contains("chmod"));
    mode(0o755);
    assert!(credentials.refresh().unwrap(), "the mended folder is not looked at again");
    assert!(believes(&authority) && !believes(&next));
    assert!(!credentials.refresh().unwrap());
}

#[test]
fn files_that_others_can_change_or_that_hold_nothing_are_refused() {
    let authority = Authority::new();
    let folder = authority.folder();
    let refused = |clients: Clients, word: &str| {
        let error = Credentials::load(folder.path(), clients).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    put(folder.path(), "ca-crl.pem", "");
    refused(certified(&[]), "ca-crl.pem");
    Credentials::load(folder.path(), Clients::Any).unwrap();
    put(folder.path(), "ca-crl.pem", &authority.revoking(9));
    Credentials::load(folder.path(), certified(&[])).unwrap();
    put(folder.path(), "ca-cert.pem", "-----BEGIN NOTHING-----\n");
    refused(certified(&[]), "ca-cert.pem");
    fs::remove_file(folder.path().join("ca-cert.pem")).unwrap();
    refused(certified(&[]), "ca-cert.pem");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    refused(Clients::Any, "can be written by other users");
}

/// How the session of a client ends that comes into TLS after something on the way has put an option behind
/// its STARTTLS: together with it, or `late`, when that was answered.
fn injected(seed: u64, late: bool, security: Security, config: Arc<ClientConfig>) -> SessionEnd {
    let result = Rc::new(RefCell::new(None));
    let (random, told) = (Random::new(seed), Rc::clone(&result));
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 1 << 20, 0);
        let (pipe, session) = connect(&inner, &array, security, 100_000);
        greet(&pipe).await;
        let (first, second) = (option(STARTTLS, &[]), option(7, &info_data("array", &[])));
        assert!(pipe.send_all(&if late { first } else { [first, second.clone()].concat() }).await);
        assert_eq!(option_replies(&pipe.receive_exactly(20).await.unwrap())[0].kind, ACK);
        if late {
            assert!(pipe.send_all(&second).await);
        }
        let secured = Secured::shake_hands(&pipe, &config).await;
        assert!(secured.is_none(), "TLS came about behind an option that was put there");
        pipe.shutdown();
        told.replace(Some(session.join().await));
        assert_eq!(array.seen.borrow().requests, 0);
    });
    result.take().unwrap()
}

#[test]
fn what_comes_with_starttls_is_not_taken_for_said_in_it() {
    let authority = Authority::new();
    let folder = authority.folder();
    let acceptor = Credentials::load(folder.path(), Clients::Any).unwrap().acceptor();
    for (seed, late) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
        let end = injected(seed, late, Security::Offered(acceptor.clone()), authority.client(None));
        let is_refused = match end {
            SessionEnd::Violation(Violation::BehindStartTls(_)) => !late,
            SessionEnd::Insecure(_) => late,
            _ => false,
        };
        assert!(is_refused, "{end:?}");
    }
}

/// How the session of a client ends that has begun TLS `before` its server leaves, or wants it afterwards.
fn left_by_its_server(before: bool) -> SessionEnd {
    let authority = Authority::new();
    let folder = authority.folder();
    let acceptor = Credentials::load(folder.path(), Clients::Any).unwrap().acceptor();
    let config = authority.client(None);
    let result = Rc::new(RefCell::new(None));
    let (random, told) = (Random::new(11), Rc::clone(&result));
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 1 << 20, 0);
        let server = array.server();
        let (pipe, there) = pipe(&inner, 100_000);
        let one = server.clone();
        let session = shard::spawn_joined(async move {
            one.serve_securely(there, Security::Offered(acceptor), |_| ()).await
        });
        let mut secured = None;
        if before {
            secured = Secured::start(&pipe, &config).await;
            choose_greeted(secured.as_ref().unwrap(), true).await;
        } else {
            greet(&pipe).await;
        }
        let leaving = shard::spawn_joined(async move { server.leave(1000 * SECOND, 2000 * SECOND).await });
        shard::sleep(SECOND).await;
        if !before {
            assert!(Secured::ask(&pipe, &config).await.is_none(), "TLS can't be left");
        }
        leaving.join().await;
        drop(secured);
        told.replace(Some(session.join().await));
    });
    result.take().unwrap()
}

#[test]
fn a_connection_in_tls_is_ended_and_not_left_to_another_server() {
    assert_eq!(left_by_its_server(true), SessionEnd::Closed);
    assert_eq!(left_by_its_server(false), SessionEnd::Closed);
}

/// The order comes when the client has been promised TLS and doesn't know it yet.
#[test]
fn a_connection_that_comes_into_tls_while_its_server_leaves_is_not_left_in_the_clear() {
    let authority = Authority::new();
    let folder = authority.folder();
    let acceptor = Credentials::load(folder.path(), Clients::Any).unwrap().acceptor();
    let config = authority.client(None);
    let random = Random::new(13);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 1 << 20, 0);
        let server = array.server();
        // Not even the greeting goes through at once.
        let (pipe, there) = pipe(&inner, 10);
        let one = server.clone();
        let session = shard::spawn_joined(async move {
            one.serve_securely(there, Security::Offered(acceptor), |_| ()).await
        });
        assert!(pipe.send_all(&[&FLAGS[..], &option(STARTTLS, &[])].concat()).await);
        shard::sleep(SECOND).await;
        let leaving = shard::spawn_joined(async move { server.leave(1000 * SECOND, 2000 * SECOND).await });
        shard::sleep(SECOND).await;
        pipe.receive_exactly(18).await.unwrap();
        assert_eq!(option_replies(&pipe.receive_exactly(20).await.unwrap())[0].kind, ACK);
        let client = Secured::shake_hands(&pipe, &config).await.unwrap();
        choose_greeted(&client, true).await;
        assert_eq!(client.receive_exactly(1).await, None);
        leaving.join().await;
        assert_eq!(session.join().await, SessionEnd::Closed);
    });
}

#[test]
fn requests_in_tls_are_answered_when_the_server_leaves_and_later_ones_get_no_answer() {
    let authority = Authority::new();
    let folder = authority.folder();
    let (security, config) = (required(folder.path(), Clients::Any), authority.client(None));
    let random = Random::new(12);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        // A zeroing is done in two pieces.
        let size = 33 << 20;
        let array = Array::new(&inner, size, 0);
        let server = array.server();
        let (pipe, there) = pipe(&inner, 100_000);
        let one = server.clone();
        let session = shard::spawn_joined(async move { one.serve_securely(there, security, |_| ()).await });
        let client = Secured::start(&pipe, &config).await.unwrap();
        choose_greeted(&client, true).await;
        array.close();
        let zero = request(0, 6, 2, 0, u32::try_from(size).unwrap());
        assert!(client.send_all(&[request(0, 0, 1, 0, 512), zero].concat()).await);
        shard::sleep(SECOND).await;
        let leaving = shard::spawn_joined(async move { server.leave(1000 * SECOND, 2000 * SECOND).await });
        shard::sleep(SECOND).await;
        assert!(client.send_all(&request(0, 0, 3, 0, 512)).await);
        shard::sleep(SECOND).await;
        array.open();
        let mut answered = Vec::new();
        while let Some(reply) = reply(&client, |cookie| if cookie == 2 { 0 } else { 512 }).await {
            assert_eq!(reply.error, 0, "an error would be final");
            answered.push(reply.cookie);
        }
        answered.sort_unstable();
        assert_eq!(answered, [1, 2]);
        leaving.join().await;
        assert_eq!(session.join().await, SessionEnd::Closed);
        assert_eq!(array.seen.borrow().requests, 3, "the read, and two pieces");
    });
}

#[test]
fn a_client_that_stays_silent_in_the_handshake_is_cut_off() {
    let authority = Authority::new();
    let folder = authority.folder();
    let security = required(folder.path(), Clients::Any);
    let random = Random::new(3);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 1 << 20, 0);
        let (pipe, session) = connect(&inner, &array, security, 100_000);
        greet(&pipe).await;
        assert!(pipe.send_all(&option(STARTTLS, &[])).await);
        let begun = shard::now();
        assert_eq!(session.join().await, SessionEnd::HandshakeTimeout);
        assert!((29..32).contains(&((shard::now() - begun) / SECOND)));
    });
}

#[test]
fn records_that_were_changed_on_their_way_write_nothing() {
    let authority = Authority::new();
    let folder = authority.folder();
    let (security, config) = (required(folder.path(), Clients::Any), authority.client(None));
    let random = Random::new(3);
    let inner = Rc::clone(&random);
    run(&random, move || async move {
        let array = Array::new(&inner, 1 << 20, 0);
        let (pipe, session) = connect(&inner, &array, security, 1 << 20);
        let client = Secured::start(&pipe, &config).await.unwrap();
        choose_greeted(&client, true).await;
        let bytes = [request(0, 1, 1, 0, 512), vec![7; 512]].concat();
        assert!(client.send_all(&bytes).await);
        assert_eq!(reply(&client, |_| 0).await.unwrap().error, 0);
        let mut records = Vec::new();
        client.connection.borrow_mut().writer().write_all(&bytes).unwrap();
        client.connection.borrow_mut().write_tls(&mut records).unwrap();
        *records.last_mut().unwrap() ^= 1;
        assert!(pipe.send_all(&records).await);
        assert!(reply(&client, |_| 0).await.is_none());
        assert_eq!(session.join().await, SessionEnd::Closed);
        assert_eq!(array.seen.borrow().requests, 1);
    });
}
