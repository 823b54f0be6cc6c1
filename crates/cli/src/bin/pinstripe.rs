//! The program; everything of it is in the library beside it, where a fuzzer can reach it.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    pinstripe_cli::main()
}
