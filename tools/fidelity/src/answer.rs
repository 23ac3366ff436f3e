//! Answer of the module of `kernel/linux`: what the kernel's per-CPU lists did, as lines among a boot's other output.
//!
//! ```text
//! OP 177 0 31 0 897 0 7090 5      operation, CPU, pages refilled, drained, on the lists, free_factor, high, frames
//! MIN_FREE 45056 always [madvise] never      vm.min_free_kbytes, and when huge pages are used
//! ZONE Movable managed 125933 low 7090 high 8508          each zone with memory
//! SPAN 262112                                frames from a multiple of 1024 to the zone's end: from there, blocks are
//! FREE 3 1 552 560                           order, migratetype, blocks on that list of the zone, first to last
//! LIST 0 10 568 576                          CPU, list, blocks on it, head to tail
//! STATE before managed 125933 free 125026 batch 31 high_min 7090 high_max 7090 free_blocks 0 1 … cpu 0 …
//! DONE ops 20005 records 12 failed 0 elsewhere 0
//! ```

use super::layout::{LISTS, Layout};
use super::step::Step;

/// The kernel's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Operations that refilled or drained lists, in order.
    pub steps: Vec<Step>,
    /// The zone before and after.
    pub states: [State; 2],
    /// Operations that ran.
    pub ops: u64,
    /// Allocations that got no page, or one of another zone.
    pub failed: u64,
    /// Whether transparent huge pages are switched on, for all memory or where a program asks.
    pub huge_pages: bool,
    /// Zones with memory: name, pages managed, low and high watermark.
    pub zones: Vec<(String, [u64; 3])>,
    /// Places of all free blocks before.
    pub layout: Layout,
}

/// A zone, as the module sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Pages that it manages.
    pub managed: u64,
    /// Pages moved at once.
    pub batch: u32,
    /// Bounds of the number of pages at which lists drain; the same before Linux 6.7.
    pub high_min: u32,
    /// The upper one.
    pub high_max: u32,
    /// High mark of each CPU's lists now.
    pub high: Vec<u32>,
    /// Free blocks by order.
    pub free_blocks: Vec<u64>,
    /// Pages on the lists of each CPU.
    pub counts: Vec<u32>,
}

impl Answer {
    /// Reads a boot's output. Other lines are passed over; a line may have any text before it on the same line.
    ///
    /// # Errors
    /// A line that is cut off, or no `DONE`: one line of words.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut answer = Self::default();
        let mut done = false;
        for line in text.lines() {
            let after = |mark: &str| line.find(mark).map(|at| line[at + mark.len()..].trim());
            let bad =
                || format!("cannot read the kernel's line {:?}", line.chars().take(80).collect::<String>());
            if let Some(rest) = after("OP ") {
                let numbers = numbers(rest).ok_or_else(bad)?;
                let [op, cpu, refilled, drained, count, _factor, high, frames] = numbers[..] else {
                    return Err(bad());
                };
                let (cpu, count, high, frames) = (cpu as u16, count as u32, high as u32, frames as u32);
                answer.steps.push(Step { op, cpu, refilled, drained, count, high, frames });
            } else if let Some(rest) = after("SPAN ") {
                answer.layout.span = rest.parse().map_err(|_| bad())?;
            } else if let Some(rest) = after("FREE ").filter(|_| after("MIN_FREE ").is_none()) {
                let numbers = numbers(rest).ok_or_else(bad)?;
                let [order, migratetype, ref blocks @ ..] = numbers[..] else { return Err(bad()) };
                answer.layout.free.push((order.min(255) as u8, migratetype.min(255) as u8, blocks.to_vec()));
            } else if let Some(rest) = after("LIST ") {
                let numbers = numbers(rest).ok_or_else(bad)?;
                let [cpu, list, ref blocks @ ..] = numbers[..] else { return Err(bad()) };
                if list >= LISTS as u64 {
                    return Err(bad());
                }
                answer.layout.waiting.push((cpu as u16, list as usize, blocks.to_vec()));
            } else if let Some(rest) = after("STATE before ") {
                answer.states[0] = State::parse(rest).ok_or_else(bad)?;
            } else if let Some(rest) = after("ZONE ") {
                let words: Vec<&str> = rest.split_whitespace().collect();
                let [name, "managed", managed, "low", low, "high", high] = words[..] else {
                    return Err(bad());
                };
                let numbers = [managed, low, high].map(|text| text.parse::<u64>().ok());
                let [Some(managed), Some(low), Some(high)] = numbers else { return Err(bad()) };
                answer.zones.push((name.to_owned(), [managed, low, high]));
            } else if let Some(rest) = after("MIN_FREE ") {
                answer.huge_pages = rest.contains('[') && !rest.contains("[never]");
            } else if let Some(rest) = after("STATE after ") {
                answer.states[1] = State::parse(rest).ok_or_else(bad)?;
            } else if let Some(rest) = after("DONE ") {
                let words: Vec<&str> = rest.split_whitespace().collect();
                let ["ops", ops, "records", records, "failed", failed, "elsewhere", elsewhere] = words[..]
                else {
                    return Err(bad());
                };
                let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
                answer.ops = number(ops)?;
                answer.failed = number(failed)? + number(elsewhere)?;
                if number(records)? != answer.steps.len() as u64 {
                    return Err("lines of the kernel's answer are missing".to_owned());
                }
                done = true;
            }
        }
        if done { Ok(answer) } else { Err("the kernel's answer has no end: it did not finish".to_owned()) }
    }
}

