//! The page: all arrays in a browser, and a few things to be done to them.
//!
//! ```text
//!   guard       which requests are answered at all: Host, Origin, Sec-Fetch-*. Pure
//!   sessions    the token, the sessions and their cookies
//!   view        all that is shown, at one moment
//!   last_hour   what clients did in the last hour, and how long they waited. Pure
//!   page        overview, login, messages. Pure
//!   array       an array of the overview. Pure
//!   picture     drawings as SVG. Pure
//!   confirm     what will happen to which device. Pure
//!   action      what is done, by the server's control socket
//!   live        the overview as it changes
//! ```
//!
//! The daemon's deciding thread puts a [`View`] into a cell when something has changed, and waits for nothing
//! and none here. All else is on a thread of its own: connections, sessions, streams and actions under way
//! are each bounded in number and time. What an action came to is told to the daemon by a message.
//!
//! Every request passes `guard` first. All but the login and the static files need a session, and each form
//! that changes something has the session's random value, too.

mod action;
mod array;
mod confirm;
pub mod guard;
pub mod last_hour;
mod live;
mod page;
mod picture;
#[cfg(test)]
mod sample;
mod sessions;
pub mod view;

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use http_body_util::{BodyExt, Full, Limited, combinators::BoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{self, HeaderName, HeaderValue},
};
use maud::{Markup, PreEscaped};
use tokio::sync::{Semaphore, watch};

use self::{
    action::{Action, Failed, Fields, field},
    live::Content,
    sessions::Sessions,
    view::View,
};
use super::{
    listen::{self, From, Lasts, Place, Secured},
    tls::Tls,
};
use crate::{
    command_line::LogLevel,
    log::{self, Entry},
};

pub use sessions::Token;

/// Connections at a time, streams among them; further ones wait.
const CONNECTIONS_MAX: usize = 128;
/// Streams at a time; one more is refused.
const STREAMS_MAX: usize = 16;
/// Actions under way at a time; one more is refused.
const ACTIONS_MAX: usize = 4;
/// Bytes of a form.
const FORM_BYTES_MAX: usize = 16 << 10;

/// Headers of every answer. Nothing is loaded from elsewhere, no script or style stands in a page, and no
/// other page shows this one in a frame. (With `no-referrer` browsers would not say where a form comes from.)
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
         frame-ancestors 'none'; base-uri 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

/// Files that are the same for all.
const FILES: [(&str, &str, &str); 3] = [
    ("/page.css", "text/css; charset=utf-8", include_str!("page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page.js")),
    ("/icon.svg", "image/svg+xml", include_str!("icon.svg")),
];

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// What an action came to: the array, and a sentence. It is kept among the events.
pub type Report = Box<dyn Fn(String, String) + Send + Sync>;

/// Listens, at an address at which another page of ours was a moment ago, or not.
pub fn serve(
    (address, was_ours): (SocketAddr, bool),
    tls: Option<Tls>,
    token: Token,
    views: watch::Receiver<Arc<View>>,
    report: Report,
) -> io::Result<listen::Server> {
    let sessions = Mutex::new(Sessions::new(tls.is_some())?);
    let place = Place { address, was_ours, connections: CONNECTIONS_MAX, tls };
    listen::serve("web", place, move || {
        let now = page::content(&views.borrow()).into_string();
        let (content, contents) = watch::channel(Content::from(now));
        tokio::spawn(live::render(views.clone(), content));
        let site = Arc::new(Site {
            token,
            sessions,
            views,
            contents,
            report,
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            actions: Arc::new(Semaphore::new(ACTIONS_MAX)),
        });
        move |request| {
            let site = Arc::clone(&site);
            async move { site.answer(request).await }
        }
    })
}

struct Site {
    token: Token,
    sessions: Mutex<Sessions>,
    views: watch::Receiver<Arc<View>>,
    contents: watch::Receiver<Content>,
    report: Report,
    streams: Arc<Semaphore>,
    actions: Arc<Semaphore>,
}

