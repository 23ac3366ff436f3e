//! Background reclaim is woken by one word: no wake-up is lost, no request sleeps endlessly. And the zonelist
//! cache's notes are hints that racing CPUs may lose, never a page. loom, and shuttle for many CPUs.

use std::sync::Arc as StdArc;

use framewright_check::platform::loom;
use framewright_check::prelude::*;

const NODE: NodeId = NodeId(0);
const BOUNDS: Bounds = Bounds { preemptions: 2, spins: 4 };

fn asked(n: u8, highest: ZoneType) -> BackgroundRequest {
    BackgroundRequest { order: order(n), highest }
}

/// Two CPUs ask while the sleeper goes to sleep and is woken as often as it is told to be. Whatever the
/// order, both wishes reach it: with a real sleeper, one that waits until it is notified.
#[test]
fn no_wake_up_is_lost() {
    loom::model(BOUNDS.widened_if_full(), || {
        let world = StdArc::new(Spec::one_zone(1, 1).bare().build::<Loom>());
        let bell = StdArc::new(::loom::sync::Notify::new());
        let wishes = [asked(3, ZoneType::Dma), asked(1, ZoneType::Normal)];
        let askers: Vec<_> = wishes
            .into_iter()
            .map(|wish| {
                let (world, bell) = (world.clone(), bell.clone());
                ::loom::thread::spawn(move || {
                    if world.allocator().background_wake(NODE, wish) {
                        bell.notify();
                    }
                })
            })
            .collect();
        // The sleeper: until it has heard of both.
        let mut heard = (Order::ZERO, ZoneType::Dma);
        while heard != (wishes[0].order, ZoneType::Normal) {
            match world.allocator().background_sleep(NODE) {
                Some(wish) => heard = (heard.0.max(wish.order), heard.1.max(wish.highest)),
                // loom reports a deadlock if no thread will ever ring.
                None => bell.wait(),
            }
        }
        for asker in askers {
            asker.join().expect("the thread did not panic");
        }
        assert_eq!(world.allocator().background_sleep(NODE), None, "nothing is asked twice");
    });
}

/// Two CPUs on a machine of two nodes whose local zone is exhausted, under every interleaving of their notes:
/// both get a page of the other node.
#[test]
fn notes_may_race_and_no_page_is_missed() {
    for cache in [ZonelistCache::AfterFirstZone, ZonelistCache::BeforeFirstZoneAndClear] {
        let executions = loom::model(Bounds { preemptions: 1, spins: 4 }.widened_if_full(), move || {
            let config = Config::linux_v3_0().bare().but(|config| {
                config.min_free_kib = 4;
                config.zone_reclaim = ZoneReclaimMode::ON;
                config.experiment.zonelist_cache = cache;
            });
            let world = StdArc::new(
                Spec::zones([normal(0, 1024, 2), normal(1, 2048, 8)], 2).config(config).build::<Loom>(),
            );
            let get = |world: &World<Loom>, cpu| {
                let nothing = reclaimer(100, |_, _| Reclaimed { scanned: 1, freed: 0 });
                let helpers = Helpers::NONE.with_reclaim(&nothing);
                world.on(cpu, |cpu| cpu.alloc_with(&page(), &helpers)).expect("node 1 has pages")
            };
            let (mine, theirs) = loom_pair(&world, |world| get(world, 0), move |world| get(world, 1));
            assert_ne!(mine, theirs);
        });
        println!("{cache:?}: {executions} executions");
    }
}

/// A cache behind a lock that shuttle sees, and a bell for its background thread.
struct Shop {
    world: World<Shuttle>,
    pages: ::shuttle::sync::Mutex<Vec<Pfn>>,
    rung: ::shuttle::sync::Mutex<bool>,
    bell: ::shuttle::sync::Condvar,
}

impl Reclaim for Shop {
    fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        let mut done = Reclaimed::default();
        for _ in 0..ask.target.min(4) {
            let Some(pfn) = self.pages.lock().expect("no thread panicked").pop() else { break };
            done.scanned += 1;
            done.freed += u64::from(give(to, pfn, 0).is_ok());
        }
        done
    }

    fn reclaimable(&self, _: ZoneId) -> Reclaimable {
        let pages = self.pages.lock().expect("no thread panicked").len() as u64;
        Reclaimable { file_lru: pages, file: pages, ..Reclaimable::default() }
    }
}

impl Background for Shop {
    fn wake(&self, _: NodeId) {
        *self.rung.lock().expect("no thread panicked") = true;
        self.bell.notify_one();
    }
}

impl Shop {
    fn helpers(&self) -> Helpers<'_> {
        Helpers::NONE.with_reclaim(self).with_background(self)
    }

    fn sell(&self, cpu: usize, times: u32) {
        let request = page();
        for _ in 0..times {
            let got = self.world.on(cpu, |cpu| cpu.alloc_with(&request, &self.helpers()));
            if let Ok(pfn) = got {
                self.pages.lock().expect("no thread panicked").push(pfn);
            }
        }
    }

    /// Background reclaim as a thread, until told to end.
    fn background(&self, cpu: usize, ended: &::shuttle::sync::atomic::AtomicBool) {
        loop {
            if let Some(asked) = self.world.allocator().background_sleep(NODE) {
                self.world.on(cpu, |cpu| cpu.background(NODE, asked, &self.helpers()));
                continue;
            }
            let mut rung = self.rung.lock().expect("no thread panicked");
            while !*rung {
                if ended.load(core::sync::atomic::Ordering::SeqCst) {
                    return;
                }
                rung = self.bell.wait(rung).expect("no thread panicked");
            }
            *rung = false;
        }
    }
}

/// Three CPUs under pressure, and a background thread that sleeps in between: everything ends, and every page
/// is accounted for.
#[test]
fn pressure_from_many_cpus_with_a_background_thread() {
    let body = || {
        let config =
            Config::framewright().slots(4).fixed(2, 4).spins(2).but(|config| config.min_free_kib = 32);
        let shop = StdArc::new(Shop {
            world: Spec::one_zone(64, 4).config(config.with_marks()).build(),
            pages: ::shuttle::sync::Mutex::new(Vec::new()),
            rung: ::shuttle::sync::Mutex::new(false),
            bell: ::shuttle::sync::Condvar::new(),
        });
        let ended = StdArc::new(::shuttle::sync::atomic::AtomicBool::new(false));
        let background = {
            let (shop, ended) = (shop.clone(), ended.clone());
            ::shuttle::thread::spawn(move || shop.background(3, &ended))
        };
        let sellers: Vec<_> = (0..3)
            .map(|cpu| {
                let shop = shop.clone();
                ::shuttle::thread::spawn(move || shop.sell(cpu, 40))
            })
            .collect();
        for seller in sellers {
            seller.join().expect("the thread did not panic");
        }
        ended.store(true, core::sync::atomic::Ordering::SeqCst);
        shop.wake(NODE);
        background.join().expect("the thread did not panic");
        let held = shop.pages.lock().expect("no thread panicked").len() as u64;
        assert_eq!(shop.world.settled().allocated, held);
    };
    schedules(if loom::full() { 2000 } else { 30 }, body);
}
