//! What particular plans look like.

use super::*;

fn transfers(list: &[(u8, u32, u32)]) -> Vec<Transfer> {
    list.iter().map(|&(slot, start, end)| Transfer { slot: MemberSlot(slot), start, end }).collect()
}

/// RAID5 of six, left-symmetric, stripe 0: P on slot 5, column i on slot i.
fn six() -> Stripe {
    healthy(stripe_map(raid5(), 6, 0))
}

#[test]
fn two_small_writes_in_different_rows_do_not_read_the_rows_between_them() {
    let geometry = ParityGeometry::new(raid5(), 6, 65536, 1 << 20, 4096).unwrap();
    let stripe = Stripe { chunk_bytes: 65536, ..healthy(geometry.slots(StripeId(0))) };
    let image = [written(0, 0, 4096), written(3, 61440, 65536)];
    for policy in POLICIES {
        let plan = planned(&stripe, policy, &image, &mut World::plain(6));
        assert_eq!(plan.totals().read_bytes, 4 * 4096, "{policy:?}");
        assert_eq!((plan.totals().rmw_runs, plan.totals().rcw_runs), (2, 0));
        let expected = transfers(&[(0, 0, 4096), (5, 0, 4096), (3, 61440, 65536), (5, 61440, 65536)]);
        assert_eq!(plan.reads(), expected);
    }
}

#[test]
fn runs_are_maximal_and_transfers_that_touch_are_joined() {
    // Column 0 over rows 0..4096, column 1 over 2048..8192, in two overlapping parts.
    let image = [written(1, 2048, 6144), written(0, 0, 4096), written(1, 4096, 8192)];
    let plan = planned(&six(), WritePolicy::AlwaysRmw, &image, &mut World::plain(6));
    let run = |start, end, columns: &[usize]| Run {
        start,
        end,
        written: columns.iter().copied().collect(),
        method: Method::Rmw,
    };
    assert_eq!(plan.runs(), [run(0, 2048, &[0]), run(2048, 4096, &[0, 1]), run(4096, 8192, &[1])]);
    let expected = transfers(&[(0, 0, 4096), (5, 0, 8192), (1, 2048, 8192)]);
    assert_eq!(plan.reads(), expected);
    assert_eq!(plan.span(), (0, 8192));
}

#[test]
fn a_full_stripe_reads_nothing_under_any_policy() {
    let image: Vec<Written> = (0..5).map(|column| written(column, 0, CHUNK)).collect();
    for policy in POLICIES {
        for in_sync in [true, false] {
            let plan = planned(&Stripe { in_sync, ..six() }, policy, &image, &mut World::plain(6));
            assert!(plan.needs_no_reads());
            assert_eq!(plan.totals().full_runs, 1);
        }
    }
}

#[test]
fn an_unaligned_stream_write_of_more_than_a_stripe_is_full_where_it_can_be() {
    // Rows 4096.. of column 0 and all of columns 1 to 4: the upper rows are full, the lower ones lack column
    // 0.
    let mut image: Vec<Written> = (1..5).map(|column| written(column, 0, CHUNK)).collect();
    image.push(written(0, 4096, CHUNK));
    let plan = planned(&six(), WritePolicy::Cost, &image, &mut World::plain(6));
    assert_eq!((plan.totals().full_runs, plan.totals().rcw_runs), (1, 1));
    assert_eq!(plan.reads(), transfers(&[(0, 0, 4096)]));
    assert_eq!(plan.totals().reconstruct_read_bytes, 4096);
}

#[test]
fn always_rmw_reads_nothing_of_what_is_not_written() {
    for columns in 1..31u64 {
        let image: Vec<Written> = Set64(columns).iter().map(|column| written(column, 0, 4096)).collect();
        let plan = planned(&six(), WritePolicy::AlwaysRmw, &image, &mut World::plain(6));
        assert_eq!(plan.totals().reconstruct_read_bytes, 0);
        assert_eq!((plan.totals().rmw_runs, plan.totals().rcw_runs), (1, 0));
    }
}

