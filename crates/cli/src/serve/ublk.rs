//! The array as a block device of this machine, by the kernel's ublk driver.
//!
//! ```text
//!   new          ADD ─ SET_PARAMS ─ every shard fetches for its queue ─ START (scans partitions)
//!   taken over   START_RECOVERY ─── every shard fetches for its queue ─ END_RECOVERY (requests go on)
//!   left         every shard finishes what is under way, and fetches no more: the next program takes it over
//!   the end      dirty pages are written ─ STOP (requests are answered) ─ tags end ─ array stops ─ DELETE
//!   both         a long discard or zeroing ends after a piece
//! ```
//!
//! Queue `q` belongs to shard `q`, or to fewer shards in turn if the server that died had more. Shards with a
//! queue help each other. Commands for the device block, START because it reads the partition table, which
//! these very shards answer. So each is given on a thread of its own.
//!
//! A device outlives its server: requests wait, and are issued again to the next server of the same array,
//! which knows the device by its mark, made of the array's uuid. Until that one has assembled the array, no
//! request is answered, and it can't open the members before the last request of the dead one is over (their
//! locks say so).
//!
//! DELETE waits for the last program that has the device open, so it comes when the array has stopped, and is
//! given up after a while. A file system that is still mounted has lost its device by then.

use std::{
    cell::{OnceCell, RefCell},
    net::SocketAddr,
    path::{Path, PathBuf},
    rc::{Rc, Weak},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use pinstripe_block::{BlockService, budget::Share};
use pinstripe_engine::io::service::VolumeService;
use pinstripe_export::ublk::{
    Ended, Helped, Leave, Limits, Loads, Request, Spread, Worker, mark, parameters, serve_tag,
    wire::{DeviceInfo, Parameters, feature, state},
};
use pinstripe_runtime::{
    ShardHandle,
    shard::{self, JoinHandle},
    uring::{
        blocking, flush_block_device,
        ublk::{Data, Device, set_io_flusher},
    },
};

use super::{
    front::{Accepting, Binding, Bound, FrontEnd, Identity, Kind, Service, Task},
    journal::ServerLog,
    nvme::namespace_uuid,
    succession::Connected,
};
use crate::{
    block_users,
    command_line::{ServeArguments, UblkNumber},
    ending::finish_start,
    failure::Failure,
    log, memory,
    on_shards::on_shards,
    ublk::{
        Driver, Named, UblkError, block_path, device_info, left_waiting, server_path, users, wait_for_udev,
    },
};

/// Its one argument is checked when it is read.
pub const KIND: Kind = Kind { check: |_| Ok(()), bind };

/// Requests that a queue has under way at most.
pub(super) const DEPTH: u16 = 128;
/// How long a dead server's requests may take to come to an end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether they have.
const LOOK: Duration = Duration::from_millis(50);

thread_local! {
    /// The tags that this shard serves, and by which each is left.
    static TAGS: RefCell<Vec<(JoinHandle<()>, Rc<Leave>)>> = const { RefCell::new(Vec::new()) };
    /// What helps other shards here, as long as this shard serves tags.
    static HELPER: RefCell<Weak<dyn Helper>> = RefCell::new(Weak::<Worker<VolumeService>>::new());
}

/// A worker of whatever service.
trait Helper {
    fn help(self: Rc<Self>, data: Data, request: Request) -> Helped;
}

impl<S: BlockService> Helper for Worker<S> {
    fn help(self: Rc<Self>, data: Data, request: Request) -> Helped {
        // What is long and could be cut off isn't handed over.
        Box::pin(async move { self.carry_out(&data, request, || false).await })
    }
}

fn help(data: Data, request: Request) -> Option<Helped> {
    let helper = HELPER.with(|helper| helper.borrow().upgrade())?;
    Some(helper.help(data, request))
}

struct Ublk {
    /// The number that was asked for.
    wanted: Option<u32>,
    /// By which a device says that it is this array.
    mark: u64,
    /// The number of a device whose requests wait for this server.
    waiting: Option<u32>,
    /// The folder of the array's sockets, and what udev's rules get to know of the array.
    naming: (PathBuf, String),
    /// When it is there: its number, and where to complain.
    served: Option<(u32, ServerLog)>,
    /// A server before has left it.
    taken_over: bool,
    /// As long as it is there.
    named: Option<Named>,
    /// When it is gone, but for its number: what used it until then.
    gone: OnceCell<Vec<String>>,
}

impl Drop for Ublk {
    /// Without a server, requests wait for ever: an array that can't be started must not be silent about it.
    fn drop(&mut self) {
        if let (Some(device), None) = (self.waiting, &self.served) {
            log::warn(&left_waiting(device));
        }
    }
}

/// A device that can be given queues.
pub(super) struct Prepared {
    pub info: DeviceInfo,
    pub device: Arc<Device>,
    /// A dead server has left it.
    pub taken_over: bool,
}

/// Looks whether the driver is there and the number can be had, before members are written.
fn bind<'a>(arguments: &'a ServeArguments, identity: Identity<'a>) -> Binding<'a> {
    Box::pin(async move {
        let wanted = match arguments.ublk {
            None => return Ok(None),
            Some(UblkNumber::Any) => None,
            Some(UblkNumber::Given(number)) => Some(number),
        };
        let mark = mark(namespace_uuid(identity.uuid));
        let words = format!("PINSTRIPE_NAME={}\nPINSTRIPE_UUID={}\n", identity.stem, identity.uuid);
        let naming = (identity.folder.to_owned(), words);
        let looked = blocking(move || {
            let mut driver = Driver::open()?;
            driver.features()?;
            left_behind(&mut driver, wanted, mark)
        });
        let left = looked.await?.filter(|info| info.state != state::DEAD);
        let waiting = left.map(|info| info.device);
        let (served, taken_over, named, gone) = Default::default();
        let ublk = Ublk { wanted, mark, waiting, naming, served, taken_over, named, gone };
        Ok(Some(Box::new(ublk) as Bound))
    })
}

impl FrontEnd for Ublk {
    fn protocol(&self) -> &'static str {
        "ublk"
    }

    fn open<'a>(&'a mut self, service: Service<'a>) -> Task<'a, Result<(), Failure>> {
        Box::pin(async move {
            // A process whose device reads its partition table can't end; a device without a server stays.
            finish_start();
            let Service { array, shards, journal } = service;
            let service = array.service();
            let (wanted, mark, parameters, limits) =
                (self.wanted, self.mark, parameters(&service), Limits::new(&service));
            let count = shards.len();
            let made = blocking(move || {
                let new = |features| device_info(count, DEPTH, limits.request_bytes_max, features, mark);
                prepare(wanted, mark, parameters, new)
            });
            let Prepared { info, device, taken_over } = made.await?;
            self.served = Some((info.device, journal.clone()));
            self.taken_over = taken_over;
            self.named = Named::write(&self.naming.0, info.device, mark, &self.naming.1);
            let array = array.clone();
            let serve = move || array.service();
            let begun = async {
                open_queues(device, &info, shards, journal, serve).await?;
                blocking(move || begin(info.device, taken_over)).await
            };
            if let Err(failure) = begun.await {
                // What waits for a server goes on waiting.
                if !taken_over {
                    self.end(shards).await;
                }
                return Err(failure);
            }
            blocking(move || wait_for_udev(info.device)).await;
            if taken_over {
                journal.note(&format!(
                    "{} was taken over from the server before, and what waited goes on",
                    self.path()
                ));
            }
            Ok(())
        })
    }

    fn uris(&self) -> Vec<String> {
        if self.served.is_some() { vec![self.path()] } else { Vec::new() }
    }

    fn loopback_ports(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// The kernel brings requests by itself.
    fn accept(&self, _: Accepting<'_>) -> Vec<JoinHandle<()>> {
        Vec::new()
    }

    fn clients(&self) -> Vec<String> {
        let used = |(device, _): &(u32, ServerLog)| users(*device).into_iter();
        self.served.iter().flat_map(used).map(|use_| format!("{} {use_}", self.path())).collect()
    }

    /// The device stays, and its requests wait for the next program. It takes the device over as if this one
    /// had died.
    fn leave<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, Vec<Connected>> {
        Box::pin(async move {
            on_shards(shards, || async { with_tags(Leave::want) }).await;
            ended(shards).await;
            Vec::new()
        })
    }

    /// It goes on all the same: the driver takes no device away that is in use, and would keep us waiting.
    fn disown(&self) -> Task<'_, ()> {
        Box::pin(async {
            let Some((device, journal)) = &self.served else { return };
            journal.warn(&format!(
                "/dev/ublkb{device} goes over to the next program all the same. Its flushes may succeed there over what was lost: check \
                 what is on it"
            ));
        })
    }

    fn stop<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, ()> {
        Box::pin(self.end(shards))
    }

    /// Where a server before has left it, its requests wait for the next one again.
    fn give_up<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, ()> {
        Box::pin(async {
            let Some((device, journal)) = self.served.as_ref().filter(|_| self.taken_over) else {
                return self.end(shards).await;
            };
            self.leave(shards).await;
            journal.warn(&left_waiting(*device));
        })
    }

    /// The tags had all of the array, and have ended. The number may be waited for now.
    fn close<'a>(&'a self, _: &'a [ShardHandle]) -> Task<'a, ()> {
        Box::pin(async {
            if let Some(((device, journal), users)) = self.served.as_ref().zip(self.gone.get()) {
                delete(*device, users, journal).await;
            }
        })
    }
}

