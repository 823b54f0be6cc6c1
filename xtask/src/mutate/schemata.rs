//! One source text with all its mutants, each behind its own question.
//!
//! What a mutant replaces stands twice: as it was, with the mutants that lie within, and changed, without
//! them. So the text grows with the mutants and not with their combinations.

use std::ops::Range;

use super::operators::{Candidate, Change};

/// A candidate and its number.
#[derive(Clone, Debug)]
pub struct Numbered {
    /// From 1.
    pub number: u32,
    /// What it is.
    pub candidate: Candidate,
}

/// The text, and where each mutant's part of it is.
#[derive(Debug)]
pub struct Schemata {
    /// The whole file.
    pub text: String,
    /// For each mutant its bytes in `text`.
    pub places: Vec<(u32, Range<usize>)>,
}

/// Whether the ranges cross: then only one of the two can be had.
pub fn cross(one: &Range<usize>, other: &Range<usize>) -> bool {
    (one.start < other.start && other.start < one.end && one.end < other.end)
        || (other.start < one.start && one.start < other.end && other.end < one.end)
}

/// Puts the mutants into the source. No two of them cross.
pub fn weave(source: &str, mutants: &[Numbered]) -> Schemata {
    let mut ordered: Vec<&Numbered> = mutants.iter().collect();
    ordered.sort_by_key(|one| {
        let range = &one.candidate.range;
        (range.start, std::cmp::Reverse(range.end), one.number)
    });
    let mut weaver = Weaver { source, out: String::new(), places: Vec::new() };
    weaver.emit(0..source.len(), &ordered);
    Schemata { text: weaver.out, places: weaver.places }
}

struct Weaver<'a> {
    source: &'a str,
    out: String,
    places: Vec<(u32, Range<usize>)>,
}

impl Weaver<'_> {
    fn emit(&mut self, range: Range<usize>, mutants: &[&Numbered]) {
        let mut at = range.start;
        let mut rest = mutants;
        while let Some((first, after)) = rest.split_first() {
            let own = first.candidate.range.clone();
            let inner = after.partition_point(|one| one.candidate.range.start < own.end);
            self.out.push_str(&self.source[at..own.start]);
            self.emit_mutant(first, &after[..inner]);
            at = own.end;
            rest = &after[inner..];
        }
        self.out.push_str(&self.source[at..range.end]);
    }

    fn emit_mutant(&mut self, mutant: &Numbered, inner: &[&Numbered]) {
        let asked = format!("::mutation::active({})", mutant.number);
        let (before, after) = match &mutant.candidate.change {
            Change::Negate => (format!("({asked} != ("), "))".to_owned()),
            Change::Expression(text) => (format!("(if {asked} {{ {text} }} else {{ "), " })".to_owned()),
            Change::Statement(text) => (format!("if {asked} {{ {text} }} else {{ "), " }".to_owned()),
            Change::Drop => (format!("if !{asked} {{ "), " }".to_owned()),
            Change::SkipFirst => (
                "::core::iter::Iterator::skip(::core::iter::IntoIterator::into_iter(".to_owned(),
                format!("), usize::from({asked}))"),
            ),
        };
        let start = self.out.len();
        self.out.push_str(&before);
        self.emit(mutant.candidate.range.clone(), inner);
        self.out.push_str(&after);
        self.places.push((mutant.number, start..self.out.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::operators::candidates;
    use super::*;

    fn numbered(source: &str, operators: &[&str]) -> Vec<Numbered> {
        let found = candidates(source).unwrap().into_iter();
        let wanted = found.filter(|candidate| operators.contains(&candidate.operator));
        (1..).zip(wanted).map(|(number, candidate)| Numbered { number, candidate }).collect()
    }

    #[test]
    fn each_kind_of_mutant_stands_behind_its_own_question() {
        let source = "fn f() { if a { g(); } for x in y { h()?; } }";
        let woven = |operator: &str| weave(source, &numbered(source, &[operator])).text;
        let of = |operator: &str, from: &str, to: &str| assert_eq!(woven(operator), source.replace(from, to));
        of("negate", "if a", "if (::mutation::active(1) != (a))");
        of(
            "drop",
            "g(); } for x in y { h()?;",
            "if !::mutation::active(1) { g(); } } \
            for x in y { if !::mutation::active(2) { h()?; }",
        );
        of("swallow", "h()?;", "if ::mutation::active(1) { let _ = h(); } else { h()?; }");
        of(
            "skip-first",
            "in y",
            "in ::core::iter::Iterator::skip(::core::iter::IntoIterator::into_iter(y), \
            usize::from(::mutation::active(1)))",
        );
    }

    #[test]
    fn a_mutant_within_another_stands_in_its_unchanged_part_only() {
        let source = "fn f() -> bool { a < b && c > d }";
        let woven = weave(source, &numbered(source, &["and-or", "bound"]));
        assert_eq!(
            woven.text,
            "fn f() -> bool { (if ::mutation::active(1) { (a < b) || (c > d) } else { \
             (if ::mutation::active(2) { (a) <= (b) } else { a < b }) && \
             (if ::mutation::active(3) { (c) >= (d) } else { c > d }) }) }"
        );
        for (number, place) in &woven.places {
            assert!(woven.text[place.clone()].contains(&format!("active({number})")));
        }
        assert!(syn::parse_file(&woven.text).is_ok());
    }

    #[test]
    fn what_is_woven_still_parses_and_nothing_else_changed() {
        let source = include_str!("operators.rs");
        let found: Vec<Numbered> = (1..)
            .zip(candidates(source).unwrap())
            .filter(|(_, candidate)| candidate.operator != "swap")
            .map(|(number, candidate)| Numbered { number, candidate })
            .collect();
        assert!(found.len() > 40);
        assert!(syn::parse_file(&weave(source, &found).text).is_ok());
        assert_eq!(weave(source, &[]).text, source);
    }

    #[test]
    fn ranges_cross_only_if_neither_holds_the_other() {
        assert!(cross(&(0..5), &(3..8)) && cross(&(3..8), &(0..5)));
        assert!(!cross(&(0..8), &(3..8)) && !cross(&(0..3), &(3..8)) && !cross(&(0..8), &(0..8)));
    }
}
