//! The drives that there are models of, with the source of every figure.
//!
//! What no source gives is called an assumption. No drive was measured for this.

use super::{Channels, Head, Mechanism, Model, SECOND_NS, Seek, Spare, Speed, WriteCache};

/// The names of all models.
pub const NAMES: [&str; 8] = [
    "7200rpm",
    "7200rpm-write-through",
    "7200rpm-in-order",
    "x25-e",
    "860-pro",
    "970-pro",
    "980-pro",
    "optane-pm",
];

/// The name of those of drives that were measured.
pub(super) const MEASURED: &str = "measured";

const MILLISECOND: u64 = 1_000_000;
const GIGABYTE: u64 = 1_000_000_000;

impl Model {
    /// The model of this name.
    pub fn named(name: &str) -> Option<Self> {
        MODELS.into_iter().find(|model| model.name == name)
    }

    /// A drive that was measured, with so many requests at a time at most. It is the same everywhere: what a
    /// head's way costs isn't told from other latency.
    pub fn measured(read: Speed, write: Speed, flush_ns: Option<u64>, count: usize, duplex: bool) -> Self {
        let mechanism = Mechanism::Channels(Channels { count: count.max(1), duplex, spare: None });
        Self { name: MEASURED, read, write, flush_ns, mechanism }
    }

    /// The same disk without a write cache, and with a queue of this length.
    const fn head(self, name: &'static str, queue: usize) -> Self {
        let Mechanism::Head(head) = self.mechanism else { panic!("a disk has a head") };
        let mechanism = Mechanism::Head(Head { queue, cache: None, ..head });
        Self { name, flush_ns: None, mechanism, ..self }
    }
}

const MODELS: [Model; 8] = [
    DISK_7200,
    DISK_7200_WRITE_THROUGH,
    DISK_7200_IN_ORDER,
    INTEL_X25_E,
    SAMSUNG_860_PRO,
    SAMSUNG_970_PRO,
    SAMSUNG_980_PRO,
    OPTANE_PM,
];

/// A disk of 7,200 rpm as those of RAID4S-modthresh, Western Digital's Caviar Black of 640 GB.
///
/// - Revolution 8.33 ms, average latency 4.2 ms, seeks of 2.0 ms to the next track, 8.9 ms on average and 21
///   ms over the full stroke, overhead of the controller 0.3 ms: the specification of a Caviar of 7,200 rpm,
///   the WD400BB, as kept by lyberty.com. That the Caviar Black has the same is an assumption.
/// - Before writes the head settles for 0.8 ms longer: the specification of the Ultrastar DC HC310 of 7,200
///   rpm (manualshive.com, page 23 of its specification) has seeks of 7.4 ms for reads and 8.2 ms for writes
///   on average. The WD400BB's has 2 ms more for writes, with which a disk can't have as many writes a second
///   as are published below.
/// - 106 MB/s all over the disk: the data rate of the 333 GB platters of the Caviar Black WD1001FALS
///   (community.wd.com/t/caviar-blue-wd10eals-platter-size/13478). That those of 320 GB have it is an
///   assumption. (Real disks are slower inside; members that take the first part of the disk don't see that.)
/// - 32 commands in its queue, ordered by seek and angle: Native Command Queuing has as many, and rotational
///   position ordering is what it is for (Intel and Seagate, Serial ATA Native Command Queuing, July 2003).
/// - A write cache that is on: xbitlabs.com's reviews of desktop disks ("deferred writing"). Results of three
///   drives by CrystalDiskMark over 1 GB are published (pastebin.com/3Q7RYtj9, XrkgJVUX and s5SR6XZb;
///   names not said, about 109, 155 and 170 MB/s): reads of 4 KiB come 80, 95 and 100 times a second at depth
///   1, and 232, 210 and 306 times at depth 32; writes 274, 286 and 355 times at depth 1, and 239, 337 and
///   357 times at depth 32. So a cache sorts writes at any depth about as well as a full queue sorts reads,
///   and doesn't hold thousands of them: 32 writes fit into it, whatever their size. That is an assumption,
///   with which there are about as many writes as are published.
/// - Which of its work goes next: requests that the host waits for, cached writes when there are none, when
///   the cache is full or for a flush: an assumption. 300 MB/s from the host: Serial ATA's second speed.
const DISK_7200: Model = Model {
    name: "7200rpm",
    read: DISK_7200_SPEED,
    write: DISK_7200_SPEED,
    flush_ns: Some(DISK_7200_SPEED.access_ns),
    mechanism: Mechanism::Head(Head {
        capacity: 640 * GIGABYTE,
        revolution_ns: 60 * SECOND_NS / 7200,
        seek: Seek::through(2 * MILLISECOND, 8_900_000, 21 * MILLISECOND),
        settle_ns: 800_000,
        queue: 32,
        cache: Some(WriteCache { writes: 32, bytes_per_second: 300_000_000 }),
    }),
};

/// The same disk with its write cache turned off.
const DISK_7200_WRITE_THROUGH: Model = DISK_7200.head("7200rpm-write-through", 32);

/// The same without queuing either: requests are served in the order in which they come.
const DISK_7200_IN_ORDER: Model = DISK_7200.head("7200rpm-in-order", 1);

