//! Opening members with a little patience.

use std::{
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pinstripe_runtime::uring::{Holder, OpenError, OpenFile, OpenOptions};

/// How long a device may stay busy with nobody to be seen: on a machine with ten times more to do than it has CPUs, the
/// kernel took more than two seconds.
const PATIENCE: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(20);

/// Opens and locks a member. Blocks.
///
/// The kernel takes an io_uring apart after its process has gone, so for a moment the devices of a server that was
/// killed are held by nobody; those of a member that was just taken out, by ourselves. Such a holder is waited for, one
/// that can be named is not.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Arc<OpenFile>, OpenError> {
    let begun = Instant::now();
    loop {
        match OpenFile::open(path, options) {
            Err(OpenError::Busy { holder: Holder::Ourselves | Holder::Unknown, .. })
                if begun.elapsed() < PATIENCE =>
            {
                thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
}
