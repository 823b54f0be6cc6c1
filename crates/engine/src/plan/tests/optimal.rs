//! Optimality: the choice against brute force over its objective, and the objective against every set of
//! reads that could do.

use super::cases::memberships;
use super::*;

/// Whether `target` is in the span of `rows`, over GF(2^8). Gaussian elimination.
fn spans(mut rows: Vec<Vec<u8>>, mut target: Vec<u8>) -> bool {
    for column in 0..target.len() {
        let Some(pivot) = rows.iter().position(|row| row[column] != 0) else { continue };
        let pivot = rows.swap_remove(pivot);
        let scale = inverse(pivot[column]);
        for row in rows.iter_mut().chain([&mut target]) {
            let factor = multiply(row[column], scale);
            row.iter_mut().zip(&pivot).for_each(|(byte, other)| *byte ^= multiply(*other, factor));
        }
    }
    target.iter().all(|&byte| byte == 0)
}

/// Whether the old bytes of `slots` (with the new bytes of `written`) determine every parity that is to be
/// written.
fn suffices(map: StripeMap, slots: Set64, written: Set64, targets: &[Role]) -> bool {
    let k = map.columns();
    let weights = |role: Role| -> Vec<u8> {
        let weight = |column: usize| match role {
            Role::Data(each) => u8::from(each == column),
            Role::P => 1,
            Role::Q => power(map.q_exponent(column)),
        };
        (0..k).map(weight).collect()
    };
    let rows: Vec<Vec<u8>> =
        slots.iter().map(|slot| weights(map.role(MemberSlot(u8::try_from(slot).unwrap())))).collect();
    targets.iter().all(|&target| {
        // New parity = a known sum of new bytes + the old bytes of what stays.
        let mut wanted = weights(target);
        written.iter().for_each(|column| wanted[column] = 0);
        spans(rows.clone(), wanted)
    })
}

#[test]
fn min_reads_reads_no_more_members_than_any_set_of_reads_that_could_do() {
    for (layout, members) in [(raid5(), 3), (raid5(), 5), (raid6(), 4), (raid6(), 5), (raid6(), 6)] {
        let map = stripe_map(layout, members, 1);
        for (unreadable, unwritable) in memberships(members, layout.parities()) {
            let stripe = Stripe { unreadable, unwritable, ..healthy(map) };
            let targets: Vec<Role> =
                [Some((map.p_slot(), Role::P)), map.q_slot().map(|slot| (slot, Role::Q))]
                    .into_iter()
                    .flatten()
                    .filter(|(slot, _)| !unwritable.contains(slot.index()))
                    .map(|(_, role)| role)
                    .collect();
            for columns in 1..1u64 << map.columns() {
                let written_columns = Set64(columns);
                let image: Vec<Written> =
                    written_columns.iter().map(|column| written(column, 0, 512)).collect();
                let plan = planned(&stripe, WritePolicy::MinReads, &image, &mut World::plain(members));
                let least = (0..1u64 << members)
                    .map(Set64)
                    .filter(|slots| slots.and(unreadable).is_empty())
                    .filter(|&slots| suffices(map, slots, written_columns, &targets))
                    .map(Set64::len)
                    .min()
                    .unwrap();
                assert_eq!(
                    plan.totals().read_bytes,
                    512 * least as u64,
                    "{layout:?} of {members}, {written_columns:?} written, {unreadable:?} lost"
                );
            }
        }
    }
}

/// A candidate as the module's documentation describes it: which old chunks it reads.
struct Described {
    is_rmw: bool,
    columns: Set64,
    p: bool,
    q: bool,
    kernel_sources: u64,
}

