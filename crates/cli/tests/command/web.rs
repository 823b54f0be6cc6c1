//! `pinstripe daemon --web`: what is shown and done, and what is refused.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use crate::{
    configured::{Configured, DATA},
    daemon::Daemon,
    world::{MEMBER_BYTES, PATIENCE, wait_until},
};

/// What came back.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// A browser with the page open.
struct Browser {
    address: String,
    cookie: String,
}

impl Browser {
    /// Without a session.
    fn new(daemon: &Daemon<'_>) -> Self {
        let address = daemon.says("page on http://").split('/').next().unwrap().to_owned();
        Self { address, cookie: String::new() }
    }

    /// With one.
    fn open(daemon: &Daemon<'_>, configured: &Configured) -> Self {
        let mut browser = Self::new(daemon);
        let token = fs::read_to_string(configured.world.path("pinstripe/web.token")).unwrap();
        let answer = browser.post("/login", &[("token", token.trim())]);
        assert_eq!((answer.status, answer.header("location")), (303, Some("/")), "{answer:?}");
        let cookie = answer.header("set-cookie").unwrap();
        assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
        cookie.split(';').next().unwrap().clone_into(&mut browser.cookie);
        browser
    }

    fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn ask(&self, request: &str) -> Answer {
        let mut text = String::new();
        self.send(request).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn get(&self, path: &str) -> Answer {
        let Self { address, cookie } = self;
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\n\r\n"))
    }

    fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let (address, origin) = (&self.address, format!("Origin: http://{}\r\n", self.address));
        self.post_with(path, fields, &format!("Host: {address}\r\n{origin}"))
    }

