//! The zonelist cache (v3.0): notes of a walk about zones that had nothing, and when a later walk uses them.
//!
//! The notes, a bit per zonelist position and the time of the last wipe, are shared; the caller keeps them. A walk
//! begins without using them; the *set-up* lets it use them. The two published orders of events differ in when the
//! set-up happens and in which zones are marked:
//!
//! | at a zone | [`AfterFirstZone`](Rule::AfterFirstZone) | [`BeforeFirstZone`](Rule::BeforeFirstZone) |
//! |---|---|---|
//! | notes are in use, and mark it as full | skip | skip |
//! | the allowed set forbids it | set-up | – |
//! | below its mark | – | set-up |
//! | and zone reclaim is off | mark, set-up | mark |
//! | and notes are in use, and mark it as full | – | skip |
//! | and zone reclaim did not scan | set-up | – |
//! | and zone reclaim found it full | mark, set-up | – |
//! | and it is below its mark after the scan | mark, set-up | mark |
//! | taking from it failed | mark, set-up | mark |
//!
//! A set-up happens once in a walk, and only on machines with several nodes. A walk that ends without a page while the
//! notes are in use goes through the whole list once more without them.

/// Nanoseconds after which a set-up wipes the notes.
pub const ZAP_NS: u64 = 1_000_000_000;

/// Moment at which a walk sets the notes up.
///
/// Source: the `zlc-first` and `zlc-reconsider` changes of 2011. v4.19 has no cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Rule {
    /// Never: no zone is skipped or marked.
    #[default]
    Off,
    /// After the first zone of the walk was tried, and reclaimed (v3.0).
    AfterFirstZone,
    /// As soon as a zone fails its mark, before it is reclaimed (*zlc-first*).
    BeforeFirstZone,
    /// Like [`BeforeFirstZone`](Self::BeforeFirstZone), and direct reclaim that made progress wipes the notes
    /// (*zlc-reconsider*).
    BeforeFirstZoneAndClear,
}

impl Rule {
    /// Whether direct reclaim that made progress wipes the notes.
    #[must_use]
    pub const fn clears_after_progress(self) -> bool {
        matches!(self, Self::BeforeFirstZoneAndClear)
    }
}

/// Reason why a walk got no block from a zone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seen {
    /// The allowed set forbids it.
    Forbidden,
    /// It is below its mark. Reported before zone reclaim begins.
    BelowMark,
    /// It is below its mark, and zone reclaim is off.
    ReclaimOff,
    /// Zone reclaim did not scan.
    NotScanned,
    /// Zone reclaim found that the zone has nothing to reclaim.
    Full,
    /// Zone reclaim scanned, and the zone is still below its mark.
    StillBelow,
    /// It met its mark, and taking from it failed.
    NothingTaken,
}

/// Changes of the notes. The mark comes first: a set-up may wipe it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Note {
    /// Mark the zone as full.
    pub mark: bool,
    /// Set up: wipe notes older than [`ZAP_NS`], and read which nodes are allowed.
    pub set_up: bool,
}

/// One walk over a zonelist.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ZlcWalk {
    rule: Rule,
    several_nodes: bool,
    active: bool,
    done: bool,
}

impl ZlcWalk {
    /// The beginning of a walk.
    #[must_use]
    pub const fn new(rule: Rule, several_nodes: bool) -> Self {
        Self { rule, several_nodes, active: false, done: false }
    }

    /// Whether to skip a zone, given whether the notes call it worth trying. Called before anything else about a zone
    /// and, if [`looks_twice`](Self::looks_twice), again before the zone is reclaimed.
    #[must_use]
    pub const fn skips(&self, worth_trying: bool) -> bool {
        self.active && !worth_trying
    }

    /// Whether the notes are read a second time after a zone has failed its mark.
    #[must_use]
    pub const fn looks_twice(&self) -> bool {
        matches!(self.rule, Rule::BeforeFirstZone | Rule::BeforeFirstZoneAndClear)
    }

