//! Authentication: our two ends against each other, and the target against a host that says what it likes.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pinstripe_nvme::auth::exchange::{HostEnd, HostStep};
use pinstripe_nvme::auth::{
    Authentication, AuthenticationError, Calculator, Entry, Group, Hash, Keyring, Names, NoRandom,
    Random as RandomBytes, Secret,
};
use pinstripe_nvme::controller::{Subsystem, Target};
use pinstripe_nvme::initiator::{Initiator, InitiatorError, Options};
use pinstripe_nvme::wire::auth::{
    Envelope, Failed, MESSAGE_BYTES_MAX, Message, receive_command, send_command,
};
use pinstripe_nvme::wire::command::{Command, Sgl, admin, fabrics, nvm};
use pinstripe_nvme::wire::fabrics::{CONTROLLER_ANY, property};
use pinstripe_nvme::wire::offload::{Query, admin as offload_admin, opcode};
use pinstripe_nvme::wire::status::Status;
use pinstripe_runtime::{DeviceErrorKind, DeviceSource, shard};

use crate::both::{Wires, address, filled, lay, leave};
use crate::host::{Heard, Host, identify};
use crate::leaving_hosts::{go_on, heir, leave_all};
use crate::offload::computing_subsystem;
use crate::world::{Array, Random};
use crate::{NQN, seeds, target_of};

const SIZE: usize = 1 << 20;
const HOST: &str = "nqn.2026-01.com.example:host5";
const FAILED: Message = Message::Failure1(Failed::AUTHENTICATION);

/// Bytes that depend on the seed alone.
struct Seeded(AtomicU64);

impl RandomBytes for Seeded {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), NoRandom> {
        for byte in bytes {
            let state = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            *byte = (state ^ state >> 31).wrapping_mul(0x94d0_49bb_1331_11eb).to_be_bytes()[0];
        }
        Ok(())
    }
}

fn secret(first: u8) -> Secret {
    Secret::of_key(&[first; 32], first.is_multiple_of(2).then_some(Hash::Sha256)).unwrap()
}

fn knows(random: &Random, entry: Entry) -> Authentication {
    let seed = random.below(usize::MAX) as u64;
    Authentication::with_random(Keyring::new(vec![entry]), Box::new(Seeded(AtomicU64::new(seed))))
}

fn plain(peer: &str) -> Entry {
    Entry { groups: vec![Group::Null], ..Entry::new(peer, secret(1), None) }
}

/// A target that knows [`HOST`] by `entry`, with one namespace.
fn guarded(random: &Rc<Random>, entry: Entry) -> (Array, Arc<Subsystem>, Target<Array>) {
    let array = Array::new(random, SIZE, 0);
    let (subsystem, target) = target_of(std::slice::from_ref(&array), Some(knows(random, entry)));
    (array, subsystem, lay(random, target))
}

fn initiator(random: &Random, entry: Option<Entry>) -> Arc<Initiator> {
    let authentication = entry.map(|entry| Arc::new(knows(random, entry)));
    let options = Options { authentication, ..Options::new(HOST.to_owned(), [5; 16], 1) };
    Initiator::new(options, Arc::new(Wires))
}

