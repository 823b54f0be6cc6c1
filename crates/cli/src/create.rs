//! `pinstripe create`: a new array on devices.
//!
//! Everything is checked before anything is written: the options against each other, then every device
//! (opened and locked, large enough, holding nothing), then the layout against MD's rules, then the devices'
//! servers are asked. With `--force`, marks of what the devices held are wiped after all that, so that no
//! tool takes a member for what it was.

use std::{
    io::Read,
    path::PathBuf,
    rc::Rc,
    time::{SystemTime, UNIX_EPOCH},
};

use pinstripe_bench::BitmapChoice;
use pinstripe_control::{size::ByteSize, text::printable};
use pinstripe_engine::{
    assembly::create::{create_placed_after, wipe_marks},
    geometry::MEMBERS_MAX,
};
use pinstripe_md::{
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout, Raid0Layout},
    placement::{
        InitialSync, NewArray, NewBitmap, NewDevice, NewLog, PlacedArray, PlacementError,
        journal::add_journal,
    },
    superblock::{MetadataVersion, Role, Superblock},
    units::{SECTOR_BYTES, SectorCount, sector_range},
};
use pinstripe_runtime::{
    Device, DeviceInfo,
    uring::{self, OpenOptions, RuntimeConfig},
};
use serde_json::json;

use crate::{
    command_line::{ConsistencyChoice, CreateArguments, ShapeArguments},
    failure::Failure,
    member::{self, Member},
    output,
    probe::{Contents, MdFinding},
};

const CHUNK_DEFAULT: ByteSize = ByteSize(64 << 10);

pub fn run(arguments: &CreateArguments) -> Result<(), Failure> {
    let paths = in_slot_order(arguments)?;
    let journals = usize::from(arguments.write_journal.is_some());
    let mut shape = Shape::new(arguments.level, &arguments.shape, paths.len().saturating_sub(journals))?;
    if journals > 0 {
        shape.with_journal(&arguments.shape)?;
    }
    member::know(&arguments.remote)?;
    let (force, json) = (arguments.force, arguments.json);
    let config = RuntimeConfig::unpinned(1);
    let made = uring::run(&config, {
        let paths = paths.clone();
        move |_| async move { make(&shape, paths, force).await }
    })??;
    report(&made.0, &made.1, &paths, json)
}

/// The members by slot: level 4 has its parity on the last. Behind them the journal.
fn in_slot_order(arguments: &CreateArguments) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = arguments.devices.clone();
    if let Some(parity) = &arguments.parity {
        if arguments.level != Level::Raid4 {
            return Err(Failure::usage(format!(
                "--parity is for level 4: {} spreads parity over all members",
                arguments.level
            )));
        }
        paths.retain(|path| path != parity);
        paths.push(parity.clone());
    }
    paths.extend(arguments.write_journal.clone());
    member::check_distinct(&paths)?;
    Ok(paths)
}

/// What the array shall be, checked as far as that goes without devices.
#[derive(Clone, Debug)]
pub struct Shape {
    level: Level,
    layout: Layout,
    chunk: ByteSize,
    bitmap: NewBitmap,
    log: NewLog,
    name: Option<SetName>,
    initial: InitialSync,
    size: Option<ByteSize>,
    version: MetadataVersion,
    /// The last device is a journal.
    journal: bool,
}

