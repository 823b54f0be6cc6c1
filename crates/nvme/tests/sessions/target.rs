//! What the target promises any host.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pinstripe_block::ServiceError;
use pinstripe_block::budget::Budget;
use pinstripe_nvme::controller::{DeviceFlushes, DeviceService, Target};
use pinstripe_nvme::wire::command::{
    Command, DATASET_DEALLOCATE, DEALLOCATE, DatasetRange, FORCE_UNIT_ACCESS, Sgl, admin, fabrics, nvm,
};
use pinstripe_nvme::wire::fabrics::{CONTROLLER_ANY, NO_FLOW_CONTROL, property};
use pinstripe_nvme::wire::identify::{NamespaceInfo, parse_namespace_list};
use pinstripe_nvme::wire::pdu::{FatalError, flag};
use pinstripe_nvme::wire::reservation::{Keys, action};
use pinstripe_nvme::wire::status::Status;
use pinstripe_runtime::{
    Buffer, Device, DeviceError, DeviceErrorKind, DeviceInfo, Slice, Stream, Submission, ZeroedReads, shard,
};
use zerocopy::IntoBytes;

use crate::host::{Heard, Host, identify};
use crate::world::{Array, Random, pipe, stand_still};
use crate::{dial, dial_of, seeds, subsystem, target};

const SIZE: usize = 1 << 20;

fn write(start: u64, count: u32) -> Command {
    Command::new(nvm::WRITE, 1).with_blocks(start, count)
}

fn keys(current: u64, other: u64) -> Vec<u8> {
    Keys { current: current.into(), other: other.into() }.as_bytes().to_vec()
}

#[test]
fn a_write_in_the_capsule_and_one_by_r2t_are_read_back() {
    seeds(20, |random| async move {
        let array = Array::new(&random, SIZE, 1000);
        let (_, target) = target(&[array]);
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 3).await;
        assert_eq!(io.status(write(0, 2), &[7; 1024]).await, Status::SUCCESS);
        let mut large = write(8, 16);
        large.sgl = Sgl::transport(8192);
        io.command(large, &[]).await;
        let Heard::Ready(ready) = io.hear().await else { panic!("no R2T") };
        assert_eq!((ready.offset.get(), ready.length.get()), (0, 8192));
        io.answer(&ready, 0, &[8; 4096], false).await;
        io.answer(&ready, 4096, &[9; 4096], true).await;
        assert_eq!(io.completion().await.status(), Status::SUCCESS);
        let data = io.read(Command::new(nvm::READ, 1).with_blocks(1, 23), 23 * 512).await.unwrap();
        assert!(data[..512].iter().all(|&b| b == 7) && data[512..7 * 512].iter().all(|&b| b == 0));
        assert!(data[7 * 512..15 * 512].iter().all(|&b| b == 8) && data[15 * 512..].iter().all(|&b| b == 9));
        admin.close();
        target.stop().await;
    });
}

#[test]
fn fua_of_writes_and_of_zeroes_reaches_the_namespace() {
    seeds(3, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (_, target) = target(std::slice::from_ref(&array));
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 3).await;
        let mut forced = 0;
        for (opcode, flags) in [(nvm::WRITE, 0), (nvm::WRITE_ZEROES, 0), (nvm::WRITE_ZEROES, DEALLOCATE)] {
            let data = if opcode == nvm::WRITE { &[7; 512][..] } else { &[] };
            for fua in [0, FORCE_UNIT_ACCESS, 0] {
                let command = Command::new(opcode, 1).with_dword(12, flags | fua);
                assert_eq!(io.status(command, data).await, Status::SUCCESS);
                forced += usize::from(fua > 0);
                assert_eq!(array.seen.borrow().fua, forced);
            }
        }
        admin.close();
        target.stop().await;
    });
}

#[test]
fn data_with_a_wrong_digest_is_not_written() {
    seeds(5, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (_, target) = target(std::slice::from_ref(&array));
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 2).await;
        let mut bytes = io.capsule(write(0, 1), &[1; 512]);
        *bytes.last_mut().unwrap() ^= 1;
        io.send(&bytes).await;
        assert_eq!(io.completion().await.status(), Status::TRANSIENT_TRANSPORT);
        assert!(array.seen.borrow().data.iter().all(|&b| b == 0));
        // The connection goes on.
        assert_eq!(io.status(write(0, 1), &[1; 512]).await, Status::SUCCESS);
        admin.close();
        target.stop().await;
    });
}

#[test]
fn a_header_with_a_wrong_digest_ends_the_connection() {
    seeds(5, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 1).await;
        let mut bytes = io.capsule(Command::new(nvm::FLUSH, 1), &[]);
        bytes[20] ^= 1;
        io.send(&bytes).await;
        let Heard::Terminated(status) = io.hear().await else { panic!("no C2HTermReq") };
        assert_eq!(status, FatalError::HeaderDigest as u16);
        assert!(matches!(io.hear().await, Heard::Closed));
        admin.close();
        target.stop().await;
    });
}

#[test]
fn data_without_a_request_ends_the_connection() {
    seeds(10, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (_, target) = target(std::slice::from_ref(&array));
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 0).await;
        let mut large = write(8, 16);
        large.sgl = Sgl::transport(8192);
        io.command(large, &[]).await;
        let Heard::Ready(ready) = io.hear().await else { panic!("no R2T") };
        // Not from where it is due.
        io.answer(&ready, 512, &[8; 4096], false).await;
        assert!(matches!(io.hear().await, Heard::Terminated(_)));
        assert!(array.seen.borrow().data.iter().all(|&b| b == 0));
        admin.close();
        target.stop().await;
    });
}

