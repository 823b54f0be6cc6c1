//! Members with servers that compute parity: every byte that was acknowledged, parity on every row, nothing
//! left at the servers, whatever servers and links do.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use crate::arrays::{
    self, STEPS,
    net::{CHUNK, Net, plan},
    options,
    scene::{clients, lay_out, spawn, superblock_on, write},
    servers::{ServerSource, Stage, serve_too},
};
use pinstripe_engine::{
    array::Array,
    assembly::{AssembleError, create::create_placed},
    error::IoError,
    geometry::{ParityLayout, StripeId},
    offload::fence::FenceError,
    options::{ArrayOptions, OffloadMode},
};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{NewBitmap, NewDevice, NewLog, journal::add_journal},
    superblock::Role,
    units::Sector,
};
use pinstripe_sim::{Fault, SimDisk, SimDiskConfig, Trigger, World, WorldConfig};

const CHUNK_SECTORS: u64 = CHUNK / 512;

fn raid5(seed: u64) -> Net {
    Net::of(seed, plan(Level::Raid5, "left-symmetric", 4))
}

fn raid6(seed: u64) -> Net {
    Net::of(seed, plan(Level::Raid6, "left-symmetric", 5))
}

fn fill(net: &mut Net) {
    let sectors = net.scene.array.volume().size() / 512;
    net.scene.write(0, sectors, false).unwrap();
    net.scene.flush().unwrap();
}

#[test]
fn partial_writes_send_each_byte_once_and_full_stripes_stay_with_the_client() {
    for parities in 1..=2 {
        let mut net = if parities == 1 { raid5(1) } else { raid6(2) };
        fill(&mut net);
        let written: u64 = net.servers.iter().map(|server| server.count("partial_write")).sum();
        assert_eq!(written, 0);
        let (before, detail) = (net.statistics(), net.scene.array.detail());
        net.scene.write(3, 8, false).unwrap();
        let (now, after) = (net.statistics().since(&before), net.scene.array.detail());
        assert_eq!(
            (now.offloaded_runs, now.offload_operations, now.offload_fallbacks),
            (1, 1, 0),
            "{:?}",
            net.script.failures
        );
        assert_eq!((now.pre_read_bytes, now.member_write_bytes), (0, 0));
        let sent = |detail: &pinstripe_engine::status::detail::Detail| {
            detail
                .slots
                .iter()
                .map(|slot| (slot.statistics.sent_bytes, slot.statistics.received_bytes))
                .collect::<Vec<_>>()
        };
        let (from, to) = (sent(&detail), sent(&after));
        // The bitmap and superblocks are written too, by every member alike.
        let user = from.iter().zip(&to).map(|(from, to)| to.0 - from.0).collect::<Vec<_>>();
        let least = user.iter().min().unwrap();
        assert_eq!(user.iter().sum::<u64>() - least * user.len() as u64, 8 * 512);
        let parity: u64 = net.servers.iter().map(|server| server.count("parity")).sum();
        assert_eq!(parity, parities);
        net.assert_consistent();
        net.assert_settled();
    }
}

/// Rows that are written whole are the client's to write, and the others the servers'.
#[test]
fn a_forced_write_outlives_a_crash_whether_client_or_servers_write_its_rows() {
    for seed in 0..6 {
        let mut net = if seed % 2 == 0 { raid5(seed) } else { raid6(seed) };
        fill(&mut net);
        let before = net.statistics();
        net.scene.write(0, 3 * CHUNK_SECTORS - 8, true).unwrap();
        let now = net.statistics().since(&before);
        let (offloaded, own) = (now.offloaded_runs, now.member_writes);
        assert!(offloaded == 1 && own > 3, "seed {seed}: {offloaded} runs offloaded, {own} writes");
        net.scene.world.crash();
        net.scene.ledger.borrow_mut().crash();
        net.restart();
        net.scene.read_all();
    }
}

#[test]
fn random_writes_of_every_level_and_layout_keep_data_and_parity() {
    for (seed, layout) in (0..).zip(ParityLayout::all()) {
        let level = Level::from_number(layout.level()).unwrap();
        let members = if level == Level::Raid6 { 5 } else { 4 };
        let mut net = Net::of(seed, plan(level, layout.name(), members));
        fill(&mut net);
        clients(&mut net.scene, 4, 25, 70);
        assert!(net.statistics().offloaded_runs > 20, "{:?}", net.statistics());
        assert_eq!(net.statistics().offload_fallbacks, 0, "{:?}", net.script.failures);
        net.assert_consistent();
        net.assert_settled();
        net.scene.stop();
        assert!(net.servers.iter().all(|server| server.is_given_up()));
    }
}

#[test]
fn degraded_writes_and_reads_of_every_level_and_layout_keep_what_is_lost() {
    let mut reads = 0;
    for (seed, layout) in (100..).zip(ParityLayout::all()) {
        let level = Level::from_number(layout.level()).unwrap();
        let (members, redundancy) = if level == Level::Raid6 { (5, 2) } else { (4, 1) };
        for lost in 1..=redundancy {
            let mut net = Net::of(seed, plan(level, layout.name(), members));
            fill(&mut net);
            for number in 0..lost {
                net.lose((usize::try_from(seed).unwrap() + 2 * number) % usize::from(members));
            }
            clients(&mut net.scene, 4, 25, 70);
            net.scene.read_all();
            let now = net.statistics();
            assert!(
                now.offloaded_runs > 10 && now.offload_fallbacks == 0,
                "{now:?} {:?}",
                net.script.failures
            );
            assert_eq!(now.offloaded_reads, now.reconstructed_reads);
            reads += now.offloaded_reads;
            net.assert_settled();
        }
    }
    assert!(reads > 1000, "{reads}");
}

#[test]
fn writers_of_one_stripe_and_readers_of_it_see_whole_writes() {
    for seed in 0..6 {
        let mut net = raid6(seed);
        fill(&mut net);
        if seed % 2 == 1 {
            net.lose(1);
        }
        let done = spawn(&mut net.scene, 6, |number, volume, ledger, mut rng| async move {
            for _ in 0..20 {
                let at = rng.below(CHUNK_SECTORS * 3 - 40);
                if number < 4 {
                    write(&volume, &ledger, at, 1 + rng.below(40), rng.below(8) == 0).await.unwrap();
                    continue;
                }
                let id = ledger.borrow_mut().begin_read(at..at + 40);
                let (result, buffer) =
                    volume.read(at * 512, pinstripe_runtime::shard::buffer(40 * 512)).await;
                result.unwrap();
                ledger.borrow_mut().check_read(id, &buffer).unwrap();
            }
        });
        net.scene.world.run_until(STEPS, |_| *done.borrow() == 6).unwrap();
        net.assert_consistent();
        net.assert_settled();
    }
}

