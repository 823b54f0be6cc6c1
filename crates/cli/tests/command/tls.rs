//! NBD with TLS: which addresses may be served, which clients come in, and what is told of them.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt,
    sync::Arc,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, StreamOwned,
    client::WantsClientCert,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

use crate::{
    nbd::{header, pattern},
    world::{PATIENCE, Server, World, wait_until},
};

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Puts a server's files into a folder of the world.
    pub fn put(&self, world: &World, folder: &str) {
        self.put_with(world, folder, &CertificateParams::new(vec!["localhost".to_owned()]).unwrap());
    }

    /// The same, with another certificate.
    pub fn put_with(&self, world: &World, folder: &str, params: &CertificateParams) {
        fs::create_dir_all(world.path(folder)).unwrap();
        let key = KeyPair::generate().unwrap();
        let (certificate, key) = (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem());
        let files =
            [("ca-cert.pem", self.0.pem()), ("server-cert.pem", certificate), ("server-key.pem", key)];
        for (name, text) in files {
            let path = world.path(folder).join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }

    pub fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    /// A client with a certificate for `name`.
    pub fn client(&self, name: &str) -> ClientConfig {
        let (certificate, key) = self.sign(name);
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        self.believing().with_client_auth_cert(vec![certificate], key).unwrap()
    }

    /// A client without one.
    pub fn stranger(&self) -> ClientConfig {
        self.believing().with_no_client_auth()
    }

    fn believing(&self) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        builder.unwrap().with_root_certificates(roots)
    }
}

/// Chooses the default export of the server at `address` without TLS; its size. Nothing if the server hangs
/// up.
fn connect_plainly(address: SocketAddr) -> Option<u64> {
    let mut plain = TcpStream::connect(address).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.read_exact(&mut [0; 18]).unwrap();
    plain.write_all(&3_u32.to_be_bytes()).unwrap();
    plain.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    let mut export = [0; 10];
    plain.read_exact(&mut export).ok()?;
    Some(u64::from_be_bytes(*export.first_chunk().unwrap()))
}

/// The same in TLS, and the connection.
fn connect(server: &Server, config: ClientConfig) -> Option<(u64, StreamOwned<ClientConnection, TcpStream>)> {
    connect_from(Ipv4Addr::LOCALHOST, server, config)
}

/// The same from one of this machine's addresses: a server has a limit for each.
pub fn connect_from(
    own: Ipv4Addr,
    server: &Server,
    config: ClientConfig,
) -> Option<(u64, StreamOwned<ClientConnection, TcpStream>)> {
    connect_to(own, address(server, "nbds"), config)
}

fn connect_to(
    own: Ipv4Addr,
    address: SocketAddr,
    config: ClientConfig,
) -> Option<(u64, StreamOwned<ClientConnection, TcpStream>)> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((own, 0))).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    let mut plain = TcpStream::from(socket);
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain.read_exact(&mut [0; 18]).unwrap();
    plain.write_all(&3_u32.to_be_bytes()).unwrap();
    plain.write_all(b"IHAVEOPT\0\0\0\x05\0\0\0\0").unwrap();
    let mut answer = [0; 20];
    plain.read_exact(&mut answer).unwrap();
    assert_eq!(answer[12..16], [0, 0, 0, 1]);
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), plain);
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").ok()?;
    let mut export = [0; 10];
    stream.read_exact(&mut export).ok()?;
    Some((u64::from_be_bytes(*export.first_chunk().unwrap()), stream))
}

/// Where the server takes TCP clients, as its URI with this scheme says.
fn address(server: &Server, scheme: &str) -> SocketAddr {
    let uri = server.ready["nbd"][0].as_str().unwrap();
    let place = uri.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://")).unwrap();
    place.split('/').next().unwrap().parse().unwrap()
}

const TCP: [&str; 2] = ["--nbd", "tcp:127.0.0.1:0"];

/// Waits until the server has said a line with these words.
fn wait_for(server: &Server, words: &[&str]) {
    let is_it = |line: &str| words.iter().all(|word| line.contains(word));
    wait_until(&format!("said: {words:?}"), || {
        server.later.lock().unwrap().iter().any(|line| line["message"].as_str().is_some_and(is_it))
    });
}

#[test]
fn clients_with_a_certificate_come_in_and_new_files_count() {
    let world = World::new();
    let members = world.raid5(3);
    let (authority, next) = (Authority::new(), Authority::new());
    authority.put(&world, "tls");
    let options = ["--shards", "2", "--tls-certificates", "tls", "--tls-allow", "client.example"];
    let server = world.serve(&[&options[..], &TCP].concat(), &members);
    let open = server.said.iter().filter(|line| line.to_string().contains("every user of this machine"));
    assert_eq!(open.count(), 0, "only a client with a certificate can write");

    let (size, _held) = connect(&server, authority.client("client.example")).unwrap();
    assert_eq!(size, server.ready["size_bytes"].as_u64().unwrap());
    let text = world.run(&["detail", "data"]).ok().out;
    assert!(text.contains(" by TLS"), "{text}");
    assert!(connect(&server, authority.client("other.example")).is_none(), "another name came in");
    wait_for(&server, &["TLS with 127.0.0.1", "failed"]);

    next.put(&world, "tls");
    wait_for(&server, &["new certificates"]);
    assert!(connect(&server, authority.client("client.example")).is_none());
    assert!(connect(&server, next.client("client.example")).is_some());
    fs::write(world.path("tls/server-cert.pem"), "nothing").unwrap();
    wait_for(&server, &["server-cert.pem", "from before"]);
    assert!(connect(&server, next.client("client.example")).is_some());
}

