//! docs/results/performance.md: every set of measurements that there is, with tables and charts.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::chart;
use super::results::{Measured, Spread};
use crate::origin;

/// Where charts and measurements lie, from the root.
const FOLDER: &str = "docs/results/performance";
/// The page.
const PAGE: &str = "docs/results/performance.md";

/// A part of the page: servers that were measured in turns.
pub struct Part {
    /// Of its files.
    pub name: &'static str,
    title: &'static str,
    about: &'static str,
    /// The server beside which ours is measured.
    pub base: &'static str,
    /// What no server behind the same driver can pass, if there is such a thing.
    ceiling: Option<&'static str>,
    /// What measures it again.
    again: &'static str,
    /// Where ours is slower: what a profile says of it.
    held_back: Option<&'static str>,
}

/// The virtual machine's.
pub const VM: &str = "vm";
/// Real devices'.
pub const HERE: &str = "here";
/// NBD's.
pub const NBD: &str = "nbd";
/// That of whole stripes in memory.
pub const SPDK: &str = "spdk";

const PARTS: &[Part] = &[
    Part {
        name: VM,
        title: "Beside Linux MD, in a virtual machine",
        about: "Six RAM disks (brd) of one virtual machine with two CPUs, Debian's kernel. The same array is served in turns by MD \
(`stripe_cache_size` 16384, `group_thread_cnt` 2) and by `pinstripe serve --ublk --shards 2`; fio's io_uring engine asks for direct I/O. *null* is a \
ublk device of ours behind which there is nothing: it answers every request at once, and no server of a ublk device can do more. **The machine is \
emulated (QEMU's TCG).** Emulation makes crossings between programs and kernel dear beside copies, of which a ublk device has two for each request and MD \
none, and vector instructions dear beside others, on which both compute parity; it has no AVX-512. So these figures inform; what decides is `cargo xtask \
bench here` on real devices. Every turn ends with a scrub of all parity, which must find nothing, and with data read back that was written with checksums; \
the next turn reads it once more, so that MD's data is read by us and ours by MD. With a member missing it is read too.",
        base: "MD",
        ceiling: Some("null"),
        again: "cargo xtask bench vm",
        held_back: Some(VM_HELD_BACK),
    },
    Part {
        name: HERE,
        title: "Beside Linux MD, on real devices",
        about: "The same without emulation, checked alike.",
        base: "MD",
        ceiling: Some("null"),
        again: "cargo xtask bench here DEVICE...",
        held_back: None,
    },
    Part {
        name: NBD,
        title: "NBD, beside nbdkit's memory plugin",
        about: "`nbdkit memory` holds bytes in memory, and keeps no parity. `pinstripe serve --create --shards 1` has members in memory, here of a RAID5 \
5+1. Both on unix sockets of one machine, without emulation; fio's nbd engine has one connection to each. When all was measured, each server was written \
once with checksums and read back, and our parity was scrubbed.",
        base: "nbdkit",
        ceiling: None,
        again: "cargo xtask bench nbd",
        held_back: None,
    },
    Part {
        name: SPDK,
        title: "Beside SPDK's raid5f",
        about: SPDK_ABOUT,
        base: "raid5f",
        ceiling: None,
        again: "cargo xtask bench spdk --spdk DIR --pairs 10 --seconds 2",
        held_back: Some(SPDK_HELD_BACK),
    },
];

/// What is compared with SPDK, what isn't, and how to build it.
const SPDK_ABOUT: &str = "Writes of whole stripes of RAID5 5+1 (320 KiB, chunks of 64 KiB), members of 512 MiB in memory, on CPU 0. SPDK's load comes \
from its `bdevperf`, ours from `pinstripe bench --shards 1`: both call the array in their own process. Each measurement has a new process with a new array. SPDK's first \
one writes data and reads it back (`-w verify`), and isn't scrubbed; each of ours ends with a scrub and with all data read back.

What differs:

