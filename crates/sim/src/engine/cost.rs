//! Costs of an access: hits by age, transfers from other CPUs, and memory.

use super::streams::PREFETCH_DEPTH;
use super::{
    Access, Engine, NEAR_TABLES, NO_LINE, SEEN, SETS, TABLE_PAGES, TRANSLATED, TRANSLATIONS, age, set_of,
};
use crate::bandwidth::Served;
use crate::clock::Ps;
use crate::lines::Line;
use crate::model::{Distance, LINE, Model};
use crate::trace::Doing;

/// How far stores may run behind before the CPU that made them must wait: about what fills a store buffer.
const STORE_BUFFER: Ps = Ps(200_000);
/// How long a core goes on with later work while a read is under way, until its window is full: some 350 operations,
/// two in a cycle of a third of a nanosecond. A time, not a share of the latency: it fills at the same speed however
/// far the line is.
const WINDOW: Ps = Ps(60_000);
/// Share of a read transfer for which the line can serve no other request: a request is answered while the one before
/// is still on its way back.
const READ_OCCUPANCY: f64 = 0.85;
/// Share of a transfer until the line leaves the CPU that has it: the way of the question. The rest is the answer's.
const QUESTION: f64 = 0.5;
/// A run of stores in the log of events, beside the kinds of single accesses.
const CLEAR: u64 = 4;
/// Share of what memory could pass at most that was measured as its bandwidth: by then every read waits.
const MEASURED_AT: f64 = 0.9;
/// Share of its bandwidth beyond which waiting grows no more: requests then wait for the next slice of time.
const FULL: f64 = 0.98;

/// A model's costs, in the engine's unit.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    pub(super) access: Ps,
    pub(super) pause: Ps,
    /// From where a branch that was guessed wrongly is known until the right instructions are there.
    pub(super) mispredicted: Ps,
    /// How long a question is on its way within a last-level cache.
    question_near: Ps,
    /// An atomic read-modify-write of a line that is in the first level, over any other access.
    exchange: Ps,
    pub(super) sibling_slowdown: f64,
    /// Transfers that a CPU waits for when it stores to a line that another CPU polls.
    store_exposed: f64,
    /// Lines that each set of a level holds.
    l1: u32,
    l2: u32,
    /// Lines that a last level holds.
    l3: u32,
    l2_hit: Ps,
    l3_hit: Ps,
    dram: [Ps; 2],
    /// Time from one line to the next when the core has as many on their way as it can, from idle memory.
    core_line: Ps,
    /// How much longer memory takes for each unit of u / (1 - u), where u is the share of its bandwidth in use.
    rise: f64,
    node_read_line: Ps,
    node_write_line: Ps,
    /// By whether the home is remote, whether modified, and distance.
    transfer: [[[Ps; 6]; 2]; 2],
    /// A walk through the page tables.
    walk: Ps,
    /// Share of it that later work does hide: of reads on which not all depends.
    overlaps: f64,
}

/// Time at which a CPU goes on at the latest whose store is visible at `done`.
const fn buffered(done: Ps) -> Ps {
    Ps(done.0.saturating_sub(STORE_BUFFER.0))
}

/// Which of the lines that fall into one place of [`SEEN`] a line is, + 1.
const fn seen_as(line: usize) -> u32 {
    (line / SEEN) as u32 + 1
}

/// Lines of each set of a cache of `lines`.
const fn ways(lines: u32) -> u32 {
    lines.div_ceil(SETS as u32)
}