impl Site {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let mut answer = self.route(request).await;
        for (name, value) in HEADERS {
            answer.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
        }
        answer
    }

    async fn route(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let secured = request.extensions().get::<Secured>().cloned();
        let is_for = |name: &str| secured.as_ref().is_some_and(|Secured(acceptor)| acceptor.is_for(name));
        let names: Option<guard::Names<'_>> = if secured.is_some() { Some(&is_for) } else { None };
        let checked =
            guard::check(&method, request.uri(), request.headers(), matches!(&*path, "/" | "/login"), names);
        if let Err(refused) = checked {
            return text(StatusCode::FORBIDDEN, refused.in_words());
        }
        let is_read = matches!(method, Method::GET | Method::HEAD);
        match (path.as_str(), is_read, &method) {
            ("/" | "/login" | "/live" | "/confirm", true, _) => self.read(&path, &request),
            ("/login" | "/logout" | "/act", false, &Method::POST) => self.post(&path, request).await,
            (path, true, _) => match FILES.iter().find(|(name, ..)| *name == path) {
                Some((_, kind, content)) => file(kind, content),
                None => text(StatusCode::NOT_FOUND, "there is no such page\n"),
            },
            _ => text(StatusCode::METHOD_NOT_ALLOWED, "this can't be done here\n"),
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, path: &str, request: &Request<Incoming>) -> Answer {
        let (mut sessions, now) = (self.sessions(), Instant::now());
        let session = match path {
            "/live" => sessions.unused(cookies(request), now),
            _ => sessions.of(cookies(request), now),
        };
        let session = session.map(|session| {
            // It is shown once, where it is seen.
            let notice = if path == "/" { session.notice.take() } else { None };
            (session.form().to_owned(), notice, session.lasts())
        });
        drop(sessions);
        let Some((form, notice, lasts)) = session else {
            return match path {
                "/login" => html(StatusCode::OK, page::login(false)),
                "/live" => text(StatusCode::FORBIDDEN, NO_SESSION),
                _ => to("/login"),
            };
        };
        match path {
            "/live" => self.stream(lasts),
            "/confirm" => self.confirm(request.uri().query().unwrap_or_default(), &form),
            "/login" => to("/"),
            _ => {
                let content = PreEscaped(self.contents.borrow().to_string());
                html(StatusCode::OK, page::overview(&content, &form, notice.as_deref()))
            }
        }
    }

    fn stream(&self, session: watch::Receiver<()>) -> Answer {
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open: close some\n");
        };
        let mut answer = Response::new(live::stream(self.contents.clone(), session, permit).boxed());
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        answer.extensions_mut().insert(Lasts(live::LASTS));
        answer
    }

    fn confirm(&self, query: &str, form: &str) -> Answer {
        let (fields, view) = (fields(query.as_bytes()), self.view());
        let served = view.served(field(&fields, "array").unwrap_or_default());
        let page = served.ok_or_else(|| NOT_SERVED.to_owned());
        match page.and_then(|(_, detail)| confirm::page(detail, &fields, form)) {
            Ok(page) => html(StatusCode::OK, page),
            Err(why) => html(StatusCode::CONFLICT, confirm::refused(&why, form)),
        }
    }

    fn view(&self) -> Arc<View> {
        Arc::clone(&self.views.borrow())
    }

    async fn post(self: Arc<Self>, path: &str, request: Request<Incoming>) -> Answer {
        let kind = request.headers().get(header::CONTENT_TYPE);
        if kind.is_none_or(|kind| kind != "application/x-www-form-urlencoded") {
            return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, "this is no form\n");
        }
        let (head, body) = request.into_parts();
        let request = Request::from_parts(head, ());
        let Ok(body) = Limited::new(body, FORM_BYTES_MAX).collect().await else {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "the form is too long, or did not come whole\n");
        };
        let fields = fields(&body.to_bytes());
        if path == "/login" {
            return self.login(&fields, request.extensions().get::<From>());
        }
        let known = match self.sessions().of(cookies(&request), Instant::now()) {
            None => return text(StatusCode::FORBIDDEN, NO_SESSION),
            Some(session) => session.has(field(&fields, "form").unwrap_or_default()),
        };
        if !known {
            return text(
                StatusCode::FORBIDDEN,
                "refused: the form is not one of this session: load the page again\n",
            );
        }
        if path == "/logout" {
            let cookie = self.sessions().close(cookies(&request));
            return with_cookie(to("/login"), &cookie);
        }
        self.act(&request, fields).await
    }

    fn login(&self, fields: &Fields, from: Option<&From>) -> Answer {
        let from = from.map_or_else(|| "a client".to_owned(), |From(address)| address.to_string());
        let tell = |level, what: &str| {
            let message = &format!("the page: {from} {what}");
            log::say(&Entry { level, peer: Some(&from), message, ..Entry::default() });
        };
        if !self.token.is(field(fields, "token").unwrap_or_default()) {
            tell(LogLevel::Warning, "has given a wrong token");
            return html(StatusCode::FORBIDDEN, page::login(true));
        }
        match self.sessions().open(Instant::now()) {
            Ok(cookie) => {
                tell(LogLevel::Info, "has begun a session");
                with_cookie(to("/"), &cookie)
            }
            Err(error) => {
                text(StatusCode::INTERNAL_SERVER_ERROR, &format!("no session can begin: {error}\n"))
            }
        }
    }

    async fn act(self: Arc<Self>, request: &Request<()>, fields: Fields) -> Answer {
        let outcome = self.outcome(fields).await;
        let mut sessions = self.sessions();
        let session = sessions.of(cookies(request), Instant::now());
        match (outcome, session) {
            (Ok(sentence), session) => {
                if let Some(session) = session {
                    session.notice = Some(sentence);
                }
                to("/")
            }
            (Err((status, why)), session) => {
                let form = session.map_or("", |session| session.form());
                html(
                    status,
                    match status {
                        StatusCode::BAD_GATEWAY => confirm::unknown(&why, form),
                        _ => confirm::refused(&why, form),
                    },
                )
            }
        }
    }

    async fn outcome(self: &Arc<Self>, fields: Fields) -> Result<String, (StatusCode, String)> {
        let refused = |why: String| (StatusCode::CONFLICT, why);
        let uuid = field(&fields, "array").unwrap_or_default().to_owned();
        let action = Action::read(&fields).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
        let view = self.view();
        let (status, _) = view.served(&uuid).ok_or_else(|| refused(NOT_SERVED.to_owned()))?;
        let control: PathBuf = status.control.clone().ok_or_else(|| refused(NOT_SERVED.to_owned()))?;
        let Ok(permit) = Arc::clone(&self.actions).try_acquire_owned() else {
            return Err((StatusCode::SERVICE_UNAVAILABLE, "too much is being done: try it again".to_owned()));
        };
        let label = status.array.clone();
        let page = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let outcome = action.carry_out(&control, &uuid);
            // Here, for a client that hangs up ends what waits for this.
            match &outcome {
                Ok(sentence) => (page.report)(label, format!("by the page: {sentence}")),
                Err(Failed::Nothing(why)) => {
                    (page.report)(label, format!("by the page, and nothing was done: {why}"));
                }
                Err(Failed::Unknown(why)) => (page.report)(label, format!("by the page, {UNKNOWN}: {why}")),
            }
            outcome
        });
        done.await.map_err(|error| refused(error.to_string()))?.map_err(|failed| match failed {
            Failed::Nothing(why) => refused(why),
            Failed::Unknown(why) => (StatusCode::BAD_GATEWAY, why),
        })
    }
}

