//! What a server that computes says to a host that speaks in bytes.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use pinstripe_block::budget::Budget;
use pinstripe_nvme::auth::Authentication;
use pinstripe_nvme::controller::{
    Ended, EpochRecord, EpochStore, NotStored, OffloadConfig, Pipeline, Storing, Subsystem, SubsystemConfig,
    Target,
};
use pinstripe_nvme::initiator::{Address, Connecting, Connector};
use pinstripe_nvme::wire::command::{Command, DATASET_DEALLOCATE, DatasetRange, Sgl, nvm};
use pinstripe_nvme::wire::fabrics::CONTROLLER_ANY;
use pinstripe_nvme::wire::offload::{
    Announcement, Attach, Blocks, PeerAddress, Query, Request, admin, feature,
};
use pinstripe_nvme::wire::reservation::{Keys, action};
use pinstripe_nvme::wire::status::Status;
use pinstripe_runtime::{OperationId, Reducer, Stream, Ticket, shard};
use zerocopy::IntoBytes;

use crate::host::{Heard, Host, identify};
use crate::world::{Array, Pipe, Random, pipe};
use crate::{NQN, namespaces, seeds};

struct Nowhere;

impl Connector for Nowhere {
    fn connect(&self, _: &Address) -> Connecting {
        Box::pin(async { Err(ErrorKind::ConnectionRefused.into()) })
    }
}

fn computing(arrays: &[Array]) -> Target<Array> {
    computing_within(arrays, Arc::default())
}

fn computing_within(arrays: &[Array], budget: Arc<Budget>) -> Target<Array> {
    Target::with_budget(computing_subsystem(arrays, None), arrays.to_vec(), budget)
}

/// A subsystem that computes, of one namespace for each array.
pub fn computing_subsystem(arrays: &[Array], authentication: Option<Authentication>) -> Arc<Subsystem> {
    computing_and_reaching(arrays, authentication, Arc::new(Nowhere))
}

/// The same, which reaches other servers so.
pub fn computing_and_reaching(
    arrays: &[Array],
    authentication: Option<Authentication>,
    connector: Arc<dyn Connector>,
) -> Arc<Subsystem> {
    computing_of(arrays, authentication, connector, None)
}

/// The same, which keeps epochs there.
fn computing_of(
    arrays: &[Array],
    authentication: Option<Authentication>,
    connector: Arc<dyn Connector>,
    epochs: Option<Arc<dyn EpochStore>>,
) -> Arc<Subsystem> {
    let config = SubsystemConfig {
        nqn: NQN.to_owned(),
        serial: "0123456789abcdef".to_owned(),
        namespaces: namespaces(arrays),
        queues_max: 4,
        addresses: Vec::new(),
    };
    let offload = OffloadConfig {
        pipeline: Pipeline::Overlapped,
        incarnation: [9; 16],
        epochs,
        connector,
        peers: OffloadConfig::peer_options(NQN, 1),
    };
    Subsystem::with(config, authentication, Some(offload)).unwrap()
}

/// Takes a second to store a record, and can't store higher epochs than this.
struct Full(u64);

impl EpochStore for Full {
    fn load(&self, _: &[u8; 16]) -> io::Result<Option<EpochRecord>> {
        Ok(None)
    }

    fn store(&self, _: &[u8; 16], record: &EpochRecord) -> Storing {
        let fits = record.epoch <= self.0;
        Box::pin(async move {
            shard::sleep(1_000_000_000).await;
            if fits { Ok(()) } else { Err(io::Error::from(ErrorKind::StorageFull).into()) }
        })
    }
}

/// Keeps a record, and can't say whether it has stored that the epoch was given up.
#[derive(Default)]
struct Unsure(Mutex<Option<EpochRecord>>);

impl EpochStore for Unsure {
    fn load(&self, _: &[u8; 16]) -> io::Result<Option<EpochRecord>> {
        Ok(*self.0.lock().unwrap())
    }

    fn store(&self, _: &[u8; 16], record: &EpochRecord) -> Storing {
        *self.0.lock().unwrap() = Some(*record);
        let is_unsure = record.given_up;
        Box::pin(async move {
            let error = || NotStored { error: ErrorKind::Other.into(), is_unchanged: false };
            if is_unsure { Err(error()) } else { Ok(()) }
        })
    }
}

/// What a server says of the first namespace's attachments.
async fn asked(admin_queue: &mut Host) -> Query {
    let page = admin_queue.read(Command::new(admin::QUERY, 1), 4096).await.unwrap();
    Query::parse(page.first_chunk().unwrap())
}

