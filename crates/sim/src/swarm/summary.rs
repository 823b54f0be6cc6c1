//! What a run says when it is over.

use super::Verdict;

/// What a run was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Hash of all events.
    pub trace: u64,
    /// Steps of the world.
    pub steps: u64,
    /// Requests of users.
    pub requests: u64,
    /// How often the machine or the process died.
    pub crashes: u64,
    /// How often the array was assembled.
    pub assemblies: u64,
    /// Members that were made to fail.
    pub failures: u64,
    /// How often more went than the level bears.
    pub outages: u64,
    /// Spares that were put in.
    pub spares: u64,
    /// Members that were given back after they had been out.
    pub returns: u64,
    /// Of these, how many went on by the bitmap.
    pub readds: u64,
    /// Replacements that were begun.
    pub replacements: u64,
    /// Members that hung for longer than they may.
    pub hangs: u64,
    /// Members that were slow for a while, far slower than is usual.
    pub slow: u64,
    /// How often a process or one of its shards stood still.
    pub stalls: u64,
    /// Journal devices that were lost.
    pub journals_lost: u64,
    /// Writes that went to a wrong place.
    pub lies: u64,
    /// How often a second client took the array over.
    pub takeovers: u64,
    /// Servers that died alone.
    pub servers_lost: u64,
    /// Connections, or all between two servers, that were reset.
    pub links_cut: u64,
    /// How often two didn't hear each other for a while.
    pub partitions: u64,
    /// How often the array was refused, legally.
    pub refusals: u64,
    /// How often it was then forced.
    pub forced: u64,
    /// Members that were lost while rows were torn.
    pub torn_losses: u64,
    /// Disks of which some sectors could not be read after a crash.
    pub rotten: u64,
    /// Runs that were ended because a rebuild would take too long.
    pub abandoned: u64,
    /// How often it came to rest, whole, and was found right.
    pub rests: u64,
}

impl Summary {
    /// Adds another run's counts; the trace of both is one hash.
    pub fn add(&mut self, other: &Self) {
        self.trace = self.trace.rotate_left(1) ^ other.trace;
        self.steps += other.steps;
        self.requests += other.requests;
        self.crashes += other.crashes;
        self.assemblies += other.assemblies;
        self.failures += other.failures;
        self.outages += other.outages;
        self.spares += other.spares;
        self.returns += other.returns;
        self.readds += other.readds;
        self.replacements += other.replacements;
        self.hangs += other.hangs;
        self.slow += other.slow;
        self.stalls += other.stalls;
        self.journals_lost += other.journals_lost;
        self.lies += other.lies;
        self.takeovers += other.takeovers;
        self.servers_lost += other.servers_lost;
        self.links_cut += other.links_cut;
        self.partitions += other.partitions;
        self.refusals += other.refusals;
        self.forced += other.forced;
        self.torn_losses += other.torn_losses;
        self.rotten += other.rotten;
        self.abandoned += other.abandoned;
        self.rests += other.rests;
    }
}

/// A run that the oracle rejects.
#[derive(Debug, thiserror::Error)]
#[error("seed {seed}: {verdict}\n{setup}\n{summary:?}")]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Why.
    pub verdict: Verdict,
    /// What the run was made of.
    pub setup: String,
    /// How far it had come.
    pub summary: Summary,
    /// The last events, if they were kept.
    pub log: String,
}
