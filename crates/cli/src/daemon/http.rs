//! HTTP for programs that watch: `/metrics`, `/healthz`, `/readyz`. Reads only.
//!
//! One thread with its own runtime; the daemon's state comes over a channel. A client that is slow, or one of
//! very many, costs a bounded time and memory.

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, mpsc::Sender},
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

use super::{
    Message,
    metrics::{self, Snapshot},
    threads,
};

/// Connections at a time; further ones wait.
const CONNECTIONS_MAX: usize = 32;
/// How long a connection may take in all.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a client may take to send its request.
const HEADER_LIMIT: Duration = Duration::from_secs(10);
const HEADER_BYTES_MAX: usize = 16 << 10;
/// How long the daemon may take to say how things are.
const STATE_LIMIT: Duration = Duration::from_secs(10);
/// Pause where a connection could not be taken: then that fails again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// A server; it ends with this.
pub struct Server {
    pub address: SocketAddr,
    _end: oneshot::Sender<()>,
}

/// How the daemon answers: over a channel of one.
pub type Answer = oneshot::Sender<Snapshot>;

impl Server {
    /// Listens.
    pub fn new(address: SocketAddr, daemon: Sender<Message>) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (end, ended) = oneshot::channel::<()>();
        threads::spawn("http", move || {
            runtime.block_on(async {
                let accepting = tokio::spawn(accept(listener, daemon));
                // An error is the end, too.
                let _ = ended.await;
                accepting.abort();
            });
        })?;
        Ok(Self { address, _end: end })
    }
}

async fn accept(listener: TcpListener, daemon: Sender<Message>) -> io::Result<Infallible> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // It is closed by nothing.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { continue };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let daemon = daemon.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, &daemon));
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADER_LIMIT).keep_alive(false);
            let connection =
                http.max_buf_size(HEADER_BYTES_MAX).serve_connection(TokioIo::new(stream), service);
            // A client that goes away is none of the daemon's concern.
            let _ = timeout(LIMIT, connection).await;
            drop(permit);
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    daemon: &Sender<Message>,
) -> Result<Response<Full<Bytes>>, Infallible> {
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
    Ok(response)
}

async fn snapshot(daemon: &Sender<Message>) -> Option<Snapshot> {
    let (answer, answered) = oneshot::channel();
    daemon.send(Message::Snapshot(answer)).ok()?;
    timeout(STATE_LIMIT, answered).await.ok()?.ok()
}
