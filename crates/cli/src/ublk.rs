//! The kernel's ublk driver, as `serve --ublk` and `pinstripe ublk` use it: devices that are there, and
//! commands for them.
//!
//! The driver's commands block, so a server gives them off the shards.

mod named;

use std::{
    fs, io,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use pinstripe_control::size::ByteSize;
use pinstripe_export::ublk::wire::{DeviceInfo, PARAMETER_BYTES, Parameters, feature, state};
use pinstripe_runtime::uring::ublk::{CONTROL_PATH, Command, Control};
use serde_json::json;
use thiserror::Error;
use zerocopy::IntoBytes;

use crate::{block_users, command_line::UblkDeleteArguments, failure::Failure, output};

pub use named::{Named, export, left_by, wait_for_udev};

/// What uses a device, each in words. A device that isn't there has no users.
pub fn users(number: u32) -> Vec<String> {
    let name = format!("ublkb{number}");
    match block_users::users(&name) {
        Ok(users) => users.into_iter().map(|found| found.what).collect(),
        Err(_) if !Path::new("/sys/class/block").join(name).exists() => Vec::new(),
        Err(error) => vec![format!("in a use that can't be seen: {error}")],
    }
}

/// Where the kernel shows the devices.
const CLASS: &str = "/sys/class/ublk-char";
/// Has the driver choose a number.
const ANY: u32 = u32::MAX;
/// How long programs may take to close a device that is taken away. udev looks at one for a moment.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// Why the driver can't do something.
#[derive(Debug, Error)]
pub enum UblkError {
    #[error(
        "there is no {CONTROL_PATH}: load the kernel's ublk driver with `modprobe ublk_drv` (Linux 6.5 or newer, \
         CONFIG_BLK_DEV_UBLK)"
    )]
    NoDriver,
    #[error("{CONTROL_PATH} can't be opened: {0}; ublk devices are for root (CAP_SYS_ADMIN)")]
    Forbidden(io::Error),
    #[error("{CONTROL_PATH} can't be used: {0}")]
    Unusable(io::Error),
    #[error(
        "the kernel's ublk driver can't hand data over by user copy: Linux 6.5 or newer is needed; without it, use \
         --nbd and nbd-client"
    )]
    TooOld,
    #[error("/dev/ublkb{0} is gone, but something has it open still: its number is free when that is closed")]
    StillOpen(u32),
    #[error("/dev/ublkb{device}: {what}: {source}")]
    Refused { device: u32, what: &'static str, source: io::Error },
}

/// The driver, for commands.
pub struct Driver(Control);