impl Shape {
    /// Checks the options against each other.
    pub fn new(level: Level, wish: &ShapeArguments, members: usize) -> Result<Self, Failure> {
        let least = usize::try_from(level.members_min()).unwrap_or(usize::MAX);
        if members < least {
            return Err(Failure::usage(format!(
                "{level} needs at least {least} members, and {members} were given"
            )));
        }
        if members > MEMBERS_MAX {
            return Err(Failure::usage(format!("{members} members: at most {MEMBERS_MAX} can be served")));
        }
        if wish.size == Some(ByteSize(0)) {
            return Err(Failure::usage(
                "--size 0 is not possible: without --size, an array uses all of the smallest member",
            ));
        }
        if wish.assume_clean && !level.has_parity() {
            return Err(Failure::usage(format!(
                "--assume-clean is for levels with parity: {level} has none"
            )));
        }
        let internal = NewBitmap::Internal {
            chunk_bytes: match wish.bitmap_chunk {
                None => None,
                Some(chunk) => Some(u32::try_from(chunk.0).map_err(|_| {
                    Failure::usage(format!("a bitmap chunk of {chunk}: at most 2G is possible"))
                })?),
            },
        };
        let log = log(wish)?;
        let bitmap = match wish.bitmap.or(bitmap_of(wish.consistency_policy)) {
            Some(BitmapChoice::Internal) => internal,
            None if level.has_parity() || wish.bitmap_chunk.is_some() => internal,
            Some(BitmapChoice::None) if wish.bitmap_chunk.is_some() => {
                return Err(Failure::usage("--bitmap-chunk contradicts a policy without a bitmap"));
            }
            Some(BitmapChoice::None) | None => NewBitmap::None,
        };
        Ok(Self {
            level,
            layout: layout(level, wish.layout.as_deref())?,
            chunk: wish.chunk.unwrap_or(CHUNK_DEFAULT),
            bitmap,
            log,
            name: wish.name,
            initial: if wish.assume_clean { InitialSync::AssumeClean } else { InitialSync::Resync },
            size: wish.size,
            version: wish.metadata.unwrap_or(MetadataVersion::V1_2),
            journal: false,
        })
    }

    /// A journal takes the bitmap's place.
    fn with_journal(&mut self, wish: &ShapeArguments) -> Result<(), Failure> {
        if !self.level.has_parity() {
            return Err(Failure::usage(format!(
                "--write-journal is for levels 4, 5 and 6, not {}",
                self.level
            )));
        }
        if wish.bitmap == Some(BitmapChoice::Internal) || wish.bitmap_chunk.is_some() {
            return Err(Failure::usage("an array has a journal or a bitmap, not both"));
        }
        self.bitmap = NewBitmap::None;
        self.journal = true;
        Ok(())
    }

    /// The log that its members carry.
    pub fn log(&self) -> NewLog {
        self.log
    }

    /// The array on these devices, in the order of their slots, with new identities.
    pub fn on(&self, devices: &[DeviceInfo]) -> Result<NewArray, Failure> {
        let set_uuid = random_uuid()?;
        let members = devices
            .iter()
            .map(|info| Ok(NewDevice { sectors: info.size / SECTOR_BYTES, uuid: random_uuid()? }));
        let name = match self.name {
            Some(name) => name,
            None => set_uuid.to_string()[..8].parse()?,
        };
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let block = devices.iter().map(|info| info.logical_block).max().unwrap_or(512);
        Ok(NewArray {
            set_uuid,
            name,
            // Microseconds have no room in what mdadm hands back to a kernel, which then takes it for
            // another array's: no member could be added to the geometry, no size or bitmap changed.
            created: Timestamp::new(created.as_secs(), 0),
            level: self.level,
            layout: self.layout,
            chunk: SectorCount::from_bytes_floor(self.chunk.0),
            version: self.version,
            bitmap: self.bitmap,
            initial: self.initial,
            size: self.size.map(|size| SectorCount::from_bytes_floor(size.0)),
            data_offset: None,
            logical_block_bytes: block.into(),
            members: members.collect::<Result<_, Failure>>()?,
            spares: Vec::new(),
        })
    }
}

/// The log that the policy asks for. The policy and --bitmap may both be given if they agree.
fn log(wish: &ShapeArguments) -> Result<NewLog, Failure> {
    let disagree = match (wish.consistency_policy, wish.bitmap) {
        (Some(policy), Some(bitmap)) => bitmap_of(Some(policy)) != Some(bitmap),
        _ => false,
    };
    if disagree {
        return Err(Failure::usage("--bitmap contradicts --consistency-policy: give one of them"));
    }
    Ok(match wish.consistency_policy {
        Some(ConsistencyChoice::Ppl) => NewLog::Ppl,
        Some(ConsistencyChoice::DoubleParityLog) => NewLog::DoubleParity,
        Some(ConsistencyChoice::Resync | ConsistencyChoice::Bitmap) | None => NewLog::None,
    })
}

/// What a policy says of the bitmap.
fn bitmap_of(policy: Option<ConsistencyChoice>) -> Option<BitmapChoice> {
    policy.map(|policy| match policy {
        ConsistencyChoice::Bitmap => BitmapChoice::Internal,
        ConsistencyChoice::Resync | ConsistencyChoice::Ppl | ConsistencyChoice::DoubleParityLog => {
            BitmapChoice::None
        }
    })
}