#[test]
fn of_data_that_was_asked_for_and_came_damaged_nothing_is_written_and_no_memory_is_kept() {
    seeds(5, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let budget = Arc::new(Budget::new(8 << 20));
        let subsystem = crate::subsystem(std::slice::from_ref(&array), None);
        let target = Target::with_budget(subsystem, vec![array.clone()], Arc::clone(&budget));
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 2).await;
        let mut large = write(8, 16);
        large.sgl = Sgl::transport(8192);
        for _ in 0..3 {
            io.command(large, &[]).await;
            let Heard::Ready(ready) = io.hear().await else { panic!("no R2T") };
            let mut bytes = io.data(&ready, 0, &[8; 8192], true);
            *bytes.last_mut().unwrap() ^= 1;
            io.send(&bytes).await;
            assert_eq!(io.completion().await.status(), Status::TRANSIENT_TRANSPORT);
            assert_eq!(budget.held(), 0);
        }
        // Of several parts the others would have no place.
        io.command(large, &[]).await;
        let Heard::Ready(ready) = io.hear().await else { panic!("no R2T") };
        let mut bytes = io.data(&ready, 0, &[8; 4096], false);
        *bytes.last_mut().unwrap() ^= 1;
        io.send(&bytes).await;
        let Heard::Terminated(status) = io.hear().await else { panic!("no C2HTermReq") };
        assert_eq!(status, FatalError::DataOutOfRange as u16);
        assert!(array.seen.borrow().data.iter().all(|&b| b == 0));
        assert!(matches!(io.hear().await, Heard::Closed));
        admin.close();
        target.stop().await;
        assert_eq!(budget.held(), 0);
    });
}

#[test]
fn a_host_that_breaks_the_protocol_gets_a_termination_before_its_commands_end() {
    seeds(3, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (_, target) = target(std::slice::from_ref(&array));
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 1).await;
        array.close();
        io.command(write(0, 1), &[1; 512]).await;
        let mut bytes = io.capsule(Command::new(nvm::FLUSH, 1), &[]);
        bytes[20] ^= 1;
        io.send(&bytes).await;
        let begun = shard::now();
        let opener = array.clone();
        shard::spawn(async move {
            shard::sleep(60_000_000_000).await;
            opener.open();
        });
        assert!(matches!(io.hear().await, Heard::Terminated(_)));
        assert!(matches!(io.hear().await, Heard::Closed));
        assert!(
            shard::now() - begun < 1_000_000_000,
            "it got the termination only when the array had carried its write out"
        );
        // The queue is not another connection's before that.
        let mut again = Host::initialize(&random, &target, 0).await;
        let connected = again.connect(1, 1, admin.controller, 0).await;
        assert_eq!(connected.status(), Status::CONNECT_INVALID_PARAMETERS);
        again.close();
        shard::sleep(61_000_000_000).await;
        admin.io(&random, &target, 1, 1, 0).await.close();
        admin.close();
        target.stop().await;
    });
}

#[test]
fn a_host_that_breaks_the_protocol_and_takes_nothing_is_cut_off_soon() {
    seeds(2, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 0).await;
        // More than the connection takes at once.
        let mut read = Command::new(nvm::READ, 1).with_blocks(0, 2048);
        read.sgl = Sgl::transport(1 << 20);
        io.command(read, &[]).await;
        shard::sleep(1_000_000_000).await;
        io.send(&[0xff; 8]).await;
        shard::sleep(4_000_000_000).await;
        assert_eq!(target.connections(), 2, "it has had no time to receive the reason");
        shard::sleep(2_000_000_000).await;
        assert_eq!(target.connections(), 1);
        admin.close();
        target.stop().await;
    });
}

#[test]
fn completions_carry_how_far_the_queue_was_taken() {
    seeds(2, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = Host::initialize(&random, &target, 0).await;
        // Connect is the first entry of 32.
        assert_eq!(io.connect(1, 1, admin.controller, 0).await.queue_head.get(), 1);
        for taken in 2..70_u16 {
            let flushed = io.ask(Command::new(nvm::FLUSH, 1), &[]).await;
            assert_eq!(flushed.queue_head.get(), taken % 32);
        }
        admin.close();
        target.stop().await;
    });
}

#[test]
fn an_io_queue_may_disconnect_and_the_admin_queue_may_not() {
    seeds(4, |random| async move {
        let (subsystem, target) = target(&[Array::new(&random, SIZE, 0)]);
        let mut admin = Host::admin(&random, &target, 1).await;
        let disconnect = Command::fabrics(fabrics::DISCONNECT);
        for _ in 0..2 {
            let mut io = admin.io(&random, &target, 1, 1, 0).await;
            assert_eq!(admin.status(disconnect, &[]).await, Status::INVALID_QUEUE_TYPE);
            assert_eq!(io.status(Command::new(nvm::FLUSH, 1), &[]).await, Status::SUCCESS);
            assert_eq!(io.status(disconnect, &[]).await, Status::SUCCESS);
            assert!(matches!(io.hear().await, Heard::Closed));
            shard::sleep(1_000_000).await;
            assert_eq!(admin.status(Command::new(admin::KEEP_ALIVE, 0), &[]).await, Status::SUCCESS);
            assert_eq!((target.connections(), subsystem.controller_count()), (1, 1));
        }
        admin.close();
        target.stop().await;
    });
}

#[test]
fn ranges_lengths_and_namespaces_are_checked() {
    seeds(3, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 0).await;
        let blocks = (SIZE / 512) as u64;
        assert_eq!(io.status(write(blocks, 1), &[0; 512]).await, Status::LBA_OUT_OF_RANGE);
        assert_eq!(io.status(write(u64::MAX, 1), &[0; 512]).await, Status::LBA_OUT_OF_RANGE);
        assert_eq!(io.status(write(0, 2), &[0; 512]).await, Status::DATA_LENGTH_INVALID);
        let other = Command::new(nvm::FLUSH, 2);
        assert_eq!(io.status(other, &[]).await, Status::INVALID_NAMESPACE);
        assert_eq!(io.status(Command::new(0x7e, 1), &[]).await, Status::INVALID_OPCODE);
        let mut prp = Command::new(nvm::READ, 1).with_blocks(0, 1);
        prp.flags = 0;
        assert_eq!(io.status(prp, &[]).await, Status::INVALID_FIELD);
        admin.close();
        target.stop().await;
    });
}

