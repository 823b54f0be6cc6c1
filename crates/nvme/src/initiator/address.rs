//! How a namespace of a server is named.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::wire::{NQN_BYTES_MAX, nqn_is_valid};

/// How an address begins.
const SCHEME: &str = "nvme-tcp://";
/// The port if none is named.
const PORT: u16 = 4420;

/// `nvme-tcp://HOST:PORT/NQN?nsid=N`, and `&hdgst=1`, `&ddgst=1` for digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The subsystem.
    pub nqn: String,
    /// The namespace, from 1.
    pub namespace: u32,
    /// Ask for header digests.
    pub header_digests: bool,
    /// Ask for data digests.
    pub data_digests: bool,
}

/// A text that is no [`Address`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' names no NVMe namespace: {reason}; the form is nvme-tcp://HOST:PORT/NQN?nsid=N")]
pub struct BadAddress {
    text: String,
    reason: &'static str,
}

impl Address {
    /// Whether a device of this name is a namespace and not a path.
    pub fn is_address(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Whether the other one names the same namespace, as far as that is seen without asking: with other
    /// digests, or the host written in another way.
    pub fn names_what(&self, other: &Self) -> bool {
        let is_host = match (self.host.parse::<IpAddr>(), other.host.parse::<IpAddr>()) {
            (Ok(one), Ok(other)) => one == other,
            _ => self.host.eq_ignore_ascii_case(&other.host),
        };
        is_host && (self.port, &self.nqn, self.namespace) == (other.port, &other.nqn, other.namespace)
    }

    /// Host and port, for messages.
    pub fn server(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}?nsid={}", self.server(), self.nqn, self.namespace)?;
        for (on, name) in [(self.header_digests, "hdgst"), (self.data_digests, "ddgst")] {
            if on {
                write!(f, "&{name}=1")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        parse(text).map_err(|reason| BadAddress { text: text.to_owned(), reason })
    }
}

fn parse(text: &str) -> Result<Address, &'static str> {
    let rest = text.strip_prefix(SCHEME).ok_or("it doesn't begin with nvme-tcp://")?;
    let (server, rest) = rest.split_once('/').ok_or("it has no NQN")?;
    let (nqn, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (host, port) = match server.strip_prefix('[') {
        Some(bracketed) => {
            let (host, rest) = bracketed.split_once(']').ok_or("a bracket isn't closed")?;
            (host, rest.strip_prefix(':'))
        }
        None => server.split_once(':').map_or((server, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map_or(Ok(PORT), str::parse).map_err(|_| "the port is no number up to 65535")?;
    if host.is_empty() {
        return Err("it has no host");
    }
    if nqn.len() > NQN_BYTES_MAX || !nqn_is_valid(nqn) {
        return Err("its NQN must begin with `nqn.` and have at most 223 printable characters");
    }
    let mut address = Address {
        host: host.to_owned(),
        port,
        nqn: nqn.to_owned(),
        namespace: 0,
        header_digests: false,
        data_digests: false,
    };
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("nsid", number)) => {
                address.namespace = number.parse().map_err(|_| "its nsid is no number")?;
            }
            Some(("hdgst", value @ ("0" | "1"))) => address.header_digests = value == "1",
            Some(("ddgst", value @ ("0" | "1"))) => address.data_digests = value == "1",
            _ => return Err("nsid=N, hdgst=1 and ddgst=1 are the only options"),
        }
    }
    if address.namespace == 0 || address.namespace >= u32::MAX - 1 {
        return Err("it names no namespace: nsid=N, from 1");
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for text in [
            "nvme-tcp://127.0.0.1:4420/nqn.2026-01.example:a?nsid=1",
            "nvme-tcp://[::1]:4421/nqn.2026-01.example:a?nsid=7&hdgst=1&ddgst=1",
            "nvme-tcp://store.example:1/nqn.2026-01.example:a/b?nsid=4294967293",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let short: Address = "nvme-tcp://store/nqn.a?nsid=1".parse().unwrap();
        assert_eq!((short.port, short.host.as_str()), (4420, "store"));
    }

    #[test]
    fn one_namespace_has_several_addresses() {
        let names = |one: &str, other: &str| {
            let read = |text: &str| format!("nvme-tcp://{text}").parse::<Address>().unwrap();
            read(one).names_what(&read(other))
        };
        assert!(names("store/nqn.a?nsid=1", "Store:4420/nqn.a?nsid=1&hdgst=0"));
        assert!(names("[::1]/nqn.a?nsid=1&ddgst=1", "[0::1]:4420/nqn.a?nsid=1"));
        for other in
            ["store:1/nqn.a?nsid=1", "store/nqn.b?nsid=1", "store/nqn.a?nsid=2", "other/nqn.a?nsid=1"]
        {
            assert!(!names("store/nqn.a?nsid=1", other), "{other}");
        }
    }

    #[test]
    fn what_names_no_namespace_is_refused_with_the_form() {
        for text in [
            "/dev/sda",
            "nvme-tcp://h:1",
            "nvme-tcp://h:1/nqn.a",
            "nvme-tcp://h:1/nqn.a?nsid=0",
            "nvme-tcp://h:1/nqn.a?nsid=4294967295",
            "nvme-tcp://h:99999/nqn.a?nsid=1",
            "nvme-tcp:///nqn.a?nsid=1",
            "nvme-tcp://[::1/nqn.a?nsid=1",
            "nvme-tcp://h:1/iqn.a?nsid=1",
            "nvme-tcp://h:1/nqn.a?nsid=1&x=1",
        ] {
            assert!(text.parse::<Address>().unwrap_err().to_string().contains("nsid=N"), "{text}");
        }
    }
}
