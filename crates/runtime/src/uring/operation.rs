//! One request as the kernel sees it, and how it goes on after a short transfer.

use std::{
    cell::RefCell,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use io_uring::{opcode, squeue, types};

use crate::{
    Buffer, DeviceError, DeviceErrorKind,
    uring::{
        driver::Driver,
        kernel,
        nvme::{self, Action, Namespace},
        side::Carrier,
    },
};

/// How often in a row the kernel may ask to try again, or transfer less than one block.
const RETRIES_MAX: u8 = 64;
pub(super) const POLLIN: u32 = libc::POLLIN.cast_unsigned() as u32;
/// How often in a row an NVMe command is given that the device or its driver may do later.
const NVME_RETRIES_MAX: u8 = 5;
const POLLOUT: u32 = libc::POLLOUT.cast_unsigned() as u32;
const POLLRDHUP: u32 = libc::POLLRDHUP.cast_unsigned() as u32;
const POLLIN_EXCLUSIVE: u32 = (libc::EPOLLIN | libc::EPOLLEXCLUSIVE).cast_unsigned();
/// `BLOCK_URING_CMD_DISCARD`, Linux 6.12: `_IO(0x12, 0)`.
const BLOCK_DISCARD: u32 = 0x1200;
/// `fallocate`: a hole that reads back zero.
pub(super) const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
/// `fallocate`: zeroes, allocated or not.
pub(super) const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

/// A file or socket of one ring. Requests hold it, so that it outlives them.
pub(super) struct Descriptor {
    driver: Rc<Driver>,
    file: Arc<File>,
    /// With the main ring.
    registered: Option<u32>,
    /// With the ring beside it that carries the file's reads and writes, if one does.
    registered_aside: Option<u32>,
    /// The file's claims, with each of these rings.
    registered_claims: Vec<(Carrier, u32)>,
}

/// What every ring's descriptor of one open file shares.
pub(super) struct File {
    pub(super) fd: OwnedFd,
    /// What keeps others away from the same bytes under other names, as long as a request may be on the way
    /// (C21).
    claims: Vec<OwnedFd>,
    /// Which ring carries its reads and writes.
    carrier: Carrier,
    /// What is on the other end of a passthrough. Every request is a command then, on the file's carrier.
    namespace: Option<Namespace>,
    /// The kernel has no discard command: use the older way.
    discard_refused: AtomicBool,
    /// The device was asked for zeroes and can't.
    pub(super) zeroes_refused: AtomicBool,
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl File {
    pub(super) fn new(fd: OwnedFd) -> Arc<Self> {
        Self::with_claims(fd, Vec::new())
    }

    /// All that it has open, and by which it is locked.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = &OwnedFd> {
        std::iter::once(&self.fd).chain(&self.claims)
    }

    /// With what is to be held as long as it is open.
    pub(super) fn with_claims(fd: OwnedFd, claims: Vec<OwnedFd>) -> Arc<Self> {
        Self::carried(fd, claims, Carrier::Main, None)
    }

    /// With another ring for its reads and writes, and perhaps a namespace to give commands to.
    pub(super) fn carried(
        fd: OwnedFd,
        claims: Vec<OwnedFd>,
        carrier: Carrier,
        namespace: Option<Namespace>,
    ) -> Arc<Self> {
        Arc::new(Self {
            fd,
            claims,
            carrier,
            namespace,
            discard_refused: AtomicBool::new(false),
            zeroes_refused: AtomicBool::new(false),
        })
    }

    pub(super) fn carrier(&self) -> Carrier {
        self.carrier
    }

    pub(super) fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// What to ask for to discard a range of a block device.
    pub(super) fn discard(&self) -> Kind {
        if self.discard_refused.load(Ordering::Relaxed) { Kind::Allocate(PUNCH_HOLE) } else { Kind::Discard }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.namespace.is_some() {
            self.claims.iter().for_each(forget_cached);
        }
    }
}

/// Has the kernel write and forget what it keeps in memory of a block device: commands by passthrough change
/// the device behind its back. An error is no harm to what is on the device.
pub(super) fn forget_cached(device: &OwnedFd) {
    /// `_IO(0x12, 97)` of linux/fs.h.
    const BLKFLSBUF: libc::Ioctl = 0x1261;
    // SAFETY: the kernel takes no argument.
    let _ = unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF) };
}

