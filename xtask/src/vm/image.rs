//! The guest's root file system: Debian's kernel modules, busybox and the real mdadm in one archive.
//!
//! It is built once and cached under `target/vm`, under a name that is a fingerprint of everything that went
//! into it, so a changed kernel, tool or script gives a new one. What belongs to a single boot comes in a
//! second archive behind it (see [`super::machine`]).

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cpio::Archive;

/// Modules a guest can load, besides those that they depend on.
const MODULES: &[&str] = &[
    "crc32c_generic",
    "virtio_scsi",
    "sd_mod",
    "virtio_net",
    "raid0",
    "raid1",
    "raid10",
    "raid456",
    "nbd",
    "loop",
    "brd",
    "dm-mod",
    "dm-flakey",
    "dm-zero",
    "dm-crypt",
    "xts",
    "essiv",
    "algif_skcipher",
    "ext4",
    "xfs",
    "scsi_debug",
    "nd_e820",
    "nd_pmem",
    "dax_pmem",
    "device_dax",
    "nvme",
    "nvme-tcp",
    "nvmet-tcp",
    "ublk_drv",
    "virtio_blk",
];

/// Modules that every boot loads: disks, network and the checksums that ext4 and md's bitmap ask for.
pub const BOOT_MODULES: &[&str] = &["crc32c_generic", "virtio_scsi", "sd_mod", "virtio_net"];

/// Programs of the host that the guest gets, with the libraries they need. Names in the guest: `/sbin/NAME`.
const TOOLS: &[&str] = &["mdadm", "nbd-client", "mke2fs", "e2fsck", "dmsetup", "nvme"];

/// Other names under which a tool is called.
const ALIASES: &[(&str, &str)] = &[
    ("modprobe", "kmod"),
    ("insmod", "kmod"),
    ("lsmod", "kmod"),
    ("rmmod", "kmod"),
    ("mkfs.ext4", "mke2fs"),
    ("fsck.ext4", "e2fsck"),
];

const INIT: &str = include_str!("../../vm/init.sh");

/// A kernel and the archive that goes with it.
pub struct Image {
    /// The kernel to boot.
    pub kernel: PathBuf,
    /// The cached root file system, an uncompressed cpio archive.
    pub archive: PathBuf,
}

/// Finds the newest kernel in `/boot` that has its md modules installed: its version.
pub fn find_kernel() -> Result<String> {
    let mut versions: Vec<String> = fs::read_dir("/boot")
        .context("read /boot")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned))
        .filter(|version| Path::new("/lib/modules").join(version).join("kernel/drivers/md").exists())
        .collect();
    versions.sort_by_key(|version| {
        version.split(['.', '-', '+']).map(|part| part.parse::<u32>().unwrap_or(0)).collect::<Vec<_>>()
    });
    versions.pop().context("no kernel with md modules in /boot and /lib/modules")
}

/// Builds the image, or takes it from the cache in `directory`.
pub fn prepare(directory: &Path) -> Result<Image> {
    fs::create_dir_all(directory)?;
    let version = find_kernel()?;
    let kernel = PathBuf::from(format!("/boot/vmlinuz-{version}"));
    let tools = find_tools()?;
    let archive = directory.join(format!("root-{:016x}.cpio", fingerprint(&version, &tools)?));
    if !archive.exists() {
        for old in fs::read_dir(directory)?.flatten() {
            if old.file_name().to_string_lossy().starts_with("root-") {
                let _ = fs::remove_file(old.path());
            }
        }
        let bytes = build(directory, &version, &tools)?;
        let unfinished = archive.with_extension("new");
        fs::write(&unfinished, bytes)?;
        fs::rename(&unfinished, &archive)?;
    }
    Ok(Image { kernel, archive })
}

/// The files a program needs at run time: itself first, then its libraries and loader, all with links
/// resolved on reading. A static program is alone.
pub fn with_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![program.to_owned()];
    let output = Command::new("ldd").arg(program).output().context("run ldd")?;
    for word in String::from_utf8_lossy(&output.stdout).split_whitespace() {
        if word.starts_with('/') && word != program.to_string_lossy() && !word.ends_with(':') {
            files.push(PathBuf::from(word));
        }
    }
    Ok(files)
}

/// Adds a program as `/sbin/NAME` and its libraries where the loader looks for them.
pub fn add_program(
    archive: &mut Archive,
    present: &mut BTreeSet<String>,
    name: &str,
    program: &Path,
) -> Result<()> {
    for (index, file) in with_libraries(program)?.iter().enumerate() {
        let path = if index == 0 { format!("sbin/{name}") } else { file.to_string_lossy()[1..].to_owned() };
        if present.insert(path.clone()) {
            archive.host_file(&path, file)?;
        }
    }
    Ok(())
}

