//! What came of each mutant, kept in a file while it is found out, and held against the list of what is
//! explained.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::Mutant;

/// The reviewed list.
const ACCEPTED: &str = "docs/results/mutation-accepted.json";

/// What came of a mutant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// A run failed.
    Killed {
        /// Which.
        by: String,
        /// It didn't end in time.
        hung: bool,
    },
    /// So many runs passed.
    Survived {
        /// How many.
        tried: usize,
    },
    /// No run comes there.
    NotReached,
    /// The compiler refuses it, or it stood too near to one that it refuses.
    DoesNotCompile,
}

impl Verdict {
    /// Whether nothing was found that it breaks.
    pub fn is_survival(&self) -> bool {
        matches!(self, Self::Survived { .. } | Self::NotReached)
    }

    /// For people.
    pub fn words(&self) -> String {
        match self {
            Self::Killed { by, hung: false } => format!("killed by {by}"),
            Self::Killed { by, hung: true } => format!("killed by {by}, which hung"),
            Self::Survived { tried } => format!("survived {tried} runs"),
            Self::NotReached => "not reached".to_owned(),
            Self::DoesNotCompile => "doesn't compile".to_owned(),
        }
    }
}

/// A mutant and its verdict.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    key: String,
    file: String,
    line: usize,
    operator: String,
    source: String,
    #[serde(flatten)]
    verdict: Verdict,
}

impl Outcome {
    /// Of this mutant.
    pub fn new(mutant: &Mutant, verdict: Verdict) -> Self {
        Self {
            key: mutant.key.clone(),
            file: mutant.file.clone(),
            line: mutant.candidate.line,
            operator: mutant.candidate.operator.to_owned(),
            source: mutant.line_text.clone(),
            verdict,
        }
    }
}

/// Why a survivor is no gap.
#[derive(Clone, Debug, Deserialize)]
struct Accepted {
    key: String,
    /// The line that is mutated, for readers of the list.
    #[expect(dead_code, reason = "for readers")]
    source: String,
    reason: String,
}

/// All outcomes so far, of this sample and of earlier ones.
pub struct Report {
    path: PathBuf,
    outcomes: BTreeMap<String, Outcome>,
}

impl Report {
    /// What is known already, unless all is to be tried anew.
    pub fn load(path: &Path, anew: bool) -> Self {
        let known = fs::read(path).ok().filter(|_| !anew);
        let known: Vec<Outcome> =
            known.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let outcomes = known.into_iter().map(|outcome| (outcome.key.clone(), outcome)).collect();
        Self { path: path.to_owned(), outcomes }
    }

    /// Whether it was killed before.
    pub fn is_killed(&self, key: &str) -> bool {
        matches!(self.outcomes.get(key), Some(Outcome { verdict: Verdict::Killed { .. }, .. }))
    }

    /// Keeps an outcome, also on disk.
    pub fn note(&mut self, outcome: Outcome) -> Result<()> {
        self.outcomes.insert(outcome.key.clone(), outcome);
        let all: Vec<&Outcome> = self.outcomes.values().collect();
        let new = self.path.with_extension("new");
        fs::write(&new, serde_json::to_vec_pretty(&all)?)?;
        fs::rename(&new, &self.path)?;
        Ok(())
    }

    /// Prints what came of these; fails if a survivor isn't in the reviewed list.
    pub fn finish(&self, root: &Path, mutants: &[Mutant]) -> Result<()> {
        let accepted = accepted(&root.join(ACCEPTED))?;
        let of = |mutant: &&Mutant| self.outcomes.get(&mutant.key).map(|outcome| &outcome.verdict);
        let count = |which: &dyn Fn(&Verdict) -> bool| {
            mutants.iter().filter(|mutant| of(mutant).is_some_and(which)).count()
        };
        let survivors: Vec<&Mutant> =
            mutants.iter().filter(|mutant| of(mutant).is_some_and(Verdict::is_survival)).collect();
        let (explained, unexplained): (Vec<&Mutant>, Vec<&Mutant>) =
            survivors.into_iter().partition(|mutant| accepted.contains_key(&mutant.key));
        for mutant in &unexplained {
            let verdict = of(mutant).map(Verdict::words).unwrap_or_default();
            println!("{verdict}: {}\n    {}", mutant.words(), mutant.key);
        }
        for mutant in &explained {
            println!("explained: {}: {}", mutant.words(), accepted[&mutant.key]);
        }
        let killed = count(&|verdict| matches!(verdict, Verdict::Killed { .. }));
        let hung = count(&|verdict| matches!(verdict, Verdict::Killed { hung: true, .. }));
        let refused = count(&|verdict| *verdict == Verdict::DoesNotCompile);
        println!(
            "mutate: {killed} killed ({hung} by a run that hung), {} survivors explained, {refused} don't compile",
            explained.len()
        );
        println!("mutate: {} passed, {} failed", killed + explained.len(), unexplained.len());
        if !unexplained.is_empty() {
            bail!(
                "mutants survived: add a test that finds them, or say in {ACCEPTED} why they change nothing"
            );
        }
        Ok(())
    }
}

fn accepted(path: &Path) -> Result<BTreeMap<String, String>> {
    let bytes = fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let list: Vec<Accepted> =
        serde_json::from_slice(&bytes).with_context(|| format!("parse {}", path.display()))?;
    let mut keys = BTreeSet::new();
    for one in &list {
        if !keys.insert(&one.key) || one.reason.trim().is_empty() {
            bail!("{}: {} stands there twice, or without a reason", path.display(), one.key);
        }
    }
    Ok(list.into_iter().map(|one| (one.key, one.reason)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reviewed_list_can_be_read_and_gives_reasons() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        accepted(&root.join(ACCEPTED)).unwrap();
    }

    #[test]
    fn a_report_goes_on_where_it_was() {
        let folder = tempfile();
        let path = folder.join("report.json");
        let outcome = |key: &str, verdict| Outcome {
            key: key.to_owned(),
            file: String::new(),
            line: 1,
            operator: String::new(),
            source: String::new(),
            verdict,
        };
        let mut report = Report::load(&path, false);
        report.note(outcome("a", Verdict::Killed { by: "seed 1".to_owned(), hung: false })).unwrap();
        report.note(outcome("b", Verdict::Survived { tried: 3 })).unwrap();
        let again = Report::load(&path, false);
        assert!(again.is_killed("a") && !again.is_killed("b") && !again.is_killed("c"));
        assert!(!Report::load(&path, true).is_killed("a"));
        fs::remove_dir_all(folder).unwrap();
    }

    fn tempfile() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("mutate-report-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }
}