#[test]
fn with_a_barrier_parity_servers_are_told_when_all_parts_are_there() {
    let options = ArrayOptions { offload: OffloadMode::Barrier, ..options() };
    let mut net = Net::new(3, plan(Level::Raid6, "left-symmetric", 5), 2, options);
    fill(&mut net);
    clients(&mut net.scene, 3, 20, 40);
    let now = net.statistics();
    assert!(now.offload_barriers > 10 && now.offload_fallbacks == 0);
    net.assert_consistent();
    net.assert_settled();
}

#[test]
fn servers_with_few_slots_are_never_asked_for_more() {
    for seed in 0..4 {
        let wish = plan(Level::Raid5, "left-symmetric", 4);
        let mut net = Net::with_slots(seed, wish, 2, options(), 2);
        fill(&mut net);
        net.script.delay_ns.set(3_000_000);
        if seed % 2 == 1 {
            net.lose(2);
        }
        clients(&mut net.scene, 8, 12, 30);
        assert!(net.statistics().offloaded_runs > 10);
        assert!(net.servers.iter().all(|server| server.held_max.get() <= 2));
        net.assert_consistent();
        net.assert_settled();
    }
}

#[test]
fn a_refused_operation_has_no_effect_and_the_client_does_the_work_for_a_while() {
    for seed in 0..8 {
        let mut net = raid6(seed);
        fill(&mut net);
        net.servers[usize::try_from(seed % 5).unwrap()].refuses.set(1);
        for stripe in 0..5 {
            net.scene.write(stripe * 3 * CHUNK_SECTORS + 5, 9, false).unwrap();
        }
        let now = net.statistics();
        assert_eq!(now.offload_fallbacks, 1, "{now:?}");
        assert!(now.pre_read_bytes > 0);
        let plain = net.scene.array.detail().offload.unwrap().plain.unwrap();
        assert!(plain.contains(&format!("the server of slot {} refused", seed % 5)), "{plain}");
        net.assert_consistent();
        net.assert_settled();
        net.sleep(10_000);
        let before = net.statistics();
        net.scene.write(5, 9, false).unwrap();
        assert_eq!(net.statistics().since(&before).offloaded_runs, 1);
        assert_eq!(net.scene.array.detail().offload.unwrap().plain, None);
        net.assert_consistent();
    }
}

#[test]
fn what_was_refused_under_one_membership_is_asked_again_under_the_next() {
    for seed in 0..4 {
        let mut net = raid6(seed);
        fill(&mut net);
        let refuser = usize::try_from(seed).unwrap();
        net.servers[refuser].refuses.set(1);
        let write_all = |net: &mut Net| {
            for stripe in 0..5 {
                net.scene.write(stripe * 3 * CHUNK_SECTORS + 5, 9, false).unwrap();
            }
        };
        write_all(&mut net);
        assert!(net.scene.array.detail().offload.unwrap().plain.is_some());
        let before = net.statistics();
        net.lose(refuser);
        assert_eq!(net.scene.array.detail().offload.unwrap().plain, None);
        write_all(&mut net);
        let now = net.statistics().since(&before);
        assert!(now.offloaded_runs > 0, "{now:?}");
        net.assert_consistent();
        net.assert_settled();
    }
}

#[test]
fn a_server_that_waits_for_another_one_is_not_dropped_in_its_place() {
    let hasty = ArrayOptions { member_timeout_ns: 2_000_000_000, slow_member_ns: 1_000_000_000, ..options() };
    for seed in 0..4 {
        let mut net = Net::new(seed, plan(Level::Raid5, "left-symmetric", 4), 2, hasty.clone());
        fill(&mut net);
        // As long as a server takes to say that it doesn't reach another one.
        let waits = std::rc::Rc::clone(&net.servers[usize::try_from(seed).unwrap()]);
        waits.hang(true);
        net.scene.world.spawn(0, "wait", async move {
            pinstripe_runtime::shard::sleep(5_000_000_000).await;
            waits.hang(false);
        });
        for stripe in 0..4 {
            net.scene.write(stripe * 3 * CHUNK_SECTORS + 5, 9, false).unwrap();
        }
        assert_eq!(net.scene.array.detail().missing, 0, "seed {seed}");
        net.assert_consistent();
    }
}

#[test]
fn servers_that_do_not_reach_each_other_are_done_without() {
    for seed in 0..4 {
        let mut net = raid5(seed);
        fill(&mut net);
        net.script.parted.borrow_mut().extend([(0, 1), (1, 0)]);
        clients(&mut net.scene, 3, 12, 40);
        let now = net.statistics();
        assert!(now.offload_fallbacks > 0 && net.scene.array.detail().missing == 0, "{now:?}");
        net.assert_consistent();
        net.assert_settled();
    }
}

/// Writes one range while the server that takes step `step` of the write dies. False if there is no such step
/// any more.
fn dies_in_write(mut net: Net, step: u64, at: u64, sectors: u64) -> bool {
    let begun = net.script.steps.get();
    net.script.dies_at.set(Some(begun + step));
    net.scene.write(at, sectors, false).unwrap();
    net.scene.flush().unwrap();
    let died = net.script.died.get();
    net.script.dies_at.set(None);
    net.attach();
    net.scene.write(at + 1, sectors, false).unwrap();
    net.scene.read_all();
    net.assert_settled();
    died.is_some()
}

#[test]
fn a_server_that_dies_at_any_step_of_a_write_costs_no_byte() {
    for (seed, level, members, lost) in [(1, Level::Raid5, 4, None), (2, Level::Raid6, 5, Some(1))] {
        let mut steps = 0;
        for step in 0.. {
            let mut net = Net::of(seed, plan(level, "left-symmetric", members));
            net.scene.write(0, 3 * 3 * CHUNK_SECTORS, false).unwrap();
            if let Some(server) = lost {
                net.lose(server);
            }
            if !dies_in_write(net, step, 10, 30) {
                break;
            }
            steps = step;
        }
        assert!(steps > 12, "{steps}");
    }
}

#[test]
fn a_server_that_hangs_is_given_up_and_nothing_of_it_lands_later() {
    for seed in 0..6 {
        let mut net = raid6(seed);
        fill(&mut net);
        let hangs = usize::try_from(seed).unwrap() % 5;
        net.servers[hangs].hang(true);
        net.scene.disks[hangs].fault(&pinstripe_sim::Fault::Hang);
        clients(&mut net.scene, 3, 8, 40);
        assert_eq!(net.scene.array.detail().missing, 1);
        net.servers[hangs].hang(false);
        net.scene.disks[hangs].fault(&pinstripe_sim::Fault::Release);
        net.sleep(1_000);
        clients(&mut net.scene, 3, 8, 40);
        net.scene.read_all();
        net.assert_settled();
    }
}

