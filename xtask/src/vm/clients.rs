//! Foreign NBD clients on the host: libnbd's programs and QEMU's.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Lab;
use super::members::Geometry;
use super::server::{self, Server, said};
use crate::pattern::{self, BLOCK, Run};

const GEOMETRY: Geometry = Geometry::new("c5", 5, 4, 64, "left-symmetric").with_members_of(64 << 20);
const TLS_GEOMETRY: Geometry = Geometry::new("c6", 6, 5, 64, "left-symmetric").with_members_of(64 << 20);

/// What nbdinfo must find, besides the size.
const ABILITIES: &[&str] = &["can_flush", "can_fua", "can_trim", "can_zero", "can_cache", "can_multi_conn"];

/// nbdinfo, nbdcopy, qemu-img and qemu-io, each judging what another one wrote.
pub fn all(lab: &Lab) -> Result<()> {
    let devices = GEOMETRY.make_members(lab)?;
    server::create(lab, &GEOMETRY, &devices, &[])?;
    let server = Server::start(lab, GEOMETRY.name, &devices)?;
    ask_nbdinfo(&server).context("nbdinfo")?;
    copy_there_and_back(lab, &server)?;
    poke_with_qemu_io(&server).context("qemu-io")?;
    kill_a_client(lab, &server).context("a killed client")?;
    server.wait_until_in_sync()?;
    server.check()?;
    server.stop()
}

/// libnbd's programs and QEMU's over TLS, with certificates made as docs/admin.md says, and without.
pub fn tls(lab: &Lab) -> Result<()> {
    let devices = TLS_GEOMETRY.make_members(lab)?;
    server::create(lab, &TLS_GEOMETRY, &devices, &[])?;
    let folder = lab.directory.join("tls");
    let folder = folder.to_str().context("the lab's folder")?;
    std::fs::create_dir(folder)?;
    said(Command::new("sh").args(["-ec", certificates_script()?]).current_dir(folder))?;
    let server = Server::start_with(lab, TLS_GEOMETRY.name, &devices, &["--tls-certificates", folder])?;
    copy_in_tls(lab, &server, folder)?;

    let plain = format!("nbd://127.0.0.1:{}", server.port);
    let without = format!("nbds://127.0.0.1:{}", server.port);
    for (uri, why) in [(plain, "without TLS"), (without, "without a certificate")] {
        let output = Command::new("nbdinfo").arg(&uri).output()?;
        ensure!(!output.status.success(), "nbdinfo came in {why}");
    }
    server.wait_until_in_sync()?;
    server.check()?;
    server.stop()
}

/// The commands of docs/admin.md that make certificates.
fn certificates_script() -> Result<&'static str> {
    let document = include_str!("../../../docs/admin.md");
    let blocks = document.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks
        .into_iter()
        .find(|block| block.contains("openssl req"))
        .context("docs/admin.md makes no certificates")
}

/// Each of the two writes what the other one reads.
fn copy_in_tls(lab: &Lab, server: &Server, folder: &str) -> Result<()> {
    let size = server.client()?.size;
    let uri = format!("nbds://localhost:{}/?tls-certificates={folder}", server.port);
    let answer: Value =
        serde_json::from_slice(&said(Command::new("nbdinfo").arg("--json").arg(&uri))?.stdout)?;
    ensure!(answer["TLS"] == true && answer["structured"] == true, "{answer}");
    let credentials = format!("tls-creds-x509,id=tls,endpoint=client,dir={folder}");
    let image = format!("driver=nbd,host=localhost,port={},tls-creds=tls", server.port);
    let qemu = |verb: &str, source: &Path| {
        let mut command = Command::new("qemu-img");
        command.args([verb, "--object", &credentials]);
        if verb == "compare" {
            let source = format!("driver=raw,file.driver=file,file.filename={}", source.display());
            command.arg("--image-opts").arg(source);
        } else {
            command.args(["-n", "--target-image-opts", "-f", "raw"]).arg(source);
        }
        command.arg(&image);
        command
    };
    copy(lab, size, &Way { there: &uri, back: &uri, qemu: &qemu })?;
    let mut kept = server.client()?;
    let runs = [Run::new(0..size / BLOCK as u64 / 2, 2), Run::new(9000..9001, 3)];
    pattern::verify(&mut kept, size / BLOCK as u64, &runs).context("without TLS, by the unix socket")
}

