//! Where a server listens.

use std::{
    fs,
    io::ErrorKind,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use pinstripe_runtime::{trust::check_place, uring::Listener};

use crate::{
    command_line::{NbdAddress, ServeArguments},
    control::place,
    failure::Failure,
    open::listen,
};

/// The listening sockets. A unix socket's file goes with its listener.
pub struct Sockets {
    pub nbd: Vec<Listener>,
    pub control: Listener,
    /// Absolute.
    pub control_path: PathBuf,
    /// By which `pinstripe list` finds a control socket that isn't in the usual folder.
    _link: Option<place::Link>,
    /// Unix paths of `nbd`, `None` for TCP.
    nbd_paths: Vec<Option<PathBuf>>,
}

impl Sockets {
    /// Binds all of them.
    pub async fn listen(arguments: &ServeArguments, name: &str, uuid: &str) -> Result<Self, Failure> {
        let stem = place::stem(name, uuid);
        let control_path = match &arguments.control {
            Some(path) => path.clone(),
            None => default_folder()?.join(format!("{stem}.sock")),
        };
        let mut addresses = arguments.nbd.clone();
        if addresses.is_empty() {
            let folder = control_path.parent().unwrap_or(Path::new("")).to_owned();
            addresses.push(NbdAddress::Unix(folder.join(format!("{stem}.nbd"))));
        }
        let control = Listener::unix(&control_path)?;
        let control_path = PathBuf::from(absolute(&control_path));
        let elsewhere = arguments.control.is_some().then(default_folder).and_then(Result::ok);
        let link = elsewhere.and_then(|folder| place::Link::new(&folder, uuid, &control_path));
        let mut sockets = Self { nbd: Vec::new(), control, control_path, _link: link, nbd_paths: Vec::new() };
        for address in addresses {
            let (listener, path) = match address {
                NbdAddress::Unix(path) => (Listener::unix(&path)?, Some(path)),
                NbdAddress::Tcp(address) => (listen(address).await?, None),
            };
            sockets.nbd.push(listener);
            sockets.nbd_paths.push(path);
        }
        Ok(sockets)
    }

    /// The TCP ports of this machine alone, to which each of its users can connect.
    pub fn loopback_ports(&self) -> Vec<SocketAddr> {
        let addresses = self.nbd.iter().filter_map(Listener::tcp_address);
        addresses.filter(|address| address.ip().is_loopback()).collect()
    }

    /// NBD URIs of the export `name`, as libnbd and QEMU read them.
    pub fn uris(&self, name: &str) -> Vec<String> {
        let name = escape(name);
        let uri = |(listener, path): (&Listener, &Option<PathBuf>)| match (path, listener.tcp_address()) {
            (Some(path), _) => format!("nbd+unix:///{name}?socket={}", escape(&absolute(path))),
            (None, Some(address)) => format!("nbd://{address}/{name}"),
            (None, None) => String::new(),
        };
        self.nbd.iter().zip(&self.nbd_paths).map(uri).collect()
    }
}

/// The folder for sockets, made if need be for this user only.
fn default_folder() -> Result<PathBuf, Failure> {
    let folder = place::folders().swap_remove(0);
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Failure::new(format!(
            "can't make the folder {} for the control socket: {error}; choose another path with --control",
            folder.display()
        ))),
        _ => match check_place(&folder) {
            Ok(()) => Ok(folder),
            Err(why) => Err(Failure::new(format!(
                "sockets in {} can't be trusted: {why}; or choose another path with --control",
                folder.display()
            ))),
        },
    }
}

/// The path as others can use it, whatever folder they are in.
fn absolute(path: &Path) -> String {
    // It was bound already, so it is no empty path, which alone would fail.
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// Percent-encoding of what a URI can't hold.
fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_holds_any_name_and_path() {
        assert_eq!(escape("/tmp/a b?.sock"), "/tmp/a%20b%3F.sock");
        assert_eq!(escape("dätä"), "d%C3%A4t%C3%A4");
    }
}
