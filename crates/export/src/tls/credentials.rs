//! What a server proves its identity with, and which clients it believes.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pinstripe_runtime::trust::{Distrust, check_place};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DistinguishedName, RootCertStore, ServerConfig};
use thiserror::Error;

/// The authority that signs certificates of clients; may hold several.
const AUTHORITY: &str = "ca-cert.pem";
/// The server's certificate, and after it those that lead to the authority.
const CERTIFICATE: &str = "server-cert.pem";
/// The server's key.
const KEY: &str = "server-key.pem";
/// Certificates that the authority has revoked; needn't be there.
const REVOKED: &str = "ca-crl.pem";
const FILES: [&str; 4] = [AUTHORITY, CERTIFICATE, KEY, REVOKED];
/// Of a file's mode: others may read or write it.
const OTHERS: u32 = 0o007;

/// Which clients are let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Clients {
    /// Every one: what it says is secret, and any program may say it.
    Any,
    /// Those with a certificate of the authority. If there are names, the certificate must be for one of
    /// them: a DNS name or an IP address among its subject's alternative names.
    Certified(Vec<ServerName<'static>>),
}

impl Clients {
    /// Those with a certificate for one of `names`; without names, for anything.
    ///
    /// # Errors
    /// With the first that is neither a DNS name nor an IP address.
    pub fn certified(names: &[String]) -> Result<Self, CredentialsError> {
        let parse = |name: &String| {
            ServerName::try_from(name.clone()).map_err(|_| CredentialsError::Name(name.clone()))
        };
        Ok(Self::Certified(names.iter().map(parse).collect::<Result<_, _>>()?))
    }
}

/// Why files can't be used for TLS.
#[derive(Debug, Error)]
pub enum CredentialsError {
    /// A name that no certificate can be for.
    #[error("{0:?} is neither a DNS name nor an IP address, so no certificate of a client can be for it")]
    Name(String),
    /// A file can't be read.
    #[error("{} can't be read: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Others can read the key.
    #[error("{} can be read by every user (mode {mode:04o}): chmod o= it", path.display())]
    Exposed {
        /// The key's file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Others can change a file.
    #[error(transparent)]
    Distrust(#[from] Distrust),
    /// A file isn't in PEM, or lacks what it should hold.
    #[error("{} holds no {what} in PEM that can be used: {error}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
        /// Why it wasn't found.
        error: pem::Error,
    },
    /// Certificate and key can't be used together.
    #[error("{CERTIFICATE} and {KEY} in {} can't be used: {error}", folder.display())]
    Identity {
        /// Where they are.
        folder: PathBuf,
        /// Why.
        error: rustls::Error,
    },
    /// An authority's certificate is none.
    #[error("{} holds a certificate that can't be read: {error}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why.
        error: rustls::Error,
    },
    /// The authority and its revocations can't be used.
    #[error("{AUTHORITY} and {REVOKED} in {} can't be used: {error}", folder.display())]
    Verifier {
        /// Where they are.
        folder: PathBuf,
        /// Why.
        error: VerifierBuilderError,
    },
}

/// What new connections are secured with.
#[derive(Debug, Clone)]
pub struct Acceptor {
    pub(super) config: Arc<ServerConfig>,
    /// The server's own.
    certificate: CertificateDer<'static>,
}

