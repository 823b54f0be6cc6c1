//! The daemon's page and metrics over TLS: which addresses, clients and names there are, and what holds no
//! other client up.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rcgen::{CertificateParams, date_time_ymd};
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};
use serde_json::Value;

use crate::{
    configured::{Configured, DATA},
    daemon::Daemon,
    tls::Authority,
    world::{PATIENCE, Port},
};

const PAGE: &str = "[web]\nlisten = '0.0.0.0:0'\ntls-certificates = '@/tls'\n";
const METRICS: &str = "[metrics]\nlisten = '127.0.0.1:0'\ntls-certificates = '@/tls'\n";

/// The port of what the daemon says that it serves.
fn port(daemon: &Daemon<'_>, what: &str) -> u16 {
    let rest = daemon.says(&format!("{what} on https://"));
    rest.split('/').next().unwrap().rsplit(':').next().unwrap().parse().unwrap()
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// What a client gets that believes in `localhost`, or why it gets nothing.
fn ask(config: &ClientConfig, port: u16, request: &str) -> std::io::Result<String> {
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config.clone()), name).unwrap();
    let mut stream = StreamOwned::new(connection, connect(port));
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn get(config: &ClientConfig, port: u16, path: &str) -> std::io::Result<String> {
    ask(config, port, &format!("GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n"))
}

