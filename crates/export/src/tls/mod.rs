//! TLS 1.3 between a server and its clients.
//!
//! ```text
//!   files ──> Credentials ──> Acceptor ──> Session, one a connection
//!                                          Stream ──> records ──> rustls ──> what the client said
//!                                          Stream <── records <── rustls <── what it is answered
//! ```
//!
//! * [`Credentials`]: a folder of PEM files, looked at again when they change.
//! * [`Acceptor`]: what new connections are secured with now.
//!
//! No session is resumed: there are no tickets, so a certificate that is no longer accepted is so from the
//! next connection on. There is no early data, which could be replayed as writes.

mod credentials;
mod session;

pub use credentials::{Acceptor, Clients, Credentials, CredentialsError};
pub(crate) use session::Session;
