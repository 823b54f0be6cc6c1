//! What the oracle allows and what it catches.

use super::*;

/// A ledger and its clients. Sector 3 of 8 is the one that most tests look at.
struct Client {
    ledger: Ledger,
}

const AT: u64 = 3;

impl Client {
    fn new() -> Self {
        Self { ledger: Ledger::new(8) }
    }

    fn begin(&mut self, forced: bool) -> WriteId {
        self.ledger.begin_write(AT, &mut [0; 512], forced)
    }

    fn write(&mut self) -> WriteId {
        let id = self.begin(false);
        self.ledger.complete_write(id, true);
        id
    }

    fn flush(&mut self) {
        let id = self.ledger.begin_flush();
        self.ledger.complete_flush(id, true);
    }

    fn sees(&mut self, id: WriteId) -> Result<(), Wrong> {
        let read = self.ledger.begin_read(AT..AT + 1);
        self.read_sees(read, id)
    }

    fn read_sees(&mut self, read: ReadId, id: WriteId) -> Result<(), Wrong> {
        let mut bytes = [0; 512];
        if id != ORIGIN {
            stamp::stamp(&mut bytes, id.0, AT);
        }
        self.ledger.check_read(read, &bytes).map_err(|violation| violation.wrong)
    }

    /// What may be read, as the ledger lists it.
    fn legal(&self, ids: &[WriteId]) {
        assert_eq!(self.ledger.legal(AT), ids.iter().map(|id| id.0).collect::<Vec<_>>());
    }
}

#[test]
fn a_zeroing_that_was_refused_untried_never_was() {
    let mut client = Client::new();
    let written = client.write();
    let zeroed = client.ledger.begin_zeroes(AT..AT + 1, false);
    assert_eq!(client.sees(ORIGIN), Ok(()), "while it is under way");
    client.ledger.revoke(zeroed);
    assert_eq!(client.sees(ORIGIN), Err(Wrong::Stale));
    assert_eq!(client.sees(written), Ok(()));
    client.legal(&[written]);
}

#[test]
fn a_sector_that_was_never_written_holds_zeroes() {
    let mut client = Client::new();
    assert_eq!(client.sees(ORIGIN), Ok(()));
    assert_eq!(client.sees(WriteId(9)), Err(Wrong::Foreign));
    let read = client.ledger.begin_read(0..1);
    assert_eq!(client.ledger.check_read(read, &[1; 512]).unwrap_err().wrong, Wrong::Damaged);
}

#[test]
fn a_lost_write_is_caught() {
    let mut client = Client::new();
    let (old, new) = (client.write(), client.write());
    assert_eq!(client.sees(new), Ok(()));
    assert_eq!(client.sees(old), Err(Wrong::Stale));
    assert_eq!(client.sees(ORIGIN), Err(Wrong::Stale));
}

#[test]
fn a_misplaced_and_a_torn_sector_are_caught() {
    let mut client = Client::new();
    let mut data = [0; 1024];
    let id = client.ledger.begin_write(2, &mut data, false);
    client.ledger.complete_write(id, true);
    let read = client.ledger.begin_read(2..4);
    assert!(client.ledger.check_read(read, &data).is_ok());
    let swapped = [&data[512..], &data[..512]].concat();
    let read = client.ledger.begin_read(2..4);
    let violation = client.ledger.check_read(read, &swapped).unwrap_err();
    assert_eq!((violation.wrong, violation.sector), (Wrong::Misplaced, 2));
    let mut torn = data;
    torn[700..].fill(0);
    let read = client.ledger.begin_read(2..4);
    let violation = client.ledger.check_read(read, &torn).unwrap_err();
    assert_eq!((violation.wrong, violation.sector), (Wrong::Damaged, 3));
}

