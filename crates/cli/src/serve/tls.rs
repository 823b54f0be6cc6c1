//! TLS of the NBD server: from the command line to what a connection is secured with.

use std::{
    io,
    path::Path,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use pinstripe_block::first_of::{First, first_of};
use pinstripe_export::{
    nbd::Security,
    tls::{Clients, Credentials, CredentialsError},
};
use pinstripe_runtime::{
    shard::{self, JoinHandle},
    uring::blocking,
};

use super::{journal::ServerLog, stopping::Stopping};
use crate::{
    command_line::{TlsChoice, TlsClients, TlsOptions},
    credentials,
    failure::Failure,
};

/// Between two looks at the files.
const LOOK_NANOSECONDS: u64 = 5_000_000_000;
/// Between two lines about clients that can't be secured: any program may cause them.
const QUIET: Duration = Duration::from_secs(1);

/// What connections are secured with.
#[derive(Clone)]
pub struct Tls {
    credentials: Arc<Credentials>,
    required: bool,
}

/// Whether what comes over TCP is secret, and only from clients with a certificate.
pub fn is_authenticated(options: &TlsOptions) -> bool {
    options.tls_certificates.is_some()
        && options.tls == TlsChoice::Require
        && options.tls_clients == TlsClients::Certified
}

/// Which clients are let in.
pub fn clients(options: &TlsOptions) -> Result<Clients, Failure> {
    match options.tls_clients {
        TlsClients::Certified => {
            Clients::certified(&options.tls_allow).map_err(|error| Failure::usage(error.to_string()))
        }
        TlsClients::Any if options.tls_allow.is_empty() => Ok(Clients::Any),
        TlsClients::Any => Err(Failure::usage(
            "--tls-allow goes by the certificates of clients, and with --tls-clients any they need none",
        )),
    }
}

/// Whether certificates can be used, before anything depends on it.
pub fn try_certificates(options: &TlsOptions) -> Result<(), Failure> {
    let Some(folder) = &options.tls_certificates else { return Ok(()) };
    // Without a key there, a service manager may hand over all of them.
    if folder.is_dir() && !credentials::has_certificates(folder) {
        return Ok(());
    }
    let loaded = Credentials::load(folder, clients(options)?);
    loaded.map(drop).map_err(|error| Failure::new(format!("TLS: {error}")))
}

/// What is wrong with the files of a folder that is there. None if this user may not know.
pub fn unusable(folder: &Path, clients: Clients) -> Option<String> {
    if !folder.is_dir() {
        return None;
    }
    let error = match Credentials::load(folder, clients) {
        Err(CredentialsError::Read { error, .. }) if error.kind() == io::ErrorKind::PermissionDenied => {
            return None;
        }
        loaded => loaded.err()?,
    };
    let handed_over = if credentials::has_certificates(folder) {
        ""
    } else {
        "; only a service manager that hands the files over can make up for that"
    };
    Some(format!("{error}{handed_over}"))
}

impl Tls {
    /// As the command line has it, if it wants TLS.
    pub async fn load(options: &TlsOptions) -> Result<Option<Self>, Failure> {
        let Some(folder) = options.tls_certificates.clone() else { return Ok(None) };
        let clients = clients(options)?;
        // A folder may be slow to answer.
        let loaded = blocking(move || Credentials::load(&folder, clients)).await;
        let credentials = Arc::new(loaded.map_err(|error| Failure::new(format!("TLS: {error}")))?);
        Ok(Some(Self { credentials, required: options.tls == TlsChoice::Require }))
    }

    /// Whether connections over TCP must be secured.
    pub fn required(&self) -> bool {
        self.required
    }

    /// How a connection that comes now is secured.
    pub fn security(&self, by_tcp: bool) -> Security {
        let acceptor = self.credentials.acceptor();
        if by_tcp && self.required { Security::Required(acceptor) } else { Security::Offered(acceptor) }
    }

    /// Looks for new files until the end is wanted.
    pub fn watch(&self, log: ServerLog, stopping: Rc<Stopping>) -> JoinHandle<()> {
        let credentials = Arc::clone(&self.credentials);
        shard::spawn_joined(async move {
            while let First::Other(()) = first_of(stopping.wanted(), shard::sleep(LOOK_NANOSECONDS)).await {
                let credentials = Arc::clone(&credentials);
                let refreshed = blocking(move || credentials.refresh());
                match first_of(stopping.wanted(), refreshed).await {
                    First::One(()) => return,
                    First::Other(Ok(false)) => {}
                    First::Other(Ok(true)) => log.note("TLS: new connections use the new certificates"),
                    First::Other(Err(error)) => log.warn(&format!(
                        "TLS: {error}; new connections use the certificates from before until that is mended"
                    )),
                }
            }
        })
    }
}

/// Tells of clients with which TLS didn't come about, now and then.
#[derive(Clone)]
pub struct Complaints {
    log: ServerLog,
    said: Arc<Mutex<Said>>,
}

#[derive(Default)]
struct Said {
    last: Option<Instant>,
    kept_back: u64,
}

impl Complaints {
    pub fn new(log: ServerLog) -> Self {
        Self { log, said: Arc::default() }
    }

    pub fn tell(&self, client: &str, why: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.last.is_some_and(|last| last.elapsed() < QUIET) {
            said.kept_back += 1;
            return;
        }
        said.last = Some(Instant::now());
        let more = match std::mem::take(&mut said.kept_back) {
            0 => String::new(),
            count => format!(" ({count} more like this were not told of)"),
        };
        self.log.warn(&format!("TLS with {client} failed: {why}{more}"));
    }
}
