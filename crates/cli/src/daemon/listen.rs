//! An HTTP server of the daemon: one thread with its own runtime.
//!
//! A client that is slow, or one of very many, costs a bounded time and memory: connections are counted,
//! carry one request each, and are closed when their time is over. With TLS the handshake has a limit of its
//! own.

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use hyper::{
    Request, Response,
    body::{Body, Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use pinstripe_export::tls::Acceptor;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Semaphore, oneshot},
    time::timeout,
};

use super::tls::Tls;

/// How long a connection may take in all.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a client may take to send its request.
const HEADER_LIMIT: Duration = Duration::from_secs(10);
const HEADER_BYTES_MAX: usize = 16 << 10;
/// How often it is tried to listen where another server was until now: that one ends on a thread of its own.
const TRIES: usize = 50;
const TRY_PAUSE: Duration = Duration::from_millis(20);
/// Pause where a connection could not be taken: then that fails again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// A server; it ends with this.
pub struct Server {
    pub address: SocketAddr,
    _end: oneshot::Sender<()>,
}

/// In a response's extensions: the connection may take so long in all, and not only [`LIMIT`].
#[derive(Clone, Copy)]
pub struct Lasts(pub Duration);

/// In a request's extensions: the connection is secured by this.
#[derive(Clone)]
pub struct Secured(pub Acceptor);

/// In a request's extensions: from where it comes.
#[derive(Clone, Copy)]
pub struct From(pub SocketAddr);

/// Where to listen, and how many connections there may be at a time; further ones wait.
pub struct Place {
    pub address: SocketAddr,
    /// Another server of ours was there a moment ago.
    pub was_ours: bool,
    pub connections: usize,
    /// None for plain HTTP.
    pub tls: Option<Tls>,
}

/// Listens, on a thread of this name. `begin` runs on the thread's runtime and gives what answers.
pub fn serve<Begin, Answer, Answered, B>(name: &str, place: Place, begin: Begin) -> io::Result<Server>
where
    Begin: FnOnce() -> Answer + Send + 'static,
    Answer: Fn(Request<Incoming>) -> Answered + Clone + Send + Sync + 'static,
    Answered: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let Place { address, was_ours, connections, tls } = place;
    let listener = bind(address, if was_ours { TRIES } else { 0 })?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let (end, ended) = oneshot::channel::<()>();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        runtime.block_on(async {
            if let Some(tls) = tls.clone() {
                tokio::spawn(tls.watch());
            }
            let accepting = tokio::spawn(accept(listener, connections, tls, begin()));
            // An error is the end, too.
            let _ = ended.await;
            accepting.abort();
        });
        // Without waiting for what takes long on threads of its own.
        runtime.shutdown_background();
    })?;
    Ok(Server { address, _end: end })
}

fn bind(address: SocketAddr, again: usize) -> io::Result<TcpListener> {
    let mut tries = 0;
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < again => {
                tries += 1;
                thread::sleep(TRY_PAUSE);
            }
            bound => return bound,
        }
    }
}

async fn accept<Answer, Answered, B>(
    listener: TcpListener,
    connections: usize,
    tls: Option<Tls>,
    answer: Answer,
) -> io::Result<Infallible>
where
    Answer: Fn(Request<Incoming>) -> Answered + Clone + Send + Sync + 'static,
    Answered: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(connections));
    loop {
        // It is closed by nothing.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { continue };
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (answer, tls) = (answer.clone(), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => converse(stream, From(from), None, answer).await,
                Some(tls) => {
                    if let Some((stream, acceptor)) = tls.secure(stream).await {
                        converse(stream, From(from), Some(Secured(acceptor)), answer).await;
                    }
                }
            }
            drop(permit);
        });
    }
}

async fn converse<S, Answer, Answered, B>(stream: S, from: From, secured: Option<Secured>, answer: Answer)
where
    S: AsyncRead + AsyncWrite + Unpin,
    Answer: Fn(Request<Incoming>) -> Answered,
    Answered: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    // Milliseconds that the connection gets beyond the limit.
    let more = AtomicU64::new(0);
    let service = service_fn(|mut request| {
        Request::extensions_mut(&mut request).insert(from);
        if let Some(secured) = &secured {
            Request::extensions_mut(&mut request).insert(secured.clone());
        }
        let (answered, more) = (answer(request), &more);
        async move {
            let response = answered.await;
            if let Some(Lasts(limit)) = response.extensions().get() {
                let left = limit.saturating_sub(LIMIT).as_millis();
                more.store(u64::try_from(left).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_LIMIT).keep_alive(false);
    let connection = http.max_buf_size(HEADER_BYTES_MAX).serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // A client that goes away is none of the daemon's concern.
    if timeout(LIMIT, connection.as_mut()).await.is_err() {
        let _ = timeout(Duration::from_millis(more.load(Ordering::Relaxed)), connection).await;
    }
}
