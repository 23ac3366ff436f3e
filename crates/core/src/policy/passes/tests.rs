extern crate std;

use std::vec::Vec;

use super::*;

const LIMITS: Limits = Limits { without_progress: 1, rounds: 3 };
const BOTH: [Generation; 2] = [Generation::V3_0, Generation::V6_1];

fn order(order: u8) -> Order {
    Order::new(order).expect("an order of the test")
}

const PLAIN: Facts = Facts { order: Order::ZERO, movable: true, flags: Flags::NONE, reclaiming: false };

/// All flags that decide which steps there are.
const FLAGS: [Flags; 7] = [
    Flags::NO_WAIT,
    Flags::NO_RETRY,
    Flags::REPEAT,
    Flags::NO_FAIL,
    Flags::NO_WRITE,
    Flags::NO_RESERVES,
    Flags::VICTIM,
];

/// A plain request with these flags.
const fn with(flags: Flags) -> Facts {
    Facts { flags, ..PLAIN }
}

const ALL: Means = Means { marks: true, reclaim: true, compact: true, as_linux: false };

/// Possible outcomes of a step.
fn outcomes(step: Step) -> &'static [Outcome] {
    match step {
        Step::Reclaim => &[Outcome::No, Outcome::Progress(0), Outcome::Progress(32), Outcome::Progress(1024)],
        Step::Assess | Step::Kill => &[Outcome::Yes, Outcome::No],
        _ => &[Outcome::No],
    }
}

/// Events on the way to a step.
#[derive(Default)]
struct Seen {
    drained: bool,
    reclaims: u32,
    last: Option<Step>,
    /// Since the last walk at the min mark: a kill that succeeded, and a pause.
    killed: bool,
    paused: bool,
}

/// Goes through the passes once for each sequence of outcomes, and checks each step against the permissions of the
/// request.
fn explore(generation: Generation, facts: Facts, means: Means) {
    let flagged = |flag| facts.flags.has(flag);
    let endless = flagged(Flags::NO_FAIL) && !flagged(Flags::NO_WAIT) && !facts.reclaiming;
    // Numbers of the outcomes that are not tried yet of each step that has several.
    let mut choices: Vec<&[Outcome]> = Vec::new();
    loop {
        let (mut so_far, mut depth, mut made) = (Seen::default(), 0, 0);
        run(generation, facts, means, Limits { rounds: 2, ..LIMITS }, |step| {
            depth += 1;
            assert!(depth < 200, "no end: {facts:?} {means:?}");
            if endless && depth > 20 {
                return Outcome::Yes;
            }
            check(generation, facts, means, &so_far, step);
            let outcome = match outcomes(step) {
                &[only] => only,
                all => {
                    made += 1;
                    if made > choices.len() {
                        choices.push(all);
                    }
                    choices[made - 1][0]
                }
            };
            let at_min = matches!(step, Step::Walk(walk) if walk.mark == Mark::Min);
            so_far = Seen {
                drained: so_far.drained || step == Step::Drain,
                reclaims: so_far.reclaims + u32::from(step == Step::Reclaim),
                last: Some(step),
                killed: !at_min && (so_far.killed || (step == Step::Kill && outcome == Outcome::Yes)),
                paused: !at_min && (so_far.paused || step == Step::Pause),
            };
            outcome
        });
        let case = || std::format!("{generation:?} {facts:?} {means:?}");
        assert!(depth > 20 || !endless, "a request that must not fail did: {}", case());
        let walked = matches!(so_far.last, Some(Step::Walk(_) | Step::Wake));
        assert!(walked || so_far.drained || endless, "{}", case());
        let linux = flagged(Flags::NO_WAIT) && means.as_linux;
        assert!(so_far.drained || linux || endless, "failed with full lists: {}", case());
        // The next sequence: another outcome of the last step that has one.
        while choices.last().is_some_and(|choice| choice.len() == 1) {
            choices.pop();
        }
        let Some(last) = choices.last_mut() else { return };
        *last = &last[1..];
    }
}