impl Descriptor {
    pub(super) fn new(file: Arc<File>) -> Rc<Self> {
        let driver = Driver::current();
        let registered_claims = Vec::new();
        Rc::new(Self { driver, file, registered: None, registered_aside: None, registered_claims })
    }

    pub(super) fn shared_file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Of a device: the kernel looks up its file once, if it may be registered at all.
    ///
    /// The claims are registered for another reason. Where a request goes to another file than the claim, as
    /// a command by passthrough does, the kernel would let go of the claim of a process that was killed
    /// while its requests are under way. A ring keeps what is registered with it until the last of its
    /// requests is over (C16, C21).
    pub(super) fn registered(file: Arc<File>) -> Rc<Self> {
        let driver = Driver::current();
        let carrier = file.carrier;
        let aside = carrier != Carrier::Main && driver.provide(carrier).is_ok();
        let register = |carrier| driver.register(carrier, &file.fd);
        let may = kernel::closes_files_at_once();
        let registered_aside = (aside && may).then(|| register(carrier)).flatten();
        let registered = may.then(|| register(Carrier::Main)).flatten();
        let mut registered_claims = Vec::new();
        for carrier in std::iter::once(Carrier::Main).chain(aside.then_some(carrier)) {
            let register = |claim| Some((carrier, driver.register(carrier, claim)?));
            registered_claims.extend(file.claims.iter().filter_map(register));
        }
        Rc::new(Self { driver, file, registered, registered_aside, registered_claims })
    }

    fn registered_with(&self, carrier: Carrier) -> Option<u32> {
        if carrier == Carrier::Main { self.registered } else { self.registered_aside }
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let Some(index) = self.registered {
            self.driver.unregister(Carrier::Main, index);
        }
        if let Some(index) = self.registered_aside {
            self.driver.unregister(self.file.carrier, index);
        }
        for (carrier, index) in &self.registered_claims {
            self.driver.unregister(*carrier, *index);
        }
    }
}

/// What to do.
pub(super) enum Kind {
    Read,
    Write {
        fua: bool,
    },
    Flush,
    /// `fallocate` with this mode.
    Allocate(i32),
    /// The block layer's discard.
    Discard,
    /// A command to the file's namespace.
    Nvme(Action),
    /// A receive that may be short.
    Receive,
    /// A send that may be short.
    Send,
    /// Waits until something can be read, or the other end has gone. Of all that wait for one file, all are
    /// woken, or one for each thing that comes.
    Readable {
        exclusive: bool,
    },
    /// Waits until something can be sent, or the connection has failed.
    Writable,
    /// Waits until the other end has ended what it sends, or has gone.
    HangUp,
    /// The connection comes here, so that it is closed if no task takes it.
    Accept(Rc<RefCell<Option<OwnedFd>>>),
    /// A command of the file's own driver. It holds no address.
    Command {
        operation: u32,
        bytes: [u8; 16],
    },
}

/// See the module.
pub(super) struct Operation {
    pub(super) kind: Kind,
    pub(super) descriptor: Rc<Descriptor>,
    /// Bytes in the file.
    pub(super) offset: u64,
    /// The memory, kept by the slot's payload or by `bounce`.
    pub(super) address: *mut u8,
    pub(super) length: u64,
    /// Bytes transferred, a multiple of `unit` until the end.
    done: u64,
    /// Bytes that a transfer must be a multiple of.
    unit: u64,
    retries: u8,
    bounce: Option<Bounce>,
    /// The range of a Dataset Management command, which the device reads.
    list: Option<Buffer>,
}

/// Aligned memory in place of a read's own, which the device can't reach.
struct Bounce {
    buffer: Buffer,
    /// Where a read's bytes must go at the end: into the slot's buffer.
    target: *mut u8,
}

/// How an operation goes on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Submit it once more, for the rest.
    Again,
    Done(usize),
    Failed(DeviceError),
}