#[test]
fn a_server_that_loses_what_it_was_to_write_is_dropped_before_the_write_is_acknowledged() {
    for seed in 0..5 {
        let mut net = raid6(seed);
        fill(&mut net);
        net.servers[usize::try_from(seed).unwrap()].refuses_commit.set(1);
        (0..5).for_each(|stripe| net.scene.write(stripe * 3 * CHUNK_SECTORS + 5, 40, true).unwrap());
        let dropped = net.scene.array.detail().failed[0].slot.unwrap();
        for disk in (0..5).filter(|&disk| disk != dropped) {
            assert_eq!(superblock_on(&net.scene.disks[disk]).array.roles[dropped], Role::Faulty, "C2");
        }
        net.scene.read_all();
    }
}

/// The array can't do without the one that is slow, as soon as the other one has lost its part.
#[test]
fn a_member_that_commits_slowly_is_waited_for_where_another_one_has_lost_its_part() {
    for seed in 0..4 {
        let mut net = raid5(seed);
        fill(&mut net);
        let map = net.scene.geometry().slots(StripeId(0));
        let (data, parity) = (map.data_slot(0).index(), map.p_slot().index());
        let (lost, slow) = if seed % 2 == 0 { (data, parity) } else { (parity, data) };
        net.servers[lost].refuses_commit.set(1);
        let (volume, ledger) = (net.scene.volume(), Rc::clone(&net.scene.ledger));
        let answer = Rc::new(RefCell::new(None));
        let told = Rc::clone(&answer);
        net.scene.world.spawn(0, "write", async move {
            let written = write(&volume, &ledger, 5, 8, false).await;
            told.replace(Some(written));
        });
        let server = Rc::clone(&net.servers[slow]);
        let is_prepared = || server.open_operations().iter().any(|(_, stage)| *stage == Stage::Prepared);
        net.scene.world.run_until(STEPS, |_| is_prepared()).unwrap();
        net.scene.disks[slow].fault(&Fault::Hang);
        let later = net.scene.world.now() + 40_000_000_000;
        net.scene.disks[slow].plan(Trigger::AtTime(later), Fault::Release);
        net.scene.world.run_until(STEPS, |_| answer.borrow().is_some()).unwrap();
        assert_eq!(answer.take(), Some(Ok(())), "seed {seed}");
        let detail = net.scene.array.detail();
        assert_eq!((detail.missing, detail.slots[lost].state), (1, "missing"), "seed {seed}");
        net.scene.read_all();
    }
}

/// Of a disk that makes a write and a flush of it: what its cache had is lost where that fails (C5).
#[test]
fn a_forced_write_of_the_servers_is_one_of_the_flushes_of_their_disks() {
    let wish = plan(Level::Raid5, "left-symmetric", 4);
    for of_parity in [false, true] {
        let mut world = World::new(WorldConfig::new(1, 1));
        let disk = |(number, member): (usize, &NewDevice)| {
            let config = SimDiskConfig::new(&format!("disk{number}"), member.sectors * 512);
            world.add_disk(SimDiskConfig { forces_by_flush: true, ..config })
        };
        let disks: Vec<_> = wish.members.iter().enumerate().map(disk).collect();
        lay_out(&mut world, wish.place_with(NewLog::None).unwrap(), &disks).unwrap();
        let mut net = Net::over(1, world, disks, options(), 64);
        fill(&mut net);
        let map = net.scene.geometry().slots(StripeId(4));
        let victim = if of_parity { map.p_slot() } else { map.data_slot(0) }.index();
        net.scene.write(0, 3 * CHUNK_SECTORS, false).unwrap();
        net.scene.disks[victim].fault(&Fault::FailFlushes(1));
        let before = net.statistics().offloaded_runs;
        net.scene.write(4 * 3 * CHUNK_SECTORS + 3, 8, true).unwrap();
        assert_eq!(net.statistics().offloaded_runs - before, 1);
        net.scene.flush().unwrap();
        let detail = net.scene.array.detail();
        assert!(detail.slots.iter().all(|slot| slot.bad_sectors == 0), "it was not that sector");
        assert_eq!(detail.slots[victim].state, "missing");
        net.scene.world.crash();
        net.scene.ledger.borrow_mut().crash();
        net.scene.disks[victim].fault(&Fault::Heal);
        net.servers.iter().for_each(|server| server.host_gone());
        assert!(net.try_reassemble().is_err() || net.scene.is_right());
    }
}

#[test]
fn what_is_read_of_the_others_anyway_is_not_sent_twice() {
    let mut net = raid5(8);
    fill(&mut net);
    net.lose(1);
    let received = |net: &Net| -> u64 {
        net.scene.array.detail().slots.iter().map(|slot| slot.statistics.received_bytes).sum()
    };
    let before = received(&net);
    net.scene.read_all();
    let sectors = net.scene.array.volume().size() / 512;
    assert_eq!(received(&net) - before, sectors * 512, "read in pieces of a chunk");
    let before = received(&net);
    let (volume, ledger) = (net.scene.volume(), std::rc::Rc::clone(&net.scene.ledger));
    net.scene.run(async move {
        for at in (0..sectors).step_by(77) {
            let length = 150.min(sectors - at);
            let id = ledger.borrow_mut().begin_read(at..at + length);
            let buffer = pinstripe_runtime::shard::buffer(usize::try_from(length).unwrap() * 512);
            let (result, buffer) = volume.read(at * 512, buffer).await;
            result.unwrap();
            ledger.borrow_mut().check_read(id, &buffer).unwrap();
        }
    });
    let read: u64 = (0..sectors).step_by(77).map(|at| 150.min(sectors - at)).sum();
    assert_eq!(received(&net) - before, read * 512);
    assert!(net.servers.iter().map(|server| server.count("read_contribute")).sum::<u64>() > 5);
    net.assert_settled();
}

#[test]
fn reads_survive_servers_that_die_refuse_or_do_not_reach_each_other() {
    for seed in 0..6 {
        let mut net = raid6(seed);
        fill(&mut net);
        net.lose(0);
        let begun = net.script.steps.get();
        match seed % 3 {
            0 => net.script.dies_at.set(Some(begun + 40 + 7 * seed)),
            1 => net.servers[2].refuses.set(2),
            _ => net.script.parted.borrow_mut().extend([(1, 2), (2, 3), (3, 4), (4, 1)]),
        }
        net.scene.read_all();
        assert!(net.statistics().offload_fallbacks > 0 || net.script.died.get().is_some());
        net.script.dies_at.set(None);
        clients(&mut net.scene, 2, 8, 40);
        net.scene.read_all();
        net.assert_settled();
    }
}

