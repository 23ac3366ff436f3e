//! The kernel's command line: words, of which some are `name=value`.

/// The word `name`, or what stands behind `name=`. The last one counts.
pub fn find<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_ascii_whitespace().rev().find_map(|word| {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        (key == name).then_some(value)
    })
}

/// The number behind `name=`, decimal; `None` if it is missing or no number.
pub fn number(line: &str, name: &str) -> Option<u64> {
    find(line, name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_values_are_found() {
        let line = "scenario=bench json  seed=7 seed=12 cpus=x";
        assert_eq!(find(line, "scenario"), Some("bench"));
        assert_eq!(find(line, "json"), Some(""));
        assert_eq!(find(line, "jso"), None);
        assert_eq!(number(line, "seed"), Some(12));
        assert_eq!(number(line, "cpus"), None);
    }
}
