//! The root file system of a Debian 12, made by mmdebstrap: what an administrator's machine has, and no more.
//!
//! It is cached under `target/vm`, under a name that is a fingerprint of what goes into it. Debian's own
//! updates don't change that name: delete the file to have them.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::packages;
use crate::vm::image::run;

/// Debian's packages of the image. mdadm brings its udev rules and its hook of the initial ramdisk.
const PACKAGES: &str = "systemd-sysv,dbus,udev,kmod,procps,busybox,mdadm,dmsetup,e2fsprogs,xfsprogs,fio,initramfs-tools,lz4,\
    linux-image-6.12-amd64,curl,smartmontools";
const SOURCES: &[&str] = &[
    "deb http://deb.debian.org/debian bookworm main",
    "deb http://deb.debian.org/debian-security bookworm-security main",
];
/// Of the root file system; what isn't used takes no place.
const SIZE: &str = "1500M";
/// Files that the image has beside those of its packages. The initial ramdisk has only the modules that these
/// machines need: a guest that is emulated would be minutes packing all of them.
const FILES: &[(&str, &str)] = &[
    ("etc/fstab", "LABEL=root / ext4 defaults 0 1\nLABEL=job /job ext4 ro 0 0\n"),
    ("etc/hostname", "debian\n"),
    ("etc/hosts", "127.0.0.1 localhost debian\n"),
    ("etc/initramfs-tools/conf.d/vm", "MODULES=list\nCOMPRESS=lz4\n"),
    ("etc/initramfs-tools/modules", "virtio_pci\nvirtio_blk\nvirtio_scsi\nsd_mod\next4\n"),
    // On a busy machine udev takes longer than systemd waits for a disk otherwise.
    ("etc/systemd/system.conf.d/vm.conf", "[Manager]\nDefaultDeviceTimeoutSec=600\n"),
    ("etc/systemd/system/job.service", include_str!("../../../vm/debian/job.service")),
];
/// Units that would disturb: a console that waits for a login, apt's own timers, and smartd, which fails
/// where it has no disk to watch.
const MASKED: &[&str] =
    &["serial-getty@ttyS0.service", "apt-daily.timer", "apt-daily-upgrade.timer", "smartmontools.service"];

/// Why not any user makes it.
pub const NEEDS_ROOT: &str = "the image of Debian has files of root, and only root can make it";

/// Makes the image, or takes it from the cache in `directory`: where it is.
pub fn prepare(directory: &Path) -> Result<PathBuf> {
    fs::create_dir_all(directory)?;
    let mut hasher = DefaultHasher::new();
    (PACKAGES, SOURCES, SIZE, FILES, MASKED).hash(&mut hasher);
    let image = directory.join(format!("debian-{:016x}.root", hasher.finish()));
    if image.exists() {
        return Ok(image);
    }
    packages::ensure_mmdebstrap()?;
    ensure!(packages::is_root(), "{NEEDS_ROOT}");
    println!("making the image of Debian: some minutes, once");
    for old in fs::read_dir(directory)?.flatten() {
        if old.file_name().to_string_lossy().starts_with("debian-") {
            let _ = fs::remove_file(old.path());
        }
    }
    let root = directory.join("debian");
    let _ = fs::remove_dir_all(&root);
    bootstrap(&root, directory)?;
    let unfinished = image.with_extension("new");
    let _ = fs::remove_file(&unfinished);
    run(Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-L", "root", "-d"])
        .args([&root, &unfinished])
        .arg(SIZE))?;
    fs::remove_dir_all(&root)?;
    fs::rename(&unfinished, &image)?;
    Ok(image)
}

/// The files that go in are there before the packages: the kernel's makes its ramdisk when it is installed.
fn bootstrap(root: &Path, directory: &Path) -> Result<()> {
    let files = directory.join("debian-files");
    let _ = fs::remove_dir_all(&files);
    for (name, contents) in FILES {
        let path = files.join(name);
        fs::create_dir_all(path.parent().context("a file has a folder")?)?;
        fs::write(path, contents)?;
    }
    let made = run(Command::new("mmdebstrap")
        .args(["--mode=root", "--variant=minbase", "--format=directory", "--quiet"])
        .arg(format!("--include={PACKAGES}"))
        .arg("--aptopt=APT::Install-Recommends \"false\"")
        .arg(format!("--essential-hook=cp -r {}/. \"$1\"", files.display()))
        .arg(format!("--customize-hook=chroot \"$1\" systemctl mask {}", MASKED.join(" ")))
        .arg("--customize-hook=chroot \"$1\" systemctl enable job.service")
        .arg("--customize-hook=mkdir -p \"$1/job\"")
        .arg("bookworm")
        .arg(root)
        .args(SOURCES))
    .context("mmdebstrap, which needs Debian's archive on the network");
    fs::remove_dir_all(&files)?;
    made.map(drop)
}
