//! Debian packages that the VM and the interoperability steps use: installed when we may, named when we may
//! not.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// A package and a file that shows that it is there.
struct Package {
    name: &'static str,
    proof: &'static [&'static str],
}

const PACKAGES: &[Package] = &[
    Package { name: "qemu-system-x86", proof: &["/usr/bin/qemu-system-x86_64"] },
    Package { name: "qemu-utils", proof: &["/usr/bin/qemu-img"] },
    Package { name: "qemu-user", proof: &["/usr/bin/qemu-aarch64"] },
    Package { name: "busybox-static", proof: &["/usr/bin/busybox", "/bin/busybox"] },
    Package { name: "kmod", proof: &["/usr/bin/kmod", "/bin/kmod"] },
    Package { name: "mdadm", proof: &["/usr/sbin/mdadm", "/sbin/mdadm"] },
    Package { name: "dmsetup", proof: &["/usr/sbin/dmsetup", "/sbin/dmsetup"] },
    Package { name: "lvm2", proof: &["/usr/sbin/lvm", "/sbin/lvm"] },
    Package { name: "cryptsetup-bin", proof: &["/usr/sbin/cryptsetup", "/sbin/cryptsetup"] },
    Package { name: "e2fsprogs", proof: &["/usr/sbin/mke2fs", "/sbin/mke2fs"] },
    Package { name: "xfsprogs", proof: &["/usr/sbin/mkfs.xfs", "/sbin/mkfs.xfs"] },
    Package { name: "fuse3", proof: &["/usr/bin/fusermount3", "/bin/fusermount3"] },
    Package { name: "nbd-client", proof: &["/usr/sbin/nbd-client", "/sbin/nbd-client"] },
    Package { name: "libnbd-bin", proof: &["/usr/bin/nbdcopy"] },
    Package { name: "nbdkit", proof: &["/usr/bin/nbdkit", "/usr/sbin/nbdkit"] },
    Package { name: "nvme-cli", proof: &["/usr/sbin/nvme", "/sbin/nvme"] },
    Package { name: "fio", proof: &["/usr/bin/fio"] },
    Package { name: "iproute2", proof: &["/usr/sbin/tc", "/sbin/tc"] },
    Package { name: "sqlite3", proof: &["/usr/bin/sqlite3"] },
    Package { name: "valgrind", proof: &["/usr/bin/valgrind"] },
    Package { name: "mount", proof: &["/usr/sbin/losetup", "/sbin/losetup"] },
    Package { name: "xz-utils", proof: &["/usr/bin/xz"] },
    Package { name: "curl", proof: &["/usr/bin/curl"] },
    Package { name: "systemd", proof: &["/usr/bin/systemd-analyze"] },
    Package { name: "zstd", proof: &["/usr/bin/zstd"] },
    Package { name: "lintian", proof: &["/usr/bin/lintian"] },
    Package { name: "zsh", proof: &["/usr/bin/zsh", "/bin/zsh"] },
    Package { name: "fish", proof: &["/usr/bin/fish"] },
];

/// The kernel package; its proof is a file in `/boot`, looked for by [`crate::vm::image`].
const KERNEL: &str = "linux-image-6.12-amd64";

/// What checks the package that `xtask deb` makes. Its making installs no more: mdadm would take members of
/// this machine's arrays.
const OF_DEB: &[&str] = &["systemd", "lintian", "zsh", "fish"];

/// Installs what is missing when we are root on a machine with apt; otherwise says exactly what to install.
pub fn ensure() -> Result<()> {
    let mut missing = missing(|_| true);
    if !has_kernel() {
        missing.push(KERNEL);
    }
    install("the tests need", &missing)
}

/// Installs what `xtask deb` needs.
pub fn ensure_deb() -> Result<()> {
    install("the package's checks need", &missing(|package| OF_DEB.contains(&package.name)))
}

/// Installs what makes the image of [`crate::vm::debian`].
pub fn ensure_mmdebstrap() -> Result<()> {
    ensure_for("the image of Debian", &["mmdebstrap"], "/usr/bin/mmdebstrap")
}

/// Installs the browser that shows the daemon's page, and what steers it.
pub fn ensure_chromium() -> Result<()> {
    ensure_for("the page's trial", &["chromium", "chromium-driver"], "/usr/bin/chromedriver")
}

/// Installs what `apps/ycsb` and its measurement need.
pub fn ensure_rocksdb() -> Result<()> {
    ensure_for("RocksDB's client", &["librocksdb-dev"], "/usr/include/rocksdb/c.h")?;
    ensure_for("RocksDB's check", &["rocksdb-tools"], "/usr/bin/sst_dump")
}

/// Installs PostgreSQL; its usual cluster isn't used.
pub fn ensure_postgres() -> Result<()> {
    let proof = format!("{}/initdb", crate::apps::POSTGRES);
    ensure_for("PostgreSQL's trial", &["postgresql-15"], &proof)
}

/// Installs packages that only one thing needs, if this file isn't there.
fn ensure_for(what: &str, packages: &[&str], proof: &str) -> Result<()> {
    let is_there = Path::new(proof).exists();
    install(&format!("{what} needs"), if is_there { &[] } else { packages })
}

fn missing(is_wanted: impl Fn(&Package) -> bool) -> Vec<&'static str> {
    let is_there = |package: &&Package| package.proof.iter().any(|file| Path::new(file).exists());
    PACKAGES.iter().filter(|package| is_wanted(package) && !is_there(package)).map(|each| each.name).collect()
}

fn install(what_needs: &str, packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let mut words = vec!["install", "-q", "-y", "--no-install-recommends"];
    words.extend(packages);
    if !is_root() || !Path::new("/usr/bin/apt-get").exists() {
        bail!("{what_needs} packages that are not installed; as root: apt-get {}", words.join(" "));
    }
    println!("installing: {}", packages.join(" "));
    apt(&["update", "-q"])?;
    apt(&words)
}

/// The folder with promtool, if it isn't in the usual places: the package prometheus is unpacked under
/// target/tools, for installed it would have this machine run a server.
pub fn promtool(root: &Path) -> Result<Option<PathBuf>> {
    if Path::new("/usr/bin/promtool").exists() {
        return Ok(None);
    }
    let tools = root.join("target/tools/prometheus");
    let folder = tools.join("usr/bin");
    if !folder.join("promtool").exists() {
        println!("unpacking: promtool, of the package prometheus");
        std::fs::create_dir_all(&tools)?;
        // The lists of packages may be old, or not there.
        let script =
            "apt-get download -q prometheus || { apt-get update -q && apt-get download -q prometheus; }
            dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb";
        let status = Command::new("sh").args(["-ec", script]).current_dir(&tools).status()?;
        if !status.success() {
            bail!("the tests need promtool, of Debian's package prometheus");
        }
    }
    Ok(Some(folder))
}

/// Whether a Debian kernel with its modules lies in the usual places.
fn has_kernel() -> bool {
    crate::vm::image::find_kernel().is_ok()
}

/// Whether we may do everything.
pub fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn apt(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive").status()?;
    if !status.success() {
        bail!("apt-get {} failed", arguments.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn making_the_package_installs_neither_mdadm_nor_a_kernel() {
        let known = |name: &&str| PACKAGES.iter().any(|package| package.name == *name);
        assert!(OF_DEB.iter().all(known), "{OF_DEB:?}");
        assert!(!OF_DEB.contains(&"mdadm"), "{OF_DEB:?}");
    }
}
