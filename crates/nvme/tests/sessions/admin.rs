//! What a controller says of itself, and what it is told.

use std::sync::Arc;

use pinstripe_block::budget::Budget;
use pinstripe_nvme::controller::Target;
use pinstripe_nvme::wire::DISCOVERY_NQN;
use pinstripe_nvme::wire::command::{Command, Sgl, admin, fabrics, nvm};
use pinstripe_nvme::wire::fabrics::{CONTROLLER_ANY, property};
use pinstripe_nvme::wire::identify::parse_namespace_list;
use pinstripe_nvme::wire::status::Status;
use pinstripe_runtime::shard;

use crate::host::{Heard, Host, identify};
use crate::world::Array;
use crate::{seeds, target};

const SIZE: usize = 1 << 20;

fn get_feature(which: u32) -> Command {
    Command::new(admin::GET_FEATURES, 0).with_dword(10, which)
}

fn set_feature(which: u32, value: u32) -> Command {
    Command::new(admin::SET_FEATURES, 0).with_dword(10, which).with_dword(11, value)
}

/// A log page of 512 bytes.
fn log(which: u32) -> Command {
    Command::new(admin::GET_LOG_PAGE, 0).with_dword(10, which | 127 << 16)
}

#[test]
fn an_answer_is_cut_to_the_hosts_room_and_one_without_room_for_it_is_answered_too() {
    seeds(3, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let budget = Arc::new(Budget::new(1 << 20));
        let subsystem = crate::subsystem(std::slice::from_ref(&array), None);
        let target = Target::with_budget(subsystem, vec![array], Arc::clone(&budget));
        let mut admin = Host::admin(&random, &target, 1).await;
        let whole = admin.read(identify(1, 0), 4096).await.unwrap();
        assert_eq!(admin.read(identify(1, 0), 100).await.unwrap(), whole[..100]);
        assert_eq!(admin.status(identify(1, 0), &[]).await, Status::SUCCESS);
        assert_eq!(admin.status(get_feature(0x81).with_dword(11, 1), &[]).await, Status::SUCCESS);
        // An answer has no place in the command's own capsule.
        assert_eq!(admin.status(identify(1, 0), &[0; 64]).await, Status::SGL_TYPE_INVALID);
        let of_pages = Command { flags: 0, sgl: Sgl::transport(4096), ..identify(1, 0) };
        assert_eq!(admin.status(of_pages, &[]).await, Status::INVALID_FIELD);
        assert_eq!(budget.held(), 0);
        admin.close();
        target.stop().await;
    });
}

#[test]
fn a_list_of_namespaces_above_the_last_number_there_can_be_is_refused() {
    seeds(1, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0), Array::new(&random, SIZE, 0)]);
        let mut admin = Host::admin(&random, &target, 1).await;
        for (above, listed) in [(0, &[1, 2][..]), (1, &[2]), (2, &[]), (0xffff_fffd, &[])] {
            let list = admin.read(identify(2, above), 4096).await.unwrap();
            assert_eq!(parse_namespace_list(list.first_chunk().unwrap()), listed);
        }
        for above in [0xffff_fffe, 0xffff_ffff] {
            assert_eq!(admin.read(identify(2, above), 4096).await, Err(Status::INVALID_NAMESPACE));
        }
        admin.close();
        target.stop().await;
    });
}

#[test]
fn a_namespaces_descriptors_are_its_identifiers_and_its_command_set() {
    seeds(1, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0), Array::new(&random, SIZE, 0)]);
        let mut admin = Host::admin(&random, &target, 1).await;
        let page = admin.read(identify(3, 2), 4096).await.unwrap();
        let (mut found, mut at) = (Vec::new(), 0);
        // The type, the length and two reserved bytes stand before each; a type of 0 ends them.
        while page[at] != 0 {
            let length = usize::from(page[at + 1]);
            found.push((page[at], page[at + 2..at + 4].to_vec(), page[at + 4..at + 4 + length].to_vec()));
            at += 4 + length;
        }
        let reserved = || vec![0; 2];
        let expected = [(2, reserved(), vec![2; 16]), (3, reserved(), vec![2; 16]), (4, reserved(), vec![0])];
        assert_eq!(found, expected);
        assert!(page[at..].iter().all(|byte| *byte == 0));
        admin.close();
        target.stop().await;
    });
}

#[test]
fn a_controller_becomes_ready_only_with_a_configuration_that_is_served() {
    const SIZES: u32 = 6 << 16 | 4 << 20;
    seeds(1, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        for (subsystem, any_sizes) in [(crate::NQN, false), (DISCOVERY_NQN, true)] {
            let mut admin = Host::initialize(&random, &target, 0).await;
            admin.subsystem = subsystem;
            assert_eq!(admin.connect(1, 0, CONTROLLER_ANY, 0).await.status(), Status::SUCCESS);
            let entries = |value| (value, any_sizes);
            // Pages of 8 KiB, two kinds of larger ones, and other command sets; with sizes and without.
            let refused = [1 << 7, 1 << 10, 0xf << 7, 1 << 4, 7 << 4];
            let refused = refused.into_iter().flat_map(|bits| [(SIZES | bits, false), (bits, false)]);
            let others = [entries(6 << 16), entries(4 << 20), entries(5 << 16 | 4 << 20)];
            for (value, is_served) in [(SIZES, true), (0, true)].into_iter().chain(others).chain(refused) {
                let set = Command::fabrics(fabrics::PROPERTY_SET).with_dword(11, property::CC);
                assert_eq!(admin.status(set.with_dword(12, value), &[]).await, Status::SUCCESS);
                assert_eq!(admin.status(set.with_dword(12, value | 1), &[]).await, Status::SUCCESS);
                let get = Command::fabrics(fabrics::PROPERTY_GET).with_dword(11, property::CSTS);
                let status = admin.ask(get, &[]).await.result_dword();
                // Bit 0: ready; bit 1: fatal.
                assert_eq!(status, if is_served { 1 } else { 2 }, "{subsystem}, CC {value:x}");
                let expected = if is_served { Ok(4096) } else { Err(Status::COMMAND_SEQUENCE) };
                assert_eq!(admin.read(identify(1, 0), 4096).await.map(|page| page.len()), expected);
            }
            admin.close();
        }
        target.stop().await;
    });
}