impl Driver {
    pub fn open() -> Result<Self, UblkError> {
        match Control::open() {
            Ok(control) => Ok(Self(control)),
            Err(error) => Err(match error.kind() {
                ErrorKind::NotFound => UblkError::NoDriver,
                ErrorKind::PermissionDenied => UblkError::Forbidden(error),
                _ if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
                    UblkError::NoDriver
                }
                _ => UblkError::Unusable(error),
            }),
        }
    }

    fn command(
        &mut self,
        command: Command,
        device: u32,
        data: u64,
        buffer: &mut [u8],
        what: &'static str,
    ) -> Result<(), UblkError> {
        let done = self.0.command(command, device, data, buffer);
        done.map_err(|source| UblkError::Refused { device, what, source })
    }

    /// What the driver can do.
    pub fn features(&mut self) -> Result<u64, UblkError> {
        let mut features = 0_u64;
        // Drivers before Linux 6.5 don't know the command.
        let asked = self.0.command(Command::GetFeatures, ANY, 0, features.as_mut_bytes());
        if asked.is_err() || features & feature::USER_COPY == 0 {
            return Err(UblkError::TooOld);
        }
        Ok(features)
    }

    /// What a device is; nothing if there is none of this number.
    pub fn info(&mut self, device: u32) -> Result<Option<DeviceInfo>, UblkError> {
        let mut info = DeviceInfo::default();
        match self.0.command(Command::GetInfo, device, 0, info.as_mut_bytes()) {
            Ok(()) => Ok(Some(info)),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(None),
            Err(source) => Err(UblkError::Refused { device, what: "can't be looked at", source }),
        }
    }

    /// All devices that the driver shows us, in the order of their numbers.
    pub fn all(&mut self) -> Result<Vec<DeviceInfo>, UblkError> {
        without_hidden(devices(), |number| self.info(number))
    }

    /// Makes a device. What has come of it; its number is chosen if none is given.
    pub fn add(&mut self, number: Option<u32>, mut wanted: DeviceInfo) -> Result<DeviceInfo, UblkError> {
        let number = number.unwrap_or(ANY);
        wanted.device = number;
        self.command(Command::Add, number, 0, wanted.as_mut_bytes(), "can't be made")?;
        Ok(wanted)
    }

    pub fn set_parameters(&mut self, device: u32, mut parameters: Parameters) -> Result<(), UblkError> {
        let bytes = &mut parameters.as_mut_bytes()[..PARAMETER_BYTES as usize];
        self.command(Command::SetParameters, device, 0, bytes, "the kernel refuses its parameters")
    }

    pub fn parameters(&mut self, device: u32) -> Result<Parameters, UblkError> {
        let mut parameters = Parameters { length: PARAMETER_BYTES, ..Parameters::default() };
        let bytes = &mut parameters.as_mut_bytes()[..PARAMETER_BYTES as usize];
        self.command(Command::GetParameters, device, 0, bytes, "has no parameters")?;
        Ok(parameters)
    }

    /// Makes the block device, which this process serves.
    pub fn start(&mut self, device: u32) -> Result<(), UblkError> {
        self.command(Command::Start, device, std::process::id().into(), &mut [], "can't be started")
    }

    /// Takes the block device away. What is under way is answered first; what comes then fails.
    pub fn stop(&mut self, device: u32) -> Result<(), UblkError> {
        self.command(Command::Stop, device, 0, &mut [], "can't be stopped")
    }

    /// Takes the device away, and waits a moment until nothing has it open. What has it open longer keeps its
    /// number, and the driver would wait for that without an end: the command goes on alone then, and an end
    /// of this process ends it. The device goes all the same.
    pub fn delete(device: u32) -> Result<(), UblkError> {
        let delete = move || Self::open()?.command(Command::Delete, device, 0, &mut [], "can't be deleted");
        in_time(CLOSE_LIMIT, delete)
            .map_err(UblkError::Unusable)?
            .unwrap_or(Err(UblkError::StillOpen(device)))
    }

    pub fn start_recovery(&mut self, device: u32) -> Result<(), UblkError> {
        self.command(Command::StartRecovery, device, 0, &mut [], "can't be taken over")
    }

    pub fn end_recovery(&mut self, device: u32) -> Result<(), UblkError> {
        let server = std::process::id().into();
        self.command(Command::EndRecovery, device, server, &mut [], "can't be taken over")
    }
}

/// What `work` gives on a thread of its own, if it gives that in time.
fn in_time<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Option<T>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("ublk".to_owned()).spawn(move || sender.send(work()))?;
    Ok(receiver.recv_timeout(limit).ok())
}

impl UblkError {
    /// Whether the same command may succeed a little later.
    pub fn is_busy(&self) -> bool {
        let busy = rustix::io::Errno::BUSY.raw_os_error();
        matches!(self, Self::Refused { source, .. } if source.raw_os_error() == Some(busy))
    }

    /// Whether the driver shows the device to other programs only. Of one that an unprivileged program has
    /// made (`UBLK_F_UNPRIVILEGED_DEV`) it tells nothing to those that don't name its path, root included.
    fn is_hidden(&self) -> bool {
        use rustix::io::Errno;
        let hides =
            |errno| [Errno::INVAL, Errno::PERM, Errno::ACCESS].map(Errno::raw_os_error).contains(&errno);
        matches!(self, Self::Refused { source, .. } if source.raw_os_error().is_some_and(hides))
    }
}