impl Ublk {
    fn path(&self) -> String {
        self.served.as_ref().map_or_else(String::new, |(device, _)| block_path(*device).display().to_string())
    }

    /// Takes the device away, but for its number.
    async fn end(&self, shards: &[ShardHandle]) {
        if let Some((device, journal)) = &self.served
            && let Some(users) = end(*device, shards, journal).await
        {
            let _ = self.gone.set(users);
        }
    }
}

/// Takes a device of this process away, but for its number, and gives what used it.
pub(super) async fn end(device: u32, shards: &[ShardHandle], journal: &ServerLog) -> Option<Vec<String>> {
    blocking(move || write_dirty_pages(device)).await;
    let users = users(device);
    // STOP waits for what is under way, and what comes after it fails.
    on_shards(shards, || async { with_tags(Leave::hurry) }).await;
    if let Err(error) = blocking(move || Driver::open()?.stop(device)).await {
        journal.warn(&format!("{error}; `pinstripe ublk delete {device}` takes it away"));
        return None;
    }
    ended(shards).await;
    Some(users)
}

/// Gives the number of a device back that is gone. `used`: what may have it open still.
pub(super) async fn delete(device: u32, used: &[String], journal: &ServerLog) {
    match blocking(move || Driver::delete(device)).await {
        Ok(()) => {}
        Err(error @ UblkError::StillOpen(_)) if !used.is_empty() => {
            journal.warn(&format!("{error}; until now it was {}", used.join(", ")));
        }
        Err(error @ UblkError::StillOpen(_)) => journal.warn(&error.to_string()),
        Err(error) => journal.warn(&format!("{error}; `pinstripe ublk delete {device}` takes it away")),
    }
}

