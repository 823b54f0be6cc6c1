//! Exports that a load can go to: `--through`.

use std::{fmt, path::PathBuf, str::FromStr};

use thiserror::Error;

/// What the load goes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Through {
    /// A server that is started for it, with this front end.
    Server(FrontEnd),
    /// An export that is there already.
    Export(Export),
}

/// A front end of `pinstripe serve`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrontEnd {
    /// A unix socket.
    Nbd,
    /// A block device of the kernel's ublk driver.
    Ublk,
    /// A file that is mounted by FUSE.
    Fuse,
    /// A virtual machine's disk, on a unix socket.
    VhostUser,
}

impl FrontEnd {
    /// All of them, with their names.
    pub const ALL: &[(&'static str, Self)] =
        &[("nbd", Self::Nbd), ("ublk", Self::Ublk), ("fuse", Self::Fuse), ("vhost-user", Self::VhostUser)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, other)| *other == self).map_or("", |(name, _)| name)
    }
}

/// An export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Export {
    /// A block device or a file: ublk's, FUSE's, a loop device.
    Path(PathBuf),
    /// Of an NBD server.
    Nbd(NbdAddress),
    /// The unix socket of a vhost-user back end.
    VhostUser(PathBuf),
}

/// Where an NBD server is, and which of its exports is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// On a unix socket of this machine.
    Unix {
        /// Its path.
        socket: PathBuf,
        /// The export's name, empty for the server's default.
        name: String,
    },
    /// Anywhere.
    Tcp {
        /// Host and port.
        address: String,
        /// The export's name, empty for the server's default.
        name: String,
    },
}

/// NBD's own port.
const PORT: u16 = 10809;

/// A text that names no export.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", self.sentence())]
pub struct BadExport(String);

impl BadExport {
    fn sentence(&self) -> String {
        let front_ends = FrontEnd::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        format!(
            "'{}' is no export: {front_ends}, a path with a / in it, vhost-user:PATH, nbd+unix:///NAME?socket=PATH or \
             nbd://HOST:PORT/NAME is needed",
            self.0
        )
    }
}

impl FromStr for Through {
    type Err = BadExport;

    fn from_str(text: &str) -> Result<Self, BadExport> {
        let front_end = FrontEnd::ALL.iter().find(|(name, _)| *name == text);
        front_end
            .map_or_else(|| text.parse().map(Self::Export), |(_, front_end)| Ok(Self::Server(*front_end)))
    }
}

impl FromStr for Export {
    type Err = BadExport;

    fn from_str(text: &str) -> Result<Self, BadExport> {
        let bad = || BadExport(text.to_owned());
        let named = |name: &str| name.trim_start_matches('/').to_owned();
        if let Some(rest) = text.strip_prefix("nbd+unix://") {
            let (name, socket) = rest.split_once("?socket=").ok_or_else(bad)?;
            return Ok(Self::Nbd(NbdAddress::Unix { socket: socket.into(), name: named(name) }));
        }
        if let Some(rest) = text.strip_prefix("nbd://") {
            let (host, name) = rest.split_once('/').unwrap_or((rest, ""));
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let address = if has_port { host.to_owned() } else { format!("{host}:{PORT}") };
            return if host.is_empty() {
                Err(bad())
            } else {
                Ok(Self::Nbd(NbdAddress::Tcp { address, name: named(name) }))
            };
        }
        if let Some(path) = text.strip_prefix("vhost-user:") {
            return if path.is_empty() { Err(bad()) } else { Ok(Self::VhostUser(path.into())) };
        }
        // A scheme that isn't known, or a front end that is misspelled, is no file.
        if text.contains("://") || !text.contains('/') { Err(bad()) } else { Ok(Self::Path(text.into())) }
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { socket, name } => write!(f, "nbd+unix:///{name}?socket={}", socket.display()),
            Self::Tcp { address, name } => write!(f, "nbd://{address}/{name}"),
        }
    }
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Nbd(address) => write!(f, "{address}"),
            Self::VhostUser(path) => write!(f, "vhost-user:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_ends_paths_and_addresses_are_told_apart() {
        assert_eq!("nbd".parse(), Ok(Through::Server(FrontEnd::Nbd)));
        assert_eq!("ublk".parse(), Ok(Through::Server(FrontEnd::Ublk)));
        assert_eq!("fuse".parse(), Ok(Through::Server(FrontEnd::Fuse)));
        assert_eq!("vhost-user".parse(), Ok(Through::Server(FrontEnd::VhostUser)));
        let vhost_user = Export::VhostUser("disk".into());
        assert_eq!(vhost_user.to_string().parse(), Ok(Through::Export(vhost_user)));
        assert_eq!("/dev/loop0".parse(), Ok(Through::Export(Export::Path("/dev/loop0".into()))));
        let unix = NbdAddress::Unix { socket: "/run/a.nbd".into(), name: "data".into() };
        assert_eq!("nbd+unix:///data?socket=/run/a.nbd".parse(), Ok(Export::Nbd(unix.clone())));
        assert_eq!(unix.to_string(), "nbd+unix:///data?socket=/run/a.nbd");
        let tcp = |address: &str, name: &str| {
            Export::Nbd(NbdAddress::Tcp { address: address.into(), name: name.into() })
        };
        assert_eq!("nbd://host".parse(), Ok(tcp("host:10809", "")));
        assert_eq!("nbd://[::1]:9/x".parse(), Ok(tcp("[::1]:9", "x")));
        assert_eq!("nbd://[::1]".parse(), Ok(tcp("[::1]:10809", "")));
    }

    #[test]
    fn what_names_no_export_is_refused_with_what_does() {
        for text in ["fusee", "vhost-user:", "nbd+unix:///x", "nbd://", "http://a/b", ""] {
            let error = text.parse::<Through>().unwrap_err();
            assert!(error.to_string().contains("nbd, ublk, fuse, vhost-user, a path"), "{error}");
        }
    }
}