/// What the initiator fails with.
async fn refusal(initiator: &Arc<Initiator>) -> AuthenticationError {
    match initiator.open(&address("")).await.err().unwrap() {
        InitiatorError::Authentication { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

#[test]
fn a_host_with_the_keys_writes_and_reads_one_way_and_both_ways() {
    seeds(12, |random| async move {
        let controller = (random.below(2) == 0).then(|| secret(2));
        let groups = [vec![Group::Null], Group::ALL.to_vec()][random.below(2)].clone();
        let host =
            Entry { groups, ..Entry::new(HOST, secret(random.below(9).to_le_bytes()[0] + 10), controller) };
        let (_, _, target) = guarded(&random, host.clone());
        let options = ["", "&hdgst=1&ddgst=1"][random.below(2)];
        let initiator = initiator(&random, Some(Entry { peer: NQN.to_owned(), ..host }));
        let source = initiator.open(&address(options)).await.unwrap();
        let device = source.attach().unwrap();
        let data = filled(128 << 10, &random).freeze();
        assert_eq!(device.write(4096, data.clone(), true).await.result, Ok(128 << 10));
        let outcome = device.read(4096, shard::buffer(128 << 10)).await;
        assert_eq!(outcome.result, Ok(128 << 10));
        assert!(*outcome.buffer.unwrap() == *data);
        assert_eq!(target.connections(), 2);
        drop((device, source));
        leave(target).await;
    });
}

#[test]
fn a_host_with_another_key_or_none_gets_nothing_and_leaves_nothing() {
    seeds(4, |random| async move {
        let (array, subsystem, target) = guarded(&random, plain(HOST));
        let other = Entry { host: secret(3), ..plain(NQN) };
        let refused = AuthenticationError::Refused(Failed::AUTHENTICATION);
        assert_eq!(refusal(&initiator(&random, Some(other))).await, refused);
        assert_eq!(refusal(&initiator(&random, None)).await, AuthenticationError::NoSecret);
        let elsewhere = Entry { peer: "nqn.2026-01.com.example:other".to_owned(), ..plain(NQN) };
        assert_eq!(refusal(&initiator(&random, Some(elsewhere))).await, AuthenticationError::NoSecret);
        shard::sleep(6_000_000_000).await;
        assert_eq!((subsystem.controller_count(), target.connections()), (0, 0));
        assert_eq!(Rc::strong_count(&array.seen), 2);
        leave(target).await;
    });
}

#[test]
fn a_host_without_a_line_is_refused_by_connect() {
    seeds(2, |random| async move {
        let (_, _, target) = guarded(&random, plain("nqn.2026-01.com.example:host6"));
        let error = initiator(&random, Some(plain(NQN))).open(&address("")).await.err().unwrap();
        assert!(
            matches!(error, InitiatorError::Refused { status: Status::CONNECT_INVALID_HOST, .. }),
            "{error}"
        );
        leave(target).await;
    });
}

#[test]
fn a_server_that_cannot_prove_its_identity_is_not_used() {
    seeds(4, |random| async move {
        let (_, subsystem, target) = guarded(&random, Entry { controller: Some(secret(4)), ..plain(HOST) });
        let mutual = || Some(Entry { controller: Some(secret(2)), ..plain(NQN) });
        assert_eq!(refusal(&initiator(&random, mutual())).await, AuthenticationError::Unproven);
        leave(target).await;
        assert_eq!(subsystem.controller_count(), 0);
        // A server that doesn't ask, or an attacker that takes the question away.
        let (_, target) = crate::target(&[Array::new(&random, SIZE, 0)]);
        let target = lay(&random, target);
        assert_eq!(refusal(&initiator(&random, mutual())).await, AuthenticationError::NotAsked);
        let one_way = initiator(&random, Some(plain(NQN))).open(&address("")).await.unwrap();
        drop(one_way);
        let any = Entry { peer: "*".to_owned(), ..mutual().unwrap() };
        assert_eq!(refusal(&initiator(&random, Some(any.clone()))).await, AuthenticationError::NotAsked);
        assert!(initiator(&random, Some(any)).discover(&address("")).await.is_ok());
        leave(target).await;
    });
}

#[test]
fn discovery_is_for_hosts_that_authenticate_too() {
    use pinstripe_nvme::wire::DISCOVERY_NQN;
    seeds(2, |random| async move {
        let (_, _, target) = guarded(&random, Entry { controller: Some(secret(2)), ..plain(HOST) });
        let known = Entry { controller: Some(secret(2)), ..plain(DISCOVERY_NQN) };
        let entries = initiator(&random, Some(known)).discover(&address("")).await.unwrap();
        assert_eq!(entries[0].subsystem, NQN);
        let error = initiator(&random, None).discover(&address("")).await.err().unwrap();
        assert!(matches!(error, InitiatorError::Authentication { .. }), "{error}");
        leave(target).await;
    });
}

/// A host that speaks in bytes and has a key.
struct Prover {
    authentication: Authentication,
    names: Names,
}

impl Prover {
    fn new(random: &Random, entry: Entry) -> Self {
        let names = Names { host: HOST.to_owned(), subsystem: NQN.to_owned() };
        Self { authentication: knows(random, entry), names }
    }

    /// Proves its identity; what the target said last, and all that was sent.
    async fn prove(&self, host: &mut Host) -> (Message, Vec<Vec<u8>>) {
        let entry = &self.authentication.peer(NQN).unwrap();
        let (mut end, mut message) = HostEnd::begin(&self.authentication, entry, &self.names).unwrap();
        let mut sent = Vec::new();
        loop {
            sent.push(message.clone());
            assert_eq!(tell(host, &message).await, Status::SUCCESS);
            let answer = fetch(host).await.unwrap();
            message = match end.take(&self.authentication, &answer) {
                Ok(HostStep::Reply(reply)) => reply,
                Ok(HostStep::Done(last)) => {
                    if let Some(last) = last {
                        assert_eq!(tell(host, &last).await, Status::SUCCESS);
                        sent.push(last);
                    }
                    return (Envelope::decode(&answer).unwrap().message, sent);
                }
                Err(_) => return (Envelope::decode(&answer).unwrap().message, sent),
            };
        }
    }
}

async fn tell(host: &mut Host, message: &[u8]) -> Status {
    host.status(send_command(u32::try_from(message.len()).unwrap()), message).await
}

async fn fetch(host: &mut Host) -> Result<Vec<u8>, Status> {
    host.read(receive_command(MESSAGE_BYTES_MAX), MESSAGE_BYTES_MAX).await
}

/// An admin queue that hasn't authenticated.
async fn connected(random: &Rc<Random>, target: &Target<Array>) -> Host {
    let mut admin = Host::initialize(random, target, 0).await;
    let completion = admin.connect(5, 0, CONTROLLER_ANY, 0).await;
    assert_eq!(completion.status(), Status::SUCCESS);
    assert_eq!(completion.result_dword() >> 16, 0b10, "ATR isn't asked for");
    admin
}

#[test]
fn before_the_proof_nothing_is_carried_out() {
    seeds(4, |random| async move {
        let (_, subsystem, target) = guarded(&random, plain(HOST));
        let mut host = connected(&random, &target).await;
        assert_eq!(subsystem.hosts(), [""; 0], "it would keep the array from being stopped");
        let get = Command::fabrics(fabrics::PROPERTY_GET).with_dword(11, property::VS);
        assert_eq!(host.status(get, &[]).await, Status::SUCCESS);
        let enable = Command::fabrics(fabrics::PROPERTY_SET).with_dword(11, property::CC).with_dword(12, 1);
        let event = Command::new(admin::ASYNC_EVENT, 0);
        let log = Command::new(admin::GET_LOG_PAGE, 0).with_dword(10, 2 | 127 << 16);
        let keep_alive = Command::new(admin::KEEP_ALIVE, 0);
        let vendor = Command::new(0xc5, 0);
        let disconnect = Command::fabrics(fabrics::DISCONNECT);
        for command in [enable, event, identify(1, 0), log, keep_alive, vendor, disconnect] {
            assert_eq!(host.status(command, &[]).await, Status::AUTHENTICATION_REQUIRED, "{command:?}");
        }
        assert_eq!(host.status(receive_command(4096), &[]).await, Status::COMMAND_SEQUENCE);
        // In the middle of it neither.
        let prover = Prover::new(&random, plain(NQN));
        let entry = &prover.authentication.peer(NQN).unwrap();
        let (_, negotiate) = HostEnd::begin(&prover.authentication, entry, &prover.names).unwrap();
        assert_eq!(tell(&mut host, &negotiate).await, Status::SUCCESS);
        fetch(&mut host).await.unwrap();
        assert_eq!(host.status(enable, &[]).await, Status::AUTHENTICATION_REQUIRED);
        host.close();
        let mut host = connected(&random, &target).await;
        assert!(matches!(prover.prove(&mut host).await.0, Message::Success1 { response: None, .. }));
        assert_eq!(subsystem.hosts(), [HOST]);
        host.enable().await;
        assert!(host.read(identify(1, 0), 4096).await.is_ok());
        host.close();
        leave(target).await;
    });
}

#[test]
fn an_io_queue_proves_itself_and_is_not_let_in_by_the_admin_queue() {
    seeds(6, |random| async move {
        let (array, _, target) = guarded(&random, plain(HOST));
        let prover = Prover::new(&random, plain(NQN));
        let mut admin = connected(&random, &target).await;
        prover.prove(&mut admin).await;
        admin.enable().await;
        let mut io = admin.io(&random, &target, 5, 1, 0).await;
        let write = Command::new(nvm::WRITE, 1).with_blocks(0, 1);
        let vendor = Command::new(0x81, 1);
        for command in [write, Command::new(nvm::READ, 1), Command::new(nvm::FLUSH, 1), vendor] {
            assert_eq!(io.status(command, &[7; 512]).await, Status::AUTHENTICATION_REQUIRED);
        }
        assert!(array.seen.borrow().data.iter().all(|&byte| byte == 0));
        // Data that isn't in the capsule isn't asked for either.
        let large = Command { sgl: Sgl::transport(8192), ..write.with_blocks(0, 16) };
        assert_eq!(io.status(large, &[]).await, Status::AUTHENTICATION_REQUIRED);
        prover.prove(&mut io).await;
        assert_eq!(io.status(write, &[7; 512]).await, Status::SUCCESS);
        assert_eq!(array.seen.borrow().data[..512], [7; 512]);
        // A message may also come in PDUs of its own.
        let entry = &prover.authentication.peer(NQN).unwrap();
        let (_, negotiate) = HostEnd::begin(&prover.authentication, entry, &prover.names).unwrap();
        let length = u32::try_from(negotiate.len()).unwrap();
        io.command(Command { sgl: Sgl::transport(length), ..send_command(length) }, &[]).await;
        let Heard::Ready(ready) = io.hear().await else { panic!("no R2T") };
        io.answer(&ready, 0, &negotiate, true).await;
        assert_eq!(io.completion().await.status(), Status::SUCCESS);
        assert!(fetch(&mut io).await.is_ok());
        admin.close();
        leave(target).await;
    });
}

#[test]
fn parts_that_come_before_the_proof_say_nothing_of_the_link() {
    seeds(2, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let arrays = std::slice::from_ref(&array);
        let subsystem = computing_subsystem(arrays, Some(knows(&random, plain(HOST))));
        let target = lay(&random, Target::new(subsystem, arrays.to_vec()));
        let prover = Prover::new(&random, plain(NQN));
        let mut admin = connected(&random, &target).await;
        prover.prove(&mut admin).await;
        admin.enable().await;
        let mut io = admin.io(&random, &target, 5, 1, 0).await;
        // Enough for a sample, in capsules.
        let (part, parts) = (vec![7; 32 << 10], 65);
        let peer = Command::new(opcode::PEER, 1);
        for _ in 0..parts {
            assert_eq!(io.status(peer, &part).await, Status::AUTHENTICATION_REQUIRED);
        }
        assert_eq!(free_to_receive(&mut admin).await, 0);
        prover.prove(&mut io).await;
        for _ in 0..parts {
            assert_ne!(io.status(peer, &part).await, Status::SUCCESS, "nothing is attached");
        }
        assert_ne!(free_to_receive(&mut admin).await, 0);
        admin.close();
        leave(target).await;
    });
}

async fn free_to_receive(admin_queue: &mut Host) -> u64 {
    let query = Command::new(offload_admin::QUERY, 1).with_dword(10, 4096);
    let answer = admin_queue.read(query, 4096).await.unwrap();
    Query::parse(answer.first_chunk().unwrap()).free_to_receive
}

#[test]
fn a_wrong_reply_is_reported_and_ends_the_association() {
    seeds(4, |random| async move {
        let (_, subsystem, target) = guarded(&random, plain(HOST));
        let wrong = Prover::new(&random, Entry { host: secret(9), ..plain(NQN) });
        let mut admin = connected(&random, &target).await;
        assert_eq!(wrong.prove(&mut admin).await.0, FAILED);
        assert!(matches!(admin.hear().await, Heard::Closed));
        shard::sleep(1_000_000).await;
        assert_eq!(subsystem.controller_count(), 0);
        leave(target).await;
    });
}

#[test]
fn what_was_overheard_is_refused_when_it_is_sent_again() {
    seeds(4, |random| async move {
        let (_, _, target) = guarded(&random, plain(HOST));
        let mut admin = connected(&random, &target).await;
        let (_, sent) = Prover::new(&random, plain(NQN)).prove(&mut admin).await;
        let mut again = connected(&random, &target).await;
        assert_eq!(tell(&mut again, &sent[0]).await, Status::SUCCESS);
        fetch(&mut again).await.unwrap();
        assert_eq!(tell(&mut again, &sent[1]).await, Status::SUCCESS);
        let answer = fetch(&mut again).await.unwrap();
        assert_eq!(Envelope::decode(&answer).unwrap().message, FAILED);
        assert!(matches!(again.hear().await, Heard::Closed));
        admin.close();
        leave(target).await;
    });
}

#[test]
fn a_connection_that_does_not_finish_authentication_is_cut_off() {
    seeds(3, |random| async move {
        let (_, subsystem, target) = guarded(&random, plain(HOST));
        let mut silent = connected(&random, &target).await;
        let mut begun = connected(&random, &target).await;
        let prover = Prover::new(&random, plain(NQN));
        let entry = &prover.authentication.peer(NQN).unwrap();
        let (_, negotiate) = HostEnd::begin(&prover.authentication, entry, &prover.names).unwrap();
        assert_eq!(tell(&mut begun, &negotiate).await, Status::SUCCESS);
        shard::sleep(29_000_000_000).await;
        assert_eq!(subsystem.controller_count(), 2);
        shard::sleep(2_000_000_000).await;
        assert!(matches!(silent.hear().await, Heard::Closed));
        assert!(matches!(begun.hear().await, Heard::Closed));
        assert_eq!(subsystem.controller_count(), 0);
        // A host that computes for long isn't silent: keep-alive begins with the proof.
        let mut slow = Host::initialize(&random, &target, 0).await;
        assert_eq!(slow.connect(5, 0, CONTROLLER_ANY, 5000).await.status(), Status::SUCCESS);
        shard::sleep(20_000_000_000).await;
        assert!(matches!(prover.prove(&mut slow).await.0, Message::Success1 { .. }));
        shard::sleep(4_000_000_000).await;
        slow.enable().await;
        shard::sleep(6_000_000_000).await;
        assert!(matches!(slow.hear().await, Heard::Closed));
        // A host that has proved its identity stays, unless it begins again and doesn't end.
        let mut admin = connected(&random, &target).await;
        prover.prove(&mut admin).await;
        shard::sleep(100_000_000_000).await;
        assert_eq!(tell(&mut admin, &negotiate).await, Status::SUCCESS);
        shard::sleep(31_000_000_000).await;
        assert!(matches!(admin.hear().await, Heard::Closed));
        leave(target).await;
    });
}

#[test]
fn queues_without_a_command_since_their_proof_are_left_at_once() {
    seeds(4, |random| async move {
        let (_, _, target) = guarded(&random, plain(HOST));
        let prover = Prover::new(&random, plain(NQN));
        let mut admin = connected(&random, &target).await;
        prover.prove(&mut admin).await;
        admin.enable().await;
        let mut unused = admin.io(&random, &target, 5, 1, 0).await;
        prover.prove(&mut unused).await;
        let mut used = admin.io(&random, &target, 5, 2, 0).await;
        prover.prove(&mut used).await;
        assert_eq!(used.status(Command::new(nvm::FLUSH, 1), &[]).await, Status::SUCCESS);
        // As soon as its proof is done.
        let mut late = admin.io(&random, &target, 5, 3, 0).await;
        let proving = shard::spawn_joined(async move {
            shard::sleep(1000).await;
            prover.prove(&mut late).await;
        });
        let (took, left) = leave_all(&target).await;
        assert_eq!((took, left.len()), (1000, 4));
        proving.join().await;
        leave(target).await;
    });
}

#[test]
fn a_host_that_goes_from_the_keys_is_cut_off_and_one_that_comes_may_connect() {
    seeds(4, |random| async move {
        let (_, subsystem, target) = guarded(&random, plain(HOST));
        let prover = Prover::new(&random, plain(NQN));
        let mut admin = connected(&random, &target).await;
        prover.prove(&mut admin).await;
        admin.enable().await;
        let mut io = admin.io(&random, &target, 5, 1, 0).await;
        prover.prove(&mut io).await;
        let mut begun = connected(&random, &target).await;
        let replace = |entries: &[Entry]| subsystem.replace_keys(Keyring::new(entries.to_vec()));
        let other = plain("nqn.2026-01.com.example:host6");
        assert!(replace(&[other.clone(), plain(HOST)]).is_empty());
        assert_eq!(io.status(Command::new(nvm::FLUSH, 1), &[]).await, Status::SUCCESS);

        let gone = BTreeSet::from([HOST.to_owned()]);
        assert_eq!(replace(std::slice::from_ref(&other)), gone);
        shard::sleep(1_000_000_000).await;
        assert_eq!((subsystem.controller_count(), target.connections()), (0, 0));
        for host in [&mut admin, &mut io, &mut begun] {
            assert!(matches!(host.hear().await, Heard::Closed));
        }
        let error = initiator(&random, Some(plain(NQN))).open(&address("")).await.err().unwrap();
        assert!(
            matches!(error, InitiatorError::Refused { status: Status::CONNECT_INVALID_HOST, .. }),
            "{error}"
        );

        // Another secret is another key.
        assert!(replace(&[plain(HOST)]).is_empty());
        let mut admin = connected(&random, &target).await;
        prover.prove(&mut admin).await;
        assert_eq!(subsystem.hosts(), [HOST]);
        let known = Entry { host: secret(3), ..plain(HOST) };
        assert_eq!(replace(std::slice::from_ref(&known)), gone);
        assert!(matches!(admin.hear().await, Heard::Closed));
        let refused = AuthenticationError::Refused(Failed::AUTHENTICATION);
        assert_eq!(refusal(&initiator(&random, Some(plain(NQN)))).await, refused);
        let mut admin = connected(&random, &target).await;
        Prover::new(&random, Entry { peer: NQN.to_owned(), ..known }).prove(&mut admin).await;
        assert_eq!(subsystem.hosts(), [HOST]);
        leave(target).await;
    });
}

#[test]
fn a_host_that_has_gone_from_the_keys_does_not_come_through_a_change_of_the_process() {
    seeds(4, |random| async move {
        let (array, subsystem, target) = guarded(&random, plain(HOST));
        let prover = Prover::new(&random, plain(NQN));
        let mut admin = connected(&random, &target).await;
        prover.prove(&mut admin).await;
        let (_, left) = leave_all(&target).await;
        assert_eq!(left.len(), 1);
        let known = Some(knows(&random, plain("nqn.2026-01.com.example:host6")));
        let (subsystem, next) = heir(&array, known, &subsystem, &left);
        go_on(&next, left);
        shard::sleep(1_000_000_000).await;
        assert_eq!((subsystem.controller_count(), next.connections()), (0, 0));
        assert!(matches!(admin.hear().await, Heard::Closed));
        leave(target).await;
        next.stop().await;
    });
}

#[test]
fn a_queue_is_not_left_in_the_midst_of_another_proof() {
    seeds(40, |random| async move {
        let (array, subsystem, target) = guarded(&random, plain(HOST));
        let prover = Prover::new(&random, plain(NQN));
        let mut admin = connected(&random, &target).await;
        prover.prove(&mut admin).await;
        let entry = &prover.authentication.peer(NQN).unwrap();
        let (_, negotiate) = HostEnd::begin(&prover.authentication, entry, &prover.names).unwrap();
        // What begins one, or what shuts the gate.
        let message = [negotiate, vec![0xff; 16]][random.below(2)].clone();
        let is_taken = Rc::new(Cell::new(false));
        let (flag, turns) = (Rc::clone(&is_taken), random.below(12));
        let host = shard::spawn_joined(async move {
            for _ in 0..turns {
                shard::yield_now().await;
            }
            assert_eq!(tell(&mut admin, &message).await, Status::SUCCESS);
            flag.set(true);
        });
        for _ in 0..random.below(12) {
            shard::yield_now().await;
        }
        let (_, left) = leave_all(&target).await;
        assert_eq!(left.is_empty(), is_taken.get());
        let known = Some(knows(&random, plain(HOST)));
        let (_, next) = heir(&array, known, &subsystem, &left);
        go_on(&next, left);
        host.join().await;
        leave(target).await;
        next.stop().await;
    });
}

#[test]
fn a_running_queue_may_authenticate_again_and_must_not_fail_in_it() {
    seeds(4, |random| async move {
        let (_, _, target) = guarded(&random, Entry { controller: Some(secret(2)), ..plain(HOST) });
        let known = Entry { controller: Some(secret(2)), ..plain(NQN) };
        let right = Prover::new(&random, known.clone());
        let wrong = Prover::new(&random, Entry { host: secret(8), ..known });
        let mut admin = connected(&random, &target).await;
        right.prove(&mut admin).await;
        admin.enable().await;
        let mut io = admin.io(&random, &target, 5, 1, 0).await;
        let write = Command::new(nvm::WRITE, 1).with_blocks(0, 1);
        for _ in 0..3 {
            right.prove(&mut io).await;
            assert_eq!(io.status(write, &[7; 512]).await, Status::SUCCESS);
        }
        assert_eq!(wrong.prove(&mut io).await.0, FAILED);
        assert!(matches!(io.hear().await, Heard::Closed));
        assert!(admin.read(identify(1, 0), 4096).await.is_ok());
        right.prove(&mut admin).await;
        assert_eq!(wrong.prove(&mut admin).await.0, FAILED);
        assert!(matches!(admin.hear().await, Heard::Closed));
        leave(target).await;
    });
}

#[test]
fn a_target_without_secrets_has_no_such_commands() {
    seeds(1, |random| async move {
        let (_, target) = crate::target(&[Array::new(&random, SIZE, 0)]);
        let mut admin = Host::admin(&random, &target, 5).await;
        assert_eq!(tell(&mut admin, &[0; 16]).await, Status::INVALID_OPCODE);
        admin.close();
        target.stop().await;
    });
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    seeds(2, |random| async move {
        let (_, _, target) = guarded(&random, plain(HOST));
        let mut host = connected(&random, &target).await;
        assert_eq!(host.status(send_command(16), &[0; 8]).await, Status::DATA_LENGTH_INVALID);
        assert_eq!(host.status(send_command(0), &[]).await, Status::INVALID_FIELD);
        assert_eq!(host.status(send_command(16).with_dword(10, 0), &[0; 16]).await, Status::INVALID_FIELD);
        let prover = Prover::new(&random, plain(NQN));
        let entry = &prover.authentication.peer(NQN).unwrap();
        let (_, negotiate) = HostEnd::begin(&prover.authentication, entry, &prover.names).unwrap();
        assert_eq!(tell(&mut host, &negotiate).await, Status::SUCCESS);
        // It isn't lost by being asked for with too little room.
        assert_eq!(host.read(receive_command(16), 16).await, Err(Status::INVALID_FIELD));
        assert_eq!(host.read(receive_command(4096), 512).await, Err(Status::INVALID_FIELD));
        assert!(fetch(&mut host).await.is_ok());
        // What makes no sense is told so.
        let mut host = connected(&random, &target).await;
        assert_eq!(tell(&mut host, &[1; 16]).await, Status::SUCCESS);
        let answer = Envelope::decode(&fetch(&mut host).await.unwrap()).unwrap();
        assert_eq!(answer.message, Message::Failure1(Failed::PAYLOAD));
        assert!(matches!(host.hear().await, Heard::Closed));
        leave(target).await;
    });
}

#[test]
fn a_queue_that_fails_to_authenticate_loses_the_association() {
    seeds(4, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let (_, target) = target_of(std::slice::from_ref(&array), Some(knows(&random, plain(HOST))));
        let target = lay(&random, target);
        let source = initiator(&random, Some(plain(NQN))).open(&address("")).await.unwrap();
        // From now on the same address is another server, which knows the host by another secret.
        let other = Entry { host: secret(7), ..plain(HOST) };
        let (_, impostor) = target_of(&[Array::new(&random, SIZE, 0)], Some(knows(&random, other)));
        lay(&random, impostor.clone());
        let device = source.attach().unwrap();
        let outcome = device.write(0, filled(512, &random).freeze(), false).await;
        assert_eq!(outcome.result.unwrap_err().kind, DeviceErrorKind::Gone);
        drop((device, source));
        impostor.stop().await;
        leave(target).await;
    });
}

#[test]
fn a_stranger_that_names_a_host_and_goes_keeps_it_from_nothing() {
    seeds(4, |random| async move {
        let (_, _, target) = guarded(&random, plain(HOST));
        let mut stranger = connected(&random, &target).await;
        // More answers than the connection takes.
        let get = Command::fabrics(fabrics::PROPERTY_GET).with_dword(11, property::VS);
        for number in 0..3000 {
            stranger.command(get, &[]).await;
            if number % 16 == 0 {
                shard::sleep(1_000).await;
            }
        }
        stranger.send(&[0xff; 8]).await;
        shard::sleep(1_000_000).await;
        let before = shard::now();
        let source = initiator(&random, Some(plain(NQN))).open(&address("")).await.unwrap();
        assert!(shard::now() - before < 1_000_000_000, "it waited for the stranger");
        drop(source);
        stranger.close();
        leave(target).await;
    });
}

/// An I/O queue of `admin`'s association that hasn't authenticated.
async fn unproven(random: &Rc<Random>, target: &Target<Array>, admin: &Host) -> (Host, Status) {
    let mut io = Host::initialize(random, target, 0).await;
    let status = io.connect(5, 1, admin.controller, 0).await.status();
    (io, status)
}

/// Whether a host that has proved its identity gets its queue, after a stranger has asked for that number.
fn the_owner_gets_its_queue() -> bool {
    let owned = Rc::new(std::cell::Cell::new(true));
    let flag = Rc::clone(&owned);
    seeds(2, move |random| {
        let flag = Rc::clone(&flag);
        async move {
            let (_, subsystem, target) = guarded(&random, plain(HOST));
            let prover = Prover::new(&random, plain(NQN));
            let mut admin = connected(&random, &target).await;
            prover.prove(&mut admin).await;
            admin.enable().await;
            let (mut squatter, status) = unproven(&random, &target, &admin).await;
            assert_eq!(status, Status::SUCCESS);
            let (mut io, status) = unproven(&random, &target, &admin).await;
            flag.set(flag.get() && status == Status::SUCCESS);
            if status == Status::SUCCESS {
                prover.prove(&mut io).await;
                let read = Command::new(nvm::READ, 1).with_blocks(0, 1);
                assert_eq!(io.read(read, 512).await.unwrap().len(), 512);
                // Too late: it is another's now, with a proof or without.
                assert_eq!(unproven(&random, &target, &admin).await.1, Status::CONNECT_INVALID_PARAMETERS);
                let entry = &prover.authentication.peer(NQN).unwrap();
                let (mut end, message) =
                    HostEnd::begin(&prover.authentication, entry, &prover.names).unwrap();
                assert_eq!(tell(&mut squatter, &message).await, Status::SUCCESS);
                let challenge = fetch(&mut squatter).await.unwrap();
                let Ok(HostStep::Reply(reply)) = end.take(&prover.authentication, &challenge) else {
                    panic!("no reply")
                };
                assert_eq!(tell(&mut squatter, &reply).await, Status::SUCCESS);
                squatter.command(Command { sgl: Sgl::transport(4096), ..receive_command(4096) }, &[]).await;
                assert!(matches!(squatter.hear().await, Heard::Closed), "one queue is two connections");
                let read = Command::new(nvm::READ, 1).with_blocks(1, 1);
                assert_eq!(io.read(read, 512).await.unwrap().len(), 512);
            }
            admin.close();
            squatter.close();
            io.close();
            shard::sleep(6_000_000_000).await;
            assert_eq!(subsystem.controller_count(), 0);
            leave(target).await;
        }
    });
    owned.get()
}

#[test]
fn a_queue_that_is_proven_is_not_kept_away_by_one_that_is_not() {
    assert!(the_owner_gets_its_queue());
}

#[cfg(feature = "mutants")]
#[test]
fn a_number_that_is_held_without_a_proof_is_noticed() {
    use pinstripe_nvme::mutants::{Mutant, activate};
    activate(Some(Mutant::NumberHeldUnproven));
    let owned = the_owner_gets_its_queue();
    activate(None);
    assert!(!owned);
}

/// Computes when it is told to.
#[derive(Clone, Default)]
struct Later(Arc<std::sync::atomic::AtomicBool>, Arc<AtomicU64>);

impl Calculator for Later {
    fn compute(&self, work: Box<dyn FnOnce() + Send>) -> Pin<Box<dyn Future<Output = ()>>> {
        let Self(closed, done) = self.clone();
        Box::pin(async move {
            while closed.load(Ordering::SeqCst) {
                shard::sleep(1_000_000).await;
            }
            work();
            done.fetch_add(1, Ordering::SeqCst);
        })
    }
}

#[test]
fn while_a_strangers_proof_is_computed_others_are_served() {
    seeds(3, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let later = Later::default();
        let seed = Box::new(Seeded(AtomicU64::new(7)));
        let keys = Authentication::with(Keyring::new(vec![plain(HOST)]), seed, Box::new(later.clone()));
        let (_, target) = target_of(std::slice::from_ref(&array), Some(keys));
        let target = lay(&random, target);
        let prover = Prover::new(&random, plain(NQN));
        let mut admin = connected(&random, &target).await;
        prover.prove(&mut admin).await;
        admin.enable().await;
        let (mut io, _) = unproven(&random, &target, &admin).await;
        prover.prove(&mut io).await;
        let done = later.1.load(Ordering::SeqCst);
        later.0.store(true, Ordering::SeqCst);
        let mut strangers = Vec::new();
        for _ in 0..20 {
            let mut stranger = connected(&random, &target).await;
            let entry = &prover.authentication.peer(NQN).unwrap();
            let (_, negotiate) = HostEnd::begin(&prover.authentication, entry, &prover.names).unwrap();
            stranger.command(send_command(u32::try_from(negotiate.len()).unwrap()), &negotiate).await;
            strangers.push(stranger);
        }
        let before = shard::now();
        let read = Command::new(nvm::READ, 1).with_blocks(0, 1);
        assert_eq!(io.read(read, 512).await.unwrap().len(), 512);
        assert!(shard::now() - before < 1_000_000, "it waits for proofs of others");
        // For hosts that go before it is their turn, nothing is computed.
        for stranger in &strangers {
            stranger.close();
        }
        shard::sleep(1_000_000_000).await;
        assert_eq!(target.connections(), 2);
        later.0.store(false, Ordering::SeqCst);
        shard::sleep(1_000_000_000).await;
        assert_eq!(later.1.load(Ordering::SeqCst), done);
        leave(target).await;
    });
}