impl Costs {
    pub(super) fn new(model: &Model) -> Self {
        let line = |gbps: f64| Ps::from_ns(LINE as f64 / gbps);
        let distances = [
            Distance::Same,
            Distance::Sibling,
            Distance::SameL3,
            Distance::OtherL3,
            Distance::OtherDie,
            Distance::OtherSocket,
        ];
        let fitted = &model.fitted;
        let transfer = [false, true].map(|remote| {
            [false, true].map(|dirty| {
                distances.map(|distance| {
                    Ps::from_ns(model.latency.transfer(distance, dirty, remote) * model.transfers)
                })
            })
        });
        // Reads and writes one to one: what a written line takes is what a pair takes, less the read.
        let mixed_pair = 2.0 * LINE as f64 / (model.bandwidth.node_mixed / MEASURED_AT);
        let read = LINE as f64 / (model.bandwidth.node_read / MEASURED_AT);
        Self {
            access: Ps::from_ns(fitted.access_ns),
            pause: Ps::from_ns(model.pause_ns),
            mispredicted: Ps::from_ns(model.mispredict_ns),
            question_near: transfer[0][0][Distance::SameL3 as usize].scaled(QUESTION),
            exchange: Ps::from_ns(model.exchange_ns),
            sibling_slowdown: 2.0 / model.smt_yield,
            store_exposed: model.store_exposed,
            l1: ways(model.caches.l1),
            l2: ways(model.caches.l2),
            l3: model.caches.l3,
            l2_hit: Ps::from_ns(model.latency.l2),
            l3_hit: Ps::from_ns(model.latency.l3),
            dram: model.latency.dram.map(Ps::from_ns),
            core_line: line(model.bandwidth.core),
            rise: ((model.bandwidth.saturated - 1.0) * (1.0 - MEASURED_AT) / MEASURED_AT).max(0.0),
            node_read_line: Ps::from_ns(read),
            node_write_line: Ps::from_ns((mixed_pair - read).max(0.0)),
            transfer,
            walk: Ps::from_ns(fitted.walk_ns),
            overlaps: 1.0 - fitted.dependent,
        }
    }

    /// How long `lines` lines in a row keep idle memory's core that writes them busy, and how long their memory.
    pub(super) fn written(&self, lines: u64) -> [Ps; 2] {
        [Ps(self.core_line.0 * lines), Ps(self.node_write_line.0 * lines)]
    }

    /// How much longer memory takes of which a share is in use: a queue with random arrivals.
    pub(super) fn loaded(&self, busy: f64) -> f64 {
        1.0 + self.rise * busy / (1.0 - busy.min(FULL))
    }

    /// Time from one line of a stream to the next out of a cache that takes so long for one: a core has as many lines
    /// on their way as from memory, each for less.
    fn apart(&self, latency: Ps) -> Ps {
        let memory = self.dram[0].max(Ps(1));
        self.core_line.scaled(latency.0 as f64 / memory.0 as f64)
    }

    /// Time that a store waits. Others' copies of a line that is only written once in a while go while the buffer hides
    /// it. A line that another CPU polls goes there and comes back for each store, and later stores, the unlocking one
    /// at last, wait for it.
    fn store_waits(&self, entry: &Line, found: &Found) -> Ps {
        if entry.is_polled() { found.moved.scaled(self.store_exposed) } else { Ps(0) }
    }

    /// How much longer lines from another node take one core, which can have only a few on their way.
    pub(super) fn farther(&self, remote: bool) -> f64 {
        if remote && self.dram[0] > Ps(0) { self.dram[1].0 as f64 / self.dram[0].0 as f64 } else { 1.0 }
    }
}

/// Traffic under one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// The name.
    pub name: String,
    /// Lines that came from another CPU, or whose other copies had to go.
    pub transfers: u64,
    /// Lines that came from memory.
    pub fetches: u64,
    /// Time that CPUs waited for them, and for what was in their own caches; store buffers not counted.
    pub waited: Ps,
}

/// Traffic of memory and caches.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Moved {
    /// Lines, by name.
    pub lines: Vec<Traffic>,
    /// By node: the share of its memory's bandwidth that was used while programs ran.
    pub bandwidth: Vec<f64>,
}

impl Traffic {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), transfers: 0, fetches: 0, waited: Ps(0) }
    }
}