/// A host that sees a higher epoch at its member stops for good.
#[test]
fn an_epoch_that_can_not_be_stored_is_never_told() {
    seeds(3, |random: Rc<Random>| async move {
        let arrays = [Array::new(&random, 1 << 20, 0)];
        let subsystem = computing_of(&arrays, None, Arc::new(Nowhere), Some(Arc::new(Full(1))));
        let target = Target::new(subsystem, arrays.to_vec());
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut second = Host::admin(&random, &target, 2).await;
        let takeover = Attach { takeover: true, ..page(2) }.encode();
        let length = u32::try_from(takeover.len()).unwrap();
        second.command(Command::new(admin::ATTACH, 1).with_dword(10, length), &takeover).await;
        for _ in 0..2 {
            shard::sleep(500_000_000).await;
            let query = asked(&mut first).await;
            assert_eq!((query.epoch, query.attached, query.ended), (1, true, false));
        }
        assert_eq!(second.completion().await.status(), Status::INTERNAL);
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        let write = Command::new(nvm::WRITE, 1).with_blocks(0, 1);
        assert_eq!(io.status(write, &[1; 512]).await, Status::SUCCESS);
        target.stop().await;
    });
}

/// Attach, which is asked for and not waited for.
async fn begin_attach(admin_queue: &mut Host, data: &[u8]) {
    let length = u32::try_from(data.len()).unwrap();
    admin_queue.command(Command::new(admin::ATTACH, 1).with_dword(10, length), data).await;
}

fn ticket(operation: u64) -> Ticket {
    Ticket { operation: OperationId(operation), oldest: OperationId(1) }
}

/// A crash must not leave what the host was not told.
#[test]
fn a_host_that_attaches_when_its_giving_up_may_be_stored_is_attached_after_a_crash() {
    seeds(2, |random: Rc<Random>| async move {
        let arrays = [Array::new(&random, 1 << 20, 0)];
        let epochs = Arc::new(Unsure::default());
        let started = || {
            let epochs = Arc::clone(&epochs) as Arc<dyn EpochStore>;
            Target::new(computing_of(&arrays, None, Arc::new(Nowhere), Some(epochs)), arrays.to_vec())
        };
        let data = Attach { instance: [9; 16], ..page(5) }.encode();
        let write = Command::new(nvm::WRITE, 1).with_blocks(0, 1);
        let target = started();
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &data).await, Status::SUCCESS);
        let give_up = Command::new(admin::DETACH, 1).with_dword(10, 1);
        assert_eq!(first.status(give_up, &[]).await, Status::INTERNAL);
        assert_eq!(attached(&mut first, &data).await, Status::SUCCESS);
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        assert_eq!(io.status(write, &[1; 512]).await, Status::SUCCESS);
        target.stop().await;
        let target = started();
        let second = Host::admin(&random, &target, 2).await;
        let mut other = second.io(&random, &target, 2, 1, 0).await;
        assert_eq!(other.status(write, &[2; 512]).await, Status::FENCED);
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &data).await, Status::SUCCESS);
        target.stop().await;
    });
}

/// A host takes the member out of its array if Commit is refused.
#[test]
fn what_a_host_has_prepared_is_still_there_after_a_takeover_that_can_not_be_stored() {
    seeds(3, |random: Rc<Random>| async move {
        let arrays = [Array::new(&random, 1 << 20, 0)];
        let subsystem = computing_of(&arrays, None, Arc::new(Nowhere), Some(Arc::new(Full(1))));
        let target = Target::new(subsystem, arrays.to_vec());
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        for operation in [1, 2, 3] {
            let blocks = Blocks { start: operation, count: 1 };
            let begin = Request::PartialWrite { blocks, modify: false, reducers: [None, None] };
            assert_eq!(io.status(begin.command(1, ticket(operation)), &[1; 512]).await, Status::SUCCESS);
        }
        let mut second = Host::admin(&random, &target, 2).await;
        begin_attach(&mut second, &Attach { takeover: true, ..page(2) }.encode()).await;
        shard::sleep(500_000_000).await;
        let resolved = io.ask(Request::Resolve.command(1, ticket(3)), &[]).await;
        assert_eq!((resolved.status(), resolved.result_dword()), (Status::SUCCESS, 0));
        let commit = Request::Commit { fua: false };
        assert_eq!(io.status(commit.command(1, ticket(1)), &[]).await, Status::SUCCESS);
        assert_eq!(second.completion().await.status(), Status::INTERNAL);
        assert_eq!(io.status(commit.command(1, ticket(2)), &[]).await, Status::SUCCESS);
        assert_eq!(io.status(commit.command(1, ticket(3)), &[]).await, Status::DROPPED);
        let blocks = [0, 1, 1, 0].map(|byte| [byte; 512]).concat();
        assert_eq!(arrays[0].seen.borrow().data[..blocks.len()], blocks);
        target.stop().await;
    });
}

