//! Puts the mutants of a file into its text, each behind a switch, so that one build holds them all.
//!
//! `a < b` becomes `(if on(7) { a <= b } else { a < b })`; a function begins with `if on(8) { return true; }`; an arm
//! of a `match` that is to be deleted gets the guard `!on(9)`. Only one mutant is on at a time, so what stands in the
//! branch of a mutant is the original text, and the text grows with its depth only.

use core::ops::Range;
use std::collections::HashMap;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Expr, Pat};

/// One mutant of a file, as `cargo mutants --list` names it.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    /// Number in the list of all mutants: what its switch is called by.
    pub(crate) id: u32,
    pub(crate) genre: String,
    pub(crate) replacement: String,
    /// What is replaced, in bytes of the file.
    pub(crate) range: Range<usize>,
}

/// A file's text with its mutants.
pub(crate) struct Woven {
    pub(crate) text: String,
    /// Which mutants stand where in `text`, in bytes. Ranges nest.
    pub(crate) marks: Vec<(Range<usize>, Vec<u32>)>,
    /// Mutants that the compiler evaluates.
    pub(crate) constant: Vec<u32>,
    /// Mutants that cannot compile: an arm of a match that has none for the rest, `||` in a chain with `let`.
    pub(crate) unviable: Vec<u32>,
}

impl Woven {
    /// The mutants that an error at a place of the text is about: those of the smallest range around it.
    pub(crate) fn blamed(&self, at: &Range<usize>) -> Option<&[u32]> {
        let around = self.marks.iter().filter(|(range, _)| range.start <= at.start && at.end <= range.end);
        around.min_by_key(|(range, _)| range.len()).map(|(_, ids)| ids.as_slice())
    }
}

/// Where a mutant's switch can stand, by the first byte of what the mutant replaces.
#[derive(Default)]
struct Places {
    /// Of an operator: the expression. Of a field in a struct expression: that expression.
    expressions: HashMap<usize, Range<usize>>,
    /// Of an arm: the end of its pattern, and its guard.
    arms: HashMap<usize, (usize, Option<Range<usize>>)>,
    /// What the compiler evaluates: no switch is seen there.
    constants: Vec<Range<usize>>,
}

/// Whether a condition is a chain with `let`, which cannot stand in parentheses.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl Places {
    fn constant(&mut self, node: &impl Spanned) {
        self.constants.push(node.span().byte_range());
    }
}

impl<'ast> Visit<'ast> for Places {
    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        if !has_let(&node.left) && !has_let(&node.right) {
            self.expressions.insert(node.op.span().byte_range().start, node.span().byte_range());
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        self.expressions.insert(node.op.span().byte_range().start, node.span().byte_range());
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_struct(&mut self, node: &'ast syn::ExprStruct) {
        for field in &node.fields {
            self.expressions.insert(field.span().byte_range().start, node.span().byte_range());
        }
        visit::visit_expr_struct(self, node);
    }

    fn visit_expr_match(&mut self, node: &'ast syn::ExprMatch) {
        // Without one of its arms, a match compiles only if it has another one for the rest. A name with a capital is a
        // variant's.
        let rest = |arm: &syn::Arm| {
            arm.guard.is_none()
                && match &arm.pat {
                    Pat::Wild(_) => true,
                    Pat::Ident(name) => name.ident.to_string().starts_with(char::is_lowercase),
                    _ => false,
                }
        };
        for arm in node.arms.iter().filter(|arm| !rest(arm) && node.arms.iter().any(rest)) {
            let guard = arm.guard.as_ref().map(|(_, guard)| guard);
            if !guard.is_some_and(|guard| has_let(guard)) {
                let guard = guard.map(|guard| guard.span().byte_range());
                self.arms.insert(arm.span().byte_range().start, (arm.pat.span().byte_range().end, guard));
            }
        }
        visit::visit_expr_match(self, node);
    }

    fn visit_pat(&mut self, node: &'ast Pat) {
        self.constant(node);
    }

    fn visit_item_const(&mut self, node: &'ast syn::ItemConst) {
        self.constant(node);
    }

    fn visit_item_static(&mut self, node: &'ast syn::ItemStatic) {
        self.constant(node);
    }

    fn visit_impl_item_const(&mut self, node: &'ast syn::ImplItemConst) {
        self.constant(node);
    }

    fn visit_trait_item_const(&mut self, node: &'ast syn::TraitItemConst) {
        self.constant(node);
    }

    fn visit_expr_const(&mut self, node: &'ast syn::ExprConst) {
        self.constant(node);
    }

    fn visit_variant(&mut self, node: &'ast syn::Variant) {
        self.constant(node);
    }

    fn visit_type(&mut self, node: &'ast syn::Type) {
        self.constant(node);
    }

    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.visit_expr(&node.expr);
        self.constant(&node.len);
    }
}

/// One place of the text that changes.
struct Edit {
    range: Range<usize>,
    /// The content of a function's body: an early return, not an expression.
    body: bool,
    /// What stands in place of the text, by mutant.
    branches: Vec<(u32, String)>,
    /// The arm whose guard this is is deleted by this mutant.
    arm: Option<u32>,
}

