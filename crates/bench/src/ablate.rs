//! `bench --ablate`: ideas of Pinstripe, each against what it replaces, and what that costs in locks, waits
//! and hand-offs.
//!
//! Four presets stand for the systems of the papers. What each had is taken from the papers, and said in
//! decision 41 with all that is not as there.

use std::{fmt, str::FromStr};

use clap::ValueEnum;
use pinstripe_engine::{
    ablation::{Ablation, HandOffCost, IntentLocks, LockCost, LockUnit, Metered, StripeLocks, Workers},
    options::ArrayOptions,
};
use serde::Serialize;
use thiserror::Error;

use crate::{
    arguments::{BenchArgs, PolicyChoice, parse_memory},
    report::{by, row},
    run::BenchError,
    worker::SliceOutcome,
};

/// A lock isn't held longer than this.
const HOLD_NS_MAX: u64 = 1_000_000;
const STRIPE_LOCKS_MAX: u32 = 1 << 16;

/// What is to be measured: the arms of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ablate {
    /// The engine's.
    pub ablation: Ablation,
    /// Whether writes join another one of their stripe.
    pub join: bool,
    /// Whether a write of a sequential stream waits for its neighbours.
    pub gather: bool,
    /// Bytes of parity cache, in place of --cache.
    pub cache: Option<u64>,
    /// In place of --policy.
    pub policy: Option<PolicyChoice>,
}

/// Ours, metered.
impl Default for Ablate {
    fn default() -> Self {
        Self { ablation: Ablation::default(), join: true, gather: true, cache: None, policy: None }
    }
}

/// The names of presets.
const PRESETS: [&str; 5] = ["pinstripe", "straid", "scala-raid", "hemi-raid", "orig-raid"];

impl Ablate {
    fn preset(name: &str) -> Option<Self> {
        let md = Self {
            ablation: Ablation {
                stripe: StripeLocks::Global,
                intent: IntentLocks::Lock,
                unit: LockUnit::Page,
                workers: Workers::Pool,
                hold_ns: 0,
            },
            // MD's stripe cache takes writes of the same stripe together, and waits for them.
            join: true,
            gather: true,
            cache: Some(0),
            policy: Some(PolicyChoice::MinReads),
        };
        let stripe = StripeLocks::Hashed(128);
        Some(match name {
            "pinstripe" => Self::default(),
            "straid" => Self {
                ablation: Ablation { intent: IntentLocks::Atomic, ..Ablation::default() },
                join: true,
                // What arrives during the pre-read joins. Nothing waits for more.
                gather: false,
                cache: Some(64 << 20),
                policy: Some(PolicyChoice::MinReads),
            },
            "scala-raid" => {
                Self { ablation: Ablation { stripe, intent: IntentLocks::DBlocks, ..md.ablation }, ..md }
            }
            "hemi-raid" => Self { ablation: Ablation { stripe, ..md.ablation }, ..md },
            "orig-raid" => md,
            _ => return None,
        })
    }