- SPDK's members are `bdev_malloc` on reserved huge pages of 2 MiB. Its software module of acceleration copies with the C library's `memcpy`, and computes parity \
by ISA-L. Ours are memory on the kernel's transparent huge pages, written with non-temporal stores.
- raid5f takes writes of whole stripes only: SPDK refuses a smaller one. It keeps no write-intent bitmap, and two writes of one stripe at a time don't wait for each \
other. Ours takes writes of any size, and is measured without a bitmap, which is alike, and with one. Partial writes can't be compared, and reads aren't: \
a healthy array's read needs no parity.
- `pinstripe bench` writes a mark of 16 bytes into each sector of every request, by which the data is checked; `bdevperf` writes the same bytes again and again.
- The p99 at a depth above 1 can't be compared. Members in memory complete inline, so the clients of `pinstripe bench` take turns. When this was \
measured, a request's time was that of its own work; it is that of its wait for a turn, too, since. `bdevperf`'s is measured from a submission that \
waits for those before.

SPDK isn't built by this repository. The build that was measured: SPDK v26.05 with its submodule isa-l (c196241) and with DPDK v25.11 (the submodule is that version with SPDK's \
patches), on Debian 12 with gcc 12.2:

```sh
apt-get install build-essential meson ninja-build nasm autoconf automake libtool help2man pkg-config python3-pyelftools python3-tabulate python3-jinja2 \\
  libaio-dev libnuma-dev libssl-dev uuid-dev libjson-c-dev libncurses-dev libkeyutils-dev
git clone --branch v26.05 https://github.com/spdk/spdk && cd spdk
git submodule update --init dpdk isa-l isa-l-crypto
./configure --with-raid5f --disable-tests --disable-unit-tests --disable-apps --without-crypto --without-vhost --without-virtio \\
  --without-uring --without-fio --without-vfio-user --without-ublk --without-nvme-cuse --without-fsdev --without-idxd
make -j2
sysctl vm.nr_hugepages=2304 && mount -t hugetlbfs none /dev/hugepages
```

Without huge pages (`bdevperf --no-huge -s 3800`) it wrote 0.04 to 0.22 of what it wrote with them, in one run of each depth on a busy machine.";

/// From profiles of both.
const SPDK_HELD_BACK: &str = "The goal is 1.3 times, and every median reaches it; four of the 120 pairs are below it (1.14 to 1.29). Other work shared \
the machine's two CPUs during the run. Profiles by `perf` (cpu-clock), sequential writes without a bitmap, one run of 4 s each:

- **raid5f copies.** At depth 1 `memcpy` takes 74 % of the samples that are left without the zeroing of memory at the start, and ISA-L's XOR 9 %; at depth 32 they take 64 % and 23 %. \
`memcpy`'s plain stores fetch the lines that they overwrite; non-temporal stores don't.
- **At depth 32 our XOR takes longer.** The clients' buffers are then 10 MiB, more than the 2 MiB of L2 cache, and XOR reads them first. It takes 0.13 of the time of the copies to the members (`Memory::copy_in_streaming`) at depth 1, \
and 0.86 at depth 32.";

/// From profiles and counters in the guest.
const VM_HELD_BACK: &str = "Profiles by `perf` in the guest (cpu-clock) and `perf trace`, 4 KiB random writes, at commit 941596e:

