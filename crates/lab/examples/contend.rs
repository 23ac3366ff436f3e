//! `study lock-line --part contend` of this host, simulated by the same code on a description of it: how long the zone
//! lock is held at each of its places. `cargo run --release -p framewright-lab --example contend --
//! docs/validation/host.toml` prints the holds where each store to a polled line waits for 0 to 2 transfers.

use framewright::config::LockKind::{Queued, Ticket};
use framewright::config::LockPlace::{OtherEnd, OwnLine, WithOrder0Lists};
use framewright::config::{Experiment, LockKind, LockPlace, PcpFixed};
use framewright::policy::pcp::Sizing;
use framewright::{Config, NodeId, Pfn, ZoneSpec, ZoneType};
use framewright_lab::machine::Machine;
use framewright_lab::simulate::central_model;
use framewright_sim::stage::{Compiled, RING, Simulated};
use framewright_sim::world::{Meet, Programs};
use framewright_sim::{Model, World};
use framewright_workload::bench::{self, Case, Scale, Workload};

/// Mean hold and wait in ns with the lock at a place.
fn contend(model: &Model, kind: LockKind, place: LockPlace, cpus: u16) -> [f64; 2] {
    let (batch, high) = (63, 378);
    let pcp_fixed = Some(PcpFixed { batch, high });
    let preset = Config::linux_v5_4();
    let experiment =
        Experiment { lock_kind: kind, lock_place: place, lock_timing: true, pcp_fixed, ..preset.experiment };
    let config = Config { experiment, ..preset };
    let scale = Scale { frames: 1 << 18, operations: 1 << 14, seed: 1, ..Scale::default() };
    let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: scale.frames };
    let lines = (RING * usize::from(cpus / 2) + Meet::LINES) * 2;
    let sizing = Sizing { batch, high_min: high, high_max: high };
    let mut world: World =
        World::with_lines(model, &[zone], config, Some(sizing), 1, lines).expect("a world");
    world.answer_all(cpus);
    let case = Case { workload: Workload::Bulk, order: 0, cpus: cpus.into() };
    let stage = Simulated::new(Programs::new(&mut world), Compiled::on(model));
    (0..2).for_each(|round| drop(bench::perform(&stage, &case, &scale, round)));
    let totals = world.allocator().totals().pcp;
    [totals.lock_hold_ns, totals.lock_wait_ns].map(|ns| ns as f64 / totals.lock_acquisitions.max(1) as f64)
}

fn main() {
    let file = std::env::args().nth(1).expect("a machine's description");
    let machine = Machine::find(&file).expect("a machine");
    let cpus = (machine.cores_per_node.min(2)) as u16;
    for exposed in [0.0, 0.75, 1.5, 2.0] {
        let model = central_model(&machine).expect("a model").for_compiled();
        let model = Model { store_exposed: exposed, ..model };
        for kind in [Ticket, Queued] {
            let all = [WithOrder0Lists, OtherEnd, OwnLine].map(|place| contend(&model, kind, place, cpus));
            println!(
                "exposed {exposed:.2} {kind:?}: held {:.0} ns beside the lists, {:.0} behind them, {:.0} in a line of its own: {:.2} times (waited {:.0})",
                all[0][0],
                all[1][0],
                all[2][0],
                all[0][0] / all[1][0],
                all[0][1]
            );
        }
    }
}