    /// Of the array. Locks and hand-offs take no virtual time, and their meters read real clocks: under it
    /// they are left out.
    pub(crate) fn change(&self, options: &mut ArrayOptions, is_virtual: bool) {
        options.ablation = (!is_virtual).then_some(self.ablation);
        if !self.join {
            options.batch_max = 1;
        }
        if !self.gather {
            options.gather_ns = 0;
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), BadAblation> {
        let bad = |allowed| BadAblation::Value { key: key.to_owned(), value: value.to_owned(), allowed };
        let switch = || match value {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(bad("on, off")),
        };
        match key {
            "stripe" => self.ablation.stripe = stripe_locks(value).ok_or_else(|| bad(STRIPE_WORDS))?,
            "intent" => self.ablation.intent = named(&INTENTS, value).ok_or_else(|| bad(INTENT_WORDS))?,
            "unit" => self.ablation.unit = named(&UNITS, value).ok_or_else(|| bad("stripe, page"))?,
            "worker" => self.ablation.workers = named(&WORKERS, value).ok_or_else(|| bad(WORKER_WORDS))?,
            "join" => self.join = switch()?,
            "gather" => self.gather = switch()?,
            "cache" => self.cache = Some(parse_memory(value).map_err(|_| bad("a size, such as 64M, or 0"))?),
            "policy" => {
                let policy = PolicyChoice::from_str(value, false);
                self.policy = Some(policy.map_err(|_| bad("cost, min-reads, mod-threshold, always-rmw"))?);
            }
            "hold" => {
                let hold = value.parse().ok().filter(|hold| *hold <= HOLD_NS_MAX);
                self.ablation.hold_ns = hold.ok_or_else(|| bad("nanoseconds, at most 1000000"))?;
            }
            _ => return Err(BadAblation::Key(key.to_owned())),
        }
        Ok(())
    }
}

/// A word of the command line for each choice.
type Words<T> = [(&'static str, T)];

const INTENTS: [(&str, IntentLocks); 5] = [
    ("lanes", IntentLocks::Lanes),
    ("atomic", IntentLocks::Atomic),
    ("region-lock", IntentLocks::RegionLock),
    ("d-blocks", IntentLocks::DBlocks),
    ("lock", IntentLocks::Lock),
];
const UNITS: [(&str, LockUnit); 2] = [("stripe", LockUnit::Stripe), ("page", LockUnit::Page)];
const WORKERS: [(&str, Workers); 2] =
    [("run-to-completion", Workers::RunToCompletion), ("pool", Workers::Pool)];
const STRIPE_WORDS: &str = "direct, global, hashed:N with N a power of two up to 65536";
const INTENT_WORDS: &str = "lanes, atomic, region-lock, d-blocks, lock";
const WORKER_WORDS: &str = "run-to-completion, pool";

fn named<T: Copy>(words: &Words<T>, word: &str) -> Option<T> {
    words.iter().find(|(name, _)| *name == word).map(|(_, value)| *value)
}

fn name_of<T: PartialEq>(words: &Words<T>, value: &T) -> &'static str {
    words.iter().find(|(_, known)| known == value).map_or("", |(name, _)| name)
}

fn stripe_locks(word: &str) -> Option<StripeLocks> {
    match word {
        "direct" => Some(StripeLocks::Direct),
        "global" => Some(StripeLocks::Global),
        _ => {
            let count: u32 = word.strip_prefix("hashed:")?.parse().ok()?;
            let fits = count.is_power_of_two() && count <= STRIPE_LOCKS_MAX;
            fits.then_some(StripeLocks::Hashed(count))
        }
    }
}

/// What can't be compared.
#[derive(Debug, Error)]
pub enum BadAblation {
    /// No such arm.
    #[error(
        "there is no arm {0}; there are stripe, unit, intent, worker, join, gather, cache, policy and hold, \
         each with =VALUE, after one of the presets {presets}, or none", presets = PRESETS.join(", ")
    )]
    Key(String),
    /// No such preset.
    #[error("there is no preset {0}; there are {presets}", presets = PRESETS.join(", "))]
    Preset(String),
    /// A preset that would undo what stands before it.
    #[error("the preset {0} must come first")]
    Late(String),
    /// Not for this arm.
    #[error("{key}={value} isn't possible; {key} is one of: {allowed}")]
    Value {
        /// The arm.
        key: String,
        /// What was asked for.
        value: String,
        /// What is possible.
        allowed: &'static str,
    },
}

impl FromStr for Ablate {
    type Err = BadAblation;

    /// A preset or none, then arms that change it.
    fn from_str(text: &str) -> Result<Self, BadAblation> {
        let mut ablate = Self::default();
        for (index, word) in text.split(',').map(str::trim).enumerate() {
            match word.split_once('=') {
                Some((key, value)) => ablate.set(key, value)?,
                None if index > 0 && PRESETS.contains(&word) => {
                    return Err(BadAblation::Late(word.to_owned()));
                }
                None if index > 0 => return Err(BadAblation::Key(word.to_owned())),
                None => {
                    ablate = Self::preset(word).ok_or_else(|| BadAblation::Preset(word.to_owned()))?;
                }
            }
        }
        Ok(ablate)
    }
}

/// `arguments` with the cache and the policy that --ablate asks for.
pub(crate) fn settle(arguments: &BenchArgs) -> Result<BenchArgs, BenchError> {
    let mut settled = arguments.clone();
    let Some(ablate) = &arguments.ablate else { return Ok(settled) };
    let wrong = |words| Err(BenchError::Arguments(words));
    if !arguments.level.has_parity() {
        return wrong("--ablate is about stripes with parity: --level 0 has none");
    }
    let defaults = BenchArgs::defaults();
    if let Some(cache) = ablate.cache {
        if arguments.cache != defaults.cache {
            return wrong("--ablate says how large the cache is: give cache=SIZE there, in place of --cache");
        }
        settled.cache = cache;
    }
    if let Some(policy) = ablate.policy {
        if arguments.policy != defaults.policy {
            return wrong(
                "--ablate says which policy there is: give policy=NAME there, in place of --policy",
            );
        }
        settled.policy = policy;
    }
    Ok(settled)
}

