//! An arena's counters for those that watch many machines: Prometheus' text format, version 0.0.4.

use core::fmt::{self, Write};

use framewright::Order;
use framewright::frame::FrameUser;

use crate::arena::{Arena, PageCounts};

/// The text so far; metrics are added one after the other.
struct Page<'l> {
    text: String,
    /// The caller's labels, ready to be put into braces.
    labels: &'l str,
}

impl Page<'_> {
    fn kind(&mut self, name: &str, kind: &str, help: &str) -> fmt::Result {
        writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}")
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &dyn fmt::Display)], value: u64) -> fmt::Result {
        write!(self.text, "{name}{{{}", self.labels)?;
        let mut comma = if self.labels.is_empty() { "" } else { "," };
        for (label, value) in labels {
            write!(self.text, "{comma}{label}=\"{value}\"")?;
            comma = ",";
        }
        writeln!(self.text, "}} {value}")
    }
}

/// A label's value as the format wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

impl<M: FrameUser> Arena<M> {
    /// The arena's counters and what is where, in Prometheus' text format: the answer to a scrape. `labels` are put on
    /// every line, such as the arena's name; values may be anything. O(zones × CPUs).
    ///
    /// Pages are base pages, of `framewright_page_bytes` each. Counters begin at 0 with the arena. A racy read while
    /// threads are busy. Empty in a child of the process that made the arena.
    ///
    /// ```
    /// use framewright_host::{Arena, Migratetype, Order};
    ///
    /// let arena: Arena = Arena::builder().bytes(16 << 20).build()?;
    /// let cpu = arena.attach()?;
    /// let block = cpu.alloc_block(Order::ZERO, Migratetype::Movable)?;
    /// let text = arena.prometheus(&[("arena", "buffers")]);
    /// assert!(text.contains("framewright_pages{arena=\"buffers\",state=\"allocated\"} 1\n"));
    /// # drop(block);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If a label's name is not valid: it has letters, digits and underscores, and does not begin with a digit.
    #[must_use]
    pub fn prometheus(&self, labels: &[(&str, &str)]) -> String {
        let is_name = |name: &str| {
            name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && name.chars().next().is_some_and(|c| !c.is_ascii_digit())
        };
        for (name, _) in labels {
            assert!(is_name(name), "{name:?} is no name of a label");
        }
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let mut page = Page { text: String::new(), labels: &labels.join(",") };
        if !self.is_forked() {
            // Writing to a `String` cannot fail.
            let _ = self.write_metrics(&mut page);
        }
        page.text
    }

