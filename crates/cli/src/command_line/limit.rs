//! What clients of an array may ask for, as `serve` and `limit` are told.

use clap::Args;
use pinstripe_control::{
    limit::BURST_SECONDS,
    size::{BadSize, ByteSize},
};

use super::ArrayArguments;

/// Of `serve`.
#[derive(Clone, Debug, Args)]
pub struct LimitOptions {
    /// Requests in a second that all clients together may have done. Flushes don't count
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit_iops: Option<u64>,
    /// Bytes in a second that all clients together may read, write and zero
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub limit_bandwidth: Option<ByteSize>,
    /// Seconds of what a limit allows that can be saved up while less is asked for
    #[arg(long, value_name = "SECONDS", default_value_t = BURST_SECONDS, value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub limit_burst: u32,
}

#[derive(Debug, Args)]
pub struct LimitArguments {
    #[command(flatten)]
    pub array: ArrayArguments,
    /// Requests in a second that all clients together may have done. 0: any number
    #[arg(long, value_name = "N")]
    pub iops: Option<u64>,
    /// Bytes in a second that all clients together may read, write and zero. 0: any number
    #[arg(long, value_name = "SIZE")]
    pub bandwidth: Option<ByteSize>,
    /// Seconds of what a limit allows that can be saved up while less is asked for
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub burst: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn rate(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error: BadSize| error.to_string())?;
    if size.0 == 0 { Err("leave the limit out to have none".to_owned()) } else { Ok(size) }
}
