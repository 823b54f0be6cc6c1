//! Sockets.

#[cfg(target_os = "linux")]
use std::{net::TcpStream, rc::Rc};

#[cfg(target_os = "linux")]
use pinstripe_runtime::{
    Stream,
    uring::{Connection, blocking},
};

#[cfg(target_os = "linux")]
use super::{Connecting, Connector};

/// Connects over TCP, on shards that io_uring drives.
#[cfg(target_os = "linux")]
#[derive(Debug, Clone, Copy, Default)]
pub struct TcpConnector;

#[cfg(target_os = "linux")]
impl Connector for TcpConnector {
    fn connect(&self, host: &str, port: u16) -> Connecting {
        let host = host.to_owned();
        Box::pin(async move {
            let socket = blocking(move || TcpStream::connect((host.as_str(), port))).await?;
            let stream: Rc<dyn Stream> = Connection::new(socket).attach()?;
            Ok(stream)
        })
    }
}
