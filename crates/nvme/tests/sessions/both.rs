//! The initiator's devices over our own target.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_nvme::controller::Target;
use pinstripe_nvme::initiator::{Address, Connecting, Connector, Initiator, InitiatorError, Options};
use pinstripe_runtime::{Attachment, DeviceErrorKind, DeviceSource, Offload, Stream, Submission, shard};

use crate::offload::computing_subsystem;
use crate::world::{Array, Pipe, Random};
use crate::{NQN, dial, seeds, target};

const SIZE: usize = 8 << 20;

thread_local! {
    static NETWORK: RefCell<Option<Network>> = const { RefCell::new(None) };
}

/// One server, and the connections to it.
struct Network {
    random: Rc<Random>,
    target: Target<Array>,
    pipes: Vec<Rc<Pipe>>,
    attempts: Rc<Cell<usize>>,
    refuse: bool,
}

pub struct Wires;

impl Connector for Wires {
    fn connect(&self, _: &Address) -> Connecting {
        Box::pin(async {
            NETWORK.with_borrow_mut(|network| {
                let network = network.as_mut().unwrap();
                network.attempts.set(network.attempts.get() + 1);
                if network.refuse {
                    return Err(std::io::ErrorKind::ConnectionRefused.into());
                }
                let ours = dial(&network.random, &network.target);
                network.pipes.push(Rc::clone(&ours));
                let stream: Rc<dyn Stream> = ours;
                Ok(stream)
            })
        })
    }
}

fn network(random: &Rc<Random>, arrays: &[Array]) -> Target<Array> {
    let (_, target) = target(arrays);
    lay(random, target)
}

/// Has connections end at `target`.
pub fn lay(random: &Rc<Random>, target: Target<Array>) -> Target<Array> {
    NETWORK.set(Some(Network {
        random: Rc::clone(random),
        target: target.clone(),
        pipes: Vec::new(),
        attempts: Rc::default(),
        refuse: false,
    }));
    target
}

/// Every connection breaks.
fn cut() {
    let pipes = NETWORK.with_borrow_mut(|network| std::mem::take(&mut network.as_mut().unwrap().pipes));
    for pipe in pipes {
        pipe.shutdown();
    }
}

pub async fn leave(target: Target<Array>) {
    NETWORK.set(None);
    target.stop().await;
}

fn initiator() -> Arc<Initiator> {
    initiator_of(5)
}

fn initiator_of(host: u8) -> Arc<Initiator> {
    let nqn = format!("nqn.2026-01.com.example:host{host}");
    Initiator::new(Options::new(nqn, [host; 16], 1), Arc::new(Wires))
}

pub fn address(options: &str) -> Address {
    format!("nvme-tcp://server:4420/{NQN}?nsid=1{options}").parse().unwrap()
}

pub fn filled(length: usize, random: &Random) -> pinstripe_runtime::Buffer {
    let mut buffer = shard::buffer(length);
    for byte in buffer.iter_mut() {
        *byte = random.below(256).to_le_bytes()[0];
    }
    buffer
}

#[test]
fn only_servers_without_our_extension_may_write_on_for_a_process_that_has_died() {
    seeds(1, |random| async move {
        let arrays = [Array::new(&random, SIZE, 2000)];
        let computing = Target::new(computing_subsystem(&arrays, None), arrays.to_vec());
        for (target, late_ns) in [(target(&arrays).1, 11_000_000_000), (computing, 0)] {
            let target = lay(&random, target);
            let device = initiator().open(&address("")).await.unwrap().attach().unwrap();
            device.flush().await.result.unwrap();
            assert_eq!(device.late_writes_ns(), late_ns);
            drop(device);
            leave(target).await;
        }
    });
}