/// All candidates of a run on a row in sync.
fn described(stripe: &Stripe, written: Set64) -> Vec<Described> {
    let map = stripe.map;
    let k = map.columns();
    let lost_slots = stripe.unreadable;
    let lost: Set64 = (0..k).filter(|&column| lost_slots.contains(map.data_slot(column).index())).collect();
    let q_slot = map.q_slot().map(MemberSlot::index);
    let p_reads = !lost_slots.contains(map.p_slot().index());
    let q_reads = q_slot.is_some_and(|slot| !lost_slots.contains(slot));
    let p_writes = !stripe.unwritable.contains(map.p_slot().index());
    let q_writes = q_slot.is_some_and(|slot| !stripe.unwritable.contains(slot));
    let stays = Set64::below(k).without(written);
    let survives = Set64::below(k).without(lost);
    let mut all = Vec::new();
    if p_reads == p_writes && q_reads == q_writes && lost.and(written).is_empty() {
        let kernel_sources = (2 * written.len() + usize::from(p_reads) + usize::from(q_reads)) as u64;
        all.push(Described { is_rmw: true, columns: written, p: p_reads, q: q_reads, kernel_sources });
    }
    let mut reconstruct = |columns: Set64, p: bool, q: bool, recovers: bool| {
        let reads = columns.len() + usize::from(p) + usize::from(q);
        let kernel_sources = (k + if recovers { reads } else { 0 }) as u64;
        all.push(Described { is_rmw: false, columns, p, q, kernel_sources });
    };
    if lost.and(stays).is_empty() {
        reconstruct(stays, false, false, false);
    } else if lost.len() == 1 {
        for (p, q) in [(true, false), (false, true)] {
            if (!p || p_reads) && (!q || q_reads) {
                reconstruct(survives, p, q, true);
            }
        }
    } else if p_reads && q_reads {
        reconstruct(survives, true, true, true);
    }
    all
}

/// Bytes that a candidate reads from each slot, with the world's cached rows left out.
fn bytes_by_slot(map: StripeMap, each: &Described, run: Run, world: &World) -> Vec<(usize, u64)> {
    let mut reads: Vec<(usize, u64)> =
        each.columns.iter().map(|column| (map.data_slot(column).index(), u64::from(run.length()))).collect();
    for (needed, slot, bit) in [(each.p, Some(map.p_slot()), 0), (each.q, map.q_slot(), 1)] {
        if needed {
            let blocks = (run.start..run.end).step_by(512);
            let missing = blocks.filter(|at| world.cached >> (2 * (at / 4096) + bit) & 1 == 0).count();
            reads.push((slot.unwrap().index(), 512 * missing as u64));
        }
    }
    reads
}

/// The objective of `Cost` from its definition, times twice the members and 1024 so that it is a whole
/// number.
fn price(map: StripeMap, each: &Described, run: Run, world: &World) -> u64 {
    let (mut longest, mut busy) = (0, 0);
    for (slot, bytes) in bytes_by_slot(map, each, run, world).into_iter().filter(|(_, bytes)| *bytes > 0) {
        let (price, (requests, ended)) = (world.prices[slot], world.ahead[slot]);
        let transfer = bytes * u64::from(price.ns_per_kib);
        let latency = 1024 * u64::from(price.latency_ns);
        let (alone, keeps) = match (price.moves_head, ended == Some(run.start)) {
            (true, true) => (transfer, transfer),
            (true, false) => (latency + transfer, latency + transfer),
            (false, _) => (latency + transfer, transfer),
        };
        longest = longest.max(alone);
        let (requests, members) = (u64::from(requests), map.members() as u64);
        busy +=
            keeps * if price.moves_head { (requests + 2) * members } else { 2 * (requests * members + 1) };
    }
    let compute = each.kernel_sources * u64::from(run.length()) * COMPUTE_NS_PER_KIB;
    (longest + compute) * 2 * map.members() as u64 + busy
}

/// Bytes that are read from each slot.
fn sums_by_slot(reads: impl Iterator<Item = (usize, u64)>) -> [u64; 8] {
    let mut by_slot = [0; 8];
    for (slot, bytes) in reads {
        by_slot[slot] += bytes;
    }
    by_slot
}

#[test]
fn each_policy_chooses_what_brute_force_over_its_objective_chooses() {
    let mut random = Random(42);
    let mut seen = [[0; 2]; 4];
    for (layout, members) in [(raid5(), 4), (raid5(), 6), (raid6(), 5), (raid6(), 6)] {
        let map = stripe_map(layout, members, 2);
        for (unreadable, unwritable) in memberships(members, layout.parities()) {
            let stripe = Stripe { unreadable, unwritable, ..healthy(map) };
            for columns in 1..(1u64 << map.columns()) - 1 {
                let range = [(0, 512), (0, 8192), (3584, 5120)][random.below(3)];
                let image: Vec<Written> =
                    Set64(columns).iter().map(|column| written(column, range.0, range.1)).collect();
                let mut world = match random.below(4) {
                    0 => World::alike(members, 80_000),
                    1 => World::alike(members, 8_000_000),
                    _ => World::random(members, &mut random),
                };
                world.cached = random.next() & random.next();
                for (index, policy) in POLICIES.into_iter().enumerate() {
                    let plan = planned(&stripe, policy, &image, &mut world);
                    let [run] = plan.runs() else { panic!("one run") };
                    let candidates = described(&stripe, Set64(columns));
                    if run.method == Method::DataOnly {
                        assert_eq!(plan.totals().read_bytes, 0);
                        continue;
                    }
                    check_choice(policy, &plan, *run, &candidates, map, &world);
                    seen[index][usize::from(run.method == Method::Rmw)] += 1;
                }
            }
        }
    }
    assert!(seen.iter().flatten().all(|&count| count > 100), "each policy chose both ways: {seen:?}");
}