impl Operation {
    pub(super) fn new(kind: Kind, descriptor: &Rc<Descriptor>) -> Self {
        Self {
            kind,
            descriptor: Rc::clone(descriptor),
            offset: 0,
            address: std::ptr::null_mut(),
            length: 0,
            done: 0,
            unit: 1,
            retries: 0,
            bounce: None,
            list: None,
        }
    }

    /// On a range of the file, in multiples of `unit` bytes.
    pub(super) fn range(mut self, offset: u64, length: u64, unit: u32) -> Self {
        (self.offset, self.length, self.unit) = (offset, length, u64::from(unit));
        self
    }

    /// On `length` bytes of memory that stay valid, and for reads unaliased, until the completion.
    pub(super) fn memory(mut self, address: *const u8, length: usize) -> Self {
        (self.address, self.length) = (address.cast_mut(), length as u64);
        self
    }

    /// A read into `buffer`, which is aligned, and from there into the memory.
    pub(super) fn bounce(mut self, buffer: Buffer) -> Self {
        let target = std::mem::replace(&mut self.address, buffer.as_ptr().cast_mut());
        self.bounce = Some(Bounce { buffer, target });
        self
    }

    /// A Dataset Management command, whose range goes to `list`.
    pub(super) fn list(mut self, list: Buffer) -> Self {
        self.list = Some(list);
        self.fill_list();
        self
    }

    /// Which ring carries it.
    pub(super) fn carrier(&self) -> Carrier {
        match self.kind {
            Kind::Read | Kind::Write { .. } | Kind::Nvme(_) => self.descriptor.file.carrier,
            _ => Carrier::Main,
        }
    }

    /// Whether a device answers it, which has its request, and not a client or a peer, when that likes.
    pub(super) fn is_for_device(&self) -> bool {
        match self.kind {
            Kind::Read
            | Kind::Write { .. }
            | Kind::Flush
            | Kind::Allocate(_)
            | Kind::Discard
            | Kind::Nvme(_) => true,
            Kind::Receive
            | Kind::Send
            | Kind::Readable { .. }
            | Kind::Writable
            | Kind::HangUp
            | Kind::Accept(_)
            | Kind::Command { .. } => false,
        }
    }

    fn target(&self) -> (types::Fd, squeue::Flags) {
        match self.descriptor.registered_with(self.carrier()) {
            Some(index) => (types::Fd(index.cast_signed()), squeue::Flags::FIXED_FILE),
            None => (types::Fd(self.descriptor.file.fd.as_raw_fd()), squeue::Flags::empty()),
        }
    }

    /// The entry for what is left to do, for a ring of large entries.
    pub(super) fn large_entry(&self, slot: u32) -> squeue::Entry128 {
        let (Kind::Nvme(action), Some(namespace)) = (&self.kind, self.descriptor.file.namespace()) else {
            return self.entry(slot).into();
        };
        let step = namespace.step(*action, self.length - self.done);
        let (address, length) = match (action, &self.list) {
            (Action::Read | Action::Write { .. }, _) => {
                let done = usize::try_from(self.done).unwrap_or_else(|_| unreachable!("below the length"));
                (self.address.wrapping_add(done).cast_const(), step)
            }
            (_, Some(list)) => (list.as_ptr(), list.len() as u64),
            (_, None) => (std::ptr::null(), 0),
        };
        let length = u32::try_from(length).unwrap_or_else(|_| unreachable!("a command moves less"));
        let index = self.descriptor.driver.fixed_index(self.carrier(), address, length as usize);
        let data = (address.expose_provenance() as u64, length);
        let mut bytes = [0; 80];
        let command = namespace.command(*action, self.offset + self.done, step, data);
        bytes[..command.len()].copy_from_slice(&command);
        let (fd, flags) = self.target();
        let entry = opcode::UringCmd80::new(fd, nvme::URING_IO).cmd(bytes).buf_index(index).build();
        entry.flags(flags).user_data(u64::from(slot))
    }