#[test]
fn a_client_that_dies_is_followed_by_one_with_a_higher_epoch() {
    for seed in 0..6 {
        let mut net = raid5(seed);
        fill(&mut net);
        let first = net.epoch();
        assert!(first > 0 && net.servers.iter().all(|server| server.epoch() == first));
        let done = spawn(&mut net.scene, 3, |_, volume, ledger, mut rng| async move {
            for _ in 0..100 {
                let at = rng.below(500);
                write(&volume, &ledger, at, 1 + rng.below(40), rng.below(8) == 0).await.unwrap();
            }
        });
        let until = net.scene.world.now() + 3_000_000 * (seed + 1);
        net.scene.world.run_until(STEPS, |world| world.now() >= until).unwrap();
        assert!(*done.borrow() < 3);
        net.scene.world.crash();
        net.scene.ledger.borrow_mut().crash();
        net.restart();
        assert_eq!(net.epoch(), first + 1);
        net.scene.read_all();
        let array = net.scene.array.clone();
        net.scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
        clients(&mut net.scene, 3, 10, 40);
        net.assert_consistent();
        assert!(net.statistics().offloaded_runs > 0);
        net.assert_settled();
    }
}

#[test]
fn an_array_that_another_host_uses_is_not_started() {
    let mut net = raid5(1);
    fill(&mut net);
    net.scene.stop();
    net.servers[2].refuses_attach.set(true);
    let error = net.try_reassemble().err().unwrap().to_string();
    assert!(error.contains("disk2: another host uses it"), "{error}");
    assert!(error.contains("disk0 and disk1 had been attached to this host before that"), "{error}");
    assert!(net.servers.iter().all(|server| server.is_given_up()), "what was attached is given back");
    net.servers[2].refuses_attach.set(false);
    net.reassemble();
    net.assert_consistent();
}

/// An array with a log that is to be replayed: members' partial parity logs, or a journal, which is the last
/// device.
fn logged(seed: u64, journal: bool) -> Net {
    let mut wish = plan(Level::Raid5, "left-symmetric", 4 + u8::from(journal));
    wish.bitmap = NewBitmap::None;
    wish.data_offset = Some(Sector(4096));
    wish.members.iter_mut().for_each(|member| member.sectors = 6 << 11);
    let mut net = Net::made_by(seed, wish, 1, options(), 64, move |mut wish, devices| async move {
        let log = if journal { NewLog::None } else { NewLog::Ppl };
        let device = journal.then(|| wish.members.pop().unwrap());
        let mut placed = wish.place_with(log).unwrap();
        if let Some(device) = device {
            add_journal(&mut placed, device, 512).unwrap();
        }
        create_placed(placed, &devices).await.unwrap();
    });
    net.scene.write(0, 8, false).unwrap();
    let volume = net.scene.volume();
    for sector in [96, 192] {
        let (volume, ledger) = (volume.clone(), Rc::clone(&net.scene.ledger));
        net.scene.world.spawn(0, "write", async move {
            let _ = write(&volume, &ledger, sector, 8, false).await;
        });
    }
    let until = net.scene.world.now() + 1_000_000;
    net.scene.world.run_until(STEPS, |world| world.now() >= until).unwrap();
    net.scene.world.crash();
    net.scene.ledger.borrow_mut().crash();
    net.servers.iter().for_each(|server| server.host_gone());
    net
}

/// A member, or the journal device, fails at one of its requests after another, while the array is assembled.
/// A start that fails then leaves no host attached at a server, however far it has come.
#[test]
fn a_start_that_fails_gives_up_all_that_it_has_attached() {
    let requests = |disk: &SimDisk| {
        let counters = disk.counters();
        counters.reads + counters.writes + counters.flushes
    };
    for (journal, victim) in [(false, 1), (true, 2), (true, 4)] {
        let mut failed = 0;
        for request in 0.. {
            let mut net = logged(5, journal);
            let disk = net.scene.disks[victim].clone();
            let begins = requests(&disk);
            disk.plan(Trigger::AtRequest(begins + request), Fault::UnwritableRange(0..disk.info().size));
            disk.plan(Trigger::AtRequest(begins + request), Fault::FailFlushes(1));
            let was_attached = net.script.attached.borrow().len();
            match net.try_reassemble() {
                Ok(()) if requests(&disk) <= begins + request => break,
                Ok(()) => continue,
                Err(_) => {}
            }
            if net.script.attached.borrow().len() > was_attached {
                failed += 1;
                let held: Vec<_> = net.servers.iter().map(|server| !server.is_given_up()).collect();
                assert!(!held.contains(&true), "journal {journal}, request {request}: {held:?}");
            }
            disk.fault(&Fault::Heal);
            net.reassemble();
            net.scene.read_all();
        }
        assert!(failed > 2, "journal {journal}, device {victim}: {failed}");
    }
}

#[test]
fn a_journal_devices_server_is_given_up_when_the_array_stops() {
    let mut net = logged(6, true);
    net.reassemble();
    net.scene.stop();
    assert!(net.servers.iter().all(|server| server.is_given_up()));
}

/// The first device that another host takes over may be the journal. It is well, and so is the array there.
#[test]
fn a_host_whose_journal_was_fenced_stops_and_writes_nothing_down() {
    let mut net = logged(7, true);
    net.reassemble();
    // The superblocks are written before this one, and not again before the next.
    net.scene.write(0, 8, false).unwrap();
    let superblocks = |net: &Net| (0..4).map(|disk| net.scene.superblock(disk)).collect::<Vec<_>>();
    let before = superblocks(&net);
    net.servers[4].taken_and_left(true);
    assert_eq!(net.scene.write(96, 8, false), Err(IoError::TakenOver));
    net.sleep(6_000);
    assert_eq!(before, superblocks(&net), "nothing is written by what is known from before");
    let detail = net.scene.array.detail();
    assert_eq!((detail.state, detail.missing), ("failed", 0));
    let advice = detail.advice.unwrap();
    assert!(advice.contains("another host has taken the array over"), "{advice}");
    let array = net.scene.array.clone();
    assert_eq!(net.scene.run(async move { array.stop().await }), Err(IoError::TakenOver));
    assert_eq!(before, superblocks(&net));
}

#[test]
fn an_idle_host_notices_that_its_journal_was_taken_over() {
    let mut net = logged(8, true);
    net.reassemble();
    net.sleep(20_000);
    assert_ne!(net.scene.array.detail().state, "failed", "asking alone does nothing");
    let before: Vec<_> = (0..4).map(|disk| net.scene.superblock(disk).array.events).collect();
    net.servers[4].taken_and_left(false);
    net.sleep(6_000);
    let detail = net.scene.array.detail();
    assert_eq!((detail.state, detail.missing), ("failed", 0));
    let after: Vec<_> = (0..4).map(|disk| net.scene.superblock(disk).array.events).collect();
    assert_eq!(before, after);
}

