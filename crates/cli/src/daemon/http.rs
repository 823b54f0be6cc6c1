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
    HeaderMap, Method, Request, Response, StatusCode,
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
    web::guard,
};
use crate::called::host;

/// Connections at a time; further ones wait.
const CONNECTIONS_MAX: usize = 128;
const TEXT: &str = "text/plain; charset=utf-8";
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
    // By DNS rebinding a page of another site could have a browser of this machine read what is for this
    // machine alone. With TLS the certificate isn't that site's.
    let is_for_us = address.ip().is_loopback() && tls.is_none();
    let place = Place { address, was_ours, connections: CONNECTIONS_MAX, tls };
    listen::serve("http", place, move || {
        let asked = Asked::begin(daemon);
        move |request: Request<Incoming>| {
            let asked = asked.clone();
            async move {
                if is_for_us && !names_us(request.headers()) {
                    return text(
                        StatusCode::FORBIDDEN,
                        TEXT,
                        "by this address only loopback's names are answered\n",
                    );
                }
                answer(&request, &asked).await
            }
        }
    })
}

/// Whether what a request asks for is this machine. Every browser says it.
fn names_us(headers: &HeaderMap) -> bool {
    // A page can be of any name but this, which no name server of others gives away.
    let own = |name: &str| name.eq_ignore_ascii_case(&host());
    let is_own = |asked: &str| guard::is_here(asked, Some(&own));
    headers.get(header::HOST).is_none_or(|asked| asked.to_str().is_ok_and(is_own))
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
    text(status, kind, body)
}

fn text(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, task::Poll};

    use super::*;

    #[test]
    fn a_page_of_another_site_does_not_read_what_is_for_this_machine() {
        let is_answered = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            names_us(&headers)
        };
        for host in ["127.0.0.1:9100", "localhost:9100", "[::1]:9100", "localhost", &host()] {
            assert!(is_answered(host), "{host}");
        }
        assert!(names_us(&HeaderMap::new()), "no browser");
        for host in ["evil.example:9100", "evil.example", "192.0.2.7:9100", ""] {
            assert!(!is_answered(host), "{host}");
        }
    }

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