/// Place where a line was found, and the time to bring it.
struct Found {
    latency: Ps,
    /// Part of it for which the CPU has to wait, if it waits at all.
    exposed: Ps,
    from_memory: bool,
    in_l1: bool,
    /// The transfer from another CPU, or the time until other CPUs' copies are gone; 0 where no other CPU holds the
    /// line.
    moved: Ps,
}

impl Found {
    const fn in_cache(latency: Ps) -> Self {
        Self { latency, exposed: latency, from_memory: false, in_l1: false, moved: Ps(0) }
    }
}

impl Engine {
    /// An access to a line that no other CPU has ever touched.
    #[inline]
    pub(super) fn hit_own(&mut self, line: usize, access: Access) {
        self.work(self.costs.access);
        let me = usize::from(self.current);
        let entry = self.lines.get(line);
        let cpu = &mut self.cpus[me];
        let brought = cpu.brought[set_of(line)];
        if brought.wrapping_sub(entry.stamp) <= self.costs.l1 {
            let wait = core::mem::take(&mut cpu.last_wait);
            let last_read = core::mem::replace(&mut cpu.last_read, NO_LINE);
            entry.stamp = brought;
            if access == Access::Read {
                cpu.last_read = line;
            }
            if access != Access::Read {
                entry.set_dirty();
                cpu.drained = cpu.drained.max(cpu.clock);
                if access == Access::Exchange {
                    cpu.clock = cpu.drained + self.costs.exchange;
                    cpu.drained = cpu.clock;
                }
                if access == Access::Write && last_read == line && wait > Ps(0) {
                    let until = cpu.clock;
                    cpu.clock = Ps(until.0 - wait.0);
                    self.take_back(line, until, wait);
                }
            }
            return;
        }
        self.transact_now(line, access);
    }

    /// An access to a line that others may have, when it is this CPU's turn.
    pub(super) fn transact(&mut self, line: usize, access: Access) {
        self.work(self.costs.access);
        self.transact_now(line, access);
    }

    pub(super) fn transact_now(&mut self, line: usize, access: Access) {
        let me = self.current;
        let index = usize::from(me);
        let now = self.cpus[index].clock;
        let entry = *self.lines.get(line);
        let found = self.find(line, &entry, access, now);
        let met = entry.has_met() || entry.owner().is_some_and(|owner| owner != me);
        let cpu = &mut self.cpus[index];
        // When it asked, if it had to. What memory takes begins only now.
        let asked = core::mem::take(&mut cpu.question);
        let clock = Ps(now.0 - asked.0);
        let undisturbed = now.max(if found.from_memory { now } else { clock } + found.latency);
        // A question for a line on its way to another CPU is answered when it has arrived there.
        let queues = met && found.latency > Ps(0);
        let mut done = if queues { undisturbed.max(entry.busy + found.latency) } else { undisturbed };
        let queued = done.since(undisturbed);
        // Other work overlaps with a read, but not with one that a waiting CPU waits for.
        let mut stalls = queued + (undisturbed.since(clock) + found.exposed).since(found.latency);
        if access == Access::Read && !core::mem::take(&mut cpu.woken) && stalls > Ps(0) {
            cpu.read = cpu.read.max(clock + stalls);
            stalls = stalls.since(stalls.min(WINDOW).scaled(self.costs.overlaps));
        }
        let exposed = clock + stalls;
        let read_before = core::mem::replace(&mut cpu.last_read, NO_LINE) == line;
        let wait_before = core::mem::take(&mut cpu.last_wait);
        let mut refund = Ps(0);
        match access {
            Access::Read => {
                cpu.clock = exposed;
                (cpu.last_read, cpu.last_wait) = (line, stalls);
            }
            Access::Exchange => {
                // What was measured as a transfer has the exchange in it.
                let exposed = if found.in_l1 { exposed + self.costs.exchange } else { exposed };
                cpu.clock = exposed;
                cpu.drained = exposed;
                done = exposed;
            }
            Access::Add => {
                let takes = if found.in_l1 { self.costs.exchange } else { found.latency };
                done = done.max(now.max(cpu.drained) + takes);
                cpu.drained = done;
                cpu.clock = cpu.clock.max(buffered(done));
            }
            Access::Write => {
                done = done.max(cpu.drained);
                cpu.drained = done;
                if read_before {
                    // What was read is only changed and stored again: nothing waits for it but the store.
                    refund = wait_before;
                    cpu.clock = Ps(cpu.clock.0 - refund.0);
                }
                cpu.clock = (cpu.clock + self.costs.store_waits(&entry, &found)).max(buffered(done));
            }
        }
        let waited = cpu.clock.since(clock);
        if refund > Ps(0) {
            self.take_back(line, clock, refund);
        }
        let occupied = match access {
            // It is here: a question that arrives when this access is done is answered immediately.
            _ if found.latency == Ps(0) => done.since(self.costs.question_near),
            _ if found.from_memory => done,
            Access::Read => done.since(found.latency.scaled(1.0 - READ_OCCUPANCY)),
            _ => done,
        };
        if access == Access::Read {
            self.lines.share(line, me);
            if met {
                self.see(line, found.in_l1);
            }
        } else {
            self.lines.own(line, me);
        }
        let (brought, l3) = self.stamp(line, &found);
        let entry = self.lines.get(line);
        entry.busy = entry.busy.max(occupied);
        (entry.stamp, entry.l3_stamp) = (brought, l3);
        if found.latency > Ps(0) {
            self.count(line, &found, waited);
        }
        if met || found.latency > Ps(0) {
            self.log(line, access as u64, done);
        }
        if met && access != Access::Read {
            self.wake(line, done);
        }
    }