fn with_tags(end: fn(&Leave)) {
    TAGS.with_borrow(|tags| tags.iter().for_each(|(_, leave)| end(leave)));
}

/// Waits until no tag is served any more.
async fn ended(shards: &[ShardHandle]) {
    on_shards(shards, || async {
        for (tag, _) in TAGS.with(RefCell::take) {
            tag.join().await;
        }
    })
    .await;
}

/// Has the kernel write what its page caches hold for a device, those of mounted file systems as well: the
/// driver refuses requests that come after STOP. The server serves meanwhile, however long that takes.
fn write_dirty_pages(device: u32) {
    for name in block_users::with_all_above(&format!("ublkb{device}")) {
        // Programs learn of an error by their own fsync. A device that is gone has nothing to write.
        let _ = flush_block_device(&Path::new("/dev").join(name.replace('!', "/")));
    }
}

/// Serves all queues of a device, each on its shard by what `serve` gives there.
pub(super) async fn open_queues<S: BlockService>(
    device: Arc<Device>,
    info: &DeviceInfo,
    shards: &[ShardHandle],
    journal: &ServerLog,
    serve: impl Fn() -> S + Clone + Send + 'static,
) -> Result<(), Failure> {
    let request_bytes_max = info.request_bytes_max;
    let served: Arc<[ShardHandle]> = shards.iter().take(info.queues.into()).cloned().collect();
    let loads = Arc::new(Loads::new(served.len()));
    for queue in 0..info.queues {
        let (serve, journal, device) = (serve.clone(), journal.clone(), Arc::clone(&device));
        let (place, loads, shards) =
            (usize::from(queue) % served.len(), Arc::clone(&loads), Arc::clone(&served));
        let open = move || async move {
            let spread = Spread::new(loads, place, shards, help);
            open_queue(&device, queue, request_bytes_max, serve(), spread, &journal)
        };
        served[place].call(open).await??;
    }
    // The queues have it open, and it is closed here.
    Ok(())
}

