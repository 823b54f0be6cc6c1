//! A sum of parts that come from many connections, on whatever shards.
//!
//! Nothing is added while the table is locked. A task that brings a part takes the sum away if no other task
//! has it, adds, and brings it back. Parts that come meanwhile wait beside it, and the same task adds them
//! too.

use pinstripe_runtime::Buffer;

/// See the module.
#[derive(Default)]
pub(crate) struct Sum {
    so_far: Option<Buffer>,
    waiting: Vec<Buffer>,
    /// A task has taken `so_far`, and adds.
    taken: bool,
    /// Bit by place: its part has come.
    places: u64,
    /// Parts of the others that must come, once that is known.
    wait: Option<u16>,
    /// Parts of our own that must come.
    own: u8,
}

/// What the task that gets this must add. The first one is the sum so far.
pub(crate) struct Work(Vec<Buffer>);

impl Work {
    /// Adds.
    pub fn add(self) -> Option<Buffer> {
        let mut parts = self.0.into_iter();
        let mut sum = parts.next()?;
        let kernel = pinstripe_parity::kernel();
        for part in parts {
            // Lengths were checked when the parts came.
            kernel.xor_into(&mut sum, &[&part]);
        }
        Some(sum)
    }
}

impl Sum {
    /// How many parts there will be: of others, and of our own. False if more have come already.
    pub fn expect(&mut self, wait: u16, own: u8) -> bool {
        (self.wait, self.own) = (Some(wait), own);
        self.fits()
    }

    /// Whether it is known how many parts there will be.
    pub fn is_expected(&self) -> bool {
        self.wait.is_some()
    }

    /// Notes that the part of `place` has come. False if it had come before.
    pub fn note(&mut self, place: u8) -> bool {
        let new = !self.has(place);
        self.places |= bit(place);
        new
    }

    /// Whether the part of `place` has come.
    pub fn has(&self, place: u8) -> bool {
        self.places & bit(place) != 0
    }

    /// The operation is over: its bytes go, and which parts had come is still known.
    pub fn end(&mut self) {
        *self = Self { places: self.places, ..Self::default() };
    }

    /// Whether not more have come than there should be.
    pub fn fits(&self) -> bool {
        self.wait.is_none_or(|wait| self.places.count_ones() <= u32::from(wait))
    }

    /// A part of our own won't come again.
    pub fn own_has_come(&mut self) {
        self.own = self.own.saturating_sub(1);
    }

    /// Takes a part; what the caller must add now, if anything.
    pub fn take(&mut self, part: Buffer) -> Option<Work> {
        if self.taken {
            self.waiting.push(part);
            return None;
        }
        let Some(so_far) = self.so_far.take() else {
            self.so_far = Some(part);
            return None;
        };
        self.taken = true;
        Some(Work(vec![so_far, part]))
    }

    /// What was added comes back; there may be more to add.
    pub fn put(&mut self, sum: Buffer) -> Option<Work> {
        if self.waiting.is_empty() {
            self.taken = false;
            self.so_far = Some(sum);
            return None;
        }
        let mut parts = vec![sum];
        parts.append(&mut self.waiting);
        Some(Work(parts))
    }

    /// The sum, if all parts have come and are added.
    pub fn whole(&mut self) -> Option<Buffer> {
        let all = self.wait.is_some_and(|wait| u32::from(wait) == self.places.count_ones());
        if all && self.own == 0 && !self.taken { self.so_far.take() } else { None }
    }
}

fn bit(place: u8) -> u64 {
    1 << u64::from(place & 63)
}
