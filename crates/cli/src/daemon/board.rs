//! What the daemon puts up for its page: the last events, the throughput of the last hour, and all the rest
//! as it is. Nothing is kept or put up while there is no page.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use pinstripe_control::Detail;
use tokio::sync::watch;

use super::{
    Daemon, Message, listen,
    secretary::host,
    web::{
        self, Token,
        throughput::Throughput,
        view::{ArrayView, View},
    },
};
use crate::{
    failure::Failure,
    history::{self, Told},
};

/// Events that are shown.
const EVENTS_MAX: usize = 50;
/// Bytes of the history in which they are looked for when the daemon begins.
const HISTORY_TAIL: u64 = 64 << 10;
/// At least so long between two views.
const PAUSE: Duration = Duration::from_millis(250);
/// How often it is tried to listen where the page was until now: that one ends on a thread of its own.
const TRIES: usize = 50;
const TRY_PAUSE: Duration = Duration::from_millis(20);

/// Where the page is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    address: SocketAddr,
    /// The file with the token, and whether it is made if it isn't there.
    token: (PathBuf, bool),
}

/// See the module.
pub struct Board {
    /// The address that the command line gives.
    given: Option<SocketAddr>,
    /// The token's file, unless the configuration names another one.
    token: PathBuf,
    server: Option<(Place, listen::Server)>,
    views: watch::Sender<Arc<View>>,
    /// By the array's key.
    throughput: BTreeMap<String, Throughput>,
    /// Oldest first.
    events: VecDeque<Told>,
    /// Something has changed since the last view.
    changed: bool,
    /// When that was put up.
    last: Option<Duration>,
}

impl Board {
    /// `folder`: of sockets. `state`: of what outlives the daemon.
    pub fn new(given: Option<SocketAddr>, folder: &Path, state: &Path) -> Self {
        let (views, _) = watch::channel(Arc::default());
        let mut board = Self {
            given,
            token: folder.join("web.token"),
            server: None,
            views,
            throughput: BTreeMap::new(),
            events: VecDeque::new(),
            changed: true,
            last: None,
        };
        // Without its past the page is as good.
        history::tail(state, HISTORY_TAIL)
            .unwrap_or_default()
            .into_iter()
            .for_each(|told| board.remember(told));
        board
    }

    /// Whether there is a page.
    pub fn is_up(&self) -> bool {
        self.server.is_some()
    }

    /// Something is to be shown.
    pub fn touch(&mut self) {
        self.changed = true;
    }

    /// Shows an event.
    pub fn remember(&mut self, told: Told) {
        self.events.push_back(told);
        while self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
        self.changed = true;
    }

    /// Takes what the servers were asked for anyway. An array without an answer has a gap.
    pub fn sample<'a>(
        &mut self,
        now: Duration,
        arrays: impl Iterator<Item = (&'a String, Option<&'a Detail>)>,
    ) {
        if !self.is_up() {
            self.throughput.clear();
            return;
        }
        let mut before = std::mem::take(&mut self.throughput);
        for (key, detail) in arrays {
            let mut throughput = before.remove(key).unwrap_or_default();
            match detail {
                None => throughput.interrupt(),
                Some(detail) => {
                    let count = |name: &str| detail.statistics.get(name).copied().unwrap_or(0);
                    throughput.sample(now, count("read_bytes"), count("write_bytes"));
                }
            }
            self.throughput.insert(key.clone(), throughput);
        }
    }
}

impl Daemon {
    /// Serves the page where the command line or the configuration says, if that isn't where it is.
    pub fn serve_web(&mut self) -> Result<(), Failure> {
        let configured = &self.configuration.web;
        let wanted = self.board.given.or(configured.listen).map(|address| Place {
            address,
            token: match &configured.token_file {
                Some(path) => (path.clone(), false),
                None => (self.board.token.clone(), true),
            },
        });
        if self.board.server.as_ref().map(|(place, _)| place) == wanted.as_ref() {
            return Ok(());
        }
        let Some(place) = wanted else {
            self.board.server = None;
            return Ok(());
        };
        let (path, make) = &place.token;
        Token::of_file(path, *make).map_err(Failure::new)?;
        self.board.server = None;
        self.board.views.send_replace(Arc::new(self.view()));
        let server = self.listen(&place)?;
        self.log.note(&format!("page on http://{}/, with the token in {}", server.address, path.display()));
        self.board.server = Some((place, server));
        Ok(())
    }

    fn listen(&self, place: &Place) -> Result<listen::Server, Failure> {
        let (path, make) = &place.token;
        let mut tries = 0;
        loop {
            let token = Token::of_file(path, *make).map_err(Failure::new)?;
            let sender = self.sender.clone();
            let report = move |array, sentence| {
                let _ = sender.send(Message::Acted { array, sentence });
            };
            match web::serve(place.address, token, self.board.views.subscribe(), Box::new(report)) {
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && tries < TRIES => {
                    tries += 1;
                    thread::sleep(TRY_PAUSE);
                }
                Err(error) => {
                    return Err(Failure::new(format!("can't serve the page on {}: {error}", place.address)));
                }
                Ok(server) => return Ok(server),
            }
        }
    }

    /// Puts up how things are, if that has changed. Waits for nothing.
    pub fn publish(&mut self) {
        let now = self.now();
        let too_soon = self.board.last.is_some_and(|last| now.saturating_sub(last) < PAUSE);
        if !self.board.is_up() || !self.board.changed || too_soon {
            return;
        }
        (self.board.changed, self.board.last) = (false, Some(now));
        self.board.views.send_replace(Arc::new(self.view()));
    }

    fn view(&self) -> View {
        let now = self.now();
        let status = self.status();
        let arrays = self.arrays.iter().zip(status.arrays).map(|((key, kept), status)| ArrayView {
            status,
            detail: kept.detail.clone(),
            rates: self.board.throughput.get(key).map(|of| of.rates(now)).unwrap_or_default(),
        });
        View {
            host: host(),
            pinstripe: status.pinstripe,
            configuration_error: status.configuration_error,
            remarks: status.remarks,
            alerts: status.alerts,
            arrays: arrays.collect(),
            events: self.board.events.iter().rev().cloned().collect(),
        }
    }
}
