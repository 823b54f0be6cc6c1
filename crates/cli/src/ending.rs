//! SIGTERM and SIGINT, which end a server at any moment of its life.

use pinstripe_runtime::uring::termination;

use crate::first_of::{First, first_of};

/// Waits until the process is ordered to end. One such wait is for the whole life of a server: a signal that
/// comes in the moment in which one is dropped goes with it.
pub async fn ordered() {
    if let Err(error) = termination().await {
        // The control socket is still there.
        eprintln!("pinstripe: can't wait for signals: {error}; use `pinstripe stop`");
        std::future::pending::<()>().await;
    }
}

/// Does the work of a server's start, unless the process is ordered to end meanwhile, which `order` tells;
/// then the work is dropped where it stands.
pub async fn until_ordered<T>(order: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    match first_of(order, work).await {
        First::One(()) => {
            eprintln!("pinstripe: ended by a signal before it was ready; nothing was served");
            None
        }
        First::Other(value) => Some(value),
    }
}
