//! A paper's page: what was to be reached, and for each figure what the paper says, a picture and a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::chart::{Chart, Series as Line};
use super::experiment::{self, At, Experiment, Row, Rows, Series};
use super::quantity::{ALL, Quantity};
use super::twice;
use crate::bars::Bars;
use crate::bench::Spread;
use crate::origin::{self, Origin};

/// A paper, and what is run for it.
pub struct Paper {
    /// Of the page and its folder.
    pub name: &'static str,
    /// All before the first table.
    pub head: &'static str,
    pub experiments: &'static [Experiment],
    pub claims: &'static [&'static [Claim]],
    pub figures: &'static [Figure],
    /// What differs and why.
    pub differs: &'static str,
    /// The most threads of the paper.
    pub threads: usize,
}

/// Columns of a line of text.
const COLUMNS: usize = 110;
/// The table before, beside the one of now.
const BEFORE: &str = "before.csv";
/// Fewer rounds tell nothing.
pub const ROUNDS_MIN: u32 = 3;

/// Which way a comparison goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    More,
    Less,
    /// As much, to this share.
    Alike(f64),
    /// From the one to the other.
    Within(f64, f64),
}

/// A comparison that was published.
#[derive(Clone, Copy)]
pub struct Claim {
    /// Figure, and the comparison with the paper's number.
    pub words: &'static str,
    pub experiment: &'static str,
    /// Where, or the last place if this is empty.
    pub place: &'static str,
    pub arm: &'static str,
    /// Without one it is the quantity itself that is to be so.
    pub base: &'static str,
    /// Where the base is taken, if not beside the arm: an experiment, a place, or both.
    pub base_at: (&'static str, &'static str),
    pub quantity: Quantity,
    pub wanted: Wanted,
    /// Why it isn't so here, where it isn't or can't be told: what was measured, or that it is a guess.
    pub why: &'static str,
}

/// A figure or table.
pub struct Figure {
    pub title: &'static str,
    /// What the paper shows.
    pub paper: &'static str,
    pub panels: &'static [Panel],
}

/// A picture, and the table under it.
pub struct Panel {
    pub experiment: &'static str,
    pub quantity: Quantity,
    /// The arm by which the table has ratios, or none.
    pub base: &'static str,
}

/// How a comparison came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Kept,
    NotKept,
    /// The rounds' interval lies on both sides.
    NotTold,
}

impl Wanted {
    /// Of the ratios of rounds.
    pub fn verdict(self, ratio: Spread) -> Verdict {
        match self {
            Self::Alike(share) => Self::Within(1.0 - share, 1.0 + share).verdict(ratio),
            Self::Within(least, most) if ratio.low >= least && ratio.high <= most => Verdict::Kept,
            Self::Within(least, most) if ratio.low <= most && ratio.high >= least => Verdict::NotTold,
            Self::More if ratio.low > 1.0 => Verdict::Kept,
            Self::Less if ratio.high < 1.0 => Verdict::Kept,
            // What is 1 in every round is no more, and no less.
            Self::More if ratio.high > 1.0 => Verdict::NotTold,
            Self::Less if ratio.low < 1.0 => Verdict::NotTold,
            Self::More | Self::Less | Self::Within(..) => Verdict::NotKept,
        }
    }

    /// Where the base is 0 in every round.
    fn verdict_beside_nothing(self, value: Spread) -> Verdict {
        match self {
            Self::More if value.low > 0.0 => Verdict::Kept,
            _ => Verdict::NotTold,
        }
    }

    pub fn words(self) -> String {
        match self {
            Self::More => "> 1".to_owned(),
            Self::Less => "< 1".to_owned(),
            Self::Alike(share) => format!("1 ± {share}"),
            Self::Within(least, most) if most.is_infinite() => format!("≥ {least}"),
            Self::Within(least, most) if least.is_infinite() => format!("≤ {most}"),
            Self::Within(least, most) => format!("{least} to {most}"),
        }
    }
}

impl Verdict {
    pub fn words(self) -> &'static str {
        match self {
            Self::Kept => "yes",
            Self::NotKept => "**no**",
            Self::NotTold => "can't be told",
        }
    }
}

