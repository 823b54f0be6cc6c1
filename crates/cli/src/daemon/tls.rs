//! TLS of the daemon's HTTP servers: from the configuration to what a connection is secured with.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pinstripe_export::tls::{Acceptor, Clients, Credentials};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{
    credentials,
    failure::Failure,
    serve::{Complaints, ServerLog},
};

/// Between two looks at the files.
const LOOK: Duration = Duration::from_secs(5);
/// How long a handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// What the connections of one server are secured with.
#[derive(Clone)]
pub struct Tls {
    credentials: Arc<Credentials>,
    complaints: Complaints,
    log: ServerLog,
}

impl Tls {
    /// Reads the certificates. `what`: is served with them, for the log.
    pub fn load(tls: &pinstripe_config::Tls, what: &str, log: &ServerLog) -> Result<Self, Failure> {
        let clients = if tls.certified { Clients::Certified(Vec::new()) } else { Clients::Any };
        let folder = credentials::certificates().unwrap_or_else(|| tls.certificates.clone());
        let credentials = Credentials::load(&folder, clients)
            .map_err(|error| Failure::new(format!("TLS of the {what}: {error}")))?;
        let log = log.of(what);
        Ok(Self { credentials: Arc::new(credentials), complaints: Complaints::new(log.clone()), log })
    }

    /// Shakes hands; what the connection is secured with, too. None if that doesn't come about in time.
    pub async fn secure(&self, stream: TcpStream) -> Option<(TlsStream<TcpStream>, Acceptor)> {
        let client = stream.peer_addr().map_or_else(|_| "a client".to_owned(), |address| address.to_string());
        let acceptor = self.credentials.acceptor();
        let handshake = TlsAcceptor::from(acceptor.for_http()).accept(stream);
        match timeout(HANDSHAKE_LIMIT, handshake).await {
            Ok(Ok(stream)) => return Some((stream, acceptor)),
            Ok(Err(error)) => self.complaints.tell(&client, &error.to_string()),
            Err(_) => self.complaints.tell(&client, "the handshake took too long"),
        }
        None
    }

    /// Looks for new files, for ever.
    pub async fn watch(self) {
        loop {
            tokio::time::sleep(LOOK).await;
            let credentials = Arc::clone(&self.credentials);
            // A folder may be slow to answer.
            match tokio::task::spawn_blocking(move || credentials.refresh()).await {
                Ok(Ok(true)) => self.log.note("TLS: new connections use the new certificates"),
                Ok(Err(error)) => self.log.warn(&format!(
                    "TLS: {error}; new connections use the certificates from before until that is mended"
                )),
                Ok(Ok(false)) | Err(_) => {}
            }
        }
    }
}

/// TLS with the files of a folder, for any client.
pub fn of_folder(folder: &Path) -> pinstripe_config::Tls {
    pinstripe_config::Tls { certificates: PathBuf::from(folder), certified: false }
}
