//! `pinstripe top`: what the arrays of this machine do now.
//!
//! [`watch`] asks the servers, [`sample`] makes rates of two readings, [`text`] puts them into words, and
//! [`view`] shows them on a terminal.

mod sample;
mod text;
mod view;
mod watch;

use std::{
    io::{IsTerminal, stdin, stdout},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event},
};
use signal_hook::{
    consts::{SIGHUP, SIGTERM},
    flag,
};

use self::{view::View, watch::Watch};
use crate::{command_line::TopArguments, failure::Failure, output};

/// How often keys and answers are looked at.
const LOOK: Duration = Duration::from_millis(100);

pub fn run(arguments: &TopArguments) -> Result<(), Failure> {
    if arguments.json {
        return output::print_json(&watch::twice(arguments.interval));
    }
    if arguments.once {
        return output::print(&text::plain(&watch::twice(arguments.interval)));
    }
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Failure::usage(
            "standard input and output are no terminal: --once prints a sample as text, --json as JSON",
        ));
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&ended))?;
    }
    let mut terminal = ratatui::try_init()?;
    let outcome = follow(&mut terminal, arguments.interval, &ended);
    ratatui::restore();
    outcome
}

/// Shows what there is until a key or a signal ends it.
fn follow(terminal: &mut DefaultTerminal, interval: Duration, ended: &AtomicBool) -> Result<(), Failure> {
    let (mut watch, mut view) = (Watch::new(), View::default());
    let mut next = Instant::now();
    while !ended.load(Ordering::Relaxed) {
        if Instant::now() >= next {
            watch.ask();
            next = Instant::now() + interval;
        }
        watch.take();
        let samples = watch.samples();
        let nothing = if watch.is_asking() { "asking the servers" } else { "no array is served" };
        terminal.draw(|frame| view.draw(frame, &samples, nothing))?;
        if event::poll(LOOK.min(interval))?
            && let Event::Key(key) = event::read()?
            && view.press(key, &samples)
        {
            break;
        }
    }
    Ok(())
}
