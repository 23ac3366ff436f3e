//! Names of allocation flags, as tracepoints print them.
//!
//! Numbers are those of Linux 6.18 (`gfp_types.h` and the flag list of `mmflags.h`, x86-64 without KASAN).
//! Kernels renumber flags from time to time, so names from another kernel become the numbers that these names
//! have in 6.18.

/// Flags of the request itself: `___GFP_…`.
const BITS: [(&str, u64); 25] = [
    ("__GFP_DMA", 1 << 0),
    ("__GFP_HIGHMEM", 1 << 1),
    ("__GFP_DMA32", 1 << 2),
    ("__GFP_MOVABLE", 1 << 3),
    ("__GFP_RECLAIMABLE", 1 << 4),
    ("__GFP_HIGH", 1 << 5),
    ("__GFP_IO", 1 << 6),
    ("__GFP_FS", 1 << 7),
    ("__GFP_ZERO", ZERO),
    ("__GFP_DIRECT_RECLAIM", DIRECT_RECLAIM),
    ("__GFP_KSWAPD_RECLAIM", KSWAPD_RECLAIM),
    ("__GFP_RECLAIM", RECLAIM),
    ("__GFP_WRITE", WRITE),
    ("__GFP_NOWARN", NOWARN),
    ("__GFP_RETRY_MAYFAIL", 1 << 14),
    ("__GFP_NOFAIL", NOFAIL),
    ("__GFP_NORETRY", NORETRY),
    ("__GFP_MEMALLOC", 1 << 17),
    ("__GFP_COMP", COMP),
    ("__GFP_NOMEMALLOC", NOMEMALLOC),
    ("__GFP_HARDWALL", HARDWALL),
    ("__GFP_THISNODE", 1 << 21),
    ("__GFP_ACCOUNT", ACCOUNT),
    ("__GFP_ZEROTAGS", 1 << 23),
    ("__GFP_NO_OBJ_EXT", 1 << 24),
];

const HIGHMEM: u64 = 1 << 1;
const MOVABLE: u64 = 1 << 3;
const HIGH: u64 = 1 << 5;
const IO: u64 = 1 << 6;
const FS: u64 = 1 << 7;
const ZERO: u64 = 1 << 8;
const DIRECT_RECLAIM: u64 = 1 << 10;
const KSWAPD_RECLAIM: u64 = 1 << 11;
const RECLAIM: u64 = DIRECT_RECLAIM | KSWAPD_RECLAIM;
const WRITE: u64 = 1 << 12;
const NOWARN: u64 = 1 << 13;
const NOFAIL: u64 = 1 << 15;
const NORETRY: u64 = 1 << 16;
const COMP: u64 = 1 << 18;
const NOMEMALLOC: u64 = 1 << 19;
const HARDWALL: u64 = 1 << 20;
const ACCOUNT: u64 = 1 << 22;

const KERNEL: u64 = RECLAIM | IO | FS;
const USER: u64 = KERNEL | HARDWALL;
const HIGHUSER_MOVABLE: u64 = USER | HIGHMEM | MOVABLE;
const TRANSHUGE_LIGHT: u64 = (HIGHUSER_MOVABLE | COMP | NOMEMALLOC | NOWARN) & !RECLAIM;

/// Combinations that have a name: `GFP_…`.
const SETS: [(&str, u64); 14] = [
    ("GFP_TRANSHUGE", TRANSHUGE_LIGHT | DIRECT_RECLAIM),
    ("GFP_TRANSHUGE_LIGHT", TRANSHUGE_LIGHT),
    ("GFP_HIGHUSER_MOVABLE", HIGHUSER_MOVABLE),
    ("GFP_HIGHUSER", USER | HIGHMEM),
    ("GFP_USER", USER),
    ("GFP_KERNEL_ACCOUNT", KERNEL | ACCOUNT),
    ("GFP_KERNEL", KERNEL),
    ("GFP_NOFS", RECLAIM | IO),
    ("GFP_ATOMIC", HIGH | KSWAPD_RECLAIM),
    ("GFP_NOIO", RECLAIM),
    ("GFP_NOWAIT", KSWAPD_RECLAIM | NOWARN),
    ("GFP_DMA", 1 << 0),
    ("GFP_DMA32", 1 << 2),
    ("none", 0),
];

