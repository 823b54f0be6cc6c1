//! What the daemon puts up for its page: the last events, what clients did in the last hour, and all the rest
//! as it is. Nothing is kept or put up while there is no page.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pinstripe_control::Detail;
use tokio::sync::watch;

use super::{
    Daemon, Message, listen, scheme,
    tls::Tls,
    web::{
        self, Token,
        last_hour::{Counters, LastHour},
        view::{ArrayView, View},
    },
};
use crate::{
    called::host,
    failure::Failure,
    history::{self, Told},
};

/// Events that are shown.
const EVENTS_MAX: usize = 50;
/// Bytes of the history in which they are looked for when the daemon begins.
const HISTORY_TAIL: u64 = 64 << 10;
/// At least so long between two views.
const PAUSE: Duration = Duration::from_millis(250);
/// Where the page is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    address: SocketAddr,
    /// The file with the token, and whether it is made if it isn't there.
    token: (PathBuf, bool),
    /// None for plain HTTP.
    tls: Option<pinstripe_config::Tls>,
}

/// See the module.
pub struct Board {
    /// The address that the command line gives.
    given: Option<SocketAddr>,
    /// The folder of certificates that it gives.
    given_tls: Option<PathBuf>,
    /// The token's file, unless the configuration names another one.
    token: PathBuf,
    server: Option<(Place, Token, listen::Server)>,
    views: watch::Sender<Arc<View>>,
    /// By the array's key.
    hours: BTreeMap<String, LastHour>,
    /// Oldest first.
    events: VecDeque<Told>,
    /// Something has changed since the last view.
    changed: bool,
    /// When that was put up.
    last: Option<Duration>,
}

impl Board {
    /// `given`, `certificates`: of the command line. `folder`: of sockets. `state`: of what outlives the
    /// daemon.
    pub fn new(given: Option<SocketAddr>, certificates: Option<&Path>, folder: &Path, state: &Path) -> Self {
        let (views, _) = watch::channel(Arc::default());
        let mut board = Self {
            given,
            given_tls: certificates.map(PathBuf::from),
            token: folder.join("web.token"),
            server: None,
            views,
            hours: BTreeMap::new(),
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

    /// The command line names a folder, and which clients are let in stays as the configuration says.
    fn tls(&self, configured: Option<&pinstripe_config::Tls>) -> Option<pinstripe_config::Tls> {
        let certified = configured.is_some_and(|tls| tls.certified);
        let given =
            self.given_tls.clone().map(|certificates| pinstripe_config::Tls { certificates, certified });
        given.or_else(|| configured.cloned())
    }

    /// Whether the command line asks for a page.
    pub fn is_asked_for(&self) -> bool {
        self.given.is_some()
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
            self.hours.clear();
            return;
        }
        let mut before = std::mem::take(&mut self.hours);
        for (key, detail) in arrays {
            let mut hour = before.remove(key).unwrap_or_default();
            match detail {
                None => hour.interrupt(),
                Some(detail) => hour.sample(now, Counters::of(detail)),
            }
            self.hours.insert(key.clone(), hour);
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
            tls: self.board.tls(configured.tls.as_ref()),
        });
        let Some(place) = wanted else {
            self.board.server = None;
            return Ok(());
        };
        pinstripe_config::check_web(place.address, place.tls.is_some()).map_err(Failure::usage)?;
        let (path, make) = &place.token;
        // Before the other page ends: what can't be used changes nothing.
        let token = Token::of_file(path, *make).map_err(Failure::new)?;
        if self.board.server.as_ref().is_some_and(|(own, known, _)| *own == place && *known == token) {
            return Ok(());
        }
        let tls = place.tls.as_ref().map(|tls| Tls::load(tls, "page", &self.log)).transpose()?;
        let scheme = scheme(tls.is_some());
        // One at another address goes on until this one is there.
        let was_ours = self.board.server.take_if(|(own, ..)| own.address == place.address).is_some();
        self.board.views.send_replace(Arc::new(self.view()));
        let sender = self.sender.clone();
        let report = move |array, sentence| {
            let _ = sender.send(Message::Acted { array, sentence });
        };
        let views = self.board.views.subscribe();
        let server = web::serve((place.address, was_ours), tls, token.clone(), views, Box::new(report));
        let failed = |error| Failure::new(format!("can't serve the page on {}: {error}", place.address));
        let server = server.map_err(failed)?;
        let words = format!("page on {scheme}://{}/, with the token in {}", server.address, path.display());
        self.log.note(&words);
        self.board.server = Some((place, token, server));
        Ok(())
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
            hour: self.board.hours.get(key).map(|of| of.steps(now)).unwrap_or_default(),
        });
        View {
            host: host(),
            pinstripe: status.pinstripe,
            configuration_error: status.configuration_error,
            unserved: status.unserved,
            remarks: status.remarks,
            alerts: status.alerts,
            arrays: arrays.collect(),
            events: self.board.events.iter().rev().cloned().collect(),
        }
    }
}
