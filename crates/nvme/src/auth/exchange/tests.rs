//! The two ends against each other, with an attacker in between.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::auth::{Keyring, Random, Secret, hex};

/// Bytes that repeat with every run.
struct Counted(AtomicU64);

impl Random for Counted {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), NoRandom> {
        for byte in bytes {
            let state = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            *byte = (state ^ state >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_be_bytes()[0];
        }
        Ok(())
    }
}

fn secret(first: u8) -> Secret {
    Secret::of_key(&(first..).take(32).collect::<Vec<u8>>(), None).unwrap()
}

fn names() -> Names {
    Names {
        host: "nqn.2026-01.com.example:host".to_owned(),
        subsystem: "nqn.2026-01.com.example:vm".to_owned(),
    }
}

fn entry(controller: Option<Secret>, hashes: &[Hash], groups: &[Group]) -> Entry {
    let (hashes, groups) = (hashes.to_vec(), groups.to_vec());
    Entry { hashes, groups, ..Entry::new("*", secret(0), controller) }
}

fn side(seed: u64, entry: Entry) -> Authentication {
    Authentication::with_random(Keyring::new(vec![entry]), Box::new(Counted(AtomicU64::new(seed))))
}

/// How a transaction ended at the host and at the target.
type Ended = (Result<(), AuthenticationError>, Outcome);

/// Runs a transaction. `meddle` may change a message, which it is given by number, from 0.
fn run(host: &Authentication, target: &Authentication, mut meddle: impl FnMut(usize, &mut Vec<u8>)) -> Ended {
    run_at(&mut ControllerEnd::new(), host, target, &mut meddle)
}

fn run_at(
    controller: &mut ControllerEnd,
    host: &Authentication,
    target: &Authentication,
    meddle: &mut dyn FnMut(usize, &mut Vec<u8>),
) -> Ended {
    let names = names();
    let entry = host.peer(&names.subsystem).unwrap();
    let (mut end, mut message) = HostEnd::begin(host, &entry, &names).unwrap();
    let mut number = 0;
    let mut outcome = Outcome::Open;
    loop {
        meddle(number, &mut message);
        outcome = match controller.take(target, &names, &message) {
            Outcome::Open => outcome,
            ended => return (Ok(()), ended),
        };
        let mut due = controller.due().unwrap().to_vec();
        meddle(number + 1, &mut due);
        match controller.given() {
            Outcome::Open => {}
            ended => outcome = ended,
        }
        number += 2;
        match end.take(host, &due) {
            Ok(HostStep::Reply(reply)) => message = reply,
            Ok(HostStep::Done(Some(last))) => message = last,
            Ok(HostStep::Done(None)) => return (Ok(()), outcome),
            Err(Trouble { error, tell }) => {
                let told = tell.map_or(outcome, |tell| controller.take(target, &names, &tell));
                return (Err(error), told);
            }
        }
        if number == 4 {
            meddle(number, &mut message);
            return (Ok(()), controller.take(target, &names, &message));
        }
    }
}

const PASSED: Ended = (Ok(()), Outcome::Authenticated);

#[test]
fn sides_with_the_keys_authenticate_with_every_hash_and_group_both_ways() {
    for hash in Hash::ALL {
        for group in Group::ALL {
            for controller in [None, Some(secret(100))] {
                let entry = entry(controller, &[*hash], &[*group]);
                let (host, target) = (side(1, entry.clone()), side(2, entry));
                assert_eq!(run(&host, &target, |_, _| {}), PASSED, "{hash:?} {group:?}");
            }
        }
    }
}

