//! Part `hold`: how long one process holds the zone lock for a refill and for a drain, by batch, on machines of which
//! the generation is known.
//!
//! The real allocator under will-it-scale's page_fault1 with one process and `high = 2 * batch`. Instructions take the
//! time that was fitted at 2.2 GHz, at the machine's clock.

use framewright::config::PcpFixed;
use framewright::policy::pcp::Sizing;
use framewright_sim::bench::Linux;
use framewright_sim::outcome::Pace;
use framewright_sim::page_fault::{self, Load};

use crate::study::declare::*;
use crate::study::identify;
use crate::study::tasks;

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "hold",
        about: "Time that one process, which touches and unmaps memory, holds the zone lock; on the machines that the metrics name, or on --machine.",
        kinds: &[Kind::Simulated],
        keys: &[key("simulated_mib", Takes::Whole(1, 128), None, "What the process maps.")],
        metrics: &quantities! {
            alloc_hold_us "us" Lower Main "Mean hold of the zone lock in the refill of an allocation."
            free_hold_us "us" Lower Main "Mean hold of the zone lock in the drain of a free."
        },
        options: &SIMULATED,
        needs: &[Need::Model, Need::Kernel],
        ..Declaration::NONE
    },
    runners: &[(Kind::Simulated, run)],
};

/// MHz at which times of instructions were fitted.
const FITTED_AT: f64 = 2200.0;
const FAMILIES: [&str; 2] = ["alloc_hold_us", "free_hold_us"];

fn priors() -> Result<Priors> {
    Priors::parse("hold.toml", include_str!("../../../../studies/priors/hold.toml"))
}

/// Runs the part.
///
/// # Errors
/// A machine cannot be simulated.
fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let machines = machines(&part.metrics, run)?;
    machines.iter().try_for_each(tasks::check)?;
    let variants = configured(plan, &Settings::default())?;
    let count = run.models.max(1) as usize;
    let pages = (WORKLOAD.value::<f64>(part, "simulated_mib") * 256.0) as u32;
    let draws = priors()?.draws(count, run.seed);
    // Of calls on one core, what orders were off by that were left out of the fit.
    let errors = model_errors(count, run.seed)?;
    let progress = progress(plan, part, machines.len() * count);
    let about = if let [machine] = &machines[..] { machine.name.as_str() } else { "all" };
    let mut result = result_part(plan, part, Kind::Simulated, about, run.seed);
    for machine in &machines {
        let node = Machine { nodes: 1, sockets: 1, ..machine.clone() };
        let models = sampled_models(&node, count, run.seed)?;
        let clocks = sampled_clocks(&node, count, run.seed)?;
        let work: Vec<(usize, &Draw)> = draws.iter().enumerate().collect();
        let predicted = |&(n, draw): &(usize, &Draw)| -> Result<Vec<[f64; 2]>> {
            let mut model = identify::with_errors(models[n].clone(), draw)?;
            let slower = FITTED_AT / clocks[n];
            model.fitted.access_ns *= slower;
            model.fitted.alloc_ns *= slower;
            model.fitted.free_ns *= slower;
            let cached = draw.get("cached")?;
            let load =
                Load { processes: 1, pages, user_ns: 5.0, slice: Ps(0), pace: Pace::default(), cached };
            let (traced, times) = (draw.get("tracing_ns")?, draw.get("times")?);
            let hold = |variant: &Configured| {
                let mut linux = allocator(machine, &variant.setup);
                let (batch, high) = (linux.sizing.batch, 2 * linux.sizing.batch);
                linux.config.experiment.pcp_fixed = Some(PcpFixed { batch, high });
                let linux = Linux { sizing: Sizing { batch, high_min: high, high_max: high }, ..linux };
                let seed = mix(run.seed ^ (n as u64 + 1) << 32);
                let holds = page_fault::holds(&model, &linux, &load, seed).map_err(Error::failed)?;
                Ok(holds.map(|ns| (ns * errors[n] * times + traced) / 1000.0))
            };
            variants.iter().map(hold).collect()
        };
        let all = in_parallel(&work, predicted, || progress.step("simulated"));
        for holds in all {
            for (variant, hold) in variants.iter().zip(holds?) {
                for (family, us) in FAMILIES.into_iter().zip(hold) {
                    result.figure(format!("{family}[machine={}]", machine.name)).sample(&variant.variant, us);
                }
            }
        }
    }
    result.note("One process, alone: high is twice the batch, a refill and a drain move a batch each. Clock, cache and error of the model vary (studies/priors/hold.toml).");
    close_models(&mut result, count, [], Interval::FourFifths);
    Ok(result)
}

/// The machine's clock in MHz for each model, over its range.
fn sampled_clocks(machine: &Machine, count: usize, seed: u64) -> Result<Vec<f64>> {
    let (low, high) = machine.frequency_mhz.interval();
    let mut rng = Rng::new(mix(seed ^ 0xc10c));
    Ok(strata(low, high, count, &mut rng))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_grows_with_the_batch_on_each_machine() {
        let (plan, part) = Plan::with_part("pcp-batch", "hold");
        let machine = Machine::find("skylake-4s").expect("it is built in");
        let result = run(&plan, &part, &Run::shortest(&machine)).expect("simulated");
        for machine in ["sapphire-rapids-2s", "ice-lake-2s", "cascade-lake-2s"] {
            for family in FAMILIES {
                let metric = result.find(&format!("{family}[machine={machine}]")).expect(family);
                let value = |variant: &str| metric.of(variant)[0];
                assert!((3.0..10.0).contains(&(value("batch_511") / value("batch_63"))), "{metric:?}");
            }
        }
    }
}