/// Those of the devices that a look shows. One may go between two looks, and one that is hidden is never
/// ours.
fn without_hidden(
    numbers: Vec<u32>,
    mut look: impl FnMut(u32) -> Result<Option<DeviceInfo>, UblkError>,
) -> Result<Vec<DeviceInfo>, UblkError> {
    let seen = numbers.into_iter().filter_map(|number| match look(number) {
        Err(error) if error.is_hidden() => None,
        looked => looked.transpose(),
    });
    seen.collect()
}

/// The numbers of all devices, in order.
fn devices() -> Vec<u32> {
    let entries = fs::read_dir(CLASS).into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok();
    let mut numbers: Vec<u32> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// The block device of this number.
pub fn block_path(device: u32) -> PathBuf {
    format!("/dev/ublkb{device}").into()
}

/// What is said of a device that its server has left.
pub fn left_waiting(device: u32) -> String {
    format!(
        "requests to {} still wait for a server of this array: start it, or give them up with `pinstripe ublk delete {device} \
         --force`, by which they fail",
        block_path(device).display()
    )
}

/// The file by which it is served.
pub fn server_path(device: u32) -> PathBuf {
    format!("/dev/ublkc{device}").into()
}

/// Shows all devices.
pub fn list(as_json: bool) -> Result<(), Failure> {
    let mut driver = Driver::open()?;
    let mut shown = Vec::new();
    for info in driver.all()? {
        let number = info.device;
        let parameters = driver.parameters(number).unwrap_or_default();
        shown.push((number, info, parameters.device_sectors.saturating_mul(512)));
    }
    if as_json {
        let values: Vec<_> = shown
            .iter()
            .map(|(number, info, bytes)| {
                json!({
                    "id": number, "device": block_path(*number), "state": state_name(info), "size_bytes": bytes,
                    "queues": info.queues, "depth": info.depth, "server": served_by(info), "used": users(*number),
                })
            })
            .collect();
        return output::print_json(&values);
    }
    let lines: Vec<_> = shown.iter().map(|(number, info, bytes)| line(*number, info, *bytes)).collect();
    output::print(&lines.concat())
}

fn line(number: u32, info: &DeviceInfo, bytes: u64) -> String {
    let state = match (info.state, served_by(info)) {
        (state::LIVE, Some(server)) => format!("live, served by process {server}"),
        (state::QUIESCED, _) => {
            "quiesced: its server has died, and requests wait for the next one".to_owned()
        }
        _ => state_name(info).to_owned(),
    };
    let used = users(number);
    let used = if used.is_empty() { String::new() } else { format!(", {}", used.join(", ")) };
    format!("{}  {}, {state}{used}\n", block_path(number).display(), ByteSize(bytes))
}

fn state_name(info: &DeviceInfo) -> &'static str {
    match info.state {
        state::DEAD => "dead",
        state::LIVE => "live",
        state::QUIESCED => "quiesced",
        _ => "in a state that this version doesn't know",
    }
}

fn served_by(info: &DeviceInfo) -> Option<i32> {
    (info.state == state::LIVE && info.server > 0).then_some(info.server)
}

/// Takes a device away that no server needs.
pub fn delete(arguments: &UblkDeleteArguments) -> Result<(), Failure> {
    let mut driver = Driver::open()?;
    let Some(info) = driver.info(arguments.id)? else {
        return Err(Failure::new(format!(
            "there is no ublk device {}; `pinstripe ublk list` shows them",
            arguments.id
        )));
    };
    if let Some(why) = kept_by(&info, &users(arguments.id), arguments.force) {
        return Err(Failure::new(format!("/dev/ublkb{} {why}", arguments.id)));
    }
    Ok(Driver::delete(arguments.id)?)
}