#[test]
fn what_is_written_is_read_back_at_every_size_with_and_without_digests() {
    seeds(12, |random| async move {
        let array = Array::new(&random, SIZE, 2000);
        let target = network(&random, std::slice::from_ref(&array));
        let options = ["", "&hdgst=1", "&ddgst=1", "&hdgst=1&ddgst=1"][random.below(4)];
        let source = initiator().open(&address(options)).await.unwrap();
        assert_eq!((source.info().size, source.info().logical_block), (SIZE as u64, 512));
        let device = source.attach().unwrap();
        for length in [512, 4096, 8192, 8704, 32 << 10, 33 << 10, 128 << 10, 1 << 20, 2_500_096] {
            let length = length / 512 * 512;
            let offset = (random.below((SIZE - length) / 512) * 512) as u64;
            let data = filled(length, &random).freeze();
            let written = device.write(offset, data.clone(), random.below(2) == 0).await;
            assert_eq!(written.result, Ok(length));
            // A part of a buffer comes back as the same part.
            let mut whole = shard::buffer(4096 + length);
            let mut head = whole.split_to(4096);
            let outcome = device.read(offset, whole).await;
            assert_eq!(outcome.result, Ok(length));
            let buffer = outcome.buffer.unwrap();
            assert!(*buffer == *data, "{length} bytes differ");
            head.unsplit(buffer);
            let start = usize::try_from(offset).unwrap();
            assert!(array.seen.borrow().data[start..start + length] == *data);
        }
        drop((device, source));
        leave(target).await;
    });
}

#[test]
fn many_requests_at_once_all_end_and_do_not_mix() {
    seeds(6, |random| async move {
        let array = Array::new(&random, SIZE, 5000);
        let target = network(&random, std::slice::from_ref(&array));
        let source = initiator().open(&address("&ddgst=1")).await.unwrap();
        let device = source.attach().unwrap();
        let mut writes = Vec::new();
        for index in 0..200_u32 {
            let mut buffer = shard::buffer(16 << 10);
            buffer.fill(index.to_le_bytes()[0]);
            writes.push(device.write(u64::from(index) * (16 << 10), buffer.freeze(), false));
        }
        for write in writes {
            assert_eq!(write.await.result, Ok(16 << 10));
        }
        let reads: Vec<_> =
            (0..200_u64).map(|index| device.read(index * (16 << 10), shard::buffer(16 << 10))).collect();
        for (index, read) in reads.into_iter().enumerate() {
            let outcome = read.await;
            assert_eq!(outcome.result, Ok(16 << 10));
            assert!(outcome.buffer.unwrap().iter().all(|&byte| byte == index.to_le_bytes()[0]));
        }
        drop((device, source));
        leave(target).await;
    });
}

#[test]
fn flush_fua_zeroes_and_discard_reach_the_server() {
    seeds(3, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let target = network(&random, std::slice::from_ref(&array));
        let source = initiator().open(&address("")).await.unwrap();
        let device = source.attach().unwrap();
        assert_eq!(device.write(0, filled(4096, &random).freeze(), true).await.result, Ok(4096));
        assert_eq!((array.seen.borrow().fua, array.seen.borrow().flushes), (1, 0));
        assert_eq!(device.flush().await.result, Ok(0));
        assert_eq!(array.seen.borrow().flushes, 1);
        assert_eq!(device.write(8192, filled(4096, &random).freeze(), false).await.result, Ok(4096));
        assert_eq!(device.write_zeroes(0, 4096).await.result, Ok(0));
        assert_eq!(device.discard(8192, 4096).await.result, Ok(0));
        assert!(array.seen.borrow().data.iter().all(|&byte| byte == 0));
        let past = device.write(SIZE as u64, filled(512, &random).freeze(), false).await;
        assert_eq!(past.result.unwrap_err().kind, DeviceErrorKind::Invalid);
        array.seen.borrow_mut().fail = Some(pinstripe_block::ServiceError::Io);
        let read = device.read(0, shard::buffer(512)).await;
        assert_eq!(read.result.unwrap_err().kind, DeviceErrorKind::Media);
        assert_eq!(read.buffer.unwrap().len(), 512);
        drop((device, source));
        leave(target).await;
    });
}

/// A server takes at most 1 MiB by a command.
#[test]
fn every_command_of_a_long_forced_write_is_forced() {
    const LENGTH: usize = 3 << 20;
    seeds(2, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let target = network(&random, std::slice::from_ref(&array));
        let source = initiator().open(&address("")).await.unwrap();
        let device = source.attach().unwrap();
        assert_eq!(device.write(0, filled(LENGTH, &random).freeze(), true).await.result, Ok(LENGTH));
        assert_eq!(array.seen.borrow().fua, 3);
        drop((device, source));
        leave(target).await;
    });
}