#[test]
fn a_host_that_was_killed_a_moment_ago_is_waited_for() {
    let mut net = raid5(2);
    fill(&mut net);
    net.scene.stop();
    net.servers[2].refuses_attach.set(true);
    let server = Rc::clone(&net.servers[2]);
    net.scene.world.spawn(0, "its connection ends", async move {
        pinstripe_runtime::shard::sleep(2_800_000_000).await;
        server.refuses_attach.set(false);
    });
    net.reassemble();
    net.assert_consistent();
}

#[test]
fn while_a_member_is_replaced_both_devices_get_what_is_written() {
    for seed in 0..3 {
        let mut wish = plan(Level::Raid6, "left-symmetric", 5);
        wish.members.iter_mut().for_each(|member| member.sectors = 4096);
        let slow = ArrayOptions {
            checkpoint_stripes: 4,
            checkpoint_ns: 0,
            maintenance_depth: 1,
            gather_ns: 0,
            ..options()
        };
        let mut net = Net::new(seed, wish, 2, slow);
        fill(&mut net);
        let target = net.scene.world.add_disk(SimDiskConfig::new("target", 4096 * 512));
        let (array, source) = (net.scene.array.clone(), target.source());
        net.scene.run(async move { array.replace(1, Some(source), Uuid([0x55; 16])).await }).unwrap();
        let plain = net.scene.array.detail().offload.unwrap().plain.unwrap();
        assert!(plain.contains("replaced"), "{plain}");
        let before = net.statistics();
        clients(&mut net.scene, 3, 20, 40);
        let now = net.statistics().since(&before);
        let array = net.scene.array.clone();
        assert!(array.detail().slots[1].replacement.is_some(), "the copy was through before the writes were");
        assert_eq!(now.offloaded_runs, 0, "the servers know of one place for each chunk");
        net.scene.world.run_until(STEPS, |_| array.detail().slots[1].replacement.is_none()).unwrap();
        net.assert_consistent();
    }
}

#[test]
fn a_host_that_was_fenced_stops_and_writes_nothing_down() {
    let mut net = raid5(1);
    fill(&mut net);
    let before: Vec<_> = (0..4).map(|disk| net.scene.superblock(disk).array.events).collect();
    // As after another host's takeover.
    net.servers.iter().for_each(|server| server.host_gone());
    let error = net.scene.write(0, 8, false).unwrap_err();
    assert_eq!(error, IoError::TakenOver);
    let after: Vec<_> = (0..4).map(|disk| net.scene.superblock(disk).array.events).collect();
    assert_eq!(before, after, "no member is called faulty: all are well");
    let detail = net.scene.array.detail();
    assert_eq!(detail.missing, 0);
    let why = detail.last_errors[0].to_string();
    assert!(why.contains("another host has taken it over"), "{why}");
}

#[test]
fn members_are_attached_in_one_order_whatever_order_they_are_given_in() {
    let mut net = raid5(1);
    fill(&mut net);
    net.scene.stop();
    net.script.attached.borrow_mut().clear();
    net.reassemble();
    let order = net.script.attached.borrow()[..4].to_vec();
    assert_eq!(order, [0, 1, 2, 3], "two hosts that begin at once meet at the first one");
    net.assert_consistent();
}

/// Two hosts take the array over at the same time, from one that serves it. `orders` says how each has its
/// devices. What came of it.
fn two_takeovers(net: &mut Net, reversed: [bool; 2]) -> Vec<Result<Array, AssembleError>> {
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    for (host, reversed) in (1..).zip(reversed) {
        let mut sources: Vec<_> =
            net.servers.iter().map(|server| ServerSource::of_host(server, host)).collect();
        if reversed {
            sources.reverse();
        }
        let shards = (0..net.scene.world.shards()).map(|i| net.scene.world.shard(i).handle()).collect();
        let (there, options) = (Rc::clone(&outcomes), ArrayOptions { takeover: true, ..options() });
        net.scene.world.spawn(0, "takeover", async move {
            let outcome = Array::assemble(sources, options, shards).await;
            there.borrow_mut().push(outcome);
        });
    }
    net.scene.world.run_until(STEPS, |_| outcomes.borrow().len() == 2).unwrap();
    outcomes.take()
}

#[test]
fn of_two_takeovers_at_once_one_gets_the_array() {
    let mut alone = 0;
    for seed in 0..12 {
        let mut net = raid5(seed);
        fill(&mut net);
        net.sleep(2_000);
        let outcomes = two_takeovers(&mut net, [false, true]);
        let mut writes = 0;
        for outcome in outcomes {
            match outcome {
                Ok(array) => {
                    let before = std::mem::replace(&mut net.scene.array, array);
                    drop(before);
                    let volume = net.scene.volume();
                    let data = |length| pinstripe_runtime::shard::zeroed(length).freeze();
                    let written = net.scene.run(async move { volume.write(0, data(4096), false).await });
                    writes += u32::from(written.is_ok());
                }
                Err(error) => {
                    alone += 1;
                    let words = error.to_string();
                    assert!(words.contains("another host uses it"), "seed {seed}: {words}");
                }
            }
        }
        assert_eq!(writes, 1, "seed {seed}: one host has the array");
    }
    assert!(alone > 3, "one of them is refused, mostly: {alone} times");
}

#[test]
fn a_takeover_that_is_refused_at_the_first_member_leaves_the_running_array_alone() {
    let mut net = raid5(1);
    fill(&mut net);
    net.servers[0].refuses_attach.set(true);
    let takeover = ArrayOptions { takeover: true, ..options() };
    let sources = net.servers.iter().map(|server| ServerSource::of_host(server, 1)).collect();
    let error = arrays::assemble(&mut net.scene.world, sources, takeover).err().unwrap().to_string();
    assert!(error.starts_with("disk0: another host uses it"), "{error}");
    net.servers[0].refuses_attach.set(false);
    net.sleep(6_000);
    net.scene.write(0, 8, false).unwrap();
    net.assert_consistent();
}

#[test]
fn a_takeover_that_can_not_fence_a_server_is_refused_unless_it_is_forced() {
    let mut net = raid5(3);
    fill(&mut net);
    net.scene.stop();
    net.servers[2].is_plain.set(true);
    net.reassemble();
    net.scene.write(0, 8, false).unwrap();
    let takeover = ArrayOptions { takeover: true, ..options() };
    let sources = |net: &Net| net.servers.iter().map(|server| ServerSource::of_host(server, 1)).collect();
    let all = sources(&net);
    let error = arrays::assemble(&mut net.scene.world, all, takeover.clone()).err().unwrap();
    let AssembleError::Fence(FenceError::Unfenced { names }) = &error else { panic!("{error}") };
    assert_eq!(*names, ["disk2"]);
    net.sleep(6_000);
    net.scene.write(0, 8, false).unwrap();
    net.assert_consistent();

    let forced = ArrayOptions { force: true, ..takeover };
    let all = sources(&net);
    let array = arrays::assemble(&mut net.scene.world, all, forced).unwrap();
    net.sleep(6_000);
    assert_eq!(net.scene.write(0, 8, false), Err(IoError::TakenOver));
    net.scene.array = array;
    net.scene.stop();
}