fn check_choice(
    policy: WritePolicy,
    plan: &Plan,
    run: Run,
    candidates: &[Described],
    map: StripeMap,
    world: &World,
) {
    let bytes =
        |each: &Described| bytes_by_slot(map, each, run, world).iter().map(|read| read.1).sum::<u64>();
    let is_rmw = run.method == Method::Rmw;
    let rmw = candidates.iter().find(|each| each.is_rmw).map(bytes);
    let rcw = candidates.iter().filter(|each| !each.is_rmw).map(bytes).min();
    let read = plan.totals().read_bytes;
    if policy != WritePolicy::Cost {
        // Whichever way, the way chosen reads its least.
        assert_eq!(Some(read), if is_rmw { rmw } else { rcw });
    }
    match (policy, rmw, rcw) {
        (WritePolicy::MinReads, Some(rmw), Some(rcw)) => assert_eq!(is_rmw, rmw < rcw),
        (WritePolicy::ModThreshold, Some(rmw), Some(rcw)) => {
            assert_eq!(is_rmw, rmw <= rcw + u64::from(run.length()));
        }
        (WritePolicy::AlwaysRmw, rmw, _) => assert_eq!(is_rmw, rmw.is_some()),
        (WritePolicy::Cost, ..) => {
            let weight = |each: &Described| {
                (if world.shares_link { bytes(each) } else { 0 }, price(map, each, run, world))
            };
            let best = candidates.iter().map(weight).min();
            let reads = plan.reads().iter().map(|read| (read.slot.index(), u64::from(read.length())));
            let reads = sums_by_slot(reads);
            let chosen = candidates
                .iter()
                .filter(|each| each.is_rmw == is_rmw)
                .find(|each| sums_by_slot(bytes_by_slot(map, each, run, world).into_iter()) == reads);
            assert_eq!(chosen.map(weight), best);
            let is_best = |of_rmw| candidates.iter().any(|c| c.is_rmw == of_rmw && Some(weight(c)) == best);
            if is_best(true) && is_best(false) {
                let modifies = candidates.iter().find(|each| each.is_rmw).unwrap();
                let mut reads = bytes_by_slot(map, modifies, run, world).into_iter();
                let seeks = reads.any(|(slot, bytes)| bytes > 0 && world.prices[slot].moves_head);
                assert_eq!(is_rmw, !seeks, "equals");
            }
            if world.shares_link {
                assert_eq!(read, rmw.into_iter().chain(rcw).min().unwrap(), "no policy reads less");
            }
        }
        _ => {}
    }
}

#[test]
fn reads_equal_straids_equations_on_a_complete_array() {
    for (layout, members) in [(raid5(), 3), (raid5(), 6), (raid5(), 12), (raid6(), 6), (raid6(), 12)] {
        let map = stripe_map(layout, members, 3);
        let k = map.columns();
        for count in 1..k {
            let image: Vec<Written> = (0..count).map(|column| written(column, 512, 4608)).collect();
            let plan_of = |policy| planned(&healthy(map), policy, &image, &mut World::plain(members));
            let (equation_1, equation_2) =
                (4096 * (count + layout.parities()) as u64, 4096 * (k - count) as u64);
            assert_eq!(plan_of(WritePolicy::AlwaysRmw).totals().read_bytes, equation_1);
            assert_eq!(plan_of(WritePolicy::MinReads).totals().read_bytes, equation_1.min(equation_2));
            let threshold = if equation_1 <= equation_2 + 4096 { equation_1 } else { equation_2 };
            assert_eq!(plan_of(WritePolicy::ModThreshold).totals().read_bytes, threshold);
        }
    }
}