#[test]
fn a_compare_says_whether_the_data_is_equal() {
    seeds(3, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 0).await;
        let compare = Command::new(nvm::COMPARE, 1).with_blocks(0, 1);
        assert_eq!(io.status(compare, &[0; 512]).await, Status::SUCCESS);
        assert_eq!(io.status(compare, &[1; 512]).await, Status::COMPARE_FAILURE);
        admin.close();
        target.stop().await;
    });
}

#[test]
fn compares_that_fill_the_connections_memory_all_end() {
    const COMPARES: usize = 31;
    seeds(1, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 0).await;
        let mut compare = Command::new(nvm::COMPARE, 1).with_blocks(0, 2048);
        compare.sgl = Sgl::transport(1 << 20);
        for _ in 0..COMPARES {
            io.command(compare, &[]).await;
        }
        let (data, mut equal) = (vec![0; 1 << 20], 0);
        while equal < COMPARES {
            match io.hear().await {
                Heard::Ready(ready) => assert!(io.answer(&ready, 0, &data, true).await),
                Heard::Completed(completion) => {
                    assert_eq!(completion.status(), Status::SUCCESS);
                    equal += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        admin.close();
        target.stop().await;
    });
}

/// Bytes of buffers that are in use.
fn in_use() -> usize {
    shard::with_current(|shard| shard.pool().system_bytes() - shard.pool().spare_bytes())
}

/// Hosts that ask for log pages and reads of a MiB each and take no answers, before a budget of 8 MiB: the
/// most that was in use. Fails if another host isn't served meanwhile, or if they are never cut off.
fn hosts_that_take_no_answers() -> usize {
    const HOSTS: u8 = 6;
    const PAGE: u32 = 1 << 20;
    let most = Rc::new(Cell::new(0));
    let seen = Rc::clone(&most);
    seeds(1, move |random| {
        let seen = Rc::clone(&seen);
        async move {
            let array = Array::new(&random, SIZE, 0);
            let subsystem = crate::subsystem(std::slice::from_ref(&array), None);
            let budget = Arc::new(Budget::new(8 << 20));
            let target = Target::with_budget(subsystem, vec![array], Arc::clone(&budget));
            let mut greedy = Vec::new();
            for host in 1..=HOSTS {
                let mut admin = Host::admin(&random, &target, host).await;
                let mut io = admin.io(&random, &target, host, 1, 0).await;
                let mut page = Command::new(admin::GET_LOG_PAGE, 0).with_dword(10, 2 | 0xffff << 16);
                page = page.with_dword(11, 3);
                page.sgl = Sgl::transport(PAGE);
                let mut read = Command::new(nvm::READ, 1).with_blocks(0, PAGE / 512);
                read.sgl = Sgl::transport(PAGE);
                for _ in 0..31 {
                    admin.command(page, &[]).await;
                    io.command(read, &[]).await;
                }
                greedy.push((admin, io));
            }
            shard::sleep(1_000_000_000).await;
            seen.set(in_use());
            let other = Host::admin(&random, &target, HOSTS + 1).await;
            let mut io = other.io(&random, &target, HOSTS + 1, 1, 0).await;
            let read = io.read(Command::new(nvm::READ, 1).with_blocks(0, 8), 4096).await.unwrap();
            assert_eq!(read.len(), 4096);
            other.close();
            io.close();
            // They take nothing for so long that each is cut off, one after the other as they get memory.
            let mut patience = 100;
            while target.connections() > 0 {
                shard::sleep(10_000_000_000).await;
                patience -= 1;
                assert!(patience > 0, "{} connections are left", target.connections());
            }
            assert_eq!(budget.held(), 0);
            target.stop().await;
        }
    });
    most.get()
}

/// What those hosts may make the target hold: the budget, and of each connection what comes in, what goes
/// out, and a little.
const HOSTS_BYTES: usize = (8 << 20) + 12 * (512 << 10);

#[test]
fn hosts_that_take_no_answers_fill_no_more_than_the_budget_and_are_cut_off() {
    let most = hosts_that_take_no_answers();
    assert!(most <= HOSTS_BYTES, "{most} bytes are in use");
}

#[cfg(feature = "mutants")]
#[test]
fn answers_that_are_made_before_there_is_memory_are_noticed() {
    use pinstripe_nvme::mutants::{Mutant, activate};
    activate(Some(Mutant::AnswersUncounted));
    let most = hosts_that_take_no_answers();
    activate(None);
    assert!(most > HOSTS_BYTES, "{most} bytes are in use");
}

/// Nothing is known of it yet, and no memory is acquired for its answers.
#[test]
fn a_stranger_that_takes_no_answers_is_read_no_further_before_connect() {
    const CAPSULES: usize = 50_000;
    seeds(2, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let stranger = Host::initialize(&random, &target, 0).await;
        let capsule = stranger.capsule(Command::new(nvm::FLUSH, 1), &[]);
        let sent = Rc::new(Cell::new(0));
        let count = Rc::clone(&sent);
        shard::spawn(async move {
            while count.get() < CAPSULES && stranger.send(&capsule).await {
                count.set(count.get() + 1);
            }
        });
        shard::sleep(10_000_000_000).await;
        // An answer has 24 bytes. The connection takes 64 KiB of them, and as many may wait.
        let answered = 2 * (64 << 10) / 24;
        assert!(sent.get() < 2 * answered, "{} capsules were taken", sent.get());
        target.stop().await;
    });
}

#[test]
fn a_host_that_never_sends_what_it_was_asked_for_is_cut_off() {
    seeds(2, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (_, target) = target(std::slice::from_ref(&array));
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 0).await;
        let mut large = write(8, 16);
        large.sgl = Sgl::transport(8192);
        io.command(large, &[]).await;
        let Heard::Ready(_) = io.hear().await else { panic!("no R2T") };
        // While anything comes, it may be slow, but not for ever: others wait for the memory.
        for seconds in [25, 25, 5] {
            shard::sleep(seconds * 1_000_000_000).await;
            assert_eq!(io.status(Command::new(nvm::FLUSH, 1), &[]).await, Status::SUCCESS);
        }
        let before = shard::now();
        assert!(matches!(io.hear().await, Heard::Closed));
        assert!((shard::now() - before) / 1_000_000_000 <= 10);
        admin.close();
        target.stop().await;
    });
}