/// Names that older kernels print, or that some configurations add, and that have no number in 6.18.
const GONE: [&str; 15] = [
    "__GFP_WAIT",
    "__GFP_ATOMIC",
    "__GFP_COLD",
    "__GFP_NOTRACK",
    "__GFP_OTHER_NODE",
    "__GFP_NOACCOUNT",
    "__GFP_NO_KSWAPD",
    "__GFP_REPEAT",
    "__GFP_KMEMCG",
    "__GFP_NOLOCKDEP",
    "__GFP_SKIP_ZERO",
    "__GFP_SKIP_KASAN",
    "__GFP_SKIP_KASAN_POISON",
    "__GFP_SKIP_KASAN_UNPOISON",
    "GFP_TEMPORARY",
];

/// Whether a movable block below the pageblock order was asked for with the flags of a page of a file: written
/// (`__GFP_WRITE`), read ahead (`__GFP_NORETRY`) or a block device's (`__GFP_NOFAIL`), and not to be cleared. A private
/// page has none of these, nor has one of tmpfs, which is not told from the copy of a private page. The numbers are the
/// same from Linux 5.4 to 6.18.
pub(crate) const fn is_page_cache(gfp: u64) -> bool {
    // Transparent huge pages may be asked for without a retry, too, and always without the reserves.
    gfp & (ZERO | NOMEMALLOC) == 0 && gfp & (WRITE | NOFAIL | NORETRY) != 0
}

/// Flags printed as `NAME|NAME|0xREST`. A flag whose name is not known counts as 0 and is given to `unknown`:
/// kernels add flags, and no replay reads them. What is no flag's name is the error.
pub(crate) fn parse<'a>(text: &'a str, mut unknown: impl FnMut(&'a str)) -> Result<u64, String> {
    text.split('|').try_fold(0, |flags, word| Ok(flags | one(word.trim(), &mut unknown)?))
}

fn one<'a>(word: &'a str, unknown: &mut impl FnMut(&'a str)) -> Result<u64, String> {
    let known = SETS.iter().chain(&BITS).find(|(name, _)| *name == word).map(|&(_, bits)| bits);
    if let Some(bits) = known {
        return Ok(bits);
    }
    if GONE.contains(&word) {
        return Ok(0);
    }
    let name = word.strip_prefix("__").unwrap_or(word);
    if name.starts_with("GFP_")
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    {
        unknown(word);
        return Ok(0);
    }
    let number = word.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.ok_or_else(|| format!("unknown allocation flag {word:?}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn pages_of_files_are_told_by_their_flags() {
        for (text, expected) in [
            ("GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO", false),
            ("GFP_HIGHUSER_MOVABLE|__GFP_COMP", false),
            ("GFP_HIGHUSER_MOVABLE|__GFP_WRITE|__GFP_COMP", true),
            ("GFP_NOFS|__GFP_MOVABLE|__GFP_HARDWALL|__GFP_NOWARN|__GFP_NORETRY|__GFP_COMP", true),
            ("GFP_NOFS|__GFP_MOVABLE|__GFP_NOFAIL|__GFP_COMP", true),
            ("GFP_TRANSHUGE|__GFP_NORETRY", false),
        ] {
            let gfp = super::parse(text, |name| panic!("{name}")).expect("flags");
            assert_eq!(super::is_page_cache(gfp), expected, "{text}");
        }
    }

    use super::parse as parse_all;

    fn parse(text: &str) -> Result<u64, String> {
        parse_all(text, |name| panic!("{name}"))
    }

    #[test]
    fn flags_by_name_and_number() {
        // Values that a 6.18 kernel reports in the raw events that it prints under these names.
        assert_eq!(parse("GFP_KERNEL"), Ok(0xcc0));
        assert_eq!(parse("GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO"), Ok(0x14_0dca));
        assert_eq!(parse("GFP_NOWAIT|__GFP_COMP|0x2000000"), Ok(0x204_2800));
        assert_eq!(parse("none"), Ok(0));
        assert_eq!(parse("GFP_ATOMIC|__GFP_COLD"), Ok(0x820));
        assert_eq!(parse("GFP_KERNEL|odd"), Err("unknown allocation flag \"odd\"".into()));
        assert!(parse("").is_err());
        let mut unknown = Vec::new();
        let flags = parse_all("GFP_KERNEL|__GFP_NEW_1|GFP_ODD", |name| unknown.push(name));
        assert_eq!((flags, unknown), (Ok(0xcc0), vec!["__GFP_NEW_1", "GFP_ODD"]));
    }
}
