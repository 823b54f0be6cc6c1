//! Which task writes a stripe now, which writes joined it, and which comes next.
//!
//! Every stripe maps to one bucket of a fixed table (direct-mapped: neighbours never collide, others that do
//! simply wait). A bucket is one word: *held*, and the head of a list of nodes that arrived while it was
//! held.
//! All that can happen:
//!
//! ```text
//!   free ──CAS──> held ──CAS, push a node──> held, list ──exchange, take the list──> held
//!     ^            │ list empty: CAS                         │ list not empty
//!     └────────────┘                                         └── the oldest waiter becomes the owner, the rest goes with it
//! ```
//!
//! The owner takes the list whenever it wants to let others *join*: pieces for its own stripe go into its
//! batch, all others stay in its private queue, in arrival order (a lock-free stack gives last-in first-out,
//! so each taken list is turned round, C11). The last take before parity is computed closes the join window:
//! what is pushed later is not seen until the release, so no follower can be lost between "too late to join"
//! and "waiting" – they are the same push.
//!
//! Release hands the bucket to the oldest waiter and to no other (C12): no stampede, no starvation: a waiter
//! waits for at most the writes that arrived before it. The word needs no generation: a push is right
//! whenever the head it links to is still the head, and a take empties the list whatever it holds, so ABA
//! can't do harm.
//!
//! Nodes live in an arena of fixed size, a share per shard. The payload moves to the owner with the join and
//! the answer comes back through the node. Where a shard has no node left, claims wait in line, until there
//! is one or their bucket is free.

use std::{future::Future, pin::Pin, task::Context, task::Poll, task::Waker};

use super::line::{FreeNodes, Ticket, Turn};
use crate::mutants::{Mutant, active};

use pinstripe_runtime::atomics::{AtomicU32, AtomicU64, Mutex, Ordering};

const FREE: u64 = 0;
const HELD: u64 = 1 << 63;
/// Node numbers in lists are one higher than indices; 0 ends a list.
const END: u32 = 0;

// States of a node.
const WAITING: u32 = 0;
const GRANTED: u32 = 1;
const ANSWERED: u32 = 2;
const ABANDONED: u32 = 3;

struct Node<P, R> {
    next: AtomicU32,
    state: AtomicU32,
    stripe: AtomicU64,
    data: Mutex<NodeData<P, R>>,
}

struct NodeData<P, R> {
    /// What a joiner wants written; `None` for an exclusive claim, and once the owner has taken it.
    payload: Option<P>,
    answer: Option<R>,
    waker: Option<Waker>,
    /// On a grant: the queue that goes with the bucket.
    queue: List,
}

/// A list of nodes, linked from the oldest to the youngest.
#[derive(Clone, Copy, Default)]
struct List {
    head: u32,
    tail: u32,
}

/// The table. `P` is what joins, `R` what a batch answers.
pub struct StripeTable<P, R> {
    buckets: Box<[AtomicU64]>,
    nodes: Box<[Node<P, R>]>,
    /// By shard.
    free: Box<[FreeNodes]>,
    /// How many wait for a node, in all lines.
    in_line: AtomicU32,
}

/// What [`StripeTable::claim`] came to.
pub enum Entered<'t, P: 'static, R: Clone + 'static> {
    /// The bucket is ours; the payload, which no other task has seen, comes back.
    Owner(Claim<'t, P, R>, Option<P>),
    /// An owner took our payload into its batch; this is the batch's answer, `None` if the owner vanished.
    Joined(Option<R>),
}