/// The text of a file with the mutants that it can hold, without those in `without`. `switch` is the path of the
/// function that says whether a mutant is on.
///
/// # Errors
/// The text is no Rust.
pub(crate) fn weave(
    text: &str,
    switch: &str,
    mutants: &[Mutant],
    without: &dyn Fn(u32) -> bool,
) -> syn::Result<Woven> {
    let file = syn::parse_file(text)?;
    let mut places = Places::default();
    places.visit_file(&file);
    let mut edits: Vec<Edit> = Vec::new();
    let (mut constants, mut unviable) = (Vec::new(), Vec::new());
    for mutant in mutants {
        if without(mutant.id) {
            continue;
        }
        let constant = |range: &Range<usize>| {
            places.constants.iter().any(|inside| inside.start <= range.start && range.end <= inside.end)
        };
        if constant(&mutant.range) {
            constants.push(mutant.id);
            continue;
        }
        let mut add = |range: Range<usize>, body: bool, branch: Option<String>| {
            let known = edits.iter().position(|edit| edit.range == range && edit.body == body);
            let at = known.unwrap_or_else(|| {
                edits.push(Edit { range, body, branches: Vec::new(), arm: None });
                edits.len() - 1
            });
            match branch {
                Some(branch) => edits[at].branches.push((mutant.id, branch)),
                None => edits[at].arm = Some(mutant.id),
            }
        };
        match mutant.genre.as_str() {
            "FnValue" => add(mutant.range.clone(), true, Some(mutant.replacement.clone())),
            "MatchArmGuard" => add(mutant.range.clone(), false, Some(mutant.replacement.clone())),
            "BinaryOperator" | "UnaryOperator" | "StructField" => {
                let Some(whole) = places.expressions.get(&mutant.range.start) else {
                    unviable.push(mutant.id);
                    continue;
                };
                let before = &text[whole.start..mutant.range.start];
                let after = &text[mutant.range.end..whole.end];
                add(whole.clone(), false, Some(format!("{before}{}{after}", mutant.replacement)));
            }
            "MatchArm" => match places.arms.get(&mutant.range.start) {
                Some((_, Some(guard))) => add(guard.clone(), false, None),
                Some((end, None)) => add(*end..*end, false, None),
                None => unviable.push(mutant.id),
            },
            _ => unviable.push(mutant.id),
        }
    }
    // Outer ones first; a body before the expression that is all of it.
    edits.sort_by_key(|edit| (edit.range.start, usize::MAX - edit.range.end, !edit.body));
    let mut weaver = Weaver { text, switch, edits: &edits, next: 0, out: String::new(), marks: Vec::new() };
    weaver.emit(0..text.len());
    Ok(Woven { text: weaver.out, marks: weaver.marks, constant: constants, unviable })
}

struct Weaver<'a> {
    text: &'a str,
    switch: &'a str,
    edits: &'a [Edit],
    next: usize,
    out: String,
    marks: Vec<(Range<usize>, Vec<u32>)>,
}