/// How the history has that.
const UNKNOWN: &str = "and it is not known what was done";
const NO_SESSION: &str = "refused: there is no session, or it is over: open the page and give its token\n";
const NOT_SERVED: &str = "the array is not served now, or its server does not answer";

fn fields(text: &[u8]) -> Fields {
    form_urlencoded::parse(text).into_owned().collect()
}

fn cookies<B>(request: &Request<B>) -> impl Iterator<Item = &str> {
    request.headers().get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok())
}

fn full(status: StatusCode, kind: &'static str, content: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(content.into()).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn text(status: StatusCode, sentence: &str) -> Answer {
    full(status, "text/plain; charset=utf-8", sentence.to_owned())
}

fn html(status: StatusCode, page: Markup) -> Answer {
    full(status, "text/html; charset=utf-8", page.into_string())
}

fn file(kind: &'static str, content: &'static str) -> Answer {
    let mut answer = full(StatusCode::OK, kind, content);
    // A newer daemon may have another one.
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
    answer
}

/// Go there.
fn to(path: &'static str) -> Answer {
    let mut answer = full(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", "");
    answer.headers_mut().insert(header::LOCATION, HeaderValue::from_static(path));
    answer
}

fn with_cookie(mut answer: Answer, cookie: &str) -> Answer {
    // It has no character that a header can't have.
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        answer.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const STYLE: &str = FILES[0].2;

    /// The colours that the style sheet names, of light and of dark.
    fn colours() -> [BTreeMap<&'static str, [f64; 3]>; 2] {
        let (light, dark) = STYLE.split_once("@media (prefers-color-scheme: dark)").unwrap();
        let dark = dark.split_once("* { box-sizing").unwrap().0;
        [light, dark].map(|part| {
            let named = part.lines().filter_map(|line| line.trim().strip_prefix("--")?.split_once(": #"));
            let value = |digits: &str| {
                [0, 2, 4].map(|at| f64::from(u8::from_str_radix(&digits[at..at + 2], 16).unwrap()) / 255.0)
            };
            named.map(|(name, digits)| (name, value(digits))).collect()
        })
    }

    /// WCAG 2.2, definitions of contrast ratio and relative luminance.
    fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
        let linear =
            |part: f64| if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) };
        let luminance = |[red, green, blue]: [f64; 3]| {
            0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
        };
        let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
        one.max(other) / one.min(other)
    }

    #[test]
    fn text_and_drawings_have_the_contrast_of_level_aa() {
        assert!((contrast([0.0; 3], [1.0; 3]) - 21.0).abs() < 1e-9);
        let text = [
            ("text", "ground"),
            ("text", "surface"),
            ("soft", "ground"),
            ("soft", "surface"),
            ("link", "ground"),
            ("link", "surface"),
            ("button-text", "button"),
            ("danger-text", "danger"),
            ("good", "good-ground"),
            ("busy", "busy-ground"),
            ("bad", "bad-ground"),
            ("bad", "surface"),
            ("busy", "surface"),
            ("text", "bad-ground"),
        ];
        let drawn = ["edge", "synced", "stale", "here", "checked", "dirty", "read", "written", "link", "bad"];
        for colours in colours() {
            assert_eq!(colours.len(), 23, "{colours:?}");
            let pairs = text.iter().map(|pair| (pair, 4.5));
            let drawn = drawn.map(|name| (name, "surface"));
            for ((one, other), least) in pairs.chain(drawn.iter().map(|pair| (pair, 3.0))) {
                let ratio = contrast(colours[one], colours[other]);
                assert!(ratio >= least, "{one} on {other}: {ratio:.2}, and not {least}");
            }
        }
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        for (name, _, content) in FILES {
            let content = content.replace("http://www.w3.org/2000/svg", "");
            for word in
                ["http:", "https:", "//www", "url(", "@import", "eval(", "innerHTML", "document.write"]
            {
                assert!(!content.contains(word), "{name} has {word}");
            }
        }
    }
}