#[test]
fn transformed_keys_are_bound_to_the_names_that_use_them() {
    let bound = |hash| Secret::of_key(&[5; 48], Some(hash)).unwrap();
    let entry = Entry::new("*", bound(Hash::Sha384), Some(bound(Hash::Sha512)));
    assert_eq!(run(&side(1, entry.clone()), &side(2, entry.clone()), |_, _| {}), PASSED);
    let plain = Entry { host: Secret::of_key(&[5; 48], None).unwrap(), ..entry.clone() };
    let refused = Err(AuthenticationError::Refused(Failed::AUTHENTICATION));
    assert_eq!(run(&side(1, plain), &side(2, entry), |_, _| {}).0, refused);
}

/// By Python's hashlib and hmac: HMAC(key, Ca, S, T_ID, 0, role, NQN, 0, NQN), with Ca = HMAC(H(shared), C)
/// in a group.
#[test]
fn responses_are_those_that_python_computes() {
    let bound = Secret::of_key(&(0..32).collect::<Vec<u8>>(), Some(Hash::Sha256)).unwrap();
    for (hash, host, shared, first, second) in [
        (
            Hash::Sha256,
            secret(0),
            &[][..],
            "2e14fb94b87fecd40c6ed903ddeca0ea1d3490407cc78f9fc70608ab4e666e34",
            "c5abc0b95af8bb18528e768b4da04428479eb6d1b48b86ae14637dd435ce5fc1",
        ),
        (
            Hash::Sha384,
            bound,
            &[],
            "e52a946fbe2bfe27f48e4750a62ff6776dc95002f4574de9143f9242b4bdc0ae53a9d613867e87be90fb7b4b2bf19d5d",
            "f6cd9c30c464605fa878efbd54535485c252b6a78bda59efc6f6d4c28492139a2cb149fc2fbee2c799d235bc3eedbd75",
        ),
        (
            Hash::Sha512,
            secret(0),
            &[9; 256],
            "52c81873a3605b2f2f396998262e258664ed8a85bc832996a0298cde20835287f47f46d394f5020eab19d40063d68b6990beaf26142f40561b4f1fa23f34bb3c",
            "3409d94cc1be23636b82c92f62d3558f3adb3367b1b10c1bbdac90a35be246424de353424508236a70cfc810238bc01e48a03debe24efc8c34c5a3442be0f79a",
        ),
    ] {
        let value = vec![7; hash.bytes()];
        let challenge = Challenge { hash, transaction: 0x1234, sequence: 0x0403_0201, value: &value, shared };
        let entry = Entry::new("*", host, Some(secret(100)));
        assert_eq!(hex(&challenge.of_host(&entry, &names())), first, "{hash:?}");
        assert_eq!(hex(&challenge.of_controller(&entry, &names()).unwrap()), second, "{hash:?}");
    }
}

#[test]
fn a_host_with_another_key_is_refused() {
    let target = side(2, entry(None, Hash::ALL, &[Group::Ffdhe2048, Group::Null]));
    let host = side(1, Entry { host: secret(1), ..entry(None, Hash::ALL, Group::ALL) });
    let (host, target) = run(&host, &target, |_, _| {});
    assert_eq!(host, Err(AuthenticationError::Refused(Failed::AUTHENTICATION)));
    assert_eq!(target, Outcome::Failed);
}

#[test]
fn a_host_whose_secret_was_taken_away_meanwhile_is_refused() {
    let known = entry(None, Hash::ALL, &[Group::Null]);
    let without = side(2, Entry { peer: "nqn.other".to_owned(), ..known.clone() });
    let refused = Err(AuthenticationError::Refused(Failed::AUTHENTICATION));
    assert_eq!(run(&side(1, known), &without, |_, _| {}).0, refused);
}

