//! `serve --fuse` on this machine's own kernel, with loop devices and file systems on the file.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::members::Geometry;
use super::server::{self, Server, said};
use super::{Lab, NotHere};
use crate::mounts::{Loop, Mount};
use crate::packages;

/// mkfs.xfs wants 300 MiB, and three copies of our program, with what tells its lines, must fit.
const GEOMETRY: Geometry = Geometry::new("f5", 5, 4, 64, "left-symmetric").with_members_of(256 << 20);

/// A file system, with the commands that make and judge it.
const FILE_SYSTEMS: &[(&[&str], &[&str])] = &[
    (&["mkfs.ext4", "-q", "-F"], &["fsck.ext4", "-f", "-n"]),
    (&["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"]),
];

/// fio with verification on the file; ext4 and xfs on a loop device over it, a member lost half-way; a killed
/// server, whose successor has what was flushed.
pub fn file(lab: &Lab) -> Result<()> {
    if !packages::is_root() || !Path::new("/dev/fuse").exists() {
        return Err(NotHere("mounting a file needs root and /dev/fuse").into());
    }
    let devices = GEOMETRY.make_members(lab)?;
    server::create(lab, &GEOMETRY, &devices, &["--assume-clean"])?;
    let place = lab.directory.join("f5.disk");
    let serve = || Server::start_with(lab, GEOMETRY.name, &devices, &["--fuse", &place.to_string_lossy()]);
    let server = serve()?;
    write_and_verify(&place)?;
    let folder = lab.directory.join("f5.mount");
    fs::create_dir_all(&folder)?;
    for (slot, (make, judge)) in (0..).zip(FILE_SYSTEMS) {
        let disk = Loop::over(&place)?;
        said(Command::new(make[0]).args(&make[1..]).arg(disk.path()))?;
        let mount = Mount::of(&disk, &folder)?;
        copy(lab, &folder, "before")?;
        server.fail(slot)?;
        copy(lab, &folder, "after")?;
        drop(mount);
        let mount = Mount::of(&disk, &folder)?;
        for copy in ["before", "after"] {
            compare(lab, &folder, copy).with_context(|| format!("{}, {copy}", make[0]))?;
        }
        drop(mount);
        said(Command::new(judge[0]).args(&judge[1..]).arg(disk.path()))?;
        server.add(&devices[slot as usize])?;
        server.wait_until_in_sync()?;
    }
    let disk = Loop::over(&place)?;
    let mount = Mount::of(&disk, &folder)?;
    copy(lab, &folder, "flushed")?;
    said(Command::new("sync").arg("-f").arg(&folder))?;
    server.kill()?;
    // What is left has no server any more.
    drop((mount, disk));
    let server = serve()?;
    let disk = Loop::over(&place)?;
    let mount = Mount::of(&disk, &folder)?;
    compare(lab, &folder, "flushed")?;
    drop((mount, disk));
    server.wait_until_in_sync()?;
    server.check()?;
    server.stop()?;
    ensure!(fs::metadata(&place)?.len() == 0, "the file is still mounted");
    Ok(())
}

/// Whole sectors past the page cache, and any bytes by several writers side by side.
fn write_and_verify(place: &Path) -> Result<()> {
    let jobs: [&[&str]; 2] = [
        &["--ioengine=libaio", "--direct=1", "--iodepth=16", "--bsrange=512-192k", "--size=64m"],
        &[
            "--ioengine=psync",
            "--numjobs=4",
            "--bsrange=512-100k",
            "--bs_unaligned=1",
            "--size=8000001",
            "--offset_increment=8000001",
        ],
    ];
    for job in jobs {
        let mut fio = Command::new("fio");
        fio.args(["--name=verify", "--rw=randwrite", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1"]);
        fio.args(["--minimal", "--verify_state_save=0", "--end_fsync=1", "--fallocate=none"]).args(job);
        said(fio.arg("--filename").arg(place))?;
    }
    Ok(())
}

/// Small files and a large one.
fn copy(lab: &Lab, folder: &Path, name: &str) -> Result<()> {
    let to = folder.join(name);
    fs::create_dir(&to)?;
    said(Command::new("cp").args(["-a", "/etc"]).arg(&lab.pinstripe).arg(&to)).map(|_| ())
}

fn compare(lab: &Lab, folder: &Path, name: &str) -> Result<()> {
    let copy = folder.join(name);
    said(Command::new("diff").args(["-r", "--no-dereference", "/etc"]).arg(copy.join("etc")))?;
    said(Command::new("cmp").arg(&lab.pinstripe).arg(copy.join("pinstripe"))).map(|_| ())
}
