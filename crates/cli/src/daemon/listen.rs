//! An HTTP server of the daemon: one thread with its own runtime.
//!
//! A client that is slow, or one of very many, costs a bounded time and memory: connections are counted,
//! carry one request each, and are closed when their time is over. With TLS the handshake has a limit of its
//! own. Where all places are taken, the connection that has had its time for the longest gives its place to
//! the next one: half a second to send the head of its request, and some more to send the rest and take the
//! answer. So connections that say nothing, or read nothing, keep no client from its answer.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    task::AbortHandle,
    time::{Instant, timeout, timeout_at},
};

use super::tls::Tls;

/// How long a connection may take in all.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a client may take to send its request.
const HEADER_LIMIT: Duration = Duration::from_secs(10);
const HEADER_BYTES_MAX: usize = 16 << 10;
/// The same where another client waits for the place.
const HEADER_LIMIT_SHORT: Duration = Duration::from_millis(500);
/// And how long the rest may take then, with the answer.
const ANSWER_LIMIT_SHORT: Duration = Duration::from_secs(3);
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

/// In a response's extensions: the connection may take so long in all, and not only [`LIMIT`]. It keeps its
/// place: what answers so counts these itself.
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
    let guests = Guests::default();
    let mut number = 0;
    loop {
        number += 1;
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        // It is closed by nothing.
        let Some(permit) = guests.place(&room).await else { continue };
        let (answer, tls) = (answer.clone(), tls.clone());
        let seat = Seat { number, guests: guests.clone() };
        let task = tokio::spawn(async move {
            match tls {
                None => converse(stream, From(from), None, &seat, answer).await,
                Some(tls) => {
                    if let Some((stream, acceptor)) = tls.secure(stream).await {
                        converse(stream, From(from), Some(Secured(acceptor)), &seat, answer).await;
                    }
                }
            }
            drop(permit);
        });
        // All tasks have one thread: this one has not begun yet.
        guests.all().insert(number, (Instant::now() + HEADER_LIMIT_SHORT, task.abort_handle()));
    }
}

/// The connections that can lose their places, by their numbers: since when, and their tasks.
#[derive(Clone, Default)]
struct Guests(Arc<Mutex<BTreeMap<u64, (Instant, AbortHandle)>>>);

impl Guests {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, (Instant, AbortHandle)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more connection, that of one of these where none is free.
    async fn place(&self, room: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        let mut free = pin!(Arc::clone(room).acquire_owned());
        while let Some((due, _)) = self.first() {
            if let Ok(permit) = timeout_at(due, free.as_mut()).await {
                return permit.ok();
            }
            if self.end_first() {
                break;
            }
        }
        free.await.ok()
    }

    /// When the first of them can be ended, and its number.
    fn first(&self) -> Option<(Instant, u64)> {
        self.all().iter().map(|(number, (due, _))| (*due, *number)).min()
    }

    /// Ends it, if it has had its time; the one that was it may have sent its head since.
    fn end_first(&self) -> bool {
        let first = self.first().filter(|(due, _)| *due <= Instant::now());
        let ended = first.and_then(|(_, number)| self.all().remove(&number));
        ended.inspect(|(_, task)| task.abort()).is_some()
    }
}

/// What a connection is among them, until its end.
struct Seat {
    number: u64,
    guests: Guests,
}

impl Seat {
    /// The head of its request is there.
    fn is_heard(&self) {
        if let Some((due, _)) = self.guests.all().get_mut(&self.number) {
            *due = Instant::now() + ANSWER_LIMIT_SHORT;
        }
    }

    /// It is not asked to go.
    fn keep(&self) {
        self.guests.all().remove(&self.number);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.keep();
    }
}

async fn converse<S, Answer, Answered, B>(
    stream: S,
    from: From,
    secured: Option<Secured>,
    seat: &Seat,
    answer: Answer,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    Answer: Fn(Request<Incoming>) -> Answered,
    Answered: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    // Milliseconds that the connection gets beyond the limit.
    let more = AtomicU64::new(0);
    let service = service_fn(|mut request| {
        seat.is_heard();
        Request::extensions_mut(&mut request).insert(from);
        if let Some(secured) = &secured {
            Request::extensions_mut(&mut request).insert(secured.clone());
        }
        let (answered, more) = (answer(request), &more);
        async move {
            let response = answered.await;
            if let Some(Lasts(limit)) = response.extensions().get() {
                seat.keep();
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

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream,
        time::Instant,
    };

    use http_body_util::Full;

    use super::*;

    #[test]
    fn connections_without_a_request_keep_no_client_from_its_answer() {
        let place = Place { address: ([127, 0, 0, 1], 0).into(), was_ours: false, connections: 4, tls: None };
        let server =
            serve("test", place, || |_request| async { Response::new(Full::new(Bytes::from_static(b"ok"))) });
        let server = server.unwrap();
        let begin = || {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
            stream
        };
        let mut idle: Vec<TcpStream> = (0..16).map(|_| begin()).collect();
        let (mut stream, begun) = (begin(), Instant::now());
        stream.set_read_timeout(Some(HEADER_LIMIT)).unwrap();
        stream.write_all(b"Host: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("ok"), "{text}");
        assert!(begun.elapsed() < HEADER_LIMIT);
        // The newest of them had its place.
        let newest = idle.last_mut().unwrap();
        newest.set_read_timeout(Some(HEADER_LIMIT)).unwrap();
        newest.write_all(b"Host: x\r\n\r\n").unwrap();
        text.clear();
        newest.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("ok"), "{text}");
    }

    #[test]
    fn connections_that_do_not_read_their_answer_keep_no_client_from_its_own() {
        const BIG: usize = 64 << 20;
        let place = Place { address: ([127, 0, 0, 1], 0).into(), was_ours: false, connections: 4, tls: None };
        let server = serve("test", place, || {
            |request: Request<Incoming>| async move {
                let length = if request.uri().path() == "/big" { BIG } else { 2 };
                Response::new(Full::new(Bytes::from(vec![b'k'; length])))
            }
        });
        let server = server.unwrap();
        let ask = |path: &str| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream
        };
        let _deaf: Vec<TcpStream> = (0..4).map(|_| ask("/big")).collect();
        let begun = Instant::now();
        let mut text = String::new();
        ask("/").read_to_string(&mut text).unwrap();
        assert!(text.ends_with("kk"), "{text}");
        assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    }
}
