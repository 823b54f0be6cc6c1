//! Which seeds are which kinds of lives.

use super::{NetSetup, Races, Setup, atlas, marks, rough, stops, vast, wide};
use crate::Rng;

/// Millions of seeds are kinds of lives. In every other two of them, from here on, members also come back,
/// are replaced, hang and vanish at bad moments ([`atlas`]): other runs than before, so the seeds below keep
/// their meaning.
pub const FIRST_SEED_WITH_ATLAS: u64 = 2_000_000;
/// In the million from here on shards are interrupted, regions are small, and users and owner meet in narrow
/// places ([`races`]), besides the atlas.
pub const FIRST_SEED_WITH_RACES: u64 = 3_000_000;
/// In the million from here on members are reached over the network ([`net_life`]).
pub const FIRST_SEED_OF_NET: u64 = 4_000_000;

/// In the million from here on lives end with stops under load ([`stops`]), besides the atlas.
pub const FIRST_SEED_OF_STOPS: u64 = 6_000_000;

/// In the million from here on lives are wider ([`wide`]).
pub const FIRST_SEED_OF_WIDE: u64 = 8_000_000;

/// In the million from here on members are far larger than what is written of them ([`vast`]).
pub const FIRST_SEED_OF_VAST: u64 = 9_000_000;

/// In the million from here on members are reached over the network, hosts attach at the same time, servers
/// stand still, and requests come late on every connection.
pub const FIRST_SEED_OF_WILD_NET: u64 = 12_000_000;

/// In the million from here on users use every flag of NBD, and lists of bad blocks outlive crashes
/// ([`marks`]).
pub const FIRST_SEED_OF_MARKS: u64 = 13_000_000;

/// In the million from here on faults meet that come one at a time elsewhere ([`rough`]), besides the atlas.
pub const FIRST_SEED_OF_ROUGH: u64 = 14_000_000;

/// What a seed is about, and the stream that its life is drawn from.
pub(super) fn drawn(seed: u64) -> (Setup, Rng) {
    let mut rng = Rng::new(seed);
    let mut setup = Setup::drawn(&mut rng.fork(1)).with_log(&mut Rng::new(seed).fork(3));
    setup.draw_memory(&mut Rng::new(seed).fork(6));
    let lives = rng.fork(2);
    let kind = |first: u64| seed / 1_000_000 == first / 1_000_000;
    if seed / FIRST_SEED_WITH_ATLAS % 2 == 1 {
        setup.atlas = Some(atlas::Habits::drawn(&mut rng.fork(3), &mut setup.options, &setup.disk));
    }
    if kind(FIRST_SEED_WITH_RACES) {
        setup.races = Some(Races::drawn(&mut rng.fork(5), &mut setup));
    }
    if kind(FIRST_SEED_OF_STOPS) {
        stops::shape(&mut rng.fork(5), &mut setup);
    }
    if kind(FIRST_SEED_OF_NET) {
        setup.net = Some(NetSetup::drawn(&mut rng.fork(4), &mut setup));
    }
    if kind(FIRST_SEED_OF_WIDE) {
        setup.wide = Some(wide::Habits::drawn(&mut rng.fork(5), &mut setup));
    }
    if kind(FIRST_SEED_OF_WILD_NET) {
        let net = NetSetup::drawn(&mut rng.fork(4), &mut setup);
        setup.net = Some(NetSetup { wild: true, hasty: net.hasty || !seed.is_multiple_of(4), ..net });
    }
    if kind(FIRST_SEED_OF_MARKS) {
        setup.marks = Some(marks::Habits::drawn(&mut rng.fork(5), &mut setup));
    }
    if kind(FIRST_SEED_OF_ROUGH) {
        setup.rough = Some(rough::Habits::drawn(&mut rng.fork(5), &mut setup));
    }
    if kind(FIRST_SEED_OF_VAST) {
        setup.vast = Some(vast::Habits::drawn(&mut rng.fork(5), &mut setup));
    }
    if setup.net.is_none() {
        setup.draw_late_writes(&mut Rng::new(seed).fork(7));
    }
    (setup, lives)
}