    /// The running CPU did not have to wait for the line that it had read when its clock showed `until`: it only
    /// changes what it has read and stores it again.
    fn take_back(&mut self, line: usize, until: Ps, time: Ps) {
        if let Some(name) = self.name_of(line) {
            let traffic = &mut self.traffic[name];
            traffic.waited = traffic.waited.since(time);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.take_back(self.current, Ps(until.0 - self.costs.access.0), time);
        }
    }

    /// Counts a line into the caches of the running CPU; returns the stamps it gets.
    fn stamp(&mut self, line: usize, found: &Found) -> (u32, u32) {
        let cpu = &mut self.cpus[usize::from(self.current)];
        let l3 = &mut self.l3_brought[usize::from(cpu.place.l3)];
        let brought = &mut cpu.brought[set_of(line)];
        if !found.in_l1 {
            *brought = brought.wrapping_add(1);
        }
        if found.from_memory {
            *l3 = l3.wrapping_add(1);
        }
        (*brought, *l3)
    }

    /// Place of the nearest usable copy.
    fn find(&mut self, line: usize, entry: &Line, access: Access, at: Ps) -> Found {
        let me = self.current;
        let Some(owner) = entry.owner() else { return self.fetch(line, access, at) };
        let holder = &self.cpus[usize::from(owner)];
        let [l2, l3] = self.capacity(line, owner);
        let age = holder.brought[set_of(line)].wrapping_sub(entry.stamp);
        let l3_age = self.l3_brought[usize::from(holder.place.l3)].wrapping_sub(entry.l3_stamp);
        if age > l2 && l3_age > l3 {
            // All CPUs' copies are as old: what many use does not age.
            return self.fetch(line, access, at);
        }
        // Of a copy beside others' it is known when any core touched the line last: this core has brought in as many
        // lines since as that core did, or more.
        if entry.is_sole(me) || access == Access::Read && self.lines.holds(entry, me) {
            let seen = if owner == me { age } else { self.seen_ago(line) };
            if seen <= self.costs.l1 {
                return Found { in_l1: true, ..Found::in_cache(Ps(0)) };
            }
            let level = if age <= l2 { self.costs.l2_hit } else { self.costs.l3_hit };
            let latency = level + self.walk(line);
            if access == Access::Read
                && let Some(lines) = self.follow(line)
            {
                // In a stream no read waits for the one before: a prefetcher runs ahead of them, out of a cache as out
                // of memory.
                let stalled = self.prefetched(at, self.costs.apart(level), lines, Ps(0));
                return Found::in_cache(stalled);
            }
            return Found::in_cache(latency);
        }
        let mut latency = self.transfer(line, entry, access);
        if age > l2 && holder.place.l3 == self.cpus[usize::from(me)].place.l3 {
            latency = latency.min(self.costs.l3_hit);
        }
        let moved = latency;
        latency += self.walk(line);
        Found { moved, ..Found::in_cache(latency) }
    }