#[test]
fn a_server_that_is_short_of_memory_is_busy_but_not_of_what_was_to_be_durable() {
    seeds(1, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let target = network(&random, std::slice::from_ref(&array));
        let device = initiator().open(&address("")).await.unwrap().attach().unwrap();
        let data = || filled(512, &random).freeze();
        let write = async |fua| {
            array.seen.borrow_mut().fail = Some(pinstripe_block::ServiceError::Resources);
            device.write(0, data(), fua).await.result.unwrap_err().kind
        };
        assert_eq!((write(false).await, write(true).await), (DeviceErrorKind::Busy, DeviceErrorKind::Other));
        array.seen.borrow_mut().fail = Some(pinstripe_block::ServiceError::Resources);
        let read = device.read(0, shard::buffer(512)).await;
        assert_eq!(read.result.unwrap_err().kind, DeviceErrorKind::Busy);
        assert_eq!(read.buffer.unwrap().len(), 512);
        array.seen.borrow_mut().fail = Some(pinstripe_block::ServiceError::Resources);
        assert_eq!(device.flush().await.result.unwrap_err().kind, DeviceErrorKind::Other);
        drop(device);
        leave(target).await;
    });
}

#[test]
fn zeroes_and_discards_reach_their_blocks_and_no_others() {
    seeds(3, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let target = network(&random, std::slice::from_ref(&array));
        let source = initiator().open(&address("")).await.unwrap();
        let device = source.attach().unwrap();
        let size = SIZE as u64;
        let mut expected = vec![1; SIZE];
        array.seen.borrow_mut().data.fill(1);
        for (discards, offset, length) in
            [(true, size / 2, 4096), (false, 512, 512), (true, size - 512, 512), (false, size / 4, 1 << 20)]
        {
            let asked =
                if discards { device.discard(offset, length) } else { device.write_zeroes(offset, length) };
            assert_eq!(asked.await.result, Ok(0));
            let start = usize::try_from(offset).unwrap();
            expected[start..start + usize::try_from(length).unwrap()].fill(0);
            assert!(
                array.seen.borrow().data == expected,
                "{length} bytes at {offset}, discarded: {discards}"
            );
        }
        drop((device, source));
        leave(target).await;
    });
}

#[test]
fn what_is_outside_or_no_whole_blocks_is_refused_and_never_sent() {
    seeds(2, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let target = network(&random, std::slice::from_ref(&array));
        let source = initiator().open(&address("")).await.unwrap();
        let device = source.attach().unwrap();
        assert_eq!(device.flush().await.result, Ok(0));
        let size = SIZE as u64;
        let ranges = [
            (1, 512),
            (0, 511),
            (256, 256),
            (size, 512),
            (size - 512, 1024),
            (u64::MAX - 511, 512),
            (size, 1),
        ];
        // Whatever is sent after this is told to be gone.
        cut();
        let kind = |result: Result<usize, pinstripe_runtime::DeviceError>| result.unwrap_err().kind;
        assert_eq!(kind(device.flush().await.result), DeviceErrorKind::Gone);
        for (offset, length) in ranges {
            let words = format!("{length} bytes at {offset}");
            let data = filled(usize::try_from(length).unwrap(), &random);
            let read = device.read(offset, data).await;
            assert_eq!(kind(read.result), DeviceErrorKind::Invalid, "a read of {words}");
            let written = device.write(offset, read.buffer.unwrap().freeze(), true).await.result;
            assert_eq!(kind(written), DeviceErrorKind::Invalid, "a write of {words}");
        }
        for (offset, length) in ranges.into_iter().chain([(0, 0), (512, 0), (512, u64::MAX - 511)]) {
            let words = format!("{length} bytes at {offset}");
            let zeroed = device.write_zeroes(offset, length).await.result;
            assert_eq!(kind(zeroed), DeviceErrorKind::Invalid, "zeroes for {words}");
            let discarded = device.discard(offset, length).await.result;
            assert_eq!(kind(discarded), DeviceErrorKind::Invalid, "a discard of {words}");
        }
        drop((device, source));
        leave(target).await;
    });
}

