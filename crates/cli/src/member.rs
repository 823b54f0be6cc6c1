//! A member's storage, wherever it is: a file or block device of this machine, or an NVMe namespace of a
//! server.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, OnceLock},
};

use pinstripe_nvme::{
    auth::{Authentication, Keyring, TlsKeyring},
    initiator::{self, Address, BadAddress, Connector, Initiator, NvmeSource, Options, Presence},
    wire::identifiers::NamespaceIdentity,
};
use pinstripe_runtime::{
    Device, DeviceError, DeviceInfo, DeviceSource, Shard,
    shard::{self},
    uring::{Generation, OpenFile, OpenOptions, Storage, blocking},
};

use crate::{
    command_line::RemoteArguments,
    failure::Failure,
    open::open as open_file,
    probe::{Contents, ProbeError, Probed},
};

/// The secrets with which this host and servers prove their identities to each other.
static SECRETS: OnceLock<Arc<Authentication>> = OnceLock::new();
/// The keys with which this host and servers speak TLS.
static TLS_KEYS: OnceLock<Arc<TlsKeyring>> = OnceLock::new();
/// From which addresses of this host.
static ADDRESSES: OnceLock<Vec<IpAddr>> = OnceLock::new();

thread_local! {
    /// The process's associations; on shard 0, where members are opened.
    static INITIATOR: RefCell<Option<Arc<Initiator>>> = const { RefCell::new(None) };
    /// The namespaces that became members, by name.
    static KNOWN: RefCell<BTreeMap<String, Known>> = const { RefCell::new(BTreeMap::new()) };
    /// The block devices that were opened as members, by name.
    static DISKS: RefCell<BTreeMap<String, Disk>> = const { RefCell::new(BTreeMap::new()) };
}

/// See the module.
#[derive(Clone)]
pub enum Member {
    /// Locked while it is open. With what it is recognized by if it is a block device.
    Local(Arc<OpenFile>, Option<Disk>),
    /// Not locked: no other program or host may use it.
    Remote(Arc<NvmeSource>),
}

/// Whether a device shares bytes with one of `others`, files and block devices. Blocks.
pub fn is_over(device: &Path, others: &[PathBuf]) -> bool {
    let Ok(storage) = Storage::of(device) else { return false };
    others.iter().any(|other| Storage::of(other).is_ok_and(|other| other.overlaps(&storage)))
}

/// Takes to heart what the command line says of servers, before anything is opened.
pub fn know(arguments: &RemoteArguments) -> Result<(), Failure> {
    // A process reads one command line.
    let _ = ADDRESSES.set(arguments.client_address.clone());
    if let Some(path) = &arguments.dhchap_secrets {
        let _ = SECRETS.set(Arc::new(Authentication::new(Keyring::read(path)?)));
    }
    if let Some(path) = &arguments.nvme_tls_secrets {
        let _ = TLS_KEYS.set(Arc::new(TlsKeyring::read(path)?));
    }
    Ok(())
}

/// The secrets of the command line, if there are any.
pub fn authentication() -> Option<Arc<Authentication>> {
    SECRETS.get().cloned()
}

/// How servers are reached by the host of this NQN.
pub fn connector(host: &str) -> Arc<dyn Connector> {
    initiator::connector(ADDRESSES.get().cloned().unwrap_or_default(), TLS_KEYS.get().cloned(), host)
}

/// Says, before members are opened, how many shards will attach them. Servers are asked for so many queues.
pub fn prepare(shards: usize) -> Result<(), Failure> {
    let queues = u16::try_from(shards)?;
    let options = Options { authentication: authentication(), ..Options::of_this_host(queues) };
    let connector = connector(&options.host_nqn);
    let initiator = Initiator::new(options, connector);
    INITIATOR.with(|current| current.replace(Some(initiator)));
    Ok(())
}

/// The process's associations, for one shard unless [`prepare`] said otherwise.
pub fn initiator() -> Result<Arc<Initiator>, Failure> {
    if let Some(initiator) = INITIATOR.with(|current| current.borrow().clone()) {
        return Ok(initiator);
    }
    prepare(1)?;
    initiator()
}