/// What was measured again, together where it was by the same program.
fn measured_again(later: &BTreeMap<String, Origin>) -> String {
    let mut by_commit: BTreeMap<&str, Vec<(&str, &Origin)>> = BTreeMap::new();
    for (name, origin) in later {
        by_commit.entry(&origin.commit).or_default().push((name, origin));
    }
    let mut text = String::new();
    for (commit, again) in by_commit {
        let names: Vec<String> = again.iter().map(|(name, _)| format!("`{name}`")).collect();
        let dates = || again.iter().map(|(_, origin)| &origin.date);
        let date = match (dates().min(), dates().max()) {
            (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
            (first, _) => first.cloned().unwrap_or_default(),
        };
        let first_of =
            |origin: &Origin| origin.load.split(',').next().and_then(|load| load.trim().parse().ok());
        let load = again.iter().filter_map(|(_, origin)| first_of(origin)).fold(0.0, f64::max);
        let _ = write!(
            text,
            " Measured again, commit {commit}, {date} UTC, load average at most {load}: {}.",
            names.join(", ")
        );
    }
    text
}

/// What was measured, and where.
pub struct Kept {
    pub rows: Rows,
    pub origin: Origin,
    /// Of experiments that were measured again, by name.
    pub later: BTreeMap<String, Origin>,
    /// What was measured of each experiment the time before, if it was.
    pub before: Rows,
    /// The machine's CPUs.
    pub cpus: usize,
}

impl Paper {
    /// Measures all in so many rounds, or a few points once without a number.
    pub fn measure(&self, root: &Path, pinstripe: &Path, rounds: Option<u32>) -> Result<Kept> {
        let origin = Origin::now(root)?;
        let chosen = self.experiments.iter().filter(|experiment| experiment.is_short || rounds.is_some());
        let rows = run(pinstripe, &chosen.collect::<Vec<_>>(), rounds)?;
        Ok(Kept { rows: Rows(rows), ..Kept::new(origin) })
    }

    /// Measures these again, and takes the others from what is kept.
    pub fn measure_again(
        &self,
        root: &Path,
        pinstripe: &Path,
        rounds: u32,
        names: &[String],
        mut kept: Kept,
    ) -> Result<Kept> {
        ensure!(kept.cpus == super::cpus(), "the others were measured on {} CPUs", kept.cpus);
        let find = |name: &String| {
            let found = self.experiments.iter().find(|experiment| experiment.name == name);
            found.with_context(|| format!("{} has no experiment {name}", self.name))
        };
        let chosen: Vec<&Experiment> = names.iter().map(find).collect::<Result<_>>()?;
        let origin = Origin::now(root)?;
        let rows = run(pinstripe, &chosen, Some(rounds))?;
        kept.replace(names, rows, &origin);
        Ok(kept)
    }

    /// What [`Self::write`] has kept.
    pub fn load(&self, folder: &Path) -> Result<Kept> {
        load(folder, self.name)?.context("nothing was measured yet")
    }

    /// Writes page, table and pictures below `folder`; `more` comes before what differs.
    pub fn write(&self, folder: &Path, kept: &Kept, more: &str) -> Result<()> {
        save(folder, self.name, &ALL, kept)?;
        for panel in self.panels(kept) {
            write(&folder.join(self.name).join(panel.file()), &self.picture(panel, kept)?)?;
        }
        write(&folder.join(format!("{}.md", self.name)), &self.page(kept, more))
    }

    /// Each picture once, of what was measured.
    fn panels(&self, kept: &Kept) -> Vec<&Panel> {
        let all = self.figures.iter().flat_map(|figure| figure.panels);
        all.filter(|panel| kept.rows.has(panel.experiment, panel.quantity)).collect()
    }

    fn experiment(&self, name: &str) -> &Experiment {
        let found = self.experiments.iter().find(|experiment| experiment.name == name);
        found.unwrap_or_else(|| unreachable!("a test looks for {name}"))
    }

    /// What a panel shows.
    fn words(&self, panel: &Panel) -> String {
        if self.experiment(panel.experiment).is_replay() {
            panel.quantity.words_of_trace()
        } else {
            panel.quantity.words().to_owned()
        }
    }

    fn picture(&self, panel: &Panel, kept: &Kept) -> Result<String> {
        let experiment = self.experiment(panel.experiment);
        let places = kept.rows.places(panel.experiment);
        let value = |arm: &str, place: &str| {
            kept.rows.spread(At { experiment: panel.experiment, place, arm }, panel.quantity)
        };
        let (series, words) = (experiment.series.name(), self.words(panel));
        let numbers: Option<Vec<u32>> = places.iter().map(|place| place.parse().ok()).collect();
        let title = format!("{} ({series})", experiment.title);
        if let Some(numbers) = numbers.filter(|numbers| numbers.len() > 2) {
            let line = |&(arm, _): &(&str, &str)| Line {
                name: arm.to_owned(),
                points: numbers
                    .iter()
                    .zip(&places)
                    .filter_map(|(number, place)| Some((*number, value(arm, place)?)))
                    .collect(),
            };
            let series: Vec<Line> = experiment.arms.iter().map(line).collect();
            let across = experiment.across();
            let (logarithmic, rises_by_powers) = (true, false);
            return Chart {
                title: &title,
                across,
                quantity: &words,
                logarithmic,
                rises_by_powers,
                series: &series,
            }
            .svg();
        }
        let names: Vec<String> = places.iter().map(|place| experiment.label(place)).collect();
        let group = |(place, name)| -> (&str, Vec<Option<Spread>>) {
            (name, experiment.arms.iter().map(|(arm, _)| value(arm, place)).collect())
        };
        Bars {
            title: &title,
            quantity: &words,
            arms: experiment.arms.iter().map(|(arm, _)| (*arm).to_owned()).collect(),
            groups: places.iter().copied().zip(names.iter().map(String::as_str)).map(group).collect(),
        }
        .svg()
    }

    fn page(&self, kept: &Kept, more: &str) -> String {
        let mut text = self.head.to_owned();
        text.push_str(&self.state(kept));
        text.push_str(&self.reached(kept));
        text.push_str(more);
        text.push_str(self.differs);
        text.push_str(&two_runs(self.name, kept));
        for figure in self.figures {
            let paper = in_lines(&format!("The paper: {}", figure.paper));
            let _ = writeln!(text, "## {}\n\n{paper}\n", figure.title);
            for panel in figure.panels {
                text.push_str(&self.section(panel, kept));
            }
        }
        let _ = writeln!(
            text,
            "## Again\n\n`cargo xtask figures --only {}`; with `--page` page and pictures are written again from the table. One point:\n\n```sh\n{}\n```",
            self.name,
            self.one_point(kept)
        );
        text
    }

    /// How the machine was.
    fn state(&self, kept: &Kept) -> String {
        let Origin { commit, date, load, machine } = &kept.origin;
        let (real, seeds) = (kept.rows.rounds(Series::Real), kept.rows.rounds(Series::Virtual));
        let cores = if kept.cpus < self.threads {
            format!(
                "**The paper has up to {} threads; more than {} needs more CPUs than this machine has.** The same command \
                 on a larger machine goes as far as its CPUs.",
                self.threads, kept.cpus
            )
        } else {
            "The machine has as many CPUs as the paper has threads.".to_owned()
        };
        let few = if real < ROUNDS_MIN {
            "**Real CPU series have too few rounds to tell anything by; the run is to be repeated.** "
        } else {
            ""
        };
        let bars = if Spread::is_whole(real.min(seeds)) {
            "go from the lowest to the highest"
        } else {
            "are the interval that has the median with 95 % (order statistics)"
        };
        let mut text = format!(
            "Commit {commit}, {date} UTC, {machine}, load average before: {load}. {cores} {few}Points are medians of {real} rounds \
             (real CPU) or {seeds} seeds (virtual device); bars and brackets {bars}. Ratios are taken within a round, in which \
             the arms come one right after the other."
        );
        text += &measured_again(&kept.later);
        for experiment in self.experiments {
            let (own, all) = (kept.rows.rounds_of(experiment.name), kept.rows.rounds(experiment.series));
            if own > 0 && own < all {
                let _ = write!(text, " `{}` has {own} of {all}.", experiment.name);
            }
        }
        in_lines(&text) + "\n\n"
    }

    /// The table of comparisons.
    fn reached(&self, kept: &Kept) -> String {
        let claims = self.claims.iter().copied().flatten();
        let claims = claims.map(|claim| (claim, self.experiment(claim.experiment).series));
        "## What was to be reached\n\nRatios at the most threads, or at the greatest depth.\n\n".to_owned()
            + &compared("published comparison", claims, kept)
    }

    fn section(&self, panel: &Panel, kept: &Kept) -> String {
        let experiment = self.experiment(panel.experiment);
        let (places, words) = (kept.rows.places(panel.experiment), self.words(panel));
        let title = format!("{}: {words} ({})", experiment.title, experiment.series.name());
        if !kept.rows.has(panel.experiment, panel.quantity) {
            return format!("{title}: not measured in this run.\n\n");
        }
        let arms: Vec<&str> = experiment.arms.iter().map(|(arm, _)| *arm).collect();
        let by = arms.iter().filter(|arm| !panel.base.is_empty() && **arm != panel.base);
        let by: Vec<&str> = by.copied().collect();
        let mut text = format!("![{title}]({}/{})\n\n", self.name, panel.file());
        let heads = arms.iter().map(|arm| format!("{arm}, {words}"));
        let heads: Vec<String> =
            heads.chain(by.iter().map(|arm| format!("{arm} by {}", panel.base))).collect();
        let _ = writeln!(text, "| {} | {} |", experiment.across(), heads.join(" | "));
        let _ = writeln!(text, "|---|{}", "---:|".repeat(heads.len()));
        for place in places {
            let at = |arm| At { experiment: panel.experiment, place, arm };
            let values = arms.iter().map(|arm| kept.rows.spread(at(arm), panel.quantity));
            let ratios = by.iter().map(|arm| kept.rows.ratio(at(arm), panel.base, panel.quantity));
            let cells: Vec<String> =
                values.chain(ratios).map(|spread| spread.map_or(String::new(), in_brackets)).collect();
            let _ = writeln!(text, "| {place} | {} |", cells.join(" | "));
        }
        text + "\n"
    }

    /// The command of one run.
    fn one_point(&self, kept: &Kept) -> String {
        let tasks = self.experiments.first().map(|experiment| experiment.tasks(1, kept.cpus, true));
        let task = tasks.and_then(|tasks| tasks.into_iter().nth(1));
        task.map_or(String::new(), |task| super::command(&task.arguments))
    }
}

impl Kept {
    /// Of this machine, on which nothing was measured yet.
    pub fn new(origin: Origin) -> Self {
        let (later, cpus) = (BTreeMap::new(), super::cpus());
        Self { rows: Rows::default(), origin, later, before: Rows::default(), cpus }
    }

    /// Takes these rows for those that there were of these experiments. Those are kept, too.
    pub fn replace(&mut self, names: &[String], rows: Vec<Row>, origin: &Origin) {
        let is_again = |row: &Row| names.contains(&row.experiment);
        let (old, others): (Vec<Row>, Vec<Row>) =
            std::mem::take(&mut self.rows.0).into_iter().partition(is_again);
        self.rows = Rows(others.into_iter().chain(rows).collect());
        self.before.0.retain(|row| !is_again(row));
        self.before.0.extend(old);
        self.later.extend(names.iter().map(|name| (name.clone(), origin.clone())));
    }
}

/// What [`save`] has kept of this name, if there is something.
pub fn load(folder: &Path, name: &str) -> Result<Option<Kept>> {
    let beside = folder.join(name);
    let Some(origin) = origin::load(&beside.join("origin.json"))? else { return Ok(None) };
    let table = format!("{name}.csv");
    let text = std::fs::read_to_string(beside.join(&table)).with_context(|| table.clone())?;
    let cpus = cpus_of(&origin).context("origin.json doesn't say how many CPUs there were")?;
    let later = origin::load(&beside.join("later.json"))?.unwrap_or_default();
    let before = std::fs::read_to_string(beside.join(BEFORE)).unwrap_or_default();
    let before = Rows::parse(&before).context(BEFORE)?;
    Ok(Some(Kept { rows: Rows::parse(&text).context(table)?, origin, later, before, cpus }))
}

/// Keeps it below `folder`, in tables with these columns.
pub fn save(folder: &Path, name: &str, columns: &[Quantity], kept: &Kept) -> Result<()> {
    let beside = folder.join(name);
    std::fs::create_dir_all(&beside).with_context(|| format!("make {}", beside.display()))?;
    write(&beside.join(format!("{name}.csv")), &kept.rows.csv(columns))?;
    origin::save(&kept.origin, &beside.join("origin.json"))?;
    origin::save(&kept.later, &beside.join("later.json"))?;
    if kept.before.0.is_empty() { Ok(()) } else { write(&beside.join(BEFORE), &kept.before.csv(columns)) }
}

/// A page or a picture.
pub fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// A table of comparisons, each with what takes time in it; `what` says which they are.
pub fn compared<'c>(what: &str, claims: impl Iterator<Item = (&'c Claim, Series)>, kept: &Kept) -> String {
    let mut text = format!("| {what} | series | wanted | measured | kept |\n|---|---|---|---:|---|\n");
    for (claim, series) in claims {
        let (words, series, wanted) = (claim.words, series.name(), claim.wanted.words());
        let [measured, told] = claim.told(kept);
        let _ = writeln!(text, "| {words} | {series} | {wanted} | {measured} | {told} |");
    }
    text + "\n"
}