/// Serves a queue on this shard, with requests as long as the device was made for.
fn open_queue(
    device: &Device,
    number: u16,
    request_bytes_max: u32,
    service: impl BlockService,
    spread: Spread<Data>,
    journal: &ServerLog,
) -> Result<(), Failure> {
    never_wait_for_own_device(journal);
    let queue = device.queue(number);
    let queue = Rc::new(queue.map_err(|error| Failure::new(format!("queue {number} of ublk: {error}")))?);
    let mut limits = Limits::new(&service);
    limits.request_bytes_max = request_bytes_max;
    let worker = Rc::new(Worker { service, share: Share::new(memory::budget()) });
    let helper: Rc<dyn Helper> = worker.clone();
    HELPER.with(|current| current.replace(Rc::downgrade(&helper)));
    let spread = Rc::new(spread);
    let tags = (0..).zip(Leave::of_queue(queue.depth())).map(|(tag, leave)| {
        let (queue, worker, spread, journal) =
            (Rc::clone(&queue), Rc::clone(&worker), Rc::clone(&spread), journal.clone());
        let leave = Rc::new(leave);
        let wish = Rc::clone(&leave);
        let task = shard::spawn_joined(async move {
            let ended = serve_tag(&*queue, tag, &worker, &limits, &spread, &leave).await;
            if let Ended::Refused(errno) = ended {
                journal.warn(&format!(
                    "the ublk driver refuses commands of queue {number}, tag {tag} (error {errno})"
                ));
            }
        });
        (task, wish)
    });
    let tags: Vec<_> = tags.collect();
    TAGS.with(|all| all.borrow_mut().extend(tags));
    Ok(())
}

/// Has this shard not wait for pages to be written, which could be those of what it serves.
pub fn never_wait_for_own_device(journal: &ServerLog) {
    if let Err(error) = set_io_flusher() {
        journal.warn(&format!(
            "this server may wait for its own device when memory is short: {error}; to prevent that, give it CAP_SYS_RESOURCE"
        ));
    }
}

/// Lets requests come, when all queues are served.
pub(super) fn begin(device: u32, taken_over: bool) -> Result<(), Failure> {
    let mut driver = Driver::open()?;
    Ok(if taken_over { driver.end_recovery(device) } else { driver.start(device) }?)
}

/// The device that a dead server of this array has left, or a new one. Blocks.
pub(super) fn prepare(
    wanted: Option<u32>,
    mark: u64,
    parameters: Parameters,
    new: impl Fn(u64) -> DeviceInfo,
) -> Result<Prepared, Failure> {
    let mut driver = Driver::open()?;
    let features = driver.features()?;
    if let Some(info) = left_behind(&mut driver, wanted, mark)? {
        let number = info.device;
        if info.state != state::DEAD {
            check_same(&info, &driver.parameters(number)?, &parameters)?;
            recover(&mut driver, number)?;
            let device = open_device(&info)?;
            return Ok(Prepared { info, device, taken_over: true });
        }
        // It was never started, or was stopped: nothing waits. If it is open still, another number will do.
        match Driver::delete(number) {
            Err(UblkError::StillOpen(_)) if wanted.is_none() => {}
            Err(error @ UblkError::StillOpen(_)) => {
                return Err(Failure::new(format!("{error}; `--ublk` without a number takes another one")));
            }
            deleted => deleted?,
        }
    }
    let info = driver.add(wanted, new(features))?;
    let made = driver.set_parameters(info.device, parameters).map_err(Failure::from);
    match made.and_then(|()| open_device(&info)) {
        Ok(device) => Ok(Prepared { info, device, taken_over: false }),
        Err(failure) => {
            let _ = Driver::delete(info.device);
            Err(failure)
        }
    }
}

