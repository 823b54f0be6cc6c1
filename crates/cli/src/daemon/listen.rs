//! An HTTP server of the daemon: one thread with its own runtime.
//!
//! A client that is slow, or one of very many, costs a bounded time and memory: connections are counted,
//! carry one request each, and are closed when their time is over.

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
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

/// How long a connection may take in all.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a client may take to send its request.
const HEADER_LIMIT: Duration = Duration::from_secs(10);
const HEADER_BYTES_MAX: usize = 16 << 10;
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

/// Listens, on a thread of this name. `connections`: at a time; further ones wait. `begin` runs on the
/// thread's runtime and gives what answers.
pub fn serve<Begin, Answer, Answered, B>(
    name: &str,
    address: SocketAddr,
    connections: usize,
    begin: Begin,
) -> io::Result<Server>
where
    Begin: FnOnce() -> Answer + Send + 'static,
    Answer: Fn(Request<Incoming>) -> Answered + Clone + Send + Sync + 'static,
    Answered: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let (end, ended) = oneshot::channel::<()>();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        runtime.block_on(async {
            let accepting = tokio::spawn(accept(listener, connections, begin()));
            // An error is the end, too.
            let _ = ended.await;
            accepting.abort();
        });
        // Without waiting for what takes long on threads of its own.
        runtime.shutdown_background();
    })?;
    Ok(Server { address, _end: end })
}

async fn accept<Answer, Answered, B>(
    listener: TcpListener,
    connections: usize,
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
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            converse(stream, answer).await;
            drop(permit);
        });
    }
}

async fn converse<Answer, Answered, B>(stream: tokio::net::TcpStream, answer: Answer)
where
    Answer: Fn(Request<Incoming>) -> Answered,
    Answered: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    // Milliseconds that the connection gets beyond the limit.
    let more = AtomicU64::new(0);
    let service = service_fn(|request| {
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