fn locked<T>(mutex: &Mutex<T>) -> pinstripe_runtime::atomics::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl<P: 'static, R: Clone + 'static> StripeTable<P, R> {
    /// A table of `buckets` buckets (rounded up to a power of two) for `shards` shards with `nodes_per_shard`
    /// waiters each.
    pub fn new(buckets: usize, shards: usize, nodes_per_shard: usize) -> Self {
        let node = |_| Node {
            next: AtomicU32::new(END),
            state: AtomicU32::new(WAITING),
            stripe: AtomicU64::new(0),
            data: Mutex::new(NodeData { payload: None, answer: None, waker: None, queue: List::default() }),
        };
        let indices = |shard: usize| -> Vec<u32> {
            (shard * nodes_per_shard..(shard + 1) * nodes_per_shard)
                .filter_map(|i| u32::try_from(i + 1).ok())
                .collect()
        };
        Self {
            buckets: (0..buckets.next_power_of_two()).map(|_| AtomicU64::new(FREE)).collect(),
            nodes: (0..shards * nodes_per_shard).map(node).collect(),
            free: (0..shards).map(|shard| FreeNodes::new(indices(shard))).collect(),
            in_line: AtomicU32::new(0),
        }
    }

    fn bucket_of(&self, stripe: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "masked to the table's size")]
        let bucket = stripe as usize & (self.buckets.len() - 1);
        bucket
    }

    /// The number of the bucket that `stripe` takes.
    pub fn bucket_number(&self, stripe: u64) -> u64 {
        self.bucket_of(stripe) as u64
    }

    fn node(&self, number: u32) -> &Node<P, R> {
        &self.nodes[number as usize - 1]
    }

    /// Takes the bucket of `stripe` if it is free, without waiting.
    pub fn try_claim(&self, stripe: u64) -> Option<Claim<'_, P, R>> {
        let bucket = self.bucket_of(stripe);
        self.buckets[bucket].compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).ok().map(
            |_| Claim { table: self, bucket, stripe, queue: List::default(), followers: List::default() },
        )
    }

    /// Claims `stripe`, or joins its owner's write with `payload` (an exclusive claim has none and never
    /// joins). `shard` is the caller's index. The caller must hold no other claim (C12).
    pub async fn claim(&self, shard: usize, stripe: u64, payload: Option<P>) -> Entered<'_, P, R> {
        let Some(entered) = self.claim_if(shard, stripe, payload, || true).await else {
            unreachable!("it is wanted")
        };
        entered
    }

    /// The same if it `is_wanted` at the moment when it takes its place before all later claims: what is
    /// asked for again takes a place behind it then.
    pub async fn claim_if(
        &self,
        shard: usize,
        stripe: u64,
        payload: Option<P>,
        is_wanted: impl Fn() -> bool,
    ) -> Option<Entered<'_, P, R>> {
        if !is_wanted() {
            return None;
        }
        if !self.is_passing(shard, stripe)
            && let Some(claim) = self.try_claim(stripe)
        {
            return Some(Entered::Owner(claim, payload));
        }
        let number = match self.free[shard].take() {
            Some(number) => number,
            None => match self.stand_in_line(shard, stripe).await {
                Ok(claim) => return is_wanted().then_some(Entered::Owner(claim, payload)),
                // Other shards have nodes of their own, and may have passed it.
                Err(number) if !is_wanted() => {
                    self.return_node(number);
                    return None;
                }
                Err(number) => number,
            },
        };
        Some(match self.push(number, stripe, payload) {
            Pushed::Free(claim, payload) => {
                self.return_node(number);
                Entered::Owner(claim, payload)
            }
            Pushed::Waiting => Wait { table: self, number, bucket: self.bucket_of(stripe), stripe }.await,
        })
    }

    fn push(&self, number: u32, stripe: u64, payload: Option<P>) -> Pushed<'_, P, R> {
        let bucket = self.bucket_of(stripe);
        let node = self.node(number);
        node.stripe.store(stripe, Ordering::Relaxed);
        node.state.store(WAITING, Ordering::Relaxed);
        *locked(&node.data) = NodeData { payload, answer: None, waker: None, queue: List::default() };
        loop {
            let word = self.buckets[bucket].load(Ordering::Relaxed);
            if word == FREE {
                if let Some(claim) = self.try_claim(stripe) {
                    return Pushed::Free(claim, locked(&node.data).payload.take());
                }
                continue;
            }
            #[expect(clippy::cast_possible_truncation, reason = "the low half of the word is the head")]
            node.next.store(word as u32, Ordering::Relaxed);
            let pushed = HELD | u64::from(number);
            if self.buckets[bucket]
                .compare_exchange_weak(word, pushed, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return Pushed::Waiting;
            }
        }
    }

    /// Whether something on this shard came for the bucket before, and waits for a node.
    #[inline]
    fn is_passing(&self, shard: usize, stripe: u64) -> bool {
        // What this shard has in line, it has counted itself.
        self.in_line.load(Ordering::Relaxed) > 0
            && self.free[shard].is_awaited(self.bucket_of(stripe))
            && !active(Mutant::LinePassed)
    }

    /// Waits for the bucket to be free, or for a node. What has a node must be pushed at once: others are in
    /// line behind it.
    #[cold]
    fn stand_in_line(&self, shard: usize, stripe: u64) -> InLine<'_, P, R> {
        let ticket = self.free[shard].join(self.bucket_of(stripe));
        self.in_line.fetch_add(1, Ordering::Relaxed);
        InLine { table: self, shard, stripe, ticket: Some(ticket) }
    }

    /// The same as [`Self::try_claim`], for what is in line: either it finds the bucket free, or what frees
    /// the bucket finds something in line.
    fn try_claim_in_line(&self, stripe: u64) -> Option<Claim<'_, P, R>> {
        // Of two changes of one word the later sees what was before the earlier one.
        let word = self.buckets[self.bucket_of(stripe)].fetch_or(0, Ordering::AcqRel);
        if word == FREE { self.try_claim(stripe) } else { None }
    }

    #[inline]
    fn bucket_freed(&self, bucket: usize) {
        if self.in_line.load(Ordering::Relaxed) > 0 {
            self.free.iter().for_each(|free| free.bucket_freed(bucket));
        }
    }

    fn return_node(&self, number: u32) {
        let shard = (number as usize - 1) / (self.nodes.len() / self.free.len());
        self.free[shard].give_back(number);
    }

    /// Whether no bucket is held and every node is free: nothing leaked.
    pub fn is_idle(&self) -> bool {
        let free: usize = self.free.iter().map(FreeNodes::count).sum();
        free == self.nodes.len() && self.buckets.iter().all(|s| s.load(Ordering::Acquire) == FREE)
    }
}