fn check(generation: Generation, facts: Facts, means: Means, so_far: &Seen, step: Step) {
    let flagged = |flag| facts.flags.has(flag);
    let can_wait = !flagged(Flags::NO_WAIT);
    let no_reserves = flagged(Flags::NO_RESERVES);
    let may_help = can_wait && !facts.reclaiming;
    let last = so_far.last;
    let case = || std::format!("{generation:?} {facts:?} {means:?} {last:?} {step:?}");
    match step {
        Step::Reclaim => assert!(may_help && means.reclaim, "{}", case()),
        Step::Compact => assert!(may_help && means.compact && facts.order > Order::ZERO, "{}", case()),
        Step::Pause | Step::Assess | Step::Kill => assert!(may_help, "{}", case()),
        Step::Drain => assert!(can_wait || !means.as_linux, "{}", case()),
        Step::Walk(walk) => {
            let first = Walk { mark: Mark::Low, allowed_only: true, ..walk };
            assert!(last.is_some() || walk == first, "{}", case());
            let exempt = (facts.reclaiming || flagged(Flags::VICTIM)) && !no_reserves;
            assert!(walk.mark != Mark::None || exempt, "{}", case());
            assert!(walk.allowed_only || exempt || !can_wait, "{}", case());
            assert!(!walk.access.harder || !can_wait && !no_reserves, "{}", case());
        }
        Step::Wake => {}
    }
    let is_walk = matches!(step, Step::Walk(_));
    assert!(last.is_some() || is_walk, "{}", case());
    assert!(is_walk || !matches!(last, Some(Step::Drain | Step::Compact)), "no walk after it: {}", case());
    assert!(step != Step::Kill || !so_far.killed, "killed twice without a look: {}", case());
    assert!(step != Step::Reclaim || !so_far.paused, "reclaims after a pause without a look: {}", case());
    let victim = flagged(Flags::VICTIM) && !flagged(Flags::NO_FAIL);
    let spares = step != Step::Kill && (step != Step::Reclaim || generation == Generation::V6_1);
    assert!(!victim || spares, "a victim fails instead: {}", case());
    let again = step == Step::Reclaim && so_far.reclaims > 0;
    assert!(!again || !flagged(Flags::NO_RETRY) || flagged(Flags::NO_FAIL), "{}", case());
}