#[test]
fn a_start_that_is_refused_takes_nothing_over() {
    let mut net = raid5(2);
    fill(&mut net);
    net.sleep(2_000);
    let takeover = ArrayOptions { takeover: true, newly_degraded: false, ..options() };
    let sources = net.servers.iter().skip(1).map(|server| ServerSource::of_host(server, 1)).collect();
    let error = arrays::assemble(&mut net.scene.world, sources, takeover).err().unwrap();
    assert!(matches!(error, AssembleError::NewlyDegraded { .. }), "{error}");
    net.sleep(6_000);
    net.scene.write(0, 8, false).unwrap();
    net.assert_consistent();
}

#[test]
fn a_host_asks_which_host_has_its_members_before_it_writes_its_superblocks() {
    // One server is enough, whether or not it says that it was taken.
    for (seed, knows) in [(1, true), (2, false)] {
        let mut net = raid5(seed);
        fill(&mut net);
        net.sleep(2_000);
        assert_eq!(net.scene.array.detail().state, "clean");
        let before: Vec<_> = (0..4).map(|disk| net.scene.superblock(disk).array.events).collect();
        net.servers[3].taken_and_left(knows);
        assert_eq!(net.scene.write(0, 8, false), Err(IoError::TakenOver));
        let after: Vec<_> = (0..4).map(|disk| net.scene.superblock(disk).array.events).collect();
        assert_eq!(before, after, "nothing is written by what is known from before");
        let array = net.scene.array.clone();
        assert_eq!(net.scene.run(async move { array.stop().await }), Err(IoError::TakenOver));
    }
}

#[test]
fn an_idle_host_notices_that_its_array_was_taken_over() {
    let mut net = raid5(1);
    fill(&mut net);
    net.sleep(20_000);
    assert_eq!(net.scene.array.detail().state, "clean", "asking alone does nothing");
    net.servers[1].taken_and_left(false);
    net.sleep(6_000);
    let detail = net.scene.array.detail();
    assert_eq!((detail.state, detail.missing), ("failed", 0));
    let advice = detail.advice.unwrap();
    assert!(advice.contains("another host has taken the array over"), "{advice}");
    let volume = net.scene.volume();
    let read = net.scene.run(async move { volume.read(0, pinstripe_runtime::shard::buffer(4096)).await.0 });
    assert_eq!(
        read,
        Err(IoError::TakenOver),
        "what is read may be older than what the other host has written"
    );
}

#[test]
fn numbers_of_servers_that_no_counting_comes_to_are_refused_in_words() {
    let mut net = raid5(1);
    fill(&mut net);
    net.scene.stop();
    net.servers[1].forge_epoch((1 << 63) - 1);
    let error = net.try_reassemble().err().unwrap().to_string();
    assert!(error.contains("disk1: its epoch is 9223372036854775807"), "{error}");
    net.servers[1].forge_epoch(1 << 50);
    let error = net.try_reassemble().err().unwrap().to_string();
    assert!(error.contains("its epoch is 1, and the array's next one would be 1125899906842625"), "{error}");
    // Some steps of those that a server takes.
    net.servers[1].forge_epoch(5 << 32);
    net.reassemble();
    assert_eq!(net.epoch(), (5 << 32) + 1);
    net.assert_consistent();
}

#[test]
fn a_server_that_refuses_the_others_is_a_plain_member_and_asked_again() {
    let mut net = raid6(1);
    fill(&mut net);
    net.servers[2].refuses_attach.set(true);
    net.lose(0);
    let plain = net.scene.array.detail().slots[2].offload.clone().unwrap().plain.unwrap();
    assert!(plain.contains("refused"), "{plain}");
    assert_eq!(net.scene.array.detail().slots[1].offload.clone().unwrap().plain, None);
    clients(&mut net.scene, 3, 12, 40);
    // Rows in which that member has no part.
    let now = net.statistics();
    assert!(now.pre_read_bytes > 0, "{now:?}");
    net.servers[2].refuses_attach.set(false);
    net.sleep(11_000);
    assert_eq!(net.scene.array.detail().slots[2].offload.clone().unwrap().plain, None, "it is asked again");
    clients(&mut net.scene, 3, 12, 40);
    net.assert_consistent();
    net.assert_settled();
}

#[test]
fn a_member_that_comes_back_is_rebuilt_and_takes_part_again() {
    for seed in 0..3 {
        let mut net = raid6(seed);
        fill(&mut net);
        net.lose(3);
        clients(&mut net.scene, 3, 8, 40);
        net.servers[3].come_back();
        let (array, source) = (net.scene.array.clone(), ServerSource::of(&net.servers[3]));
        net.scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
        clients(&mut net.scene, 3, 20, 40);
        let array = net.scene.array.clone();
        net.scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
        net.attach();
        let before = net.statistics();
        clients(&mut net.scene, 3, 12, 40);
        assert!(net.statistics().since(&before).offloaded_runs > 5);
        net.assert_consistent();
        net.assert_settled();
    }
}

/// What this host began by a connection that it has lost must not land on what it writes from now on (C28).
#[test]
fn a_member_that_comes_back_ends_what_its_host_has_under_way_elsewhere() {
    let mut net = raid6(2);
    fill(&mut net);
    net.lose(3);
    net.servers[3].come_back();
    let before = net.servers[3].attached_alone.get();
    let (array, source) = (net.scene.array.clone(), ServerSource::of(&net.servers[3]));
    net.scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
    assert_eq!(net.servers[3].attached_alone.get() - before, 1);
}

#[test]
fn a_member_with_an_epoch_of_its_own_joins_under_a_higher_one_and_any_other_under_the_arrays() {
    let mut net = raid5(5);
    fill(&mut net);
    let comes_back = |net: &mut Net, epoch: u64| {
        net.lose(3);
        net.servers[3].come_back();
        net.servers[3].forge_epoch(epoch);
        let (array, source) = (net.scene.array.clone(), ServerSource::of(&net.servers[3]));
        net.scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
        let array = net.scene.array.clone();
        net.scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
        net.attach();
    };
    let own = net.epoch();
    comes_back(&mut net, own);
    assert_eq!(net.epoch(), own);
    // It was a member of another array meanwhile.
    comes_back(&mut net, own + 7);
    assert!(net.epoch() == own + 8 && net.servers.iter().all(|server| server.epoch() == own + 8));
    clients(&mut net.scene, 3, 12, 40);
    net.assert_consistent();
    net.assert_settled();
}