enum Pushed<'t, P: 'static, R: Clone + 'static> {
    Waiting,
    Free(Claim<'t, P, R>, Option<P>),
}

/// A place in a shard's line, until there is a node or the bucket is free.
struct InLine<'t, P: 'static, R: Clone + 'static> {
    table: &'t StripeTable<P, R>,
    shard: usize,
    stripe: u64,
    /// `None` once its turn has been.
    ticket: Option<Ticket>,
}

impl<'t, P: 'static, R: Clone + 'static> Future for InLine<'t, P, R> {
    type Output = Result<Claim<'t, P, R>, u32>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(ticket) = self.ticket else { unreachable!("its turn has been") };
        let (table, stripe) = (self.table, self.stripe);
        let claim = || if active(Mutant::LinePassed) { None } else { table.try_claim_in_line(stripe) };
        let turn = match table.free[self.shard].poll(ticket, cx.waker(), claim) {
            Turn::Bucket(claim) => Ok(claim),
            Turn::Node(number) => Err(number),
            Turn::Waiting => return Poll::Pending,
        };
        self.ticket = None;
        table.in_line.fetch_sub(1, Ordering::Relaxed);
        Poll::Ready(turn)
    }
}

impl<P: 'static, R: Clone + 'static> Drop for InLine<'_, P, R> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.table.free[self.shard].leave(ticket);
            self.table.in_line.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A node in some list, until its owner grants the bucket or answers.
struct Wait<'t, P: 'static, R: Clone + 'static> {
    table: &'t StripeTable<P, R>,
    number: u32,
    bucket: usize,
    stripe: u64,
}

impl<'t, P: 'static, R: Clone + 'static> Wait<'t, P, R> {
    fn granted(&self) -> Claim<'t, P, R> {
        let queue = locked(&self.table.node(self.number).data).queue;
        Claim {
            table: self.table,
            bucket: self.bucket,
            stripe: self.stripe,
            queue,
            followers: List::default(),
        }
    }

    /// What the node has come to, which frees it.
    fn take(&mut self) -> Option<Entered<'t, P, R>> {
        let node = self.table.node(self.number);
        let entered = match node.state.load(Ordering::Acquire) {
            GRANTED => {
                let claim = self.granted();
                let payload = locked(&node.data).payload.take();
                Entered::Owner(claim, payload)
            }
            ANSWERED => Entered::Joined(locked(&node.data).answer.take()),
            _ => return None,
        };
        self.table.return_node(self.number);
        self.number = END;
        Some(entered)
    }
}

impl<'t, P: 'static, R: Clone + 'static> Future for Wait<'t, P, R> {
    type Output = Entered<'t, P, R>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(entered) = self.take() {
            return Poll::Ready(entered);
        }
        // The owner changes the state under this lock, so it finds the waker or we find the state.
        let table = self.table;
        let mut data = locked(&table.node(self.number).data);
        if table.node(self.number).state.load(Ordering::Acquire) == WAITING {
            data.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        drop(data);
        self.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<P: 'static, R: Clone + 'static> Drop for Wait<'_, P, R> {
    fn drop(&mut self) {
        if self.number == END {
            return;
        }
        let node = self.table.node(self.number);
        if node.state.compare_exchange(WAITING, ABANDONED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // A grant without a waiter goes on to the next; dropping the claim does that.
            drop(self.take());
        }
    }
}

/// The right to change one stripe. Dropping it releases the bucket; followers that were not answered learn
/// that.
pub struct Claim<'t, P: 'static, R: Clone + 'static> {
    table: &'t StripeTable<P, R>,
    bucket: usize,
    stripe: u64,
    /// Nodes that wait for this bucket, oldest first, as far as taken from the word.
    queue: List,
    /// Nodes that joined, in arrival order.
    followers: List,
}

