//! The `pinstripe` command: create, examine and serve arrays, and steer the ones that are served.
//!
//! ```text
//!   create, examine,       work on devices, with nothing running
//!   zero-superblock
//!   examine --scan,        go by the configuration; what they start is a `serve` of its own
//!   assemble, incremental,
//!   config
//!   serve                  assembles an array and serves it until it is told to stop
//!   list, detail, fail,    talk to a running `serve` over its control socket
//!   add, remove, replace, grow,
//!   check, repair, sync,
//!   monitor, stop
//!   target, discover       serve devices over NVMe/TCP, and find them
//!   completions, man       what shells and manuals know of all this
//!   ublk                   shows and deletes devices of the kernel's ublk driver
//!   bench                  measures the engine
//!   plan                   predicts what an array would do
//!   demo                   plays the whole life of an array on files
//! ```
//!
//! Begin with `command_line` (all arguments), then `serve`: the life of a server, with its front ends in
//! `serve/front.rs`. `control` is the control socket's protocol, with its client and what `detail` shows;
//! `monitor`, `demo` and `manual` are what their names say.
//!
//! Exit status: 0 when all went well, 1 when something failed or a check found mismatches, 64 when the
//! command line was wrong (`EX_USAGE`); `detail --test` tells an array's health by mdadm's numbers. Errors go
//! to standard error as one sentence: what happened, to which device, and what to do.
#![forbid(unsafe_code)]
// `eprintln!` panics where standard error is a file on a full disk: [`output::remark`] doesn't.
#![cfg_attr(not(test), deny(clippy::print_stderr))]

mod accept;
mod accounts;
mod ask_daemon;
mod assemble;
mod bench;
mod block_users;
mod called;
mod command_line;
mod completion;
mod configuration;
mod create;
mod credentials;
mod daemon;
mod demo;
mod discover;
mod ending;
mod events;
mod examine;
mod exchange;
mod failure;
mod fuse;
mod history;
mod incremental;
mod joined;
mod limits;
mod list;
mod log;
mod manual;
mod member;
mod membership;
mod memory;
mod monitor;
mod nvme_hosts;
mod nvme_server;
mod on_shards;
mod open;
mod output;
mod patience;
mod plan;
mod probe;
mod progress;
mod record;
mod remark;
mod scan;
mod scrub;
mod serve;
mod server_process;
mod state;
mod steer;
mod supervisor;
mod systemd;
mod target;
mod top;
mod ublk;
mod unmount;
mod upgrade;
mod zero_superblock;

use std::process::ExitCode;

use clap::Parser;

use command_line::{Cli, Command, ConfigAction, UblkAction};

/// A panic ends the process (C12): builds for tests unwind, and would go on without one of their threads.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !log::panicked(panic) {
            report(panic);
        }
        std::process::abort();
    }));
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    abort_on_panic();
    completion::answer_shell();
    let cli = match Cli::try_parse_from(command_line::words(std::env::args_os())) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are asked for, and no error.
            let status = if error.use_stderr() { failure::USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(status);
        }
    };
    let done = match cli.command {
        Command::Create(arguments) => create::run(&arguments),
        Command::Examine(arguments) if arguments.scan => examine::scan::run(&arguments),
        Command::Examine(arguments) => examine::run(&arguments),
        Command::Assemble(arguments) => assemble::run(&arguments),
        Command::Incremental(arguments) => incremental::run(&arguments),
        Command::Daemon(arguments) => daemon::run(&arguments),
        Command::Import(arguments) => exchange::import(&arguments),
        Command::Release(arguments) => exchange::release(&arguments),
        Command::Status(arguments) => ask_daemon::status(&arguments),
        Command::Reload(arguments) => ask_daemon::reload(&arguments),
        Command::Config(arguments) => match arguments.action {
            ConfigAction::Check(arguments) => configuration::run(&arguments),
            ConfigAction::Units(arguments) => configuration::units::run(&arguments),
            ConfigAction::Ramdisk(arguments) => exchange::ramdisk(&arguments),
        },
        Command::ZeroSuperblock(arguments) => zero_superblock::run(&arguments),
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Discover(arguments) => discover::run(&arguments),
        Command::Target(arguments) => target::run(*arguments),
        Command::List(arguments) => list::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Detail(arguments) => steer::detail(&arguments),
        Command::Fail(arguments) => membership::fail(&arguments),
        Command::Add(arguments) => membership::add(&arguments),
        Command::Remove(arguments) => membership::remove(&arguments),
        Command::Replace(arguments) => membership::replace(&arguments),
        Command::Grow(arguments) => membership::grow(&arguments),
        Command::Check(arguments) => scrub::check(&arguments),
        Command::Repair(arguments) => scrub::repair(&arguments),
        Command::Sync(arguments) => scrub::sync(&arguments),
        Command::Limit(arguments) => steer::limit(&arguments),
        Command::Record(arguments) => record::run(&arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Events(arguments) => events::run(&arguments),
        Command::Monitor(arguments) => monitor::run(&arguments),
        Command::Stop(arguments) => steer::stop(&arguments),
        Command::Ublk(arguments) => match arguments.action {
            UblkAction::Null(arguments) => serve::null::run(&arguments),
            UblkAction::List(arguments) => ublk::list(arguments.json),
            UblkAction::Export(arguments) => ublk::export(&arguments),
            UblkAction::Delete(arguments) => ublk::delete(&arguments),
            UblkAction::Note => configuration::file_systems::note(),
        },
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Completions(arguments) => manual::completions(&arguments),
        Command::Man(arguments) => manual::man(&arguments),
    };
    let status = match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    };
    log::flush();
    status
}