#[test]
fn a_row_not_in_sync_is_reconstructed_although_its_parity_is_cached() {
    let stripe = Stripe { in_sync: false, ..six() };
    let mut world = World { cached: u64::MAX, may_ask: false, ..World::plain(6) };
    for policy in POLICIES {
        let plan = planned(&stripe, policy, &[written(0, 0, 4096)], &mut world);
        assert_eq!((plan.totals().rmw_runs, plan.totals().rcw_runs), (0, 1));
        assert_eq!(plan.totals().read_bytes, 4 * 4096);
        assert_eq!(plan.totals().cached_bytes, 0);
    }
}

#[test]
fn cached_parity_is_not_read_and_tips_the_choice() {
    let stripe = healthy(stripe_map(raid5(), 4, 0));
    let image = [written(0, 0, 8192)];
    // k = 3: two reads either way, so MD reconstructs; with half of P cached, modifying reads less.
    let plain = planned(&stripe, WritePolicy::MinReads, &image, &mut World::plain(4));
    assert_eq!(plain.runs()[0].method, Method::Rcw(Reconstruction::None));
    let mut world = World { cached: 1 << 2, ..World::plain(4) };
    let plan = planned(&stripe, WritePolicy::MinReads, &image, &mut world);
    assert_eq!(plan.runs()[0].method, Method::Rmw);
    assert_eq!(plan.reads(), transfers(&[(0, 0, 8192), (3, 0, 4096)]));
    assert_eq!(plan.totals().cached_bytes, 4096);
}

#[test]
fn cost_reads_around_a_slow_member() {
    let stripe = healthy(stripe_map(raid5(), 4, 0));
    let image = [written(0, 0, 4096)];
    for slow in 0..4u8 {
        let mut world = World::plain(4);
        world.prices[usize::from(slow)].latency_ns = 2_000_000;
        let plan = planned(&stripe, WritePolicy::Cost, &image, &mut world);
        assert!(
            plan.reads().iter().all(|read| read.slot.0 != slow),
            "slot {slow} is slow: {:?}",
            plan.reads()
        );
    }
}

#[test]
fn cost_chooses_for_all_runs_together_and_not_for_each_alone() {
    // Four disks, and flash for the parity. Rows in which two columns are written could be reconstructed by
    // two reads as well as modified by two, but of disks from which nothing else is read.
    let stripe = healthy(stripe_map(raid5(), 5, 0));
    let mut world = World::alike(5, 8_000_000);
    world.prices[4] = World::plain(5).prices[4];
    let image = [written(0, 0, 8192), written(1, 0, 4096)];
    for cached in [0, 0b101] {
        world.cached = cached;
        let plan = planned(&stripe, WritePolicy::Cost, &image, &mut world);
        assert!(plan.runs().iter().all(|run| run.method == Method::Rmw), "{:?}", plan.runs());
        let mut reads = plan.reads().to_vec();
        reads.sort_by_key(|read| (read.slot, read.start));
        let parity = if cached == 0 { transfers(&[(4, 0, 8192)]) } else { Vec::new() };
        assert_eq!(reads, [transfers(&[(0, 0, 8192), (1, 0, 4096)]), parity].concat());
        assert_eq!(plan.totals().cached_bytes, if cached == 0 { 0 } else { 8192 });
    }
    world.cached = 0;
    // A slow member of those that are written tips it.
    world.prices[1].latency_ns = 80_000_000;
    let plan = planned(&stripe, WritePolicy::Cost, &image, &mut world);
    assert!(plan.reads().iter().all(|read| read.slot.0 != 1), "{:?}", plan.reads());
}

#[test]
fn of_members_alike_cost_reads_those_at_which_less_waits() {
    // Three data columns: two reads to modify, two to reconstruct.
    let stripe = healthy(stripe_map(raid5(), 4, 0));
    let image = [written(0, 0, 4096)];
    for latency_ns in [80_000, 8_000_000] {
        for (busy, method) in [(0, Method::Rcw(Reconstruction::None)), (1, Method::Rmw)] {
            let mut world = World::alike(4, latency_ns);
            world.ahead[busy].0 = 3;
            let plan = planned(&stripe, WritePolicy::Cost, &image, &mut world);
            assert_eq!(plan.runs()[0].method, method, "{latency_ns}, {busy}");
        }
    }
}