#[test]
fn without_flow_control_a_read_is_answered_by_its_data_alone() {
    seeds(4, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = Host::initialize(&random, &target, 0).await;
        io.attributes = NO_FLOW_CONTROL;
        let connected = io.connect(1, 1, admin.controller, 0).await;
        assert_eq!((connected.status(), connected.queue_head.get()), (Status::SUCCESS, 0xffff));
        for blocks in [1, 8, 16, 17, 64] {
            let mut read = Command::new(nvm::READ, 1).with_blocks(0, blocks);
            read.sgl = Sgl::transport(blocks * 512);
            io.command(read, &[]).await;
            let Heard::Data(data) = io.hear().await else { panic!("no data") };
            assert_eq!((data.len(), io.flags & flag::SUCCESS), (blocks as usize * 512, flag::SUCCESS));
        }
        let flushed = io.ask(Command::new(nvm::FLUSH, 1), &[]).await;
        assert_eq!((flushed.status(), flushed.queue_head.get()), (Status::SUCCESS, 0xffff));
        admin.close();
        target.stop().await;
    });
}

#[test]
fn reads_that_end_together_are_sent_together() {
    const READS: usize = 12;
    seeds(1, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (_, target) = target(std::slice::from_ref(&array));
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 0).await;
        array.close();
        let mut read = Command::new(nvm::READ, 1).with_blocks(0, 8);
        read.sgl = Sgl::transport(4096);
        for _ in 0..READS {
            io.command(read, &[]).await;
        }
        shard::sleep(1_000_000).await;
        let before = io.pipe.messages_of_peer();
        array.open();
        for _ in 0..READS {
            assert!(matches!(io.hear().await, Heard::Data(_)));
            assert_eq!(io.completion().await.status(), Status::SUCCESS);
        }
        // A stream takes a random part of each message.
        let sends = io.pipe.messages_of_peer() - before;
        assert!(sends <= READS / 2, "{sends} messages for {READS} reads");
        admin.close();
        target.stop().await;
    });
}

#[test]
fn what_version_1_4_makes_mandatory_is_there() {
    seeds(1, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let mut admin = Host::admin(&random, &target, 1).await;
        let get = |which: u32| Command::new(admin::GET_FEATURES, 0).with_dword(10, which);
        let set = |which: u32, value: u32| {
            Command::new(admin::SET_FEATURES, 0).with_dword(10, which).with_dword(11, value)
        };
        for (which, default, value) in
            [(1, 0, 0x0102_0303), (2, 0, 0), (4, 0xffff, 0x0150), (5, 0, 7), (6, 1, 1)]
        {
            let answer = admin.ask(get(which), &[]).await;
            assert_eq!((answer.status(), answer.result_dword()), (Status::SUCCESS, default), "{which}");
            assert_eq!(admin.status(set(which, value), &[]).await, Status::SUCCESS, "{which}");
            assert_eq!(admin.ask(get(which), &[]).await.result_dword(), value, "{which}");
        }
        assert_eq!(admin.status(set(2, 1), &[]).await, Status::INVALID_FIELD, "there is one power state");
        assert_eq!(admin.status(set(5, 1 << 16), &[]).await, Status::INVALID_FIELD);
        let log = Command::new(admin::GET_LOG_PAGE, 0).with_dword(10, 0x03 | 127 << 16);
        let slots = admin.read(log, 512).await.unwrap();
        assert_eq!(slots[0], 1);
        let identified = admin.read(identify(1, 0), 4096).await.unwrap();
        assert_eq!(slots[8..16], identified[64..72], "slot 1 has the revision that Identify tells");
        admin.close();
        target.stop().await;
    });
}

#[test]
fn what_is_probed_but_not_there_is_refused() {
    seeds(2, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let mut admin = Host::admin(&random, &target, 1).await;
        assert_eq!(admin.read(identify(6, 0), 4096).await, Err(Status::INVALID_FIELD));
        assert_eq!(admin.read(identify(0, 2), 4096).await, Err(Status::INVALID_NAMESPACE));
        let log = Command::new(admin::GET_LOG_PAGE, 0).with_dword(10, 0x70 | 127 << 16);
        assert_eq!(admin.read(log, 512).await, Err(Status::INVALID_LOG_PAGE));
        let list = admin.read(identify(2, 0), 4096).await.unwrap();
        assert_eq!(parse_namespace_list(list.first_chunk().unwrap()), [1]);
        admin.close();
        target.stop().await;
    });
}

#[test]
fn a_host_that_is_silent_for_too_long_loses_its_controller() {
    seeds(5, |random| async move {
        let (subsystem, target) = target(&[Array::new(&random, SIZE, 0)]);
        let mut admin = Host::initialize(&random, &target, 0).await;
        assert_eq!(admin.connect(1, 0, CONTROLLER_ANY, 2000).await.status(), Status::SUCCESS);
        admin.enable().await;
        let mut io = admin.io(&random, &target, 1, 1, 0).await;
        for _ in 0..4 {
            shard::sleep(1_500_000_000).await;
            assert_eq!(admin.status(Command::new(admin::KEEP_ALIVE, 0), &[]).await, Status::SUCCESS);
        }
        assert_eq!(subsystem.controller_count(), 1);
        shard::sleep(2_500_000_000).await;
        assert!(matches!(io.hear().await, Heard::Closed), "the I/O queue outlives its controller");
        assert!(matches!(admin.hear().await, Heard::Closed));
        assert_eq!(subsystem.controller_count(), 0);
        target.stop().await;
    });
}