/// The one that is under way need not be.
#[test]
fn a_forced_commit_beside_another_one_is_answered_behind_a_flush() {
    seeds(3, |random: Rc<Random>| async move {
        let array = Array::new(&random, 1 << 20, 0);
        let target = computing(std::slice::from_ref(&array));
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        let mut other = first.io(&random, &target, 1, 2, 0).await;
        let blocks = Blocks { start: 0, count: 1 };
        let begin = Request::PartialWrite { blocks, modify: false, reducers: [None, None] };
        assert_eq!(io.status(begin.command(1, ticket(1)), &[1; 512]).await, Status::SUCCESS);
        array.close();
        io.command(Request::Commit { fua: false }.command(1, ticket(1)), &[]).await;
        shard::sleep(1_000_000).await;
        other.command(Request::Commit { fua: true }.command(1, ticket(1)), &[]).await;
        shard::sleep(1_000_000).await;
        array.open();
        assert_eq!(io.completion().await.status(), Status::SUCCESS);
        assert_eq!(other.completion().await.status(), Status::SUCCESS);
        assert_eq!((array.seen.borrow().fua, array.seen.borrow().flushes), (0, 1));
        target.stop().await;
    });
}

/// Commands of operations that were dropped hold memory as long as their disk hangs.
#[test]
fn of_first_phase_commands_there_are_no_more_than_slots_although_their_operations_are_dropped() {
    seeds(2, |random: Rc<Random>| async move {
        let array = Array::new(&random, 1 << 20, 0);
        let target = computing(std::slice::from_ref(&array));
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut io = Host::initialize(&random, &target, 0).await;
        io.entries = 128;
        assert_eq!(io.connect(1, 1, first.controller, 0).await.status(), Status::SUCCESS);
        let mut other = first.io(&random, &target, 1, 2, 0).await;
        let blocks = Blocks { start: 0, count: 1 };
        let modify = Request::PartialWrite { blocks, modify: true, reducers: [None, None] };
        array.close();
        for operation in 1..=64 {
            io.command(modify.command(1, ticket(operation)), &[1; 512]).await;
            shard::sleep(1_000_000).await;
            let resolve = Request::Resolve.command(1, ticket(operation));
            assert_eq!(other.status(resolve, &[]).await, Status::SUCCESS);
        }
        assert_eq!((asked(&mut first).await.held, array.seen.borrow().running), (0, 64));
        assert_eq!(other.status(modify.command(1, ticket(65)), &[1; 512]).await, Status::BUSY);
        array.open();
        for _ in 1..=64 {
            assert_eq!(io.completion().await.status(), Status::DROPPED);
        }
        assert_eq!(other.status(modify.command(1, ticket(66)), &[1; 512]).await, Status::SUCCESS);
        target.stop().await;
    });
}

/// One of that kind would keep every later host out, for nothing else ends it. And the host that is attached
/// has lost the namespace to none.
#[test]
fn a_controller_that_has_gone_while_its_attach_waited_is_not_attached() {
    seeds(3, |random: Rc<Random>| async move {
        let array = Array::new(&random, 1 << 20, 0);
        let target = computing(std::slice::from_ref(&array));
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        let write = Command::new(nvm::WRITE, 1).with_blocks(0, 1);
        array.close();
        io.command(write, &[1; 512]).await;
        shard::sleep(1_000_000).await;
        let mut second = Host::admin(&random, &target, 2).await;
        begin_attach(&mut second, &Attach { takeover: true, ..page(2) }.encode()).await;
        shard::sleep(1_000_000).await;
        second.close();
        shard::sleep(1_000_000).await;
        array.open();
        assert_eq!(io.completion().await.status(), Status::SUCCESS);
        shard::sleep(1_000_000_000).await;
        assert_eq!(io.status(write, &[2; 512]).await, Status::SUCCESS);
        assert_eq!(asked(&mut first).await.epoch, 1);
        io.close();
        first.close();
        shard::sleep(1_000_000).await;
        let mut third = Host::admin(&random, &target, 3).await;
        assert_eq!(attached(&mut third, &attach(3, 9)).await, Status::SUCCESS);
        target.stop().await;
    });
}

#[test]
fn a_controller_that_has_gone_while_its_attach_was_stored_is_not_attached() {
    seeds(2, |random: Rc<Random>| async move {
        let arrays = [Array::new(&random, 1 << 20, 0)];
        let subsystem = computing_of(&arrays, None, Arc::new(Nowhere), Some(Arc::new(Full(9))));
        let target = Target::new(subsystem, arrays.to_vec());
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut second = Host::admin(&random, &target, 2).await;
        begin_attach(&mut second, &Attach { takeover: true, ..page(2) }.encode()).await;
        shard::sleep(500_000_000).await;
        second.close();
        shard::sleep(1_000_000_000).await;
        let mut third = Host::admin(&random, &target, 3).await;
        assert_eq!(attached(&mut third, &attach(3, 9)).await, Status::SUCCESS);
        target.stop().await;
    });
}

/// Its record was stored by a server before this one.
struct Known;

impl EpochStore for Known {
    fn load(&self, _: &[u8; 16]) -> io::Result<Option<EpochRecord>> {
        Ok(Some(EpochRecord {
            array: [7; 16],
            epoch: 1,
            owner: [1; 16],
            has_instance: false,
            given_up: false,
            ended: Ended::default(),
        }))
    }

    fn store(&self, _: &[u8; 16], _: &EpochRecord) -> Storing {
        Box::pin(async { Ok(()) })
    }
}