    /// The entry for what is left to do.
    pub(super) fn entry(&self, slot: u32) -> squeue::Entry {
        let descriptor = &self.descriptor;
        let (raw, flags) = self.target();
        let left = self.length - self.done;
        let offset = self.offset + self.done;
        let done = usize::try_from(self.done).unwrap_or_else(|_| unreachable!("below the memory's length"));
        let address = self.address.wrapping_add(done);
        // A longer transfer is cut by the kernel in the same way, and goes on like any short one.
        let length = u32::try_from(left).unwrap_or(1 << 30);
        let fixed = descriptor.driver.fixed_index(self.carrier(), address, length as usize);
        let entry = match (&self.kind, fixed) {
            (Kind::Read, Some(index)) => {
                opcode::ReadFixed::new(raw, address, length, index).offset(offset).build()
            }
            (Kind::Read, None) => opcode::Read::new(raw, address, length).offset(offset).build(),
            (Kind::Write { fua }, Some(index)) => {
                let write = opcode::WriteFixed::new(raw, address, length, index).offset(offset);
                write.rw_flags(write_flags(*fua)).build()
            }
            (Kind::Write { fua }, None) => {
                let write = opcode::Write::new(raw, address, length).offset(offset);
                write.rw_flags(write_flags(*fua)).build()
            }
            (Kind::Flush, _) => opcode::Fsync::new(raw).flags(types::FsyncFlags::DATASYNC).build(),
            (Kind::Allocate(mode), _) => opcode::Fallocate::new(raw, left).offset(offset).mode(*mode).build(),
            (Kind::Discard, _) => discard_entry(raw, offset, left),
            // An offset of -1 is the current position, the only one that a stream has.
            (Kind::Receive, _) => opcode::Recv::new(raw, address, length).build(),
            (Kind::Send, _) => opcode::Send::new(raw, address, length).flags(libc::MSG_NOSIGNAL).build(),
            (Kind::Readable { exclusive }, _) => {
                opcode::PollAdd::new(raw, if *exclusive { POLLIN_EXCLUSIVE } else { POLLIN }).build()
            }
            (Kind::Writable, _) => opcode::PollAdd::new(raw, POLLOUT).build(),
            (Kind::HangUp, _) => opcode::PollAdd::new(raw, POLLRDHUP).build(),
            (Kind::Command { operation, bytes }, _) => {
                opcode::UringCmd16::new(raw, *operation).cmd(*bytes).build()
            }
            (Kind::Nvme(_), _) => unreachable!("its ring has large entries"),
            (Kind::Accept(_), _) => {
                let none = std::ptr::null_mut();
                opcode::Accept::new(raw, none, none.cast()).flags(libc::SOCK_CLOEXEC).build()
            }
        };
        entry.flags(flags).user_data(u64::from(slot))
    }

    /// Takes the kernel's `result`. Nothing is tried again when the ring is `draining`.
    pub(super) fn advance(&mut self, result: i32, draining: bool) -> Step {
        let step = match u64::try_from(result) {
            _ if matches!(self.kind, Kind::Nvme(_)) => self.answered(result),
            Ok(count) => self.transferred(count),
            Err(_) => self.refused(-result),
        };
        match step {
            Step::Again if draining => Step::Failed(DeviceError::from_errno(libc::ECANCELED)),
            Step::Done(count) => {
                self.copy_back();
                Step::Done(count)
            }
            step => step,
        }
    }

    /// A device's answer to a command: 0, its status, or an error number of the kernel.
    fn answered(&mut self, result: i32) -> Step {
        let (Kind::Nvme(action), Some(namespace)) = (&self.kind, self.descriptor.file.namespace()) else {
            unreachable!("a command is for a namespace");
        };
        if result == 0 {
            self.done += namespace.step(*action, self.length - self.done);
            self.retries = 0;
            if self.done < self.length {
                self.fill_list();
                return Step::Again;
            }
            let moved = matches!(action, Action::Read | Action::Write { .. });
            return Step::Done(if moved { usize::try_from(self.done).unwrap_or(usize::MAX) } else { 0 });
        }
        let error = nvme::error(result);
        if matches!(action, Action::Zeroes)
            && matches!(error.kind, DeviceErrorKind::Unsupported | DeviceErrorKind::Invalid)
        {
            // The range was checked, so it is the command that the device can't do: zeroes are written then.
            self.descriptor.file.zeroes_refused.store(true, Ordering::Relaxed);
            return Step::Failed(DeviceError { kind: DeviceErrorKind::Unsupported, ..error });
        }
        let tries = match *action {
            // As any flush: see `refused`.
            Action::Flush => 0,
            _ if -result == libc::EAGAIN => RETRIES_MAX,
            _ if nvme::may_succeed_again(result) => NVME_RETRIES_MAX,
            _ => 0,
        };
        self.retry(tries, error)
    }