/// Why a device must not be deleted.
fn kept_by(info: &DeviceInfo, users: &[String], force: bool) -> Option<String> {
    if let Some(server) = served_by(info) {
        return Some(format!(
            "is served by process {server}, and goes with it: use `pinstripe stop`, or end that process"
        ));
    }
    if info.state != state::QUIESCED || force {
        return None;
    }
    let used = if users.is_empty() { String::new() } else { format!(" and is {}", users.join(", ")) };
    Some(format!(
        "waits for a new server{used}: serve its array again with `serve --ublk={}`, or use --force, by which \
         requests that wait fail",
        info.device
    ))
}

/// A device that this process is to serve.
pub fn device_info(
    shards: usize,
    depth: u16,
    request_bytes_max: u32,
    features: u64,
    mark: u64,
) -> DeviceInfo {
    let recovery = feature::RECOVERY | feature::REISSUE;
    DeviceInfo {
        queues: u16::try_from(shards).unwrap_or(u16::MAX),
        depth,
        request_bytes_max,
        server: i32::try_from(std::process::id()).unwrap_or(-1),
        features: features & recovery | feature::USER_COPY | feature::ENCODED,
        mark,
        ..DeviceInfo::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(state: u16, server: i32) -> DeviceInfo {
        DeviceInfo { state, server, device: 3, ..DeviceInfo::default() }
    }

    #[test]
    fn what_waits_for_a_server_is_deleted_by_force_only_and_what_is_served_not_at_all() {
        let used = ["mounted on /mnt".to_owned()];
        let waiting = kept_by(&info(state::QUIESCED, 7), &used, false).unwrap();
        assert!(waiting.contains("mounted on /mnt") && waiting.contains("--ublk=3"), "{waiting}");
        assert_eq!(kept_by(&info(state::QUIESCED, 7), &used, true), None);
        assert_eq!(kept_by(&info(state::DEAD, -1), &[], false), None);
        for force in [false, true] {
            assert!(kept_by(&info(state::LIVE, 7), &[], force).unwrap().contains("process 7"));
        }
    }

    #[test]
    fn a_device_that_another_program_keeps_to_itself_hides_none_of_the_others() {
        use rustix::io::Errno;

        let refused = |device, errno: Errno| {
            let source = io::Error::from(errno);
            UblkError::Refused { device, what: "can't be looked at", source }
        };
        let hidden = [Errno::INVAL, Errno::PERM, Errno::ACCESS];
        let seen = without_hidden((0..5).collect(), |number| match number {
            0..3 => Err(refused(number, hidden[number as usize])),
            3 => Ok(Some(info(state::QUIESCED, 7))),
            _ => Ok(None),
        });
        assert_eq!(seen.unwrap(), [info(state::QUIESCED, 7)]);
        let failed = without_hidden(vec![0, 3], |number| match number {
            0 => Err(refused(0, Errno::IO)),
            _ => Ok(Some(info(state::QUIESCED, 7))),
        });
        assert!(failed.is_err(), "an error of another kind may hide one of ours");
    }

    #[test]
    fn a_device_is_made_with_the_features_that_the_driver_has() {
        let made = device_info(2, 128, 4 << 20, u64::MAX, 9);
        assert_eq!(made.features, 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7);
        assert_eq!((made.queues, made.depth, made.mark), (2, 128, 9));
        let made = device_info(2, 128, 4 << 20, feature::USER_COPY, 9);
        assert_eq!(made.features, 1 << 6 | 1 << 7);
    }

    #[test]
    fn a_missing_driver_is_reported_with_the_command_that_loads_it() {
        if fs::exists(CONTROL_PATH).unwrap() {
            return;
        }
        let Err(error) = Driver::open() else { panic!("there is no driver") };
        assert!(error.to_string().contains("modprobe ublk_drv"), "{error}");
    }

    #[test]
    fn what_has_a_device_open_for_long_is_not_waited_for() {
        assert_eq!(in_time(Duration::from_mins(1), || 7).unwrap(), Some(7));
        let (_open, closed) = mpsc::channel::<()>();
        assert_eq!(in_time(Duration::from_millis(20), move || closed.recv()).unwrap(), None);
    }

    #[test]
    fn a_device_that_is_not_there_has_no_users() {
        assert!(users(999_999).is_empty());
    }
}
