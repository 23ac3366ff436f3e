extern crate std;

use std::collections::HashSet;
use std::vec::Vec;

use super::*;

const LIMITS: Limits = Limits { without_progress: 1, rounds: 3 };
const BOTH: [Generation; 2] = [Generation::V3_0, Generation::V6_1];

fn order(order: u8) -> Order {
    Order::new(order).expect("an order of the test")
}

const PLAIN: Facts = Facts {
    order: Order::ZERO,
    movable: true,
    can_wait: true,
    high: false,
    no_retry: false,
    repeat: false,
    no_fail: false,
    may_write: true,
    no_reserves: false,
    reclaiming: false,
    victim: false,
};

const ALL: Means = Means { marks: true, reclaim: true, compact: true, forget: false, as_linux: false };

/// Possible outcomes of a step.
fn outcomes(step: Step) -> &'static [Outcome] {
    match step {
        Step::Reclaim => {
            &[Outcome::NoProgress, Outcome::Progress(0), Outcome::Progress(32), Outcome::Progress(1024)]
        }
        Step::Assess | Step::Kill => &[Outcome::Yes, Outcome::No],
        _ => &[Outcome::Done],
    }
}

/// Events on the way to a state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Seen {
    drained: bool,
    reclaims: u32,
    last: Option<Step>,
    progress: bool,
    /// Since the last walk at the min mark: a kill that succeeded, and a pause.
    killed: bool,
    paused: bool,
}

/// Goes through every state that can be reached, and checks each step against the permissions of the request.
fn explore(generation: Generation, facts: Facts, means: Means) {
    let (passes, first) = Passes::begin(generation, facts, means, LIMITS);
    assert!(matches!(first, Step::Walk(Walk { mark: Mark::Low, allowed_only: true, .. })));
    let mut seen = HashSet::new();
    let mut stack = Vec::from([(passes, first, Seen::default(), 0_u32)]);
    let endless = facts.no_fail && facts.can_wait && !facts.reclaiming;
    while let Some((passes, step, so_far, depth)) = stack.pop() {
        if !seen.insert((passes, step, so_far)) || (endless && depth > 40) {
            continue;
        }
        assert!(depth < 200, "no end: {facts:?} {means:?}");
        let may_help = facts.can_wait && !facts.reclaiming;
        let case = || std::format!("{generation:?} {facts:?} {means:?} {so_far:?} {step:?}");
        match step {
            Step::Reclaim => assert!(may_help && means.reclaim, "{}", case()),
            Step::Compact => assert!(may_help && means.compact && facts.order > Order::ZERO, "{}", case()),
            Step::Forget => assert!(means.forget && so_far.progress, "{}", case()),
            Step::Pause | Step::Assess | Step::Kill => assert!(may_help, "{}", case()),
            Step::Drain => assert!(facts.can_wait || !means.as_linux, "{}", case()),
            Step::Walk(walk) => {
                let exempt = (facts.reclaiming || facts.victim) && !facts.no_reserves;
                assert!(walk.mark != Mark::None || exempt, "{}", case());
                assert!(walk.allowed_only || exempt || !facts.can_wait, "{}", case());
                assert!(!walk.access.harder || !facts.can_wait && !facts.no_reserves, "{}", case());
            }
            Step::Wake => {}
            Step::Fail => {
                assert!(!endless, "a request that must not fail did: {}", case());
                let walked = matches!(so_far.last, Some(Step::Walk(_)) | Some(Step::Wake));
                assert!(walked || so_far.drained, "{}", case());
                assert!(
                    so_far.drained || !facts.can_wait && means.as_linux,
                    "failed with full lists: {}",
                    case()
                );
                continue;
            }
        }
        if so_far.last == Some(Step::Drain) || so_far.last == Some(Step::Compact) {
            assert!(matches!(step, Step::Walk(_)), "no walk after it: {}", case());
        }
        let at_min = matches!(step, Step::Walk(walk) if walk.mark == Mark::Min);
        assert!(step != Step::Kill || !so_far.killed, "killed twice without a look: {}", case());
        assert!(step != Step::Reclaim || !so_far.paused, "reclaims after a pause without a look: {}", case());
        let victim = facts.victim && !facts.no_fail;
        let spares = step != Step::Kill && (step != Step::Reclaim || generation == Generation::V6_1);
        assert!(!victim || spares, "a victim fails instead: {}", case());
        let reclaims = so_far.reclaims + u32::from(step == Step::Reclaim);
        assert!(reclaims <= 1 || !facts.no_retry || facts.no_fail, "{}", case());
        for &outcome in outcomes(step) {
            let mut after = passes;
            let next = after.next(outcome);
            let so_far = Seen {
                drained: so_far.drained || step == Step::Drain,
                reclaims: reclaims.min(2),
                last: Some(step),
                progress: matches!(outcome, Outcome::Progress(_)),
                killed: !at_min && (so_far.killed || (step == Step::Kill && outcome == Outcome::Yes)),
                paused: !at_min && (so_far.paused || step == Step::Pause),
            };
            stack.push((after, next, so_far, depth + 1));
        }
    }
}

