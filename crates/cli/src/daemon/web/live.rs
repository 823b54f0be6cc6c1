//! The overview as it changes: server-sent events.
//!
//! What has changed is rendered once, for all readers. A reader that is slow skips what it has not taken; its
//! connection ends after a while in any case, and the browser comes again.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use futures_util::{future::select, stream::poll_fn};
use http_body_util::StreamBody;
use hyper::body::{Body, Bytes, Frame};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, watch},
    time::timeout,
};

use super::{page, view::View};

/// How long a stream lasts.
pub const LASTS: Duration = Duration::from_mins(10);
/// After so long without news a comment shows whether the reader is still there.
const SIGN: Duration = Duration::from_secs(15);
/// At least so long between two pages.
const PAUSE: Duration = Duration::from_millis(500);

/// The changing part of the overview, as HTML.
pub type Content = Arc<str>;

/// Renders what has changed, until the daemon or all readers are gone.
pub async fn render(mut views: watch::Receiver<Arc<View>>, contents: watch::Sender<Content>) {
    while views.changed().await.is_ok() {
        let view = Arc::clone(&views.borrow_and_update());
        let text: Content = page::content(&view).into_string().into();
        contents.send_if_modified(|last| {
            let differs = *last != text;
            if differs {
                *last = text;
            }
            differs
        });
        tokio::time::sleep(PAUSE).await;
    }
}

/// The page as an event. No line of it can begin another one.
fn event(content: &str) -> Bytes {
    let line = content.replace(['\r', '\n'], " ");
    format!("event: page\ndata: {line}\n\n").into()
}

/// A stream of the page now and each time that it changes, as long as the session lasts. `permit` goes with
/// it.
pub fn stream(
    mut contents: watch::Receiver<Content>,
    mut session: watch::Receiver<()>,
    permit: OwnedSemaphorePermit,
) -> impl Body<Data = Bytes, Error = Infallible> + Send + Sync + 'static {
    // One that waits while another is being sent.
    let (sender, mut receiver) = mpsc::channel::<Bytes>(1);
    tokio::spawn(async move {
        let _permit = permit;
        contents.mark_changed();
        let own = sender.clone();
        let sends = pin!(async move {
            loop {
                let next = match timeout(SIGN, contents.changed()).await {
                    Ok(Ok(())) => event(&contents.borrow_and_update().clone()),
                    Ok(Err(_)) => return,
                    Err(_) => Bytes::from_static(b": here\n\n"),
                };
                if sender.send(next).await.is_err() {
                    return;
                }
            }
        });
        // Nothing is sent in it: it changes when the session is over.
        let (hung_up, is_over) = (pin!(own.closed()), pin!(session.changed()));
        select(sends, select(hung_up, is_over)).await;
    });
    StreamBody::new(poll_fn(move |context| {
        receiver.poll_recv(context).map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_one_event() {
        let bytes = event("a\r\n\nevent: other\rdata: b");
        assert_eq!(&bytes[..], b"event: page\ndata: a   event: other data: b\n\n");
    }
}
