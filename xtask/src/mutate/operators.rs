//! Where a source file can be mutated, and how.
//!
//! A candidate names a range of bytes of the source and what is done with it. Only code that runs is looked
//! at: constants, `const fn`, patterns, types, attributes, macros, tests and the seams of the deliberate
//! defects (`active(Mutant::...)`) are left alone, and so is what only the fuzzer calls. A candidate need not
//! compile: types are unknown here, and the build finds out.

use std::ops::Range;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, Stmt};

/// Names of values that ask for more than the usual care: forgetting one is a mutant.
const FLAGS: &[&str] = &["fua", "force", "forced", "give_up", "durable", "torn", "flush"];
/// Traits that only make words.
const OF_WORDS: &[&str] = &["Display", "Debug", "Error"];
/// The mark of a deliberate defect's seam.
const SEAM: &str = "active(Mutant::";

/// What is done with a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A condition becomes its opposite.
    Negate,
    /// An expression is replaced by this text.
    Expression(String),
    /// A statement, or two, are replaced by this text.
    Statement(String),
    /// A statement is left out.
    Drop,
    /// A loop leaves out the first item.
    SkipFirst,
}

/// A place and a change.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The function, with its type or modules.
    pub function: String,
    /// Which operator made it.
    pub operator: &'static str,
    /// The bytes of the source.
    pub range: Range<usize>,
    /// What is done.
    pub change: Change,
    /// From 1.
    pub line: usize,
}

/// All candidates of a file, in the order of the source.
pub fn candidates(source: &str) -> Result<Vec<Candidate>> {
    let file = syn::parse_file(source).context("this doesn't parse as Rust")?;
    let mut finder = Finder { source, names: Vec::new(), depth: 0, found: Vec::new() };
    finder.visit_file(&file);
    let mut found = finder.found;
    found.retain(|candidate| !source[candidate.range.clone()].contains(SEAM));
    found.sort_by_key(|candidate| (candidate.range.start, std::cmp::Reverse(candidate.range.end)));
    Ok(found)
}

struct Finder<'a> {
    source: &'a str,
    names: Vec<String>,
    /// How many functions are around.
    depth: usize,
    found: Vec<Candidate>,
}

/// Tests, and code for other builds.
fn is_left_out(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg") || attribute.path().is_ident("test"))
}

/// A condition that binds names can't be put into parentheses.
fn binds(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) => {
            binds(&binary.left) || binds(&binary.right)
        }
        _ => false,
    }
}

fn comparison(operator: &BinOp) -> Option<(&'static str, &'static str)> {
    Some(match operator {
        BinOp::Lt(_) => ("<=", "bound"),
        BinOp::Le(_) => ("<", "bound"),
        BinOp::Gt(_) => (">=", "bound"),
        BinOp::Ge(_) => (">", "bound"),
        BinOp::Eq(_) => ("!=", "equality"),
        BinOp::Ne(_) => ("==", "equality"),
        BinOp::And(_) => ("||", "and-or"),
        BinOp::Or(_) => ("&&", "and-or"),
        BinOp::BitAnd(_) => ("|", "bits"),
        BinOp::BitOr(_) => ("&", "bits"),
        _ => return None,
    })
}

fn is_arithmetic(operator: &BinOp) -> bool {
    matches!(
        operator,
        BinOp::Add(_)
            | BinOp::Sub(_)
            | BinOp::Mul(_)
            | BinOp::Div(_)
            | BinOp::Rem(_)
            | BinOp::Shl(_)
            | BinOp::Shr(_)
    )
}

/// Statements that act, so that leaving them out, or out of order, is a change.
fn acts(expression: &Expr) -> bool {
    match expression {
        Expr::Binary(binary) => matches!(
            binary.op,
            BinOp::AddAssign(_)
                | BinOp::SubAssign(_)
                | BinOp::MulAssign(_)
                | BinOp::DivAssign(_)
                | BinOp::RemAssign(_)
                | BinOp::BitAndAssign(_)
                | BinOp::BitOrAssign(_)
                | BinOp::BitXorAssign(_)
                | BinOp::ShlAssign(_)
                | BinOp::ShrAssign(_)
        ),
        Expr::Call(_) | Expr::MethodCall(_) | Expr::Await(_) | Expr::Try(_) | Expr::Assign(_) => true,
        _ => false,
    }
}

fn leaves(expression: &Expr) -> bool {
    matches!(expression, Expr::Return(_) | Expr::Continue(_) | Expr::Break(_))
}

/// A statement that ends with a semicolon and has no attributes.
fn of_statement(statement: &Stmt) -> Option<&Expr> {
    match statement {
        Stmt::Expr(expression, Some(_)) if !attributed(expression) => Some(expression),
        _ => None,
    }
}

fn attributed(expression: &Expr) -> bool {
    match expression {
        Expr::Call(call) => !call.attrs.is_empty(),
        Expr::MethodCall(call) => !call.attrs.is_empty(),
        Expr::Assign(assign) => !assign.attrs.is_empty(),
        _ => false,
    }
}