#[test]
fn cost_goes_on_where_a_head_is() {
    // Two columns of four: three reads to modify, two to reconstruct.
    let stripe = healthy(stripe_map(raid5(), 5, 0));
    let image = [written(0, 512, 4608), written(1, 512, 4608)];
    for (latency_ns, ended, modifies) in [
        (8_000_000, None, false),
        (8_000_000, Some(512), true),
        // Somewhere else, and where there is no head.
        (8_000_000, Some(0), false),
        (80_000, Some(512), false),
    ] {
        let mut world = World::alike(5, latency_ns);
        for slot in [0, 4] {
            world.ahead[slot].1 = ended;
        }
        let plan = planned(&stripe, WritePolicy::Cost, &image, &mut world);
        assert_eq!(plan.totals().rmw_runs == 1, modifies, "{latency_ns}, {ended:?}");
    }
}

#[test]
fn all_runs_together_read_fewer_members_on_disks_and_fewer_bytes_on_flash() {
    // All that is modified is as much, of as many members, as all that stays: three. Each run for itself
    // reads a fifth less, of four.
    let stripe = healthy(stripe_map(raid5(), 5, 0));
    let image = [written(0, 0, 8192), written(1, 0, 4096)];
    let reconstruct = Method::Rcw(Reconstruction::None);
    let [disks, flash] = [([reconstruct; 2], 20_480), ([reconstruct, Method::Rmw], 16_384)];
    // Flash may seem slow under load.
    for (latency_ns, moves_head, (methods, bytes)) in
        [(8_000_000, true, disks), (8_000_000, false, flash), (80_000, false, flash)]
    {
        let mut world = World::alike(5, latency_ns);
        world.prices.iter_mut().for_each(|price| price.moves_head = moves_head);
        let plan = planned(&stripe, WritePolicy::Cost, &image, &mut world);
        let found: Vec<Method> = plan.runs().iter().map(|run| run.method).collect();
        assert_eq!(found, methods, "{latency_ns}, {moves_head}");
        assert_eq!(plan.totals().read_bytes, bytes);
    }
}

#[test]
fn what_is_held_is_not_read_again_and_tips_the_choice() {
    let held = transfers(&[(1, 0, 4096), (2, 0, 4096), (3, 0, 2048)]);
    let mut plan = Plan::new();
    let image = [written(0, 0, 4096)];
    plan_into(&mut plan, &six(), WritePolicy::MinReads, image, &held, &mut World::plain(6)).unwrap();
    assert_eq!(plan.runs()[0].method, Method::Rcw(Reconstruction::None));
    assert_eq!(plan.reads(), transfers(&[(3, 2048, 4096), (4, 0, 4096)]));
}

#[test]
fn writing_a_missing_column_reads_the_others() {
    let stripe = Stripe { unwritable: Set64::only(0), unreadable: Set64::only(0), ..six() };
    let plan = planned(&stripe, WritePolicy::AlwaysRmw, &[written(0, 0, 512)], &mut World::plain(6));
    assert_eq!(plan.runs()[0].method, Method::Rcw(Reconstruction::None));
    assert_eq!(plan.reads(), transfers(&[(1, 0, 512), (2, 0, 512), (3, 0, 512), (4, 0, 512)]));
}

#[test]
fn without_its_parity_member_nothing_is_computed() {
    let stripe = Stripe { unwritable: Set64::only(5), unreadable: Set64::only(5), ..six() };
    let plan = planned(&stripe, WritePolicy::Cost, &[written(2, 0, 512)], &mut World::plain(6));
    assert_eq!(plan.runs()[0].method, Method::DataOnly);
    assert!(plan.needs_no_reads());
}

#[test]
fn parity_being_rebuilt_is_made_from_data() {
    let stripe = Stripe { unreadable: Set64::only(5), ..six() };
    let plan = planned(&stripe, WritePolicy::AlwaysRmw, &[written(0, 0, 512)], &mut World::plain(6));
    assert_eq!(plan.runs()[0].method, Method::Rcw(Reconstruction::None));
}