/// What was measured twice, beside each other.
pub fn two_runs(name: &str, kept: &Kept) -> String {
    let (counts, apart) = twice::compare(&kept.rows, &kept.before);
    if counts.is_empty() {
        return String::new();
    }
    let intro = format!(
        "What was measured the time before, of the experiments that were measured again, is in [{BEFORE}]({name}/{BEFORE}). Bars that are \
         intervals of 95 % lie apart now and then, and where the program has changed between the two."
    );
    let mut text = format!(
        "## Two runs\n\n{}\n\n| series | quantity | points with bars that overlap |\n|---|---|---:|\n",
        in_lines(&intro)
    );
    for ((series, quantity), count) in counts {
        let _ = writeln!(text, "| {series} | {quantity} | {count} |");
    }
    let points = apart.iter().map(|point| format!("- {point}\n"));
    let list = if apart.is_empty() { String::new() } else { "\nApart:\n\n".to_owned() };
    text + &list + &points.collect::<String>() + "\n"
}

impl Claim {
    /// What was measured of it, and what that tells.
    fn told(&self, kept: &Kept) -> [String; 2] {
        let base = Some(self.base_at.0).filter(|base| !base.is_empty()).unwrap_or(self.experiment);
        let rounds = kept.rows.rounds_of(self.experiment).min(kept.rows.rounds_of(base));
        let in_words = if rounds == 1 { alone } else { in_brackets };
        let (measured, verdict) = match (self.ratio(&kept.rows), self.value(&kept.rows)) {
            (Some(ratio), _) => (in_words(ratio), self.wanted.verdict(ratio)),
            (None, Some(value)) => {
                let verdict = self.wanted.verdict_beside_nothing(value);
                (format!("{} beside 0", in_words(value)), verdict)
            }
            (None, None) => return ["not measured".to_owned(), String::new()],
        };
        let why = match (verdict, self.why) {
            (Verdict::Kept, _) | (Verdict::NotTold, "") => String::new(),
            (Verdict::NotKept, "") => ": not explained".to_owned(),
            (_, why) => format!(": {why}"),
        };
        let not_told = |why: String| [measured.clone(), format!("{}: {why}", Verdict::NotTold.words())];
        if rounds == 1 {
            let against = if verdict == Verdict::NotKept { " against it" } else { "" };
            return not_told(format!("one run{against}{why}"));
        }
        if rounds < ROUNDS_MIN {
            return not_told(format!("{rounds} of the {ROUNDS_MIN} rounds that it takes"));
        }
        // What was measured on another day may differ for that.
        if kept.later.get(self.experiment) != kept.later.get(base) {
            return not_told("measured by two commands".to_owned());
        }
        [measured, format!("{}{why}", verdict.words())]
    }