/// Names go in clear, so that anyone can connect in this one.
#[test]
fn a_host_whose_proof_takes_longer_than_its_keep_alive_is_not_ended_by_another_connect_of_its_name() {
    seeds(3, |random| async move {
        let array = Array::new(&random, SIZE, 0);
        let later = Later::default();
        let seed = Box::new(Seeded(AtomicU64::new(7)));
        let keys = Authentication::with(Keyring::new(vec![plain(HOST)]), seed, Box::new(later.clone()));
        let (_, target) = target_of(std::slice::from_ref(&array), Some(keys));
        let target = lay(&random, target);
        let mut host = Host::initialize(&random, &target, 0).await;
        assert_eq!(host.connect(5, 0, CONTROLLER_ANY, 2000).await.status(), Status::SUCCESS);
        let prover = Prover::new(&random, plain(NQN));
        later.0.store(true, Ordering::SeqCst);
        let proving = shard::spawn_joined(async move { prover.prove(&mut host).await.0 });
        shard::sleep(3_000_000_000).await;
        let stranger = connected(&random, &target).await;
        shard::sleep(1_000_000).await;
        later.0.store(false, Ordering::SeqCst);
        assert!(matches!(proving.join().await, Message::Success1 { .. }));
        stranger.close();
        leave(target).await;
    });
}

#[test]
fn the_largest_groups_are_used_only_where_a_line_names_them() {
    let names = |entry: &Entry| entry.groups.clone();
    let default = Entry::new(HOST, secret(1), None);
    assert!(!names(&default).contains(&Group::Ffdhe6144) && !names(&default).contains(&Group::Ffdhe8192));
    let line = format!("{HOST} {} group=ffdhe8192", secret(1).reveal());
    assert_eq!(names(Keyring::parse(&line).unwrap().find(HOST).unwrap()), [Group::Ffdhe8192]);
}