impl Weaver<'_> {
    /// Writes a range of the text with the edits that lie in it, of which `next` is the first.
    fn emit(&mut self, range: Range<usize>) {
        let mut at = range.start;
        while let Some(edit) = self.edits.get(self.next).filter(|edit| edit.range.end <= range.end) {
            self.out.push_str(&self.text[at..edit.range.start]);
            self.next += 1;
            self.edit(edit);
            at = edit.range.end;
        }
        self.out.push_str(&self.text[at..range.end]);
    }

    fn edit(&mut self, edit: &Edit) {
        let start = self.out.len();
        let mut all: Vec<u32> = edit.branches.iter().map(|&(id, _)| id).collect();
        all.extend(edit.arm);
        if edit.body {
            for (id, value) in &edit.branches {
                self.branch("if ", *id, " { return ", value, "; }\n");
            }
            self.mark(start, &all);
            self.emit(edit.range.clone());
            return;
        }
        if edit.range.is_empty() {
            let id = edit.arm.expect("an arm's guard is all that has no place of its own");
            let switch = self.switch;
            self.out.push_str(&format!(" if !{switch}({id})"));
            self.mark(start, &all);
            return;
        }
        self.out.push('(');
        if let Some(id) = edit.arm {
            let switch = self.switch;
            self.out.push_str(&format!("!{switch}({id}) && ("));
        }
        for (n, (id, value)) in edit.branches.iter().enumerate() {
            self.branch(if n == 0 { "if " } else { " else if " }, *id, " { ", value, " }");
        }
        if !edit.branches.is_empty() {
            self.out.push_str(" else { ");
        }
        self.emit(edit.range.clone());
        if !edit.branches.is_empty() {
            self.out.push_str(" }");
        }
        if edit.arm.is_some() {
            self.out.push(')');
        }
        self.out.push(')');
        self.mark(start, &all);
    }

    fn branch(&mut self, before: &str, id: u32, open: &str, value: &str, close: &str) {
        self.out.push_str(before);
        let start = self.out.len();
        let switch = self.switch;
        self.out.push_str(&format!("{switch}({id}){open}{value}{close}"));
        self.mark(start, &[id]);
    }

    fn mark(&mut self, start: usize, ids: &[u32]) {
        self.marks.push((start..self.out.len(), ids.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(id: u32, genre: &str, text: &str, what: &str, replacement: &str) -> Mutant {
        let start = text.find(what).expect("the text has it");
        let range = start..start + what.len();
        Mutant { id, genre: genre.into(), replacement: replacement.into(), range }
    }

    #[test]
    fn every_genre_gets_its_switch() {
        let text =
            "fn f(a: u32, b: u32) -> bool { match a { 0 => true, 1 if b > 2 => !(a < b), _ => false } }";
        let body = "match a { 0 => true, 1 if b > 2 => !(a < b), _ => false }";
        let mutants = [
            mutant(0, "FnValue", text, body, "true"),
            mutant(1, "BinaryOperator", text, "<", "<="),
            mutant(2, "BinaryOperator", text, "<", "=="),
            mutant(3, "UnaryOperator", text, "!", ""),
            mutant(4, "MatchArm", text, "0 => true,", ""),
            mutant(5, "MatchArm", text, "1 if b > 2 => !(a < b),", ""),
            mutant(6, "MatchArmGuard", text, "b > 2", "false"),
        ];
        let woven = weave(text, "crate::mutant_switch::on", &mutants, &|_| false).expect("it is Rust");
        let on = |id: u32| format!("crate::mutant_switch::on({id})");
        let expected = format!(
            "fn f(a: u32, b: u32) -> bool {{ if {} {{ return true; }}\nmatch a {{ 0 if !{} => true, \
             1 if (!{} && (if {} {{ false }} else {{ b > 2 }})) => (if {} {{ (a < b) }} else {{ \
             !((if {} {{ a <= b }} else if {} {{ a == b }} else {{ a < b }})) }}), _ => false }} }}",
            on(0),
            on(4),
            on(5),
            on(6),
            on(3),
            on(1),
            on(2)
        );
        assert_eq!(woven.text, expected);
        assert!(
            syn::parse_file(&woven.text).is_ok() && woven.constant.is_empty() && woven.unviable.is_empty()
        );
        let at = woven.text.find("a <= b").expect("mutant 1");
        assert_eq!(woven.blamed(&(at..at + 6)), Some(&[1][..]));
        let at = woven.text.rfind("a < b").expect("the original");
        assert_eq!(woven.blamed(&(at..at + 5)), Some(&[1, 2][..]));
    }

    #[test]
    fn what_the_compiler_evaluates_and_chains_with_let_are_left_out() {
        let text = "const A: u32 = 1 + 2; fn f(x: Option<u32>) -> u32 { if let Some(y) = x && y > 1 { y - 1 } else { 0 } }";
        let mutants = [
            mutant(0, "BinaryOperator", text, "+", "-"),
            mutant(1, "BinaryOperator", text, "&&", "||"),
            mutant(2, "BinaryOperator", text, "> 1", "< 1"),
        ];
        let woven = weave(text, "crate::mutant_switch::on", &mutants, &|_| false).expect("it is Rust");
        assert_eq!((woven.constant, woven.unviable), (vec![0], vec![1]));
        assert!(woven.text.contains("&& (if crate::mutant_switch::on(2) { y < 1 } else { y > 1 }) {"));
        assert!(syn::parse_file(&woven.text).is_ok());
    }

    #[test]
    fn an_arm_is_deleted_only_where_another_takes_the_rest() {
        let arms = |text: &str| {
            let mutants = [mutant(0, "MatchArm", text, "0 => 1,", "")];
            weave(text, "on", &mutants, &|_| false).expect("it is Rust").unviable
        };
        assert!(arms("fn f(x: u8) -> u8 { match x { 0 => 1, y => y } }").is_empty());
        assert!(arms("fn f(x: u8) -> u8 { match x { 0 => 1, _ => 2 } }").is_empty());
        assert_eq!(arms("fn f(x: u8) -> u8 { match x { 0 => 1, 1.. => 2 } }"), [0]);
        assert_eq!(arms("fn f(x: u8) -> u8 { match x { 0 => 1, REST => 2 } }"), [0]);
        let rest = "fn f(x: u8) -> u8 { match x { 0 if x > 2 => 1, y => y } }";
        let woven = weave(rest, "on", &[mutant(0, "MatchArm", rest, "y => y", "")], &|_| false);
        assert_eq!(woven.expect("it is Rust").unviable, [0], "it takes the rest itself");
    }

    #[test]
    fn a_field_of_a_struct_is_left_to_the_rest() {
        let text = "fn f() -> S { S { a: 1, ..S::new() } }";
        let woven =
            weave(text, "crate::mutant_switch::on", &[mutant(0, "StructField", text, "a: 1,", "")], &|_| {
                false
            })
            .expect("it is Rust");
        assert!(
            woven.text.contains("{ S {  ..S::new() } } else { S { a: 1, ..S::new() } }"),
            "{}",
            woven.text
        );
    }
}
