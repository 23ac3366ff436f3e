//! Rust source, as far as the rules need to understand it.

/// Rust source with comments, strings and characters blanked; line breaks stay.
pub(crate) fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let before = out.chars().next_back();
        let (keep, skip) = match c {
            '/' if rest.starts_with("//") => (0, rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => (0, rest.find("*/").map_or(rest.len(), |end| end + 2)),
            '"' => (0, string_end(rest)),
            'r' | 'b' if !before.is_some_and(is_word) => {
                let hashes = rest.trim_start_matches(['b', 'r']);
                let guard = hashes.len() - hashes.trim_start_matches('#').len();
                let body = &hashes[guard..];
                let start = rest.len() - body.len();
                if !body.starts_with('"') {
                    (1, 1)
                } else if rest[..start].contains('r') {
                    let end = format!("\"{}", "#".repeat(guard));
                    (0, body[1..].find(&end).map_or(rest.len(), |at| start + 1 + at + end.len()))
                } else {
                    (0, start + string_end(body))
                }
            }
            // A lifetime has no second quote where a character has it.
            '\'' if rest[1..].starts_with('\\') => (0, rest[3..].find('\'').map_or(rest.len(), |at| at + 4)),
            '\'' => match rest[1..].char_indices().nth(1) {
                Some((at, '\'')) => (0, at + 2),
                _ => (1, 1),
            },
            c => (c.len_utf8(), c.len_utf8()),
        };
        out.push_str(&rest[..keep]);
        out.extend(rest[keep..skip].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[skip..];
    }
    out
}

/// Length of the string literal that `text` begins with.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// `code` with every item under `#[cfg(test)]` blanked.
pub(crate) fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = code.to_owned();
    while let Some(start) = out.find(MARK) {
        let mut depth = 0_i32;
        let end = out[start + MARK.len()..].char_indices().find(|&(_, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && matches!(c, ';' | '}')
        });
        let end = end.map_or(out.len(), |(at, _)| start + MARK.len() + at + 1);
        let blank: String = out[start..end].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
        out.replace_range(start..end, &blank);
    }
    out
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The identifier that `text` begins with.
pub(crate) fn word(text: &str) -> &str {
    &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())]
}

/// Places of `pattern` in `text` with no word character right before it: line from 1, and what follows it.
pub(crate) fn occurrences<'a>(text: &'a str, pattern: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let lines = text.lines().zip(1..);
    lines.flat_map(move |(line, number)| {
        let starts = line.match_indices(pattern).map(|(at, _)| at);
        let whole = starts.filter(move |&at| !line[..at].chars().next_back().is_some_and(is_word));
        whole.map(move |at| (number, &line[at + pattern.len()..]))
    })
}

/// As [`occurrences`], with no word character right after it either.
pub(crate) fn words<'a>(text: &'a str, pattern: &'a str) -> impl Iterator<Item = usize> {
    occurrences(text, pattern).filter(|(_, rest)| word(rest).is_empty()).map(|(line, _)| line)
}

#[test]
fn code_has_no_comments_and_no_strings() {
    let source = "let a = \"x // unsafe\"; // unsafe\nlet b = '\"'; /* un\nsafe */ let c: &'a str = r#\"\"unsafe\"#; b'\\'' 'é'";
    let expected = "let a =              ;          \nlet b =    ;      \n        let c: &'a str =             ; b        ";
    let found = code(source);
    assert_eq!(found.split_whitespace().collect::<Vec<_>>(), expected.split_whitespace().collect::<Vec<_>>());
    assert_eq!(found.lines().count(), source.lines().count());
    let shipped = without_tests("a\n#[cfg(test)]\nmod tests {\n  { b }\n}\nc\n#[cfg(test)]\nmod t;\nd");
    assert_eq!(shipped.split_whitespace().collect::<String>(), "acd");
    assert_eq!(shipped.lines().count(), 9);
}
