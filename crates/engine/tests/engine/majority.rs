//! No two hosts have an array each with a part of the members (C23).

use std::{cell::RefCell, rc::Rc, sync::Arc};

use crate::arrays::{
    self, STEPS,
    net::{Net, plan},
    options,
    scene::superblock_on,
    servers::ServerSource,
};
use pinstripe_engine::{
    array::Array, assembly::AssembleError, error::IoError, offload::fence::FenceError, options::ArrayOptions,
};
use pinstripe_md::{identity::Uuid, level::Level};
use pinstripe_runtime::DeviceSource;
use pinstripe_sim::SimDiskConfig;

/// Half of its members can be an array.
fn raid6_of_four(seed: u64, sectors: u64, options: ArrayOptions) -> Net {
    let mut wish = plan(Level::Raid6, "left-symmetric", 4);
    wish.members.iter_mut().for_each(|member| member.sectors = sectors);
    Net::new(seed, wish, 2, options)
}

/// As another host reaches them.
fn sources(net: &Net, servers: &[usize]) -> Vec<Arc<dyn DeviceSource>> {
    servers.iter().map(|&server| ServerSource::of_host(&net.servers[server], 1)).collect()
}

fn takeover() -> ArrayOptions {
    ArrayOptions { takeover: true, ..options() }
}

fn assert_too_few(net: &mut Net, sources: Vec<Arc<dyn DeviceSource>>, options: ArrayOptions) {
    let held: Vec<u64> = net.servers.iter().map(|server| server.epoch()).collect();
    let error = arrays::assemble(&mut net.scene.world, sources, options).err().unwrap();
    let too_few = FenceError::TooFew { present: 2, members: 4 };
    assert!(matches!(&error, AssembleError::Fence(error) if *error == too_few), "{error}");
    let now: Vec<u64> = net.servers.iter().map(|server| server.epoch()).collect();
    assert_eq!(now, held, "no server was told anything");
}

/// Writes, and waits until the superblocks say clean.
fn write(net: &mut Net) {
    net.scene.write(0, 8, false).unwrap();
    net.sleep(2_000);
    assert_eq!(net.scene.array.detail().state, "clean");
}

#[test]
fn a_takeover_needs_more_than_half_of_the_members() {
    let mut net = raid6_of_four(1, 768, options());
    write(&mut net);
    for half in [[0, 1], [2, 3]] {
        let half = sources(&net, &half);
        assert_too_few(&mut net, half, takeover());
    }
    net.sleep(6_000);
    write(&mut net);
    let most = sources(&net, &[0, 1, 3]);
    let array = arrays::assemble(&mut net.scene.world, most, takeover()).unwrap();
    net.sleep(6_000);
    assert_eq!(net.scene.write(0, 8, false), Err(IoError::TakenOver));
    net.scene.array = array;
    net.scene.read_all();
}

#[test]
fn spares_and_copies_that_are_out_of_date_make_no_majority() {
    let mut net = raid6_of_four(2, 768, options());
    write(&mut net);
    let copy = net.scene.world.add_disk(SimDiskConfig::new("copy", 768 * 512));
    copy.poke(0, &net.scene.disks[2].peek(0, 768 * 512));
    let spare = net.scene.world.add_disk(SimDiskConfig::new("spare", 768 * 512));
    let (array, source) = (net.scene.array.clone(), spare.source());
    net.scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
    (0..4).for_each(|_| write(&mut net));
    assert!(superblock_on(&copy).array.events + 1 < superblock_on(&net.scene.disks[2]).array.events);
    let mut half = sources(&net, &[0, 1]);
    half.extend([spare.source(), copy.source()]);
    assert_too_few(&mut net, half, takeover());
    net.scene.write(0, 8, false).unwrap();
}

