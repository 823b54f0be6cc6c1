//! The page's words.

pub const HEAD: &str = r#"# StRAID on Pinstripe

Written by `cargo xtask figures`. Wang and others, "StRAID" (USENIX ATC 2022): a worker thread for each
stripe write in place of MD's workers for all. `pinstripe bench --ablate` puts older designs' locks,
workers, joining and caches in the place of ours, in the same array ([decision
41](../../decisions/0041-older-designs-behind-gates.md) has what each preset is, and what it lacks).
`orig-raid` is MD's way, `straid` the paper's, `pinstripe` ours. It is not MD: kernel code is not run here
([beside MD](../performance.md)).

Every series is of one of two kinds:

- **real CPU**: members in memory, so no device's time hides what software costs. 64 requests under way in
  place of the paper's 64 user threads. Runs come one at a time.
- **virtual device**: models of the paper's drives under virtual time
  ([models](../../../crates/sim/src/drive/models.rs)). Locks and hand-offs take none of it. So the arms
  differ by what they read, write, join and cache, and the numbers are the same on every machine.

Chunks are 64 KiB, full stripes 320 KiB (RAID5 5+1) and 256 KiB (RAID6 4+2), with a bitmap. After every run
all that was written is read back and all parity is scrubbed; a mismatch ends the whole. All numbers are in
[straid.csv](straid/straid.csv).

"#;
pub const DIFFERS: &str = "## What differs, and why

What is called a guess was not measured.

- **Threads.** The paper's locks hurt where many cores meet. Where this machine has few CPUs, threads hardly
  meet, and figures 5 and 13 show next to no waiting in any arm. What `straid` gains on the real CPU is then
  the hand-off: how much of a stripe write's time goes from task to worker and back is the table *hand-off*
  below. So ratios are smaller than the paper's.
- **CPU cycles by function** (figures 5 and 13) need a sampling profiler. Waiting for locks, time inside
  them and the hand-off are metered here; XOR and I/O are not told apart. Time inside is sampled, and
  contains what other programs take of the CPU. At 4 KiB StRAID without its cache is inside locks for a larger share of
  its time than `orig-raid`: it makes half as many writes again.
- **Whether the meter sees waiting** is tried where threads do meet: with each of MD's locks held for 2 us longer (the last
  table of figures 5 and 13).
- **Waiting of `straid` is 0 by construction**: it has no lock to wait for. So figure 13's is no comparison
  that could come out another way, and isn't in the table. A ratio by `orig-raid` is left out where that is
  0 as well.
- **A stream of 64 KiB writes** (figures 10, 15, 20). MD's presets hold a stripe's writes back until it is
  whole, as MD does. StRAID reads first and takes what comes meanwhile. In the paper the lock made MD slow
  all the same. Without 64 threads the lock costs little, and gathering wins. So MD's way can be ahead here,
  with the paper's own reason: it reads next to nothing (figure 15).
- **Bytes written of a stream** (figure 15) are the same in both at 64 requests under way: so many neighbours arrive during
  StRAID's read that stripes become whole, too.
- **One user's stream** (figure 15). The paper has StRAID's cache read half of what MD reads. Here the
  presets of MD hold a write back only if others are under way.
- **Full stripes on the real CPU** are copies and XOR in all arms, and the memory's bandwidth bounds them.
- **Two-phase submission** (figure 20): joining takes time in which others can arrive, and drives give that. Memory answers
  at once, so there it shows with several threads and not with one (figure 10, a stream of 64 KiB).
- **The 980 Pro's model writes at its data sheet's 5 GB/s** while its cache has room. The paper's drives had
  a stable 2.6 GB/s.
- **980 Pro by 970 Pro** (figure 19): of drives that were written for long, stripes gain what their bandwidths for writes
  say, 2.6 by 2.2 GB/s. Writes of 64 KiB read as much as they write, and for reads the two drives have 6.9 and 3.2 GB/s
  (table 2 of the paper), so they gain more, in both arms. In the paper MD gains less than 5 %, for its lock bounds it.
