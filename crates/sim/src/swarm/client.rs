//! Users of the array: each does a drawn number of requests and checks every answer with the ledger.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    rc::Rc,
    task::Poll,
};

use pinstripe_runtime::{Buffer, shard};

use super::{
    Verdict,
    front::{FrontEnd, Trouble, Zeroing},
};
use crate::{Ledger, Rng, WriteId, rng::index};

/// What all clients of a life share.
pub(crate) struct UserState {
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    /// The first thing that went wrong.
    verdict: Rc<RefCell<Option<Verdict>>>,
    /// Clients and commands that are not done.
    open: Cell<usize>,
    /// Spares on their way in.
    pub(crate) adds: Cell<usize>,
    /// Members that went on by the bitmap.
    pub(crate) readds: Rc<Cell<u64>>,
    /// The array is being stopped or has lost too much: errors are no news.
    pub(crate) closing: Cell<bool>,
    /// A member went while rows were torn: a request may be refused, and the user goes on.
    pub(crate) bears_refusals: Cell<bool>,
    /// The array was taken over: what its users see and what becomes of their writes doesn't count any more.
    pub(crate) retired: Cell<bool>,
    pub(crate) requests: Rc<Cell<u64>>,
    /// Writes of stripes that no user writes.
    pub(crate) quiet_writes: Cell<usize>,
}

impl UserState {
    /// Of an array of so many sectors of zeroes.
    pub(crate) fn new(sectors: u64) -> Rc<Self> {
        Self::with(Ledger::new(sectors))
    }

    /// Of an array of which the ledger says what it holds.
    pub(crate) fn with(ledger: Ledger) -> Rc<Self> {
        Rc::new(Self {
            ledger: Rc::new(RefCell::new(ledger)),
            verdict: Rc::default(),
            open: Cell::new(0),
            adds: Cell::new(0),
            readds: Rc::default(),
            closing: Cell::new(false),
            bears_refusals: Cell::new(false),
            retired: Cell::new(false),
            requests: Rc::default(),
            quiet_writes: Cell::new(0),
        })
    }

    /// The users of the client that takes the array over: the ledger, the verdict and the counts go on.
    pub(crate) fn succeed(&self) -> Rc<Self> {
        Rc::new(Self {
            ledger: Rc::clone(&self.ledger),
            verdict: Rc::clone(&self.verdict),
            open: Cell::new(0),
            adds: Cell::new(0),
            readds: Rc::clone(&self.readds),
            closing: Cell::new(false),
            bears_refusals: Cell::new(false),
            retired: Cell::new(false),
            requests: Rc::clone(&self.requests),
            quiet_writes: Cell::new(0),
        })
    }

    /// A life begins, with no task of the one before.
    pub(crate) fn begin_life(&self) {
        self.open.set(0);
        self.adds.set(0);
        self.closing.set(false);
        self.bears_refusals.set(false);
    }

    /// A client or a command begins.
    pub(crate) fn begin_task(&self) {
        self.open.set(self.open.get() + 1);
    }

    /// It is done.
    pub(crate) fn end_task(&self) {
        self.open.set(self.open.get() - 1);
    }

    /// Whether all clients and commands are done.
    pub(crate) fn is_idle(&self) -> bool {
        self.open.get() == 0
    }

    /// The process died, and with it what it had under way; `loses` says whether caches were lost too.
    pub(crate) fn cut_off(&self, loses: bool) {
        let mut ledger = self.ledger.borrow_mut();
        if loses { ledger.crash() } else { ledger.kill() }
    }

    pub(crate) fn accuse(&self, verdict: Verdict) {
        self.verdict.borrow_mut().get_or_insert(verdict);
    }

    /// The first thing that went wrong.
    pub(crate) fn verdict(&self) -> Result<(), Verdict> {
        self.verdict.borrow_mut().take().map_or(Ok(()), Err)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.retired.get() || self.verdict.borrow().is_some()
    }

    /// Whether the user goes on: nothing went wrong, or only the line was cut.
    fn goes_on<T>(&self, what: &str, result: Result<T, Trouble>) -> bool {
        match result {
            Ok(_) => true,
            // Without a session there is no line left to dial.
            Err(Trouble::Cut(session)) => session.is_some(),
            Err(Trouble::NotFast) => {
                self.accuse(Verdict::Scene(format!("{what}: refused as not fast, which it need not be")));
                false
            }
            Err(Trouble::Refused(_)) if self.bears_refusals.get() => true,
            Err(Trouble::Refused(words)) => {
                if !self.closing.get() {
                    self.accuse(Verdict::Refused(format!("{what}: {words}")));
                }
                false
            }
        }
    }