    /// How long a question for a line is on its way to others that have what this access needs; `None` if no CPU has to
    /// be asked.
    #[inline]
    pub(super) fn question(&self, line: usize, entry: &Line, access: Access) -> Option<Ps> {
        let me = self.current;
        let owner = entry.owner()?;
        if entry.is_sole(me) || access == Access::Read && self.lines.holds(entry, me) {
            return None;
        }
        let holder = &self.cpus[usize::from(owner)];
        let [l2, l3] = self.capacity(line, owner);
        let l3_age = self.l3_brought[usize::from(holder.place.l3)].wrapping_sub(entry.l3_stamp);
        if holder.brought[set_of(line)].wrapping_sub(entry.stamp) > l2 && l3_age > l3 {
            return None;
        }
        Some(self.transfer(line, entry, access).scaled(QUESTION)).filter(|&question| question > Ps(0))
    }

    /// From the nearest holder for a reader; for a writer, until the farthest holder has let go.
    fn transfer(&self, line: usize, entry: &Line, access: Access) -> Ps {
        let me = self.current;
        let here = self.cpus[usize::from(me)].place;
        let remote = usize::from(self.home(line) != here.node);
        // A line that is taken away modified goes from core to core; one that is read goes into the last level, too.
        // What was measured as a transfer of a clean line was an exchange of a modified one.
        let dirty = usize::from(entry.is_dirty() && access == Access::Read);
        let costs = &self.costs.transfer[remote][dirty];
        let held = match self.lines.crowd(entry) {
            Some(set) => self.distances.from(me, set),
            None => {
                let others = entry.few().filter(|&holder| holder != me);
                others.fold(0, |held, cpu| held | 1 << here.distance(self.cpus[usize::from(cpu)].place) as u8)
            }
        };
        let costs = costs.iter().enumerate().filter(|(distance, _)| held >> distance & 1 != 0);
        let costs = costs.map(|(_, &cost)| cost);
        match access {
            Access::Read => costs.min().unwrap_or(Ps::NEVER),
            // Also if the data is here: the others' copies have to go, which takes a question and the answers.
            _ => costs.max().unwrap_or_default(),
        }
    }

    /// How many lines the second level that has a line holds in each set, and how many the last level holds.
    #[inline]
    fn capacity(&self, line: usize, owner: u16) -> [u32; 2] {
        if let Some([near, others, l3]) = self.region(line).and_then(|region| region.caches) {
            return [ways(if owner == self.current { near } else { others }), l3];
        }
        [self.costs.l2, self.costs.l3]
    }

    #[inline]
    fn region(&self, line: usize) -> Option<&super::Region> {
        let (first, behind, last) = self.last_region.get();
        if (first..behind).contains(&line) {
            return self.regions.get(last);
        }
        // A line is of the region that it begins in.
        let found = self.regions.partition_point(|region| region.end <= line * LINE);
        let region = self.regions.get(found)?;
        let begins = found.checked_sub(1).map_or(0, |before| self.regions[before].end.div_ceil(LINE));
        self.last_region.set((begins, region.end.div_ceil(LINE), found));
        Some(region)
    }