fn layout(level: Level, name: Option<&str>) -> Result<Layout, Failure> {
    match (level, name) {
        (Level::Raid5 | Level::Raid6, name) => ParityLayout::from_name(level, name.unwrap_or("default"))
            .map(Layout::Parity)
            .map_err(|error| Failure::usage(error.to_string())),
        (Level::Raid0, None) => Ok(Layout::Raid0(Raid0Layout::Unspecified)),
        (Level::Raid0, Some("original")) => Ok(Layout::Raid0(Raid0Layout::Original)),
        (Level::Raid0, Some("alternate")) => Ok(Layout::Raid0(Raid0Layout::Alternate)),
        (Level::Raid0, Some(other)) => {
            Err(Failure::usage(format!("raid0 has no layout '{other}'; it has: original, alternate")))
        }
        (_, None) => Ok(Layout::None),
        (level, Some(_)) => {
            Err(Failure::usage(format!("{level} has no layouts: parity is on the last member, see --parity")))
        }
    }
}

/// A new identity.
pub fn random_uuid() -> Result<Uuid, Failure> {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Failure::new(format!("can't read /dev/urandom: {error}")))?;
    Ok(Uuid(bytes))
}

/// Opens, checks, and only then writes.
async fn make(shape: &Shape, paths: Vec<PathBuf>, force: bool) -> Result<(NewArray, PlacedArray), Failure> {
    let (files, contents) = open_and_probe(&paths).await?;
    if !force {
        refuse_occupied(&files, &contents)?;
    }
    let infos: Vec<DeviceInfo> = files.iter().map(|file| file.info().clone()).collect();
    let (members, journal) = infos.split_at(infos.len() - usize::from(shape.journal));
    let wish = shape.on(members)?;
    let mut placed = wish.place_with(shape.log).map_err(|error| named(&error, &infos))?;
    for info in journal {
        let device = NewDevice { sectors: info.size / SECTOR_BYTES, uuid: random_uuid()? };
        let block = infos.iter().map(|info| u64::from(info.logical_block)).max().unwrap_or(SECTOR_BYTES);
        add_journal(&mut placed, device, block).map_err(|error| named(&error, &infos))?;
    }
    let devices: Vec<Rc<dyn Device>> = files.iter().map(Member::attach).collect::<Result<_, _>>()?;
    let superblocks = placed.superblocks.clone();
    let wiping = async {
        for ((device, contents), superblock) in devices.iter().zip(&contents).zip(&superblocks) {
            wipe(&**device, contents, superblock).await?;
        }
        Ok::<(), Failure>(())
    };
    let placed = create_placed_after(placed, &devices, wiping).await?;
    Ok((wish, placed))
}

type Opened = (Vec<Member>, Vec<Contents>);

async fn open_and_probe(paths: &[PathBuf]) -> Result<Opened, Failure> {
    let (mut members, mut contents) = (Vec::new(), Vec::new());
    for path in paths {
        members.push(member::open(path.clone(), OpenOptions::default()).await?);
    }
    for (path, member) in paths.iter().zip(&members) {
        contents.push(member.contents(path.clone()).await?);
    }
    Ok((members, contents))
}

fn refuse_occupied(files: &[Member], contents: &[Contents]) -> Result<(), Failure> {
    let occupied = files.iter().zip(contents).filter_map(|(file, contents)| {
        let words = contents.in_words();
        (!words.is_empty()).then(|| format!("{} holds {}", file.info().name, words.join(" and ")))
    });
    let occupied: Vec<String> = occupied.collect();
    if occupied.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("{}; nothing was changed: use --force to overwrite that", occupied.join("; "))))
}

/// The sentence of a placement error, with the device's name where it counts devices.
fn named(error: &PlacementError, infos: &[DeviceInfo]) -> Failure {
    match error {
        PlacementError::DeviceTooSmall { index, sectors, needed } if *index < infos.len() => {
            let bytes = |sectors: u64| ByteSize(sectors.saturating_mul(SECTOR_BYTES));
            Failure::new(format!(
                "{} is too small: it has {}, and at least {} are needed",
                infos[*index].name,
                bytes(*sectors),
                bytes(*needed)
            ))
        }
        other => Failure::new(other.to_string()),
    }
}

