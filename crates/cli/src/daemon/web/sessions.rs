//! The token that opens a session, and the sessions.
//!
//! A session is known by a random id in a cookie, and ends with the daemon. Each has another random value
//! that its forms carry, so that a form of another page is none of it. Ids are compared in constant time.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

use pinstripe_runtime::trust::check_place;
use rustix::fs::OFlags;
use subtle::ConstantTimeEq;
use tokio::sync::watch;

/// Sessions at a time; one more ends the one that was not used for the longest time.
const SESSIONS_MAX: usize = 32;
/// A session that isn't used for so long ends. Less than 20 hours would have to be extended on the page (WCAG
/// 2.2.1).
const IDLE: Duration = Duration::from_hours(24);
/// Characters of a token: fewer could be guessed.
const TOKEN_MIN: usize = 32;
const TOKEN_MAX: u64 = 4096;
/// Bits for the group and for others.
const OTHERS: u32 = 0o077;

/// What opens a session.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Reads the token of a file. With `make`, makes one if there is none.
    pub fn of_file(path: &Path, make: bool) -> Result<Self, String> {
        let failed = |error: io::Error| format!("the page's token {} can't be read: {error}", path.display());
        let mut options = fs::File::options();
        // A fifo would wait for its other end.
        options.read(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
        let file = match options.open(path) {
            Err(error) if make && error.kind() == io::ErrorKind::NotFound => return Self::make(path),
            opened => opened.map_err(failed)?,
        };
        check_place(path).map_err(|error| format!("the page's token can't be trusted: {error}"))?;
        let metadata = file.metadata().map_err(failed)?;
        let mode = metadata.mode() & 0o7777;
        if !metadata.is_file() || mode & OTHERS != 0 {
            return Err(format!(
                "the page's token {} must be a file that only the daemon's user can read (its mode is {mode:04o}): chmod 600 it",
                path.display()
            ));
        }
        let mut text = String::new();
        file.take(TOKEN_MAX).read_to_string(&mut text).map_err(failed)?;
        // The file that the daemon makes isn't written by people: a full disk has left it so.
        if make && text.is_empty() {
            return Self::make(path);
        }
        let token = text.trim();
        if token.len() < TOKEN_MIN || token.contains(char::is_whitespace) {
            return Err(format!(
                "the page's token {} must be one word of at least {TOKEN_MIN} characters, such as `openssl rand -hex 32` \
                 prints",
                path.display()
            ));
        }
        Ok(Self(token.to_owned()))
    }

    fn make(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("the page's token {} can't be made: {error}", path.display());
        let token = random().map_err(failed)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        // Whole or not at all, for its user only, and unlinked unless it gets its name.
        let mut file = tempfile::Builder::new().prefix(".web.token-").tempfile_in(folder).map_err(failed)?;
        file.write_all(format!("{token}\n").as_bytes()).map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(Self(token))
    }

    /// Whether this is it.
    pub fn is(&self, given: &str) -> bool {
        same(&self.0, given.trim())
    }
}

