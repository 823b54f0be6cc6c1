//! What a stripe write works with, and keeps for the next one.

use pinstripe_runtime::{Slice, SubmissionSet};

use super::pre_read::PreRead;
use crate::{
    consistency::{Logged, Precedence},
    geometry::{MEMBERS_MAX, Set64},
    members::missed::Missed,
    offload::assign::Assignment,
    plan::{Plan, Transfer},
    stripe::image::{Image, Parts},
};

/// A batch of so many pieces needs no more memory than a context has from the start.
const ROOM: usize = 64;

/// Every piece may have runs of its own, and each of them reads data and parity.
const ROOM_FOR_TRANSFERS: usize = 4 * ROOM;

/// What a stripe write works with; pooled.
pub(crate) struct WriteContext {
    pub(super) image: Image,
    pub(super) plan: Plan,
    pub(super) pre_read: PreRead,
    /// New parity by run of the plan.
    pub(super) parity: Vec<[Option<Slice>; 2]>,
    /// Slots with sectors that could not be read, under the membership of this generation: another one may
    /// have other members in them.
    pub(super) avoid: Set64,
    pub(super) generation: u64,
    /// Requests to members, each with its place in the view.
    pub(super) set: SubmissionSet<(usize, Transfer)>,
    /// What members have not taken.
    pub(super) missed: Missed,
    /// The log can't take the batch in one: what comes after the image, last first. No write joins any more.
    pub(super) rest: Vec<Parts>,
    pub(super) is_split: bool,
    pub(super) company: Company,
    /// Whether it waits for the neighbours of a sequential stream.
    pub(super) gathers: bool,
    /// Cached pages that go with it, by where they begin in the stripe.
    pub(super) carried: Vec<u32>,
    pub(super) precedence: Precedence,
    /// Whether the members' requests are timed, request by request: a slow member must not make the others
    /// look slow.
    pub(super) timed: bool,
    /// A member failed, and before that is recorded the log must not forget what it may have missed.
    pub(super) logged: Logged,
    /// What the members' servers do.
    pub(super) remote: Remote,
}

/// Whether other writes are in a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    /// None have joined.
    None,
    /// Some have.
    Joined,
    /// None may join.
    Refused,
}

/// What the servers do of a stripe write.
#[derive(Default)]
pub(super) struct Remote {
    /// One operation each. Empty: the client does everything.
    pub(super) jobs: Vec<Job>,
    /// The servers could not do this batch.
    pub(super) failed: bool,
}

/// A range of a run that is one operation.
#[derive(Clone, Copy)]
pub(super) struct Job {
    /// The run's number in the plan.
    pub(super) run: usize,
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) assignment: Assignment,
}

impl Default for WriteContext {
    fn default() -> Self {
        Self {
            image: Image::with_room(ROOM),
            plan: Plan::with_room(ROOM),
            pre_read: PreRead {
                transfers: Vec::with_capacity(ROOM_FOR_TRANSFERS),
                bytes: Vec::with_capacity(ROOM_FOR_TRANSFERS),
                rows: Vec::with_capacity(2 * ROOM),
                recovered: Vec::new(),
                out_of_sync: false,
                columns: Vec::with_capacity(MEMBERS_MAX),
            },
            parity: Vec::with_capacity(2 * ROOM),
            avoid: Set64::EMPTY,
            generation: 0,
            set: SubmissionSet::with_room(ROOM_FOR_TRANSFERS),
            missed: Missed::default(),
            rest: Vec::new(),
            is_split: false,
            company: Company::None,
            gathers: false,
            carried: Vec::new(),
            precedence: Precedence::None,
            timed: false,
            logged: Logged::Nothing,
            remote: Remote::default(),
        }
    }
}

impl WriteContext {
    /// Leaves one column in the image, for a log that can't take all of it in one. What else there is comes
    /// after it.
    pub(super) fn split(&mut self, chunk: u32) {
        let rest = self.image.split(chunk, ROOM);
        self.rest.extend(rest);
        self.is_split = true;
    }

    /// Lets go of what was read and computed.
    pub(super) fn let_go(&mut self) {
        self.pre_read.clear();
        self.parity.clear();
    }

    /// Lets go of every buffer and of all that was found out; the vectors are used again, unless a rare batch
    /// has made them large.
    pub(super) fn end(&mut self) {
        if self.image.has_outgrown(ROOM) {
            *self = Self::default();
            return;
        }
        self.image.clear();
        self.let_go();
        self.avoid = Set64::EMPTY;
        self.set.clear();
        self.missed.clear();
        self.rest.clear();
        self.logged = Logged::Nothing;
        self.remote.clear();
        self.is_split = false;
        self.company = Company::None;
        self.carried.clear();
        self.precedence = Precedence::None;
    }
}

impl Job {
    pub(super) fn length(&self) -> u32 {
        self.end - self.start
    }
}