/// Wipes what shows what a device was (see [`wipe_marks`]).
///
/// Old MD superblocks go wherever they are, as with mdadm: one in front of the new one would be taken for it,
/// and an `mdadm.conf` that still names an array of version 0.90 would have that started.
/// Other marks stay where the new array has its data, for they may be part of it: an array that is made anew
/// over itself keeps all of its content.
async fn wipe(device: &dyn Device, contents: &Contents, superblock: &Superblock) -> Result<(), Failure> {
    let (array, member) = (&superblock.array, &superblock.member);
    let length = match superblock.own_role() {
        Role::Slot(_) if array.level.has_parity() => array.component_sectors(),
        Role::Slot(_) => member.data_size,
        _ => SectorCount(0),
    };
    let data = sector_range(member.data_offset, length);
    let failed = |error| Failure::new(format!("{}: {error}", device.info().name));
    let superblocks = contents.metadata.iter().map(MdFinding::mark).chain(contents.old_md());
    wipe_marks(device, superblocks, 0..0).await.map_err(failed)?;
    wipe_marks(device, contents.marks(), data.start * SECTOR_BYTES..data.end * SECTOR_BYTES)
        .await
        .map_err(failed)
}

/// Bytes that users of the array see.
pub fn array_bytes(wish: &NewArray, placed: &PlacedArray) -> u64 {
    let members = placed.superblocks.iter();
    let chunk = wish.chunk;
    let sectors: u64 = if wish.level.has_parity() {
        let data = wish.members.len().saturating_sub(usize::from(wish.level.parity_count()));
        members.take(data).map(|superblock| superblock.array.component_sectors().0).sum()
    } else {
        members.map(|superblock| superblock.member.data_size.round_down(chunk).0).sum()
    };
    sectors.saturating_mul(SECTOR_BYTES)
}

/// What keeps the new array consistent over a crash.
fn policy(wish: &NewArray, placed: &PlacedArray) -> &'static str {
    let member = placed.superblocks.first().map(|superblock| &superblock.member);
    match member {
        _ if !wish.level.has_parity() => "",
        _ if placed.superblocks.first().is_some_and(|superblock| superblock.array.journal) => "journal",
        Some(member) if member.ppl.is_some() => "ppl",
        Some(member) if member.double_parity_log.is_some() => "double-parity-log",
        _ if placed.bitmap.is_some() => "bitmap",
        _ => "resync",
    }
}

fn report(wish: &NewArray, placed: &PlacedArray, paths: &[PathBuf], json: bool) -> Result<(), Failure> {
    let size = array_bytes(wish, placed);
    if json {
        let members = paths.iter().zip(&wish.members).enumerate().map(|(slot, (path, member))| {
            json!({ "slot": slot, "device": path.display().to_string(), "uuid": member.uuid.to_string() })
        });
        return output::print_json(&json!({
            "name": wish.name.to_string(),
            "uuid": wish.set_uuid.to_string(),
            "level": wish.level.name(),
            "layout": wish.layout.to_string(),
            "chunk_bytes": wish.chunk.checked_bytes(),
            "size_bytes": size,
            "metadata": wish.version.name(),
            "bitmap": placed.bitmap.is_some(),
            "journal": paths.get(wish.members.len()).map(|path| path.display().to_string()),
            "consistency_policy": policy(wish, placed),
            "clean": placed.superblocks.first().is_some_and(|superblock| !superblock.array.is_dirty()),
            "members": members.collect::<Vec<_>>(),
        }));
    }
    let layout = match wish.layout {
        Layout::Parity(layout) => format!(", {layout}"),
        _ => String::new(),
    };
    let journal = paths.get(wish.members.len()).map(|path| printable(&path.display().to_string()));
    let bitmap = match (policy(wish, placed), journal) {
        (_, Some(journal)) => format!("with a journal on {journal}"),
        ("bitmap", _) => "with a bitmap".to_owned(),
        ("" | "resync", _) => "without a bitmap".to_owned(),
        (log, _) => format!("consistency policy {log}"),
    };
    let resync = match placed.superblocks.first() {
        Some(superblock) if superblock.array.is_dirty() => "; parity is computed when it is served first",
        _ => "",
    };
    output::print(&format!(
        "made the {} array {} of {} members: {} in chunks of {}{layout}, {bitmap}{resync}\nuuid {}\n",
        wish.level,
        printable(&wish.name.to_string()),
        wish.members.len(),
        ByteSize(size),
        ByteSize(wish.chunk.checked_bytes().unwrap_or(0)),
        wish.set_uuid
    ))
}