#[test]
fn while_a_write_is_in_flight_old_and_new_are_legal_but_once_seen_never_old_again() {
    let mut client = Client::new();
    let old = client.write();
    let new = client.begin(false);
    client.legal(&[old, new]);
    assert_eq!(client.sees(old), Ok(()));
    client.legal(&[old, new]);
    let early = client.ledger.begin_read(AT..AT + 1);
    assert_eq!(client.sees(new), Ok(()));
    client.legal(&[new]);
    assert_eq!(client.sees(old), Err(Wrong::Stale));
    assert_eq!(client.read_sees(early, old), Ok(()), "it began before any read saw the new value");
}

#[test]
fn a_read_that_began_before_the_acknowledgement_may_return_the_old_value() {
    let mut client = Client::new();
    let old = client.write();
    let new = client.begin(false);
    let (first, second) = (client.ledger.begin_read(AT..AT + 1), client.ledger.begin_read(AT..AT + 1));
    client.ledger.complete_write(new, true);
    client.flush();
    assert_eq!(client.read_sees(first, old), Ok(()));
    assert_eq!(client.read_sees(second, new), Ok(()));
    client.legal(&[new]);
}

#[test]
fn of_concurrent_writes_either_may_win_and_a_read_says_which() {
    for swap in [false, true] {
        let mut client = Client::new();
        let (mut a, mut b) = (client.begin(false), client.begin(false));
        client.ledger.complete_write(b, true);
        client.ledger.complete_write(a, true);
        client.legal(&[a, b]);
        if swap {
            (a, b) = (b, a);
        }
        assert_eq!(client.sees(a), Ok(()));
        assert_eq!(client.sees(b), Err(Wrong::Stale));
        // What won before the flush is what the flush kept.
        client.flush();
        client.ledger.crash();
        client.legal(&[a]);
    }
}

#[test]
fn an_overlapping_write_that_is_still_in_flight_may_win_after_another_was_seen() {
    let mut client = Client::new();
    let (a, b) = (client.begin(false), client.begin(false));
    client.ledger.complete_write(a, true);
    assert_eq!(client.sees(a), Ok(()));
    client.legal(&[a, b]);
    client.ledger.complete_write(b, true);
    client.legal(&[a, b]);
    assert_eq!(client.sees(b), Ok(()));
    client.legal(&[b]);
}

#[test]
fn after_a_crash_the_last_durable_value_or_any_later_one_is_legal() {
    let mut client = Client::new();
    let _lost = client.write();
    let durable = client.write();
    client.flush();
    let (second, third) = (client.write(), client.write());
    let cut = client.begin(false);
    client.legal(&[third, cut]);
    client.ledger.crash();
    client.legal(&[durable, second, third, cut]);
    assert_eq!(client.sees(ORIGIN), Err(Wrong::Stale));
}

#[test]
fn after_a_crash_the_first_read_decides_even_past_another_crash() {
    let mut client = Client::new();
    let (old, new) = (client.write(), client.begin(false));
    client.ledger.crash();
    client.legal(&[ORIGIN, old, new]);
    assert_eq!(client.sees(old), Ok(()));
    client.legal(&[old]);
    client.ledger.crash();
    client.legal(&[old]);
    let next = client.write();
    client.legal(&[next]);
    client.ledger.crash();
    client.legal(&[old, next]);
}

#[test]
fn a_flush_covers_only_what_was_acknowledged_before_it_was_issued() {
    let mut client = Client::new();
    let before = client.write();
    let during = client.begin(false);
    let flush = client.ledger.begin_flush();
    client.ledger.complete_write(during, true);
    client.ledger.complete_flush(flush, true);
    client.ledger.crash();
    client.legal(&[before, during]);
}

#[test]
fn a_failed_flush_promises_nothing() {
    let mut client = Client::new();
    let write = client.write();
    let flush = client.ledger.begin_flush();
    client.ledger.complete_flush(flush, false);
    client.ledger.crash();
    client.legal(&[ORIGIN, write]);
}

#[test]
fn of_two_ordered_writes_in_flight_the_later_one_wins() {
    let mut client = Client::new();
    let (first, second) = (client.begin(false), client.begin(false));
    client.ledger.order(first, second);
    client.legal(&[ORIGIN, first, second]);
    client.ledger.complete_write(second, true);
    client.ledger.complete_write(first, true);
    client.legal(&[second]);
}

