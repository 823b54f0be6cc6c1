//! The hosts that may connect to an NVMe/TCP target, as files name them: by their secrets, and by their keys
//! of TLS.
//!
//! The files are looked at while the target serves. A change counts when the file reads the same twice: until
//! then it may be half written. A file that can't be used changes nothing.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use pinstripe_nvme::{
    auth::{Authentication, KeyFileProblem, Keyring, TlsKeyring},
    controller::{Subsystem, TlsHosts},
};
use pinstripe_runtime::{ShardHandle, shard, uring::blocking};

use crate::{
    command_line::LogLevel,
    failure::Failure,
    log::{self, Entry},
    nvme_server::cut_off,
};

/// Between two looks at the files.
const LOOK_NANOSECONDS: u64 = 5_000_000_000;
/// For which a file that has changed has to stay as it is.
const SETTLE_NANOSECONDS: u64 = 1_000_000_000;

/// The hosts of both files. Without a file all hosts may connect.
pub struct Hosts {
    dhchap: Option<KeyFile<Keyring>>,
    tls: Option<KeyFile<TlsKeyring>>,
}

/// What lets them in.
pub struct Door {
    pub subsystem: Arc<Subsystem>,
    /// If all have to speak TLS.
    pub tls: Option<Arc<TlsHosts>>,
    pub shards: Vec<ShardHandle>,
}

impl Hosts {
    pub async fn read(dhchap: Option<PathBuf>, tls: Option<PathBuf>) -> Result<Self, Failure> {
        // A file may keep its readers waiting.
        blocking(move || {
            let dhchap = dhchap.map(|path| KeyFile::of(path, Keyring::read)).transpose()?;
            let tls = tls.map(|path| KeyFile::of(path, TlsKeyring::read)).transpose()?;
            Ok(Self { dhchap, tls })
        })
        .await
    }

    /// Whether a host has to prove which it is.
    pub fn are_known(&self) -> bool {
        self.dhchap.is_some() || self.tls.is_some()
    }

    /// By which they prove it, if they have to by their secrets.
    pub fn authentication(&self) -> Option<Authentication> {
        self.dhchap.as_ref().map(|file| Authentication::new(file.keys.clone()))
    }

    /// Those that speak TLS with this subsystem, if all have to.
    pub fn tls(&self, nqn: &str) -> Result<Option<Arc<TlsHosts>>, Failure> {
        let hosts = self.tls.as_ref().map(|file| TlsHosts::new(&file.keys, nqn)).transpose();
        Ok(hosts.map_err(|error| Failure::new(format!("--nvme-tls-hosts: {error}")))?.map(Arc::new))
    }

    /// Has changed files count, for as long as this is polled.
    pub async fn watch(mut self, door: Door) {
        if !self.are_known() {
            return std::future::pending().await;
        }
        loop {
            shard::sleep(LOOK_NANOSECONDS).await;
            if let Some(file) = &mut self.dhchap {
                file.look_for_secrets(&door).await;
            }
            if let (Some(file), Some(hosts)) = (&mut self.tls, &door.tls) {
                file.look_for_keys(hosts, &door.shards).await;
            }
        }
    }
}

/// A file, and what it had when that counted last.
struct KeyFile<K> {
    path: PathBuf,
    read: fn(&Path) -> Result<K, KeyFileProblem>,
    keys: K,
    /// A pipe can be read once.
    is_lasting: bool,
    /// What was said to be wrong with it.
    trouble: Option<String>,
}

impl KeyFile<Keyring> {
    async fn look_for_secrets(&mut self, door: &Door) {
        if let Some(keys) = self.look().await {
            self.keys.clone_from(&keys);
            self.tell(&door.subsystem.replace_keys(keys));
        }
    }
}

impl KeyFile<TlsKeyring> {
    async fn look_for_keys(&mut self, hosts: &TlsHosts, shards: &[ShardHandle]) {
        let Some(keys) = self.look().await else { return };
        match hosts.replace(&keys) {
            Ok(out) => {
                self.keys = keys;
                self.tell(&out);
                cut_off(shards, out).await;
            }
            Err(error) => self.complain(format!("{}: {error}", self.path.display())),
        }
    }
}

impl<K: PartialEq + Send + 'static> KeyFile<K> {
    fn of(path: PathBuf, read: fn(&Path) -> Result<K, KeyFileProblem>) -> Result<Self, KeyFileProblem> {
        let is_lasting = fs::metadata(&path).is_ok_and(|file| file.is_file());
        Ok(Self { keys: read(&path)?, path, read, is_lasting, trouble: None })
    }

    /// The keys that the file has now, if they are others. What is wrong with it is said once.
    async fn look(&mut self) -> Option<K> {
        if !self.is_lasting {
            return None;
        }
        let now = self.now().await;
        if now.as_ref().is_ok_and(|keys| *keys == self.keys) {
            self.trouble = None;
            return None;
        }
        shard::sleep(SETTLE_NANOSECONDS).await;
        if self.now().await != now {
            return None;
        }
        now.map_err(|trouble| self.complain(trouble)).ok()
    }

    async fn now(&self) -> Result<K, String> {
        let (path, read) = (self.path.clone(), self.read);
        blocking(move || read(&path).map_err(|error| error.to_string())).await
    }

    fn complain(&mut self, trouble: String) {
        if self.trouble.as_ref() != Some(&trouble) {
            log::warn(&format!(
                "NVMe/TCP: {trouble}; the same hosts as before may connect until that is mended"
            ));
            self.trouble = Some(trouble);
        }
    }

    /// Says that the file counts, and which hosts are `out`: they have no line any more, or another key.
    fn tell(&mut self, out: &BTreeSet<String>) {
        self.trouble = None;
        let hosts = out.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let gone = if out.is_empty() { String::new() } else { format!("; cut off: {hosts}") };
        let message = format!("NVMe/TCP: {} has changed and counts from now on{gone}", self.path.display());
        let (protocol, message) = (Some("nvme-tcp"), message.as_str());
        log::say(&Entry { level: LogLevel::Info, protocol, message, ..Entry::default() });
    }
}
