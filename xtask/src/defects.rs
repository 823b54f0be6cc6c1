//! Deliberate defects don't shape the product: each is an expression.
//!
//! A branch that is there for a defect only is told: an `if` without `else`, or the guard of an arm, with
//! `active(..)` among the conditions that must all hold. A defect changes a condition or a value instead, or
//! does something `early` (`pinstripe_runtime::mutants!`).

use anyhow::{Context, Result};
use syn::visit::{self, Visit};
use syn::{Arm, BinOp, Expr, ExprIf, ItemMod};

use crate::tidy::Finding;

/// A finding for each branch of a defect. `sources` are paths from the root, with their text.
pub fn check(sources: &[(String, String)]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (file, text) in sources {
        if !file.contains("/src/") || file.ends_with("mutants.rs") || file.ends_with("tests.rs") {
            continue;
        }
        let parsed = syn::parse_file(text).with_context(|| format!("{file} doesn't parse as Rust"))?;
        let mut branches = Branches(Vec::new());
        branches.visit_file(&parsed);
        findings.extend(branches.0.into_iter().map(|defect| {
            let line = text.lines().position(|line| line.contains(&defect)).map_or(1, |line| line + 1);
            let message = format!("{defect} has a branch of its own: change a condition or a value for it");
            Finding { file: file.clone(), line, message }
        }));
    }
    Ok(findings)
}

/// The defects with a branch of their own.
struct Branches(Vec<String>);

impl<'ast> Visit<'ast> for Branches {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.ident != "tests" {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_expr_if(&mut self, branch: &'ast ExprIf) {
        if branch.else_branch.is_none() {
            self.0.extend(defect_needed_for(&branch.cond));
        }
        visit::visit_expr_if(self, branch);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        self.0.extend(arm.guard.as_ref().and_then(|(_, guard)| defect_needed_for(guard)));
        visit::visit_arm(self, arm);
    }
}

/// The defect without which `condition` never holds.
fn defect_needed_for(condition: &Expr) -> Option<String> {
    match condition {
        Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) => {
            defect_needed_for(&binary.left).or_else(|| defect_needed_for(&binary.right))
        }
        Expr::Paren(inner) => defect_needed_for(&inner.expr),
        Expr::Call(call) => {
            let Expr::Path(called) = &*call.func else { return None };
            let is_question = called.path.segments.last().is_some_and(|name| name.ident == "active");
            let Some(Expr::Path(defect)) = call.args.first().filter(|_| is_question) else { return None };
            defect.path.segments.last().map(|name| name.ident.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(body: &str) -> usize {
        let text = format!("fn f() {{ {body} }}");
        check(&[("crates/x/src/a.rs".to_owned(), text)]).unwrap().len()
    }

    #[test]
    fn a_branch_that_only_a_defect_takes_is_found() {
        assert_eq!(found("if active(Mutant::A) { return; }"), 1);
        assert_eq!(found("if x && (y && mutants::active(Mutant::A)) { g(); }"), 1);
        assert_eq!(found("match x { Err(_) if active(Mutant::A) => {} _ => {} }"), 1);
        assert_eq!(found("if let Some(x) = y && active(Mutant::A) { g(); }"), 1);
    }

    #[test]
    fn a_condition_or_a_value_is_none() {
        assert_eq!(found("if x || active(Mutant::A) { return; }"), 0);
        assert_eq!(found("if x && !active(Mutant::A) { return; }"), 0);
        assert_eq!(found("let x = if active(Mutant::A) { 1 } else { 2 };"), 0);
        assert_eq!(found("active(Mutant::A).then(|| g());"), 0);
        assert_eq!(found("#[cfg(test)] mod tests { fn g() { if active(Mutant::A) { h(); } } }"), 0);
    }
}
