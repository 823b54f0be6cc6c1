//! Connections of TLS.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_runtime::Stream;
use pinstripe_tls::{Key, TlsError, TlsStream};

use super::{Address, Connecting, Connector, TcpConnector};
use crate::auth::TlsKeyring;

/// Connects from these addresses of this host, as the host of this NQN: by TLS if there are keys.
#[cfg(target_os = "linux")]
pub fn connector(own: Vec<IpAddr>, keys: Option<Arc<TlsKeyring>>, host: &str) -> Arc<dyn Connector> {
    let tcp = TcpConnector::from_addresses(own);
    match keys {
        Some(keys) => Arc::new(SecureConnector { under: tcp, keys, host: host.to_owned() }),
        None => Arc::new(tcp),
    }
}

/// Connects as another connector does, and speaks TLS on each connection, with the key that the keyring has
/// for the subsystem. Without one there is no connection: nothing is ever sent in clear.
struct SecureConnector<C> {
    under: C,
    keys: Arc<TlsKeyring>,
    host: String,
}

impl<C: Connector> Connector for SecureConnector<C> {
    fn connect(&self, address: &Address) -> Connecting {
        let psk = self.keys.find(&address.nqn).map(|key| key.derive(&self.host, &address.nqn));
        let (connecting, nqn, host) = (self.under.connect(address), address.nqn.clone(), self.host.clone());
        Box::pin(async move {
            let Some(psk) = psk else {
                return Err(io::Error::other(format!("the file of TLS keys has no line for {nqn}")));
            };
            // The server's file needs a line for it.
            let failed = |error: TlsError| io::Error::other(format!("{error}; this host is {host}"));
            let key = Key::new(psk.identity.as_bytes(), &psk.secret, psk.hash.into()).map_err(failed)?;
            let secured = TlsStream::client(connecting.await?, &key).map_err(failed)?;
            secured.shake_hands().await.map_err(failed)?;
            Ok(Rc::new(secured) as Rc<dyn Stream>)
        })
    }
}