#[test]
fn a_controller_that_cannot_prove_its_secret_is_refused() {
    let host = || side(1, entry(Some(secret(100)), Hash::ALL, &[Group::Null]));
    let none = side(2, entry(None, Hash::ALL, &[Group::Null]));
    let refused = Err(AuthenticationError::Refused(Failed::AUTHENTICATION));
    assert_eq!(run(&host(), &none, |_, _| {}), (refused, Outcome::Failed));
    let other = side(2, entry(Some(secret(101)), Hash::ALL, &[Group::Null]));
    assert_eq!(run(&host(), &other, |_, _| {}), (Err(AuthenticationError::Unproven), Outcome::Failed));
    // It claims that it wasn't asked: RVALID is cleared.
    let silent = |number: usize, message: &mut Vec<u8>| {
        if number == 3 {
            message[8] = 0;
        }
    };
    let right = side(2, entry(Some(secret(100)), Hash::ALL, &[Group::Null]));
    assert_eq!(run(&host(), &right, silent).0, Err(AuthenticationError::Unproven));
}

#[test]
fn no_changed_bit_of_any_message_admits_a_side_without_proof() {
    let group = &[Group::Null];
    // Bytes that are reserved, by message; of Negotiate only the transaction is looked at.
    let reserved: [&[usize]; 4] = [&[], &[2, 3, 7], &[2, 3, 7, 9], &[2, 3, 7, 9, 10, 11, 12, 13, 14, 15]];
    for (number, reserved) in reserved.into_iter().enumerate() {
        for at in (0..16 + 2 * 32).filter(|at| !reserved.contains(at)) {
            let known = entry(Some(secret(100)), &[Hash::Sha256], group);
            let mut changed = false;
            let change = |now: usize, message: &mut Vec<u8>| {
                if now == number && at < message.len() && (number > 0 || at == 4 || at == 5) {
                    message[at] ^= 1 << (at % 8);
                    changed = true;
                }
            };
            let (host, target) = run(&side(1, known.clone()), &side(2, known), change);
            let refused = host.is_err() || target != Outcome::Authenticated;
            assert_eq!(refused, changed, "message {number}, byte {at}");
        }
    }
}

#[test]
fn a_reply_that_was_overheard_is_worth_nothing() {
    for group in [Group::Null, Group::Ffdhe2048] {
        let known = entry(None, &[Hash::Sha256], &[group]);
        let (host, target) = (side(1, known.clone()), side(2, known));
        let mut heard = Vec::new();
        let listen = |_, message: &mut Vec<u8>| heard.push(message.clone());
        assert_eq!(run(&host, &target, listen), PASSED);
        let mut controller = ControllerEnd::new();
        assert_eq!(controller.take(&target, &names(), &heard[0]), Outcome::Open);
        assert_ne!(controller.due().unwrap(), heard[1]);
        assert_eq!(controller.given(), Outcome::Open);
        assert_eq!(controller.take(&target, &names(), &heard[2]), Outcome::Open);
        let told = Envelope::decode(controller.due().unwrap()).unwrap().message;
        assert_eq!(told, Message::Failure1(Failed::AUTHENTICATION));
        assert_eq!(controller.given(), Outcome::Failed);
        // And not a second time.
        assert_eq!(controller.take(&target, &names(), &heard[0]), Outcome::Failed);
    }
}

#[test]
fn a_challenge_is_good_for_one_reply() {
    let known = entry(None, &[Hash::Sha256], &[Group::Null]);
    let (host, target) = (side(1, known.clone()), side(2, known));
    let mut controller = ControllerEnd::new();
    let mut heard = Vec::new();
    let mut listen = |_, message: &mut Vec<u8>| heard.push(message.clone());
    assert_eq!(run_at(&mut controller, &host, &target, &mut listen), PASSED);
    assert_eq!(controller.take(&target, &names(), &heard[2]), Outcome::Open);
    let told = Envelope::decode(controller.due().unwrap()).unwrap().message;
    assert_eq!(told, Message::Failure1(Failed::MESSAGE));
}

#[test]
fn a_host_may_authenticate_again() {
    let known = entry(Some(secret(100)), Hash::ALL, &[Group::Null]);
    let (host, target) = (side(1, known.clone()), side(2, known));
    let mut controller = ControllerEnd::new();
    for _ in 0..3 {
        assert_eq!(run_at(&mut controller, &host, &target, &mut |_, _| {}), PASSED);
    }
}