#[test]
fn past_redundancy_nothing_is_planned() {
    let mut plan = Plan::new();
    let mut attempt = |unreadable: u64, unwritable: u64, column| {
        let stripe = Stripe { unreadable: Set64(unreadable), unwritable: Set64(unwritable), ..six() };
        let image = [written(column, 0, 512)];
        plan_into(&mut plan, &stripe, WritePolicy::Cost, image, &[], &mut World::plain(6))
    };
    assert_eq!(attempt(0b11, 0b11, 2), Err(PlanError::BeyondRedundancy { missing: 2, redundancy: 1 }));
    // A column is missing and its parity is still being rebuilt: the column's old value is nowhere.
    assert_eq!(attempt(0b10_0001, 1, 1), Err(PlanError::Unreadable { start: 0, end: 512 }));
    // The missing column itself can be written: its new value goes into the parity.
    assert_eq!(attempt(0b10_0001, 1, 0), Ok(()));
}

#[test]
fn two_lost_columns_and_one_lost_parity_are_past_raid6() {
    // Slots 0 to 3 hold columns, P is on 4, Q on 5. A row that isn't in sync can't be modified instead.
    let map = stripe_map(raid6(), 6, 1);
    assert_eq!(
        (map.p_slot(), map.q_slot(), map.data_slot(0)),
        (MemberSlot(4), Some(MemberSlot(5)), MemberSlot(0))
    );
    for unreadable in [0b01_0011, 0b10_0011] {
        let stripe = Stripe { unreadable: Set64(unreadable), in_sync: false, ..healthy(map) };
        let result = plan_into(
            &mut Plan::new(),
            &stripe,
            WritePolicy::Cost,
            [written(2, 0, 512)],
            &[],
            &mut World { may_ask: false, ..World::plain(6) },
        );
        assert_eq!(result, Err(PlanError::Unreadable { start: 0, end: 512 }));
    }
}

#[test]
fn an_image_outside_the_stripe_is_refused() {
    let mut plan = Plan::new();
    for bad in [written(5, 0, 512), written(0, 512, 512), written(0, 1024, 512), written(0, 0, CHUNK + 512)] {
        let result = plan_into(&mut plan, &six(), WritePolicy::Cost, [bad], &[], &mut World::plain(6));
        assert!(matches!(result, Err(PlanError::NoSuchRange { .. })), "{bad:?}");
    }
    plan_into(&mut plan, &six(), WritePolicy::Cost, [], &[], &mut World::plain(6)).unwrap();
    assert!(plan.runs().is_empty() && plan.reads().is_empty());
    assert_eq!(plan.span(), (0, 0));
}

/// Everything of a plan that a stripe write sees.
fn seen(plan: &Plan) -> (&[Run], &[Transfer], Totals) {
    (plan.runs(), plan.reads(), plan.totals())
}

#[test]
fn the_short_way_for_a_single_range_equals_the_general_way() {
    let mut random = Random(7);
    let layouts: Vec<ParityLayout> = ParityLayout::all().collect();
    let (mut modified, mut reconstructed, mut cached) = (0, 0, 0);
    for round in 0..20_000 {
        let layout = layouts[round % layouts.len()];
        let members = 4 + random.below(8);
        let stripe = healthy(stripe_map(layout, members, random.next() % 100));
        let column = random.below(stripe.map.columns());
        let sectors = stripe.chunk_bytes as usize / 512;
        let start = random.below(sectors);
        let end = start + 1 + random.below(sectors - start);
        let range = written(column, u32::try_from(start * 512).unwrap(), u32::try_from(end * 512).unwrap());
        let mut world = World { cached: random.next(), ..World::random(members, &mut random) };
        for policy in POLICIES {
            let (mut short, mut general) = (Plan::new(), Plan::new());
            assert!(single::is_single(&stripe, &[], &range));
            plan_into(&mut short, &stripe, policy, [range], &[], &mut world).unwrap();
            plan_any(&mut general, &stripe, policy, [range], &[], &mut world).unwrap();
            assert_eq!(seen(&short), seen(&general), "{stripe:?} {range:?} {policy:?}");
            modified += short.totals().rmw_runs;
            reconstructed += short.totals().rcw_runs;
            cached += usize::from(short.totals().cached_bytes > 0);
        }
    }
    assert!(modified > 1000 && reconstructed > 1000 && cached > 1000, "{modified} {reconstructed} {cached}");
}
