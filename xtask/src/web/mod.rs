//! `cargo xtask web`: the daemon's page in a headless Chromium.
//!
//! A member is failed by keyboard alone, and the page shows the loss, the rebuild and its end without being
//! loaded again. The browser must have nothing to complain about: with the page's policy it would tell of any
//! script or style that it was not allowed. At the end stand pictures of the page, light and dark.

mod driver;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use driver::Browser;

use crate::nbd;
use crate::pattern::Store;

/// WebDriver's numbers of keys.
const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';
/// Bytes of a member, and how fast it is rebuilt: slowly enough to be seen.
const MEMBER_BYTES: u64 = 64 << 20;
const SPEED_KIB: u32 = 6000;
/// So small that the bitmap has enough regions for a map.
const BITMAP_CHUNK: &str = "256K";
/// Bytes of a picture that is committed.
const PICTURE_BYTES_MAX: u64 = 150 << 10;
/// What the page has of regions that are dirty.
const DIRTY: &str = "document.querySelectorAll('.marks .dirty')";
/// How long the command may take for anything.
const LIMIT: Duration = Duration::from_secs(30);
/// The name of the second array: what an escape that is forgotten would make an element.
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

/// Tries the daemon's page in Chromium.
#[derive(Args)]
pub struct Web {
    /// Write the pictures into docs, and not only beside the log
    #[arg(long)]
    pictures: bool,
}