/// A spare changes no membership, and operations may be under way when the servers are asked again, because
/// one of them has refused. With a higher epoch they would drop what isn't committed.
#[test]
fn a_spare_with_an_epoch_of_its_own_raises_the_members_only_with_the_next_membership() {
    let mut net = raid6(1);
    fill(&mut net);
    net.servers[2].refuses_attach.set(true);
    net.lose(0);
    let disk = net.scene.world.add_disk(SimDiskConfig::new("in its place", 768 * 512));
    let (array, source) = (net.scene.array.clone(), disk.source());
    net.scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
    let array = net.scene.array.clone();
    net.scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    net.attach();
    let own = net.epoch();
    net.servers[0].come_back();
    net.servers[0].forge_epoch(own + 10);
    let (array, source) = (net.scene.array.clone(), ServerSource::of(&net.servers[0]));
    net.scene.run(async move { array.add(source, Uuid([0x66; 16])).await }).unwrap();

    let asked = net.servers[2].count("attach");
    net.sleep(11_000);
    assert!(net.servers[2].count("attach") > asked, "it was not asked again");
    assert_eq!([1, 2, 3, 4].map(|member| net.servers[member].epoch() - own), [0, 0, 0, 0]);
    clients(&mut net.scene, 4, 10, 40);
    assert_eq!(net.scene.array.detail().missing, 0);
    net.servers[2].refuses_attach.set(false);
    net.lose(4);
    assert_eq!([1, 2, 3].map(|member| net.servers[member].epoch() - own), [11, 11, 11]);
    let array = net.scene.array.clone();
    net.scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    net.assert_settled();
}

#[test]
fn the_first_member_that_computes_is_taken_up_as_it_joins() {
    let mut net = raid5(6);
    fill(&mut net);
    net.scene.stop();
    // All by their disks, past the servers.
    net.scene.reassemble();
    assert!(net.scene.array.detail().offload.is_none());
    let array = net.scene.array.clone();
    net.scene.run(async move { array.fail(3).await }).unwrap();
    let (array, source) = (net.scene.array.clone(), ServerSource::of(&net.servers[3]));
    net.scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
    let array = net.scene.array.clone();
    net.scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    net.attach();
    let detail = net.scene.array.detail();
    assert!(detail.offload.unwrap().epoch > 0);
    assert_eq!(detail.slots[3].offload.as_ref().unwrap().plain, None);
    clients(&mut net.scene, 3, 12, 40);
    net.assert_consistent();
}

#[test]
fn a_server_that_dies_as_it_is_attached_is_dropped_and_the_others_are_attached() {
    let mut steps = 0;
    for step in 0.. {
        let mut net = raid6(step);
        net.script.dies_at.set(Some(net.script.steps.get() + step));
        net.lose(0);
        net.sleep(2_000);
        let Some(died) = net.script.died.get() else { break };
        let detail = net.scene.array.detail();
        assert_eq!((detail.slots[died].state, detail.missing), ("missing", 2), "step {step}");
        net.attach();
        steps = step;
    }
    assert!(steps > 6, "{steps}");
}

#[test]
fn a_lost_member_is_rebuilt_from_sums_of_the_servers() {
    for (seed, level, members) in [(1, Level::Raid5, 4), (2, Level::Raid6, 5), (3, Level::Raid4, 4)] {
        for second in [None, Some(2)].into_iter().take(if level == Level::Raid6 { 2 } else { 1 }) {
            let layout = if level == Level::Raid4 { "" } else { "left-symmetric" };
            let mut wish = plan(level, layout, members);
            wish.members.iter_mut().for_each(|member| member.sectors = 4096);
            let mut net = Net::of(seed, wish);
            fill(&mut net);
            net.lose(1);
            if let Some(second) = second {
                net.lose(second);
            }
            clients(&mut net.scene, 3, 8, 40);
            net.servers[1].come_back();
            let before = net.statistics();
            let (array, source) = (net.scene.array.clone(), ServerSource::of(&net.servers[1]));
            net.scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
            let (array, left) = (net.scene.array.clone(), usize::from(second.is_some()));
            net.scene.world.run_until(STEPS, |_| array.detail().missing == left).unwrap();
            let now = net.statistics().since(&before);
            assert!(now.offload_operations > 10 && now.offload_fallbacks == 0, "{now:?}");
            // Only until the servers know the new membership.
            assert!(now.member_read_bytes < now.member_write_bytes / 2, "{now:?}");
            net.assert_consistent();
            net.assert_settled();
        }
    }
}

#[test]
fn a_rebuild_survives_servers_that_die_or_refuse() {
    for seed in 0..6 {
        let mut net = raid6(seed);
        fill(&mut net);
        net.lose(0);
        net.servers[0].come_back();
        let (array, source) = (net.scene.array.clone(), ServerSource::of(&net.servers[0]));
        if seed % 2 == 0 {
            net.script.dies_at.set(Some(net.script.steps.get() + 30 + 9 * seed));
        } else {
            net.servers[2].refuses.set(2);
        }
        let added = net.scene.run(async move { array.add(source, Uuid([0x55; 16])).await });
        clients(&mut net.scene, 2, 8, 40);
        let died = net.script.died.get();
        net.script.dies_at.set(None);
        let array = net.scene.array.clone();
        let left = usize::from(died.is_some());
        assert!(added.is_ok() || died.is_some());
        assert!(net.statistics().offload_fallbacks > 0 || died.is_some());
        if died != Some(0) && added.is_ok() {
            net.scene.world.run_until(STEPS, |_| array.detail().missing == left).unwrap();
        }
        net.scene.read_all();
        net.assert_consistent();
        net.assert_settled();
    }
}

#[test]
fn servers_whose_links_are_full_sum_up_less() {
    let mut net = Net::of(4, plan(Level::Raid5, "left-symmetric", 5));
    fill(&mut net);
    net.lose(0);
    for (server, free) in net.servers.iter().zip([0, 10_000, 10_000, 5_000_000, 0]) {
        server.free_to_receive.set(free);
    }
    let turns = |net: &Net| -> Vec<u64> { net.servers.iter().map(|server| server.count("reduce")).collect() };
    net.scene.read_all();
    let uniform = turns(&net);
    assert!(uniform[1] > 0 && uniform[4] > 0, "no rate is known yet: {uniform:?}");
    net.sleep(2_500);
    net.scene.read_all();
    let by_room: Vec<u64> = turns(&net).iter().zip(&uniform).map(|(now, before)| now - before).collect();
    assert!(by_room[1] + by_room[2] == 0 && by_room[3] > 3 && by_room[4] > 3, "{by_room:?}");
    net.servers[4].free_to_receive.set(10_000);
    net.sleep(2_500);
    let before = turns(&net);
    net.scene.read_all();
    let by_room: Vec<u64> = turns(&net).iter().zip(&before).map(|(now, before)| now - before).collect();
    assert!(by_room[3] > 10 && by_room[4] == 0, "{by_room:?}");
    net.assert_settled();
}

