//! A zone as `/proc/zoneinfo` and `/proc/pagetypeinfo` show it.

use framewright::policy::pcp::Sizing;
use framewright_trace::trace::Event;

/// The lists of one CPU, as `/proc/zoneinfo` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lists {
    /// Pages on them.
    pub count: u32,
    /// Pages at which they drain now.
    pub high: u32,
    /// Their size; before Linux 6.7 `high` has no bounds but itself.
    pub size: Sizing,
}

/// One zone at the start of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zone {
    /// As the files call it: `Node 0, zone Normal`.
    pub name: String,
    /// First frame.
    pub start: u64,
    /// Frames from the first to the last.
    pub spanned: u64,
    /// Pages that it manages.
    pub managed: u64,
    /// Of each CPU.
    pub lists: Vec<Lists>,
    /// Unmovable, movable and reclaimable pageblocks, if known.
    pub pageblocks: [u64; 3],
}

impl Zone {
    /// The zone with the most pages in a `/proc/zoneinfo`. O(length).
    ///
    /// # Errors
    /// It has no zone with per-CPU lists: one line of words.
    pub(crate) fn largest(zoneinfo: &str) -> Result<Self, String> {
        let mut zones: Vec<Self> = Vec::new();
        for line in zoneinfo.lines() {
            if line.starts_with("Node ") {
                zones.push(Self { name: one_space(line), ..Self::default() });
            }
            let Some(zone) = zones.last_mut() else { continue };
            let mut words = line.split_whitespace();
            let (key, value) = (words.next().unwrap_or_default(), words.next());
            let Some(value) = value.and_then(|value| value.parse::<u64>().ok()) else { continue };
            let narrow = u32::try_from(value).unwrap_or(u32::MAX);
            match (key, zone.lists.last_mut()) {
                ("spanned", _) => zone.spanned = value,
                ("managed", _) => zone.managed = value,
                ("start_pfn:", _) => zone.start = value,
                ("cpu:", _) => zone.lists.push(Lists {
                    count: 0,
                    high: 0,
                    size: Sizing { batch: 1, high_min: 0, high_max: 0 },
                }),
                ("count:", Some(lists)) => lists.count = narrow,
                ("high:", Some(lists)) => {
                    lists.high = narrow;
                    (lists.size.high_min, lists.size.high_max) = (narrow, narrow);
                }
                ("batch:", Some(lists)) => lists.size.batch = narrow.max(1),
                ("high_min:", Some(lists)) => lists.size.high_min = narrow,
                ("high_max:", Some(lists)) => lists.size.high_max = narrow,
                _ => {}
            }
        }
        let largest = zones.into_iter().max_by_key(|zone| zone.managed);
        largest
            .filter(|zone| !zone.lists.is_empty() && zone.managed > 0)
            .ok_or_else(|| "its /proc/zoneinfo has no zone with per-CPU lists".to_owned())
    }

    /// Takes the number of pageblocks by type from a `/proc/pagetypeinfo`. O(length).
    pub(crate) fn read_pageblocks(&mut self, pagetypeinfo: &str) {
        let lines = pagetypeinfo.lines().skip_while(|line| !line.starts_with("Number of blocks type"));
        for line in lines {
            let line = one_space(line);
            let Some(rest) = line.strip_prefix(&self.name) else { continue };
            let numbers: Vec<u64> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
            if let Some(first) = numbers.first_chunk() {
                self.pageblocks = *first;
            }
        }
    }

    /// Whether an event's block lies here.
    #[must_use]
    pub(crate) fn holds(&self, event: &Event) -> bool {
        (self.start..self.start + self.spanned).contains(&event.pfn)
    }
}

/// The words of a line with one space between them.
fn one_space(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Three zones of one machine with two CPUs.
    pub(crate) const ZONEINFO: &str = "\
Node 0, zone      DMA
        managed  3840
  pagesets
    cpu: 0
              count:    0
              high:     0
              batch:    1
  start_pfn:           1
Node 0, zone   Normal
  pages free     2653626
        spanned  5505024
        managed  3211264
  pagesets
    cpu: 0
              count:    21036
              high:     29522
              batch:    63
              high_min: 8503
              high_max: 200704
  vm stats threshold: 32
    cpu: 1
              count:    34846
              high:     41289
              batch:    63
              high_min: 8503
              high_max: 200704
  node_unreclaimable:  0
  start_pfn:           1048576
Node 0, zone  Movable
        managed  0
";

    #[test]
    fn the_largest_zone_is_read() {
        let zone = Zone::largest(ZONEINFO).unwrap();
        assert_eq!((zone.start, zone.spanned, zone.managed), (1_048_576, 5_505_024, 3_211_264));
        let size = Sizing { batch: 63, high_min: 8503, high_max: 200_704 };
        assert_eq!(zone.lists[1], Lists { count: 34_846, high: 41_289, size });
        assert_eq!(zone.lists.len(), 2);
        assert!(Zone::largest("Node 0, zone DMA\n").is_err());
    }

    #[test]
    fn pageblocks_are_read_by_type() {
        const TEXT: &str = "\
Free pages count per migrate type at order       0      1
Node    0, zone   Normal, type    Unmovable      1      2

Number of blocks type     Unmovable      Movable  Reclaimable   HighAtomic      Isolate
Node 0, zone      DMA            1            7            0            0            0
Node 0, zone   Normal          171         5813          288            0            0
";
        let mut zone = Zone::largest(ZONEINFO).unwrap();
        zone.read_pageblocks(TEXT);
        assert_eq!(zone.pageblocks, [171, 5813, 288]);
        zone.read_pageblocks("");
        assert_eq!(zone.pageblocks, [171, 5813, 288], "nothing was said");
    }
}