/// The arms of a run, by their names on the command line, and what they cost.
#[derive(Clone, Debug, Serialize)]
pub struct AblationReport {
    /// Around the stripe table.
    pub stripe: String,
    /// What locks are taken for.
    pub unit: &'static str,
    /// Around the bitmap's counters.
    pub intent: &'static str,
    /// What writes stripes.
    pub worker: &'static str,
    /// Whether writes join.
    pub join: bool,
    /// Whether writes wait for their neighbours.
    pub gather: bool,
    /// Nanoseconds that each lock is held besides the work under it.
    pub hold_ns: u64,
    /// At the stripe table.
    pub stripe_locks: LockShare,
    /// At the bitmap's counters.
    pub intent_locks: LockShare,
    /// At the list of what workers are to do.
    pub list_locks: LockShare,
    /// All locks: threads that waited, by the threads' time.
    pub lock_wait_share: f64,
    /// All locks: threads within, by the threads' time.
    pub lock_inside_share: f64,
    /// Stripe writes that waited for another one of their stripe.
    pub stripe_waits: u64,
    /// How long, on average.
    pub stripe_wait_ns: f64,
    /// That, by the time of all requests.
    pub stripe_wait_share: f64,
    /// The hand-off to workers, if there are any.
    pub hand_off: Option<HandOff>,
}

/// What a kind of lock cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LockShare {
    /// Times that it was taken, or that its place was passed where there is none.
    pub entered: u64,
    /// Times that it had to be waited for.
    pub contended: u64,
    /// Threads that waited for it, by the threads' time.
    pub wait_share: f64,
    /// Threads within, by the threads' time. One passage in 16 is timed.
    pub inside_share: f64,
}

/// What the hand-off to workers cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HandOff {
    /// Stripe writes that were handed over. One in 16 is timed.
    pub handed: u64,
    /// Until the worker began, on average.
    pub there_ns: f64,
    /// From the worker's answer until the task went on, on average.
    pub back_ns: f64,
    /// Both, by the time of a stripe write.
    pub share: f64,
}

/// How long a run went on, and how much of it.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    shards: usize,
    wall_ns: u64,
    /// Of all requests together.
    requests_ns: f64,
}

impl Span {
    pub(crate) fn new(shards: usize, outcome: SliceOutcome, latency_mean_ns: f64) -> Self {
        let requests_ns = latency_mean_ns * by(outcome.operations, 1);
        Self { shards, wall_ns: outcome.wall_ns, requests_ns }
    }

    fn threads_ns(self) -> u64 {
        self.wall_ns * self.shards as u64
    }
}

impl LockShare {
    fn new(cost: &LockCost, span: Span) -> Self {
        Self {
            entered: cost.entered,
            contended: cost.contended,
            wait_share: by(cost.waited_ns, span.threads_ns()),
            inside_share: by(cost.inside_ns, span.threads_ns()),
        }
    }

    fn fmt_row(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        row(
            f,
            name,
            format_args!(
                "{:.2}% of the threads' time waiting, {:.2}% inside; {} times, {:.2}% contended",
                self.wait_share * 100.0,
                self.inside_share * 100.0,
                self.entered,
                by(self.contended, self.entered) * 100.0
            ),
        )
    }
}

impl HandOff {
    fn new(cost: &HandOffCost) -> Self {
        Self {
            handed: cost.handed,
            there_ns: by(cost.there_ns, cost.timed),
            back_ns: by(cost.back_ns, cost.timed),
            share: by(cost.there_ns + cost.back_ns, cost.whole_ns),
        }
    }
}

impl AblationReport {
    pub(crate) fn new(ablate: &Ablate, metered: &Metered, span: Span) -> Self {
        let Ablation { stripe, intent, unit, workers, hold_ns } = ablate.ablation;
        let share = |cost| LockShare::new(cost, span);
        let (stripe_locks, intent_locks) = (share(&metered.stripe), share(&metered.intent));
        let list_locks = share(&metered.list);
        let all = [stripe_locks, intent_locks, list_locks];
        let waits = metered.stripe_waits;
        Self {
            stripe: match stripe {
                StripeLocks::Direct => "direct".to_owned(),
                StripeLocks::Global => "global".to_owned(),
                StripeLocks::Hashed(count) => format!("hashed:{count}"),
            },
            unit: name_of(&UNITS, &unit),
            intent: name_of(&INTENTS, &intent),
            worker: name_of(&WORKERS, &workers),
            join: ablate.join,
            gather: ablate.gather,
            hold_ns,
            stripe_locks,
            intent_locks,
            list_locks,
            lock_wait_share: all.iter().map(|share| share.wait_share).sum(),
            lock_inside_share: all.iter().map(|share| share.inside_share).sum(),
            stripe_waits: waits.waits,
            stripe_wait_ns: by(waits.waited_ns, waits.waits),
            stripe_wait_share: by(waits.waited_ns, 1) / span.requests_ns.max(1.0),
            hand_off: (metered.hand_off.handed > 0).then(|| HandOff::new(&metered.hand_off)),
        }
    }

