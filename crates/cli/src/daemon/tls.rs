//! TLS of the daemon's HTTP servers: from the configuration to what a connection is secured with.

use std::{sync::Arc, time::Duration};

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
    /// What is served so.
    what: String,
    log: ServerLog,
}

impl Tls {
    /// Reads the certificates. `what`: is served with them, for the log.
    pub fn load(tls: &pinstripe_config::Tls, what: &str, log: &ServerLog) -> Result<Self, Failure> {
        let clients = if tls.certified { Clients::Certified(Vec::new()) } else { Clients::Any };
        let folder = credentials::certificates().unwrap_or_else(|| tls.certificates.clone());
        let credentials = Credentials::load(&folder, clients)
            .map_err(|error| Failure::new(format!("TLS of the {what}: {error}")))?;
        let (log, what) = (log.clone(), what.to_owned());
        Ok(Self { credentials: Arc::new(credentials), complaints: Complaints::new(log.clone()), what, log })
    }

    /// Shakes hands; what the connection is secured with, too. None if that doesn't come about in time.
    pub async fn secure(&self, stream: TcpStream) -> Option<(TlsStream<TcpStream>, Acceptor)> {
        let client = stream.peer_addr().map_or_else(|_| "a client".to_owned(), |address| address.to_string());
        let client = format!("{client}, a client of the {},", self.what);
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
                Ok(Ok(true)) => self.log.note(&format!("TLS of the {}: new connections use the new certificates", self.what)),
                Ok(Err(error)) => self.log.warn(&format!(
                    "TLS of the {}: {error}; new connections use the certificates from before until that is mended",
                    self.what
                )),
                Ok(Ok(false)) | Err(_) => {}
            }
        }
    }
}