    /// Records that a zone gave nothing, or failed its mark.
    pub const fn saw(&mut self, seen: Seen) -> Note {
        let (mark, set_up) = match self.rule {
            Rule::Off => (false, false),
            Rule::AfterFirstZone => match seen {
                Seen::BelowMark => (false, false),
                Seen::Forbidden | Seen::NotScanned => (false, true),
                Seen::ReclaimOff | Seen::Full | Seen::StillBelow | Seen::NothingTaken => (true, true),
            },
            Rule::BeforeFirstZone | Rule::BeforeFirstZoneAndClear => match seen {
                Seen::BelowMark => (false, true),
                Seen::Forbidden | Seen::NotScanned | Seen::Full => (false, false),
                Seen::ReclaimOff | Seen::StillBelow | Seen::NothingTaken => (true, false),
            },
        };
        let set_up = set_up && self.several_nodes && !self.done;
        if set_up {
            self.active = true;
            self.done = true;
        }
        Note { mark, set_up }
    }

    /// Called when the list has ended without a page. Returns whether to go through it once more, without the notes.
    pub const fn again(&mut self) -> bool {
        let again = self.active;
        self.active = false;
        again
    }
}

/// Whether a set-up at `now_ns` wipes notes last wiped at `last_ns`.
#[must_use]
pub const fn zaps(now_ns: u64, last_ns: u64) -> bool {
    now_ns > last_ns.saturating_add(ZAP_NS)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    const RULES: [Rule; 4] =
        [Rule::Off, Rule::AfterFirstZone, Rule::BeforeFirstZone, Rule::BeforeFirstZoneAndClear];

    #[test]
    fn progress_wipes_the_notes_under_one_rule() {
        assert_eq!(RULES.map(Rule::clears_after_progress), [false, false, false, true]);
    }

    #[test]
    fn the_zap_is_strict() {
        assert!(!zaps(ZAP_NS, 0));
        assert!(zaps(ZAP_NS + 1, 0));
        assert!(!zaps(5, u64::MAX));
    }

    #[test]
    fn a_single_node_is_never_set_up() {
        for rule in RULES {
            let mut walk = ZlcWalk::new(rule, false);
            for seen in [Seen::BelowMark, Seen::ReclaimOff, Seen::Forbidden] {
                assert!(!walk.saw(seen).set_up);
            }
            assert!(!walk.skips(false) && !walk.again());
        }
    }

    /// A zone as a walk meets it.
    #[derive(Clone, Copy, Debug)]
    struct Zone {
        forbidden: bool,
        mark_ok: bool,
        reclaim: Option<Seen>,
        takes: bool,
    }

    impl Zone {
        /// Every kind of zone: forbidden, fine, fine but empty, and below its mark in each way.
        fn all() -> Vec<Self> {
            let plain = Self { forbidden: false, mark_ok: true, reclaim: None, takes: true };
            let below = |seen| Self { mark_ok: false, reclaim: Some(seen), takes: false, ..plain };
            Vec::from([
                Self { forbidden: true, ..plain },
                plain,
                Self { takes: false, ..plain },
                below(Seen::ReclaimOff),
                below(Seen::NotScanned),
                below(Seen::Full),
                below(Seen::StillBelow),
            ])
        }
    }

    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    struct Trace {
        full: [bool; 4],
        taken: Option<usize>,
        reclaimed: Vec<usize>,
        set_ups: usize,
    }

    /// The walk as the allocator does it.
    fn walk(rule: Rule, zones: &[Zone], full: [bool; 4], zap: bool) -> Trace {
        let mut trace = Trace { full, ..Trace::default() };
        let mut walk = ZlcWalk::new(rule, true);
        loop {
            for (n, zone) in zones.iter().enumerate() {
                let saw = |walk: &mut ZlcWalk, trace: &mut Trace, seen| {
                    let note = walk.saw(seen);
                    if note.mark {
                        trace.full[n] = true;
                    }
                    if note.set_up {
                        trace.set_ups += 1;
                        if zap {
                            trace.full = [false; 4];
                        }
                    }
                };
                if walk.skips(!trace.full[n]) {
                    continue;
                }
                if zone.forbidden {
                    saw(&mut walk, &mut trace, Seen::Forbidden);
                    continue;
                }
                if !zone.mark_ok {
                    saw(&mut walk, &mut trace, Seen::BelowMark);
                    if zone.reclaim == Some(Seen::ReclaimOff) {
                        saw(&mut walk, &mut trace, Seen::ReclaimOff);
                        continue;
                    }
                    if walk.looks_twice() && walk.skips(!trace.full[n]) {
                        continue;
                    }
                    trace.reclaimed.push(n);
                    saw(&mut walk, &mut trace, zone.reclaim.expect("below its mark"));
                    continue;
                }
                if zone.takes {
                    trace.taken = Some(n);
                    return trace;
                }
                saw(&mut walk, &mut trace, Seen::NothingTaken);
            }
            if !walk.again() {
                return trace;
            }
        }
    }

    /// Like [`walk`], but written again from the published listings, with their labels and jumps.
    fn published(rule: Rule, zones: &[Zone], full: [bool; 4], zap: bool) -> Trace {
        let mut trace = Trace { full, ..Trace::default() };
        let before = rule == Rule::AfterFirstZone;
        let (mut active, mut did) = (false, false);
        'scan: loop {
            for (n, zone) in zones.iter().enumerate() {
                let set_up = |trace: &mut Trace, active: &mut bool, did: &mut bool| {
                    if rule != Rule::Off && !*did {
                        trace.set_ups += 1;
                        if zap {
                            trace.full = [false; 4];
                        }
                        (*active, *did) = (true, true);
                    }
                };
                if active && trace.full[n] {
                    continue;
                }
                let (mut this_zone_full, mut try_next) = (false, false);
                if zone.forbidden {
                    try_next = true;
                } else if !zone.mark_ok {
                    if !before {
                        set_up(&mut trace, &mut active, &mut did);
                    }
                    if zone.reclaim == Some(Seen::ReclaimOff) {
                        this_zone_full = true;
                    } else if !before && active && trace.full[n] {
                        continue;
                    } else {
                        trace.reclaimed.push(n);
                        match zone.reclaim {
                            Some(Seen::NotScanned) => try_next = true,
                            Some(Seen::Full) if before => this_zone_full = true,
                            Some(Seen::Full) => try_next = true,
                            _ => this_zone_full = true,
                        }
                    }
                } else if zone.takes {
                    trace.taken = Some(n);
                    return trace;
                } else {
                    this_zone_full = true;
                }
                if this_zone_full && rule != Rule::Off {
                    trace.full[n] = true;
                }
                if before && (this_zone_full || try_next) {
                    set_up(&mut trace, &mut active, &mut did);
                }
            }
            if active {
                active = false;
                continue 'scan;
            }
            return trace;
        }
    }

    /// Every list of up to four zones of every kind, every set of notes, zapped or not, under every rule.
    #[test]
    fn every_walk_over_four_zones_is_as_published() {
        let kinds = Zone::all();
        for len in 1..=4_u32 {
            for choice in 0..kinds.len().pow(len) {
                let zones: Vec<Zone> =
                    (0..len).map(|n| kinds[choice / kinds.len().pow(n) % kinds.len()]).collect();
                for notes in 0..1_u32 << len {
                    let full = core::array::from_fn(|n| notes >> n & 1 == 1);
                    for (rule, zap) in RULES.into_iter().flat_map(|rule| [(rule, false), (rule, true)]) {
                        let (ours, theirs) =
                            (walk(rule, &zones, full, zap), published(rule, &zones, full, zap));
                        assert_eq!(ours, theirs, "{rule:?}, {zones:?}, {full:?}, zap {zap}");
                        let any = zones.iter().any(|zone| !zone.forbidden && zone.mark_ok && zone.takes);
                        assert_eq!(ours.taken.is_some(), any, "a page was missed: {rule:?}, {zones:?}");
                    }
                }
            }
        }
    }

    /// The worked example: a local zone that reclaim cannot help, and a remote one with space.
    #[test]
    fn the_first_zone_is_scanned_once_instead_of_every_time() {
        let kinds = Zone::all();
        let zones = [kinds[6], kinds[1]];
        for (rule, scans) in [(Rule::AfterFirstZone, 10), (Rule::BeforeFirstZone, 1)] {
            let mut full = [false; 4];
            let mut scanned = 0;
            for _ in 0..10 {
                let trace = walk(rule, &zones, full, false);
                assert_eq!(trace.taken, Some(1));
                (full, scanned) = (trace.full, scanned + trace.reclaimed.len());
            }
            assert_eq!(scanned, scans, "{rule:?}");
        }
    }
}