#[test]
fn a_keep_alive_time_that_is_set_later_counts_from_then_on() {
    seeds(3, |random| async move {
        let (subsystem, target) = target(&[Array::new(&random, SIZE, 0)]);
        let mut admin = Host::initialize(&random, &target, 0).await;
        assert_eq!(admin.connect(1, 0, CONTROLLER_ANY, 200_000).await.status(), Status::SUCCESS);
        admin.enable().await;
        shard::sleep(60_000_000_000).await;
        assert_eq!(admin.status(set_feature(0x0f, 2000), &[]).await, Status::SUCCESS);
        assert_eq!(admin.ask(get_feature(0x0f), &[]).await.result_dword(), 2000);
        for _ in 0..3 {
            shard::sleep(1_500_000_000).await;
            assert_eq!(admin.status(Command::new(admin::KEEP_ALIVE, 0), &[]).await, Status::SUCCESS);
        }
        shard::sleep(2_500_000_000).await;
        assert_eq!((subsystem.controller_count(), target.connections()), (0, 0));
        assert!(matches!(admin.hear().await, Heard::Closed));
        target.stop().await;
    });
}

#[test]
fn a_change_is_reported_if_it_is_enabled_and_again_only_after_its_log_page_was_read() {
    const CHANGED: u32 = 0x0004_0002;
    seeds(4, |random| async move {
        let (subsystem, target) = target(&[Array::new(&random, SIZE, 0), Array::new(&random, SIZE, 0)]);
        let mut admin = Host::admin(&random, &target, 1).await;
        let event = Command::new(admin::ASYNC_EVENT, 0);
        let keep = 1 << 15;
        // Nothing is told of what the host doesn't want to know, or what has not changed.
        let first = admin.command(event, &[]).await;
        subsystem.set_present(2, false);
        shard::sleep(1_000_000).await;
        assert_eq!(admin.read(log(4), 512).await.unwrap()[0], 2);
        assert_eq!(admin.status(set_feature(0x0b, 1 << 8), &[]).await, Status::SUCCESS);
        subsystem.set_present(2, false);
        shard::sleep(1_000_000).await;
        assert_eq!(admin.status(Command::new(admin::KEEP_ALIVE, 0), &[]).await, Status::SUCCESS);
        subsystem.set_present(2, true);
        let told = admin.completion().await;
        assert_eq!((told.command_id.get(), told.result_dword()), (first, CHANGED));
        // What changes before the page is read is in it.
        let second = admin.command(event, &[]).await;
        subsystem.set_present(1, false);
        shard::sleep(1_000_000).await;
        assert_eq!(admin.read(log(4 | keep), 512).await.unwrap()[..8], [1, 0, 0, 0, 2, 0, 0, 0]);
        subsystem.set_present(1, true);
        shard::sleep(1_000_000).await;
        assert_eq!(admin.read(log(4), 512).await.unwrap()[..8], [1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(admin.status(Command::new(admin::KEEP_ALIVE, 0), &[]).await, Status::SUCCESS);
        subsystem.set_present(2, false);
        let told = admin.completion().await;
        assert_eq!((told.command_id.get(), told.result_dword()), (second, CHANGED));
        admin.close();
        target.stop().await;
    });
}

#[test]
fn the_health_page_counts_commands_and_thousands_of_sectors() {
    seeds(1, |random| async move {
        let (_, target) = target(&[Array::new(&random, SIZE, 0)]);
        let mut admin = Host::admin(&random, &target, 1).await;
        let mut io = admin.io(&random, &target, 1, 1, 0).await;
        for _ in 0..3 {
            let write = Command::new(nvm::WRITE, 1).with_blocks(0, 1);
            assert_eq!(io.status(write, &[1; 512]).await, Status::SUCCESS);
        }
        for _ in 0..2 {
            let read = Command::new(nvm::READ, 1).with_blocks(0, 1024);
            assert!(io.read(read, 512 << 10).await.is_ok());
        }
        let compare = Command::new(nvm::COMPARE, 1).with_blocks(0, 1);
        assert_eq!(io.status(compare, &[1; 512]).await, Status::SUCCESS);
        // What fails counts for nothing.
        let past = Command::new(nvm::WRITE, 1).with_blocks(u64::MAX, 1);
        assert_eq!(io.status(past, &[1; 512]).await, Status::LBA_OUT_OF_RANGE);
        let page = admin.read(log(2), 512).await.unwrap();
        let number = |at: usize| u64::from_le_bytes(*page[at..].first_chunk().unwrap());
        // Units read and written, rounded up; commands.
        assert_eq!([number(32), number(48), number(64), number(80)], [3, 1, 3, 3]);
        admin.close();
        target.stop().await;
    });
}