impl Finder<'_> {
    fn add(&mut self, operator: &'static str, range: Range<usize>, change: Change) {
        if self.depth == 0 {
            return;
        }
        let line = self.source[..range.start].matches('\n').count() + 1;
        self.found.push(Candidate { function: self.names.join("::"), operator, range, change, line });
    }

    fn text(&self, node: &impl Spanned) -> &str {
        &self.source[node.span().byte_range()]
    }

    fn within(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.names.push(name);
        visit(self);
        self.names.pop();
    }

    fn function(&mut self, signature: &syn::Signature, block: &Block, attributes: &[syn::Attribute]) {
        let fuzzes = signature.ident.to_string().starts_with("fuzz");
        if signature.constness.is_some() || is_left_out(attributes) || fuzzes {
            return;
        }
        self.within(signature.ident.to_string(), |finder| {
            finder.depth += 1;
            finder.visit_block(block);
            finder.depth -= 1;
        });
    }

    fn condition(&mut self, condition: &Expr) {
        match condition {
            Expr::Let(_) => {}
            Expr::Binary(binary) if binds(condition) => {
                self.condition(&binary.left);
                self.condition(&binary.right);
            }
            // The opposite of a comparison for equality is an operator of its own.
            Expr::Binary(binary) if matches!(binary.op, BinOp::Eq(_) | BinOp::Ne(_)) => {}
            _ => self.add("negate", condition.span().byte_range(), Change::Negate),
        }
    }

    fn literal(&mut self, operator: &BinOp, operand: &Expr) {
        let Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(literal), .. }) = operand else { return };
        let Ok(number) = literal.base10_parse::<u128>() else { return };
        let one_dropped = number == 1 && matches!(operator, BinOp::Add(_) | BinOp::Sub(_));
        let other = if one_dropped { 0 } else { number + 1 };
        let text = format!("{other}{}", literal.suffix());
        let name = if one_dropped { "one-dropped" } else { "literal" };
        self.add(name, literal.span().byte_range(), Change::Expression(text));
    }

    fn argument(&mut self, argument: &Expr) {
        let name = match argument {
            Expr::Path(path) => path.path.get_ident().map(ToString::to_string),
            Expr::Field(field) => match &field.member {
                syn::Member::Named(name) => Some(name.to_string()),
                syn::Member::Unnamed(_) => None,
            },
            _ => None,
        };
        if name.is_some_and(|name| FLAGS.contains(&name.as_str())) {
            self.add("forget-flag", argument.span().byte_range(), Change::Expression("false".to_owned()));
        }
    }

    fn statement(&mut self, statement: &Stmt, expression: &Expr) {
        let range = statement.span().byte_range();
        if acts(expression) {
            self.add("drop", range.clone(), Change::Drop);
        }
        if leaves(expression) {
            self.add("stay", range.clone(), Change::Drop);
        }
        if let Expr::Try(tried) = expression {
            let text = format!("let _ = {};", self.text(&tried.expr));
            self.add("swallow", range, Change::Statement(text));
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_block(&mut self, block: &'ast Block) {
        for statement in &block.stmts {
            if let Some(expression) = of_statement(statement) {
                self.statement(statement, expression);
            }
        }
        for pair in block.stmts.windows(2) {
            let both = pair.iter().all(|one| of_statement(one).is_some_and(acts));
            if both {
                let range = pair[0].span().byte_range().start..pair[1].span().byte_range().end;
                let text = format!("{} {}", self.text(&pair[1]), self.text(&pair[0]));
                self.add("swap", range, Change::Statement(text));
            }
        }
        visit::visit_block(self, block);
    }

    fn visit_expr_if(&mut self, node: &'ast syn::ExprIf) {
        if self.text(&node.cond).starts_with(SEAM) {
            // What a deliberate defect does is no code of the product.
            if let Some((_, other)) = &node.else_branch {
                self.visit_expr(other);
            }
            return;
        }
        self.condition(&node.cond);
        visit::visit_expr_if(self, node);
    }

    fn visit_expr_while(&mut self, node: &'ast syn::ExprWhile) {
        self.condition(&node.cond);
        visit::visit_expr_while(self, node);
    }

    fn visit_arm(&mut self, node: &'ast syn::Arm) {
        if let Some((_, guard)) = &node.guard {
            self.condition(guard);
        }
        visit::visit_arm(self, node);
    }

    fn visit_expr_for_loop(&mut self, node: &'ast syn::ExprForLoop) {
        self.add("skip-first", node.expr.span().byte_range(), Change::SkipFirst);
        visit::visit_expr_for_loop(self, node);
    }

    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        if let Some((other, name)) = comparison(&node.op)
            && !binds(&node.left)
            && !binds(&node.right)
        {
            // In parentheses, because `a as u64 < b` isn't a comparison.
            let text = format!("({}) {other} ({})", self.text(&node.left), self.text(&node.right));
            self.add(name, node.span().byte_range(), Change::Expression(text));
        }
        if is_arithmetic(&node.op) {
            self.literal(&node.op, &node.left);
            self.literal(&node.op, &node.right);
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_lit(&mut self, node: &'ast syn::ExprLit) {
        if let syn::Lit::Bool(_) = node.lit {
            self.add("bool", node.span().byte_range(), Change::Negate);
        }
    }

    fn visit_expr_call(&mut self, node: &'ast syn::ExprCall) {
        node.args.iter().for_each(|argument| self.argument(argument));
        visit::visit_expr_call(self, node);
    }

    fn visit_expr_method_call(&mut self, node: &'ast syn::ExprMethodCall) {
        node.args.iter().for_each(|argument| self.argument(argument));
        let other = match node.method.to_string().as_str() {
            "min" => Some("max"),
            "max" => Some("min"),
            "any" => Some("all"),
            "all" => Some("any"),
            _ => None,
        };
        if let Some(other) = other {
            let whole = node.span().byte_range();
            let name = node.method.span().byte_range();
            let (before, after) = (whole.start..name.start, name.end..whole.end);
            let text = format!("{}{other}{}", &self.source[before], &self.source[after]);
            self.add("method", whole, Change::Expression(text));
        }
        visit::visit_expr_method_call(self, node);
    }

    fn visit_field_value(&mut self, node: &'ast syn::FieldValue) {
        if node.colon_token.is_some() {
            self.argument(&node.expr);
            visit::visit_field_value(self, node);
        }
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.function(&node.sig, &node.block, &node.attrs);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.function(&node.sig, &node.block, &node.attrs);
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        if let Some(block) = &node.default {
            self.function(&node.sig, block, &node.attrs);
        }
    }

    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        let of = node.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        let words = of.is_some_and(|of| OF_WORDS.contains(&of.ident.to_string().as_str()));
        if words || is_left_out(&node.attrs) {
            return;
        }
        let of_type = match &*node.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.within(of_type.unwrap_or_default(), |finder| visit::visit_item_impl(finder, node));
    }

    fn visit_item_trait(&mut self, node: &'ast syn::ItemTrait) {
        self.within(node.ident.to_string(), |finder| visit::visit_item_trait(finder, node));
    }

    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        if !is_left_out(&node.attrs) {
            self.within(node.ident.to_string(), |finder| visit::visit_item_mod(finder, node));
        }
    }

    /// The other branch of `let ... else` has to leave.
    fn visit_local_init(&mut self, node: &'ast syn::LocalInit) {
        self.visit_expr(&node.expr);
        let Some((_, other)) = &node.diverge else { return };
        self.visit_expr(other);
        if let Expr::Block(block) = &**other
            && let Some(last) = block.block.stmts.last()
        {
            let end = last.span().byte_range().end;
            self.found.retain(|one| one.operator != "stay" || one.range.end != end);
        }
    }

    /// The length of an array is a constant.
    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.visit_expr(&node.expr);
    }

    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_path(&mut self, _: &'ast syn::Path) {}
    fn visit_generics(&mut self, _: &'ast syn::Generics) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(&'static str, &str)> {
        let found = candidates(source).unwrap();
        found.iter().map(|one| (one.operator, &source[one.range.clone()])).collect()
    }

    #[test]
    fn a_body_offers_its_conditions_statements_bounds_and_flags() {
        let source = "fn f() { if a < b { g(true); h(x.fua)?; } for i in 0..n + 1 { k.min(2); } }";
        assert_eq!(
            found(source),
            [
                ("negate", "a < b"),
                ("bound", "a < b"),
                ("swap", "g(true); h(x.fua)?;"),
                ("drop", "g(true);"),
                ("bool", "true"),
                ("drop", "h(x.fua)?;"),
                ("swallow", "h(x.fua)?;"),
                ("forget-flag", "x.fua"),
                ("skip-first", "0..n + 1"),
                ("one-dropped", "1"),
                ("drop", "k.min(2);"),
                ("method", "k.min(2)"),
            ]
        );
    }

    #[test]
    fn constants_tests_macros_patterns_and_seams_are_left_alone() {
        for source in [
            "const A: u32 = 1 + 1;",
            "const fn f() -> bool { 1 < 2 }",
            "#[cfg(test)] mod tests { fn f() { g(); } }",
            "#[test] fn f() { g(); }",
            "fn f() { assert!(a < b); }",
            "fn f() { let Some(x) = y else { return; }; }",
            "fn f() { let [_, true] = x else { panic!() }; }",
            "fn f() -> [u8; 2 + 2] { [x; 1 + 1] }",
            "fn f() { if active(Mutant::A) { g(); return; } }",
            "fn fuzz(data: &[u8]) { g(); }",
            "impl Display for A { fn fmt(&self) { g(); } }",
        ] {
            assert_eq!(found(source), [], "{source}");
        }
    }

    #[test]
    fn a_condition_that_binds_offers_only_its_other_parts() {
        let source = "fn f() { if let Some(x) = y && x < 3 && z {} }";
        assert_eq!(found(source), [("negate", "x < 3"), ("bound", "x < 3"), ("negate", "z")]);
    }

    #[test]
    fn functions_are_named_with_their_types() {
        let source = "mod m { impl<T> A<T> { fn f() { g(); } } }";
        assert_eq!(candidates(source).unwrap()[0].function, "m::A::f");
    }
}
