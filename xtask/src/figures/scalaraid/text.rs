//! The page's words.

pub const HEAD: &str = r#"# ScalaRAID on Pinstripe

Written by `cargo xtask figures`. Yi and others, "ScalaRAID" (HotStorage 2022): 128 locks for stripes in
place of few (HemiRAID), and a lock for each of the bitmap's counters, neighbouring pages on different
counters (ScalaRAID). `pinstripe bench --ablate` puts these in the place of ours, in the same array
([decision 41](../../decisions/0041-older-designs-behind-gates.md) has what each preset is, and what it
lacks). `orig-raid` is MD's way; it is not MD: kernel code is not run here ([beside MD](../performance.md)).

**Real CPU** series have members in memory, so no device's time hides what software costs, one run at a
time. **Virtual device** series have models of Samsung 980 Pro under virtual time, in which locks take none.
RAID5, chunks of 64 KiB, 32 requests under way, as the paper's iodepth. After every run all that was written
is read back and all parity is scrubbed; a mismatch ends the whole. All numbers are in
[scalaraid.csv](scalaraid/scalaraid.csv).

"#;
pub const DIFFERS: &str = "## What differs, and why

- **Threads.** The paper has 3 to 33 threads, and its gains begin at 17. With few CPUs threads hardly meet:
  the tables of *waiting for locks* say how little. Then the three designs differ by nothing but the number
  of locks that a write passes, and ScalaRAID's has more of them (a counter's own and the table's). So where
  no gain can be told here, it is for want of CPUs, and `--only scalaraid` on a machine with more goes on.
- **Locks held for longer** (*with locks held for 2 us longer*) make two threads meet as often as many do. Each lock that
  a design takes is held for 2 us more, in all three alike. So the order of the designs can be told; how far apart
  they are says nothing about MD's own locks.
- **The hand-off to workers** is the largest part of a stripe write in all three (figure 3, *hand-off*), as
  the paper finds that 84.6 % of ScalaRAID's time is neither lock. `pinstripe`, which has none, is beside
  them.
- **The tail is 99.9 %, not 99.99 %.** Over memory one request in 16 is timed, which is too few for one in
  10,000.
- **Figure 3b's single SSD** is not here: an array with parity has more members, and members in memory have
  no bandwidth of their own.
- **Figures 3c, 3d and 6d** have shares of functions by perf. Here locks and hand-offs are metered, and XOR
  and copies are not told apart.
- **The bitmap on small virtual devices** (the last figure): members of 64 MiB have one region, of which the bit is
  written before anything is measured. So that table says that counting for the bitmap takes no drive's time, and
  nothing of its writes. What those cost is the table of drives of half a terabyte and more.
- **Latency over memory** counts from the end of the client's last request: as many requests are under way as there are
  clients. It was measured so on 2026-11-30; what stood here before was the time of a request's own work.
- **Figure 6c** has throughput by CPU use; here CPU time for a MiB, its inverse for as much CPU.

";
/// Why a comparison went the other way, or can't be told.
pub const FEW_THREADS: &str = "few threads wait little (measured: figures 3 and 6); see *threads*";
pub const FIGURE_3: &str = "MD with three SSDs has no more than one SSD's write throughput at any of 3 to 33 threads, and seven SSDs \
     have 1.64 times one. Locks take 3.5 % of the time with 3 threads and 30.8 % with 33, 78 times as much as \
     XOR.";
pub const FIGURE_5: &str = "full stripes in sequence on 2+1: MD's throughput ends at 9 threads; HemiRAID has 1.31 times with 17 \
     threads and 1.40 with 33, ScalaRAID 1.35 times HemiRAID's on average. Reads are alike. ScalaRAID's 99.99 \
     % latency of 4 KiB writes is 44.9, 14.6 and 15.9 % of MD's on 2+1, 4+1 and 6+1.";
pub const FIGURE_6: &str = "ScalaRAID has 1.9, 1.8 and 1.6 times MD's throughput on streams of full stripes over 2+1, 4+1 and 6+1, \
     and 1.67 times on average on random ones. For as much CPU HemiRAID has 1.26 times the throughput, \
     ScalaRAID 1.75 times.";
pub const HELD: &str =
    "no figure has this. It stands for the paper's many threads: see *locks held for longer*.";
pub const BITMAP: &str = "no figure has the array without one; what ScalaRAID changes is what counting for it costs. Wanted is \
     that our bitmap costs at most 2 %.";
