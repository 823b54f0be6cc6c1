//! SIGTERM and SIGINT, which end a server at any moment of its life.

use pinstripe_runtime::uring::termination;

use crate::first_of::{First, first_of};

/// Waits until the process is ordered to end.
pub async fn ordered() {
    if let Err(error) = termination().await {
        // The control socket is still there.
        eprintln!("pinstripe: can't wait for signals: {error}; use `pinstripe stop`");
        std::future::pending::<()>().await;
    }
}

/// Does the work of a server's start, unless the process is ordered to end meanwhile; then the work is
/// dropped where it stands.
pub async fn until_ordered<T>(work: impl Future<Output = T>) -> Option<T> {
    match first_of(ordered(), work).await {
        First::One(()) => {
            eprintln!("pinstripe: ended by a signal before it was ready; nothing was served");
            None
        }
        First::Other(value) => Some(value),
    }
}