/// Every request with every combination of helpers in both generations, for every outcome of each step.
#[test]
fn every_request_ends_and_keeps_its_limits() {
    for generation in BOTH {
        for bits in 0..1_u32 << 9 {
            let bit = |n: u32| bits >> n & 1 == 1;
            for order in [order(0), order(3), order(9)] {
                let flags = FLAGS.into_iter().enumerate().filter(|&(n, _)| bit(n as u32));
                let flags = flags.fold(Flags::HIGH, |all, (_, flag)| all.and(flag));
                let facts = Facts { order, movable: bit(7), flags, reclaiming: bit(8) };
                for means in 0..16 {
                    let bit = |n: u32| means >> n & 1 == 1;
                    let means = Means { marks: bit(0), reclaim: bit(1), compact: bit(2), as_linux: bit(3) };
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
    let mut steps = Vec::new();
    run(generation, facts, means, limits, |step| {
        steps.push(step);
        assert!(steps.len() < 100);
        match step {
            Step::Reclaim => reclaim,
            Step::Assess => Outcome::Yes,
            Step::Kill => kill,
            _ => Outcome::No,
        }
    });
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
        Step::Drain => "drain",
        Step::Assess => "assess",
        Step::Pause => "pause",
        Step::Kill => "kill",
    };
    steps.iter().map(name).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_allocator_without_helpers_walks_drains_and_walks() {
    let means = Means { marks: false, reclaim: false, compact: false, ..ALL };
    for generation in BOTH {
        let all = steps(generation, PLAIN, means, Outcome::No);
        assert_eq!(marks(&all), "low wake drain min", "{generation:?}");
    }
}

#[test]
fn who_cannot_wait_tries_the_reserve_and_fails() {
    let atomic = with(Flags::ATOMIC);
    for generation in BOTH {
        let linux = steps(generation, atomic, Means { as_linux: true, ..ALL }, Outcome::No);
        assert_eq!(marks(&linux), "low wake min", "{generation:?}");
        let all = steps(generation, atomic, ALL, Outcome::No);
        assert_eq!(marks(&all), "low wake min drain min", "{generation:?}");
        let Step::Walk(walk) = all[2] else { panic!("{all:?}") };
        assert!(walk.access.high && walk.access.harder && walk.access.highatomic && !walk.allowed_only);
        let polite = with(Flags::ATOMIC.and(Flags::NO_RESERVES));
        let Step::Walk(walk) = steps(generation, polite, ALL, Outcome::No)[2] else { panic!() };
        assert!(walk.access.high && !walk.access.harder && walk.allowed_only);
    }
}

#[test]
fn a_reclaimer_may_have_the_last_page_and_never_reclaims() {
    let inside = Facts { reclaiming: true, ..PLAIN };
    for generation in BOTH {
        let all = steps(generation, inside, ALL, Outcome::No);
        assert_eq!(marks(&all), "low wake min none drain none", "{generation:?}");
    }
}

#[test]
fn the_passes_of_v3_0() {
    let passes = |facts, means, reclaim| marks(&steps(Generation::V3_0, facts, means, reclaim));
    assert_eq!(
        passes(PLAIN, ALL, Outcome::No),
        "low wake min reclaim high kill pause min reclaim high kill drain min"
    );
    let huge = Facts { order: order(9), ..PLAIN };
    assert_eq!(
        passes(huge, ALL, Outcome::Progress(32)),
        "low wake min compact min reclaim min drain min",
        "a costly request is not retried"
    );
    let repeat = Facts { flags: Flags::REPEAT, ..huge };
    assert_eq!(
        passes(repeat, ALL, Outcome::Progress(256)),
        "low wake min compact min reclaim min drain min pause min compact min reclaim min drain min",
        "until as much was reclaimed as it wants"
    );
    let gentle = with(Flags::NO_RETRY);
    assert_eq!(passes(gentle, ALL, Outcome::No), "low wake min reclaim drain min");
    assert_eq!(passes(gentle, ALL, Outcome::Progress(1)), "low wake min reclaim min drain min");
}

#[test]
fn the_passes_of_v6_1() {
    let passes = |facts, means, reclaim| marks(&steps(Generation::V6_1, facts, means, reclaim));
    assert_eq!(
        passes(PLAIN, ALL, Outcome::No),
        "low wake min reclaim assess pause wake min reclaim high kill drain min"
    );
    let huge = Facts { order: order(9), ..PLAIN };
    assert_eq!(
        passes(huge, ALL, Outcome::Progress(32)),
        "low wake min compact min reclaim min drain min compact min"
    );
    // Linux reclaims first for movable blocks of orders that are not costly.
    for (k, as_linux, first) in [
        (0, false, "low wake min reclaim "),
        (1, false, "low wake min compact "),
        (3, true, "low wake min reclaim "),
        (4, true, "low wake min compact "),
    ] {
        let facts = Facts { order: order(k), ..PLAIN };
        let means = Means { as_linux, ..ALL };
        assert!(passes(facts, means, Outcome::No).starts_with(first), "order {k}, {as_linux}");
    }
    let unmovable = Facts { order: order(1), movable: false, ..with(Flags::NO_RETRY) };
    assert_eq!(passes(unmovable, ALL, Outcome::No), "low wake min compact min reclaim compact min drain min");
    let victim = with(Flags::VICTIM.and(Flags::NO_RETRY));
    assert_eq!(passes(victim, ALL, Outcome::No), "low wake min none reclaim drain none");
}

#[test]
fn reserves_are_for_victims_and_for_requests_that_cannot_wait() {
    let access = |facts: Facts, means: Means| {
        let Step::Walk(walk) = steps(Generation::V6_1, facts, means, Outcome::No)[2] else { panic!() };
        (walk.access.oom_victim, walk.access.highatomic)
    };
    let linux = Means { as_linux: true, ..ALL };
    let atomic = with(Flags::NO_WAIT);
    let victim = with(Flags::VICTIM);
    for (facts, means, expected) in [
        (PLAIN, ALL, (false, false)),
        (atomic, ALL, (false, true)),
        (atomic, linux, (false, false)),
        (Facts { order: order(1), ..atomic }, linux, (false, true)),
        (Facts { order: order(1), ..PLAIN }, linux, (false, false)),
        (with(Flags::NO_WAIT.and(Flags::NO_RESERVES)), ALL, (false, false)),
        (victim, linux, (true, false)),
        (with(Flags::VICTIM.and(Flags::NO_RESERVES)), linux, (false, false)),
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
    let repeat = |k| Facts { order: order(k), ..with(Flags::REPEAT) };
    let (none, some, yes, no) = (Outcome::No, Outcome::Progress(32), Outcome::Yes, Outcome::No);
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
