//! The array of a run: opened, made, assembled, and ready when it returns.

use std::{
    path::PathBuf,
    rc::Rc,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use pinstripe_engine::{
    array::Array,
    assembly::create::{CreateError, create_placed},
    geometry::ParityGeometry,
    options::ArrayOptions,
};
use pinstripe_md::{
    identity::{SetName, Timestamp},
    level::{Layout, Level, ParityLayout, Raid0Layout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice},
    superblock::MetadataVersion,
    units::{SECTOR_BYTES, SectorCount},
};
use pinstripe_nvme::{
    auth::{Authentication, Keyring, TlsKeyring},
    initiator::{Address, Initiator, Options, connector},
};
use pinstripe_runtime::{
    Device, DeviceError, DeviceSource, Memory, MemorySource, shard,
    uring::{Context, OpenFile, OpenOptions, blocking},
};
use pinstripe_sim::{Drive, Rng};

use crate::{
    arguments::{BenchArgs, BitmapChoice, DeviceSpec},
    fits::{self, Fits},
    loss::{self, random_uuid},
    paced::PacedSource,
    run::BenchError,
    virtual_time::PHASE_NS_MAX,
};

/// Logical block of memory members.
const MEMORY_BLOCK: u32 = 512;
/// A memory is touched once in so many bytes, so that no page is missing later.
const PAGE: u64 = 4096;
/// How often to look whether the first resync is done.
const LOOK_NS: u64 = 20_000_000;

/// An array to be measured.
pub(crate) struct Setup {
    pub(crate) array: Array,
    /// The members' memory by slot; empty where they are files or block devices.
    pub(crate) memories: Vec<Arc<Memory>>,
    /// The members' storage by slot.
    pub(crate) sources: Vec<Arc<dyn DeviceSource>>,
    /// Whether it held nothing but zeroes. Devices may have held anything, whatever --assume-clean says of
    /// them.
    pub(crate) zeroed: bool,
}

impl Setup {
    /// The members' names by slot.
    pub(crate) fn names(&self) -> Vec<String> {
        self.sources.iter().map(|source| source.name()).collect()
    }

    /// Bytes that one member of a level with parity holds of the array.
    pub(crate) fn member_bytes(&self) -> u64 {
        self.array.shared().geometry.parity().map_or(0, ParityGeometry::member_bytes)
    }
}

/// Makes the array that `arguments` describe and waits until its parity is in sync.
pub(crate) async fn set_up(
    arguments: &BenchArgs,
    context: &Context,
    fits: Fits,
) -> Result<Setup, BenchError> {
    let devices = Devices::of(arguments)?;
    let wants_memory = matches!(devices, Devices::Memory { .. });
    let (remote, devices) = devices.split_remote()?;
    let poll = arguments.poll;
    let (mut sources, memories) = blocking(move || devices.open(poll)).await?;
    if !remote.is_empty() {
        let queues = u16::try_from(context.shards().len()).unwrap_or(u16::MAX);
        let keys = arguments.dhchap_secrets.as_deref().map(Keyring::read).transpose()?;
        let authentication = keys.map(|keys| Arc::new(Authentication::new(keys)));
        let options = Options { authentication, ..Options::of_this_host(queues) };
        let keys = arguments.nvme_tls_secrets.as_deref().map(TlsKeyring::read).transpose()?;
        let connector = connector(arguments.client_address.clone(), keys.map(Arc::new), &options.host_nqn);
        let initiator = Initiator::new(options, connector);
        for (slot, address) in remote {
            sources.insert(slot, initiator.open(&address).await?);
        }
    }
    let mut rng = Rng::new(arguments.seed);
    for (source, device) in sources.iter_mut().zip(&arguments.devices) {
        if let DeviceSpec::Paced { model, .. } = device {
            let fresh = Drive::new(*model, rng.below(PHASE_NS_MAX));
            let drive = if arguments.used_up { fresh.used_up() } else { fresh };
            *source = Arc::new(PacedSource::new(Arc::clone(source), drive));
        }
    }
    set_up_on(arguments, context, fits, sources, memories, wants_memory).await
}

/// Makes the array on these members, and waits until its parity is in sync. With `zeroed` they are known to
/// hold nothing but zeroes.
pub(crate) async fn set_up_on(
    arguments: &BenchArgs,
    context: &Context,
    fits: Fits,
    sources: Vec<Arc<dyn DeviceSource>>,
    memories: Vec<Arc<Memory>>,
    zeroed: bool,
) -> Result<Setup, BenchError> {
    let attached: Result<Vec<Rc<dyn Device>>, DeviceError> = sources.iter().map(|s| s.attach()).collect();
    let attached = attached.map_err(BenchError::Attach)?;
    // The parity of zeroes is zero.
    let initial =
        if zeroed || arguments.assume_clean { InitialSync::AssumeClean } else { InitialSync::Resync };
    let placed = wish(arguments, &attached, initial)?.place().map_err(CreateError::from)?;
    let geometry = fits::geometry(&placed, &attached)?;
    fits(arguments, &geometry)?;
    create_placed(placed, &attached).await?;
    drop(attached);
    let mut options = ArrayOptions {
        policy: arguments.policy.into(),
        offload: arguments.offload.into(),
        reducer: arguments.reducer.into(),
        parity_cache_bytes: usize::try_from(arguments.cache).unwrap_or(usize::MAX),
        ..ArrayOptions::default()
    };
    if let Some(ablate) = &arguments.ablate {
        ablate.change(&mut options, arguments.is_virtual());
    }
    let array = Array::assemble(sources.clone(), options, context.shards().to_vec()).await?;
    assert!(array.shared().geometry == geometry, "another array was looked at than was made");
    loop {
        let detail = array.detail();
        if detail.regions_to_resync == 0 {
            break;
        }
        loss::goes_on(&detail, &[])?;
        shard::sleep(LOOK_NS).await;
    }
    Ok(Setup { array, memories, sources, zeroed })
}

/// What to open.
enum Devices {
    Memory { members: usize, bytes: u64 },
    Paths(Vec<PathBuf>),
}

type Opened = (Vec<Arc<dyn DeviceSource>>, Vec<Arc<Memory>>);

impl Devices {
    fn of(arguments: &BenchArgs) -> Result<Self, BenchError> {
        if let [DeviceSpec::Memory(bytes)] = arguments.devices[..] {
            return Ok(Self::Memory { members: arguments.memory_members(), bytes });
        }
        let paths: Option<Vec<PathBuf>> = arguments
            .devices
            .iter()
            .map(|device| match device {
                DeviceSpec::Path(path) | DeviceSpec::Paced { path, .. } => Some(path.clone()),
                DeviceSpec::Memory(_) | DeviceSpec::Model { .. } => None,
            })
            .collect();
        let paths = paths.ok_or(BenchError::MixedDevices)?;
        if let Some(members) = arguments.members.filter(|&members| members != paths.len()) {
            return Err(BenchError::MemberCount { members, devices: paths.len() });
        }
        if !arguments.force {
            return Err(BenchError::Force);
        }
        Ok(Self::Paths(paths))
    }

    /// The namespaces of servers among them, by their slots, and the rest.
    fn split_remote(self) -> Result<(Vec<(usize, Address)>, Self), BenchError> {
        let Self::Paths(paths) = self else { return Ok((Vec::new(), self)) };
        let (mut remote, mut local) = (Vec::new(), Vec::new());
        for (slot, path) in paths.into_iter().enumerate() {
            match path.to_str().filter(|text| Address::is_address(text)) {
                Some(text) => remote.push((slot, text.parse()?)),
                None => local.push(path),
            }
        }
        Ok((remote, Self::Paths(local)))
    }

    fn open(self, poll: bool) -> Result<Opened, BenchError> {
        match self {
            Self::Memory { members, bytes } => memory_members(members, bytes),
            Self::Paths(paths) => {
                let open = |path| {
                    let options = OpenOptions { poll, ..OpenOptions::default() };
                    let file = OpenFile::open(path, &options)?;
                    Ok(file.source())
                };
                Ok((paths.into_iter().map(open).collect::<Result<_, BenchError>>()?, Vec::new()))
            }
        }
    }
}

fn memory_members(members: usize, bytes: u64) -> Result<Opened, BenchError> {
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let (mut sources, mut memories): Opened = (Vec::new(), Vec::new());
    for slot in 0..members {
        let memory = Memory::populated(size).map_err(BenchError::Attach)?;
        for at in (0..bytes).step_by(usize::try_from(PAGE).unwrap_or(usize::MAX)) {
            memory.copy_in(at, &[0]).map_err(BenchError::Attach)?;
        }
        memories.push(Arc::clone(&memory));
        sources.push(Arc::new(MemorySource {
            name: format!("mem{slot}"),
            memory,
            logical_block: MEMORY_BLOCK,
        }));
    }
    Ok((sources, memories))
}

fn wish(
    arguments: &BenchArgs,
    devices: &[Rc<dyn Device>],
    initial: InitialSync,
) -> Result<NewArray, BenchError> {
    let level = arguments.level;
    let layout = match level {
        Level::Raid5 | Level::Raid6 => {
            let name = arguments.layout.as_deref().unwrap_or("default");
            Layout::Parity(ParityLayout::from_name(level, name)?)
        }
        Level::Raid0 => Layout::Raid0(Raid0Layout::Unspecified),
        Level::Raid4 => Layout::None,
        _ => return Err(BenchError::Level(level)),
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let member = |device: &Rc<dyn Device>| {
        Ok(NewDevice { sectors: device.info().size / SECTOR_BYTES, uuid: random_uuid()? })
    };
    let bitmap = match arguments.bitmap {
        BitmapChoice::Internal if level.has_parity() => NewBitmap::Internal { chunk_bytes: None },
        BitmapChoice::Internal | BitmapChoice::None => NewBitmap::None,
    };
    let mut name = [0; 32];
    name[..5].copy_from_slice(b"bench");
    Ok(NewArray {
        set_uuid: random_uuid()?,
        name: SetName::from_bytes(name),
        created: Timestamp::new(since.as_secs(), 0),
        level,
        layout,
        chunk: SectorCount::from_bytes_floor(arguments.chunk),
        version: MetadataVersion::V1_2,
        bitmap,
        initial: if level.has_parity() { initial } else { InitialSync::Resync },
        size: None,
        data_offset: None,
        logical_block_bytes: devices.iter().map(|d| d.info().logical_block).max().unwrap_or(512).into(),
        members: devices.iter().map(member).collect::<Result<_, BenchError>>()?,
        spares: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use pinstripe_sim::{Fault, SimDisk, SimDiskConfig, Trigger, World, WorldConfig};

    use super::*;

    /// Events of the world in which anything here is over.
    const STEPS: u64 = 200_000;

    /// Has `work` done over four disks, the second of which is broken by `break_disk`.
    fn on_disks<T: 'static, F: Future<Output = Result<T, BenchError>> + 'static>(
        break_disk: impl FnOnce(&SimDisk),
        work: impl FnOnce(BenchArgs, Context, Vec<Arc<dyn DeviceSource>>) -> F,
    ) -> Result<T, BenchError> {
        let mut world = World::new(WorldConfig::new(1, 1));
        let disk = |slot| SimDiskConfig::new(&format!("disk{slot}"), 16 << 20);
        let disks: Vec<SimDisk> = (0..4).map(|slot| world.add_disk(disk(slot))).collect();
        break_disk(&disks[1]);
        let sources = disks.iter().map(SimDisk::source).collect();
        let context = Context::of([world.shard(0).handle()]);
        let run = work(BenchArgs::defaults(), context, sources);
        world.block_on(0, "bench", STEPS, run).expect("it waits for ever")
    }

    #[test]
    fn an_array_of_which_a_member_fails_is_not_waited_for() {
        // Whole chunks, so that some of them are data and not parity.
        for fault in [Fault::Gone, Fault::UnreadableRange(8 << 20..9 << 20)] {
            let made = on_disks(
                |disk| disk.plan(Trigger::AtRequest(50), fault.clone()),
                |arguments, context, sources| async move {
                    set_up_on(&arguments, &context, fits::load, sources, Vec::new(), false).await.map(drop)
                },
            );
            let error = made.unwrap_err();
            assert!(matches!(error, BenchError::NotInSync(_)), "{fault:?}: {error}");
            assert!(error.to_string().contains("disk1"), "{fault:?}: {error}");
        }
    }

    #[test]
    fn a_rebuild_is_not_waited_for_when_another_member_fails() {
        let rebuilt = on_disks(
            |disk| disk.plan(Trigger::AtRequest(150), Fault::Gone),
            |arguments, context, sources| async move {
                let setup = set_up_on(&arguments, &context, fits::load, sources, Vec::new(), true).await?;
                loss::lose(&setup.array, &[2]).await?;
                loss::erase(&setup.sources[2]).await?;
                loss::rebuild(&setup, 2, &[2]).await.map(drop)
            },
        );
        let error = rebuilt.unwrap_err();
        assert!(matches!(error, BenchError::NotInSync(_)) && error.to_string().contains("disk1"), "{error}");
    }
}
