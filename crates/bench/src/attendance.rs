//! An observer outside of a run: told where the run is, and asked to say when it may go on.
//!
//! What only an observer can count (bytes on a link, CPU time of servers), or change (the rate of a link), is
//! counted and changed while nothing is under way.

use std::io::{self, Write};

use pinstripe_runtime::uring::blocking;

use crate::run::BenchError;

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The array is as it shall be; the warm-up comes.
    Ready,
    /// Measuring comes.
    Begins,
    /// It is over; the check comes.
    Ended,
}

impl Stage {
    fn line(self) -> &'static str {
        match self {
            Self::Ready => "{\"event\":\"ready\"}\n",
            Self::Begins => "{\"event\":\"begins\"}\n",
            Self::Ended => "{\"event\":\"ended\"}\n",
        }
    }
}

/// Tells the observer, if there is one, and waits for a line of theirs.
pub(crate) async fn announce(attended: bool, stage: Stage) -> Result<(), BenchError> {
    if !attended {
        return Ok(());
    }
    // Shards go on meanwhile: members on servers must hear that we are alive.
    blocking(move || -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(stage.line().as_bytes())?;
        out.flush()?;
        let mut answer = String::new();
        if io::stdin().read_line(&mut answer)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "standard input has ended"));
        }
        Ok(())
    })
    .await
    .map_err(BenchError::Attendance)
}