#[test]
fn a_takeover_ends_the_reservation_of_a_host_that_came_back_when_the_server_was_started_anew() {
    seeds(2, |random: Rc<Random>| async move {
        let arrays = [Array::new(&random, 1 << 20, 0)];
        let subsystem = computing_of(&arrays, None, Arc::new(Nowhere), Some(Arc::new(Known)));
        let target = Target::new(subsystem, arrays.to_vec());
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        let keys = |current: u64, other: u64| {
            Keys { current: current.into(), other: other.into() }.as_bytes().to_vec()
        };
        let register = Command::new(nvm::RESERVATION_REGISTER, 1).with_dword(10, action::REGISTER);
        assert_eq!(io.status(register, &keys(0, 7)).await, Status::SUCCESS);
        let acquire = Command::new(nvm::RESERVATION_ACQUIRE, 1).with_dword(10, 1 << 8 | action::ACQUIRE);
        assert_eq!(io.status(acquire, &keys(7, 0)).await, Status::SUCCESS);
        io.close();
        first.close();
        shard::sleep(1_000_000).await;
        let mut second = Host::admin(&random, &target, 2).await;
        let takeover = Attach { takeover: true, ..page(2) }.encode();
        assert_eq!(attached(&mut second, &takeover).await, Status::SUCCESS);
        let mut io = second.io(&random, &target, 2, 1, 0).await;
        let write = Command::new(nvm::WRITE, 1).with_blocks(0, 1);
        assert_eq!(io.status(write, &[2; 512]).await, Status::SUCCESS);
        target.stop().await;
    });
}

#[test]
fn a_table_that_names_the_namespace_twice_attaches_nothing() {
    seeds(2, |random: Rc<Random>| async move {
        let array = Array::new(&random, 1 << 20, 0);
        let target = computing(std::slice::from_ref(&array));
        let mut first = Host::admin(&random, &target, 1).await;
        let twice = Attach { peers: vec![Some(member(NQN, 1)), Some(member(NQN, 1))], ..page(1) }.encode();
        assert_eq!(attached(&mut first, &twice).await, Status::INVALID_FIELD);
        let second = Host::admin(&random, &target, 2).await;
        let mut other = second.io(&random, &target, 2, 1, 0).await;
        let write = Command::new(nvm::WRITE, 1).with_blocks(0, 1);
        assert_eq!(other.status(write, &[1; 512]).await, Status::SUCCESS);
        target.stop().await;
    });
}

#[test]
fn a_part_whose_command_never_comes_gives_its_slot_back() {
    seeds(2, |random: Rc<Random>| async move {
        let array = Array::new(&random, 1 << 20, 0);
        let target = computing(std::slice::from_ref(&array));
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut server = Host::admin(&random, &target, 2).await;
        assert_eq!(attached(&mut server, &attach_as(true, 1, 9)).await, Status::SUCCESS);
        let mut parts = server.io(&random, &target, 2, 1, 0).await;
        let part = Request::Peer { units: 1, place: 0 }.command(1, ticket(1));
        assert_eq!(parts.status(part, &[1; 512]).await, Status::SUCCESS);
        assert_eq!(asked(&mut first).await.held, 1);
        shard::sleep(12_000_000_000).await;
        assert_eq!(asked(&mut first).await.held, 0);
        target.stop().await;
    });
}

/// A start that is refused at its second server gives the first one back, and the array that has lost only
/// its connection to that one must be able to use it again.
#[test]
fn a_host_comes_again_unless_its_successor_has_changed_something() {
    for changes in [false, true] {
        seeds(2, move |random: Rc<Random>| async move {
            let array = Array::new(&random, 1 << 20, 0);
            let target = computing(std::slice::from_ref(&array));
            let page = |epoch| Attach { instance: [9; 16], ..page(epoch) }.encode();
            let mut first = Host::admin(&random, &target, 1).await;
            assert_eq!(attached(&mut first, &page(1)).await, Status::SUCCESS);
            first.close();
            shard::sleep(1_000_000).await;
            let mut second = Host::admin(&random, &target, 2).await;
            assert_eq!(attached(&mut second, &page(2)).await, Status::SUCCESS);
            let mut io = second.io(&random, &target, 2, 1, 0).await;
            if changes {
                let write = Command::new(nvm::WRITE, 1).with_blocks(0, 1);
                assert_eq!(io.status(write, &[1; 512]).await, Status::SUCCESS);
            }
            let give_up = Command::new(admin::DETACH, 1).with_dword(10, 1);
            assert_eq!(second.status(give_up, &[]).await, Status::SUCCESS);
            let mut again = Host::admin(&random, &target, 1).await;
            let comes = attached(&mut again, &page(3)).await;
            assert_eq!(comes, if changes { Status::FENCED } else { Status::SUCCESS });
            target.stop().await;
        });
    }
}