/// The address, if the path is one.
pub fn address(path: &Path) -> Option<Result<Address, Failure>> {
    let text = path.to_str().filter(|text| Address::is_address(text))?;
    Some(text.parse().map_err(|error: BadAddress| Failure::usage(error.to_string())))
}

/// Whether both are addresses of one namespace, as far as addresses tell.
pub fn are_one(one: &Path, other: &Path) -> bool {
    let read = |path: &Path| address(path)?.ok();
    read(one).zip(read(other)).is_some_and(|(one, other)| one.names_what(&other))
}

/// Refuses members that are one device, by whatever names (C30).
pub fn check_distinct(paths: &[PathBuf]) -> Result<(), Failure> {
    let mut seen: Vec<(Storage, &Path)> = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let is_same = |other: &PathBuf| other == path || are_one(other, path);
        if address(path).is_some() && paths[..index].iter().any(is_same) {
            return Err(Failure::usage(format!("{} is given twice: give each member once", path.display())));
        }
        // One that can't be looked at is complained about when it is opened.
        let Ok(storage) = Storage::of(path) else { continue };
        if let Some((known, other)) = seen.iter().find(|(known, _)| known.overlaps(&storage)) {
            let (one, other) = (path.display(), other.display());
            if let (Some(name), false) = (storage.lasting_name(), storage.shares_with(known)) {
                return Err(Failure::usage(format!(
                    "{other} and {one} are one device: they have the same identity ({name}). Give each member once"
                )));
            }
            return Err(Failure::usage(format!("{other} and {one} are one device: give each member once")));
        }
        seen.push((storage, path));
    }
    Ok(())
}

/// Opens a member, and locks what can be locked. Unless it is for reading only, one that can't be written is
/// refused (C34).
pub async fn open(path: PathBuf, options: OpenOptions) -> Result<Member, Failure> {
    if let Some(address) = address(&path) {
        let source = initiator()?.open(&address?).await?;
        if source.is_read_only() && !options.read_only {
            return Err(Failure::new(format!(
                "{} is read-only: its server refuses writes, so leave it out or change that",
                path.display()
            )));
        }
        return Ok(Member::Remote(source));
    }
    blocking(move || {
        let file = open_file(&path, &options)?;
        let disk = Disk::of(&file);
        Ok(Member::Local(file, disk))
    })
    .await
}

/// By what a block device is recognized that went away.
#[derive(Clone, Debug)]
pub struct Disk {
    pub generation: Generation,
    /// See [`Storage::lasting_name`].
    pub lasting_name: Option<String>,
    /// See [`Storage::proof`].
    pub proof: Option<String>,
}

impl Disk {
    /// `None` if it is none, or the kernel doesn't tell.
    fn of(file: &OpenFile) -> Option<Self> {
        let generation = file.generation()?;
        let storage = file.storage().ok()?;
        let lasting_name = storage.lasting_name().map(str::to_owned);
        Some(Self { generation, lasting_name, proof: storage.proof() })
    }
}

/// Block devices that were opened as members since this process began, by name: of each name the last one.
pub fn disks() -> BTreeMap<String, Disk> {
    DISKS.with_borrow(Clone::clone)
}

/// What is remembered of a namespace that became a member.
#[derive(Clone)]
pub struct Known {
    pub identity: NamespaceIdentity,
    pub presence: Presence,
}

/// What was known of a name before another device became, or was to become, a member by it.
struct Before {
    name: String,
    known: Option<Known>,
    disk: Option<Disk>,
}

impl Before {
    fn restore(self) {
        let Self { name, known, disk } = self;
        KNOWN.with_borrow_mut(|all| put(all, &name, known));
        DISKS.with_borrow_mut(|all| put(all, &name, disk));
    }
}

fn put<T>(all: &mut BTreeMap<String, T>, name: &str, value: Option<T>) {
    match value {
        Some(value) => all.insert(name.to_owned(), value),
        None => all.remove(name),
    };
}

/// Namespaces that became members since this process began, by name.
pub fn known() -> BTreeMap<String, Known> {
    KNOWN.with_borrow(Clone::clone)
}

