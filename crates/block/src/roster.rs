//! The connections of a shard's server: how many there may be, of one peer and in all, and which one goes
//! when there is no room.
//!
//! A connection is *settled* when it has said what it is for: chosen an export, or proved its identity. Those
//! that haven't are no reason to turn a new one away: the oldest of them goes.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

use pinstripe_runtime::shard;

/// Connections that a shard's server has at a time.
pub const CONNECTIONS_MAX: usize = 256;
/// Nanoseconds that they have for what their peers send and take when another process is to go on with them:
/// all wait for the last one.
pub const LEAVE_NANOSECONDS: u64 = 1_000_000_000;
/// The same with requests under way: more than a member gets.
pub const LEAVE_LIMIT_NANOSECONDS: u64 = 60_000_000_000;
/// Bytes from one look at whether a connection idles to the next with which it doesn't: data flows.
pub const FLOW_BYTES: u64 = 256 << 10;
/// How many of them may come from one machine.
pub const PEER_CONNECTIONS_MAX: usize = 128;

/// See the module.
pub struct Roster<L: ?Sized> {
    entries: RefCell<Vec<Entry<L>>>,
    next: Cell<u64>,
}

struct Entry<L: ?Sized> {
    number: u64,
    peer: Option<IpAddr>,
    settled: bool,
    /// It has made room for another one, and ends soon.
    evicted: bool,
    link: Rc<L>,
}

impl<L: ?Sized> Default for Roster<L> {
    fn default() -> Self {
        Self { entries: RefCell::default(), next: Cell::new(0) }
    }
}

impl<L: ?Sized> Roster<L> {
    /// Lets a connection in, and gives its number. If there are too many, in all or of its peer, the oldest
    /// that hasn't settled is `cut`; `None` if all have.
    pub fn admit(&self, peer: Option<IpAddr>, link: Rc<L>, cut: impl Fn(&L)) -> Option<u64> {
        let machine = peer.map(machine);
        let of_peer = |entry: &Entry<L>| machine.is_some() && entry.peer == machine;
        if self.count(of_peer) >= PEER_CONNECTIONS_MAX && !self.evict(of_peer, &cut) {
            return None;
        }
        if self.count(|_| true) >= CONNECTIONS_MAX && !self.evict(|_| true, &cut) {
            return None;
        }
        Some(self.put(peer, link))
    }

    /// Lets a connection in, however many there are: one that was let in by another process.
    pub fn put(&self, peer: Option<IpAddr>, link: Rc<L>) -> u64 {
        let number = self.next.replace(self.next.get() + 1);
        let peer = peer.map(machine);
        self.entries.borrow_mut().push(Entry { number, peer, settled: false, evicted: false, link });
        number
    }

    fn count(&self, which: impl Fn(&Entry<L>) -> bool) -> usize {
        self.entries.borrow().iter().filter(|entry| !entry.evicted && which(entry)).count()
    }

    /// They stand in the order in which they came.
    fn evict(&self, which: impl Fn(&Entry<L>) -> bool, cut: impl Fn(&L)) -> bool {
        let link = {
            let mut entries = self.entries.borrow_mut();
            let mut silent = entries.iter_mut().filter(|entry| !entry.settled && !entry.evicted);
            let Some(oldest) = silent.find(|entry| which(entry)) else { return false };
            oldest.evicted = true;
            Rc::clone(&oldest.link)
        };
        cut(&link);
        true
    }

    /// The connection has said what it is for.
    pub fn settle(&self, number: u64) {
        if let Some(entry) = self.entries.borrow_mut().iter_mut().find(|entry| entry.number == number) {
            entry.settled = true;
        }
    }

    /// It has ended.
    pub fn remove(&self, number: u64) {
        self.entries.borrow_mut().retain(|entry| entry.number != number);
    }

    /// Waits until all have `ended`, when another process is to go on with them. One that `idles`, and so
    /// waits for its peer alone, is `cut` after `grace` nanoseconds, and all are after `limit`.
    pub async fn wind_down(
        &self,
        (grace, limit): (u64, u64),
        ended: impl AsyncFn(),
        idles: impl Fn(&L) -> bool,
        cut: impl Fn(&L),
    ) {
        let begun = shard::waited();
        while shard::timeout(grace, ended()).await.is_none() {
            let is_late = shard::waited() - begun >= limit;
            for link in self.all() {
                if idles(&link) || is_late {
                    cut(&link);
                }
            }
            if is_late {
                return ended().await;
            }
        }
    }