#[test]
fn a_lost_server_decides_every_request_and_stays_lost() {
    seeds(20, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let target = network(&random, std::slice::from_ref(&array));
        let initiator = initiator();
        let source = initiator.open(&address("")).await.unwrap();
        let device = source.attach().unwrap();
        array.close();
        let mut requests = Vec::new();
        for index in 0..150_u64 {
            requests.push(device.write(index * 8192, filled(8192, &random).freeze(), false));
            requests.push(device.read(index * 8192, shard::buffer(65536)));
        }
        shard::sleep(random.below(2_000_000) as u64).await;
        cut();
        for (index, request) in requests.into_iter().enumerate() {
            let outcome = request.await;
            assert_eq!(outcome.result.unwrap_err().kind, DeviceErrorKind::Gone);
            assert_eq!(outcome.buffer.is_some(), index % 2 == 1, "a read brings its buffer back");
        }
        assert_eq!(device.flush().await.result.unwrap_err().kind, DeviceErrorKind::Gone);
        assert!(source.is_lost() && source.attach().is_err());
        array.open();
        // It returns by a new association, when the server must have let go of the old one.
        let before = shard::now();
        let again = initiator.open(&address("")).await.unwrap();
        assert!(shard::now() - before >= 5_000_000_000, "it came back too early");
        assert_eq!(array.seen.borrow().running, 0);
        let fresh = again.attach().unwrap();
        assert_eq!(fresh.flush().await.result, Ok(0));
        assert_eq!(device.flush().await.result.unwrap_err().kind, DeviceErrorKind::Gone);
        drop((device, source, fresh, again));
        leave(target).await;
    });
}

/// How long a host stays away at least when its device is dropped with a write under way.
fn away_with_writes_under_way() -> u64 {
    let shortest = Rc::new(Cell::new(u64::MAX));
    let least = Rc::clone(&shortest);
    seeds(5, move |random| {
        let least = Rc::clone(&least);
        async move {
            let array = Array::new(&random, SIZE, 0);
            let target = network(&random, std::slice::from_ref(&array));
            let initiator = initiator();
            let source = initiator.open(&address("")).await.unwrap();
            let device = source.attach().unwrap();
            array.close();
            let write = device.write(0, filled(512, &random).freeze(), false);
            shard::sleep(1_000_000).await;
            drop((write, device, source));
            shard::sleep(1_000_000).await;
            array.open();
            let before = shard::now();
            let again = initiator.open(&address("")).await.unwrap();
            least.set(least.get().min(shard::now() - before));
            drop(again);
            leave(target).await;
        }
    });
    shortest.get()
}

#[test]
fn a_device_dropped_with_writes_under_way_does_not_come_back_before_they_must_be_over() {
    assert!(away_with_writes_under_way() >= 5_000_000_000, "it came back too early");
}

#[cfg(feature = "mutants")]
#[test]
fn a_host_that_comes_back_too_early_is_noticed() {
    use pinstripe_nvme::mutants::{Mutant, activate};
    activate(Some(Mutant::ReturnsTooEarly));
    let away = away_with_writes_under_way();
    activate(None);
    assert!(away < 5_000_000_000);
}

#[test]
fn a_server_that_does_not_answer_is_lost_after_a_while() {
    seeds(5, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let target = network(&random, std::slice::from_ref(&array));
        let source = initiator().open(&address("")).await.unwrap();
        let device = source.attach().unwrap();
        array.close();
        let begun = shard::now();
        let outcome = device.write(0, filled(512, &random).freeze(), false).await;
        assert_eq!(outcome.result.unwrap_err().kind, DeviceErrorKind::Gone);
        let seconds = (shard::now() - begun) / 1_000_000_000;
        assert!((30..45).contains(&seconds), "{seconds} s");
        let lost = source.query().await.unwrap_err().to_string();
        assert!(lost.contains("not answered in time"), "{lost}");
        array.open();
        drop((device, source));
        leave(target).await;
    });
}