#[test]
fn a_forced_write_is_durable_when_it_is_acknowledged() {
    let mut client = Client::new();
    let forced = client.begin(true);
    client.ledger.complete_write(forced, true);
    let cut = client.begin(true);
    client.ledger.crash();
    client.legal(&[forced, cut]);
    assert_eq!(client.sees(ORIGIN), Err(Wrong::Stale));
}

#[test]
fn a_seen_write_in_flight_is_not_durable() {
    let mut client = Client::new();
    let old = client.write();
    let new = client.begin(false);
    assert_eq!(client.sees(new), Ok(()));
    client.flush();
    client.ledger.crash();
    client.legal(&[old, new]);
}

#[test]
fn zeroing_must_zero_and_a_discard_may_but_must_not_change_its_mind() {
    let mut client = Client::new();
    let write = client.write();
    let discard = client.ledger.begin_discard(0..8, false);
    client.ledger.complete_write(discard, true);
    client.flush();
    client.legal(&[write, discard]);
    let mut other = Client { ledger: client.ledger.clone() };
    assert_eq!(client.sees(write), Ok(()));
    assert_eq!(client.sees(ORIGIN), Err(Wrong::Stale), "it was not zeroed");
    assert_eq!(other.sees(ORIGIN), Ok(()));
    assert_eq!(other.sees(write), Err(Wrong::Stale), "it was zeroed");
    other.ledger.crash();
    assert_eq!(other.sees(write), Err(Wrong::Stale), "and that was flushed");
    let zeroes = client.ledger.begin_zeroes(0..8, true);
    client.ledger.complete_write(zeroes, true);
    assert_eq!(client.sees(write), Err(Wrong::Stale));
    assert_eq!(client.sees(ORIGIN), Ok(()), "zeroes are zeroes");
}

#[test]
fn a_failed_write_leaves_doubt_until_the_next_one_succeeds() {
    let mut client = Client::new();
    let old = client.write();
    let failed = client.begin(true);
    client.ledger.complete_write(failed, false);
    client.flush();
    for id in [old, failed, old, failed] {
        assert_eq!(client.sees(id), Ok(()));
    }
    client.ledger.crash();
    client.legal(&[old, failed]);
    let new = client.write();
    client.legal(&[new]);
}

#[test]
fn the_death_of_the_process_loses_nothing_that_was_acknowledged() {
    let mut client = Client::new();
    let write = client.write();
    let cut = client.begin(false);
    client.ledger.kill();
    client.legal(&[write, cut]);
    assert_eq!(client.sees(ORIGIN), Err(Wrong::Stale));
    assert_eq!(client.sees(write), Ok(()));
    client.legal(&[write]);
    // The disks' caches are as volatile as before.
    client.ledger.crash();
    client.legal(&[ORIGIN, write, cut]);
}

#[test]
fn doubt_ends_with_a_later_write_and_comes_back_with_a_crash_that_may_have_lost_it() {
    let mut client = Client::new();
    client.write();
    client.ledger.doubt(AT..AT + 1);
    assert_eq!(client.sees(WriteId(99)), Ok(()));
    let cure = client.write();
    assert_eq!(client.sees(WriteId(99)), Err(Wrong::Foreign));
    client.ledger.crash();
    assert_eq!(client.sees(WriteId(99)), Ok(()));
    let cure_again = client.write();
    client.flush();
    client.ledger.crash();
    assert_eq!(client.sees(cure), Err(Wrong::Stale));
    assert_eq!(client.sees(cure_again), Ok(()));
}

#[test]
fn what_no_read_may_return_is_forgotten() {
    let mut client = Client::new();
    for _ in 0..100 {
        client.write();
        client.flush();
    }
    assert_eq!(client.ledger.history.len(), 2, "the origin and the last");
    assert_eq!(client.sees(WriteId(1)), Err(Wrong::Stale));
}
