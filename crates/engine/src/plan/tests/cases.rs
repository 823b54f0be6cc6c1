//! Correctness: every image, every membership within redundancy, every policy.

use proptest::prelude::*;

use super::execute::Model;
use super::*;

/// Row ranges of two writes that don't meet, meet, overlap, and of which one holds the other.
const SHAPES: [[(u32, u32); 2]; 4] = [
    [(0, 512), (4096, 5120)],
    [(512, 4096), (4096, 8192)],
    [(1024, 6144), (3584, 8192)],
    [(0, 8192), (2048, 4608)],
];

fn image_of(first: u64, second: u64, shape: [(u32, u32); 2]) -> Vec<Written> {
    let of =
        |columns: u64, (start, end)| Set64(columns).iter().map(move |column| written(column, start, end));
    of(second, shape[1]).chain(of(first, shape[0])).collect()
}

/// All ways to lose up to `redundancy` members, each either missing or being rebuilt: (unreadable,
/// unwritable).
pub(super) fn memberships(members: usize, redundancy: usize) -> Vec<(Set64, Set64)> {
    let mut all = Vec::new();
    for unreadable in 0..1u64 << members {
        if unreadable.count_ones() as usize <= redundancy {
            all.extend(
                (0..=unreadable)
                    .filter(|set| set & !unreadable == 0)
                    .map(|set| (Set64(unreadable), Set64(set))),
            );
        }
    }
    all
}

fn new_bytes(k: usize, image: &[Written], random: &mut Random) -> Vec<[Option<u8>; BLOCKS]> {
    let mut new = vec![[None; BLOCKS]; k];
    for range in image {
        for block in execute::blocks(range.start, range.end) {
            new[range.column][block].get_or_insert_with(|| random.byte());
        }
    }
    new
}

/// Plans, executes and checks one write; `earlier` is an image that was planned and read before `image`
/// joined it.
fn try_write(
    stripe: &Stripe,
    policy: WritePolicy,
    image: &[Written],
    earlier: &[Written],
    plans: &mut [Plan; 2],
    random: &mut Random,
) {
    let map = stripe.map;
    let mut world = World::random(map.members(), random);
    world.cached = if random.below(2) == 0 { 0 } else { random.next() };
    world.may_ask = stripe.in_sync;
    let before = Model::new(stripe, random);
    let [plan, first] = plans;
    let mut held: &[Transfer] = &[];
    if !earlier.is_empty() {
        plan_into(first, stripe, policy, earlier.iter().copied(), &[], &mut world).unwrap();
        held = first.reads();
    }
    plan_into(plan, stripe, policy, image.iter().copied(), held, &mut world).unwrap();
    for read in plan.reads() {
        assert!(!stripe.unreadable.contains(read.slot.index()), "reads from slot {}", read.slot);
    }
    if !stripe.in_sync {
        assert_eq!(plan.totals().rmw_runs, 0, "C10");
    }
    let new = new_bytes(map.columns(), image, random);
    let mut after = before.clone();
    let cached = if stripe.in_sync { world.cached } else { 0 };
    after.execute(plan, stripe, &new, (held, cached));
    after.check(&before, stripe, &new);
}

fn try_all_images(layout: ParityLayout, members: usize) {
    let redundancy = layout.parities();
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut plans = [Plan::new(), Plan::new()];
    let mut count = 0u64;
    for (unreadable, unwritable) in memberships(members, redundancy) {
        for first in 1..1u64 << (members - redundancy) {
            for second in 0..1u64 << (members - redundancy) {
                for shape in SHAPES {
                    count += 1;
                    let map = stripe_map(layout, members, count % members as u64);
                    let in_sync = random.below(4) != 0;
                    let stripe = Stripe { unreadable, unwritable, in_sync, ..healthy(map) };
                    let policy = POLICIES[usize::try_from(count % 4).unwrap()];
                    let image = image_of(first, second, shape);
                    let earlier =
                        if second != 0 && random.below(4) == 0 { image_of(0, second, shape) } else { vec![] };
                    try_write(&stripe, policy, &image, &earlier, &mut plans, &mut random);
                }
            }
        }
    }
}

#[test]
fn every_raid4_and_raid5_plan_ends_with_right_data_and_parity() {
    for members in 2..=5 {
        try_all_images(ParityLayout::RAID4, members);
        try_all_images(raid5(), members);
    }
    for layout in ParityLayout::all().filter(|layout| layout.level() == 5) {
        try_all_images(layout, 4);
    }
}

#[test]
fn every_raid6_plan_ends_with_right_data_and_parity() {
    try_all_images(raid6(), 4);
    try_all_images(raid6(), 5);
    for layout in ParityLayout::all().filter(|layout| layout.level() == 6) {
        try_all_images(layout, 4);
    }
}

#[test]
fn raid6_of_six_with_ddf_exponents_ends_with_right_data_and_parity() {
    try_all_images(ParityLayout::new(Level::Raid6, Algorithm::DdfNContinue).unwrap(), 6);
}

/// A wide stripe of any layout, a few members lost, and several writes of any size that may overlap.
fn wide_write() -> impl Strategy<Value = (Stripe, Vec<Written>)> {
    let layouts: Vec<ParityLayout> = ParityLayout::all().collect();
    (prop::sample::select(layouts), 0usize..30, 0u64..100, any::<[u8; 4]>(), 0usize..=2, 0u8..4)
        .prop_flat_map(|(layout, extra, stripe, dice, losses, sync)| {
            let members = (layout.members_min() + extra).max(3);
            let map = stripe_map(layout, members, stripe);
            let lost = dice[..losses.min(layout.parities())].iter().map(|die| usize::from(*die) % members);
            let unreadable: Set64 = lost.collect();
            let unwritable = if dice[2] < 128 { unreadable } else { Set64::EMPTY };
            let stripe = Stripe { unreadable, unwritable, in_sync: sync != 0, ..healthy(map) };
            let blocks = CHUNK / BLOCK;
            let range = (0..map.columns(), 0..blocks, 1..=blocks).prop_map(move |(column, first, count)| {
                written(column, first * BLOCK, (first + count).min(blocks) * BLOCK)
            });
            (Just(stripe), prop::collection::vec(range, 1..24))
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn wide_stripes_with_many_joined_writes_end_with_right_data_and_parity(
        (stripe, image) in wide_write(), earlier in 0usize..24, policy in prop::sample::select(&POLICIES), seed in 1u64..
    ) {
        let earlier = if earlier % 2 == 0 { 0 } else { earlier.min(image.len()) };
        let mut plans = [Plan::new(), Plan::new()];
        try_write(&stripe, policy, &image, &image[..earlier], &mut plans, &mut Random(seed));
    }
}