/// Whether a write is carried out that had come from a host which was silent for too long, for the target
/// stood still.
fn carries_out_what_is_stale() -> bool {
    let carried_out = Rc::new(Cell::new(false));
    let flag = Rc::clone(&carried_out);
    seeds(60, move |random| {
        let flag = Rc::clone(&flag);
        async move {
            let array = Array::new(&random, SIZE, 0);
            let (_, target) = target(std::slice::from_ref(&array));
            let mut admin = Host::initialize(&random, &target, 0).await;
            assert_eq!(admin.connect(1, 0, CONTROLLER_ANY, 2000).await.status(), Status::SUCCESS);
            admin.enable().await;
            let mut io = admin.io(&random, &target, 1, 1, 0).await;
            io.command(write(0, 1), &[1; 512]).await;
            let before = array.seen.borrow().requests;
            stand_still(2_500_000_000);
            shard::sleep(1).await;
            flag.set(flag.get() || array.seen.borrow().requests > before);
            target.stop().await;
        }
    });
    carried_out.get()
}

#[test]
fn a_target_that_stood_still_carries_out_nothing_of_a_host_that_was_silent_for_too_long() {
    assert!(!carries_out_what_is_stale());
}

#[cfg(feature = "mutants")]
#[test]
fn a_target_that_carries_out_what_is_stale_is_noticed() {
    use pinstripe_nvme::mutants::{Mutant, activate};
    activate(Some(Mutant::StaleCarriedOut));
    let stale = carries_out_what_is_stale();
    activate(None);
    assert!(stale);
}

/// Connections that are left a second after a host's admin queue has ended.
fn left_without_a_controller() -> usize {
    let left = Rc::new(Cell::new(0));
    let seen = Rc::clone(&left);
    seeds(1, move |random| {
        let seen = Rc::clone(&seen);
        async move {
            let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
            let admin = Host::admin(&random, &target, 1).await;
            let io = admin.io(&random, &target, 1, 1, 0).await;
            admin.close();
            shard::sleep(1_000_000_000).await;
            seen.set(target.connections());
            io.close();
            target.stop().await;
        }
    });
    left.get()
}

#[test]
fn queues_end_with_their_controller() {
    assert_eq!(left_without_a_controller(), 0);
}

#[cfg(feature = "mutants")]
#[test]
fn queues_that_outlive_their_controller_are_noticed() {
    use pinstripe_nvme::mutants::{Mutant, activate};
    activate(Some(Mutant::QueuesOutliveController));
    let left = left_without_a_controller();
    activate(None);
    assert_eq!(left, 1);
}

#[test]
fn a_new_association_waits_for_the_old_ones_writes_where_it_is_to_read_or_write() {
    seeds(10, |random| async move {
        let arrays = [Array::new(&random, SIZE, 0), Array::new(&random, SIZE, 0)];
        let (_, target) = target(&arrays);
        let old_admin = Host::admin(&random, &target, 1).await;
        let mut old = old_admin.io(&random, &target, 1, 1, 0).await;
        arrays[0].close();
        old.command(write(0, 1), &[1; 512]).await;
        shard::sleep(1_000_000).await;
        assert_eq!(arrays[0].seen.borrow().running, 1);
        old.close();
        old_admin.close();
        shard::sleep(1_000_000).await;
        let begun = shard::now();
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 0).await;
        let mut reader = admin.io(&random, &target, 1, 2, 0).await;
        let other = Command { namespace: 2.into(), ..write(0, 1) };
        assert_eq!(io.status(other, &[2; 512]).await, Status::SUCCESS);
        assert!(shard::now() - begun < 1_000_000_000, "a disk that hangs holds up the other one");
        let opener = arrays[0].clone();
        shard::spawn(async move {
            shard::sleep(60_000_000_000).await;
            opener.open();
        });
        io.command(write(0, 1), &[2; 512]).await;
        let read = reader.read(Command::new(nvm::READ, 1).with_blocks(0, 1), 512).await.unwrap();
        assert_ne!(read, [0; 512], "it was read before the old write was over");
        assert_eq!(io.completion().await.status(), Status::SUCCESS);
        assert_eq!(arrays[0].seen.borrow().data[..512], [2; 512]);
        admin.close();
        target.stop().await;
    });
}

/// Else a few reconnects, while one disk hangs, and the host gets no controller any more.
#[test]
fn commands_that_wait_for_an_earlier_association_end_with_their_own() {
    seeds(2, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (subsystem, target) = target(std::slice::from_ref(&array));
        array.close();
        for round in 0..6_u8 {
            // The first one hangs in the disk, and the others wait for that one.
            let admin = Host::admin(&random, &target, 1).await;
            let mut io = admin.io(&random, &target, 1, 1, 0).await;
            io.command(write(0, 1), &[round + 1; 512]).await;
            shard::sleep(1_000_000).await;
            assert_eq!(array.seen.borrow().running, 1);
            io.close();
            admin.close();
            shard::sleep(1_000_000_000).await;
            assert_eq!(subsystem.controller_count(), 1, "round {round}");
        }
        array.open();
        shard::sleep(1_000_000_000).await;
        assert_eq!((subsystem.controller_count(), array.seen.borrow().data[0]), (0, 1));
        target.stop().await;
    });
}

#[test]
fn a_new_association_waits_for_each_of_the_earlier_ones() {
    seeds(4, |random| async move {
        let arrays = [0; 3].map(|_| Array::new(&random, SIZE, 0));
        let (_, target) = target(&arrays);
        let write_to = |namespace: u32| Command { namespace: namespace.into(), ..write(0, 1) };
        for (namespace, array) in (1..).zip(&arrays[..2]) {
            let admin = Host::admin(&random, &target, 1).await;
            let mut io = admin.io(&random, &target, 1, 1, 0).await;
            array.close();
            io.command(write_to(namespace), &[1; 512]).await;
            shard::sleep(1_000_000).await;
            assert_eq!(array.seen.borrow().running, 1);
            io.close();
            admin.close();
            shard::sleep(1_000_000).await;
        }
        let admin = Host::admin(&random, &target, 1).await;
        let mut queues = Vec::new();
        for number in 1..=3 {
            queues.push(admin.io(&random, &target, 1, number, 0).await);
        }
        for (namespace, queue) in (1..).zip(&mut queues[..2]) {
            queue.command(write_to(namespace), &[2; 512]).await;
        }
        assert_eq!(queues[2].status(write_to(3), &[2; 512]).await, Status::SUCCESS);
        shard::sleep(1_000_000_000).await;
        for (array, queue) in arrays.iter().zip(&mut queues[..2]) {
            assert_eq!(array.seen.borrow().running, 1, "it is carried out beside an earlier one");
            array.open();
            assert_eq!(queue.completion().await.status(), Status::SUCCESS);
            assert_eq!(array.seen.borrow().data[..512], [2; 512]);
        }
        admin.close();
        target.stop().await;
    });
}