#[test]
fn neither_end_goes_below_what_its_file_allows() {
    let strong = || entry(None, &[Hash::Sha512], &[Group::Ffdhe2048]);
    let refused = |failed| Err(AuthenticationError::Refused(failed));
    // An attacker takes the strong ones off the host's list.
    let without_groups = |number: usize, message: &mut Vec<u8>| {
        if number == 0 {
            (message[11], message[42]) = (1, 0);
        }
    };
    let any = side(1, entry(None, Hash::ALL, Group::ALL));
    assert_eq!(run(&any, &side(2, strong()), without_groups).0, refused(Failed::GROUP));
    let weak_hash = side(1, entry(None, &[Hash::Sha256], Group::ALL));
    assert_eq!(run(&weak_hash, &side(2, strong()), |_, _| {}).0, refused(Failed::HASH));
    // Or the server, or an attacker in its name, chooses what the host didn't offer.
    let other = |at: usize, value: u8| {
        move |number: usize, message: &mut Vec<u8>| {
            if number == 1 {
                message[at] = value;
            }
        }
    };
    let target = || side(2, entry(None, Hash::ALL, &[Group::Ffdhe2048]));
    for meddle in [other(8, 1), other(8, 9), other(9, 0), other(9, 200)] {
        let (host, told) = run(&side(1, strong()), &target(), meddle);
        assert_eq!((host, told), (Err(AuthenticationError::NotAllowed), Outcome::Failed));
    }
    // A secure channel that isn't there is not promised.
    let secure = |number: usize, message: &mut Vec<u8>| {
        if number == 0 {
            message[6] = 1;
        }
    };
    assert_eq!(run(&any, &target(), secure).0, refused(Failed::SECURE_CHANNEL));
}

#[test]
fn a_value_that_makes_the_shared_secret_public_is_refused() {
    let known = || entry(None, &[Hash::Sha256], &[Group::Ffdhe2048]);
    let one = |which: usize, start: usize| {
        move |number: usize, message: &mut Vec<u8>| {
            if number == which {
                message[start..].fill(0);
                *message.last_mut().unwrap() = 1;
            }
        }
    };
    let (host, told) = run(&side(1, known()), &side(2, known()), one(1, 16 + 32));
    assert_eq!((host, told), (Err(AuthenticationError::Nonsense(Failed::PAYLOAD)), Outcome::Failed));
    let (host, _) = run(&side(1, known()), &side(2, known()), one(2, 16 + 64));
    assert_eq!(host, Err(AuthenticationError::Refused(Failed::PAYLOAD)));
}

#[test]
fn messages_out_of_turn_end_it() {
    let known = || entry(None, &[Hash::Sha256], &[Group::Null]);
    let target = side(2, known());
    let reply =
        Message::Reply { response: vec![0; 32], challenge: None, sequence: 0, exponential: Vec::new() };
    for message in [reply, Message::Success2, Message::Failure1(Failed::MESSAGE)] {
        let mut controller = ControllerEnd::new();
        assert_eq!(controller.due(), None);
        assert_eq!(controller.take(&target, &names(), &envelope(1, message)), Outcome::Open);
        let told = Envelope::decode(controller.due().unwrap()).unwrap();
        assert_eq!(told, Envelope { transaction: 1, message: Message::Failure1(Failed::MESSAGE) });
        assert_eq!(controller.given(), Outcome::Failed);
    }
    let mut controller = ControllerEnd::new();
    assert_eq!(controller.take(&target, &names(), &[1, 2, 3]), Outcome::Open);
    assert_eq!(controller.take(&target, &names(), &envelope(1, Message::Success2)), Outcome::Open);
    let mut ended = ControllerEnd::new();
    let given_up = envelope(1, Message::Failure2(Failed::AUTHENTICATION));
    assert_eq!(ended.take(&target, &names(), &given_up), Outcome::Failed);
}