impl<P: 'static, R: Clone + 'static> Claim<'_, P, R> {
    /// The claimed stripe.
    pub fn stripe(&self) -> u64 {
        self.stripe
    }

    /// Whether any node waits for this bucket, also one that [`Claim::join`] has left.
    pub fn has_arrivals(&self) -> bool {
        self.table.buckets[self.bucket].load(Ordering::Relaxed) != HELD || self.queue.head != END
    }

    /// Lets at most `limit` writes of this stripe that have arrived by now join; each payload goes to `each`,
    /// in arrival order.
    pub fn join(&mut self, limit: usize, mut each: impl FnMut(P)) -> usize {
        self.take_arrivals();
        let mut joined = 0;
        let mut rest = List::default();
        let mut number = self.queue.head;
        while number != END {
            let node = self.table.node(number);
            let next = node.next.load(Ordering::Relaxed);
            let same = node.stripe.load(Ordering::Relaxed) == self.stripe || active(Mutant::JoinsOtherStripe);
            let payload = if joined < limit && same { locked(&node.data).payload.take() } else { None };
            if let Some(payload) = payload {
                joined += 1;
                Self::append(self.table, &mut self.followers, number);
                each(payload);
            } else {
                Self::append(self.table, &mut rest, number);
            }
            number = next;
        }
        self.queue = rest;
        joined
    }

    /// Answers every write that joined, and ends the claim.
    pub fn finish(mut self, answer: &R) {
        self.answer(Some(answer));
    }

    fn append(table: &StripeTable<P, R>, list: &mut List, number: u32) {
        table.node(number).next.store(END, Ordering::Relaxed);
        if list.head == END {
            list.head = number;
        } else {
            table.node(list.tail).next.store(number, Ordering::Relaxed);
        }
        list.tail = number;
    }

    /// Moves what was pushed to the word to the end of the queue, in arrival order.
    fn take_arrivals(&mut self) {
        #[expect(clippy::cast_possible_truncation, reason = "the low half of the word is the head")]
        let number = self.table.buckets[self.bucket].swap(HELD, Ordering::AcqRel) as u32;
        let turned = self.turn(number);
        let mut turned = if active(Mutant::ArrivalsNotTurned) { self.turn(turned) } else { turned };
        while turned != END {
            let after = self.table.node(turned).next.load(Ordering::Relaxed);
            Self::append(self.table, &mut self.queue, turned);
            turned = after;
        }
    }

    /// Turns the list round that begins with `number`.
    fn turn(&self, mut number: u32) -> u32 {
        let mut turned = END;
        while number != END {
            let next = &self.table.node(number).next;
            let after = next.load(Ordering::Relaxed);
            next.store(turned, Ordering::Relaxed);
            turned = number;
            number = after;
        }
        turned
    }

    fn pop(table: &StripeTable<P, R>, list: &mut List) -> Option<u32> {
        let number = list.head;
        if number == END {
            return None;
        }
        list.head = table.node(number).next.load(Ordering::Relaxed);
        Some(number)
    }

    fn answer(&mut self, answer: Option<&R>) {
        while let Some(number) = Self::pop(self.table, &mut self.followers) {
            self.resolve(number, ANSWERED, |data| data.answer = answer.cloned());
        }
    }

    /// Ends a node's wait. False if its waiter is gone: the node is freed then.
    fn resolve(&self, number: u32, state: u32, prepare: impl FnOnce(&mut NodeData<P, R>)) -> bool {
        let node = self.table.node(number);
        let waker = {
            let mut data = locked(&node.data);
            prepare(&mut data);
            if node.state.compare_exchange(WAITING, state, Ordering::AcqRel, Ordering::Acquire).is_err() {
                data.payload = None;
                drop(data);
                self.table.return_node(number);
                return false;
            }
            data.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    fn release(&mut self) {
        let word = &self.table.buckets[self.bucket];
        loop {
            if let Some(oldest) = Self::pop(self.table, &mut self.queue) {
                let queue = std::mem::take(&mut self.queue);
                if self.resolve(oldest, GRANTED, |data| data.queue = queue) {
                    return;
                }
                self.queue = queue;
            } else if word.compare_exchange(HELD, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                || active(Mutant::ReleaseForgetsArrivals) && word.swap(FREE, Ordering::AcqRel) != FREE
            {
                return self.table.bucket_freed(self.bucket);
            } else {
                self.take_arrivals();
            }
        }
    }
}

impl<P: 'static, R: Clone + 'static> Drop for Claim<'_, P, R> {
    fn drop(&mut self) {
        self.answer(None);
        self.release();
    }
}