#[test]
fn a_disk_that_hangs_takes_no_other_one_of_its_server_with_it() {
    seeds(3, |random| async move {
        let arrays = [Array::new(&random, SIZE, 0), Array::new(&random, SIZE, 0)];
        let target = network(&random, &arrays);
        let initiator = initiator();
        let first = initiator.open(&address("")).await.unwrap();
        let second = initiator.open(&Address { namespace: 2, ..address("") }).await.unwrap();
        let (one, two) = (first.attach().unwrap(), second.attach().unwrap());
        arrays[0].close();
        // More than the connection has identifiers.
        let late: Vec<_> = (0..200).map(|_| one.read(0, shard::buffer(512))).collect();
        for _ in 0..12 {
            shard::sleep(10_000_000_000).await;
            let write = two.write(0, filled(512, &random).freeze(), false);
            let write = shard::timeout(1_000_000_000, write).await.expect("no identifier was left");
            assert_eq!(write.result, Ok(512));
        }
        assert!(late.iter().all(Submission::is_pending));
        arrays[0].open();
        for read in late {
            assert_eq!(read.await.result, Ok(512));
        }

        // A server that answers nothing is lost, whatever it serves.
        arrays.iter().for_each(Array::close);
        let begun = shard::now();
        let both = [one.read(0, shard::buffer(512)), two.read(0, shard::buffer(512))];
        for read in both {
            assert_eq!(read.await.result.unwrap_err().kind, DeviceErrorKind::Gone);
        }
        let seconds = (shard::now() - begun) / 1_000_000_000;
        assert!((30..60).contains(&seconds), "{seconds} s");
        arrays.iter().for_each(Array::open);
        drop((one, two, first, second));
        leave(target).await;
    });
}

/// An Attach is answered when older writes of its namespace are over: not while their disk hangs.
#[test]
fn an_attach_that_waits_for_a_disk_that_hangs_takes_no_other_one_of_its_server_with_it() {
    waits_for_a_disk_alone(|server, next| server.attach(next));
}

#[test]
fn giving_up_that_waits_for_a_disk_that_hangs_takes_no_other_one_of_its_server_with_it() {
    waits_for_a_disk_alone(|server, _| server.detach(true));
}

/// One of two devices of a server changes its attachment, while its disk hangs.
fn waits_for_a_disk_alone(change: fn(&dyn Offload, &Attachment) -> Submission) {
    seeds(3, move |random| async move {
        let arrays = [Array::new(&random, SIZE, 0), Array::new(&random, SIZE, 0)];
        let target = Target::new(computing_subsystem(&arrays, None), arrays.to_vec());
        let target = lay(&random, target);
        let initiator = initiator();
        let first = initiator.open(&address("")).await.unwrap();
        let second = initiator.open(&Address { namespace: 2, ..address("") }).await.unwrap();
        let (one, two) = (first.attach().unwrap(), second.attach().unwrap());
        let attachment = |epoch| Attachment {
            array: [7; 16],
            epoch,
            generation: 0,
            peers: Vec::new(),
            takeover: false,
            alone: true,
        };
        for device in [&one, &two] {
            assert_eq!(device.offload().unwrap().attach(&attachment(1)).await.result, Ok(0));
        }
        arrays[0].close();
        let write = one.write(0, filled(512, &random).freeze(), false);
        shard::sleep(1_000_000_000).await;
        let raised = change(one.offload().unwrap(), &attachment(2));
        let lives = async |seconds: u64| {
            for _ in 0..seconds / 10 {
                shard::sleep(10_000_000_000).await;
                let write = two.write(0, filled(512, &random).freeze(), false);
                let write = shard::timeout(1_000_000_000, write).await.expect("it hangs, too");
                assert_eq!(write.result, Ok(512));
            }
        };
        lives(60).await;
        assert!(raised.is_pending() && write.is_pending());
        // Nothing waits for it any more.
        drop((raised, write, one, first));
        lives(60).await;
        arrays[0].open();
        drop((two, second));
        leave(target).await;
    });
}