    fn post_with(&self, path: &str, fields: &[(&str, &str)], headers: &str) -> Answer {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let (cookie, length) = (&self.cookie, body.len());
        self.ask(&format!(
            "POST {path} HTTP/1.1\r\n{headers}Cookie: {cookie}\r\nContent-Type: application/x-www-form-urlencoded\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        ))
    }

    /// Opens the confirmation of an action; the fields of its form.
    fn confirmation(&self, fields: &[(&str, &str)]) -> Vec<(String, String)> {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let page = self.get(&format!("/confirm?{query}"));
        assert_eq!(page.status, 200, "{page:?}");
        let form = page.body.split("action=\"/act\"").nth(1).unwrap_or_else(|| panic!("no form: {page:?}"));
        let inputs = form.split("<input type=\"hidden\" name=\"").skip(1);
        let pair = |input: &str| {
            let (name, rest) = input.split_once("\" value=\"").unwrap();
            (name.to_owned(), rest.split('"').next().unwrap().replace("&amp;", "&"))
        };
        inputs.map(pair).collect()
    }

    /// Confirms it.
    fn act(&self, fields: &[(&str, &str)]) -> Answer {
        let form = self.confirmation(fields);
        let form: Vec<(&str, &str)> =
            form.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.post("/act", &form)
    }

    /// Loads the overview until it is so.
    fn wait(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let page = self.get("/");
            assert_eq!(page.status, 200, "{page:?}");
            if is_so(&page.body) {
                return page.body;
            }
            assert!(begun.elapsed() < PATIENCE, "never {what}: {}", page.body);
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn configured() -> Configured {
    let configured = Configured::new(&format!("[web]\nlisten = '127.0.0.1:0'\n{DATA}"));
    configured.world.raid5(3);
    configured
}

fn uuid(configured: &Configured) -> String {
    configured.run(&["detail", "data", "--json"]).ok().json()["uuid"].as_str().unwrap().to_owned()
}

fn device(configured: &Configured, name: &str) -> String {
    configured.world.path(name).display().to_string()
}

fn state_of(configured: &Configured, slot: usize) -> String {
    let detail = configured.run(&["detail", "data", "--json"]).ok().json();
    detail["members"][slot]["state"].as_str().unwrap().to_owned()
}

#[test]
fn without_its_token_the_page_shows_nothing_and_does_nothing() {
    let configured = configured();
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    let token = configured.world.path("pinstripe/web.token");
    assert_eq!(token.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let mut browser = Browser::new(&daemon);
    let overview = browser.get("/");
    assert_eq!((overview.status, overview.header("location")), (303, Some("/login")));
    let login = browser.get("/login");
    assert!(login.status == 200 && !login.body.contains("data"), "{login:?}");
    for (name, value) in [
        ("x-frame-options", "DENY"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(login.header(name), Some(value), "{login:?}");
    }
    let policy = login.header("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"),
        "{policy}"
    );
    let (uuid, device) = (uuid(&configured), device(&configured, "member1"));
    let fail = [("action", "fail"), ("slot", "1"), ("device", &device), ("array", &uuid)];
    for cookie in ["", "pinstripe-00000000=", "pinstripe-00000000=0"] {
        cookie.clone_into(&mut browser.cookie);
        assert_eq!(browser.get("/live").status, 403);
        assert_eq!(browser.get("/confirm?action=check").status, 303);
        for path in ["/act", "/logout"] {
            assert_eq!(browser.post(path, &fail).status, 403, "{path}");
        }
    }
    for wrong in ["", "x", &"0".repeat(64)] {
        let answer = browser.post("/login", &[("token", wrong)]);
        assert!(answer.status == 403 && answer.header("set-cookie").is_none(), "{answer:?}");
    }
    assert_eq!(state_of(&configured, 1), "in-sync");

    let browser = Browser::open(&daemon, &configured);
    browser.wait("it shows the array", |page| page.contains("slot 2"));
    let form = browser.confirmation(&[("action", "check"), ("array", &uuid)]);
    let form = form.iter().find(|(name, _)| name == "form").unwrap();
    assert_eq!(browser.post("/logout", &[("form", &form.1)]).status, 303);
    assert_eq!(browser.get("/").status, 303, "the session is over");
    // Of a daemon before this one, too.
    let browser = Browser::open(&daemon, &configured);
    daemon.signal("TERM");
    daemon.ended();
    let daemon = Daemon::start(&configured, &[]);
    let old = Browser { address: Browser::new(&daemon).address, cookie: browser.cookie };
    assert_eq!(old.get("/").status, 303);
    Browser::open(&daemon, &configured);
}

/// A session, and the form by which it would fail a member.
fn about_to_fail(daemon: &Daemon<'_>, configured: &Configured) -> (Browser, Vec<(String, String)>) {
    daemon.wait_for("data", "serving");
    let browser = Browser::open(daemon, configured);
    browser.wait("it shows the array", |page| page.contains("slot 2"));
    let (uuid, device) = (uuid(configured), device(configured, "member1"));
    let fail = [("action", "fail"), ("slot", "1"), ("device", &device), ("array", &uuid)];
    let form = browser.confirmation(&fail);
    (browser, form)
}

#[test]
fn what_comes_from_elsewhere_is_refused() {
    let configured = configured();
    let daemon = Daemon::start(&configured, &[]);
    let (browser, form) = about_to_fail(&daemon, &configured);
    let form: Vec<(&str, &str)> = form.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let address = &browser.address;
    let port = address.rsplit(':').next().unwrap();
    for headers in [
        format!("Host: evil.example:{port}\r\nOrigin: http://evil.example:{port}\r\n"),
        format!("Host: {address}\r\nOrigin: http://evil.example\r\n"),
        format!("Host: {address}\r\nOrigin: http://127.0.0.1:1\r\n"),
        format!("Host: {address}\r\nOrigin: null\r\n"),
        format!("Host: {address}\r\n"),
        format!("Origin: http://{address}\r\n"),
        format!("Host: {address}\r\nOrigin: http://{address}\r\nSec-Fetch-Site: cross-site\r\n"),
        format!("Host: {address}\r\nOrigin: http://{address}\r\nSec-Fetch-Site: same-site\r\n"),
    ] {
        let answer = browser.post_with("/act", &form, &headers);
        assert!(matches!(answer.status, 400 | 403), "{headers}: {answer:?}");
    }
    // DNS rebinding: the name is another one's, and the address this one's.
    for path in ["/", "/login", "/live", "/page.js"] {
        let rebound = browser
            .ask(&format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\nCookie: {}\r\n\r\n", browser.cookie));
        assert!(rebound.status == 403 && !rebound.body.contains("data"), "{rebound:?}");
    }
    // Through a tunnel the port is another one.
    let tunnel =
        browser.ask(&format!("GET / HTTP/1.1\r\nHost: localhost:4\r\nCookie: {}\r\n\r\n", browser.cookie));
    assert_eq!(tunnel.status, 200);
    let without = |name: &str| form.iter().copied().filter(|(own, _)| *own != name).collect::<Vec<_>>();
    let other = Browser::open(&daemon, &configured);
    let of_other = other.confirmation(&[("action", "check"), ("array", &uuid(&configured))]);
    let of_other = of_other.iter().find(|(name, _)| name == "form").unwrap().1.clone();
    for token in [&[][..], &[("form", "")], &[("form", "0")], &[("form", &of_other)]] {
        let answer = browser.post("/act", &[&without("form")[..], token].concat());
        assert!(answer.status == 403 && answer.body.contains("not one of this session"), "{answer:?}");
    }
    assert_eq!(browser.get(&format!("/act?{}", "action=fail&slot=1")).status, 404, "no action by GET");
    let typed = browser.ask(&format!(
        "POST /act HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n"
    ));
    assert_eq!(typed.status, 415);
    let long = browser.post("/login", &[("token", &"0".repeat(20_000))]);
    assert_eq!(long.status, 413);
    assert_eq!(state_of(&configured, 1), "in-sync", "nothing was done");
    assert_eq!(browser.post("/act", &form).status, 303, "the form itself is good");
    assert_eq!(state_of(&configured, 1), "missing");
}

#[test]
fn members_are_failed_added_replaced_and_checked_after_a_confirmation() {
    let configured = configured();
    let world = &configured.world;
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    let browser = Browser::open(&daemon, &configured);
    let page = browser.wait("it shows the array", |page| page.contains("slot 2"));
    assert!(page.contains("all as they should be") && page.contains("Stripes: all are synced"), "{page}");
    let uuid = uuid(&configured);
    let [failed, second] = ["member1", "member2"].map(|name| device(&configured, name));
    for name in ["new1", "new2", "new3"] {
        world.file(name, MEMBER_BYTES);
    }
    let [new, with, spare] = ["new1", "new2", "new3"].map(|name| device(&configured, name));
    let fail = [("array", uuid.as_str()), ("action", "fail"), ("slot", "1"), ("device", &failed)];
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(fail).finish();
    let confirmation = browser.get(&format!("/confirm?{query}")).body;
    assert!(confirmation.contains(&format!("stops using {failed}, at once")), "{confirmation}");
    let old_form = browser.confirmation(&fail);
    assert_eq!(browser.act(&fail).status, 303);
    assert_eq!(state_of(&configured, 1), "missing");
    let page = browser.get("/").body;
    assert!(page.contains(&format!("the member in slot 1 ({failed}) was taken out")), "{page}");
    assert!(!browser.get("/").body.contains("class=\"notice\""), "it is told once");
    let page = browser.wait("it shows the loss", |page| page.contains("needs a look"));
    assert!(page.contains("slot 1: <strong>missing"), "{page}");
    // The other members can't be done without.
    let last = [("array", uuid.as_str()), ("action", "fail"), ("slot", "2"), ("device", &second)];
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(last).finish();
    let refused = browser.get(&format!("/confirm?{query}"));
    assert!(refused.status == 409 && refused.body.contains("data would be lost"), "{refused:?}");

    let add = [("array", uuid.as_str()), ("action", "add"), ("device", &new)];
    assert_eq!(browser.act(&add).status, 303);
    daemon.wait("it is rebuilt", |_| state_of(&configured, 1) == "in-sync");
    let old_form: Vec<(&str, &str)> =
        old_form.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let stale = browser.post("/act", &old_form);
    assert!(stale.status == 409 && stale.body.contains("nothing was done"), "{stale:?}");
    assert_eq!(state_of(&configured, 1), "in-sync", "another device is in the slot now");

    browser.wait("it shows the end of the rebuild", |page| page.contains("all as they should be"));
    let replace = [
        ("array", uuid.as_str()),
        ("action", "replace"),
        ("slot", "2"),
        ("device", &second),
        ("with", &with),
    ];
    assert_eq!(browser.act(&replace).status, 303);
    let detail = || configured.run(&["detail", "data", "--json"]).ok().json();
    daemon.wait("it is replaced", |_| detail()["members"][2]["device"] == with.as_str());
    browser.wait("it shows that", |page| page.contains(&with) && page.contains("all as they should be"));
    let add = [("array", uuid.as_str()), ("action", "add"), ("device", &spare)];
    assert_eq!(browser.act(&add).status, 303);
    assert_eq!(detail()["spares"][0], spare.as_str());
    let others: Vec<String> = (0..3).map(|slot| world.file(&format!("other{slot}"), MEMBER_BYTES)).collect();
    world.create(&["--level", "5", "--name", "other", "--assume-clean"], &others).ok();
    let used = device(&configured, "other1");
    let used = [("array", uuid.as_str()), ("action", "add"), ("device", &used)];
    let refused = browser.act(&used);
    assert!(
        refused.status == 409 && refused.body.contains("Nothing was done"),
        "it is a member of another one: {refused:?}"
    );

    browser.wait("nothing is under way", |page| !page.contains("<progress"));
    assert_eq!(browser.act(&[("array", uuid.as_str()), ("action", "check")]).status, 303);
    let page = browser.get("/").body;
    assert!(page.contains("the parity matches") || page.contains("the check has begun"), "{page}");
    browser.wait("the check is told", |page| page.contains("by the page: "));
    let history =
        world.run_with(("PINSTRIPE_STATE_DIR", &device(&configured, "state")), &["events"]).ok().out;
    assert!(history.contains("data: Asked: by the page: the member in slot 1"), "{history}");
}

/// The next event of a stream.
fn event(reader: &mut impl BufRead) -> String {
    loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the stream has ended");
        if let Some(data) = line.strip_prefix("data: ") {
            return data.to_owned();
        }
    }
}

#[test]
fn readers_see_what_changes_and_slow_ones_hold_up_nothing() {
    let configured = configured();
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    let browser = Browser::open(&daemon, &configured);
    let request =
        format!("GET /live HTTP/1.1\r\nHost: {}\r\nCookie: {}\r\n\r\n", browser.address, browser.cookie);
    let mut reader = BufReader::new(browser.send(&request));
    let first = event(&mut reader);
    assert!(first.starts_with("<main id=\"content\"") && first.trim_end().ends_with("</main>"), "{first}");
    while !event(&mut reader).contains("all as they should be") {}
    // They read nothing.
    let slow: Vec<TcpStream> = (0..15).map(|_| browser.send(&request)).collect();
    let silent: Vec<TcpStream> = (0..20).map(|_| browser.send("GET / HTTP/1.1\r\n")).collect();
    let begun = Instant::now();
    loop {
        let refused = TcpStream::connect(&browser.address).map(|mut stream| {
            stream.write_all(request.as_bytes()).unwrap();
            let mut text = [0; 12];
            stream.read_exact(&mut text).unwrap();
            text
        });
        if refused.unwrap() == *b"HTTP/1.1 503" {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "streams are not counted");
    }
    let begun = Instant::now();
    configured.run(&["fail", "data", "member1"]).ok();
    while !event(&mut reader).contains("slot 1: <strong>missing") {}
    assert!(begun.elapsed() < PATIENCE, "an event has the servers asked");
    assert_eq!(browser.get("/").status, 200);
    assert!(daemon.status().is_some());
    drop((slow, silent));

    // Nothing of it is left when the configuration has it no more.
    configured.write("pinstripe.toml", DATA);
    configured.run(&["reload"]).ok();
    daemon.wait("it listens no more", |_| TcpStream::connect(&browser.address).is_err());
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
}

#[test]
fn what_is_done_for_a_browser_that_has_hung_up_is_told_all_the_same() {
    let configured = configured();
    let daemon = Daemon::start(&configured, &[]);
    let (browser, form) = about_to_fail(&daemon, &configured);
    let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(&form).finish();
    let Browser { address, cookie } = &browser;
    let is_done = || configured.run(&["detail", "data", "--json"]).ok().json()["degraded"] == true;
    wait_until("it is done", || {
        drop(browser.send(&format!(
            "POST /act HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nCookie: {cookie}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )));
        // A browser that has gone before the page has looked at what it asked for asks for nothing.
        (0..20).any(|_| {
            std::thread::sleep(Duration::from_millis(100));
            is_done()
        })
    });
    browser.wait("it is told", |page| page.contains("by the page: "));
}

#[test]
fn a_stream_ends_with_its_session_and_gives_its_place_back_at_once() {
    let configured = configured();
    let daemon = Daemon::start(&configured, &[]);
    let browser = Browser::open(&daemon, &configured);
    let Browser { address, cookie } = &browser;
    let live = format!("GET /live HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\n\r\n");
    // More than there may be at a time, one after the other.
    for _ in 0..40 {
        let mut head = [0; 12];
        let begun = Instant::now();
        loop {
            browser.send(&live).read_exact(&mut head).unwrap();
            if head == *b"HTTP/1.1 200" {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "those that have gone keep their places");
        }
    }
    let mut stream = browser.send(&live);
    let page = browser.get("/").body;
    let form = page.split("name=\"form\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(browser.post("/logout", &[("form", form)]).status, 303);
    let begun = Instant::now();
    stream.read_to_end(&mut Vec::new()).unwrap();
    assert!(begun.elapsed() < PATIENCE, "it goes on without its session");
    daemon.says("has begun a session");
    browser.post("/login", &[("token", "wrong")]);
    daemon.says("has given a wrong token");
}

#[test]
fn only_loopback_addresses_are_taken_without_tls() {
    let configured = Configured::new(DATA);
    for address in ["192.0.2.1:9661", "0.0.0.0:9661", "[::]:9661"] {
        let words = ["loopback", "TLS", "ssh -L"];
        configured.write("pinstripe.toml", DATA);
        configured.run(&["daemon", "--web", address]).refused(64, &words);
        configured.write("pinstripe.toml", &format!("[web]\nlisten = '{address}'\n{DATA}"));
        configured.run(&["config", "check"]).refused(1, &words);
    }
    configured.run(&["daemon", "--web", "localhost"]).refused(64, &["ADDRESS:PORT"]);
    configured.write("pinstripe.toml", &format!("[web]\ntoken-file = '@/token'\n{DATA}"));
    configured.write("token", "0123456789abcdef0123456789abcdef\n");
    configured.run(&["daemon", "--web", "127.0.0.1:0"]).refused(1, &["token", "chmod 600"]);
    fs::set_permissions(configured.world.path("token"), fs::Permissions::from_mode(0o600)).unwrap();
    let daemon = Daemon::start(&configured, &["--web", "[::1]:0"]);
    let browser = Browser::new(&daemon);
    assert!(browser.address.starts_with("[::1]:"), "{}", browser.address);
    // As a browser asks that was sent on from the page, to which a link of another site led.
    let from_elsewhere = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate";
    let asks = format!("GET /login HTTP/1.1\r\nHost: {}\r\n{from_elsewhere}\r\n\r\n", browser.address);
    let mut answer = String::new();
    browser.send(&asks).read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let opened = browser.post("/login", &[("token", "0123456789abcdef0123456789abcdef")]);
    assert_eq!(opened.status, 303, "{opened:?}");
    // The file counts anew, for a page at a port of its own. It is logged a while after it is there.
    let pages = || daemon.log().matches("page on http://").count();
    fs::write(configured.world.path("token"), "fedcba9876543210fedcba9876543210\n").unwrap();
    configured.run(&["reload"]).ok();
    wait_until("the other page's port is told", || pages() == 2);
    let browser = Browser::new(&daemon);
    assert_eq!(browser.post("/login", &[("token", "0123456789abcdef0123456789abcdef")]).status, 403);
    assert_eq!(browser.post("/login", &[("token", "fedcba9876543210fedcba9876543210")]).status, 303);
    daemon.signal("TERM");
    daemon.ended();
}