impl Member {
    /// What it says of itself.
    pub fn info(&self) -> &DeviceInfo {
        match self {
            Self::Local(file, _) => file.info(),
            Self::Remote(source) => source.info(),
        }
    }

    /// To attach it shard by shard.
    pub fn source(&self) -> Arc<dyn DeviceSource> {
        match self {
            Self::Local(file, _) => file.source(),
            Self::Remote(source) => Arc::clone(source) as Arc<dyn DeviceSource>,
        }
    }

    /// This shard's handle.
    pub fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        match self {
            Self::Local(file, _) => Ok(file.attach()),
            Self::Remote(source) => source.attach(),
        }
    }

    /// Remembers it as a member, under its name.
    pub fn remember(&self) {
        self.take_name();
    }

    /// Has it become a member. If it doesn't, its name is known as before: that may be a lost member's.
    pub async fn join<T, E>(&self, joining: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let before = self.take_name();
        let joined = joining.await;
        if joined.is_err() {
            before.restore();
        }
        joined
    }

    fn take_name(&self) -> Before {
        let (name, known, disk) = match self {
            Self::Local(file, disk) => (&file.info().name, None, disk.clone()),
            Self::Remote(source) => {
                let known = Known { identity: source.identity(), presence: source.presence() };
                (&source.info().name, Some(known), None)
            }
        };
        let before = Before {
            name: name.clone(),
            known: KNOWN.with_borrow(|all| all.get(name).cloned()),
            disk: DISKS.with_borrow(|all| all.get(name).cloned()),
        };
        Before { name: name.clone(), known, disk }.restore();
        before
    }

    /// What it holds. `path` is for messages.
    pub async fn contents(&self, path: PathBuf) -> Result<Contents, ProbeError> {
        match self {
            Self::Local(file, _) => {
                let file = Arc::clone(file);
                blocking(move || Contents::of(&Probed::again(&file, &path)?)).await
            }
            Self::Remote(source) => {
                let here = shard::with_current(Shard::handle);
                let probed = Probed::remote(path, Arc::clone(source) as _, source.info(), here);
                blocking(move || Contents::of(&probed)).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pinstripe_runtime::uring::{self, RuntimeConfig};

    use super::*;

    #[test]
    fn what_is_looked_at_is_what_is_open_whatever_has_its_path_by_now() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("disk"), folder.path().join("other"));
        let mut bytes = vec![0; 4 << 20];
        fs::write(&other, &bytes).unwrap();
        bytes[..6].copy_from_slice(b"LUKS\xba\xbe");
        fs::write(&path, bytes).unwrap();
        let found = uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
            let member = open(path.clone(), OpenOptions::default()).await.unwrap();
            fs::rename(other, &path).unwrap();
            member.contents(path).await.unwrap().in_words()
        });
        assert_eq!(found.unwrap(), ["a LUKS encrypted volume"]);
    }

    /// A disk that was pulled is known by what stands under its name, whatever is plugged in there meanwhile.
    #[test]
    fn a_device_that_does_not_join_leaves_its_name_to_the_one_that_was_lost() {
        let mut devices = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
        let of = |device: fs::DirEntry| Generation::at(&Path::new("/dev").join(device.file_name()));
        let Some(generation) = devices.find_map(of) else {
            eprintln!("DID NOT RUN: there is no block device");
            return;
        };
        let lost = Disk { generation, lasting_name: Some("serial".to_owned()), proof: None };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        fs::write(&path, vec![0; 1 << 20]).unwrap();
        let known = uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
            let member = open(path, OpenOptions::default()).await.unwrap();
            let known = || disks().into_values().next().and_then(|disk| disk.lasting_name);
            DISKS.with_borrow_mut(|all| all.insert(member.info().name.clone(), lost));
            let refused = member.join(async { Err::<(), _>(known()) }).await.unwrap_err();
            let then = known();
            member.join(async { Ok::<(), ()>(()) }).await.unwrap();
            [refused, then, known()]
        });
        assert_eq!(known.unwrap(), [None, Some("serial".to_owned()), None]);
    }
}