    /// Puts what is left into the list of a Dataset Management command.
    fn fill_list(&mut self) {
        if let (Some(list), Some(namespace)) = (&mut self.list, self.descriptor.file.namespace()) {
            let length = namespace.step(Action::Deallocate, self.length - self.done);
            list.copy_from_slice(&namespace.range(self.offset + self.done, length));
        }
    }

    fn transferred(&mut self, count: u64) -> Step {
        match &self.kind {
            Kind::Nvme(_) => unreachable!("it is answered"),
            Kind::Flush
            | Kind::Allocate(_)
            | Kind::Discard
            | Kind::Readable { .. }
            | Kind::Writable
            | Kind::HangUp => Step::Done(0),
            Kind::Receive | Kind::Send | Kind::Command { .. } => {
                Step::Done(usize::try_from(count).unwrap_or(usize::MAX))
            }
            Kind::Accept(connection) => {
                let fd = i32::try_from(count).unwrap_or_else(|_| unreachable!("it came from an i32"));
                // SAFETY: the kernel has just made this descriptor for us.
                *connection.borrow_mut() = Some(unsafe { OwnedFd::from_raw_fd(fd) });
                Step::Done(0)
            }
            Kind::Read | Kind::Write { .. } => {
                let done = self.done + count;
                if done >= self.length {
                    return Step::Done(usize::try_from(self.length).unwrap_or(usize::MAX));
                }
                // Part of a block is transferred again: direct I/O starts at blocks only.
                let whole = done / self.unit * self.unit;
                if whole > self.done {
                    (self.done, self.retries) = (whole, 0);
                    return Step::Again;
                }
                // The range was checked against the size, so the end of the file has moved towards us.
                if count == 0 {
                    Step::Failed(DeviceError::from_errno(libc::EIO))
                } else {
                    self.again(libc::EIO)
                }
            }
        }
    }

    fn refused(&mut self, errno: i32) -> Step {
        match (&self.kind, errno) {
            // An error of a flush is reported once; a second try might say that all is well (C5).
            // What a driver means by an error of its command, the caller knows.
            (Kind::Flush | Kind::Command { .. }, _) => Step::Failed(DeviceError::from_errno(errno)),
            (_, libc::EAGAIN | libc::EINTR) => self.again(errno),
            (Kind::Discard, libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS) => {
                self.descriptor.file.discard_refused.store(true, Ordering::Relaxed);
                self.kind = Kind::Allocate(PUNCH_HOLE);
                Step::Again
            }
            (Kind::Allocate(mode), libc::EOPNOTSUPP | libc::ENOSYS) => {
                if *mode == ZERO_RANGE {
                    self.descriptor.file.zeroes_refused.store(true, Ordering::Relaxed);
                }
                Step::Failed(DeviceError { kind: DeviceErrorKind::Unsupported, errno })
            }
            _ => Step::Failed(DeviceError::from_errno(errno)),
        }
    }

    fn again(&mut self, errno: i32) -> Step {
        self.retry(RETRIES_MAX, DeviceError::from_errno(errno))
    }

    fn retry(&mut self, most: u8, error: DeviceError) -> Step {
        if self.retries >= most {
            return Step::Failed(error);
        }
        self.retries += 1;
        Step::Again
    }

    fn copy_back(&mut self) {
        if let (Kind::Read | Kind::Nvme(Action::Read), Some(bounce)) = (&self.kind, &self.bounce) {
            // SAFETY: the slot's buffer is `bounce.buffer.len()` bytes at `target`; nothing else has it until
            // the request is finished. The kernel is done with the bounce buffer.
            unsafe {
                std::ptr::copy_nonoverlapping(bounce.buffer.as_ptr(), bounce.target, bounce.buffer.len());
            }
        }
    }
}