/// Every request with every combination of helpers in both generations, for every outcome of each step.
#[test]
fn every_request_ends_and_keeps_its_limits() {
    for generation in BOTH {
        for bits in 0..1_u32 << 9 {
            let bit = |n: u32| bits >> n & 1 == 1;
            for order in [order(0), order(3), order(9)] {
                let facts = Facts {
                    order,
                    movable: bit(0),
                    can_wait: bit(1),
                    high: true,
                    no_retry: bit(2),
                    repeat: bit(3),
                    no_fail: bit(4),
                    may_write: bit(5),
                    no_reserves: bit(6),
                    reclaiming: bit(7),
                    victim: bit(8),
                };
                for means in 0..32 {
                    let bit = |n: u32| means >> n & 1 == 1;
                    let means = Means {
                        marks: bit(0),
                        reclaim: bit(1),
                        compact: bit(2),
                        forget: bit(3),
                        as_linux: bit(4),
                    };
                    explore(generation, facts, means);
                }
            }
        }
    }
}

/// The steps of a request that never gets anything, walks as their marks.
fn steps(generation: Generation, facts: Facts, means: Means, reclaim: Outcome) -> Vec<Step> {
    steps_within(LIMITS, generation, (facts, means), reclaim, Outcome::No)
}

/// Likewise within other limits, and with kills that may succeed.
fn steps_within(
    limits: Limits,
    generation: Generation,
    (facts, means): (Facts, Means),
    reclaim: Outcome,
    kill: Outcome,
) -> Vec<Step> {
    let (mut passes, mut step) = Passes::begin(generation, facts, means, limits);
    let mut steps = Vec::from([step]);
    while step != Step::Fail {
        let outcome = match step {
            Step::Reclaim => reclaim,
            Step::Assess => Outcome::Yes,
            Step::Kill => kill,
            _ => Outcome::Done,
        };
        step = passes.next(outcome);
        steps.push(step);
        assert!(steps.len() < 100);
    }
    steps
}

