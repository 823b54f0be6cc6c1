//! What is asked of `ublk`, and the number of a ublk device.

use std::str::FromStr;

use clap::{Args, Subcommand};
use pinstripe_control::size::ByteSize;
use thiserror::Error;

use super::ListArguments;

/// The number of a ublk device that is to be made or taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UblkNumber {
    /// As it comes.
    Any,
    /// This one.
    Given(u32),
}

/// A text that is no such number.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{0}' is no number of a ublk device: 0 to {UBLK_ID_MAX} is needed, or none, for any")]
pub struct BadUblkNumber(String);

impl FromStr for UblkNumber {
    type Err = BadUblkNumber;

    fn from_str(text: &str) -> Result<Self, BadUblkNumber> {
        let number = || text.parse().ok().filter(|number| *number <= UBLK_ID_MAX);
        match text {
            "any" => Ok(Self::Any),
            _ => number().map(Self::Given).ok_or_else(|| BadUblkNumber(text.to_owned())),
        }
    }
}

/// The highest number of a ublk device (`UBLK_MINORS`).
const UBLK_ID_MAX: u32 = (1 << 20) - 1;

#[derive(Debug, Args)]
pub struct UblkArguments {
    #[command(subcommand)]
    pub action: UblkAction,
}

#[derive(Debug, Subcommand)]
pub enum UblkAction {
    /// Show the devices, whatever program serves them.
    List(ListArguments),
    /// Delete a device whose server has died, or that was never started.
    ///
    /// Requests that wait for a server fail. To keep them, serve the array again: `serve --ublk=ID`. A device
    /// that is served ends with its server (`pinstripe stop`).
    Delete(UblkDeleteArguments),
    /// Print as lines KEY=VALUE what udev's rules want to know of a device: its array's name and UUID.
    #[command(hide = true)]
    Export(UblkExportArguments),
    /// Write down, for the generator of units, by what names in /dev/disk udev has a device's file system.
    /// udev gives the device's properties as environment.
    #[command(hide = true)]
    Note,
    /// Serve a device that answers every request at once and keeps nothing, until a signal comes: what a
    /// server of block devices can do at most here.
    #[command(hide = true)]
    Null(UblkNullArguments),
}

#[derive(Debug, Args)]
pub struct UblkNullArguments {
    /// The number in /dev/ublkbID [default: the next free one]
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u32).range(0..=i64::from(UBLK_ID_MAX)))]
    pub id: Option<u32>,
    /// Bytes that it seems to have
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub size: ByteSize,
    /// Threads that serve
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: u16,
}

#[derive(Debug, Args)]
pub struct UblkExportArguments {
    /// The number in /dev/ublkbID
    #[arg(value_name = "ID", value_parser = clap::value_parser!(u32).range(0..=i64::from(UBLK_ID_MAX)))]
    pub id: u32,
}

#[derive(Debug, Args)]
pub struct UblkDeleteArguments {
    /// The number in /dev/ublkbID
    #[arg(value_name = "ID", value_parser = clap::value_parser!(u32).range(0..=i64::from(UBLK_ID_MAX)))]
    pub id: u32,
    /// Delete it although requests wait for a server, or it is mounted: they fail
    #[arg(long)]
    pub force: bool,
}
