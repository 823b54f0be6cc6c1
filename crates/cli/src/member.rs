//! A member's storage, wherever it is: a file or block device of this machine, or an NVMe namespace of a server.

use std::{
    cell::RefCell,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use pinstripe_nvme::{
    initiator::{Address, Initiator, NvmeSource, Options, TcpConnector},
    target::uuid_of,
};
use pinstripe_runtime::{
    Device, DeviceError, DeviceInfo, DeviceSource, Shard,
    shard::{self},
    uring::{OpenFile, OpenOptions, blocking},
};

use crate::{
    failure::Failure,
    open::open as open_file,
    probe::{Contents, ProbeError, Probed},
};

/// Where Linux keeps the names by which targets know this machine.
const HOST_NQN: &str = "/etc/nvme/hostnqn";
const HOST_ID: &str = "/etc/nvme/hostid";
const MACHINE_ID: &str = "/etc/machine-id";

thread_local! {
    /// The process's associations; on shard 0, where members are opened.
    static INITIATOR: RefCell<Option<Arc<Initiator>>> = const { RefCell::new(None) };
}

/// See the module.
#[derive(Clone)]
pub enum Member {
    /// Locked while it is open.
    Local(Arc<OpenFile>),
    /// Not locked: nobody else must use it.
    Remote(Arc<NvmeSource>),
}

/// Says, before members are opened, how many shards will attach them. Servers are asked for so many queues.
pub fn prepare(shards: usize) -> Result<(), Failure> {
    let queues = u16::try_from(shards)?;
    let options = host_options(queues);
    let initiator = Initiator::new(options, Arc::new(TcpConnector));
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

/// This host's names: those that Linux's own initiator uses, else made from the machine's identity.
fn host_options(queues: u16) -> Options {
    let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let machine = read(MACHINE_ID).unwrap_or_default();
    let derived = uuid_of(&[b"pinstripe host", machine.as_bytes()]);
    let host_id = read(HOST_ID).and_then(|text| {
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16).ok().filter(|id| *id != 0 && digits.len() == 32)
    });
    let host_id = host_id.map_or(derived, u128::to_be_bytes);
    let digits: String = host_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let nqn = read(HOST_NQN).filter(|nqn| pinstripe_nvme::wire::nqn_is_valid(nqn)).unwrap_or_else(|| {
        format!(
            "nqn.2014-08.org.nvmexpress:uuid:{}-{}-{}-{}-{}",
            &digits[..8],
            &digits[8..12],
            &digits[12..16],
            &digits[16..20],
            &digits[20..]
        )
    });
    Options::new(nqn, host_id, queues)
}

/// The address, if the path is one.
pub fn address(path: &Path) -> Option<Result<Address, Failure>> {
    let text = path.to_str().filter(|text| Address::is_address(text))?;
    Some(
        text.parse()
            .map_err(|error: pinstripe_nvme::initiator::BadAddress| Failure::usage(error.to_string())),
    )
}

/// Opens a member, and locks what can be locked.
pub async fn open(path: PathBuf, options: OpenOptions) -> Result<Member, Failure> {
    match address(&path) {
        Some(address) => Ok(Member::Remote(initiator()?.open(&address?).await?)),
        None => Ok(Member::Local(blocking(move || open_file(&path, &options)).await?)),
    }
}

impl Member {
    /// What it says of itself.
    pub fn info(&self) -> &DeviceInfo {
        match self {
            Self::Local(file) => file.info(),
            Self::Remote(source) => source.info(),
        }
    }

    /// For those who attach it shard by shard.
    pub fn source(&self) -> Arc<dyn DeviceSource> {
        match self {
            Self::Local(file) => file.source(),
            Self::Remote(source) => Arc::clone(source) as Arc<dyn DeviceSource>,
        }
    }

    /// This shard's handle.
    pub fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        match self {
            Self::Local(file) => Ok(file.attach()),
            Self::Remote(source) => source.attach(),
        }
    }

    /// What it holds.
    pub async fn contents(&self, path: PathBuf) -> Result<Contents, ProbeError> {
        match self {
            Self::Local(_) => blocking(move || Contents::of(&Probed::open(&path)?)).await,
            Self::Remote(source) => {
                let here = shard::with_current(Shard::handle);
                let probed = Probed::remote(path, Arc::clone(source) as _, source.info(), here);
                blocking(move || Contents::of(&probed)).await
            }
        }
    }
}