/// A copy of a program without what only debuggers read, which a guest would be a second longer unpacking.
pub fn stripped(program: &Path, directory: &Path) -> Result<PathBuf> {
    let name = program.file_name().context("a program has a name")?;
    let copy = directory.join(name).with_extension("stripped");
    run(Command::new("strip").arg("--strip-debug").arg("-o").arg(&copy).arg(program))?;
    Ok(copy)
}

/// Where a program of the host lies.
pub fn which(name: &str) -> Result<PathBuf> {
    for directory in ["/usr/sbin", "/usr/bin", "/sbin", "/bin"] {
        let path = Path::new(directory).join(name);
        if path.exists() {
            return Ok(path);
        }
    }
    bail!("{name} is not installed")
}

fn find_tools() -> Result<Vec<(&'static str, PathBuf)>> {
    ["busybox", "kmod"].iter().chain(TOOLS).map(|name| Ok((*name, which(name)?))).collect()
}

fn fingerprint(version: &str, tools: &[(&str, PathBuf)]) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    (version, MODULES, ALIASES, INIT).hash(&mut hasher);
    for (name, path) in tools {
        let metadata = fs::metadata(path)?;
        (name, metadata.len(), metadata.modified()?).hash(&mut hasher);
    }
    fs::metadata(format!("/lib/modules/{version}/modules.dep"))?.modified()?.hash(&mut hasher);
    Ok(hasher.finish())
}

fn build(directory: &Path, version: &str, tools: &[(&str, PathBuf)]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    let mut present = BTreeSet::new();
    archive.file("init", 0o755, INIT.as_bytes());
    for directory in ["proc", "sys", "dev", "tmp", "run", "mnt", "etc", "var", "job"] {
        archive.directory(directory);
    }
    for (name, path) in tools {
        add_program(&mut archive, &mut present, name, path)?;
    }
    archive.symlink("bin/busybox", "/sbin/busybox");
    for (alias, tool) in ALIASES {
        archive.symlink(&format!("sbin/{alias}"), tool);
    }
    add_modules(&mut archive, directory, version)?;
    Ok(archive.finish())
}

/// Unpacks the modules (the guest would take seconds for it), lets depmod index them, and packs both.
fn add_modules(archive: &mut Archive, directory: &Path, version: &str) -> Result<()> {
    let staging = directory.join("staging");
    let _ = fs::remove_dir_all(&staging);
    let base = staging.join("lib/modules").join(version);
    fs::create_dir_all(&base)?;
    for index in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        fs::copy(format!("/lib/modules/{version}/{index}"), base.join(index))?;
    }
    for module in module_files(version)? {
        let name = module.strip_prefix("/lib/modules").context("a module outside /lib/modules")?;
        let mut target = staging.join("lib/modules").join(name);
        let contents = if module.extension().is_some_and(|extension| extension == "xz") {
            target.set_extension("");
            run(Command::new("xz").arg("-dc").arg(&module))?
        } else {
            fs::read(&module)?
        };
        fs::create_dir_all(target.parent().context("a module has a folder")?)?;
        fs::write(target, contents)?;
    }
    run(Command::new("depmod").arg("-b").arg(&staging).arg(version))?;
    add_tree(archive, &staging, &staging)?;
    Ok(fs::remove_dir_all(&staging)?)
}

/// The files of [`MODULES`] and of all they depend on.
fn module_files(version: &str) -> Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    for module in MODULES {
        // -D shows what would be loaded; an empty configuration keeps the host's options out of it.
        let listing = run(Command::new("modprobe").args(["-C", "/dev/null", "-S", version, "-D", module]))?;
        for line in String::from_utf8_lossy(&listing).lines() {
            if let Some(file) = line.strip_prefix("insmod ").and_then(|rest| rest.split(' ').next()) {
                files.insert(PathBuf::from(file));
            }
        }
    }
    Ok(files)
}

fn add_tree(archive: &mut Archive, root: &Path, directory: &Path) -> Result<()> {
    let mut entries: Vec<PathBuf> = fs::read_dir(directory)?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            add_tree(archive, root, &path)?;
        } else {
            archive.host_file(&path.strip_prefix(root)?.to_string_lossy(), &path)?;
        }
    }
    Ok(())
}

/// Runs a command and gives its output; its own words come back in the error.
pub fn run(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}