/// A host may die between a claim and its end.
#[test]
fn a_takeover_ends_the_reservation_of_the_host_that_had_the_namespace_and_no_other_one() {
    seeds(2, |random: Rc<Random>| async move {
        let array = Array::new(&random, 1 << 20, 0);
        let target = computing(std::slice::from_ref(&array));
        let write = Command::new(nvm::WRITE, 1).with_blocks(0, 1);
        let keys = |current: u64, other: u64| {
            Keys { current: current.into(), other: other.into() }.as_bytes().to_vec()
        };
        let register = Command::new(nvm::RESERVATION_REGISTER, 1).with_dword(10, action::REGISTER);
        let acquire = Command::new(nvm::RESERVATION_ACQUIRE, 1).with_dword(10, 1 << 8 | action::ACQUIRE);
        for (epoch, host) in [(1, 1), (2, 2)] {
            let mut admin_queue = Host::admin(&random, &target, host).await;
            let mut io = admin_queue.io(&random, &target, host, 1, 0).await;
            let takeover = Attach { takeover: true, ..page(epoch) }.encode();
            assert_eq!(attached(&mut admin_queue, &takeover).await, Status::SUCCESS);
            assert_eq!(io.status(write, &[host; 512]).await, Status::SUCCESS);
            assert_eq!(io.status(register, &keys(0, 7)).await, Status::SUCCESS);
            assert_eq!(io.status(acquire, &keys(7, 0)).await, Status::SUCCESS);
            io.close();
            admin_queue.close();
            shard::sleep(1_000_000).await;
        }
        // The second one comes again, and then leaves by itself.
        let mut second = Host::admin(&random, &target, 2).await;
        let mut io = second.io(&random, &target, 2, 1, 0).await;
        assert_eq!(attached(&mut second, &attach(3, 9)).await, Status::SUCCESS);
        assert_eq!(io.status(acquire, &keys(7, 0)).await, Status::SUCCESS, "it has kept its key");
        let give_up = Command::new(admin::DETACH, 1).with_dword(10, 1);
        assert_eq!(second.status(give_up, &[]).await, Status::SUCCESS);
        let mut third = Host::admin(&random, &target, 3).await;
        let mut io = third.io(&random, &target, 3, 1, 0).await;
        assert_eq!(attached(&mut third, &attach(4, 9)).await, Status::SUCCESS);
        assert_eq!(io.status(write, &[3; 512]).await, Status::RESERVATION_CONFLICT);
        target.stop().await;
    });
}

#[test]
fn a_takeover_waits_for_one_piece_of_a_long_discard() {
    const PIECE: usize = 32 << 20;
    seeds(2, |random: Rc<Random>| async move {
        let array = Array::new(&random, 4 * PIECE, 0);
        array.seen.borrow_mut().data.fill(7);
        let target = computing(std::slice::from_ref(&array));
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        array.close();
        let blocks = u32::try_from(4 * PIECE / 512).unwrap();
        let range = DatasetRange { attributes: 0.into(), blocks: blocks.into(), start: 0.into() };
        let discard = Command::new(nvm::DATASET_MANAGEMENT, 1).with_dword(11, DATASET_DEALLOCATE);
        io.command(discard, range.as_bytes()).await;
        shard::sleep(1_000_000).await;
        assert_eq!(array.seen.borrow().running, 1);
        let mut second = Host::admin(&random, &target, 2).await;
        let takeover = Attach { takeover: true, ..page(2) }.encode();
        let length = u32::try_from(takeover.len()).unwrap();
        second.command(Command::new(admin::ATTACH, 1).with_dword(10, length), &takeover).await;
        shard::sleep(1_000_000).await;
        array.open();
        assert_eq!(second.completion().await.status(), Status::SUCCESS);
        assert_eq!(io.completion().await.status(), Status::SUCCESS);
        let discarded = array.seen.borrow().data.iter().take_while(|&&byte| byte == 0).count();
        assert_eq!(discarded, PIECE);
        target.stop().await;
    });
}

#[test]
fn what_another_host_has_reserved_for_itself_is_not_read_by_operations() {
    seeds(2, |random: Rc<Random>| async move {
        let array = Array::new(&random, 1 << 20, 0);
        let target = computing(std::slice::from_ref(&array));
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        let second = Host::admin(&random, &target, 2).await;
        let mut other = second.io(&random, &target, 2, 1, 0).await;
        let key = |current: u64, other: u64| {
            Keys { current: current.into(), other: other.into() }.as_bytes().to_vec()
        };
        let register = Command::new(nvm::RESERVATION_REGISTER, 1).with_dword(10, action::REGISTER);
        assert_eq!(other.status(register, &key(0, 7)).await, Status::SUCCESS);
        let exclusive = Command::new(nvm::RESERVATION_ACQUIRE, 1).with_dword(10, 2 << 8 | action::ACQUIRE);
        assert_eq!(other.status(exclusive, &key(7, 0)).await, Status::SUCCESS);
        let blocks = Blocks { start: 0, count: 1 };
        let ticket = |number| Ticket { operation: OperationId(number), oldest: OperationId(1) };
        let reduce = Request::Reduce { blocks, coefficient: 1, wait: 0 }.command(1, ticket(1));
        assert_eq!(io.read(reduce, 512).await, Err(Status::RESERVATION_CONFLICT));
        let parity = Request::Parity { blocks, modify: true, supplied: false, wait: 0 };
        let refused = io.status(parity.command(1, ticket(2)), &[]).await;
        assert_eq!(refused, Status::RESERVATION_CONFLICT);
        target.stop().await;
    });
}

