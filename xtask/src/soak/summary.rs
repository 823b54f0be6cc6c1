//! What a soak came to.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Value, json};

/// Counts of one array, by what is counted.
pub type Counts = BTreeMap<&'static str, u64>;

/// Counts of all arrays.
pub struct Summary {
    what: &'static str,
    seed: u64,
    start: Instant,
    subjects: BTreeMap<&'static str, Counts>,
}

impl Summary {
    /// Of a soak of this name.
    pub fn new(what: &'static str, seed: u64) -> Self {
        Self { what, seed, start: Instant::now(), subjects: BTreeMap::new() }
    }

    /// Takes over what one array came to.
    pub fn insert(&mut self, subject: &'static str, counts: Counts) {
        self.subjects.insert(subject, counts);
    }

    fn total(&self) -> Counts {
        let mut total = Counts::new();
        for (name, count) in self.subjects.values().flatten() {
            *total.entry(name).or_default() += count;
        }
        total
    }

    /// Prints it, for people or as JSON.
    pub fn print(&self, as_json: bool) {
        let seconds = self.start.elapsed().as_secs();
        if as_json {
            println!("{}", self.json(seconds));
            return;
        }
        for (subject, counts) in &self.subjects {
            println!("{subject:12} {}", in_words(counts));
        }
        println!("{:12} {}", "all", in_words(&self.total()));
        println!("soak {}: seed {}, {seconds} s, nothing lost", self.what, self.seed);
    }

    fn json(&self, seconds: u64) -> Value {
        json!({
            "soak": self.what, "seed": self.seed, "seconds": seconds, "all": self.total(), "subjects": self.subjects,
        })
    }
}

/// Adds to a count.
pub fn add(counts: &mut Counts, name: &'static str, count: u64) {
    *counts.entry(name).or_default() += count;
}

/// Counts in one line.
pub fn in_words(counts: &Counts) -> String {
    counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}