    /// The rows of a report.
    pub(crate) fn fmt_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |on| if on { "on" } else { "off" };
        row(
            f,
            "arms",
            format_args!(
                "stripe={}, unit={}, intent={}, worker={}, join={}, gather={}, hold={}",
                self.stripe,
                self.unit,
                self.intent,
                self.worker,
                word(self.join),
                word(self.gather),
                self.hold_ns
            ),
        )?;
        self.stripe_locks.fmt_row(f, "stripe table")?;
        self.intent_locks.fmt_row(f, "intent counters")?;
        if let Some(hand_off) = &self.hand_off {
            self.list_locks.fmt_row(f, "workers' list")?;
            row(
                f,
                "hand-off",
                format_args!(
                    "{} stripe writes, {:.2} us there, {:.2} us back, {:.1}% of a stripe write",
                    hand_off.handed,
                    hand_off.there_ns / 1e3,
                    hand_off.back_ns / 1e3,
                    hand_off.share * 100.0
                ),
            )?;
        }
        row(
            f,
            "busy stripes",
            format_args!(
                "{} stripe writes waited for another one, {:.2} us each, {:.2}% of all requests' time",
                self.stripe_waits,
                self.stripe_wait_ns / 1e3,
                self.stripe_wait_share * 100.0
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Ablate {
        text.parse().unwrap()
    }

    #[test]
    fn arms_are_named_one_by_one() {
        let ablate = parse("stripe=global,intent=lock,worker=pool,join=off,gather=off,unit=page,hold=250");
        let ablation = Ablation {
            stripe: StripeLocks::Global,
            intent: IntentLocks::Lock,
            unit: LockUnit::Page,
            workers: Workers::Pool,
            hold_ns: 250,
        };
        assert_eq!(ablate, Ablate { ablation, join: false, gather: false, cache: None, policy: None });
    }

    #[test]
    fn what_stands_after_a_preset_changes_it() {
        let md = parse("orig-raid");
        assert_eq!((md.ablation.stripe, md.cache), (StripeLocks::Global, Some(0)));
        let hemi = parse("orig-raid,stripe=hashed:128");
        assert_eq!(hemi, parse("hemi-raid"));
        assert_eq!(parse("hemi-raid,intent=d-blocks"), parse("scala-raid"));
        assert_eq!(parse("orig-raid, cache=1M, cache=2M").cache, Some(2 << 20));
        assert_eq!(parse("pinstripe"), Ablate::default());
        assert_eq!(parse("straid,policy=always-rmw").policy, Some(PolicyChoice::AlwaysRmw));
    }

    #[test]
    fn what_is_not_possible_says_what_is() {
        for (wrong, says) in [
            ("nothing", "there are pinstripe, straid"),
            ("", "there are pinstripe"),
            ("straid,orig-raid", "must come first"),
            ("straid,join", "with =VALUE"),
            ("lock=global", "there are stripe, unit"),
            ("stripe=hashed:3", "hashed:N with N a power of two"),
            ("stripe=hashed:131072", "up to 65536"),
            ("intent=none", "lanes, atomic"),
            ("unit=row", "stripe, page"),
            ("worker=threads", "run-to-completion, pool"),
            ("join=yes", "on, off"),
            ("cache=much", "a size"),
            ("policy=best", "min-reads"),
            ("hold=2000000", "at most 1000000"),
        ] {
            let error = wrong.parse::<Ablate>().unwrap_err().to_string();
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }

    #[test]
    fn shares_are_of_the_threads_time() {
        let stripe = LockCost { entered: 10, contended: 1, waited_ns: 500, inside_ns: 250 };
        let metered = Metered { stripe, intent: stripe, ..Metered::default() };
        let outcome = SliceOutcome { operations: 10, wall_ns: 1000, ..SliceOutcome::default() };
        let report = AblationReport::new(&Ablate::default(), &metered, Span::new(2, outcome, 100.0));
        assert!((report.lock_wait_share - 0.5).abs() < 1e-9, "{report:?}");
        assert!((report.lock_inside_share - 0.25).abs() < 1e-9, "{report:?}");
        assert!(report.hand_off.is_none());
    }
}
