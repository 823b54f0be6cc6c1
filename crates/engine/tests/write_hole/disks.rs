//! Disks that complete a request when the test says so, and list every content that is possible after a
//! crash.

use std::{cell::RefCell, collections::VecDeque, ops::Range, rc::Rc, sync::Arc};

use pinstripe_runtime::{
    Buffer, Completion, Device, DeviceError, DeviceInfo, DeviceSource, Slice, Submission, ZeroedReads,
    completion::Payload,
};

thread_local! {
    /// The disks of this thread's world.
    static DISKS: RefCell<Disks> = RefCell::default();
}

/// What one disk may hold, all disks of a world.
pub type Images = Vec<Vec<u8>>;

#[derive(Default)]
struct Disks {
    durable: Images,
    /// Writes that may still be lost: under way, or in the disk's cache.
    writes: Vec<Write>,
    queue: VecDeque<(Completion, Done)>,
    next: u64,
    /// Requests complete at once.
    immediate: bool,
}

struct Write {
    number: u64,
    disk: usize,
    offset: usize,
    data: Rc<Vec<u8>>,
    completed: bool,
}

enum Done {
    Read,
    Write {
        number: u64,
        fua: bool,
    },
    /// With the writes that had completed when it came.
    Flush {
        disk: usize,
        numbers: Vec<u64>,
    },
}

/// Starts a world with these disks.
pub fn begin(images: Images, immediate: bool) {
    // The tasks that waited are gone, but their requests still end.
    while complete_one() {}
    DISKS.set(Disks { durable: images, immediate, ..Disks::default() });
}

pub fn set_immediate(immediate: bool) {
    DISKS.with_borrow_mut(|disks| disks.immediate = immediate);
}

/// Lets the oldest request end. False if there is none.
pub fn complete_one() -> bool {
    let Some((completion, result)) = DISKS.with_borrow_mut(|disks| {
        let (completion, done) = disks.queue.pop_front()?;
        disks.settle(done);
        Some((completion, Ok(0)))
    }) else {
        return false;
    };
    completion.finish(result);
    true
}

/// What the disks hold for sure.
pub fn durable() -> Images {
    DISKS.with_borrow(|disks| disks.durable.clone())
}

/// What the disks may hold after a crash: what is durable, and some of what isn't.
pub struct Crash {
    pub durable: Rc<Images>,
    pub writes: Vec<Patch>,
}

/// A part of a write that reached the medium.
#[derive(Clone)]
pub struct Patch {
    disk: usize,
    offset: usize,
    data: Rc<Vec<u8>>,
    range: Range<usize>,
}

impl Crash {
    pub fn images(&self) -> Images {
        let mut images = (*self.durable).clone();
        for patch in &self.writes {
            let at = patch.offset + patch.range.start;
            images[patch.disk][at..at + patch.range.len()].copy_from_slice(&patch.data[patch.range.clone()]);
        }
        images
    }
}

/// Everything that the disks may hold after a crash now: each write that isn't durable is there or not, and
/// at most one of them is there in one half (of its sectors) only.
pub fn crashes() -> Vec<Crash> {
    DISKS.with_borrow(|disks| {
        let count = disks.writes.len();
        assert!(count <= 12, "{count} writes at once are too many for every subset");
        let durable = Rc::new(disks.durable.clone());
        let patch = |write: &Write, range| Patch {
            disk: write.disk,
            offset: write.offset,
            data: Rc::clone(&write.data),
            range,
        };
        let mut crashes = Vec::new();
        for subset in 0..1u32 << count {
            let mut add = |torn: Option<(usize, bool)>| {
                let mut writes = Vec::new();
                for (index, write) in disks.writes.iter().enumerate() {
                    let (middle, end) = (write.data.len() / 1024 * 512, write.data.len());
                    match torn {
                        Some((which, true)) if which == index => writes.push(patch(write, 0..middle)),
                        Some((which, false)) if which == index => writes.push(patch(write, middle..end)),
                        _ if subset >> index & 1 == 1 => writes.push(patch(write, 0..end)),
                        _ => {}
                    }
                }
                crashes.push(Crash { durable: Rc::clone(&durable), writes });
            };
            add(None);
            for (index, write) in disks.writes.iter().enumerate() {
                if subset >> index & 1 == 0 && write.data.len() > 512 {
                    add(Some((index, true)));
                    add(Some((index, false)));
                }
            }
        }
        crashes
    })
}

