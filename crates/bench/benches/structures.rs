//! `cargo bench -p pinstripe-bench --bench structures`: what a write asks of the stripe table, of the intent
//! table and of the planner, each alone and uncontended. What a whole request costs is `cargo xtask cost`'s
//! matter.
#![allow(missing_docs, reason = "criterion makes public functions")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use pinstripe_engine::{
    geometry::{MemberSlot, ParityGeometry, ParityLayout, Set64, StripeId},
    intent::IntentTable,
    plan::{Ahead, Facts, Parity, Plan, Price, Stripe, WritePolicy, Written, plan_into},
    stripe::table::StripeTable,
};
use pinstripe_md::level::{Level, ParityLayout as Algorithm};

const CHUNK: u32 = 64 << 10;
/// Stripes and regions that are used in turn: more than one cache line has.
const TURN: u64 = 1024;

fn stripe_table(criterion: &mut Criterion) {
    let table = StripeTable::<u64, ()>::new(1 << 16, 1, 64);
    let mut stripe = 0;
    criterion.bench_function("stripe table: claim and finish", |bencher| {
        bencher.iter(|| {
            stripe = (stripe + 1) % TURN;
            let claim = table.try_claim(black_box(stripe)).expect("nothing else claims");
            claim.finish(&());
        });
    });
    assert!(table.is_idle());
}

fn intent(criterion: &mut Criterion) {
    const REGION: u64 = 64 << 20;
    let table = IntentTable::new(TURN * REGION, REGION, true);
    let all: Vec<usize> = (0..table.len()).collect();
    table.set(&all);
    let mut at = 0;
    criterion.bench_function("intent: mark of a durable region, and its end", |bencher| {
        bencher.iter(|| {
            at = (at + 1) % TURN;
            let mark = table.mark(table.regions(black_box(at * REGION), 4096), 0);
            assert!(table.is_durable(&mark));
        });
    });
    criterion.bench_function("intent: clear of an idle region, and its bit again", |bencher| {
        // What was marked above has been touched, and is a candidate from the second sweep on.
        table.sweep_candidates();
        let mut region = 0;
        bencher.iter(|| {
            region = (region + 1) % table.len();
            assert!(table.try_clear(black_box(region)));
            table.cleared(&[region]);
            table.set(&[region]);
        });
    });
    criterion.bench_function("intent: sweep of 1024 regions", |bencher| {
        bencher.iter(|| black_box(table.sweep_candidates()));
    });
}

/// Members that are alike, and an empty cache.
struct Alike;

impl Facts for Alike {
    fn price(&self, _: MemberSlot) -> Price {
        Price { latency_ns: 80_000, ns_per_kib: 350, moves_head: false }
    }

    fn ahead(&self, _: MemberSlot, _: u32) -> Ahead {
        Ahead::default()
    }

    fn shares_link(&self) -> bool {
        false
    }

    fn is_cached(&mut self, _: Parity, _: u32) -> bool {
        false
    }
}

fn stripe(level: Level, members: usize, missing: Option<usize>) -> Stripe {
    let layout = ParityLayout::new(level, Algorithm::LeftSymmetric).expect("both levels have it");
    let geometry = ParityGeometry::new(layout, members, CHUNK, u64::from(CHUNK) * 100, 512);
    let mut unwritable = Set64::EMPTY;
    if let Some(slot) = missing {
        unwritable.insert(slot);
    }
    Stripe {
        map: geometry.expect("the shape is usual").slots(StripeId(7)),
        chunk_bytes: CHUNK,
        unreadable: unwritable,
        unwritable,
        in_sync: true,
    }
}

fn plans(criterion: &mut Criterion) {
    let part = |column| Written { column, start: 4096, end: 8192 };
    let whole = |column| Written { column, start: 0, end: CHUNK };
    let (raid5, raid6) = (stripe(Level::Raid5, 6, None), stripe(Level::Raid6, 6, None));
    // Stripe 7 has column 2 there.
    let degraded = stripe(Level::Raid5, 6, Some(raid5.map.data_slot(2).index()));
    let cases: [(&str, Stripe, Vec<Written>); 6] = [
        ("4 KiB, RAID5 5+1", raid5, vec![part(0)]),
        ("4 KiB, RAID6 4+2", raid6, vec![part(0)]),
        ("4 KiB, RAID5 5+1 degraded", degraded, vec![part(0)]),
        ("4 KiB of the missing member, RAID5 5+1", degraded, vec![part(2)]),
        ("three columns, RAID5 5+1", raid5, vec![part(0), whole(1), part(3)]),
        ("full stripe, RAID6 4+2", raid6, (0..4).map(whole).collect()),
    ];
    for (name, stripe, image) in cases {
        let mut plan = Plan::default();
        criterion.bench_function(&format!("plan: {name}"), |bencher| {
            bencher.iter(|| {
                let image = black_box(&image).iter().copied();
                let made = plan_into(&mut plan, &stripe, WritePolicy::Cost, image, &[], &mut Alike);
                assert!(made.is_ok(), "{made:?}");
            });
        });
    }
}

criterion_group!(benches, stripe_table, intent, plans);
criterion_main!(benches);