    fn write_metrics(&self, page: &mut Page<'_>) -> fmt::Result {
        let allocator = self.allocator();
        page.kind("framewright_page_bytes", "gauge", "Bytes of a base page.")?;
        page.sample("framewright_page_bytes", &[], self.page_bytes() as u64)?;

        let PageCounts { managed: _, free, on_lists, allocated, hwpoisoned } = self.counts();
        page.kind("framewright_pages", "gauge", "Base pages that the arena manages, by what they are.")?;
        for (state, pages) in [("free", free), ("on_lists", on_lists), ("allocated", allocated)] {
            page.sample("framewright_pages", &[("state", &state)], pages)?;
        }
        page.kind("framewright_hwpoisoned_pages", "gauge", "Base pages known to be bad.")?;
        page.sample("framewright_hwpoisoned_pages", &[], hwpoisoned)?;

        let snapshots: Vec<_> = allocator.zones().iter().map(|zone| allocator.zone_snapshot(zone)).collect();
        page.kind("framewright_free_blocks", "gauge", "Free blocks of each order, by zone.")?;
        for (zone, snapshot) in snapshots.iter().enumerate() {
            for order in Order::all() {
                let labels: [(_, &dyn fmt::Display); 3] =
                    [("zone", &zone), ("node", &snapshot.spec.node.0), ("order", &order.get())];
                page.sample("framewright_free_blocks", &labels, snapshot.nr_free[order.index()])?;
            }
        }
        page.kind(
            "framewright_watermark_pages",
            "gauge",
            "Base pages below which a zone is short of memory.",
        )?;
        for (zone, snapshot) in snapshots.iter().enumerate() {
            let marks =
                [("min", snapshot.marks.min), ("low", snapshot.marks.low), ("high", snapshot.marks.high)];
            for (mark, pages) in marks {
                let labels: [(_, &dyn fmt::Display); 2] = [("zone", &zone), ("mark", &mark)];
                page.sample("framewright_watermark_pages", &labels, pages)?;
            }
        }

        let totals = allocator.totals();
        let pcp = totals.pcp;
        for (name, help, count) in [
            ("refills", "Refills of the lists of CPUs.", pcp.refills),
            ("refilled_pages", "Base pages that refills brought.", pcp.refilled_pages),
            ("drains", "Drains of the lists of CPUs.", pcp.drains),
            ("drained_pages", "Base pages that drains took back.", pcp.drained_pages),
            ("lock_acquisitions", "Times that a zone lock was taken.", pcp.lock_acquisitions),
            ("lock_waits", "Times that another slot held a zone lock first.", pcp.lock_waits),
            (
                "fallbacks",
                "Times an allocation or a refill took from another type's pageblocks.",
                totals.fallbacks,
            ),
            ("bad_pages", "Base pages that a check found bad.", pcp.bad_pages),
        ] {
            let name = format!("framewright_{name}_total");
            page.kind(&name, "counter", help)?;
            page.sample(&name, &[], count)?;
        }
        let name = "framewright_events_total";
        page.kind(name, "counter", "Reclaim, compaction and the rest, under the kernel's names, by node.")?;
        for node in 0..allocator.nodes().len() {
            let events = allocator.node_events(framewright::NodeId(node as u16));
            for (event, count) in events.iter() {
                page.sample(name, &[("node", &node), ("event", &event)], count)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use framewright::Migratetype;

    use super::*;

    /// Reads a page as the format's description says, and refuses what it does not allow.
    fn read(text: &str) -> BTreeMap<String, u64> {
        assert!(text.ends_with('\n'));
        let (mut kinds, mut samples, mut current) = (BTreeSet::new(), BTreeMap::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(["counter", "gauge"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(kinds.insert(name.to_owned()), "two groups of {name}");
                name.clone_into(&mut current);
                continue;
            }
            if line.starts_with("# HELP ") {
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert_eq!(series.split('{').next(), Some(&*current), "outside its group: {line}");
            assert!(samples.insert(series.to_owned(), value.parse().unwrap()).is_none(), "twice: {line}");
        }
        samples
    }

    #[test]
    fn figures_are_those_of_the_arena_and_labels_are_escaped() {
        let arena: Arena = Arena::builder().bytes(64 << 20).nodes(2).cpus(2).build().unwrap();
        let name = [("arena", "a \"b\"\\c\nd")];
        let before = read(&arena.prometheus(&name));
        let sample = |samples: &BTreeMap<String, u64>, name: &str, labels: &str| {
            let comma = if labels.is_empty() { "" } else { "," };
            samples[&format!(r#"framewright_{name}{{arena="a \"b\"\\c\nd"{comma}{labels}}}"#)]
        };
        assert_eq!(sample(&before, "pages", r#"state="free""#), 16384);
        assert_eq!(sample(&before, "page_bytes", ""), 4096);
        assert_eq!(sample(&before, "refills_total", ""), 0);
        let cpu = arena.attach_to(0).unwrap();
        let blocks: Vec<_> =
            (0..100).map(|_| cpu.alloc_block(Order::ZERO, Migratetype::Movable).unwrap()).collect();
        let samples = read(&arena.prometheus(&name));
        assert_eq!(sample(&samples, "pages", r#"state="allocated""#), 100);
        let lists = sample(&samples, "pages", r#"state="on_lists""#);
        assert_eq!(lists, arena.allocator().pcp_pages());
        assert_eq!(sample(&samples, "pages", r#"state="free""#), 16384 - 100 - lists);
        assert!(sample(&samples, "refills_total", "") > 0);
        let blocks_of_zone = |zone: usize, node: usize| -> u64 {
            let labels = |order| format!(r#"zone="{zone}",node="{node}",order="{order}""#);
            (0..=10).map(|order| sample(&samples, "free_blocks", &labels(order)) << order).sum()
        };
        assert_eq!(blocks_of_zone(0, 0) + blocks_of_zone(1, 1), 16384 - 100 - lists);
        drop(blocks);
    }

    #[test]
    fn without_labels_it_is_the_same() {
        let arena: Arena = Arena::builder().bytes(4 << 20).build().unwrap();
        let samples = read(&arena.prometheus(&[]));
        assert_eq!(samples["framewright_page_bytes{}"], 4096);
    }

    #[test]
    #[should_panic(expected = "is no name of a label")]
    fn a_name_that_is_none_is_refused() {
        let arena: Arena = Arena::builder().bytes(4 << 20).build().unwrap();
        let _ = arena.prometheus(&[("a-b", "")]);
    }
}