    /// All that haven't ended.
    pub fn all(&self) -> Vec<Rc<L>> {
        self.entries.borrow().iter().map(|entry| Rc::clone(&entry.link)).collect()
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.entries.borrow().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.borrow().is_empty()
    }
}

/// What counts as one machine: of IPv6 a whole network of 64 bits, in which a machine can choose its
/// addresses.
fn machine(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use pinstripe_runtime::{Shard, ShardConfig};

    use super::*;

    #[test]
    fn the_oldest_silent_connection_makes_room_and_of_one_peer_first() {
        let roster = Roster::<Cell<bool>>::default();
        let link = || Rc::new(Cell::new(false));
        let admit = |peer: Option<[u8; 4]>| {
            let link = link();
            let number = roster.admit(peer.map(IpAddr::from), Rc::clone(&link), |link| link.set(true));
            number.map(|number| (number, link))
        };
        let first: Vec<_> = (0..PEER_CONNECTIONS_MAX).map(|_| admit(Some([1; 4])).unwrap()).collect();
        let second: Vec<_> = (0..PEER_CONNECTIONS_MAX).map(|_| admit(Some([2; 4])).unwrap()).collect();
        assert!(!first.iter().chain(&second).any(|(_, link)| link.get()));
        roster.settle(first[0].0);
        // Of its own peer's connections the oldest goes, settled ones excepted.
        admit(Some([2; 4])).unwrap();
        assert!(second[0].1.get() && !second[1].1.get());
        // Of another peer: the oldest of all.
        let third = admit(Some([3; 4])).unwrap();
        assert!(!first[0].1.get() && first[1].1.get() && !first[2].1.get());
        assert_eq!(roster.len(), CONNECTIONS_MAX + 2, "those that were cut have not ended yet");
        for (number, _) in first.iter().chain(&second) {
            roster.settle(*number);
        }
        admit(None).unwrap();
        assert!(!third.1.get());
        roster.remove(third.0);
        assert_eq!(roster.all().len(), CONNECTIONS_MAX + 2);
    }

    #[test]
    fn no_connection_is_cut_for_the_time_in_which_the_process_stood_still() {
        const SECOND: u64 = 1_000_000_000;
        let clock = Rc::<Cell<u64>>::default();
        let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: Some(Rc::clone(&clock)) });
        let _entered = shard.enter();
        let cut = Rc::new(Cell::new(None));
        let told = Rc::clone(&cut);
        shard.spawn(async move {
            let roster = Roster::<()>::default();
            roster.put(None, Rc::new(()));
            let (is_cut, times) = (Cell::new(false), (SECOND, 60 * SECOND));
            let ended = async || {
                while !is_cut.get() {
                    shard::sleep(SECOND / 100).await;
                }
            };
            roster.wind_down(times, ended, |()| false, |()| is_cut.set(true)).await;
            told.set(Some(shard::now()));
        });
        let turn = |to: u64| {
            clock.set(to);
            shard.turn();
            shard.fire_timers();
            while shard.poll_ready(0) {}
        };
        turn(SECOND / 10);
        let still = 100 * SECOND;
        for time in 1..1000 {
            turn(still + time * SECOND / 10);
        }
        let cut = cut.get().expect("it is late at last");
        assert!((still + 59 * SECOND..still + 63 * SECOND).contains(&cut), "{cut}");
    }

    #[test]
    fn where_all_have_settled_a_newcomer_is_turned_away() {
        let roster = Roster::<()>::default();
        for _ in 0..CONNECTIONS_MAX {
            let number = roster.admit(None, Rc::new(()), |()| unreachable!("there is room")).unwrap();
            roster.settle(number);
        }
        assert_eq!(roster.admit(None, Rc::new(()), |()| ()), None);
        let v6 = |text: &str| machine(text.parse().unwrap());
        assert_eq!(v6("2001:db8::1"), v6("2001:db8::ffff:1:2:3"));
        assert_ne!(v6("2001:db8::1"), v6("2001:db8:0:1::1"));
    }
}
