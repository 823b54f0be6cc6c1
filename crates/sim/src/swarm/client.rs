//! Users of the array: each does a drawn number of requests and checks every answer with the ledger.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    rc::Rc,
    task::Poll,
};

use pinstripe_engine::{error::IoError, volume::Volume};
use pinstripe_runtime::shard;

use super::Verdict;
use crate::{Ledger, Rng, rng::index};

/// What all clients of a life share.
pub(crate) struct Shop {
    pub(crate) ledger: RefCell<Ledger>,
    /// The first thing that went wrong.
    pub(crate) verdict: RefCell<Option<Verdict>>,
    /// Clients and commands that are not done.
    pub(crate) open: Cell<usize>,
    /// Spares on their way in.
    pub(crate) adds: Cell<usize>,
    /// The array is being stopped or has lost too much: errors are no news.
    pub(crate) closing: Cell<bool>,
    pub(crate) requests: Cell<u64>,
}

impl Shop {
    pub(crate) fn new(sectors: u64) -> Rc<Self> {
        Rc::new(Self {
            ledger: RefCell::new(Ledger::new(sectors)),
            verdict: RefCell::default(),
            open: Cell::new(0),
            adds: Cell::new(0),
            closing: Cell::new(false),
            requests: Cell::new(0),
        })
    }

    pub(crate) fn accuse(&self, verdict: Verdict) {
        self.verdict.borrow_mut().get_or_insert(verdict);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.verdict.borrow().is_some()
    }

    fn failed(&self, what: &str, error: &IoError) {
        if !self.closing.get() {
            self.accuse(Verdict::Refused(format!("{what}: {error}")));
        }
    }
}

/// How a client behaves.
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
    /// Longest pause between requests.
    pub(crate) pause_ns: u64,
}

impl Habits {
    /// A client of an array of `sectors`, whose stripes hold `stripe` sectors. `hot` is where many of them meet.
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
pub(crate) async fn client(volume: Volume, shop: Rc<Shop>, habits: Habits, mut rng: Rng) {
    let mut at = 0;
    for _ in 0..habits.requests {
        if shop.is_over() {
            break;
        }
        shop.requests.set(shop.requests.get() + 1);
        let sectors = habits.next(&mut rng, &mut at);
        let h = &habits;
        let going = match rng.below(16) {
            n if n < h.reads => read(&volume, &shop, sectors).await,
            n if n < h.reads + h.flushes => flush(&volume, &shop).await,
            n if n < h.reads + h.flushes + h.zeroes => {
                let forced = rng.chance(h.forced, 16);
                zero(&volume, &shop, sectors, forced).await
            }
            n if n < h.reads + h.flushes + h.zeroes + h.discards => discard(&volume, &shop, sectors).await,
            15 if h.ordered && sectors.end <= (sectors.start / h.stripe + 1) * h.stripe => {
                write_pair(&volume, &shop, sectors).await
            }
            _ => {
                let forced = rng.chance(h.forced, 16);
                write(&volume, &shop, sectors, forced).await
            }
        };
        if !going {
            break;
        }
        if habits.pause_ns > 0 && rng.chance(1, 4) {
            shard::sleep(rng.below(habits.pause_ns)).await;
        }
    }
    shop.open.set(shop.open.get() - 1);
}

fn bytes(sectors: &Range<u64>) -> u64 {
    (sectors.end - sectors.start) * 512
}

/// Reads and checks. False after an error.
pub(crate) async fn read(volume: &Volume, shop: &Shop, sectors: Range<u64>) -> bool {
    let id = shop.ledger.borrow_mut().begin_read(sectors.clone());
    let (result, buffer) = volume.read(sectors.start * 512, shard::buffer(index(bytes(&sectors)))).await;
    match result {
        Ok(()) => {
            if let Err(violation) = shop.ledger.borrow_mut().check_read(id, &buffer) {
                shop.accuse(Verdict::Value(Box::new(violation)));
                return false;
            }
        }
        Err(error) => {
            shop.ledger.borrow_mut().abandon_read(id);
            shop.failed(&format!("read of sectors {sectors:?}"), &error);
            return false;
        }
    }
    true
}

async fn write(volume: &Volume, shop: &Shop, sectors: Range<u64>, forced: bool) -> bool {
    let mut data = shard::buffer(index(bytes(&sectors)));
    let id = shop.ledger.borrow_mut().begin_write(sectors.start, &mut data, forced);
    let result = volume.write(sectors.start * 512, data.freeze(), forced).await;
    shop.ledger.borrow_mut().complete_write(id, result.is_ok());
    result.inspect_err(|error| shop.failed(&format!("write of sectors {sectors:?}"), error)).is_ok()
}

/// Two writes of the same sectors of one stripe, submitted one after the other: the second one must win (C11).
async fn write_pair(volume: &Volume, shop: &Shop, sectors: Range<u64>) -> bool {
    let mut data = [0; 2].map(|_| shard::buffer(index(bytes(&sectors))));
    let ids = {
        let mut ledger = shop.ledger.borrow_mut();
        let ids = data.each_mut().map(|data| ledger.begin_write(sectors.start, data, false));
        ledger.order(ids[0], ids[1]);
        ids
    };
    let mut writes = data.map(|data| Some(Box::pin(volume.write(sectors.start * 512, data.freeze(), false))));
    let mut fine = true;
    std::future::poll_fn(|cx| {
        for (write, id) in writes.iter_mut().zip(ids) {
            if let Some(pending) = write
                && let Poll::Ready(result) = pending.as_mut().poll(cx)
            {
                *write = None;
                shop.ledger.borrow_mut().complete_write(id, result.is_ok());
                if let Err(error) = result {
                    shop.failed(&format!("write of sectors {sectors:?}"), &error);
                    fine = false;
                }
            }
        }
        if writes.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    fine
}

async fn zero(volume: &Volume, shop: &Shop, sectors: Range<u64>, forced: bool) -> bool {
    let id = shop.ledger.borrow_mut().begin_zeroes(sectors.clone(), forced);
    let result = volume.write_zeroes(sectors.start * 512, bytes(&sectors), forced).await;
    shop.ledger.borrow_mut().complete_write(id, result.is_ok());
    result.inspect_err(|error| shop.failed(&format!("zeroing of sectors {sectors:?}"), error)).is_ok()
}

async fn discard(volume: &Volume, shop: &Shop, sectors: Range<u64>) -> bool {
    let id = shop.ledger.borrow_mut().begin_discard(sectors.clone());
    let result = volume.discard(sectors.start * 512, bytes(&sectors)).await;
    shop.ledger.borrow_mut().complete_write(id, result.is_ok());
    result.inspect_err(|error| shop.failed(&format!("discard of sectors {sectors:?}"), error)).is_ok()
}

async fn flush(volume: &Volume, shop: &Shop) -> bool {
    let id = shop.ledger.borrow_mut().begin_flush();
    let result = volume.flush().await;
    shop.ledger.borrow_mut().complete_flush(id, result.is_ok());
    result.inspect_err(|error| shop.failed("flush", error)).is_ok()
}

/// Reads and checks everything, in pieces of some rows.
pub(crate) async fn read_all(volume: Volume, shop: Rc<Shop>, sectors: u64) {
    const STEP: u64 = 128;
    for at in (0..sectors).step_by(index(STEP)) {
        if shop.is_over() || !read(&volume, &shop, at..sectors.min(at + STEP)).await {
            break;
        }
    }
    shop.open.set(shop.open.get() - 1);
}