    fn at<'r>(&'r self, rows: &'r Rows) -> Option<At<'r>> {
        let last = rows.places(self.experiment).last().copied()?;
        let place = if self.place.is_empty() { last } else { self.place };
        Some(At { experiment: self.experiment, place, arm: self.arm })
    }

    fn base<'r>(&'r self, at: At<'r>) -> At<'r> {
        let or = |other: &'r str, own: &'r str| if other.is_empty() { own } else { other };
        let (experiment, place) = (or(self.base_at.0, at.experiment), or(self.base_at.1, at.place));
        At { experiment, place, arm: self.base }
    }

    /// Beside a base that was measured.
    fn value(&self, rows: &Rows) -> Option<Spread> {
        let at = self.at(rows)?;
        rows.spread(self.base(at), self.quantity)?;
        rows.spread(at, self.quantity)
    }

    fn ratio(&self, rows: &Rows) -> Option<Spread> {
        let at = self.at(rows)?;
        if self.base.is_empty() {
            return rows.spread(at, self.quantity);
        }
        rows.ratio_to(at, self.base(at), self.quantity)
    }
}

impl Panel {
    fn file(&self) -> String {
        self.quantity.file(self.experiment)
    }
}

/// Runs the experiments, a round of all after the other; once at one place without a number of rounds.
fn run(pinstripe: &Path, experiments: &[&Experiment], rounds: Option<u32>) -> Result<Vec<Row>> {
    let tasks: Vec<_> = (1..=rounds.unwrap_or(1))
        .flat_map(|round| experiments.iter().map(move |experiment| (round, experiment)))
        .flat_map(|(round, experiment)| experiment.tasks(round, super::cpus(), rounds.is_none()))
        .collect();
    experiment::run(pinstripe, &tasks)
}