- **Optane and slower SSDs** (figure 19): the arms do the same I/O for random writes, so with virtual
  devices they are alike. What the paper has StRAID gain is CPU time, which is in the real series. The
  paper's drop of Optane above 8 users is not in the model.
- **Traces** (figures 17 and 18, Table 5) are synthetic: made after Table 4 alone, so places and sizes are
  chosen. They are replayed over members in memory of 256 MiB, not for the paper's hours. Their hit rates
  can't be those of the originals. Figure 17 has throughput over time: here one mean. Figure 18 has whole
  distributions: here mean and 99 %, and of writes alone (fileserver reads 28 of 100 requests, prn_0 11).
- **The parity cache over memory** (figures 10, 14, 16, 17, Table 5): StRAID with it is behind `orig-raid` on small writes
  where StRAID without it is ahead: the rows *without StRAID's cache*. Most of that is its filling. A row that is kept
  keeps its buffer, so the next write takes memory that was never touched, and its first touch takes 4.0 us for 4 KiB
  in this virtual machine (a plain loop; later touches 0.09 us). Measured on 2026-11-30 with one thread, as CPU time of
  a write, since other programs ran: writes of 4 KiB took 12.6 us with the cache and 2.6 us without in a run of 0.2 s,
  and 3.9 and 3.0 us in one of 4 s. In the latter 15,373 rows were new and 56 ms more were needed: 3.7 us for each new
  row. Full stripes in chunks of 8 KiB look for no row at all, and took 79 us with the cache and 15 us without in 0.2
  s. After a warm-up of 4 s it was 3.5 beside 2.9 us, and 16.5 beside 13.8 us: a guess is that a kept row is cold in the
  CPU's caches, where a buffer that is used again is hot. So a server pays the most of it once. Patterns are measured
  after a warm-up of 0.2 s, in which the cache isn't full, and traces after none. Ours keeps nothing in its cache over
  memory. Over models of drives it saves reads and time (figure 10, six 980 Pro, 4 KiB). A guess: the
  synthetic prxy_0 hits less than the original because its random places are drawn evenly, where the original's repeat.
- **Traces over models** (figures 17 and 18, Table 5): in the paper the drives bound them, at 1.7 GB/s and less. Over
  models of its 980 Pro at their stable 2.6 GB/s nothing but drives takes time, so what remains of StRAID's gain is what
  it reads and writes less. Its gain of CPU time and of locks is in the series of the real CPU alone.
