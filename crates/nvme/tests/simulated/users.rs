//! Users of a namespace, and what they know of it.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_nvme::initiator::NvmeSource;
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, DeviceSource, ZeroedReads, shard};
use pinstripe_sim::{Ledger, Rng, SECTOR, WriteId};

/// Sectors of the namespace: few, so that users meet.
pub const SECTORS: u64 = 512;

/// What a user does while the device is there.
const OPERATIONS: usize = 25;

/// What all users share.
pub struct UserState {
    pub ledger: RefCell<Ledger>,
    /// Writes that the loss of the association left undecided. They are over when the server is used again.
    pub lost: RefCell<Vec<WriteId>>,
    pub violations: RefCell<Vec<String>>,
    pub users: Cell<usize>,
}

impl UserState {
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            ledger: RefCell::new(Ledger::new(SECTORS)),
            lost: RefCell::default(),
            violations: RefCell::default(),
            users: Cell::new(0),
        })
    }

    /// What was undecided is over: it happened or it did not, and won't any more.
    pub fn settle(&self) {
        for write in self.lost.take() {
            self.ledger.borrow_mut().complete_write(write, false);
        }
    }

    pub fn complain(&self, words: String) {
        self.violations.borrow_mut().push(words);
    }

    /// Whether the user can go on: the device is still there.
    fn goes_on(&self, what: &str, error: DeviceError) -> bool {
        if error.kind != DeviceErrorKind::Gone {
            self.complain(format!("a {what} failed: {error}"));
        }
        false
    }

    fn written(&self, id: WriteId, what: &str, result: Result<usize, DeviceError>) -> bool {
        match result {
            Ok(_) => {
                self.ledger.borrow_mut().complete_write(id, true);
                true
            }
            Err(error) => {
                self.lost.borrow_mut().push(id);
                self.goes_on(what, error)
            }
        }
    }
}

fn offset(sector: u64) -> u64 {
    sector * SECTOR
}

fn bytes(sectors: &Range<u64>) -> usize {
    usize::try_from((sectors.end - sectors.start) * SECTOR).unwrap()
}

/// Does some random things, fewer if the device goes.
pub async fn user(shop: Rc<UserState>, source: Arc<NvmeSource>, mut rng: Rng, small: bool) {
    if let Ok(device) = source.attach() {
        for _ in 0..OPERATIONS {
            if !operate(&shop, &*device, &mut rng, small).await {
                break;
            }
        }
    }
    shop.users.set(shop.users.get() - 1);
}

async fn operate(shop: &UserState, device: &dyn Device, rng: &mut Rng, small: bool) -> bool {
    // Capsules hold up to 64 sectors, a command up to 2048.
    let count = if small { 1 } else { rng.pick(&[1, 1, 2, 8, 16, 64, 130]) };
    let start = rng.below(SECTORS - count + 1);
    let sectors = start..start + count;
    match rng.below(12) {
        0..5 => write(shop, device, sectors, rng.chance(1, 4)).await,
        5..10 => read(shop, device, sectors).await,
        10 => flush(shop, device).await,
        _ if device.info().zeroes == ZeroedReads::Zero => {
            let id = shop.ledger.borrow_mut().begin_zeroes(sectors.clone(), false);
            let zeroed = device.write_zeroes(offset(start), bytes(&sectors) as u64).await;
            shop.written(id, "zeroing", zeroed.result)
        }
        _ => true,
    }
}

async fn write(shop: &UserState, device: &dyn Device, sectors: Range<u64>, forced: bool) -> bool {
    let mut data = shard::buffer(bytes(&sectors));
    let id = shop.ledger.borrow_mut().begin_write(sectors.start, &mut data, forced);
    let outcome = device.write(offset(sectors.start), data.freeze(), forced).await;
    shop.written(id, "write", outcome.result)
}

/// Reads and checks.
pub async fn read(shop: &UserState, device: &dyn Device, sectors: Range<u64>) -> bool {
    let id = shop.ledger.borrow_mut().begin_read(sectors.clone());
    let outcome = device.read(offset(sectors.start), shard::buffer(bytes(&sectors))).await;
    let Some(buffer) = outcome.buffer.filter(|buffer| buffer.len() == bytes(&sectors)) else {
        shop.complain("a read kept its buffer".to_owned());
        return false;
    };
    match outcome.result {
        Ok(_) => {
            if let Err(violation) = shop.ledger.borrow_mut().check_read(id, &buffer) {
                shop.complain(violation.to_string());
            }
            true
        }
        Err(error) => {
            shop.ledger.borrow_mut().abandon_read(id);
            shop.goes_on("read", error)
        }
    }
}

async fn flush(shop: &UserState, device: &dyn Device) -> bool {
    let id = shop.ledger.borrow_mut().begin_flush();
    let result = device.flush().await.result;
    shop.ledger.borrow_mut().complete_flush(id, result.is_ok());
    result.map_or_else(|error| shop.goes_on("flush", error), |_| true)
}