    /// Tells the ledger what became of a write.
    fn written(&self, id: WriteId, result: &Result<(), Trouble>) {
        match result {
            _ if self.retired.get() => {}
            Err(Trouble::Cut(Some(session))) => session.give_up(self, id),
            other => self.ledger.borrow_mut().complete_write(id, other.is_ok()),
        }
    }
}

/// How a client behaves.
#[expect(clippy::struct_excessive_bools, reason = "each is a habit of its own")]
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// Where it works, in sectors.
    pub(crate) range: Range<u64>,
    /// The unit of its requests in sectors: the logical block, or more.
    pub(crate) unit: u64,
    /// Data of a stripe in sectors.
    pub(crate) stripe: u64,
    /// Whether the level keeps the order of arrival within a stripe.
    pub(crate) ordered: bool,
    /// Largest request in units.
    pub(crate) units_max: u64,
    /// Whether it goes on where it was rather than anywhere.
    pub(crate) sequential: bool,
    /// Of 16 requests, how many read, flush, zero and discard; the others write.
    pub(crate) reads: u64,
    pub(crate) flushes: u64,
    pub(crate) zeroes: u64,
    pub(crate) discards: u64,
    /// Of 16 writes, how many are forced.
    pub(crate) forced: u64,
    pub(crate) requests: u64,
    /// Whether discards are forced too, and zeroes may have to stay allocated.
    pub(crate) all_flags: bool,
    /// Whether zeroes may have to be fast.
    pub(crate) fast_zeroes: bool,
    /// Longest pause between requests.
    pub(crate) pause_ns: u64,
}

impl Habits {
    /// A client of an array of `sectors`, in stripes of `stripe` sectors. `hot` is where many of the clients
    /// meet.
    pub(crate) fn drawn(
        rng: &mut Rng,
        sectors: u64,
        stripe: u64,
        block: u64,
        hot: u64,
        requests: u64,
    ) -> Self {
        let sequential = rng.chance(1, 4);
        let unit = rng.pick(&[block, block, 8, 8, stripe / 2]).max(block) / block * block;
        let hot = hot / block * block;
        let near = hot..(hot + stripe * rng.pick(&[1, 2, 4])).min(sectors);
        let whole = 0..sectors;
        let limit = (stripe * rng.pick(&[1, 1, 3])).min(2048).min(sectors / 2);
        let units_max = rng.pick(&[1, 2, 8, limit / unit, limit / unit]).clamp(1, (limit / unit).max(1));
        Self {
            range: if rng.chance(2, 3) { near } else { whole },
            unit,
            stripe,
            ordered: true,
            units_max,
            sequential,
            reads: rng.pick(&[0, 2, 4, 12]),
            flushes: rng.pick(&[0, 1, 2]),
            zeroes: rng.pick(&[0, 0, 1]),
            discards: rng.pick(&[0, 0, 1]),
            forced: rng.pick(&[0, 1, 4, 16]),
            requests,
            all_flags: false,
            fast_zeroes: false,
            pause_ns: rng.pick(&[0, 0, 1_000, 300_000, 5_000_000]),
        }
    }

    /// The sectors of the next request.
    fn next(&self, rng: &mut Rng, at: &mut u64) -> Range<u64> {
        let (start, end) = (self.range.start, self.range.end);
        let room = (end - start) / self.unit;
        let units = (1 + rng.below(self.units_max)).min(room.max(1));
        let first = if self.sequential {
            if *at + units > room {
                *at = 0;
            }
            *at
        } else {
            rng.below(room - units.min(room) + 1)
        };
        *at = first + units;
        let first = start + first * self.unit;
        first..(first + units * self.unit).min(end)
    }
}

/// A client's life.
pub(crate) async fn client(front_end: FrontEnd, users: Rc<UserState>, habits: Habits, mut rng: Rng) {
    let mut at = 0;
    for _ in 0..habits.requests {
        if users.is_over() {
            break;
        }
        users.requests.set(users.requests.get() + 1);
        let sectors = habits.next(&mut rng, &mut at);
        let h = &habits;
        front_end.cut(&mut rng);
        let going = match rng.below(16) {
            n if n < h.reads => read(&front_end, &users, sectors).await,
            n if n < h.reads + h.flushes => flush(&front_end, &users).await,
            n if n < h.reads + h.flushes + h.zeroes => {
                let forced = rng.chance(h.forced, 16);
                let keeps = h.all_flags && rng.chance(1, 2);
                let fast = h.fast_zeroes && rng.chance(1, 2);
                zero(&front_end, &users, sectors, Zeroing { forced, keeps, fast }).await
            }
            n if n < h.reads + h.flushes + h.zeroes + h.discards => {
                let forced = h.all_flags && rng.chance(h.forced.max(4), 16);
                discard(&front_end, &users, sectors, forced).await
            }
            15 if h.ordered && sectors.end <= (sectors.start / h.stripe + 1) * h.stripe => {
                write_pair(&front_end, &users, sectors).await
            }
            _ => {
                let forced = rng.chance(h.forced, 16);
                write(&front_end, &users, sectors, forced).await
            }
        };
        if !going {
            break;
        }
        if habits.pause_ns > 0 && rng.chance(1, 4) {
            shard::sleep(rng.below(habits.pause_ns)).await;
        }
    }
    users.end_task();
}