- **Latency over memory** counts from the end of the client's last request: as many requests are under way as there are
  clients. Figures 12 and 18 were measured so on 2026-11-30; what stood here before was the time of a request's own
  work (by Little's law 2 of 64 were under way in `straid`, 49 in `orig-raid`).
- **On another machine** all experiments of the real CPU but `ssd-*` were run again, by c0e92e1c on 2026-12-01, while other
  programs used it (load up to 3.35). Its intervals are two to four times as wide, and its table is not kept. Of 92
  verdicts none turned round: 29 of 53 *yes* could not be told there, nor could 2 *no*; of 29 that can't be told here
  6 were *yes* and 11 *no*, all 11 for the parity cache.
- **EPLOG** is not here. Of the paper's sizes, 1 MiB is not a multiple of a stripe of 320 KiB; full stripes
  stand for it.
- **Figure 16** compares within chunks of 8 KiB; by chunks of 64 KiB compare with RAID6 in figure 10.

";
/// Why a comparison went the other way.
pub const HELD: &str = "2 us are too short for two threads on a quiet machine; a test of `bench` holds a lock for longer and asserts 20 %";
pub const CACHE: &str = "its parity cache (measured: the row without it); see *the parity cache over memory*";
pub const GATHERING: &str = "MD's way waits until a stripe is whole and reads next to nothing (measured: figure 15); its lock \
                             costs little with few threads";
pub const GATHERING_VIRTUAL: &str = "MD's way waits until a stripe is whole and reads next to nothing (measured: figure 15); its lock takes no virtual time";
pub const MODELS: &str = "what StRAID gains is CPU time, which is none here; see *traces over models*";
pub const RAID6: &str = "see the same over models of drives, where the cache costs no time";
pub const SIDE_BY_SIDE: &str = "small writes, 32 under way, don't fill six drives, and what Q needs goes side by side with the rest (measured: mean \
                                latency is alike)";
pub const SAME_WORK: &str =
    "both arms do the same reads and writes (measured: figure 15), and CPU time is none here";
pub const FRESH: &str = "the model of a fresh 980 Pro writes 5 GB/s, the paper's drives had a stable 2.6 GB/s: see the row of drives \
                         that were written for long";
pub const USED_UP: &str =
    "half of the work is reads, for which the two have 6.9 and 3.2 GB/s (the paper's table 2)";
pub const USED_UP_MD: &str = "the drives bound it here, and MD's lock in the paper";
pub const OPTANE: &str = "at 64 under way bandwidth bounds it, 2.3 GB/s writing by the model and 2.6 of the 980 Pro; the paper's gain is of \
                          latency, at fewer";
pub const ONE_USER: &str = "the presets of MD hold a write back only if others are under way, and a stream finds nothing in the cache: both \
                            read the same";
pub const STRIPE_CACHE: &str = "`orig-raid` keeps no pages of stripes that were written, as MD's stripe cache does (decision 41): so it \
                                can't have MD's hits";
pub const FIGURE_4: &str = "more workers help up to 16 (2.4 times one worker's throughput with 16 user threads and 8 more workers, \
     3.6 times with 64), and cost 5 % at 64 workers.";
pub const FIGURE_5_13: &str = "MD's device lock takes 4.3 % of a worker's cycles with one worker and 54.6 % with 64. With 64 user \
     threads locks take 46.1 % in MD and 5.1 % in StRAID at 64 KiB, 36.7 % and 1.3 % on full stripes.";
pub const FIGURE_10: &str = "with 64 user threads StRAID has 2.1 times MD's throughput at 4 KiB, 2.9 times at 64 KiB and 2.1 times on \
     full stripes; with one, 2.1, 1.5 and 4.6 (random) or 5.2 times (a stream). EPLOG is slower; there is no \
     such arm here.";
pub const FIGURE_11: &str = "reads are alike, to less than 5 %.";
pub const FIGURE_12: &str = "with 64 user threads StRAID's mean latency is 75 % less at 4 KiB, 76 % at 64 KiB and 69 % on full \
     stripes; its 99 % latency is 22 to 67 % less.";
pub const FIGURE_14: &str = "MD takes up to 6.3 times the CPU of StRAID with 64 user threads, and twice with fewer than 8, for less \
     throughput.";
pub const FIGURE_15: &str = "random writes read and write as much. A stream has StRAID write up to 12 % more; with one user StRAID \
     reads half, with 64 twelve times as much as MD.";
pub const FIGURE_16: &str = "RAID6, writes of 64 KiB: with chunks of 8 KiB, so full stripes, StRAID has 1.9 times what it has with \
     chunks of 64 KiB, and MD up to 3.1 times.";
pub const FIGURE_17_18: &str = "32 requests at a time, chunks of 8 KiB: StRAID has 2 to 3.1 times MD's throughput, and 49 to 80 % less \
     mean latency. Its RAID5 has 10 to 15 % more than its RAID6. The 99 % latency is 25 % less on average.";
pub const FIGURE_19: &str = "StRAID on 980 Pro has up to 20 % more than on 970 Pro, MD less than 5 %. On Optane it has up to 1.5 \
     times MD's throughput at 64 KiB and 1.35 times on full stripes. In RAM it has up to 5.8 times (here: \
     figure 10, real CPU).";
pub const FIGURE_20: &str = "a stream of 64 KiB writes by 64 users has 3.5 times the throughput with two-phase submission, full \
     stripes less than 4 % more.";
pub const FIGURE_21: &str =
    "degraded reads are alike, to less than 5 %; degraded writes have 1.5 to 1.7 times MD's throughput.";
pub const TABLE_5: &str = "prxy_0 on RAID5 with chunks of 8 KiB: 4, 16, 64 and 256 MiB hit 39, 45, 55 and 57 %, and have 1.07, \
     1.10, 1.15 and 1.16 times the throughput without a cache. MD has 0.45 times, and reads half as much.";