/// They wait for other servers, and a Commit or Resolve that those wait for must get through.
#[test]
fn first_phase_commands_never_fill_a_queue_however_many_namespaces_there_are() {
    const NAMESPACES: u32 = 120;
    seeds(1, |random: Rc<Random>| async move {
        let arrays: Vec<Array> = (0..NAMESPACES).map(|_| Array::new(&random, 4096, 0)).collect();
        let target = computing(&arrays);
        let mut first = Host::admin(&random, &target, 1).await;
        let data = attach(1, 9);
        let length = u32::try_from(data.len()).unwrap();
        for namespace in 1..=NAMESPACES {
            let attach = Command::new(admin::ATTACH, namespace).with_dword(10, length);
            assert_eq!(first.status(attach, &data).await, Status::SUCCESS);
        }
        let mut io = Host::initialize(&random, &target, 0).await;
        io.entries = 128;
        assert_eq!(io.connect(1, 1, first.controller, 0).await.status(), Status::SUCCESS);
        let ticket = Ticket { operation: OperationId(1), oldest: OperationId(1) };
        // Each waits for a part that never comes.
        let parity = Request::Parity {
            blocks: Blocks { start: 0, count: 1 },
            modify: false,
            supplied: false,
            wait: 1,
        };
        for namespace in 1..=NAMESPACES {
            io.command(parity.command(namespace, ticket), &[]).await;
        }
        for _ in 96..NAMESPACES {
            assert_eq!(io.completion().await.status(), Status::BUSY);
        }
        for namespace in 1..=96 {
            let resolved = io.status(Request::Resolve.command(namespace, ticket), &[]).await;
            let both = [resolved, io.completion().await.status()];
            assert!(both.contains(&Status::SUCCESS) && both.contains(&Status::DROPPED), "{both:?}");
        }
        assert_eq!(io.status(parity.command(97, ticket), &[]).await, Status::DROPPED);
        target.stop().await;
    });
}

/// Two members are on one server, and one of them is under the next epoch already.
#[test]
fn a_part_for_another_namespace_of_the_same_server_is_refused_under_a_later_epoch() {
    seeds(3, |random: Rc<Random>| async move {
        let arrays = [Array::new(&random, 1 << 20, 0), Array::new(&random, 1 << 20, 0)];
        let target = computing(&arrays);
        let mut first = Host::admin(&random, &target, 1).await;
        let table = |epoch| {
            Attach { peers: vec![Some(member(NQN, 1)), Some(member(NQN, 2))], ..page(epoch) }.encode()
        };
        let attach = |namespace: u32, data: &[u8]| {
            let length = u32::try_from(data.len()).unwrap();
            Command::new(admin::ATTACH, namespace).with_dword(10, length)
        };
        for namespace in [1, 2] {
            assert_eq!(first.status(attach(namespace, &table(1)), &table(1)).await, Status::SUCCESS);
        }
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        let mut sums = first.io(&random, &target, 1, 2, 0).await;
        let (blocks, ticket) = (Blocks { start: 0, count: 1 }, |number| Ticket {
            operation: OperationId(number),
            oldest: OperationId(1),
        });
        let reducers = [Some(Reducer { place: 1, coefficient: 1 }), None];
        let part = Request::Contribute { blocks, reducers };
        let sum = Request::Reduce { blocks, coefficient: 0, wait: 1 };
        // As it should be.
        io.command(part.command(1, ticket(1)), &[]).await;
        assert_eq!(sums.read(sum.command(2, ticket(1)), 512).await, Ok(vec![0; 512]));
        assert_eq!(io.completion().await.status(), Status::SUCCESS);
        // The number comes again under the next epoch, before the old part.
        arrays[0].seen.borrow_mut().data.fill(7);
        arrays[0].close();
        io.command(part.command(1, ticket(2)), &[]).await;
        shard::sleep(1_000_000).await;
        assert_eq!(first.status(attach(2, &table(2)), &table(2)).await, Status::SUCCESS);
        let mut reduce = sum.command(2, ticket(2));
        reduce.sgl = Sgl::transport(512);
        sums.command(reduce, &[]).await;
        shard::sleep(1_000_000).await;
        arrays[0].open();
        assert_eq!(io.completion().await.status(), Status::PEER_UNREACHABLE);
        // Nothing has come for it in its time.
        assert_eq!(sums.completion().await.status(), Status::DROPPED);
        target.stop().await;
    });
}