impl State {
    fn parse(text: &str) -> Option<Self> {
        let mut state = Self::default();
        let mut words = text.split_whitespace().peekable();
        while let Some(word) = words.next() {
            match word {
                "managed" => state.managed = words.next()?.parse().ok()?,
                "batch" => state.batch = words.next()?.parse().ok()?,
                "high_min" => state.high_min = words.next()?.parse().ok()?,
                "high_max" => state.high_max = words.next()?.parse().ok()?,
                "high" => state.high.push(words.next()?.parse().ok()?),
                "count" => state.counts.push(words.next()?.parse().ok()?),
                "free_blocks" => {
                    while let Some(number) = words.peek().and_then(|word| word.parse().ok()) {
                        state.free_blocks.push(number);
                        words.next();
                    }
                }
                "lists" => while words.next_if(|word| word.parse::<u32>().is_ok()).is_some() {},
                _ => drop(words.next()?),
            }
        }
        (state.batch > 0 && state.managed > 0).then_some(state)
    }
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    text.split_whitespace().map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "SeaBIOS\x1b[2JOP 1 0 30 0 327 0 9 4\r\nOP 7 1 0 63 5 1 8 3\r\n\
        MIN_FREE 45056 always [madvise] never\r\nSPAN 4096\r\nFREE 3 1 552 560\r\nLIST 1 10 568\r\nZONE DMA managed 3976 low 9 high 11\r\n\
        STATE before managed 125933 free 125026 batch 31 high_min 3775 high_max 4000 free_blocks 0 1 2 cpu 0 count 300 high 3800 factor 0\r\n\
        STATE after managed 125933 free 5 batch 31 high_min 3775 high_max 4000 free_blocks 4 5 cpu 0 count 9 high 3775 factor 0 lists 1 2 cpu 1 count 8 high 3 factor 2 lists 3\r\n\
        DONE ops 20005 records 2 failed 1 elsewhere 2\r\n[ 6.05] reboot\r\n";

    #[test]
    fn a_boots_output_is_read() {
        let answer = Answer::parse(TEXT).unwrap();
        assert_eq!(
            answer.steps[1],
            Step { op: 7, cpu: 1, refilled: 0, drained: 63, count: 5, high: 8, frames: 3 }
        );
        assert_eq!((answer.ops, answer.failed), (20005, 3));
        let layout =
            Layout { span: 4096, free: vec![(3, 1, vec![552, 560])], waiting: vec![(1, 10, vec![568])] };
        assert_eq!(answer.layout, layout);
        let [before, after] = answer.states;
        assert_eq!(
            (before.managed, before.batch, before.high_min, before.high_max, before.free_blocks),
            (125933, 31, 3775, 4000, vec![0, 1, 2])
        );
        assert_eq!((before.high, &after.high), (vec![3800], &vec![3775, 3]));
        assert!(answer.huge_pages);
        assert_eq!(answer.zones, [("DMA".to_owned(), [3976, 9, 11])]);
        assert_eq!((after.free_blocks, after.counts), (vec![4, 5], vec![9, 8]));
    }

    #[test]
    fn what_is_missing_is_told() {
        assert_eq!(
            Answer::parse("nothing").unwrap_err(),
            "the kernel's answer has no end: it did not finish"
        );
        assert_eq!(
            Answer::parse(&TEXT.replace("OP 7", "op 7")).unwrap_err(),
            "lines of the kernel's answer are missing"
        );
        assert!(Answer::parse("LIST 0 14 5\n").unwrap_err().starts_with("cannot read the kernel's line"));
        assert!(Answer::parse("OP 1 2\n").unwrap_err().starts_with("cannot read the kernel's line"));
    }
}