- **One of two CPUs sleeps.** fio has one job, so its requests come by the ublk queue of one CPU, which one shard serves. On RAID6 this shard has a \
whole CPU, fio a quarter of the other one, which sleeps three quarters of the time; on RAID5 the two CPUs sleep 35 % of the time. Since then a shard \
that has many requests of 64 KiB or more hands some to another one: new beside old in two turns of one guest, the host busy, random writes of 64 KiB are \
1.56 times as fast on RAID5 and 1.26 times on RAID6, reads of 1 MiB 1.65 and 1.83 times, sequential writes of 64 KiB 1.02 and 0.94 times. 4 KiB writes stay where \
they are: handing all of them over gave no clear gain here.
- **A new server is slow at first.** In its first run of writes 1 % takes more than 28 ms, in later runs of the same server 4 to 10 ms, with up to a fifth \
more requests/s. Each measurement here begins with a new server. The profile has page zeroing in `io_uring_register` (2.9 % of both CPUs): memory \
for parity that is kept is mapped and registered 4 MiB at a time, at its first use, and the shard stands still meanwhile. One such call took 52 ms. Populating the next part ahead by another thread makes a call take 0.03 to 0.06 ms instead of 0.42 to 0.87 \
(strace, without a virtual machine), but no p99 got better beyond noise on two shared CPUs \
(the same binary differed by 2.4 times), so it is left.
- **What it is not.** No reads or writes wait in the kernel's worker threads. A shard enters the kernel about once for four writes. `detail` counts five \
flushes of a member in more than 11,000 writes.
- **Q.** Updates of Q multiply by table (`PSHUFB`); MD doubles, which is cheaper to emulate. `update_pq` and `pq` are 19 % of the busy shard's time on \
RAID6; all of it saved would give 1.23 times as many requests/s. The scalar kernel is slower still (4270 beside 5344 requests/s). Natively with AVX2, doubling instead of tables makes updates \
for the first two data members 1.2 to 1.6 times as fast, and for the next two up to 1.5 times as slow: \
with the better one for each, in-place updates of 4+2 gain 9 to 13 %, which is below 1 % of a write.
- **Two copies.** A read is copied from the member into the server and from there to fio, MD's once.";

/// What `cargo xtask bench parity` measures.
const PARITY: &str = "## Parity kernels, beside ISA-L

XOR and P+Q of 4, 8 and 16 sources by our kernel and by Debian's ISA-L 2.30, one thread. Every buffer begins at a page,
as in the engine. *Hot*: the same buffers each time, and as much of them in the caches as fits. *Cold*: 768 MiB of
buffers take turns. The two compute in turn, 1.5 to 3 ms of ISA-L's, 41 times, and change places each time; the ratio is
the median of the pairs, with its quartiles. Above 1 ours is faster. Before a shape is measured, both must give the same
bytes.

";

/// From the table that is kept.
const PARITY_HELD_BACK: &str = "### What holds it back

The goal is 1.0 everywhere (0.97 counts as equal), and 1.3 for P+Q in the cache of 8 and 16 sources. Of the run of
commit 4c3b7fdc:

- **P+Q in the cache reaches 1.3 at 4 and 64 KiB** (1.43 to 2.10), and not at 1 MiB: 0.97 and 0.98. These two cells
miss the goal. What they wait for wasn't profiled.
- **P+Q of 4 sources of 1 MiB** is 0.97 with quartiles of 0.91 and 1.02.
- **Cold, XOR is within 0.02 of 1.0**, and P+Q is 0.98 to 1.08.
- **Stores are plain.** In the same run kernels with non-temporal stores, which save the read of the line that is
written, reached 1.03 to 1.46 cold, 1.07 and 1.15 in the two cells above, and 0.21 to 0.65 in the cache with 4 sources of
up to 64 KiB. What the engine computes goes to a member next, from the cache. So nothing used them, and they are gone.
";

const HEAD: &str = "# Performance: beside others

Written by `cargo xtask bench`, which boots the virtual machine and measures all that needs no devices of its own; `cargo xtask bench parity` measures the \
parity kernels, and `cargo xtask bench page` writes this page \
again from what is kept in [performance](performance/). Servers take turns, several times, within one run: only the ratios of such pairs mean something, \
and each ratio is the median of the pairs, with the lowest and the highest. Each part says what of its data was checked. What the engine reaches beside a straight line without any client is in [engine.md](engine.md).

";

/// The part of this name.
pub fn part(name: &str) -> Option<&'static Part> {
    PARTS.iter().find(|part| part.name == name)
}

/// Keeps what was measured of a part, and writes the page.
pub fn keep(base: &Path, name: &str, measured: &Measured) -> Result<()> {
    let folder = base.join(FOLDER);
    fs::create_dir_all(&folder)?;
    origin::save(measured, &folder.join(format!("{name}.json")))?;
    write(base)
}