/// Compares in a time that doesn't depend on where they differ.
fn same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// 256 random bits as hexadecimal digits.
fn random() -> io::Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let mut text = String::with_capacity(64);
    for byte in bytes {
        // A string takes whatever is written to it.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// A session.
#[derive(Debug)]
pub struct Session {
    id: String,
    form: String,
    used: Instant,
    /// What has begun in it ends with it.
    lasts: watch::Sender<()>,
    /// What came of the latest action, until it is shown.
    pub notice: Option<String>,
}

impl Session {
    /// What its forms carry.
    pub fn form(&self) -> &str {
        &self.form
    }

    /// Closed when the session is over.
    pub fn lasts(&self) -> watch::Receiver<()> {
        self.lasts.subscribe()
    }

    /// Whether a form is one of it.
    pub fn has(&self, form: &str) -> bool {
        same(&self.form, form)
    }
}

/// All sessions.
pub struct Sessions {
    /// The cookie's name. Another run has another one: through tunnels several daemons have one host.
    cookie: String,
    /// What browsers are told of it.
    attributes: &'static str,
    all: Vec<Session>,
}

/// Of a cookie: for no script, and for no request that another site has caused.
const ATTRIBUTES: &str = "; Path=/; HttpOnly; SameSite=Strict";
/// By TLS alone, too. Browsers then believe the name's `__Host-`, which nothing but https of this host can
/// set.
const SECURE: &str = "; Path=/; HttpOnly; SameSite=Strict; Secure";

impl Sessions {
    /// `secured`: the page is served over TLS.
    pub fn new(secured: bool) -> io::Result<Self> {
        let run = random()?;
        let (prefix, attributes) = if secured { ("__Host-", SECURE) } else { ("", ATTRIBUTES) };
        Ok(Self { cookie: format!("{prefix}pinstripe-{}", &run[..8]), attributes, all: Vec::new() })
    }

    /// Begins a session; the value of `Set-Cookie`.
    pub fn open(&mut self, now: Instant) -> io::Result<String> {
        let (id, form) = (random()?, random()?);
        self.forget(now);
        if self.all.len() >= SESSIONS_MAX
            && let Some(oldest) = (0..self.all.len()).min_by_key(|index| self.all[*index].used)
        {
            self.all.remove(oldest);
        }
        let cookie = format!("{}={id}{}", self.cookie, self.attributes);
        let lasts = watch::Sender::new(());
        self.all.push(Session { id, form, used: now, lasts, notice: None });
        Ok(cookie)
    }

    /// The session that these cookies name, which a person uses.
    pub fn of<'a>(&mut self, cookies: impl Iterator<Item = &'a str>, now: Instant) -> Option<&mut Session> {
        let session = self.unused(cookies, now)?;
        session.used = now;
        Some(session)
    }

    /// The same, of a request that the page makes by itself: one that is left open is used by nothing else.
    pub fn unused<'a>(
        &mut self,
        cookies: impl Iterator<Item = &'a str>,
        now: Instant,
    ) -> Option<&mut Session> {
        self.forget(now);
        let index = self.index(cookies)?;
        Some(&mut self.all[index])
    }

    /// Ends a session; the value of `Set-Cookie`.
    pub fn close<'a>(&mut self, cookies: impl Iterator<Item = &'a str>) -> String {
        if let Some(index) = self.index(cookies) {
            self.all.remove(index);
        }
        format!("{}={}; Max-Age=0", self.cookie, self.attributes)
    }

    fn index<'a>(&self, cookies: impl Iterator<Item = &'a str>) -> Option<usize> {
        let pairs =
            cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let mut found = None;
        for id in pairs.filter(|(name, _)| *name == self.cookie).map(|(_, id)| id) {
            // All of them are looked at.
            for (index, session) in self.all.iter().enumerate() {
                if same(&session.id, id) {
                    found = Some(index);
                }
            }
        }
        found
    }

    fn forget(&mut self, now: Instant) {
        self.all.retain(|session| now.saturating_duration_since(session.used) < IDLE);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn id(cookie: &str) -> &str {
        cookie.split(';').next().unwrap()
    }

    #[test]
    fn a_session_is_known_by_its_cookie_until_it_ends() {
        let (mut sessions, now) = (Sessions::new(false).unwrap(), Instant::now());
        let (one, other) = (sessions.open(now).unwrap(), sessions.open(now).unwrap());
        assert!(one.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{one}");
        assert_ne!(id(&one), id(&other));
        let form = sessions.of([id(&one)].into_iter(), now).unwrap().form().to_owned();
        let cookies = format!("a=b; {}", id(&other));
        let second = sessions.of([cookies.as_str()].into_iter(), now).unwrap();
        assert!(!second.has(&form) && second.has(&second.form) && !second.has(""));
        let wrong = id(&one).replace('=', "=0");
        assert!(sessions.of([wrong.as_str()].into_iter(), now).is_none());
        let name = id(&one).split_once('=').unwrap().0.to_owned() + "=";
        assert!(sessions.of([name.as_str()].into_iter(), now).is_none());
        sessions.close([id(&one)].into_iter());
        assert!(sessions.of([id(&one)].into_iter(), now).is_none());
        let next_day = now + Duration::from_hours(21);
        assert!(sessions.of([id(&other)].into_iter(), next_day).is_some(), "WCAG 2.2.1");
        assert!(sessions.of([id(&other)].into_iter(), now + IDLE * 99 / 100).is_some());
        assert!(sessions.of([id(&other)].into_iter(), now + IDLE).is_some(), "it was used since");
        assert!(sessions.unused([id(&other)].into_iter(), now + IDLE * 3 / 2).is_some());
        assert!(sessions.of([id(&other)].into_iter(), now + 2 * IDLE).is_none(), "the page asked by itself");
    }

    #[test]
    fn with_tls_the_cookie_is_for_https_of_this_host_alone() {
        let (mut sessions, now) = (Sessions::new(true).unwrap(), Instant::now());
        let cookie = sessions.open(now).unwrap();
        assert!(cookie.starts_with("__Host-pinstripe-"), "{cookie}");
        assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict; Secure"), "{cookie}");
        assert!(sessions.of([id(&cookie)].into_iter(), now).is_some());
        let closed = sessions.close([id(&cookie)].into_iter());
        assert!(closed.starts_with("__Host-") && closed.contains("; Secure; Max-Age=0"), "{closed}");
    }

    #[test]
    fn one_session_too_many_ends_the_one_that_was_not_used_for_longest() {
        let (mut sessions, now) = (Sessions::new(false).unwrap(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        let all: Vec<String> = (0..32).map(|number| sessions.open(at(number)).unwrap()).collect();
        assert!(sessions.of([id(&all[0])].into_iter(), at(40)).is_some());
        sessions.open(at(41)).unwrap();
        assert!(sessions.of([id(&all[0])].into_iter(), at(42)).is_some());
        assert!(sessions.of([id(&all[1])].into_iter(), at(42)).is_none());
        assert_eq!(sessions.all.len(), SESSIONS_MAX);
    }

    #[test]
    fn the_token_is_made_once_and_for_this_user_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.token");
        assert!(Token::of_file(&path, false).is_err());
        let made = Token::of_file(&path, true).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.trim().len() == 64 && made.is(&text) && made.is(text.trim()));
        assert!(!made.is("") && !made.is(&text[1..]) && !made.is(&text.replace(&text[..1], "x")));
        assert!(Token::of_file(&path, true).unwrap().is(&text), "it is the same again");
    }

    /// What a full disk left of a token.
    #[test]
    fn an_empty_token_of_the_daemon_is_made_anew_and_one_of_a_person_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.token");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Token::of_file(&path, false).err().unwrap().contains("at least 32"));
        let made = Token::of_file(&path, true).unwrap();
        assert!(made.is(&fs::read_to_string(&path).unwrap()));
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_token_that_cannot_be_written_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web.token");
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "daemon::web::sessions::tests::makes_a_token", "--test-threads=1"]);
        // No file may have a byte: as on a full disk, but for the error's name.
        let limits = format!("trap '' XFSZ; ulimit -f 0; exec {:?} \"$@\"", child.get_program());
        let mut limited = std::process::Command::new("sh");
        limited.args(["-c", &limits, "sh"]).args(child.get_args()).env("TOKEN", &path);
        let output = limited.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("can't be made"), "{text} {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// For the test before, which runs this in a process of its own.
    #[test]
    fn makes_a_token() {
        let Some(path) = std::env::var_os("TOKEN") else { return };
        assert_eq!(Token::of_file(Path::new(&path), true).err(), None);
    }

    #[test]
    fn a_token_that_others_can_read_or_guess_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let refused = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::of_file(&path, false).err()
        };
        let good = "0123456789abcdef0123456789abcdef\n";
        assert_eq!(refused(good, 0o600), None);
        assert_eq!(refused(good, 0o400), None);
        for mode in [0o640, 0o604, 0o620] {
            assert!(refused(good, mode).unwrap().contains("chmod 600"), "{mode:o}");
        }
        for text in ["", "short", "0123456789abcdef0123456789abcde\n", "0123456789abcdef 0123456789abcdef"] {
            assert!(refused(text, 0o600).unwrap().contains("at least 32"), "{text}");
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Token::of_file(&link, false).is_err());
    }
}
