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
use tokio::{sync::oneshot, time::timeout};

use super::{
    Message,
    listen::{self, Place},
    metrics::{self, Snapshot},
    tls::Tls,
};

/// Connections at a time; further ones wait.
const CONNECTIONS_MAX: usize = 32;
/// How long the daemon may take to say how things are.
const STATE_LIMIT: Duration = Duration::from_secs(10);

/// How the daemon answers: over a channel of one.
pub type Answer = oneshot::Sender<Snapshot>;

/// Listens.
pub fn serve(address: SocketAddr, tls: Option<Tls>, daemon: Sender<Message>) -> io::Result<listen::Server> {
    let place = Place { address, connections: CONNECTIONS_MAX, tls };
    listen::serve("http", place, move || {
        let daemon = Arc::new(daemon);
        move |request| {
            let daemon = Arc::clone(&daemon);
            async move { answer(&request, &daemon).await }
        }
    })
}

async fn answer(request: &Request<Incoming>, daemon: &Sender<Message>) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, kind, body) = match request.uri().path() {
        _ if !is_read => (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".to_owned()),
        "/healthz" => (StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/metrics" | "/readyz" => match snapshot(daemon).await {
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

async fn snapshot(daemon: &Sender<Message>) -> Option<Snapshot> {
    let (answer, answered) = oneshot::channel();
    daemon.send(Message::Snapshot(answer)).ok()?;
    timeout(STATE_LIMIT, answered).await.ok()?.ok()
}