const DISK_7200_SPEED: Speed = Speed { access_ns: 300_000, interval_ns: 0, bytes_per_second: 106_000_000 };

/// Intel X25-E of 64 GB, the SSD of RAID4S-modthresh.
///
/// - 250 MB/s reading and 170 MB/s writing: Tech Report, 2008-11-23 (techreport.com/review/15931).
/// - Ten channels: Tom's Hardware (tomshardware.com/reviews/x25-e-ssd-performance,2365-2.html).
/// - Latencies of 75 and 85 us, 35,000 random reads and 3,300 random writes of 4 KiB a second: Intel's
///   product manual 319984, which could not be looked up here.
/// - 14,000 random writes a second before the spare area of 16 GB is used up, and a flush of 1 ms:
///   assumptions.
const INTEL_X25_E: Model = Model {
    name: "x25-e",
    read: Speed::of(13_333, 35_000, 250),
    write: Speed::of(11_764, 14_000, 170),
    flush_ns: Some(MILLISECOND),
    mechanism: Mechanism::Channels(Channels {
        count: 10,
        duplex: false,
        spare: Some(Spare { bytes: 16 * GIGABYTE, used_up: Speed::of(3_300, 3_300, 170) }),
    }),
};

/// Samsung 860 Pro of 512 GB.
///
/// - 510 MB/s reading and 500 MB/s writing, stable: table 2 of StRAID. (Samsung: 560 and 530.)
/// - 100,000 reads and 90,000 writes of 4 KiB a second: KitGuru's review of the 860 Pro of 4 TB.
/// - 11,000 and 43,000 one by one: Samsung's data sheet, which could not be looked up here.
/// - A spare area of 36 GB, a third of the random writes once it is used up, and a flush of 0.5 ms:
///   assumptions.
const SAMSUNG_860_PRO: Model = Model {
    name: "860-pro",
    read: Speed::of(11_000, 100_000, 510),
    write: Speed::of(43_000, 90_000, 500),
    flush_ns: Some(500_000),
    mechanism: Mechanism::Channels(Channels {
        count: 32,
        duplex: false,
        spare: Some(Spare { bytes: 36 * GIGABYTE, used_up: Speed::of(30_000, 30_000, 500) }),
    }),
};

/// Samsung 970 Pro of 512 GB.
///
/// - 3,200 MB/s reading and 2,200 MB/s writing, stable: table 2 of StRAID. (Samsung: 3,500 and 2,300.)
/// - 370,000 reads and 500,000 writes of 4 KiB a second: Puget Systems' page of the MZ-V7P512E.
/// - 15,000 and 55,000 one by one: Samsung's data sheet, which could not be looked up here.
/// - A spare area of 36 GB, a third of the random writes once it is used up, and a flush of 0.3 ms:
///   assumptions.
const SAMSUNG_970_PRO: Model = Model {
    name: "970-pro",
    read: Speed::of(15_000, 370_000, 3_200),
    write: Speed::of(55_000, 500_000, 2_200),
    flush_ns: Some(300_000),
    mechanism: Mechanism::Channels(Channels {
        count: 64,
        duplex: false,
        spare: Some(Spare { bytes: 36 * GIGABYTE, used_up: Speed::of(55_000, 166_000, 2_200) }),
    }),
};

/// Samsung 980 Pro of 1 TB.
///
/// - 6,900 MB/s reading, and 2,600 MB/s writing once the fast buffer is full: table 2 of StRAID. (Samsung:
///   7,000 and 2,000.)
/// - 5,000 MB/s writing into a fast buffer of 42 GB, 22,000 reads and 60,000 writes of 4 KiB a second one by
///   one, a million at most: Notebookcheck of Samsung's specification (article 490845).
/// - 400,000 random writes a second once the buffer is full, and a flush of 0.3 ms: assumptions.
const SAMSUNG_980_PRO: Model = Model {
    name: "980-pro",
    read: Speed::of(22_000, 1_000_000, 6_900),
    write: Speed::of(60_000, 1_000_000, 5_000),
    flush_ns: Some(300_000),
    mechanism: Mechanism::Channels(Channels {
        count: 128,
        duplex: false,
        spare: Some(Spare { bytes: 42 * GIGABYTE, used_up: Speed::of(60_000, 400_000, 2_600) }),
    }),
};

/// One module of Intel's Optane persistent memory.
///
/// - 305 ns for a random read, 6.6 GB/s reading and 2.3 GB/s writing: Izraelevitz et al., Basic Performance
///   Measurements of the Intel Optane DC Persistent Memory Module (arXiv 1903.05714). (StRAID: 6 and 2 GB/s.)
/// - 100 ns for a write, and 16 requests at a time: assumptions.
const OPTANE_PM: Model = Model {
    name: "optane-pm",
    read: Speed { access_ns: 305, interval_ns: 0, bytes_per_second: 6_600_000_000 },
    write: Speed { access_ns: 100, interval_ns: 0, bytes_per_second: 2_300_000_000 },
    flush_ns: None,
    mechanism: Mechanism::Channels(Channels { count: 16, duplex: false, spare: None }),
};