/// Where the table of parity kernels is kept.
pub fn parity_file(base: &Path) -> PathBuf {
    base.join(FOLDER).join("parity.md")
}

/// Writes page and charts from what is kept.
pub fn write(base: &Path) -> Result<()> {
    let folder = base.join(FOLDER);
    let mut text = HEAD.to_owned();
    for part in PARTS {
        let file = folder.join(format!("{}.json", part.name));
        let Some(measured) = origin::load::<Measured>(&file)? else {
            let _ = writeln!(text, "## {}\n\nNot measured yet: `{}`.\n", part.title, part.again);
            continue;
        };
        text.push_str(&part.section(&measured));
        for (name, svg) in part.charts(&measured)? {
            fs::write(folder.join(&name), svg).with_context(|| format!("write {name}"))?;
        }
    }
    if let Ok(table) = fs::read_to_string(parity_file(base)) {
        let _ = write!(text, "{PARITY}{table}\n{PARITY_HELD_BACK}");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    let path = base.join(PAGE);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

impl Part {
    /// Title, tables and where they come from.
    pub fn section(&self, measured: &Measured) -> String {
        let mut text = format!("## {}\n\n{}\n\n", self.title, self.about);
        let origin = &measured.origin;
        let _ = writeln!(
            text,
            "Commit {}, {} UTC, {}, load average before {}. {} turns each, {} s a measurement, {} requests under way unless a row says another \
             number. Again: `{}`.\n",
            origin.commit,
            origin.date,
            origin.machine,
            origin.load,
            measured.pairs(),
            measured.seconds,
            super::cells::DEPTH,
            self.again
        );
        for subject in measured.subjects() {
            let _ = writeln!(text, "### {subject}\n");
            if self.is_drawn(measured, subject) {
                let file = self.chart_file(subject);
                let _ = writeln!(text, "![{subject}: Pinstripe by {}](performance/{file})\n", self.base);
            }
            self.table(&mut text, measured, subject);
            text.push('\n');
        }
        if let Some(why) = self.held_back {
            let _ = writeln!(text, "### What holds it back\n\n{why}\n");
        }
        text
    }

    fn table(&self, text: &mut String, measured: &Measured, subject: &str) {
        let base = self.base;
        let _ = write!(text, "| | {base} | Pinstripe | Pinstripe by {base} | p99, ms: {base} | Pinstripe |");
        let ceiling = self.ceiling.filter(|arm| measured.rows.iter().any(|row| row.arm == *arm));
        let _ = ceiling.map(|arm| write!(text, " {arm} | Pinstripe by {arm} |"));
        let columns = if ceiling.is_some() { 8 } else { 6 };
        let _ = writeln!(text, "\n|---|{}", "---:|".repeat(columns - 1));
        for cell in measured.cells(subject) {
            let amount = |arm| in_amounts(measured.spread(subject, cell, arm, |row| row.iops), cell.kib);
            let slowest = |arm| in_milliseconds(measured.spread(subject, cell, arm, |row| row.p99_us));
            let ratio = |base| in_ratios(measured.ratio(subject, cell, OURS, base));
            let unit = if cell.kib < AMOUNT_IN_MB { "requests/s" } else { "MB/s" };
            let _ = write!(
                text,
                "| {cell}, {unit} | {} | {} | {} | {} | {} |",
                amount(base),
                amount(OURS),
                ratio(base),
                slowest(base),
                slowest(OURS)
            );
            let _ = ceiling.map(|arm| write!(text, " {} | {} |", amount(arm), ratio(arm)));
            text.push('\n');
        }
    }

    /// A chart for each subject that was measured beside the base.
    fn charts(&self, measured: &Measured) -> Result<Vec<(String, String)>> {
        let drawn = measured.subjects().into_iter().filter(|subject| self.is_drawn(measured, subject));
        drawn
            .map(|subject| {
                let bars = measured
                    .cells(subject)
                    .into_iter()
                    .filter_map(|cell| Some((cell, measured.ratio(subject, cell, OURS, self.base)?)));
                let title = format!("{subject}: Pinstripe by {}", self.base);
                Ok((self.chart_file(subject), chart::svg(&title, &bars.collect::<Vec<_>>())?))
            })
            .collect()
    }

    fn is_drawn(&self, measured: &Measured, subject: &str) -> bool {
        measured
            .cells(subject)
            .into_iter()
            .any(|cell| measured.ratio(subject, cell, OURS, self.base).is_some())
    }

    fn chart_file(&self, subject: &str) -> String {
        let plain =
            |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
        format!("{}-{}.svg", self.name, subject.chars().map(plain).collect::<String>())
    }
}

/// Our arm.
pub const OURS: &str = "Pinstripe";
/// Requests from this size on, in KiB, are counted by their bytes.
const AMOUNT_IN_MB: u32 = 64;

fn in_amounts(spread: Option<Spread>, kib: u32) -> String {
    let factor = if kib < AMOUNT_IN_MB { 1.0 } else { f64::from(kib) * 1024.0 / 1e6 };
    spread.map_or_else(String::new, |spread| format!("{:.0}", spread.median * factor))
}

fn in_milliseconds(spread: Option<Spread>) -> String {
    spread.map_or_else(String::new, |spread| format!("{:.2}", spread.median / 1e3))
}

fn in_ratios(spread: Option<Spread>) -> String {
    spread.map_or_else(String::new, |Spread { median, low, high }| {
        format!("{median:.2} ({low:.2} to {high:.2})")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::Row;
    use crate::bench::results::tests::measured;

    #[test]
    fn a_table_has_medians_and_ratios_of_pairs_with_their_range() {
        let text = part(VM).unwrap().section(&measured());
        let row = "| 4 KiB random writes, requests/s | 1200 | 1500 | 1.50 (0.50 to 2.00) | 1.50 | 1.50 | 5000 | 0.50 (0.10 to 0.80) |";
        assert!(text.contains(row), "{text}");
        assert!(
            text.contains("Commit abc, 2026-01-02 03:04 UTC, 2 CPUs, load average before 0.1, 0.2. 3 turns"),
            "{text}"
        );
        assert!(text.contains("](performance/vm-raid5-5-1-with-bitmap.svg)"), "{text}");
    }

    #[test]
    fn a_part_says_itself_what_of_its_data_was_checked() {
        assert!(!HEAD.contains("scrub"), "not all parts are checked alike");
        for (name, words) in [
            (VM, "Every turn ends with a scrub"),
            (NBD, "each server was written once with checksums"),
            (SPDK, "isn't scrubbed"),
        ] {
            let about = part(name).unwrap().about;
            assert!(about.contains(words), "{about}");
        }
    }

    #[test]
    fn what_was_not_measured_is_left_out_or_named() {
        let mut alone = measured();
        alone.rows.retain(|row: &Row| row.arm == OURS);
        let text = part(HERE).unwrap().section(&alone);
        assert!(text.contains("| 4 KiB random writes, requests/s |  | 1500 |  |  | 1.50 |\n"), "{text}");
        assert!(!text.contains("null |") && !text.contains(".svg"), "{text}");
        let base = std::env::temp_dir().join(format!("pinstripe-xtask-page-{}", std::process::id()));
        keep(&base, NBD, &measured()).unwrap();
        let page = fs::read_to_string(base.join(PAGE)).unwrap();
        fs::remove_dir_all(&base).unwrap();
        assert!(page.contains("Not measured yet: `cargo xtask bench vm`."), "{page}");
        assert!(!page.contains("Not measured yet: `cargo xtask bench nbd`."), "{page}");
    }

    #[test]
    fn large_requests_are_counted_by_their_bytes() {
        let spread = Spread::of([100.0].into_iter());
        assert_eq!((in_amounts(spread, 4), in_amounts(spread, 1024)), ("100".to_owned(), "105".to_owned()));
    }
}