/// The member's slot may be either device's, so it counts where both are.
#[test]
fn a_member_that_is_being_replaced_counts_with_its_replacement() {
    let slow = ArrayOptions {
        checkpoint_stripes: 4,
        checkpoint_ns: 0,
        maintenance_depth: 1,
        gather_ns: 0,
        ..options()
    };
    let mut net = raid6_of_four(3, 4096, slow);
    write(&mut net);
    let target = net.scene.world.add_disk(SimDiskConfig::new("target", 4096 * 512));
    let (array, source) = (net.scene.array.clone(), target.source());
    net.scene.run(async move { array.replace(1, Some(source), Uuid([0x55; 16])).await }).unwrap();
    assert!(net.scene.array.detail().slots[1].replacement.is_some(), "the copy is through");

    let mut with_target = sources(&net, &[0, 1]);
    with_target.push(target.source());
    assert_too_few(&mut net, with_target, takeover());
    let without = sources(&net, &[0, 1, 2]);
    assert_too_few(&mut net, without, takeover());
    let mut most = sources(&net, &[0, 1, 2]);
    most.push(target.source());
    net.scene.array = arrays::assemble(&mut net.scene.world, most, takeover()).unwrap();
    net.scene.read_all();
}

/// Their servers have seen the host go that goes on with the others, so no takeover is needed to get them.
#[test]
fn half_of_the_members_that_were_cut_off_from_their_host_are_left_alone() {
    let mut net = raid6_of_four(4, 768, options());
    write(&mut net);
    net.servers[..2].iter().for_each(|server| server.die());
    net.scene.write(0, 8, false).unwrap();
    assert_eq!(net.scene.array.detail().missing, 2);
    net.servers[..2].iter().for_each(|server| server.come_back());
    let half = sources(&net, &[0, 1]);
    assert_too_few(&mut net, half, options());
    net.scene.write(8, 8, false).unwrap();
    net.scene.read_all();
    // A person may know better than the servers.
    let half = sources(&net, &[0, 1]);
    let forced = ArrayOptions { force: true, ..options() };
    arrays::assemble(&mut net.scene.world, half, forced).unwrap();
}

#[test]
fn half_of_the_members_begin_if_their_superblocks_say_that_the_others_were_dropped() {
    let mut net = raid6_of_four(5, 768, options());
    net.scene.write(0, 8, false).unwrap();
    net.lose(0);
    net.lose(1);
    write(&mut net);
    net.scene.world.crash();
    net.scene.ledger.borrow_mut().crash();
    net.restart();
    net.scene.read_all();
    // Also with one of those that were dropped, whatever that one calls itself.
    net.sleep(2_000);
    net.scene.world.crash();
    net.scene.ledger.borrow_mut().crash();
    net.servers[0].come_back();
    net.restart();
    net.scene.read_all();
}

/// The former host may take members in until the servers know of the next one.
#[test]
fn the_members_are_counted_again_when_their_servers_are_attached() {
    let mut net = raid6_of_four(6, 768, options());
    net.scene.write(0, 8, false).unwrap();
    let roles = net.scene.superblock(2).array.roles.clone();
    net.lose(0);
    net.lose(1);
    net.sleep(2_000);
    net.scene.world.crash();
    net.scene.ledger.borrow_mut().crash();
    net.servers.iter().for_each(|server| server.host_gone());
    net.script.attached.borrow_mut().clear();

    let (outcome, half) = (Rc::new(RefCell::new(None)), sources(&net, &[2, 3]));
    let shards = (0..net.scene.world.shards()).map(|i| net.scene.world.shard(i).handle()).collect();
    let there = Rc::clone(&outcome);
    net.scene.world.spawn(0, "start", async move {
        let assembled = Array::assemble(half, options(), shards).await;
        there.replace(Some(assembled));
    });
    let script = Rc::clone(&net.script);
    net.scene.world.run_until(STEPS, |_| !script.attached.borrow().is_empty()).unwrap();
    net.servers[3].hang(true);
    for disk in &net.scene.disks[2..] {
        let mut superblock = superblock_on(disk);
        superblock.array.roles.clone_from(&roles);
        superblock.array.events += 2;
        disk.poke(4096, &superblock.encode(512).unwrap());
    }
    net.servers[3].hang(false);
    net.scene.world.run_until(STEPS, |_| outcome.borrow().is_some()).unwrap();
    let error = outcome.borrow_mut().take().unwrap().err().unwrap();
    let AssembleError::Fence(FenceError::Partly { attached, cause }) = &error else { panic!("{error}") };
    assert_eq!((attached.len(), &**cause), (2, &FenceError::TooFew { present: 2, members: 4 }));
    assert!(
        [2, 3].iter().all(|&server| net.servers[server].is_given_up()),
        "what was attached is given back"
    );
}