/// Each may keep commands that never end.
#[test]
fn a_host_with_many_ended_associations_gets_no_new_one_before_their_commands_are_over() {
    seeds(2, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (subsystem, target) = target(std::slice::from_ref(&array));
        array.close();
        for _ in 0..4 {
            let admin = Host::admin(&random, &target, 1).await;
            let mut io = admin.io(&random, &target, 1, 1, 0).await;
            let mut read = Command::new(nvm::READ, 1).with_blocks(0, 1);
            read.sgl = Sgl::transport(512);
            io.command(read, &[]).await;
            shard::sleep(1_000_000).await;
            io.close();
            admin.close();
            shard::sleep(1_000_000).await;
        }
        let mut again = Host::initialize(&random, &target, 0).await;
        let refused = again.connect(1, 0, CONTROLLER_ANY, 0).await;
        assert_eq!(refused.status().code(), Status::CONNECT_CONTROLLER_BUSY.code());
        let other = Host::admin(&random, &target, 2).await;
        array.open();
        assert_eq!(again.connect(1, 0, CONTROLLER_ANY, 0).await.status(), Status::SUCCESS);
        shard::sleep(1_000_000).await;
        assert_eq!(subsystem.controller_count(), 2);
        other.close();
        target.stop().await;
    });
}

/// How much of a discard of four pieces is done when its host goes during the first one.
fn discarded_for_a_host_that_has_gone() -> usize {
    const PIECE: usize = 32 << 20;
    let done = Rc::new(Cell::new(0));
    let found = Rc::clone(&done);
    seeds(1, move |random| {
        let found = Rc::clone(&found);
        async move {
            let array = Array::new(&random, 4 * PIECE, 0);
            array.seen.borrow_mut().data.fill(7);
            let (_, target) = target(std::slice::from_ref(&array));
            let admin = Host::admin(&random, &target, 1).await;
            let mut io = admin.io(&random, &target, 1, 1, 0).await;
            array.close();
            let blocks = u32::try_from(4 * PIECE / 512).unwrap();
            let range = DatasetRange { attributes: 0.into(), blocks: blocks.into(), start: 0.into() };
            let discard = Command::new(nvm::DATASET_MANAGEMENT, 1).with_dword(11, DATASET_DEALLOCATE);
            io.command(discard, range.as_bytes()).await;
            shard::sleep(1_000_000).await;
            assert_eq!(array.seen.borrow().running, 1);
            io.close();
            admin.close();
            shard::sleep(1_000_000).await;
            array.open();
            target.stop().await;
            let seen = array.seen.borrow();
            found.set(seen.data.iter().take_while(|&&byte| byte == 0).count() / PIECE);
        }
    });
    done.get()
}

/// What other hosts write afterwards must not be zeroed, nor a server that stops be kept.
#[test]
fn a_long_discard_ends_with_its_host() {
    assert_eq!(discarded_for_a_host_that_has_gone(), 1);
}

#[cfg(feature = "mutants")]
#[test]
fn a_discard_that_goes_on_without_its_host_is_noticed() {
    use pinstripe_nvme::mutants::{Mutant, activate};
    activate(Some(Mutant::DiscardUncut));
    let pieces = discarded_for_a_host_that_has_gone();
    activate(None);
    assert_eq!(pieces, 4);
}

#[test]
fn preempt_and_abort_is_answered_when_the_preempted_hosts_writes_are_over() {
    seeds(10, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (_, target) = target(std::slice::from_ref(&array));
        let first = Host::admin(&random, &target, 1).await;
        let second = Host::admin(&random, &target, 2).await;
        let mut old = first.io(&random, &target, 1, 1, 0).await;
        let mut new = second.io(&random, &target, 2, 1, 0).await;
        let register = Command::new(nvm::RESERVATION_REGISTER, 1).with_dword(10, action::REGISTER);
        assert_eq!(old.status(register, &keys(0, 0xa)).await, Status::SUCCESS);
        assert_eq!(new.status(register, &keys(0, 0xb)).await, Status::SUCCESS);
        let acquire = Command::new(nvm::RESERVATION_ACQUIRE, 1).with_dword(10, 1 << 8 | action::ACQUIRE);
        assert_eq!(old.status(acquire, &keys(0xa, 0)).await, Status::SUCCESS);
        assert_eq!(new.status(write(0, 1), &[2; 512]).await, Status::RESERVATION_CONFLICT);

        array.close();
        old.command(write(0, 1), &[1; 512]).await;
        shard::sleep(1_000_000).await;
        let opener = array.clone();
        shard::spawn(async move {
            shard::sleep(1_000_000_000).await;
            opener.open();
        });
        let preempt = Command::new(nvm::RESERVATION_ACQUIRE, 1);
        let preempt = preempt.with_dword(10, 1 << 8 | action::PREEMPT_AND_ABORT);
        assert_eq!(new.status(preempt, &keys(0xb, 0xa)).await, Status::SUCCESS);
        assert_eq!(array.seen.borrow().running, 0, "an old write is still being carried out");
        assert_eq!(new.status(write(0, 1), &[2; 512]).await, Status::SUCCESS);
        assert_eq!(old.completion().await.status(), Status::SUCCESS);
        assert_eq!(old.status(write(0, 1), &[3; 512]).await, Status::RESERVATION_CONFLICT);
        assert_eq!(array.seen.borrow().data[0], 2);
        let report = Command::new(nvm::RESERVATION_REPORT, 1).with_dword(10, 255);
        // Without the extended identifiers there is no room for those of hosts over fabrics.
        assert_eq!(new.read(report, 1024).await, Err(Status::HOST_IDENTIFIER_INVALID));
        let report = new.read(report.with_dword(11, 1), 1024).await.unwrap();
        assert_eq!((report[4], report[5], report[66]), (1, 1, 1));
        first.close();
        second.close();
        target.stop().await;
    });
}

