//! A headless Chromium, steered by the WebDriver protocol (W3C): JSON over HTTP to chromedriver.
//!
//! What is here is what the test of the page needs. Crates for it stand on one whose licence isn't ours to
//! take, or bring more than a hundred others.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// How long a call may take, and how long is waited for something.
const LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);
/// By this key an element is known (W3C WebDriver, section 12.1).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A chromedriver with one browser; both end with this.
pub struct Browser {
    driver: Child,
    /// Its output: without a reader it would end at its next word.
    _said: BufReader<ChildStdout>,
    port: u16,
    session: String,
}

/// An element of the page.
pub struct Element(String);

impl Browser {
    /// Starts both, with a window of this width and height.
    pub fn start(width: u32, height: u32) -> Result<Self> {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("start chromedriver")?;
        let mut said = BufReader::new(driver.stdout.take().context("chromedriver's output")?);
        let port = loop {
            let mut line = String::new();
            ensure!(said.read_line(&mut line)? > 0, "chromedriver ended at its start");
            if let Some(port) = line.trim().strip_prefix("ChromeDriver was started successfully on port ") {
                break port.trim_end_matches('.').parse()?;
            }
        };
        let mut browser = Self { driver, _said: said, port, session: String::new() };
        let size = format!("--window-size={width},{height}");
        // Root can't have Chromium's sandbox. Nothing but our own page is opened.
        let arguments =
            ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", &size];
        let always =
            json!({ "goog:chromeOptions": { "args": arguments }, "goog:loggingPrefs": { "browser": "ALL" } });
        let begun =
            browser.call("POST", "/session", &json!({ "capabilities": { "alwaysMatch": always } }))?;
        let id = begun["sessionId"].as_str().context("chromedriver gave no session")?;
        browser.session = format!("/session/{id}");
        Ok(browser)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(LIMIT))?;
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let length = body.len();
        write!(
            stream,
            "{method} {}{path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}",
            self.session, self.port
        )?;
        // Not until the end: the browser inherits the connection that had it started, and keeps it open.
        let mut reader = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).with_context(|| format!("{method} {path}"))?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).with_context(|| format!("{method} {path}"))?;
        let mut answer: Value = serde_json::from_slice(&body).with_context(|| format!("{method} {path}"))?;
        let value = answer["value"].take();
        if value["error"].is_string() {
            bail!("{method} {path}: {}", value["message"]);
        }
        Ok(value)
    }

    pub fn open(&self, url: &str) -> Result<()> {
        self.call("POST", "/url", &json!({ "url": url })).map(drop)
    }

    /// What a script gives.
    pub fn run(&self, script: &str) -> Result<Value> {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true.
    pub fn wait(&self, what: &str, expression: &str) -> Result<()> {
        let begun = Instant::now();
        // While another page is being loaded there is none.
        while self.run(&format!("return Boolean({expression})")).unwrap_or(Value::Null) != true {
            if begun.elapsed() > LIMIT {
                let text = self.run("return document.body.innerText")?;
                bail!("never {what}: {}", text.as_str().unwrap_or_default());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    pub fn element(&self, selector: &str) -> Result<Element> {
        let found = self.call("POST", "/element", &json!({ "using": "css selector", "value": selector }))?;
        Ok(Element(found[ELEMENT].as_str().context("chromedriver gave no element")?.to_owned()))
    }

    /// Types into an element.
    pub fn type_into(&self, element: &Element, text: &str) -> Result<()> {
        self.call("POST", &format!("/element/{}/value", element.0), &json!({ "text": text })).map(drop)
    }

    /// Presses a key, by its number in WebDriver's table (section 17.4.2).
    pub fn press(&self, key: char) -> Result<()> {
        let actions = json!([{ "type": "keyDown", "value": key.to_string() }, { "type": "keyUp", "value": key.to_string() }]);
        let keys = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] });
        self.call("POST", "/actions", &keys).map(drop)
    }

    /// A command of Chrome's own protocol.
    pub fn chrome(&self, command: &str, parameters: &Value) -> Result<()> {
        self.call("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": parameters })).map(drop)
    }

    /// Puts a picture of the window into a file.
    pub fn picture(&self, path: &Path) -> Result<u64> {
        let picture = self.call("GET", "/screenshot", &Value::Null)?;
        let text = picture.as_str().context("chromedriver gave no picture")?;
        let bytes = STANDARD.decode(text).map_err(|error| anyhow!("chromedriver's picture: {error}"))?;
        std::fs::write(path, &bytes).with_context(|| format!("write {}", path.display()))?;
        Ok(bytes.len() as u64)
    }

    /// What the browser complains about since it was asked the last time.
    pub fn complaints(&self) -> Result<Vec<String>> {
        let log = self.call("POST", "/se/log", &json!({ "type": "browser" }))?;
        let lines = log.as_array().into_iter().flatten();
        Ok(lines.map(|line| line["message"].as_str().unwrap_or_default().to_owned()).collect())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // The browser ends with its session. Killed, the driver would leave it behind.
            if let Err(error) = self.call("DELETE", "", &json!({})) {
                eprintln!("Chromium may still run: {error:#}");
            }
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