#[test]
fn addresses_that_others_reach_need_tls_for_certified_clients_or_consent() {
    let world = World::new();
    let members = world.raid5(3);
    Authority::new().put(&world, "tls");
    let wide = ["--nbd", "tcp:0.0.0.0:0"];
    let tls = ["--tls-certificates", "tls"];
    let refused = |options: &[&str]| {
        let options = [&wide[..], options].concat();
        world.serve_refused(&options, &members).refused(64, &["--tls-certificates", "--allow-remote"]);
    };
    refused(&[]);
    refused(&[&tls[..], &["--tls", "allow"]].concat());
    refused(&[&tls[..], &["--tls-clients", "any"]].concat());
    let server = world.serve(&[&wide[..], &tls].concat(), &members);
    assert!(server.ready["nbd"][0].as_str().unwrap().starts_with("nbds://"), "{}", server.ready);
    drop(server);
    let server = world.serve(&[&TCP[..], &tls, &["--tls-clients", "any"]].concat(), &members);
    assert!(server.said.iter().any(|line| line.to_string().contains("every user of this machine")));
}

#[test]
fn where_tls_is_allowed_a_client_may_do_without_and_where_it_is_required_none_may() {
    let world = World::new();
    let members = world.raid5(3);
    let authority = Authority::new();
    authority.put(&world, "tls");
    let tls = ["--tls-certificates", "tls", "--tls"];
    let server = world.serve(&[&TCP[..], &tls, &["allow"]].concat(), &members);
    let (there, size) = (address(&server, "nbd"), server.ready["size_bytes"].as_u64());
    assert_eq!(connect_plainly(there), size);
    let by_tls = |config| connect_to(Ipv4Addr::LOCALHOST, there, config).map(|(size, _)| size);
    assert_eq!(by_tls(authority.client("client.example")), size);
    assert_eq!(by_tls(authority.stranger()), None, "a client without a certificate came in by TLS");
    drop(server);
    let server = world.serve(&[&TCP[..], &tls, &["require"]].concat(), &members);
    assert_eq!(connect_plainly(address(&server, "nbds")), None, "it came in without TLS");
}

#[test]
fn what_can_t_be_used_for_tls_is_refused_before_anything_is_served() {
    let world = World::new();
    let members = world.raid5(3);
    Authority::new().put(&world, "tls");
    let tls = ["--tls-certificates", "tls"];
    world.serve_refused(&["--tls", "require"], &members).refused(64, &["--tls-certificates"]);
    world
        .serve_refused(&[&tls[..], &["--tls-allow", "no name"]].concat(), &members)
        .refused(64, &["no name"]);
    let both = [&tls[..], &["--tls-clients", "any", "--tls-allow", "a.example"]].concat();
    world.serve_refused(&both, &members).refused(64, &["--tls-allow"]);
    fs::set_permissions(world.path("tls/server-key.pem"), fs::Permissions::from_mode(0o604)).unwrap();
    world.serve_refused(&tls, &members).refused(1, &["server-key.pem", "every user", "chmod o="]);
    fs::remove_file(world.path("tls/ca-cert.pem")).unwrap();
    fs::set_permissions(world.path("tls/server-key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    world.serve_refused(&tls, &members).refused(1, &["ca-cert.pem"]);
    world.serve_refused(&["--tls-certificates", "nowhere"], &members).refused(1, &["nowhere"]);
    drop(world.serve(&[&tls[..], &["--tls-clients", "any"]].concat(), &members));
}

/// The error of the next answer; 0 for none.
fn answer(client: &mut impl Read) -> u32 {
    let mut answer = [0; 16];
    client.read_exact(&mut answer).unwrap();
    u32::from_be_bytes(*answer[4..].first_chunk().unwrap())
}

fn read(client: &mut impl Read, length: usize) -> Vec<u8> {
    assert_eq!(answer(client), 0);
    let mut bytes = vec![0; length];
    client.read_exact(&mut bytes).unwrap();
    bytes
}

/// The keys of its connection can't go over.
#[test]
fn a_client_by_tls_is_answered_and_let_go_at_a_change_of_programs() {
    let world = World::new();
    let authority = Authority::new();
    authority.put(&world, "tls");
    let server = world.serve(&[&TCP[..], &["--tls-certificates", "tls"]].concat(), &world.raid5(3));
    let connect = || connect(&server, authority.client("client.example")).unwrap().1;
    let (mut client, bytes) = (connect(), pattern(1, 1 << 20));
    client.write_all(&[header(1, 0, bytes.len()), bytes.clone()].concat()).unwrap();
    assert_eq!(answer(&mut client), 0);
    client.write_all(&header(0, 0, bytes.len())).unwrap();
    let result = world.run(&["upgrade", "data", "--json"]).ok().json();
    assert_eq!(result["connections"], 0, "{result}");
    assert!(read(&mut client, bytes.len()) == bytes);
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "it is told of the end, and not cut off");

    let mut client = connect();
    fs::write(world.path("tls/server-cert.pem"), "nothing").unwrap();
    world.run(&["upgrade", "data"]).refused(1, &["server-cert.pem"]);
    client.write_all(&header(0, 4096, 4096)).unwrap();
    assert!(read(&mut client, 4096) == bytes[4096..8192], "nothing was changed");
}