/// A device with this array's mark.
fn left_behind(driver: &mut Driver, wanted: Option<u32>, mark: u64) -> Result<Option<DeviceInfo>, Failure> {
    if let Some(number) = wanted {
        return match driver.info(number)? {
            Some(info) if info.mark != mark => Err(Failure::new(format!(
                "/dev/ublkb{number} is there already, and isn't this array's: use another number, or \
                 `pinstripe ublk delete {number}`"
            ))),
            found => Ok(found),
        };
    }
    Ok(driver.all()?.into_iter().find(|info| info.mark == mark))
}

/// Refuses to serve requests of a device that the array doesn't fit.
fn check_same(info: &DeviceInfo, theirs: &Parameters, ours: &Parameters) -> Result<(), Failure> {
    let told = |all: &Parameters| (all.device_sectors, all.logical_block_shift, all.attributes);
    let can = info.features & (feature::RECOVERY | feature::USER_COPY);
    let number = info.device;
    if can != feature::RECOVERY | feature::USER_COPY {
        return Err(Failure::new(format!(
            "/dev/ublkb{number} can't be taken over: it was made without recovery; `pinstripe ublk delete {number}` takes it away"
        )));
    }
    if told(theirs) != told(ours) {
        return Err(Failure::new(format!(
            "/dev/ublkb{number} was left by a server of this array, but differs from it now (size, block, or read-only): serve \
             the array as before, or use `pinstripe ublk delete {number} --force`, by which requests that wait fail"
        )));
    }
    Ok(())
}

/// Begins to take a device over, as soon as the kernel is done with its dead server.
fn recover(driver: &mut Driver, number: u32) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        match driver.start_recovery(number) {
            Err(error) if error.is_busy() && begun.elapsed() < PATIENCE => thread::sleep(LOOK),
            Err(error) if error.is_busy() => {
                return Err(Failure::new(format!(
                    "/dev/ublkb{number} is still held by another server of this array; `pinstripe ublk list` shows it"
                )));
            }
            done => return Ok(done?),
        }
    }
}

/// Opens the file of a device. devtmpfs has it at once; permissions by udev may come a little later.
fn open_device(info: &DeviceInfo) -> Result<Arc<Device>, Failure> {
    let path = server_path(info.device);
    let begun = Instant::now();
    loop {
        match Device::open(&path, info.depth) {
            Ok(device) => return Ok(Arc::new(device)),
            Err(_) if begun.elapsed() < PATIENCE / 10 => thread::sleep(LOOK),
            Err(error) => {
                return Err(Failure::new(format!("{} can't be opened: {error}", path.display())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_go_on_waiting_are_named_with_what_ends_them() {
        let said = left_waiting(3);
        assert!(said.contains("/dev/ublkb3") && said.contains("ublk delete 3 --force"), "{said}");
    }

    #[test]
    fn a_device_is_taken_over_only_by_an_array_that_fits_it() {
        let info = device_info(2, DEPTH, 4 << 20, u64::MAX, 9);
        let ours = Parameters { device_sectors: 1000, logical_block_shift: 9, ..Parameters::default() };
        assert!(check_same(&info, &ours, &ours).is_ok());
        // What the next server may change.
        assert!(check_same(&info, &Parameters { sectors_max: 8, ..ours }, &ours).is_ok());
        for theirs in [
            Parameters { device_sectors: 999, ..ours },
            Parameters { logical_block_shift: 12, ..ours },
            Parameters { attributes: 1, ..ours },
        ] {
            let failure = check_same(&info, &theirs, &ours).unwrap_err();
            assert!(failure.sentence().contains("differs"), "{}", failure.sentence());
        }
        let plain = device_info(2, DEPTH, 4 << 20, feature::USER_COPY, 9);
        assert!(check_same(&plain, &ours, &ours).unwrap_err().sentence().contains("without recovery"));
    }
}