#[test]
fn with_tls_the_page_is_served_beyond_loopback_under_the_names_of_its_certificate() {
    let configured = Configured::new(&format!("{PAGE}{DATA}"));
    let authority = Authority::new();
    let names = ["store.example", "localhost", "192.0.2.7"].map(str::to_owned);
    authority.put_with(&configured.world, "tls", &CertificateParams::new(names).unwrap());
    let daemon = Daemon::start(&configured, &[]);
    let (port, client) = (port(&daemon, "page"), authority.stranger());
    let login = get(&client, port, "/login").unwrap();
    assert!(login.starts_with("HTTP/1.1 200 "), "{login}");
    assert!(!login.to_lowercase().contains("strict-transport"), "it would count for every port of the host");
    let get_as =
        |host: &str| ask(&client, port, &format!("GET /login HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
    for host in ["store.example:4", "192.0.2.7", "127.0.0.1"] {
        assert!(get_as(host).starts_with("HTTP/1.1 200 "), "{host}");
    }
    for host in ["evil.example", "192.0.2.8", "store.example.evil.example", "example"] {
        assert!(get_as(host).starts_with("HTTP/1.1 403 "), "{host}");
    }

    let token = fs::read_to_string(configured.world.path("pinstripe/web.token")).unwrap();
    let log_in = |origin: &str| {
        let body = format!("token={}", token.trim());
        let request = format!(
            "POST /login HTTP/1.1\r\nHost: store.example:{port}\r\nOrigin: {origin}:{port}\r\nContent-Length: {}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\n\r\n{body}",
            body.len()
        );
        ask(&client, port, &request).unwrap()
    };
    assert!(log_in("http://store.example").starts_with("HTTP/1.1 403 "));
    let opened = log_in("https://store.example");
    assert!(opened.starts_with("HTTP/1.1 303 "), "{opened}");
    let cookie = opened.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.starts_with("__Host-") && cookie.ends_with("; SameSite=Strict; Secure"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: store.example\r\nCookie: {cookie}\r\n\r\n");
    assert!(ask(&client, port, &request).unwrap().contains("data"));

    // What isn't TLS gets no page, and what it sends is told of.
    let mut plain = connect(port);
    plain.write_all(format!("GET /login HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n").as_bytes()).unwrap();
    let mut got = Vec::new();
    let _ = plain.read_to_end(&mut got);
    assert!(got.len() < 16 && !got.starts_with(b"HTTP"), "{got:?}");
    daemon.says("TLS with 127.0.0.1");
}

#[test]
fn new_certificates_count_without_a_restart_and_wrong_ones_are_seen_by_clients() {
    let configured = Configured::new(&format!("{METRICS}{DATA}"));
    let (world, authority, next) = (&configured.world, Authority::new(), Authority::new());
    authority.put(world, "tls");
    let daemon = Daemon::start(&configured, &[]);
    let port = port(&daemon, "metrics");
    let why = |client: &ClientConfig| get(client, port, "/healthz").unwrap_err().to_string();
    assert!(get(&authority.stranger(), port, "/healthz").unwrap().ends_with("\r\n\r\nok\n"));
    assert!(why(&next.stranger()).contains("invalid peer certificate"));

    let told = || daemon.log().matches("new connections use the new certificates").count();
    let put = |authority: &Authority, params: &CertificateParams| {
        let before = told();
        authority.put_with(world, "tls", params);
        daemon.wait("it takes the new files", |_| told() > before);
    };
    let params = |name: &str| CertificateParams::new(vec![name.to_owned()]).unwrap();
    put(&next, &params("localhost"));
    assert!(get(&next.stranger(), port, "/healthz").unwrap().ends_with("ok\n"));
    assert!(why(&authority.stranger()).contains("invalid peer certificate"));
    let mut old = params("localhost");
    (old.not_before, old.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
    put(&next, &old);
    assert!(why(&next.stranger()).contains("xpired"), "{}", why(&next.stranger()));
    put(&next, &params("other.example"));
    assert!(why(&next.stranger()).contains("not valid for name"), "{}", why(&next.stranger()));
    fs::write(world.path("tls/server-cert.pem"), "nothing").unwrap();
    daemon.says("from before until that is mended");
    assert!(why(&next.stranger()).contains("not valid for name"));
}

#[test]
fn clients_that_say_nothing_or_nonsense_hold_up_none_of_a_hundred_others() {
    let configured = Configured::new(&format!("{PAGE}{DATA}"));
    let authority = Authority::new();
    authority.put(&configured.world, "tls");
    let daemon = Daemon::start(&configured, &[]);
    let (port, client) = (port(&daemon, "page"), authority.stranger());
    let mut silent: Vec<TcpStream> = (0..8).map(|_| connect(port)).collect();
    let mut half = connect(port);
    // The head of a record of 16 KiB, and one byte of it.
    half.write_all(&[22, 3, 1, 0x40, 0, 1]).unwrap();
    let mut noise = connect(port);
    noise.write_all(&[0xa5; 4096]).unwrap();
    let begun = Instant::now();
    for number in 0..100 {
        // Always behind one that has just come: if that held the others up, it would be for seconds each
        // time.
        silent[number % 8] = connect(port);
        assert!(get(&client, port, "/login").unwrap().starts_with("HTTP/1.1 200 "));
    }
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    assert!(daemon.status().is_some());
    // Their time is over after some seconds: it is the server that ends them.
    silent.push(half);
    for mut stream in silent {
        let mut left = Vec::new();
        stream.read_to_end(&mut left).unwrap();
    }
}

#[test]
fn addresses_and_certificates_that_cannot_be_used_are_refused_with_their_line() {
    let configured = Configured::new(&format!("[web]\nlisten = '0.0.0.0:0'\n{DATA}"));
    configured.run(&["config", "check"]).refused(1, &["pinstripe.toml:2: ", "loopback", "tls-certificates"]);
    configured.write("pinstripe.toml", DATA);
    let wide = ["daemon", "--web", "0.0.0.0:0"];
    configured.run(&wide).refused(64, &["loopback", "tls-certificates"]);
    let folder = configured.world.path("tls").display().to_string();
    let with = [&wide[..], &["--web-tls", &folder]].concat();
    configured.run(&with).refused(1, &["TLS of the page", "server-cert.pem"]);
    Authority::new().put(&configured.world, "tls");
    fs::remove_file(configured.world.path("tls/ca-cert.pem")).unwrap();
    let daemon = Daemon::start(&configured, &with[1..]);
    // No client needs a certificate.
    daemon.says("page on https://0.0.0.0:");
    drop(daemon);
    configured.write("pinstripe.toml", &format!("{METRICS}tls-clients = 'certified'\n{DATA}"));
    // What the configuration names may come later: arrays and alerts don't wait for it.
    let daemon = Daemon::start(&configured, &[]);
    assert!(daemon.says("TLS of the metrics").contains("ca-cert.pem"));
    Authority::new().put(&configured.world, "tls");
    daemon.says("metrics on https://");
}

#[test]
fn a_port_that_another_program_has_keeps_neither_arrays_nor_alerts_waiting() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let configured = Configured::new(&format!("[metrics]\nlisten = '{address}'\n{DATA}"));
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    let status = daemon.status().unwrap();
    assert!(status["unserved"].as_str().unwrap().contains("in use"), "{status}");
    assert!(status["configuration_error"].is_null(), "{status}");
    let said = configured.run(&["status"]).ok().out;
    let words = format!("it is tried again: can't listen for HTTP on {address}: ");
    assert!(said.contains(&words) && !said.contains("has changed"), "{said}");
    drop(other);
    daemon.says(&format!("metrics on http://{address}/"));
    // A reload to an address that can't be ends nothing that is served.
    configured.write("pinstripe.toml", &format!("[metrics]\nlisten = '192.0.2.1:9'\n{DATA}"));
    let reloaded = configured.run(&["reload"]).ok();
    assert!(reloaded.error.contains("warning: not all is served"), "{}", reloaded.error);
    daemon.says("can't listen for HTTP on 192.0.2.1:9");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}

#[test]
fn a_client_of_another_protocol_only_is_refused() {
    let configured = Configured::new(&format!("{METRICS}{DATA}"));
    let authority = Authority::new();
    authority.put(&configured.world, "tls");
    let daemon = Daemon::start(&configured, &[]);
    let port = port(&daemon, "metrics");
    let offering = |protocols: &[&[u8]]| {
        let mut client = authority.stranger();
        client.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        get(&client, port, "/healthz")
    };
    assert!(offering(&[b"h2"]).is_err() && offering(&[b"imap"]).is_err());
    assert!(offering(&[b"h2", b"http/1.1"]).unwrap().starts_with("HTTP/1.1 200 "));
}

#[test]
fn metrics_are_secured_as_soon_as_their_certificates_can_be_used() {
    let configured = Configured::new(&format!("[metrics]\nlisten = '127.0.0.1:0'\n{DATA}"));
    let daemon = Daemon::start(&configured, &[]);
    daemon.says("metrics on http://");
    configured.write("pinstripe.toml", &format!("{METRICS}{DATA}"));
    configured.run(&["reload"]).ok();
    daemon.says("TLS of the metrics");
    daemon.wait("the problem", |status| status["unserved"].is_string());
    Authority::new().put(&configured.world, "tls");
    configured.run(&["reload"]).ok();
    daemon.says("metrics on https://");
    daemon.wait("no problem", |status| status["unserved"].is_null());
}

#[test]
fn which_clients_are_let_in_is_the_configurations_matter_wherever_the_certificates_are() {
    let configured = Configured::new(&format!("{PAGE}tls-clients = 'certified'\n{DATA}"));
    let authority = Authority::new();
    authority.put(&configured.world, "tls");
    authority.put(&configured.world, "other");
    let other = configured.world.path("other").display().to_string();
    let daemon = Daemon::start(&configured, &["--web", "127.0.0.1:0", "--web-tls", &other]);
    let port = port(&daemon, "page");
    assert!(get(&authority.stranger(), port, "/login").is_err(), "one without a certificate came in");
    assert!(get(&authority.client("x"), port, "/login").unwrap().starts_with("HTTP/1.1 200 "));
}

#[test]
fn what_a_service_manager_hands_over_takes_the_place_of_the_folder() {
    let configured = Configured::new(&format!("{METRICS}{DATA}"));
    let (authority, handed) = (Authority::new(), Authority::new());
    authority.put(&configured.world, "tls");
    handed.put(&configured.world, "credentials");
    let folder = configured.world.path("credentials").display().to_string();
    let daemon = Daemon::start_with(&configured, &[], &[("CREDENTIALS_DIRECTORY", &folder)]);
    let port = port(&daemon, "metrics");
    assert!(get(&handed.stranger(), port, "/healthz").is_ok());
    assert!(get(&authority.stranger(), port, "/healthz").is_err());
}

/// Debian's Prometheus, with a certificate, as `dist/prometheus` and the documents have it.
#[test]
fn prometheus_scrapes_over_https_with_its_certificate_and_others_are_kept_out() {
    let configured = Configured::new(&format!("{METRICS}tls-clients = 'certified'\n{DATA}"));
    let (world, authority) = (&configured.world, Authority::new());
    authority.put(world, "tls");
    let daemon = Daemon::start(&configured, &[]);
    let port = port(&daemon, "metrics");
    assert!(get(&authority.stranger(), port, "/metrics").is_err(), "one without a certificate came in");
    assert!(get(&Authority::new().client("x"), port, "/metrics").is_err());
    assert!(get(&authority.client("x"), port, "/metrics").unwrap().contains("pinstripe_build_info"));

    let (certificate, key) = authority.sign("prometheus.example");
    configured.write("client-cert.pem", &certificate);
    configured.write("client-key.pem", &key);
    configured.write(
        "prometheus.yml",
        &format!(
            "scrape_configs:\n- job_name: pinstripe\n  scheme: https\n  scrape_interval: 1s\n  tls_config:\n    \
             ca_file: @/tls/ca-cert.pem\n    cert_file: @/client-cert.pem\n    key_file: @/client-key.pem\n  \
             static_configs:\n  - targets: ['localhost:{port}']\n"
        ),
    );
    let port = Port::new();
    let web = port.address;
    let mut prometheus = Command::new("prometheus");
    prometheus.arg(format!("--config.file={}", world.path("prometheus.yml").display()));
    prometheus.arg(format!("--storage.tsdb.path={}", world.path("tsdb").display()));
    prometheus.arg(format!("--web.listen-address={web}")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut prometheus = prometheus.spawn().expect("prometheus, of the package prometheus");
    let begun = Instant::now();
    let healthy = loop {
        let targets = targets(&web.to_string()).unwrap_or_default();
        let target = &targets["data"]["activeTargets"][0];
        if target["health"] == "up" || begun.elapsed() > PATIENCE {
            break target.clone();
        }
        thread::sleep(Duration::from_millis(200));
    };
    let _ = prometheus.kill();
    let _ = prometheus.wait();
    assert_eq!(healthy["health"], "up", "{healthy}\n{}", daemon.log());
}

/// What Prometheus says of what it scrapes.
fn targets(address: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(b"GET /api/v1/targets HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}