#[test]
fn of_three_disks_two_may_hang_while_the_third_is_answered() {
    seeds(2, |random| async move {
        let arrays = [0; 3].map(|_| Array::new(&random, SIZE, 0));
        let target = network(&random, &arrays);
        let initiator = initiator();
        let mut sources = Vec::new();
        for namespace in 1..=3 {
            sources.push(initiator.open(&Address { namespace, ..address("") }).await.unwrap());
        }
        let devices: Vec<_> = sources.iter().map(|source| source.attach().unwrap()).collect();
        arrays[..2].iter().for_each(Array::close);
        // Each of them has more than the connection has identifiers.
        let late: Vec<_> = (0..400).map(|number| devices[number % 2].read(0, shard::buffer(512))).collect();
        for _ in 0..12 {
            shard::sleep(10_000_000_000).await;
            let write = devices[2].write(0, filled(512, &random).freeze(), false);
            let write = shard::timeout(1_000_000_000, write).await.expect("no identifier was left");
            assert_eq!(write.result, Ok(512));
        }
        assert!(late.iter().all(Submission::is_pending));
        arrays[..2].iter().for_each(Array::open);
        for read in late {
            assert_eq!(read.await.result, Ok(512));
        }
        drop((devices, sources));
        leave(target).await;
    });
}

#[test]
fn a_disk_that_hangs_is_its_servers_loss_once_no_other_one_of_it_is_used() {
    seeds(2, |random| async move {
        let arrays = [Array::new(&random, SIZE, 0), Array::new(&random, SIZE, 0)];
        let target = network(&random, &arrays);
        let initiator = initiator();
        let first = initiator.open(&address("")).await.unwrap();
        let second = initiator.open(&Address { namespace: 2, ..address("") }).await.unwrap();
        let (one, two) = (first.attach().unwrap(), second.attach().unwrap());
        assert_eq!(two.write(0, filled(512, &random).freeze(), false).await.result, Ok(512));
        drop((two, second));
        arrays[0].close();
        let begun = shard::now();
        let read = shard::timeout(60_000_000_000, one.read(0, shard::buffer(512))).await.expect("it waits");
        assert_eq!(read.result.unwrap_err().kind, DeviceErrorKind::Gone);
        assert!(shard::now() - begun >= 30_000_000_000);
        arrays[0].open();
        drop((one, first));
        leave(target).await;
    });
}

#[test]
fn an_idle_association_is_kept_alive() {
    seeds(2, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let target = network(&random, std::slice::from_ref(&array));
        let source = initiator().open(&address("")).await.unwrap();
        let device = source.attach().unwrap();
        shard::sleep(100_000_000_000).await;
        assert_eq!(device.flush().await.result, Ok(0));
        drop((device, source));
        leave(target).await;
    });
}

#[test]
fn members_on_one_server_share_the_association() {
    seeds(2, |random| async move {
        let arrays = [Array::new(&random, SIZE, 0), Array::new(&random, SIZE, 0)];
        let target = network(&random, &arrays);
        let initiator = initiator();
        let first = initiator.open(&address("")).await.unwrap();
        let second = Address { namespace: 2, ..address("") };
        let second = initiator.open(&second).await.unwrap();
        let (one, two) = (first.attach().unwrap(), second.attach().unwrap());
        assert_eq!(one.write(0, filled(512, &random).freeze(), false).await.result, Ok(512));
        assert!(arrays[1].seen.borrow().data.iter().all(|&byte| byte == 0));
        assert_eq!(two.flush().await.result, Ok(0));
        assert_eq!(target.connections(), 2, "an admin queue and one I/O queue");
        let third = Address { namespace: 3, ..address("") };
        let missing = initiator.open(&third).await.err().unwrap();
        assert!(matches!(missing, InitiatorError::NoNamespace { namespace: 3, .. }), "{missing}");
        drop((one, two, first, second));
        leave(target).await;
    });
}