#[test]
fn a_changed_namespace_is_reported_once_and_then_listed() {
    seeds(5, |random| async move {
        let arrays = [Array::new(&random, SIZE, 0), Array::new(&random, SIZE, 0)];
        let (subsystem, target) = target(&arrays);
        let mut admin = Host::admin(&random, &target, 1).await;
        let events = Command::new(admin::SET_FEATURES, 0).with_dword(10, 0x0b).with_dword(11, 1 << 8);
        assert_eq!(admin.status(events, &[]).await, Status::SUCCESS);
        let event = admin.command(Command::new(admin::ASYNC_EVENT, 0), &[]).await;
        shard::sleep(1_000_000).await;
        subsystem.set_present(2, false);
        let completion = admin.completion().await;
        assert_eq!((completion.command_id.get(), completion.result_dword()), (event, 0x0004_0002));
        let list = admin.read(identify(2, 0), 4096).await.unwrap();
        assert_eq!(parse_namespace_list(list.first_chunk().unwrap()), [1]);
        let log = Command::new(admin::GET_LOG_PAGE, 0).with_dword(10, 0x04 | 1023 << 16);
        let changed = admin.read(log, 4096).await.unwrap();
        assert_eq!(changed[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
        let changed = admin.read(log, 4096).await.unwrap();
        assert_eq!(changed[..4], [0; 4], "it is listed after it was read");
        admin.close();
        target.stop().await;
    });
}

#[test]
fn properties_and_identify_agree() {
    seeds(2, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let mut admin = Host::admin(&random, &target, 1).await;
        let capabilities =
            Command::fabrics(fabrics::PROPERTY_GET).with_dword(10, 1).with_dword(11, property::CAP);
        let capabilities = admin.ask(capabilities, &[]).await.result.get();
        let controller = admin.read(identify(1, 0), 4096).await.unwrap();
        let commands_max = u64::from(controller[514]) | u64::from(controller[515]) << 8;
        assert_eq!(capabilities & 0xffff, commands_max - 1);
        let namespace = admin.read(identify(0, 1), 4096).await.unwrap();
        let namespace = NamespaceInfo::parse(namespace.first_chunk().unwrap()).unwrap();
        assert_eq!((namespace.blocks, namespace.block_shift), ((SIZE / 512) as u64, 9));
        admin.close();
        target.stop().await;
    });
}

#[test]
fn a_connection_that_has_proved_its_host_connects_as_no_other_one() {
    seeds(3, |random| async move {
        let (subsystem, target) = target(&[Array::new(&random, SIZE, 0)]);
        let mut admin = Host::initialize_on(dial_of(&random, &target, Some(Host::nqn(1))), 0).await;
        let other = admin.connect(2, 0, CONTROLLER_ANY, 0).await;
        assert_eq!(other.status(), Status::CONNECT_INVALID_HOST);
        assert_eq!(subsystem.controller_count(), 0);
        assert_eq!(admin.connect(1, 0, CONTROLLER_ANY, 0).await.status(), Status::SUCCESS);
        admin.enable().await;
        let mut io = Host::initialize_on(dial_of(&random, &target, Some(Host::nqn(2))), 0).await;
        assert_eq!(io.connect(1, 1, admin.controller, 0).await.status(), Status::CONNECT_INVALID_HOST);
        admin.close();
        target.stop().await;
    });
}

#[test]
fn an_io_queue_of_another_host_or_number_is_refused() {
    seeds(2, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = Host::initialize(&random, &target, 0).await;
        assert_eq!(io.connect(2, 1, admin.controller, 0).await.status(), Status::CONNECT_INVALID_HOST);
        assert_eq!(io.connect(1, 5, admin.controller, 0).await.status(), Status::CONNECT_INVALID_PARAMETERS);
        assert_eq!(io.connect(1, 1, 999, 0).await.status(), Status::CONNECT_INVALID_PARAMETERS);
        assert_eq!(io.connect(1, 1, admin.controller, 0).await.status(), Status::SUCCESS);
        let mut twice = Host::initialize(&random, &target, 0).await;
        assert_eq!(
            twice.connect(1, 1, admin.controller, 0).await.status(),
            Status::CONNECT_INVALID_PARAMETERS
        );
        twice.close();
        admin.close();
        target.stop().await;
    });
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    seeds(30, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (_, target) = target(std::slice::from_ref(&array));
        let ours = dial(&random, &target);
        let garbage: Vec<u8> = (0..4096).map(|_| random.below(256).to_le_bytes()[0]).collect();
        ours.send_all(&garbage).await;
        ours.finish_sending();
        while ours.receive_exactly(1).await.is_some() {}
        let mut admin = Host::admin(&random, &target, 1).await;
        assert_eq!(admin.status(Command::new(admin::KEEP_ALIVE, 0), &[]).await, Status::SUCCESS);
        assert_eq!(Rc::strong_count(&array.seen), 2);
        admin.close();
        target.stop().await;
    });
}

