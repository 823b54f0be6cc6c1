//! What is asked of `record`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::ArrayArguments;

#[derive(Debug, Args)]
pub struct RecordArguments {
    #[command(flatten)]
    pub array: ArrayArguments,
    /// The file to write, which must not be there, or - for standard output
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Seconds to record for [default: until Ctrl-C]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: Option<u32>,
    /// Print what was recorded as JSON
    #[arg(long)]
    pub json: bool,
}