    #[inline]
    fn home(&self, line: usize) -> u16 {
        self.region(line).map_or(0, |region| region.node)
    }

    /// From memory: in a stream as fast as the core's share of bandwidth allows, else with full latency, of which
    /// other work hides a part.
    fn fetch(&mut self, line: usize, access: Access, at: Ps) -> Found {
        let home = self.home(line);
        let me = usize::from(self.current);
        let streams = self.follow(line);
        let walk = self.walk(line);
        let cpu = &mut self.cpus[me];
        let service = match access {
            Access::Read => self.costs.node_read_line,
            _ => self.costs.node_read_line + self.costs.node_write_line,
        };
        let served = self.channels[usize::from(home)].serve(at, service);
        let loaded = self.costs.loaded(served.busy);
        let remote = home != cpu.place.node;
        let walk = if streams.is_some() { Ps(0) } else { walk };
        let latency = self.costs.dram[usize::from(remote)].scaled(loaded) + walk + served.wait;
        let line_time = self.costs.core_line.scaled(loaded * self.costs.farther(remote));
        let stalled = self.prefetched(at, line_time, streams.unwrap_or(1), served.wait);
        let exposed = if streams.is_some() { stalled } else { latency.max(stalled) };
        let latency = if streams.is_some() { stalled } else { latency };
        if streams.is_none() {
            self.fetch_pair(line);
        }
        Found { latency, exposed, from_memory: true, in_l1: false, moved: Ps(0) }
    }

    /// How long the running core waits for the last of `lines` lines, which come at this distance from one another, and
    /// later by what they had to wait for.
    fn prefetched(&mut self, at: Ps, line_time: Ps, lines: u64, wait: Ps) -> Ps {
        let cpu = &mut self.cpus[usize::from(self.current)];
        let ahead = Ps(at.0.saturating_sub(PREFETCH_DEPTH * line_time.0));
        cpu.prefetch = cpu.prefetch.max(ahead) + Ps(line_time.0 * lines) + wait;
        cpu.prefetch.since(at)
    }

    /// Lines that are written without being looked at. Each comes from memory and goes back: both count against the
    /// bandwidth of the core and that of the node.
    pub(super) fn clear_lines(&mut self, line: usize, lines: usize) {
        let index = usize::from(self.current);
        let start = self.cpus[index].clock;
        let home = usize::from(self.home(line));
        let service = Ps((self.costs.node_read_line + self.costs.node_write_line).0 * lines as u64);
        let Served { wait: delay, busy } = self.channels[home].serve(start, service);
        let remote = home != usize::from(self.cpus[index].place.node);
        let slower = self.costs.loaded(busy) * self.costs.farther(remote);
        self.work(Ps(2 * self.costs.core_line.0 * lines as u64).scaled(slower));
        let cpu = &mut self.cpus[index];
        cpu.clock += delay;
        cpu.drained = cpu.drained.max(cpu.clock);
        cpu.last_read = NO_LINE;
        let each = lines.div_ceil(SETS) as u32;
        age(&mut cpu.brought, each);
        let l3 = &mut self.l3_brought[usize::from(cpu.place.l3)];
        *l3 = l3.wrapping_add(lines as u32);
        let done = cpu.clock;
        let name = self.name_of(line);
        if let Some(name) = name {
            self.traffic[name].fetches += lines as u64;
            self.traffic[name].waited += delay;
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.add(self.current, start, done, Doing::Clear(name));
        }
        self.log(line, CLEAR, done);
    }

    /// A core that fetches a line from memory fetches its other half of 128 bytes, too, if no core has it.
    fn fetch_pair(&mut self, line: usize) {
        let pair = line ^ 1;
        if pair >= self.bytes.div_ceil(LINE) || self.lines.get(pair).owner().is_some() {
            return;
        }
        self.lines.share(pair, self.current);
        self.cpus[usize::from(self.current)].prefetch += self.costs.core_line;
        let cpu = &self.cpus[usize::from(self.current)];
        // Into the second level: older than what the first one holds.
        let stamp = cpu.brought[set_of(pair)].wrapping_sub(self.costs.l1 + 1);
        let l3_stamp = self.l3_brought[usize::from(cpu.place.l3)];
        let entry = self.lines.get(pair);
        (entry.stamp, entry.l3_stamp) = (stamp, l3_stamp);
    }