fn ask_nbdinfo(server: &Server) -> Result<()> {
    let size = server.client()?.size;
    let output = said(Command::new("nbdinfo").arg("--json").arg(server.uri()))?;
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let export = &answer["exports"][0];
    ensure!(export["export-size"] == size, "size in {answer}");
    ensure!(export["is_read_only"] == false, "read-only in {answer}");
    for ability in ABILITIES {
        ensure!(export[ability] == true, "{ability} in {answer}");
    }
    ensure!(answer["structured"] == true, "structured replies in {answer}");
    let contexts = export["contexts"].as_array().context("contexts")?;
    ensure!(contexts.iter().any(|context| context == "base:allocation"), "contexts in {answer}");
    let list = said(Command::new("nbdinfo").args(["--list", "--json"]).arg(server.uri()))?;
    let list: Value = serde_json::from_slice(&list.stdout)?;
    ensure!(list["exports"].as_array().is_some_and(|exports| !exports.is_empty()), "list: {list}");
    let map = said(Command::new("nbdinfo").args(["--map", "--json"]).arg(server.uri()))?;
    let map: Value = serde_json::from_slice(&map.stdout)?;
    let lengths = map.as_array().context("map")?.iter().map(|extent| extent["length"].as_u64().unwrap_or(0));
    ensure!(lengths.sum::<u64>() == size, "the map does not cover the export: {map}");
    Ok(())
}

/// nbdcopy writes over several connections, qemu-img compares; qemu-img writes, nbdcopy reads over TCP.
fn copy_there_and_back(lab: &Lab, server: &Server) -> Result<()> {
    let size = server.client()?.size;
    let there = server.uri();
    let qemu = |verb: &str, source: &Path| {
        let mut command = Command::new("qemu-img");
        let options: &[&str] =
            if verb == "compare" { &["-f", "raw", "-F", "raw"] } else { &["-n", "-f", "raw", "-O", "raw"] };
        command.arg(verb).args(options).arg(source).arg(&there);
        command
    };
    let back = format!("nbd://127.0.0.1:{}", server.port);
    copy(lab, size, &Way { there: &there, back: &back, qemu: &qemu })
}

/// How an export is reached.
struct Way<'a> {
    /// By nbdcopy, to write.
    there: &'a str,
    /// By nbdcopy, to read.
    back: &'a str,
    /// By qemu-img, which compares it with a file or converts a file to it.
    qemu: &'a dyn Fn(&str, &Path) -> Command,
}

fn copy(lab: &Lab, size: u64, way: &Way) -> Result<()> {
    for (generation, writer) in [(1, "nbdcopy"), (2, "qemu-img")] {
        let source = lab.sparse_file(&format!("source-{generation}.img"), size)?;
        let runs = [Run::new(0..size / BLOCK as u64 / 2, generation), Run::new(9000..9001, 3)];
        pattern::write(&mut pattern::open(&source, true)?, &runs)?;
        if writer == "nbdcopy" {
            said(Command::new("nbdcopy").arg("--flush").arg(&source).arg(way.there))?;
        } else {
            said(&mut (way.qemu)("convert", &source))?;
        }
        said(&mut (way.qemu)("compare", &source))
            .with_context(|| format!("{writer} wrote something else"))?;
        let copy = lab.sparse_file("copy.img", size)?;
        said(Command::new("nbdcopy").arg(way.back).arg(&copy))?;
        pattern::verify(&mut pattern::open(&copy, false)?, size / BLOCK as u64, &runs)
            .with_context(|| format!("what nbdcopy read after {writer}"))?;
    }
    Ok(())
}

/// Unaligned, forced, zeroed, discarded: each read back with its pattern by qemu-io.
fn poke_with_qemu_io(server: &Server) -> Result<()> {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw"]);
    for step in [
        "write -P 0xa5 0 1M",
        "write -P 0x5a 512 1k",
        "write -f -P 0x11 199680 66048",
        "read -P 0xa5 0 512",
        "read -P 0x5a 512 1k",
        "read -P 0xa5 1536 198144",
        "read -P 0x11 199680 66048",
        "read -P 0xa5 265728 782848",
        "write -z 300k 100k",
        "read -P 0 300k 100k",
        "write -z -u 400k 10k",
        "read -P 0 400k 10k",
        "read -P 0xa5 410k 614k",
        "discard 0 1M",
        "write -P 0x77 64k 192k",
        "flush",
        "read -P 0x77 64k 192k",
    ] {
        command.args(["-c", step]);
    }
    let output = said(command.arg(server.uri()))?;
    let words = String::from_utf8_lossy(&output.stdout);
    ensure!(!words.contains("verification failed") && !words.contains("error"), "{words}");
    Ok(())
}

/// A client that dies under its writes leaves the server serving, and other blocks as they were.
fn kill_a_client(lab: &Lab, server: &Server) -> Result<()> {
    let size = server.client()?.size;
    let source = lab.directory.join("source-1.img");
    for _ in 0..5 {
        let mut child = Command::new("nbdcopy")
            .arg(&source)
            .arg(server.uri())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        std::thread::sleep(Duration::from_millis(30));
        child.kill()?;
        child.wait()?;
    }
    said(Command::new("nbdcopy").arg("--flush").arg(&source).arg(server.uri()))?;
    let runs = [Run::new(0..size / BLOCK as u64 / 2, 1), Run::new(9000..9001, 3)];
    pattern::verify(&mut server.client()?, size / BLOCK as u64, &runs)
}