fn marks(steps: &[Step]) -> std::string::String {
    let name = |step: &Step| match step {
        Step::Walk(walk) => match walk.mark {
            Mark::None => "none",
            Mark::Min => "min",
            Mark::Low => "low",
            Mark::High => "high",
        },
        Step::Wake => "wake",
        Step::Compact => "compact",
        Step::Reclaim => "reclaim",
        Step::Forget => "forget",
        Step::Drain => "drain",
        Step::Assess => "assess",
        Step::Pause => "pause",
        Step::Kill => "kill",
        Step::Fail => "fail",
    };
    steps.iter().map(name).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_allocator_without_helpers_walks_drains_and_walks() {
    let means = Means { marks: false, reclaim: false, compact: false, ..ALL };
    for generation in BOTH {
        let all = steps(generation, PLAIN, means, Outcome::NoProgress);
        assert_eq!(marks(&all), "low wake drain min fail", "{generation:?}");
    }
}

#[test]
fn who_cannot_wait_tries_the_reserve_and_fails() {
    let atomic = Facts { can_wait: false, high: true, ..PLAIN };
    for generation in BOTH {
        let linux = steps(generation, atomic, Means { as_linux: true, ..ALL }, Outcome::NoProgress);
        assert_eq!(marks(&linux), "low wake min fail", "{generation:?}");
        let all = steps(generation, atomic, ALL, Outcome::NoProgress);
        assert_eq!(marks(&all), "low wake min drain min fail", "{generation:?}");
        let Step::Walk(walk) = all[2] else { panic!("{all:?}") };
        assert!(walk.access.high && walk.access.harder && walk.access.highatomic && !walk.allowed_only);
        let polite = Facts { no_reserves: true, ..atomic };
        let Step::Walk(walk) = steps(generation, polite, ALL, Outcome::NoProgress)[2] else { panic!() };
        assert!(walk.access.high && !walk.access.harder && walk.allowed_only);
    }
}

#[test]
fn a_reclaimer_may_have_the_last_page_and_never_reclaims() {
    let inside = Facts { reclaiming: true, ..PLAIN };
    for generation in BOTH {
        let all = steps(generation, inside, ALL, Outcome::NoProgress);
        assert_eq!(marks(&all), "low wake min none drain none fail", "{generation:?}");
    }
}

#[test]
fn the_passes_of_v3_0() {
    let passes = |facts, means, reclaim| marks(&steps(Generation::V3_0, facts, means, reclaim));
    assert_eq!(
        passes(PLAIN, ALL, Outcome::NoProgress),
        "low wake min reclaim high kill pause min reclaim high kill drain min fail"
    );
    let huge = Facts { order: order(9), ..PLAIN };
    assert_eq!(
        passes(huge, ALL, Outcome::Progress(32)),
        "low wake min compact min reclaim min drain min fail",
        "a costly request is not retried"
    );
    let repeat = Facts { repeat: true, ..huge };
    assert_eq!(
        passes(repeat, ALL, Outcome::Progress(256)),
        "low wake min compact min reclaim min drain min pause min compact min reclaim min drain min fail",
        "until as much was reclaimed as it wants"
    );
    let gentle = Facts { no_retry: true, ..PLAIN };
    assert_eq!(passes(gentle, ALL, Outcome::NoProgress), "low wake min reclaim drain min fail");
    let forget = Means { forget: true, ..ALL };
    assert_eq!(
        passes(gentle, forget, Outcome::Progress(1)),
        "low wake min reclaim forget min drain min fail"
    );
}

#[test]
fn the_passes_of_v6_1() {
    let passes = |facts, means, reclaim| marks(&steps(Generation::V6_1, facts, means, reclaim));
    assert_eq!(
        passes(PLAIN, ALL, Outcome::NoProgress),
        "low wake min reclaim assess pause wake min reclaim high kill drain min fail"
    );
    let huge = Facts { order: order(9), ..PLAIN };
    assert_eq!(
        passes(huge, ALL, Outcome::Progress(32)),
        "low wake min compact min reclaim min drain min compact min fail"
    );
    // Movable blocks of orders that are not costly are reclaimed for first.
    for (k, first) in
        [(0, "low wake min reclaim "), (3, "low wake min reclaim "), (4, "low wake min compact ")]
    {
        let facts = Facts { order: order(k), ..PLAIN };
        assert!(passes(facts, ALL, Outcome::NoProgress).starts_with(first), "order {k}");
    }
    let unmovable = Facts { order: order(1), movable: false, no_retry: true, ..PLAIN };
    assert_eq!(
        passes(unmovable, ALL, Outcome::NoProgress),
        "low wake min compact min reclaim compact min drain min fail"
    );
    let victim = Facts { victim: true, no_retry: true, ..PLAIN };
    assert_eq!(passes(victim, ALL, Outcome::NoProgress), "low wake min none reclaim drain none fail");
}

#[test]
fn reserves_are_for_victims_and_for_requests_that_cannot_wait() {
    let access = |facts: Facts, means: Means| {
        let (passes, _) = Passes::begin(Generation::V6_1, facts, means, LIMITS);
        let Access { oom_victim, highatomic, .. } = passes.slow(Mark::Min).access;
        (oom_victim, highatomic)
    };
    let linux = Means { as_linux: true, ..ALL };
    let atomic = Facts { can_wait: false, ..PLAIN };
    let victim = Facts { victim: true, ..PLAIN };
    for (facts, means, expected) in [
        (PLAIN, ALL, (false, false)),
        (atomic, ALL, (false, true)),
        (atomic, linux, (false, false)),
        (Facts { order: order(1), ..atomic }, linux, (false, true)),
        (Facts { order: order(1), ..PLAIN }, linux, (false, false)),
        (Facts { no_reserves: true, ..atomic }, ALL, (false, false)),
        (victim, linux, (true, false)),
        (Facts { no_reserves: true, ..victim }, linux, (false, false)),
    ] {
        assert_eq!(access(facts, means), expected, "{facts:?}, {means:?}");
    }
}

/// Rounds end when so many in a row have gained nothing, or at the bound on all; a kill counts as a gain, as do pages
/// of an order that is not costly.
#[test]
fn rounds_end_at_their_limits() {
    let count = |without_progress, rounds, generation, facts, reclaim, kill| {
        let limits = Limits { without_progress, rounds };
        let all = steps_within(limits, generation, (facts, Means { compact: false, ..ALL }), reclaim, kill);
        [Step::Reclaim, Step::Kill].map(|step| all.iter().filter(|&&taken| taken == step).count())
    };
    let repeat = |k| Facts { order: order(k), repeat: true, ..PLAIN };
    let (none, some, yes, no) = (Outcome::NoProgress, Outcome::Progress(32), Outcome::Yes, Outcome::No);
    let (v3_0, v6_1) = (Generation::V3_0, Generation::V6_1);
    // Reclaims and kills.
    for (without_progress, rounds, generation, facts, reclaim, kill, expected) in [
        (9, 3, v3_0, PLAIN, none, no, [3, 3]),
        (9, 3, v6_1, PLAIN, none, no, [3, 1]),
        (1, 9, v3_0, PLAIN, none, no, [2, 2]),
        (1, 9, v6_1, PLAIN, none, no, [2, 1]),
        (9, 3, v3_0, PLAIN, none, yes, [3, 3]),
        (1, 3, v6_1, PLAIN, none, yes, [3, 2]),
        (1, 5, v6_1, repeat(3), some, no, [5, 1]),
        (1, 5, v6_1, repeat(4), some, no, [2, 0]),
        (1, 5, v6_1, Facts { order: order(3), ..PLAIN }, some, no, [5, 1]),
        (1, 5, v6_1, Facts { order: order(4), ..PLAIN }, some, no, [1, 0]),
        (1, 5, v3_0, repeat(9), some, no, [5, 0]),
        // As much has been reclaimed as is wanted, or almost.
        (1, 5, v3_0, repeat(5), some, no, [1, 0]),
        (1, 5, v3_0, repeat(5), Outcome::Progress(31), no, [2, 0]),
    ] {
        let found = count(without_progress, rounds, generation, facts, reclaim, kill);
        assert_eq!(
            found, expected,
            "{without_progress} {rounds} {generation:?} {facts:?} {reclaim:?} {kill:?}"
        );
    }
}