    /// If a line that was missed continues a stream: how many lines of it that takes.
    fn follow(&mut self, line: usize) -> Option<u64> {
        self.cpus[usize::from(self.current)].streams.follow(line)
    }

    /// Time that the core takes to find out where a line's page is: none if it is among those that it knows, or if the
    /// line of a page table that has it is near. From now on both are. A core has to know before it can ask any cache
    /// but the first level.
    fn walk(&mut self, line: usize) -> Ps {
        if self.regions.is_empty() {
            return Ps(0);
        }
        // Of what a shorter run meets as often as a long one, a core knows as much in both.
        let limited = self.region(line).is_some_and(|region| region.caches.is_some());
        let [known, near] = if limited { self.translations } else { [TRANSLATIONS, NEAR_TABLES] };
        let cpu = &mut self.cpus[usize::from(self.current)];
        let page = (line / TRANSLATED + 1) as u32;
        let is_known = core::mem::replace(&mut cpu.translated[page as usize % known], page) == page;
        if is_known {
            return Ps(0);
        }
        let table = page / TABLE_PAGES + 1;
        let is_near = core::mem::replace(&mut cpu.tables[table as usize % near], table) == table;
        if is_near { Ps(0) } else { self.costs.walk }
    }

    /// How many lines this core has brought into the set of a line since it last read it. Of a line that others have,
    /// too, the line itself says when a core touched it last, which need not have been this core.
    fn seen_ago(&self, line: usize) -> u32 {
        let cpu = &self.cpus[usize::from(self.current)];
        let [seen, stamp] = cpu.seen[line % SEEN];
        if seen == seen_as(line) { cpu.brought[set_of(line)].wrapping_sub(stamp) } else { u32::MAX }
    }

    /// Remembers that this core has read a line that others have, too.
    fn see(&mut self, line: usize, in_l1: bool) {
        let cpu = &mut self.cpus[usize::from(self.current)];
        // It is counted among those that have been brought in after this.
        let stamp = cpu.brought[set_of(line)].wrapping_add(u32::from(!in_l1));
        cpu.seen[line % SEEN] = [seen_as(line), stamp];
    }

    fn count(&mut self, line: usize, found: &Found, waited: Ps) {
        self.cpus[usize::from(self.current)].strays += 1;
        let name = self.name_of(line);
        if let Some(name) = name {
            let traffic = &mut self.traffic[name];
            traffic.waited += waited;
            traffic.fetches += u64::from(found.from_memory);
            // What was in this core's own caches has not moved.
            traffic.transfers += u64::from(found.moved > Ps(0));
        }
        if let Some(recorder) = &mut self.recorder {
            let end = self.cpus[usize::from(self.current)].clock;
            let doing = if found.from_memory { Doing::Memory(name) } else { Doing::Transfer(name) };
            recorder.add(self.current, Ps(end.0 - waited.0), end, doing);
        }
    }

    /// Under which of the names a line's traffic is counted.
    pub(super) fn name_of(&mut self, line: usize) -> Option<usize> {
        if !(self.last_named.0..self.last_named.1).contains(&line) {
            let behind = self.named.partition_point(|&(first, ..)| first <= line);
            let known = *self.named.get(behind.checked_sub(1)?)?;
            if line >= known.1 {
                return None;
            }
            // Lines that another name begins in are that name's.
            let end = self.named.get(behind).map_or(known.1, |next| next.0.min(known.1));
            self.last_named = (known.0, end, known.2);
        }
        Some(self.last_named.2)
    }
}