#[test]
fn capsules_stay_in_the_socket_where_memory_is_short_and_what_has_come_needs_no_more() {
    const BLOCKS: u32 = 64;
    const BUDGET: usize = 256 << 10;
    for opcode in [nvm::WRITE, nvm::COMPARE] {
        seeds(6, move |random| async move {
            let array = Array::new(&random, SIZE, 0);
            let (arrays, budget) = (std::slice::from_ref(&array), Arc::new(Budget::new(BUDGET)));
            let subsystem = crate::subsystem(arrays, None);
            let target = Target::with_budget(subsystem, arrays.to_vec(), Arc::clone(&budget));
            let admin = Host::admin(&random, &target, 1).await;
            let mut io = admin.io(&random, &target, 1, 1, 0).await;
            array.close();
            let sending = shard::spawn_joined(async move {
                for number in 0..30 {
                    let command = Command::new(opcode, 1).with_blocks(number * u64::from(BLOCKS), BLOCKS);
                    io.command(command, &vec![0; BLOCKS as usize * 512]).await;
                }
                io
            });
            shard::sleep(1_000_000_000).await;
            assert!((BUDGET..2 * BUDGET).contains(&budget.held()), "{}", budget.held());
            array.open();
            let mut io = sending.join().await;
            for _ in 0..30 {
                assert_eq!(io.completion().await.status(), Status::SUCCESS);
            }
            assert_eq!(budget.held(), 0);
            admin.close();
            target.stop().await;
        });
    }
}

#[test]
fn a_host_is_not_invited_to_retry_what_was_to_make_writes_durable() {
    seeds(3, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (_, target) = target(std::slice::from_ref(&array));
        let admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 0).await;
        let forced = |command: Command| command.with_dword(12, command.dword(12) | FORCE_UNIT_ACCESS);
        let zeroes = Command::new(nvm::WRITE_ZEROES, 1).with_blocks(0, 1);
        let flush = Command::new(nvm::FLUSH, 1);
        array.seen.borrow_mut().fail = Some(ServiceError::Io);
        let is_lost = Status::WRITE_FAULT.as_final();
        assert_eq!(io.status(flush, &[]).await, is_lost);
        assert_eq!(io.status(forced(write(0, 1)), &[7; 512]).await, is_lost);
        assert_eq!(io.status(forced(zeroes), &[]).await, is_lost);
        assert_eq!(io.status(write(0, 1), &[7; 512]).await, Status::WRITE_FAULT, "it may be written again");
        array.seen.borrow_mut().fail = Some(ServiceError::Stopping);
        assert_eq!(io.status(flush, &[]).await, Status::NAMESPACE_NOT_READY, "nothing was lost");
        array.seen.borrow_mut().fail = None;
        admin.close();
        target.stop().await;
    });
}

/// A device that keeps nothing. Its next flush may be told to fail.
struct Forgetful {
    info: DeviceInfo,
    fails: Rc<Cell<bool>>,
}

impl Forgetful {
    fn service(fails: &Rc<Cell<bool>>, flushes: &DeviceFlushes) -> DeviceService {
        let info = DeviceInfo {
            name: "forgetful".to_owned(),
            size: SIZE as u64,
            logical_block: 512,
            volatile_cache: true,
            forces_by_flush: true,
            zeroes: ZeroedReads::Zero,
            discards: true,
            in_memory: true,
            moves_head: None,
        };
        DeviceService::new(Rc::new(Self { info, fails: Rc::clone(fails) }), false).sharing(flushes.clone())
    }
}

impl Device for Forgetful {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, _: u64, buffer: Buffer) -> Submission {
        Submission::done(Ok(buffer.len()), Some(buffer))
    }

    fn write(&self, _: u64, data: Slice, _: bool) -> Submission {
        Submission::done(Ok(data.len()), None)
    }

    fn flush(&self) -> Submission {
        let fails = self.fails.replace(false);
        Submission::done(if fails { Err(DeviceError::of(DeviceErrorKind::Media)) } else { Ok(0) }, None)
    }

    fn discard(&self, _: u64, _: u64) -> Submission {
        Submission::done(Ok(0), None)
    }

    fn write_zeroes(&self, _: u64, _: u64) -> Submission {
        Submission::done(Ok(0), None)
    }
}

/// A controller of a host, and its queue for I/O.
async fn queues(random: &Rc<Random>, target: &Target<DeviceService>, host: u8) -> (Host, Host) {
    let dial = || {
        let ((ours, theirs), target) = (pipe(random, 1 << 16), target.clone());
        shard::spawn(async move {
            target.serve(theirs as Rc<dyn Stream>).await;
        });
        ours
    };
    let mut admin = Host::initialize_on(dial(), 0).await;
    assert_eq!(admin.connect(host, 0, CONTROLLER_ANY, 0).await.status(), Status::SUCCESS);
    admin.enable().await;
    let mut io = Host::initialize_on(dial(), 0).await;
    assert_eq!(io.connect(host, 1, admin.controller, 0).await.status(), Status::SUCCESS);
    (admin, io)
}

#[test]
fn after_a_failed_flush_no_host_is_told_that_anything_is_durable() {
    seeds(3, |random| async move {
        let subsystem = subsystem(&[Array::new(&random, SIZE, 0)], None);
        let (fails, told) = (Rc::new(Cell::new(false)), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&told);
        let flushes = DeviceFlushes::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        // As of two shards.
        let targets =
            [0, 1].map(|_| Target::new(Arc::clone(&subsystem), vec![Forgetful::service(&fails, &flushes)]));
        let (admin, mut one) = queues(&random, &targets[0], 1).await;
        let (other_admin, mut two) = queues(&random, &targets[1], 2).await;
        let flush = Command::new(nvm::FLUSH, 1);
        let forced = write(0, 1).with_dword(12, write(0, 1).dword(12) | FORCE_UNIT_ACCESS);
        assert_eq!(one.status(flush, &[]).await, Status::SUCCESS);
        assert_eq!(two.status(forced, &[7; 512]).await, Status::SUCCESS);
        fails.set(true);
        let is_lost = Status::WRITE_FAULT.as_final();
        for _ in 0..2 {
            assert_eq!(one.status(flush, &[]).await, is_lost);
            assert_eq!(two.status(flush, &[]).await, is_lost, "it wrote to the same device");
            assert_eq!(two.status(forced, &[7; 512]).await, is_lost);
            assert_eq!(two.status(write(0, 1), &[7; 512]).await, Status::SUCCESS);
        }
        assert_eq!(told.load(Ordering::Relaxed), 1);
        admin.close();
        other_admin.close();
        for target in &targets {
            target.stop().await;
        }
    });
}