impl Acceptor {
    /// For connections of HTTP/1.1: a client that asks for another protocol only is refused, so that what is
    /// meant for another server with the same certificate isn't taken for HTTP (ALPACA).
    pub fn for_http(&self) -> Arc<ServerConfig> {
        let mut config = (*self.config).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// Whether the server's certificate is for this DNS name or IP address.
    pub fn is_for(&self, name: &str) -> bool {
        let parsed = ParsedCertificate::try_from(&self.certificate);
        let name = ServerName::try_from(name);
        parsed.is_ok_and(|parsed| name.is_ok_and(|name| verify_server_name(&parsed, &name).is_ok()))
    }
}

/// A folder of PEM files, named as QEMU and libvirt name them, and what was last read from them.
#[derive(Debug)]
pub struct Credentials {
    folder: PathBuf,
    clients: Clients,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    acceptor: Acceptor,
    /// Of the files when they were looked at last, usable or not.
    stamps: Stamps,
    /// Why they were not usable then: that may be mended without a change of them, such as a folder's mode.
    problem: Option<String>,
}

/// What changes when a file changes; nothing of one that isn't there.
type Stamps = [Option<(u64, u64, i64, i64, i64, i64)>; FILES.len()];

fn stamps(folder: &Path) -> Stamps {
    let stamp =
        |of: Metadata| (of.ino(), of.size(), of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
    FILES.map(|name| fs::metadata(folder.join(name)).ok().map(stamp))
}

impl Credentials {
    /// Reads the files of `folder`: `server-cert.pem`, `server-key.pem`, and, unless all clients are let in,
    /// `ca-cert.pem` and, if it is there, `ca-crl.pem`.
    pub fn load(folder: &Path, clients: Clients) -> Result<Self, CredentialsError> {
        // Before they are read: what changes meanwhile is looked at once more.
        let stamps = stamps(folder);
        let acceptor = acceptor(folder, &clients)?;
        Ok(Self {
            folder: folder.to_owned(),
            clients,
            current: Mutex::new(Current { acceptor, stamps, problem: None }),
        })
    }

    /// What connections that come now are secured with.
    pub fn acceptor(&self) -> Acceptor {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).acceptor.clone()
    }

    /// Reads the files again if they have changed since the last look or were not usable then, which may
    /// block. Says whether others are used now. If they can't be used, what was read before stays, and that
    /// is an error once.
    pub fn refresh(&self) -> Result<bool, CredentialsError> {
        let current = || self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (stamps, before) = (stamps(&self.folder), current().problem.clone());
        if std::mem::replace(&mut current().stamps, stamps) == stamps && before.is_none() {
            return Ok(false);
        }
        let read = acceptor(&self.folder, &self.clients);
        let mut current = current();
        current.problem = read.as_ref().err().map(ToString::to_string);
        match read {
            Ok(acceptor) => {
                current.acceptor = acceptor;
                Ok(true)
            }
            Err(_) if current.problem == before => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn acceptor(folder: &Path, clients: &Clients) -> Result<Acceptor, CredentialsError> {
    let (certificate, key) = (folder.join(CERTIFICATE), folder.join(KEY));
    let chain = certificates(&certificate)?;
    let mode = check(&key)?;
    if mode & OTHERS != 0 {
        return Err(CredentialsError::Exposed { path: key, mode });
    }
    let private = PrivateKeyDer::from_pem_file(&key).map_err(|error| CredentialsError::Pem {
        path: key,
        what: "private key",
        error,
    })?;

    let provider = Arc::new(ring::default_provider());
    let identity = |error| CredentialsError::Identity { folder: folder.to_owned(), error };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(identity)?;
    let builder = match clients {
        Clients::Any => builder.with_no_client_auth(),
        Clients::Certified(names) => {
            let verifier = Arc::new(Verifier { chain: authority(folder, provider)?, names: names.clone() });
            builder.with_client_cert_verifier(verifier)
        }
    };
    // One of no certificate is refused before.
    let Some(certificate) = chain.first().cloned() else {
        return Err(identity(rustls::Error::NoCertificatesPresented));
    };
    let mut config = builder.with_single_cert(chain, private).map_err(identity)?;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Acceptor { config: Arc::new(config), certificate })
}

/// What verifies certificates of clients.
fn authority(
    folder: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, CredentialsError> {
    let path = folder.join(AUTHORITY);
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&path)? {
        roots.add(certificate).map_err(|error| CredentialsError::Authority { path: path.clone(), error })?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    // Of the client's certificate alone: the authorities between have no place for a list here.
    let builder = builder.with_crls(revoked(&folder.join(REVOKED))?).only_check_end_entity_revocation();
    builder.build().map_err(|error| CredentialsError::Verifier { folder: folder.to_owned(), error })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    items(path, "certificate")
}

/// None if there is no file. One without a list in it would revoke nothing, and its administrator believes
/// that it does.
fn revoked(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, CredentialsError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        _ => items(path, "revocation list"),
    }
}

/// What a file holds of a kind, at least one.
fn items<T: PemObject>(path: &Path, what: &'static str) -> Result<Vec<T>, CredentialsError> {
    check(path)?;
    let failed = |error| CredentialsError::Pem { path: path.to_owned(), what, error };
    let all: Vec<T> = T::pem_file_iter(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    if all.is_empty() { Err(failed(pem::Error::NoItemsFound)) } else { Ok(all) }
}

/// Gives the mode of a file that only root and this user can have put there: these files decide which
/// clients may write the array.
fn check(path: &Path) -> Result<u32, CredentialsError> {
    let failed = |error| CredentialsError::Read { path: path.to_owned(), error };
    let metadata = fs::metadata(path).map_err(failed)?;
    // Opening a fifo would wait for its other end.
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is no file")));
    }
    check_place(path)?;
    Ok(metadata.mode() & 0o7777)
}

/// Believes certificates of the authority that are for one of the names.
#[derive(Debug)]
struct Verifier {
    chain: Arc<dyn ClientCertVerifier>,
    /// None: for anything.
    names: Vec<ServerName<'static>>,
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let is_for = |name| verify_server_name(&certificate, name).is_ok();
        if self.names.is_empty() || self.names.iter().any(is_for) {
            return Ok(verified);
        }
        Err(CertificateError::NotValidForName.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