/// A paragraph, broken before a line gets too long.
pub fn in_lines(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= COLUMNS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

/// With as many digits as say something.
fn in_brackets(spread: Spread) -> String {
    let (digits, Spread { low, high, .. }) = (digits(spread), spread);
    format!("{} ({low:.digits$} to {high:.digits$})", alone(spread))
}

/// What has no interval, for there is one run.
fn alone(spread: Spread) -> String {
    format!("{:.*}", digits(spread), spread.median)
}

fn digits(spread: Spread) -> usize {
    match spread.median.abs() {
        0.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    }
}

fn cpus_of(origin: &Origin) -> Option<usize> {
    origin.machine.split_once(" CPU")?.0.parse().ok()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::figures::experiment::tests::throughput;

    fn spread(low: f64, median: f64, high: f64) -> Spread {
        Spread { median, low, high }
    }

    #[test]
    fn a_direction_is_kept_only_if_the_whole_interval_has_it() {
        assert_eq!(Wanted::More.verdict(spread(1.01, 1.5, 2.0)), Verdict::Kept);
        assert_eq!(Wanted::More.verdict(spread(0.9, 1.5, 2.0)), Verdict::NotTold);
        assert_eq!(Wanted::More.verdict(spread(0.7, 0.8, 0.99)), Verdict::NotKept);
        assert_eq!(Wanted::Less.verdict(spread(0.7, 0.8, 0.99)), Verdict::Kept);
        assert_eq!(Wanted::Less.verdict(spread(0.7, 0.8, 1.2)), Verdict::NotTold);
        assert_eq!(Wanted::Less.verdict(spread(1.1, 1.2, 1.3)), Verdict::NotKept);
        assert_eq!(Wanted::More.verdict(spread(1.0, 1.0, 1.0)), Verdict::NotKept, "there is no difference");
        assert_eq!(Wanted::Less.verdict(spread(1.0, 1.0, 1.0)), Verdict::NotKept);
        assert_eq!(Wanted::More.verdict(spread(1.0, 1.0, 1.1)), Verdict::NotTold);
        assert_eq!(Wanted::Alike(0.05).verdict(spread(0.96, 1.0, 1.04)), Verdict::Kept);
        assert_eq!(Wanted::Alike(0.05).verdict(spread(0.8, 1.04, 1.3)), Verdict::NotTold, "the median alone");
        assert_eq!(Wanted::Alike(0.05).verdict(spread(0.94, 1.1, 1.3)), Verdict::NotTold);
        assert_eq!(Wanted::Alike(0.05).verdict(spread(1.06, 1.1, 1.3)), Verdict::NotKept);
        assert_eq!(Wanted::Within(1.0, 1.2).verdict(spread(1.1, 1.1, 1.2)), Verdict::Kept);
        assert_eq!(Wanted::Within(1.0, 1.2).verdict(spread(1.1, 1.2, 1.3)), Verdict::NotTold);
        assert_eq!(Wanted::Within(1.0, 1.2).verdict(spread(2.2, 2.2, 2.3)), Verdict::NotKept);
    }

    const CLAIM: Claim = Claim {
        words: "a claim",
        experiment: "e",
        place: "",
        arm: "a",
        base: "b",
        base_at: ("", ""),
        quantity: Quantity::Throughput,
        wanted: Wanted::More,
        why: "a reason",
    };

    #[test]
    fn a_claim_has_its_base_where_it_says() {
        let rows = Rows(vec![
            throughput("e", "1", "a", 1, 2.0),
            throughput("e", "2", "a", 1, 6.0),
            throughput("e", "2", "b", 1, 3.0),
            throughput("f", "2", "b", 1, 12.0),
        ]);
        let ratio = |claim: Claim| claim.ratio(&rows).map(|ratio| ratio.median);
        assert_eq!(ratio(CLAIM), Some(2.0));
        assert_eq!(ratio(Claim { base_at: ("f", ""), ..CLAIM }), Some(0.5));
        assert_eq!(ratio(Claim { base: "a", base_at: ("", "1"), ..CLAIM }), Some(3.0));
        assert_eq!(ratio(Claim { base_at: ("g", ""), ..CLAIM }), None);
        assert_eq!(ratio(Claim { base: "", ..CLAIM }), Some(6.0));
    }

    const COMPARED: &[Experiment] = &[Experiment {
        name: "e",
        title: "",
        series: Series::Virtual,
        places: experiment::Places::Depths(&[1]),
        arms: &[("a", ""), ("b", "")],
        options: "",
        is_short: true,
    }];
    const COMPARISONS: &[Claim] = &[
        CLAIM,
        Claim { wanted: Wanted::Less, ..CLAIM },
        Claim { why: "", ..CLAIM },
        Claim { base: "c", ..CLAIM },
        Claim { arm: "c", ..CLAIM },
        Claim { base: "d", ..CLAIM },
        Claim { base_at: ("f", ""), ..CLAIM },
    ];

    #[test]
    fn a_comparison_that_was_not_kept_says_why() {
        let paper = Paper {
            name: "p",
            head: "",
            experiments: COMPARED,
            claims: &[COMPARISONS],
            figures: &[],
            differs: "",
            threads: 1,
        };
        let value = |(arm, value): (&str, f64), round| {
            let mut row = throughput("e", "1", arm, round, value);
            Series::Virtual.name().clone_into(&mut row.series);
            row
        };
        let mut kept = full(&paper);
        let of = |round| [("a", 1.0), ("b", 2.0), ("c", 0.0)].map(|arm| value(arm, round));
        kept.rows = Rows(of(1).to_vec());
        let told = paper.reached(&kept).matches("can't be told").count();
        assert_eq!(told, 5, "one seed tells nothing: {}", paper.reached(&kept));
        assert_eq!(paper.reached(&kept).matches("can't be told: one run").count(), 5);
        let text = paper.reached(&kept);
        assert!(text.contains("| > 1 | 0.50 | can't be told: one run against it: a reason |"), "{text}");
        kept.rows = Rows((1..=2).flat_map(of).collect());
        assert_eq!(paper.reached(&kept).matches("can't be told: 2 of the 3 rounds").count(), 5);
        let elsewhere = |round| {
            let mut row = throughput("f", "1", "b", round, 4.0);
            Series::Virtual.name().clone_into(&mut row.series);
            row
        };
        kept.rows = Rows((1..=3).flat_map(of).chain((1..=3).map(elsewhere)).collect());
        let text = paper.reached(&kept);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| a claim")).collect();
        for (row, end) in rows.iter().zip([
            "0.50 (0.50 to 0.50) | **no**: a reason |",
            "0.50 (0.50 to 0.50) | yes |",
            "0.50 (0.50 to 0.50) | **no**: not explained |",
            "1.00 (1.00 to 1.00) beside 0 | yes |",
            "0.00 (0.00 to 0.00) | **no**: a reason |",
            "| not measured |  |",
            // One of them was measured again, on another day.
            "0.25 (0.25 to 0.25) | can't be told: measured by two commands |",
        ]) {
            assert!(row.ends_with(end), "{row} and not {end}");
        }
        // The last round has the first claim come out the other way.
        let other = ["a", "b"].map(|arm| value((arm, if arm == "a" { 4.0 } else { 2.0 }), 4));
        kept.rows.0.extend(other);
        let text = paper.reached(&kept);
        assert!(text.contains("| > 1 | 0.50 (0.50 to 2.00) | can't be told: a reason |"), "{text}");
        assert!(text.contains("| > 1 | 0.50 (0.50 to 2.00) | can't be told |"), "it has no reason: {text}");
        kept.rows.0.clear();
        assert!(paper.reached(&kept).contains("| not measured |  |"), "{}", paper.reached(&kept));
    }

    /// Rows of all that `paper` runs on two CPUs: the first arm has 10, the others 20.
    fn full(paper: &Paper) -> Kept {
        let tasks = paper.experiments.iter().flat_map(|experiment| {
            let tasks = (1..=2).flat_map(|round| experiment.tasks(round, 2, false));
            tasks.map(|task| (experiment, task)).collect::<Vec<_>>()
        });
        let rows = tasks.map(|(experiment, task)| {
            let value = if task.arm() == experiment.arms[0].0 { 10.0 } else { 20.0 };
            let mut row = throughput(experiment.name, task.place(), task.arm(), task.round(), value);
            experiment.series.name().clone_into(&mut row.series);
            row.with_all(value)
        });
        let [commit, date, load, machine] =
            ["abc", "2026-01-02", "0.5, 0.5", "2 CPUs, Linux 6"].map(str::to_owned);
        let origin = Origin { commit, date, load, machine };
        let again = Origin { commit: "def".to_owned(), ..origin.clone() };
        let later = [(paper.experiments[0].name.to_owned(), again)].into();
        let mut rows: Vec<Row> = rows.collect();
        let second = paper.experiments.get(1).map_or("", |experiment| experiment.name);
        rows.retain(|row| row.experiment != second || row.round < 2);
        let first = |row: &&Row| row.experiment == paper.experiments[0].name;
        let mut before: Vec<Row> = rows.iter().filter(first).cloned().collect();
        // Of the first arm it was other numbers.
        let arm = before.first().map(|row| row.arm.clone()).unwrap_or_default();
        before.iter_mut().filter(|row| row.arm == arm).for_each(|row| *row = row.clone().with_all(99.0));
        Kept { rows: Rows(rows), origin, later, before: Rows(before), cpus: 2 }
    }

    /// That all which a paper's page names is run, drawn, kept and read again.
    pub fn check(paper: &Paper) {
        let kept = full(paper);
        let folder = std::env::temp_dir().join(format!("figures-{}-{}", paper.name, std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        paper.write(&folder, &kept, "more\n\n").unwrap();
        let page = std::fs::read_to_string(folder.join(format!("{}.md", paper.name))).unwrap();
        let loaded = paper.load(&folder).unwrap();
        assert_eq!((&loaded.rows, loaded.cpus, &loaded.origin.commit), (&kept.rows, 2, &"abc".to_owned()));
        assert_eq!(loaded.before, kept.before);
        assert!(page.contains("## Two runs") && page.contains("\n\nApart:\n\n- "), "{page}");
        paper.write(&folder, &loaded, "more\n\n").unwrap();
        assert_eq!(std::fs::read_to_string(folder.join(format!("{}.md", paper.name))).unwrap(), page);
        for panel in paper.panels(&kept) {
            let svg = std::fs::read_to_string(folder.join(paper.name).join(panel.file())).unwrap();
            let experiment = paper.experiment(panel.experiment);
            assert!(svg.contains(experiment.series.name()) && svg.contains(experiment.arms[0].0));
            assert!(page.contains(&panel.file()), "{}", panel.file());
            assert!(!(experiment.is_replay() && svg.contains("latency, us")), "of a trace's writes: {svg}");
            assert!(panel.base.is_empty() || experiment.arms.iter().any(|(arm, _)| *arm == panel.base));
        }
        std::fs::remove_dir_all(&folder).unwrap();
        let second = paper.experiments[1].name;
        let line = page.replace('\n', " ");
        assert!(
            line.contains(&format!("`{second}` has 1 of 2.")) && line.contains("again, commit def"),
            "{page}"
        );
        for word in ["abc", "0.5, 0.5", "more than 2 needs more CPUs", "more\n"] {
            assert!(page.contains(word), "{word}");
        }
        assert!(!page.contains("| not measured |") && !page.contains("not measured in this run"), "{page}");
        for claim in paper.claims.iter().copied().flatten() {
            let ratio = claim.ratio(&kept.rows).unwrap_or_else(|| panic!("{} has no ratio", claim.words));
            assert!(ratio.median > 0.0);
        }
        let short = paper.experiments.iter().filter(|experiment| experiment.is_short);
        assert!((1..=4).contains(&short.count()), "CI has little time");
    }
}
