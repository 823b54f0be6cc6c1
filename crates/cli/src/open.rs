//! Opening members, and addresses, with a little patience.

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pinstripe_runtime::{
    shard,
    uring::{Holder, ListenError, Listener, OpenError, OpenFile, OpenOptions},
};

use crate::{log, supervisor};

/// How long a device may stay busy without a holder that can be named: on a machine with ten times more to do
/// than it has CPUs, the kernel took more than two seconds.
const PATIENCE: Duration = Duration::from_secs(15);
/// The same under a service manager, which would start the server again and again, and give up: systemd
/// after eight starts within five minutes. What a killed server waits for may take as long as the kernel
/// gives a disk.
const PATIENCE_MANAGED: Duration = Duration::from_secs(90);
/// After so long a person is told.
const PATIENCE_SILENT: Duration = Duration::from_secs(2);
/// How long an address may be in use. The kernel doesn't say by which process, so a server that is there to
/// stay is waited for too.
const PATIENCE_FOR_ADDRESS_NANOSECONDS: u64 = 5_000_000_000;
const PAUSE_NANOSECONDS: u64 = 20_000_000;

/// Opens and locks a member, and says what is remarkable about how. Blocks.
///
/// The kernel takes an io_uring apart after its process has gone. So for a moment the devices of a server
/// that was killed are busy without a holder that can be named, and those of a member that was just taken out
/// are held by this process. Such a holder is waited for, and so is a process that was ended while a disk
/// hangs; one that goes on is not.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Arc<OpenFile>, OpenError> {
    let begun = Instant::now();
    let patience = if supervisor::is_there() { PATIENCE_MANAGED } else { PATIENCE };
    let mut is_told = false;
    loop {
        match OpenFile::open(path, options) {
            Err(error) if is_passing(&error) && begun.elapsed() < patience => {
                if begun.elapsed() > PATIENCE_SILENT && !std::mem::replace(&mut is_told, true) {
                    let words = format!("{error}: waits for its end, up to {} s", patience.as_secs());
                    supervisor::tell_status(&words);
                    log::warn(&words);
                }
                thread::sleep(Duration::from_nanos(PAUSE_NANOSECONDS));
            }
            opened => {
                if let Some(remark) = opened.as_ref().ok().and_then(|file| file.remark()) {
                    log::warn(remark);
                }
                return opened;
            }
        }
    }
}

/// Whether what holds a device is about to go.
fn is_passing(error: &OpenError) -> bool {
    let OpenError::Busy { holder, .. } = error else { return false };
    matches!(holder, Holder::Ourselves | Holder::Unknown | Holder::Dying(..))
}

/// Listens on a TCP address. The socket of a server that was killed is in use for as long as its io_uring,
/// see [`open`].
pub async fn listen(address: SocketAddr) -> Result<Listener, ListenError> {
    let begun = shard::now();
    loop {
        match Listener::tcp(address) {
            Err(ListenError::InUse { .. }) if shard::now() - begun < PATIENCE_FOR_ADDRESS_NANOSECONDS => {
                shard::sleep(PAUSE_NANOSECONDS).await;
            }
            other => {
                if other.as_ref().is_ok_and(Listener::is_ahead_of_network) {
                    log::warn(&format!("no interface of this machine has the address {address} yet"));
                }
                return other;
            }
        }
    }
}