#[test]
fn a_part_for_another_namespace_of_the_same_server_is_refused_where_no_host_is_attached() {
    seeds(2, |random: Rc<Random>| async move {
        let arrays = [Array::new(&random, 1 << 20, 0), Array::new(&random, 1 << 20, 0)];
        let target = computing(&arrays);
        let mut first = Host::admin(&random, &target, 1).await;
        let table = Attach { peers: vec![Some(member(NQN, 1)), Some(member(NQN, 2))], ..page(1) }.encode();
        let length = u32::try_from(table.len()).unwrap();
        for namespace in [1, 2] {
            let attach = Command::new(admin::ATTACH, namespace).with_dword(10, length);
            assert_eq!(first.status(attach, &table).await, Status::SUCCESS);
        }
        assert_eq!(first.status(Command::new(admin::DETACH, 2), &[]).await, Status::SUCCESS);
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        let reducers = [Some(Reducer { place: 1, coefficient: 1 }), None];
        let part = Request::Contribute { blocks: Blocks { start: 0, count: 1 }, reducers };
        assert_eq!(io.status(part.command(1, ticket(1)), &[]).await, Status::PEER_UNREACHABLE);
        let page = first.read(Command::new(admin::QUERY, 2), 4096).await.unwrap();
        assert_eq!(Query::parse(page.first_chunk().unwrap()).held, 0);
        target.stop().await;
    });
}

thread_local! {
    /// The way to another server, once it is dialled.
    static DIALLED: RefCell<Option<Rc<Pipe>>> = const { RefCell::new(None) };
}

/// Reaches a server that the test plays itself.
struct Away(u64);

impl Connector for Away {
    fn connect(&self, _: &Address) -> Connecting {
        let (ours, theirs) = pipe(&Random::new(self.0), 1 << 16);
        DIALLED.set(Some(theirs));
        Box::pin(async { Ok(ours as Rc<dyn Stream>) })
    }
}

/// A member of the array, by its server.
fn member(nqn: &str, namespace: u32) -> PeerAddress {
    PeerAddress { namespace, port: 4420, host: "server".to_owned(), nqn: nqn.to_owned() }
}

/// What is damaged between servers would be written as parity.
#[test]
fn parts_travel_with_the_digests_that_the_host_has_asked_its_servers_for() {
    for digests in 0..4 {
        seeds(2, move |random: Rc<Random>| async move {
            let arrays = [Array::new(&random, 1 << 20, 0)];
            let subsystem = computing_and_reaching(&arrays, None, Arc::new(Away(7)));
            let target = Target::new(subsystem, arrays.to_vec());
            let mut first = Host::initialize(&random, &target, digests).await;
            assert_eq!(first.connect(1, 0, CONTROLLER_ANY, 0).await.status(), Status::SUCCESS);
            first.enable().await;
            let peers = vec![Some(member(NQN, 1)), Some(member("nqn.2026-01.com.example:other", 1))];
            let data = Attach { peers, ..page(1) }.encode();
            assert_eq!(attached(&mut first, &data).await, Status::SUCCESS);
            let mut io = first.io(&random, &target, 1, 1, 0).await;
            let ticket = Ticket { operation: OperationId(1), oldest: OperationId(1) };
            let reducers = [Some(Reducer { place: 1, coefficient: 1 }), None];
            let blocks = Blocks { start: 0, count: 1 };
            let begin = Request::PartialWrite { blocks, modify: false, reducers };
            io.command(begin.command(1, ticket), &[1; 512]).await;
            shard::sleep(100_000_000).await;
            let there = DIALLED.take().expect("the other server is not dialled");
            // ICReq: the digests are its byte 11.
            let asked = there.receive_exactly(128).await.unwrap();
            assert_eq!(asked[11], digests);
            there.shutdown();
            target.stop().await;
        });
    }
}

fn attach(epoch: u64, incarnation: u8) -> Vec<u8> {
    attach_as(false, epoch, incarnation)
}

/// Of a host, or of the server of another member.
fn attach_as(peer: bool, epoch: u64, incarnation: u8) -> Vec<u8> {
    Attach { peer, incarnation: [incarnation; 16], ..page(epoch) }.encode()
}

/// Attach of a host that says no more than it must.
fn page(epoch: u64) -> Attach {
    Attach {
        array: [7; 16],
        epoch,
        generation: 0,
        peer: false,
        takeover: false,
        alone: false,
        incarnation: [9; 16],
        instance: [0; 16],
        peers: Vec::new(),
    }
}

pub async fn attached(admin_queue: &mut Host, data: &[u8]) -> Status {
    let length = u32::try_from(data.len()).unwrap();
    admin_queue.status(Command::new(admin::ATTACH, 1).with_dword(10, length), data).await
}