#[test]
fn a_member_that_comes_back_is_attached_although_offloading_is_switched_off() {
    let options = ArrayOptions { offload: OffloadMode::Off, ..options() };
    let mut net = Net::new(1, plan(Level::Raid5, "left-symmetric", 4), 2, options);
    fill(&mut net);
    net.servers[3].die();
    net.scene.write(0, 96, false).unwrap();
    net.servers[3].come_back();
    let (array, source) = (net.scene.array.clone(), ServerSource::of(&net.servers[3]));
    net.scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
    let array = net.scene.array.clone();
    net.scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    net.scene.write(0, 96, false).unwrap();
    net.assert_consistent();
    assert_eq!(*net.script.complaints.borrow(), [""; 0]);
}

/// The array had no server so far: other hosts are kept from what it takes in all the same (C22).
#[test]
fn the_first_member_on_a_server_is_attached_although_offloading_is_switched_off() {
    let options = ArrayOptions { offload: OffloadMode::Off, ..options() };
    let mut net = Net::new(1, plan(Level::Raid5, "left-symmetric", 4), 2, options);
    fill(&mut net);
    net.scene.stop();
    net.scene.reassemble();
    let array = net.scene.array.clone();
    net.scene.run(async move { array.fail(3).await }).unwrap();
    let before = net.servers[3].epoch();
    let (array, source) = (net.scene.array.clone(), ServerSource::of(&net.servers[3]));
    net.scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
    assert_eq!((net.servers[3].epoch(), net.servers[3].is_given_up()), (before + 1, false));
    let array = net.scene.array.clone();
    net.scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    net.scene.stop();
    assert!(net.servers[3].is_given_up());
}

#[test]
fn what_does_not_join_is_left_to_other_hosts() {
    let mut net = raid5(1);
    fill(&mut net);
    net.lose(3);
    // It doesn't fit.
    let disk = net.scene.world.add_disk(SimDiskConfig::new("small", 64 * 512));
    let small = serve_too(&disk, net.scene.world.rng(77));
    // It fits, and can't be written.
    let disk = net.scene.world.add_disk(SimDiskConfig::new("worn", 768 * 512));
    disk.fault(&Fault::UnwritableRange(0..768 * 512));
    let worn = serve_too(&disk, net.scene.world.rng(78));
    for server in [&small, &worn] {
        let (array, source) = (net.scene.array.clone(), ServerSource::of(server));
        net.scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap_err();
    }
    assert_eq!(small.epoch(), 0, "it was attached for nothing");
    assert!(worn.epoch() > 0 && worn.is_given_up());
    net.assert_consistent();
    net.assert_settled();
}

#[test]
fn switched_off_every_member_is_a_plain_one() {
    let options = ArrayOptions { offload: OffloadMode::Off, ..options() };
    let mut net = Net::new(3, plan(Level::Raid5, "left-symmetric", 4), 1, options);
    clients(&mut net.scene, 3, 10, 40);
    assert_eq!((net.statistics().offloaded_runs, net.epoch()), (0, 0));
    assert!(net.scene.array.detail().offload.is_none());
    net.assert_consistent();
}

#[test]
fn a_member_that_was_added_again_takes_part_under_the_next_client_too() {
    for seed in 0..3 {
        let mut net = raid5(seed);
        fill(&mut net);
        net.lose(3);
        net.servers[3].come_back();
        let (array, source) = (net.scene.array.clone(), ServerSource::of(&net.servers[3]));
        net.scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
        let array = net.scene.array.clone();
        net.scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
        net.attach();
        // A client that dies leaves an epoch at every server; the next client takes up all servers.
        net.scene.world.crash();
        net.scene.ledger.borrow_mut().crash();
        net.restart();
        clients(&mut net.scene, 3, 10, 40);
        net.scene.read_all();
        net.attach();
        assert!(net.statistics().offloaded_runs > 3);
        net.assert_settled();
    }
}

/// A member was taken out and is to come back, and its server takes its time to say that it may. Meanwhile a
/// spare gets the slot and everything, bits are cleared, and the spare goes: the slot is empty once more.
#[test]
fn a_member_whose_bits_are_cleared_while_its_server_is_asked_gets_everything() {
    for seed in 0..4 {
        let options = ArrayOptions { sweep_ns: Some(10_000_000), ..options() };
        let mut net = Net::new(seed, plan(Level::Raid5, "left-symmetric", 4), 2, options);
        fill(&mut net);
        let spare = net.scene.world.add_disk(SimDiskConfig::new("spare", 768 * 512));
        let (array, source) = (net.scene.array.clone(), spare.source());
        net.scene.run(async move { array.add(source, Uuid([90; 16])).await }).unwrap();
        // The spare can't take the slot before the superblocks say that it is empty.
        net.scene.disks[0].fault(&Fault::Hang);
        let (array, taken_out) = (net.scene.array.clone(), Rc::new(Cell::new(false)));
        let there = Rc::clone(&taken_out);
        net.scene.world.spawn(0, "fail", async move {
            array.fail(1).await.unwrap();
            there.set(true);
        });
        let shared = Arc::clone(net.scene.array.shared());
        net.scene.world.run_until(STEPS, |_| !shared.snapshot().is_complete()).unwrap();
        let (array, source) = (net.scene.array.clone(), ServerSource::of(&net.servers[1]));
        let (added, server) = (Rc::new(RefCell::new(None)), Rc::clone(&net.servers[1]));
        let there = Rc::clone(&added);
        net.scene.world.spawn(0, "add", async move {
            let answer = array.add(source, Uuid([91; 16])).await;
            there.replace(Some(answer));
        });
        let asked = server.count("detach");
        net.scene.world.run_until(STEPS, |_| server.count("detach") > asked).unwrap();
        server.hang(true);
        net.scene.disks[0].fault(&Fault::Release);
        net.scene.world.run_until(STEPS, |_| taken_out.get() && shared.snapshot().is_complete()).unwrap();
        let sectors = net.scene.array.volume().size() / 512;
        net.scene.write(0, sectors, false).unwrap();
        let array = net.scene.array.clone();
        let is_swept = |_: &_| array.detail().bitmap.unwrap().bits_set == 0;
        net.scene.world.run_until(STEPS, is_swept).unwrap();
        let again = array.clone();
        net.scene.run(async move { again.fail(1).await }).unwrap();
        server.hang(false);
        net.scene.world.run_until(STEPS, |_| added.borrow().is_some()).unwrap();
        let answer = added.borrow_mut().take().unwrap();
        net.scene.world.run_until(STEPS, |_| shared.snapshot().is_complete()).unwrap();
        net.scene.read_all();
        assert_eq!(net.scene.check(), 0, "{answer:?}");
    }
}
