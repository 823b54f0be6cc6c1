//! HTTP for programs that watch: `/metrics`, `/healthz`, `/readyz`. Reads only. The daemon's state comes over
//! a channel.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, mpsc::Sender},
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header,
};
use tokio::{
    sync::{Notify, oneshot, watch},
    time::timeout,
};

use super::{
    Message,
    listen::{self, Place},
    metrics::{self, Snapshot},
    tls::Tls,
};

/// Connections at a time; further ones wait.
const CONNECTIONS_MAX: usize = 128;
/// At least so long between two questions to the daemon.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the daemon may take to say how things are.
const STATE_LIMIT: Duration = Duration::from_secs(10);

/// How the daemon answers: over a channel of one.
pub type Answer = oneshot::Sender<Snapshot>;

/// Listens. `was_ours`: see [`Place`].
pub fn serve(
    address: SocketAddr,
    was_ours: bool,
    tls: Option<Tls>,
    daemon: Sender<Message>,
) -> io::Result<listen::Server> {
    let place = Place { address, was_ours, connections: CONNECTIONS_MAX, tls };
    listen::serve("http", place, move || {
        let asked = Asked::begin(daemon);
        move |request| {
            let asked = asked.clone();
            async move { answer(&request, &asked).await }
        }
    })
}

/// By which clients ask how things are. However many ask, or hang up before they know, the daemon is asked
/// once at a time, and not at their pace.
#[derive(Clone)]
struct Asked {
    wanted: Arc<Notify>,
    told: watch::Receiver<Option<Arc<Snapshot>>>,
}

impl Asked {
    fn begin(daemon: Sender<Message>) -> Self {
        let (tell, told) = watch::channel(None);
        let wanted = Arc::new(Notify::new());
        let own = Arc::clone(&wanted);
        tokio::spawn(async move {
            loop {
                own.notified().await;
                let (answer, answered) = oneshot::channel();
                if daemon.send(Message::Snapshot(answer)).is_err() {
                    return;
                }
                if let Ok(snapshot) = answered.await {
                    tell.send_replace(Some(Arc::new(snapshot)));
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { wanted, told }
    }

    /// Waits for what the daemon says from now on, or just now.
    async fn snapshot(&self) -> Option<Arc<Snapshot>> {
        let mut told = self.told.clone();
        told.mark_unchanged();
        self.wanted.notify_one();
        timeout(STATE_LIMIT, told.changed()).await.ok()?.ok()?;
        told.borrow().clone()
    }
}

async fn answer(request: &Request<Incoming>, asked: &Asked) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, kind, body) = match request.uri().path() {
        _ if !is_read => (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned()),
        "/healthz" => (StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/metrics" | "/readyz" => match asked.snapshot().await {
            None => (StatusCode::SERVICE_UNAVAILABLE, TEXT, "the daemon does not answer\n".to_owned()),
            Some(snapshot) if request.uri().path() == "/metrics" => {
                (StatusCode::OK, metrics::CONTENT_TYPE, metrics::render(&snapshot))
            }
            Some(snapshot) => match metrics::readiness(&snapshot) {
                Ok(()) => (StatusCode::OK, TEXT, "ok\n".to_owned()),
                Err(why) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, why),
            },
        },
        _ => (StatusCode::NOT_FOUND, TEXT, "there are /metrics, /healthz and /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, task::Poll};

    use super::*;

    #[test]
    fn clients_that_hang_up_leave_nothing_for_the_daemon_to_do() {
        let (daemon, messages) = std::sync::mpsc::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let asked = Asked::begin(daemon);
            for _ in 0..1000 {
                let mut asks = pin!(asked.snapshot());
                poll_fn(|cx| {
                    assert!(asks.as_mut().poll(cx).is_pending());
                    Poll::Ready(())
                })
                .await;
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(messages.try_iter().count(), 1);
    }
}