#[test]
fn an_attach_to_a_server_that_was_started_anew_is_refused_and_fences_no_host() {
    seeds(2, |random: Rc<Random>| async move {
        let arrays = [Array::new(&random, 1 << 20, 0)];
        let target = computing(&arrays);
        let mut first = Host::admin(&random, &target, 1).await;
        let page = first.read(identify(1, 0), 4096).await.unwrap();
        let announced = Announcement::parse(page.first_chunk().unwrap()).expect("it announces the extension");
        assert_eq!(announced.incarnation, [9; 16]);
        assert_eq!(announced.features & feature::FENCING, 0, "epochs aren't durable here");
        assert_eq!(attached(&mut first, &attach(1, 8)).await, Status::RESTARTED);
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        let write = Command::new(nvm::WRITE, 1).with_blocks(0, 1);
        assert_eq!(io.status(write, &[1; 512]).await, Status::SUCCESS);
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        assert_eq!(io.status(write, &[2; 512]).await, Status::SUCCESS);
        let second = Host::admin(&random, &target, 2).await;
        let mut other = second.io(&random, &target, 2, 1, 0).await;
        assert_eq!(other.status(write, &[3; 512]).await, Status::FENCED);
        target.stop().await;
    });
}

#[test]
fn giving_an_epoch_up_is_answered_when_writes_that_were_admitted_before_are_over() {
    seeds(4, |random: Rc<Random>| async move {
        let array = Array::new(&random, 1 << 20, 0);
        let target = computing(std::slice::from_ref(&array));
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        let second = Host::admin(&random, &target, 2).await;
        let mut other = second.io(&random, &target, 2, 1, 0).await;
        let write = Command::new(nvm::WRITE, 1).with_blocks(0, 1);
        array.close();
        io.command(write, &[1; 512]).await;
        shard::sleep(1_000_000).await;
        assert_eq!(array.seen.borrow().running, 1);
        let before = first.pipe.messages_of_peer();
        first.command(Command::new(admin::DETACH, 1).with_dword(10, 1), &[]).await;
        shard::sleep(1_000_000_000).await;
        assert_eq!(first.pipe.messages_of_peer(), before, "an older write may come after another host's");
        assert_eq!(other.status(write, &[2; 512]).await, Status::FENCED);
        array.open();
        assert_eq!(first.completion().await.status(), Status::SUCCESS);
        assert_eq!(io.completion().await.status(), Status::SUCCESS);
        assert_eq!(other.status(write, &[3; 512]).await, Status::SUCCESS);
        assert_eq!(array.seen.borrow().data[..512], [3; 512]);
        target.stop().await;
    });
}

#[test]
fn a_host_that_goes_while_sums_wait_for_memory_gives_back_what_it_holds_and_no_more() {
    const SUM: u32 = 512 << 10;
    seeds(3, |random: Rc<Random>| async move {
        let array = Array::new(&random, 1 << 20, 0);
        let budget = Arc::new(Budget::new(SUM as usize * 3 / 2));
        let target = computing_within(std::slice::from_ref(&array), Arc::clone(&budget));
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        for operation in 1..4 {
            let ticket = Ticket { operation: OperationId(operation), oldest: OperationId(1) };
            let blocks = Blocks { start: 0, count: SUM / 512 };
            let mut reduce = Request::Reduce { blocks, coefficient: 1, wait: 0 }.command(1, ticket);
            reduce.sgl = Sgl::transport(SUM);
            io.command(reduce, &[]).await;
        }
        // It takes none of them.
        shard::sleep(1_000_000_000).await;
        assert_eq!(budget.held(), SUM as usize);
        io.close();
        shard::sleep(1_000_000_000).await;
        assert_eq!((target.connections(), budget.held()), (1, 0));
        let mut io = first.io(&random, &target, 1, 1, 0).await;
        assert!(io.read(Command::new(nvm::READ, 1).with_blocks(0, 1), 512).await.is_ok());
        target.stop().await;
    });
}

/// Numbers of operations come again under the next epoch: an old part would become part of another's sum.
#[test]
fn a_part_whose_data_comes_when_the_epoch_has_risen_is_refused() {
    seeds(3, |random: Rc<Random>| async move {
        let array = Array::new(&random, 1 << 20, 0);
        let target = computing(std::slice::from_ref(&array));
        let mut first = Host::admin(&random, &target, 1).await;
        assert_eq!(attached(&mut first, &attach(1, 9)).await, Status::SUCCESS);
        let mut server = Host::admin(&random, &target, 2).await;
        assert_eq!(attached(&mut server, &attach_as(true, 1, 9)).await, Status::SUCCESS);
        let mut parts = server.io(&random, &target, 2, 1, 0).await;
        let ticket = Ticket { operation: OperationId(1), oldest: OperationId(1) };
        let mut part = Request::Peer { units: 1, place: 0 }.command(1, ticket);
        part.sgl = Sgl::transport(512);
        parts.command(part, &[]).await;
        let Heard::Ready(ready) = parts.hear().await else { panic!("no R2T") };
        assert_eq!(attached(&mut first, &attach(2, 9)).await, Status::SUCCESS);
        parts.answer(&ready, 0, &[1; 512], true).await;
        assert_eq!(parts.completion().await.status(), Status::FENCED);
        target.stop().await;
    });
}