fn bytes(sectors: &Range<u64>) -> u64 {
    (sectors.end - sectors.start) * 512
}

/// Reads and checks. False after an error.
pub(crate) async fn read(front_end: &FrontEnd, users: &UserState, sectors: Range<u64>) -> bool {
    let id = users.ledger.borrow_mut().begin_read(sectors.clone());
    let result = front_end.read(sectors.start * 512, index(bytes(&sectors))).await;
    if let Ok(bytes) = &result {
        if let Err(violation) = users.ledger.borrow_mut().check_read(id, bytes) {
            users.accuse(Verdict::Value(Box::new(violation)));
            return false;
        }
    } else {
        users.ledger.borrow_mut().abandon_read(id);
    }
    users.goes_on(&format!("read of sectors {sectors:?}"), result)
}

fn stamped(users: &UserState, sectors: &Range<u64>, forced: bool) -> (WriteId, Buffer) {
    let mut data = shard::buffer(index(bytes(sectors)));
    let id = users.ledger.borrow_mut().begin_write(sectors.start, &mut data, forced);
    (id, data)
}

pub(crate) async fn write(
    front_end: &FrontEnd,
    users: &UserState,
    sectors: Range<u64>,
    forced: bool,
) -> bool {
    let (id, data) = stamped(users, &sectors, forced);
    let result = front_end.write(sectors.start * 512, data, forced).await;
    users.written(id, &result);
    users.goes_on(&format!("write of sectors {sectors:?}"), result)
}

/// Two writes of the same sectors of one stripe, submitted one after the other: the second one must win
/// (C11).
async fn write_pair(front_end: &FrontEnd, users: &UserState, sectors: Range<u64>) -> bool {
    let [(first, one), (second, two)] = [0; 2].map(|_| stamped(users, &sectors, false));
    users.ledger.borrow_mut().order(first, second);
    let mut writes = [(first, one), (second, two)]
        .map(|(id, data)| (id, Some(Box::pin(front_end.write(sectors.start * 512, data, false)))));
    let mut fine = true;
    std::future::poll_fn(|cx| {
        for (id, write) in &mut writes {
            if let Some(pending) = write
                && let Poll::Ready(result) = pending.as_mut().poll(cx)
            {
                *write = None;
                users.written(*id, &result);
                fine &= users.goes_on(&format!("write of sectors {sectors:?}"), result);
            }
        }
        if writes.iter().all(|(_, write)| write.is_none()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    fine
}

async fn zero(front_end: &FrontEnd, users: &UserState, sectors: Range<u64>, how: Zeroing) -> bool {
    let id = users.ledger.borrow_mut().begin_zeroes(sectors.clone(), how.forced);
    let result = front_end.zero(sectors.start * 512, bytes(&sectors), how).await;
    if how.fast && matches!(result, Err(Trouble::NotFast)) {
        // It has not even begun.
        users.ledger.borrow_mut().revoke(id);
        return true;
    }
    users.written(id, &result);
    users.goes_on(&format!("zeroing of sectors {sectors:?}"), result)
}

async fn discard(front_end: &FrontEnd, users: &UserState, sectors: Range<u64>, forced: bool) -> bool {
    let id = users.ledger.borrow_mut().begin_discard(sectors.clone(), forced);
    let result = front_end.discard(sectors.start * 512, bytes(&sectors), forced).await;
    users.written(id, &result);
    users.goes_on(&format!("discard of sectors {sectors:?}"), result)
}

pub(crate) async fn flush(front_end: &FrontEnd, users: &UserState) -> bool {
    let id = users.ledger.borrow_mut().begin_flush();
    let result = front_end.flush().await;
    users.ledger.borrow_mut().complete_flush(id, result.is_ok());
    users.goes_on("flush", result)
}

/// Reads and checks these sectors, in pieces of some rows.
pub(crate) async fn read_all(front_end: FrontEnd, users: Rc<UserState>, ranges: Vec<Range<u64>>) {
    const STEP: u64 = 128;
    let pieces =
        |range: Range<u64>| range.clone().step_by(index(STEP)).map(move |at| at..range.end.min(at + STEP));
    for piece in ranges.into_iter().flat_map(pieces) {
        if users.is_over() || !read(&front_end, &users, piece).await {
            break;
        }
    }
    users.end_task();
}