fn write_flags(fua: bool) -> i32 {
    if fua { libc::RWF_DSYNC } else { 0 }
}

/// The block layer's discard: the range is in `addr` and in the first word of the command (`addr3`).
fn discard_entry(fd: types::Fd, offset: u64, length: u64) -> squeue::Entry {
    let mut command = [0; 16];
    command[..8].copy_from_slice(&length.to_ne_bytes());
    opcode::UringCmd16::new(fd, BLOCK_DISCARD).cmd(command).addr(Some(offset)).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uring::{RuntimeConfig, run};

    /// Feeds `results` of the kernel to an operation of 8192 bytes in blocks of 512, and shows each step with
    /// the bytes done.
    fn steps(kind: fn() -> Kind, results: Vec<i32>) -> Vec<(Step, u64)> {
        let made = run(&RuntimeConfig::unpinned(1), move |_| async move {
            let file = File::carried(null(), Vec::new(), Carrier::Large, Some(namespace()));
            let descriptor = Descriptor::new(file);
            let mut operation = Operation::new(kind(), &descriptor).range(4096, 8192, 512);
            results.iter().map(|&result| (operation.advance(result, false), operation.done)).collect()
        });
        made.unwrap()
    }

    fn null() -> OwnedFd {
        rustix::fs::open("/dev/null", rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty()).unwrap()
    }

    /// Commands of it do at most 3072 bytes.
    fn namespace() -> Namespace {
        Namespace {
            id: 1,
            size: 1 << 20,
            block_shift: 9,
            volatile_cache: true,
            deallocates: true,
            zeroes: true,
            zeroes_deallocate: false,
            transfer_max: 3072,
            zeroes_max: 3072,
            deallocate_max: 3072,
        }
    }

    #[test]
    fn a_long_request_to_a_namespace_is_several_commands() {
        let (read, zeroes) = (|| Kind::Nvme(Action::Read), || Kind::Nvme(Action::Zeroes));
        let on_the_way = [(Step::Again, 3072), (Step::Again, 6144)];
        assert_eq!(steps(read, vec![0; 2]), on_the_way);
        assert_eq!(steps(read, vec![0; 3])[2], (Step::Done(8192), 8192));
        assert_eq!(steps(zeroes, vec![0; 3])[2], (Step::Done(0), 8192));
    }

    #[test]
    fn the_list_of_a_long_discard_names_what_is_left() {
        let lists = run(&RuntimeConfig::unpinned(1), |_| async {
            let file = File::carried(null(), Vec::new(), Carrier::Large, Some(namespace()));
            let mut discard = Operation::new(Kind::Nvme(Action::Deallocate), &Descriptor::new(file))
                .range(4096, 8192, 512)
                .list(crate::shard::buffer(nvme::RANGE_BYTES));
            let mut lists = vec![discard.list.as_ref().unwrap().to_vec()];
            while discard.advance(0, false) == Step::Again {
                lists.push(discard.list.as_ref().unwrap().to_vec());
            }
            lists
        });
        // Three ranges of 6, 6 and 4 blocks from block 8 on.
        let namespace = namespace();
        let expected = [(4096, 3072), (7168, 3072), (10240, 2048)];
        assert_eq!(lists.unwrap(), expected.map(|(offset, length)| namespace.range(offset, length).to_vec()));
    }

    #[test]
    fn a_command_that_failed_is_given_again_only_where_that_may_help() {
        const MEDIUM: i32 = 0x281;
        let write = || Kind::Nvme(Action::Write { fua: true });
        let error = |result| Step::Failed(nvme::error(result));
        assert_eq!(steps(write, vec![MEDIUM]), [(error(MEDIUM), 0)]);
        let taken_back = steps(write, vec![-libc::EINTR; usize::from(NVME_RETRIES_MAX) + 1]);
        assert_eq!(taken_back[0], (Step::Again, 0));
        assert_eq!(taken_back.last(), Some(&(error(-libc::EINTR), 0)));
        // The count begins anew with the next command.
        assert_eq!(steps(write, vec![0x370, 0, 0x370])[1..], [(Step::Again, 3072), (Step::Again, 3072)]);
        for result in [-libc::EINTR, -libc::EAGAIN, 0x370, 0x021] {
            let flush = steps(|| Kind::Nvme(Action::Flush), vec![result]);
            assert_eq!(flush, [(error(result), 0)], "a flush is never given again");
        }
    }

    fn failed(errno: i32) -> Step {
        Step::Failed(DeviceError::from_errno(errno))
    }

    #[test]
    fn a_short_transfer_goes_on_from_its_last_whole_block() {
        let expected = [(Step::Again, 512), (Step::Again, 1024), (Step::Done(8192), 1024)];
        assert_eq!(steps(|| Kind::Read, vec![1023, 700, 7168]), expected);
        assert_eq!(steps(|| Kind::Write { fua: true }, vec![1023, 700, 7168]), expected);
    }

    #[test]
    fn a_transfer_that_gets_nowhere_fails() {
        assert_eq!(steps(|| Kind::Read, vec![512, 0]), [(Step::Again, 512), (failed(libc::EIO), 512)]);
        let stuck = steps(|| Kind::Write { fua: false }, vec![100; RETRIES_MAX as usize + 1]);
        assert_eq!(stuck.last(), Some(&(failed(libc::EIO), 0)));
        let busy = steps(|| Kind::Read, vec![-libc::EAGAIN; RETRIES_MAX as usize + 1]);
        assert_eq!(busy[RETRIES_MAX as usize - 1], (Step::Again, 0));
        assert_eq!(busy.last(), Some(&(failed(libc::EAGAIN), 0)));
    }

    #[test]
    fn a_failed_flush_is_never_tried_again() {
        for errno in [libc::EIO, libc::EINTR, libc::EAGAIN] {
            assert_eq!(steps(|| Kind::Flush, vec![-errno]), [(failed(errno), 0)]);
        }
    }

    #[test]
    fn a_drivers_command_ends_with_the_drivers_first_answer() {
        let command = || Kind::Command { operation: 1, bytes: [0; 16] };
        for errno in [libc::ENODEV, libc::EINTR, libc::EAGAIN] {
            assert_eq!(steps(command, vec![-errno]), [(failed(errno), 0)]);
        }
        assert_eq!(steps(command, vec![3]), [(Step::Done(3), 0)]);
    }

    #[test]
    fn a_kernel_without_the_discard_command_gets_the_older_request() {
        let made = steps(|| Kind::Discard, vec![-libc::EINVAL, 0]);
        assert_eq!(made, [(Step::Again, 0), (Step::Done(0), 0)]);
    }

    /// What the kernel is told of how to write (`rw_flags`).
    fn write_flags_of(entry: &squeue::Entry) -> i32 {
        assert_eq!(size_of::<squeue::Entry>(), 64);
        // SAFETY: an entry is the kernel's `io_uring_sqe`, 64 bytes that are all set.
        let bytes: &[u8; 64] = unsafe { &*std::ptr::from_ref(entry).cast() };
        i32::from_ne_bytes([bytes[28], bytes[29], bytes[30], bytes[31]])
    }

    /// Memory of the arena is registered with the ring, other memory is not.
    #[test]
    fn a_forced_write_is_forced_wherever_its_memory_lies() {
        let flags = run(&RuntimeConfig::unpinned(1), |_| async {
            let descriptor = Descriptor::new(File::new(null()));
            let (arena, heap) = (crate::shard::zeroed(4096).freeze(), vec![0_u8; 4096]);
            assert!(arena.arena_offset().is_some());
            [true, false].map(|fua| {
                [arena.as_ptr(), heap.as_ptr()].map(|address| {
                    let write = Operation::new(Kind::Write { fua }, &descriptor).range(0, 4096, 512);
                    write_flags_of(&write.memory(address, 4096).entry(0))
                })
            })
        });
        assert_eq!(flags.unwrap(), [[libc::RWF_DSYNC; 2], [0; 2]]);
    }
}