#[test]
fn a_namespace_that_was_changed_under_its_association_is_gone_and_no_other_one() {
    seeds(4, |random| async move {
        let arrays = [Array::new(&random, SIZE, 0), Array::new(&random, SIZE, 0)];
        let (subsystem, target) = target(&arrays);
        let target = lay(&random, target);
        let initiator = initiator();
        let first = initiator.open(&address("")).await.unwrap();
        let second = initiator.open(&Address { namespace: 2, ..address("") }).await.unwrap();
        let (one, two) = (first.attach().unwrap(), second.attach().unwrap());
        assert_eq!(one.flush().await.result, Ok(0));
        for present in [false, true] {
            subsystem.set_present(1, present);
        }
        shard::sleep(100_000_000).await;
        let read = one.read(0, shard::buffer(512)).await;
        assert_eq!(read.result.unwrap_err().kind, DeviceErrorKind::Gone);
        assert_eq!(read.buffer.map(|buffer| buffer.len()), Some(512));
        assert!(first.is_lost() && first.presence().is_lost() && first.attach().is_err());
        assert!(!second.is_lost());
        assert_eq!(two.write(0, filled(512, &random).freeze(), false).await.result, Ok(512));

        // What stands there now is another source, and is told of as well.
        let again = initiator.open(&address("")).await.unwrap();
        let fresh = again.attach().unwrap();
        assert_eq!(fresh.flush().await.result, Ok(0));
        assert_eq!(target.connections(), 2);
        subsystem.set_present(1, false);
        shard::sleep(100_000_000).await;
        assert_eq!(fresh.flush().await.result.unwrap_err().kind, DeviceErrorKind::Gone);
        assert_eq!(two.flush().await.result, Ok(0));
        drop((one, two, first, second, again, fresh));
        leave(target).await;
    });
}

#[test]
fn of_all_hosts_that_claim_a_namespace_one_succeeds_and_writes_until_it_lets_go() {
    seeds(4, |random| async move {
        let target = network(&random, &[Array::new(&random, SIZE, 0)]);
        let (first, second) = (initiator_of(5), initiator_of(6));
        let first = first.open(&address("")).await.unwrap();
        let second = second.open(&address("")).await.unwrap();
        let again = initiator_of(5).open(&address("")).await.unwrap();
        first.claim(1).await.unwrap();
        first.claim(1).await.unwrap();
        for (other, key) in [(&second, 2), (&again, 3)] {
            let refused = other.claim(key).await.unwrap_err();
            assert!(matches!(refused, InitiatorError::Refused { .. }), "{refused}");
        }
        let (one, two) = (first.attach().unwrap(), second.attach().unwrap());
        assert_eq!(one.write(0, filled(512, &random).freeze(), false).await.result, Ok(512));
        let fenced = two.write(0, filled(512, &random).freeze(), false).await;
        assert_eq!(fenced.result.unwrap_err().kind, DeviceErrorKind::Gone);
        first.disclaim(1).await.unwrap();
        second.claim(2).await.unwrap();
        drop((one, two, first, second, again));
        leave(target).await;
    });
}

#[test]
fn all_namespaces_of_a_server_are_opened_over_one_association() {
    seeds(2, |random| async move {
        let arrays = [Array::new(&random, SIZE, 0), Array::new(&random, SIZE / 2, 0)];
        let target = network(&random, &arrays);
        let sources = initiator().open_all(&address("")).await.unwrap();
        let found: Vec<_> = sources
            .iter()
            .map(|source| (source.info().size, source.identity().nguid().unwrap()[0]))
            .collect();
        assert_eq!(found, [(SIZE as u64, 1), (SIZE as u64 / 2, 2)]);
        assert_eq!(target.connections(), 1);
        drop(sources);
        leave(target).await;
    });
}

#[test]
fn discovery_names_the_subsystem() {
    seeds(2, |random| async move {
        let target = network(&random, &[Array::new(&random, SIZE, 0)]);
        let entries = initiator().discover(&address("")).await.unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].subsystem.as_str(), entries[0].address.port()), (NQN, 4420));
        leave(target).await;
    });
}

#[test]
fn a_server_that_is_not_there_is_an_error_and_no_more() {
    seeds(1, |random| async move {
        let target = network(&random, &[Array::new(&random, SIZE, 0)]);
        NETWORK.with_borrow_mut(|network| network.as_mut().unwrap().refuse = true);
        let error = initiator().open(&address("")).await.err().unwrap();
        assert!(matches!(error, InitiatorError::Connect { .. }), "{error}");
        leave(target).await;
    });
}
