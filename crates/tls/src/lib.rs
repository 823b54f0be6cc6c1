//! TLS 1.3 with pre-shared keys that both ends were given, over any [`Stream`](pinstripe_runtime::Stream).
//!
//! ```text
//!   hello     which keys a client names, before it has one
//!   session   s2n-tls between two buffers: records of the peer in, ours out; all unsafe code
//!   stream    a Stream of what the peer says, over the Stream of its records
//! ```
//!
//! rustls has no such keys, and the openssl crate only the callbacks of TLS 1.2, which can't name a key for
//! SHA-384. No certificate is ever asked for or trusted.

mod hello;
mod session;
mod stream;

pub use session::{Hash, Key, Keys, TlsError};
pub use stream::{Left, TlsStream};