impl Disks {
    fn settle(&mut self, done: Done) {
        match done {
            Done::Read => {}
            Done::Write { number, fua } => {
                if fua {
                    self.make_durable(|write| write.number == number);
                } else if let Some(write) = self.writes.iter_mut().find(|write| write.number == number) {
                    write.completed = true;
                }
            }
            Done::Flush { disk, numbers } => {
                self.make_durable(|write| write.disk == disk && numbers.contains(&write.number));
            }
        }
    }

    fn make_durable(&mut self, which: impl Fn(&Write) -> bool) {
        let (durable, rest) = std::mem::take(&mut self.writes).into_iter().partition(which);
        self.writes = rest;
        for write in &durable as &Vec<Write> {
            let end = write.offset + write.data.len();
            let older = self.writes.iter().any(|other| {
                other.disk == write.disk
                    && other.number < write.number
                    && other.offset < end
                    && write.offset < other.offset + other.data.len()
            });
            assert!(!older, "a write became durable over an older one that isn't");
            self.durable[write.disk][write.offset..end].copy_from_slice(&write.data);
        }
    }

    fn read(&self, disk: usize, offset: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.durable[disk][offset..offset + into.len()]);
        for write in self.writes.iter().filter(|write| write.disk == disk && write.completed) {
            let (start, end) =
                (write.offset.max(offset), (write.offset + write.data.len()).min(offset + into.len()));
            if start < end {
                into[start - offset..end - offset]
                    .copy_from_slice(&write.data[start - write.offset..end - write.offset]);
            }
        }
    }
}

/// One disk, as a member.
pub struct Disk {
    number: usize,
    info: DeviceInfo,
}

pub struct Source(pub usize);

impl DeviceSource for Source {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        Ok(device(self.0))
    }
    fn name(&self) -> String {
        format!("disk{}", self.0)
    }
}

pub fn source(disk: usize) -> Arc<dyn DeviceSource> {
    Arc::new(Source(disk))
}

pub fn device(disk: usize) -> Rc<dyn Device> {
    let size = DISKS.with_borrow(|disks| disks.durable[disk].len() as u64);
    let info = DeviceInfo {
        name: format!("disk{disk}"),
        size,
        logical_block: 512,
        volatile_cache: true,
        forces_by_flush: false,
        zeroes: ZeroedReads::Unsupported,
        discards: false,
        in_memory: false,
        moves_head: None,
    };
    Rc::new(Disk { number: disk, info })
}

fn submit(payload: Payload, done: Done) -> Submission {
    let (submission, completion) = Submission::pending(payload);
    let immediate = DISKS.with_borrow_mut(|disks| {
        disks.queue.push_back((completion, done));
        disks.immediate
    });
    if immediate {
        while complete_one() {}
    }
    submission
}

impl Device for Disk {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buffer: Buffer) -> Submission {
        let offset = usize::try_from(offset).unwrap();
        DISKS.with_borrow(|disks| disks.read(self.number, offset, &mut buffer));
        submit(Payload::Buffer(buffer), Done::Read)
    }

    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        let number = DISKS.with_borrow_mut(|disks| {
            let number = disks.next;
            disks.next += 1;
            let offset = usize::try_from(offset).unwrap();
            disks.writes.push(Write {
                number,
                disk: self.number,
                offset,
                data: Rc::new(data.to_vec()),
                completed: false,
            });
            number
        });
        submit(Payload::None, Done::Write { number, fua })
    }

    fn flush(&self) -> Submission {
        let numbers = DISKS.with_borrow(|disks| {
            let completed = disks.writes.iter().filter(|write| write.disk == self.number && write.completed);
            completed.map(|write| write.number).collect()
        });
        submit(Payload::None, Done::Flush { disk: self.number, numbers })
    }

    fn discard(&self, _: u64, _: u64) -> Submission {
        Submission::done(Ok(0), None)
    }

    fn write_zeroes(&self, _: u64, _: u64) -> Submission {
        Submission::done(Err(DeviceError::of(pinstripe_runtime::DeviceErrorKind::Unsupported)), None)
    }
}