pub fn run(root: &Path, web: &Web) -> Result<()> {
    crate::packages::ensure_chromium()?;
    let begun = Instant::now();
    let built = crate::cargo::command()
        .args(["build", "--quiet", "--package", "pinstripe"])
        .current_dir(root)
        .status()?;
    ensure!(built.success(), "pinstripe does not build");
    let world = World::new(root)?;
    world.array("data", 4)?;
    let mut daemon = world.daemon()?;
    let played = play(&world, &mut daemon, root, web);
    let ended = end(&mut daemon);
    let log = fs::read_to_string(world.folder.join("daemon.log")).unwrap_or_default();
    played.with_context(|| format!("the daemon said:\n{log}"))?;
    ended?;
    println!("web: the page showed a member's loss and rebuild, {:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn play(world: &World, daemon: &mut Child, root: &Path, web: &Web) -> Result<()> {
    let address = world.address(daemon)?;
    let browser = Browser::start(1100, 1250)?;
    log_in(world, &browser, &address)?;
    let mut client = world.client("data")?;
    fill(&mut client, 24)?;
    pause_by_keyboard(world, &browser)?;
    fail_by_keyboard(world, &browser)?;
    fill(&mut client, 16)?;
    follow_rebuild(&browser)?;
    pictures(&browser, root, web)?;
    browser
        .wait("it shows the end of the rebuild", "document.querySelectorAll('.disk.good').length === 4")?;
    browser.wait("it shows that nothing is dirty any more", &format!("{DIRTY}.length === 0"))?;
    let stays = browser.run("return window.marker === 7 && document.activeElement === window.focused")?;
    ensure!(stays == true, "the page was loaded again, or the focus moved");
    hostile_name(world, &browser)?;
    narrow(&browser)?;
    let complaints = browser.complaints()?;
    ensure!(complaints.is_empty(), "the browser complains: {complaints:#?}");
    Ok(())
}

/// Writes so many MiB, and reads a third of them.
fn fill(client: &mut nbd::Client, mebibytes: u64) -> Result<()> {
    let mut bytes = vec![0x5a; 1 << 20];
    for place in 0..mebibytes {
        client.write(place << 20, &bytes)?;
        if place % 3 == 0 {
            client.read(place << 20, &mut bytes)?;
        }
    }
    Ok(())
}

fn log_in(world: &World, browser: &Browser, address: &str) -> Result<()> {
    browser.open(&format!("http://{address}/"))?;
    browser.wait("it asks for the token", "document.activeElement.id === 'token'")?;
    let token = fs::read_to_string(world.folder.join("run/web.token"))?;
    browser.type_into(&browser.element("#token")?, &format!("{}{ENTER}", token.trim()))?;
    browser.wait("it shows the members", "document.querySelectorAll('.disk.good').length === 4")?;
    browser.wait("it is live", "document.getElementById('state').textContent.startsWith('Live')")?;
    let cookie = browser.run("return document.cookie")?;
    ensure!(cookie == "", "a script can read the session's cookie");
    Ok(())
}

/// Paused, the page doesn't show a spare that is added, and shows it when it goes on.
fn pause_by_keyboard(world: &World, browser: &Browser) -> Result<()> {
    tab_to(browser, "document.activeElement.id === 'pause'")?;
    browser.press(ENTER)?;
    let says = |word: &str| format!("document.getElementById('state').textContent.startsWith('{word}')");
    browser.wait("it says that it is paused", &says("Paused"))?;
    world.pinstripe(&["add", "data", &world.file("spare", MEMBER_BYTES)?])?;
    // Longer than the daemon takes to ask the server again.
    std::thread::sleep(Duration::from_secs(7));
    let spares = browser.run("return document.querySelectorAll('.disk.spare').length")?;
    ensure!(spares == 0, "the page changes while it is paused");
    browser.press(ENTER)?;
    browser.wait("it is live again", &says("Live"))?;
    browser.wait("it shows the spare", "document.querySelector('.disk.spare')")
}

/// Fails the member in slot 1: with Tab and Enter only.
fn fail_by_keyboard(world: &World, browser: &Browser) -> Result<()> {
    let device = world.folder.join("data1").display().to_string();
    let is_it = "document.activeElement.textContent === 'Fail…' && document.activeElement.closest('.disk').innerText.includes('slot 1')";
    tab_to(browser, is_it)?;
    let outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")?;
    ensure!(outline == "solid", "the focus can't be seen: {outline}");
    browser.press(ENTER)?;
    browser.wait("it asks whether to", "location.pathname === '/confirm'")?;
    let text = browser.run("return document.querySelector('.effects').innerText")?;
    let says =
        text.as_str().is_some_and(|text| text.contains(&device) && text.contains("/spare takes slot 1"));
    ensure!(says, "the confirmation names the devices: {text}");
    tab_to(browser, "document.activeElement.textContent === 'Fail the member in slot 1'")?;
    browser.press(ENTER)?;
    browser.wait("it says what was done", "document.querySelector('.notice')")
}

/// Presses Tab until the focus is where it is wanted.
fn tab_to(browser: &Browser, is_it: &str) -> Result<()> {
    for _ in 0..60 {
        browser.press(TAB)?;
        if browser.run(&format!("return {is_it}"))? == true {
            return Ok(());
        }
    }
    bail!("Tab doesn't lead to where {is_it}")
}

/// The page must show the rebuild as it goes on.
fn follow_rebuild(browser: &Browser) -> Result<()> {
    // A page that is loaded again has neither.
    let focus = "window.marker = 7; window.focused = [...document.querySelectorAll('a')].find(a => a.textContent === 'Check…'); \
        window.focused.focus(); return true";
    browser.run(focus)?;
    browser.wait(
        "it shows the rebuild",
        "document.querySelector('.disk.busy') && document.querySelector('progress')",
    )?;
    browser
        .wait("it shows the alert", "document.querySelector('.alerts')?.innerText.includes('Degraded')")?;
    let value = "document.querySelector('progress').value";
    let first = browser.run(&format!("return {value}"))?;
    browser.wait("it shows progress", &format!("{value} > {first}"))?;
    browser.wait(
        "it shows how much is written",
        "/written .*MiB/.test(document.querySelector('.key.written').textContent)",
    )?;
    browser.wait(
        "it has drawn that",
        "document.querySelector('.throughput .written').getAttribute('d').length > 3",
    )?;
    browser.wait(
        "it shows how long clients waited",
        "document.querySelector('.waits').parentNode.innerText.includes('99% of writes took at most')",
    )?;
    browser.wait(
        "it has drawn that, too",
        "[...document.querySelectorAll('.waits .written')].every(line => line.getAttribute('d').length > 3)",
    )?;
    // Clients wrote into the first eighth only.
    browser.wait("it shows which regions are dirty", &format!("{DIRTY}.length > 0"))?;
    let last = browser.run(&format!(
        "return Math.max(...[...{DIRTY}].map(mark => Number(mark.getAttribute('x')) + Number(mark.getAttribute('width'))))"
    ))?;
    ensure!(
        last.as_u64().is_some_and(|last| last <= 480 / 6),
        "regions are shown as dirty up to {last} of 480"
    );
    browser.wait("it says which", r"/Dirty: .* at 0–\d+% of the array\./.test(document.body.innerText)")
}

fn pictures(browser: &Browser, root: &Path, web: &Web) -> Result<()> {
    let folder = if web.pictures { root.join("docs") } else { root.join("target/xtask") };
    fs::create_dir_all(&folder)?;
    browser.run("document.activeElement.blur(); scrollTo(0, 0)")?;
    let fits =
        "return [...document.querySelectorAll('figure')].every(one => one.scrollWidth <= one.clientWidth)";
    ensure!(browser.run(fits)? == true, "a drawing's text stands out of it");
    for scheme in ["light", "dark"] {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        browser.chrome("Emulation.setEmulatedMedia", &json!({ "features": [feature] }))?;
        let path = folder.join(format!("page-{scheme}.png"));
        let bytes = browser.picture(&path)?;
        ensure!(bytes <= PICTURE_BYTES_MAX, "{} has {bytes} bytes", path.display());
        let ground = browser.run("return getComputedStyle(document.body).backgroundColor")?;
        let is_dark = ground == "rgb(16, 21, 27)";
        ensure!(is_dark == (scheme == "dark"), "the ground is {ground} with {scheme}");
        println!("    {} ({bytes} bytes)", path.display());
    }
    browser.run("window.focused.focus()").map(drop)
}

/// An array with a name that is markup appears, and its name is text.
fn hostile_name(world: &World, browser: &Browser) -> Result<()> {
    world.array(HOSTILE, 3)?;
    world.configure("[scan]\nassemble = 'all'\n")?;
    world.pinstripe(&["reload"])?;
    let name = format!(
        "[...document.querySelectorAll('article h2')].some(h2 => h2.textContent === {})",
        json!(HOSTILE)
    );
    browser.wait("it shows the new array", &name)?;
    browser.wait("it shows its members", "document.querySelectorAll('.disk.good').length === 7")?;
    let images = browser.run("return document.images.length")?;
    ensure!(images == 0, "the name became an element");
    Ok(())
}

/// On the screen of a telephone nothing stands beside it.
fn narrow(browser: &Browser) -> Result<()> {
    let screen = json!({ "width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": true });
    browser.chrome("Emulation.setDeviceMetricsOverride", &screen)?;
    let wide = browser.run("return document.documentElement.scrollWidth - innerWidth")?;
    ensure!(wide.as_i64().is_some_and(|wide| wide <= 0), "at 360 pixels the page is {wide} too wide");
    Ok(())
}

/// A folder with members, a configuration and a daemon.
struct World {
    folder: PathBuf,
    program: PathBuf,
}

impl World {
    fn new(root: &Path) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("pinstripe-web-{}", std::process::id()));
        fs::create_dir(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        fs::create_dir(folder.join("run"))?;
        let world = Self { folder, program: root.join("target/debug/pinstripe") };
        world.configure("[scan]\n")?;
        Ok(world)
    }

    /// The configuration, with this beginning of its section of the scan.
    fn configure(&self, scan: &str) -> Result<()> {
        let globs = format!("devices = ['{0}/data*', '{0}/other*']\n", self.folder.display());
        let defaults = format!(
            "[defaults]\nshards = 1\nsync-speed-min = 1000\nsync-speed-max = {SPEED_KIB}\n[[array]]\nname = 'data'\n"
        );
        let path = self.folder.join("pinstripe.toml");
        fs::write(&path, format!("{scan}{globs}{defaults}"))?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?)
    }

    fn file(&self, name: &str, bytes: u64) -> Result<String> {
        let path = self.folder.join(name);
        fs::File::create(&path)?.set_len(bytes)?;
        Ok(path.display().to_string())
    }

    /// Makes a RAID5 of this name.
    fn array(&self, name: &str, members: usize) -> Result<()> {
        let files = if name == "data" { "data" } else { "other" };
        let members = (0..members).map(|slot| self.file(&format!("{files}{slot}"), MEMBER_BYTES));
        let members = members.collect::<Result<Vec<_>>>()?;
        let options =
            ["create", "--level", "5", "--assume-clean", "--bitmap-chunk", BITMAP_CHUNK, "--name", name];
        self.pinstripe(&[&options[..], &members.iter().map(String::as_str).collect::<Vec<_>>()].concat())
            .map(drop)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(&self.folder);
        for (name, path) in [
            ("PINSTRIPE_RUNTIME_DIR", "run"),
            ("PINSTRIPE_STATE_DIR", "state"),
            ("PINSTRIPE_CONFIG", "pinstripe.toml"),
        ] {
            command.env(name, self.folder.join(path));
        }
        command
    }

    fn pinstripe(&self, arguments: &[&str]) -> Result<String> {
        let output = self.command(arguments).output()?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8(output.stdout)?)
    }

    fn daemon(&self) -> Result<Child> {
        let log = fs::File::create(self.folder.join("daemon.log"))?;
        let mut command = self.command(&["daemon", "--stop-arrays", "--web", "127.0.0.1:0"]);
        Ok(command.stdout(Stdio::null()).stderr(log).spawn()?)
    }

    /// Where its page is.
    fn address(&self, daemon: &mut Child) -> Result<String> {
        let begun = Instant::now();
        loop {
            let log = fs::read_to_string(self.folder.join("daemon.log"))?;
            if let Some((address, _)) =
                log.split_once("page on http://").and_then(|(_, rest)| rest.split_once('/'))
            {
                return Ok(address.to_owned());
            }
            ensure!(daemon.try_wait()?.is_none() && begun.elapsed() < LIMIT, "the daemon has no page");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A client of an array that is served.
    fn client(&self, array: &str) -> Result<nbd::Client> {
        let detail: Value = serde_json::from_str(&self.pinstripe(&["detail", array, "--json"])?)?;
        let uri = detail["nbd"][0].as_str().context("the array has no address")?;
        let (_, socket) = uri.split_once("socket=").context("the array has no socket")?;
        nbd::Client::connect(Path::new(socket))
    }
}

/// Has the daemon stop the arrays and end.
fn end(daemon: &mut Child) -> Result<()> {
    let told = Command::new("kill").args(["-TERM", &daemon.id().to_string()]).status()?;
    ensure!(told.success(), "the daemon can't be told to end");
    let begun = Instant::now();
    while daemon.try_wait()?.is_none() {
        if begun.elapsed() > LIMIT {
            daemon.kill()?;
            bail!("the daemon has not ended after {} s", LIMIT.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
