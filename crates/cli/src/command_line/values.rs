//! Values that have a form of their own.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    str::FromStr,
};

use thiserror::Error;

/// Where to serve NBD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadAddress {
    #[error("'{0}' is no address to serve on: unix:PATH or tcp:ADDRESS:PORT is needed")]
    Kind(String),
    #[error("'{0}' is no TCP address: ADDRESS:PORT is needed, with an IPv6 address in brackets")]
    Tcp(String),
}

impl FromStr for NbdAddress {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", address)) => {
                let resolved = address.to_socket_addrs().ok().and_then(|mut all| all.next());
                resolved.map(Self::Tcp).ok_or_else(|| BadAddress::Tcp(address.to_owned()))
            }
            _ => Err(BadAddress::Kind(text.to_owned())),
        }
    }
}

/// Bytes of a logical block, as an array may have it.
pub fn logical_block(text: &str) -> Result<u32, String> {
    let block = text.parse().ok().filter(|block| matches!(block, 512 | 1024 | 2048 | 4096));
    block.ok_or_else(|| format!("'{text}' is no logical block: 512, 1024, 2048 or 4096 is needed"))
}

/// CPUs, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

/// A text that is no list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is no list of CPUs: numbers and ranges are needed, such as 0-3,8")]
pub struct BadCpuList(String);

/// No machine has more.
const CPUS_MAX: usize = 65536;

impl FromStr for CpuList {
    type Err = BadCpuList;

    fn from_str(text: &str) -> Result<Self, BadCpuList> {
        let bad = || BadCpuList(text.to_owned());
        let number = |text: &str| text.parse::<usize>().ok().filter(|cpu| *cpu < CPUS_MAX).ok_or_else(bad);
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(bad());
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}
