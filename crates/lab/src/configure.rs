//! From settings by name to an allocator's configuration.

mod declared;

use std::collections::BTreeMap;

use framewright::config::{Config, Engine};
use framewright::policy::init::Split;

use framewright_report::error::{Error, Result, did_you_mean};
use framewright_workload::replay::PageCache;

use crate::settings::{Settings, Value};

pub use crate::settings::Takes;
pub use declared::{Acts, SETTINGS, Setting};
pub use framewright_subject::{Descriptor, Subject};

/// Settings that one setting, `engine`, replaces.
const GONE: [&str; 5] = ["bulk", "free_store", "large_heads", "metadata", "pcp_counting"];

/// An allocator to be made: its configuration, and what surrounds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// The allocator's own configuration.
    pub config: Config,
    /// Size of frame descriptors.
    pub descriptor: Descriptor,
    /// Split of the late part of initialisation of the memory map between CPUs.
    pub split: Split,
    /// Type that a replay asks for where the traced program got a page of a file.
    pub page_cache: PageCache,
}

impl Setup {
    /// The same with descriptors of 8 bytes.
    pub(crate) fn compact(self) -> Self {
        Self { descriptor: Descriptor::Compact, ..self }
    }

    /// An arena of `frames` described frames for `cpus` threads.
    ///
    /// # Errors
    /// The configuration is refused, or the system has no address space for the descriptors.
    pub fn subject(&self, frames: u64, cpus: usize) -> Result<Subject> {
        if self.config.engine == Engine::Compact && self.descriptor != Descriptor::Compact {
            return Err(Error::failed("engine = compact: it needs descriptor_bytes = 8"));
        }
        Subject::new(self.config, self.descriptor, frames, cpus).map_err(Error::failed)
    }
}

/// Kind of a measurement, as far as settings have an effect there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measures {
    /// A recorded trace.
    Trace,
    /// A recorded trace on a modelled machine.
    ModelledTrace,
    /// Workloads made for the purpose.
    Workloads,
}

impl Setting {
    /// The setting of this name, or of this sysctl.
    ///
    /// # Errors
    /// There is none; the message suggests one.
    pub fn find(name: &str) -> core::result::Result<&'static Self, String> {
        let is_it = |setting: &&Self| setting.name == name || setting.sysctl() == Some(name);
        SETTINGS.iter().find(is_it).ok_or_else(|| {
            if GONE.contains(&name) {
                return format!("{name} is part of engine now: write engine=linux, framewright or compact");
            }
            let names = SETTINGS.iter().map(|setting| setting.name);
            match did_you_mean(name, names) {
                hint if hint.is_empty() => "no such setting; `framewright settings` lists them".to_owned(),
                hint => format!("no such setting{hint}"),
            }
        })
    }

    /// The sysctl that sets it on a running Linux, if there is one.
    pub fn sysctl(&self) -> Option<&'static str> {
        let name = self.source.split([',', ' ']).next()?;
        name.starts_with("vm.").then_some(name)
    }

    /// Its value in a setup.
    pub fn of(&self, setup: &Setup) -> String {
        (self.get)(setup)
    }

    /// Presets by name, in the order of the generations they are of.
    pub fn presets() -> impl Iterator<Item = (&'static str, Setup)> {
        let Takes::Words(names) = SETTINGS[0].takes else { unreachable!("presets have names") };
        let setup = |&name| {
            let mut setup = Setup::default();
            (SETTINGS[0].set)(&mut setup, &Value::Text(String::from(name))).expect("it is one of its words");
            (name, setup)
        };
        names.iter().map(setup)
    }
}

impl Setup {
    /// This setup with `settings` applied in order.
    ///
    /// # Errors
    /// A setting that does not exist, or one that has two values, under two names; or a value that it does not take:
    /// the message lists what it takes.
    pub fn with(mut self, settings: &Settings) -> Result<Self> {
        if let Some(what) = set_twice(settings) {
            return Err(Error::usage(what));
        }
        settings.apply(None, |key, value| self.set(key, value))?;
        Ok(self)
    }

    /// Applies one setting. `preset` replaces the whole allocator configuration.
    ///
    /// # Errors
    /// The value or the key is wrong; the message gives the reason.
    pub fn set(&mut self, key: &str, value: &Value) -> core::result::Result<(), String> {
        let setting = Setting::find(key)?;
        if !setting.takes.accepts(value) {
            return Err(format!("expected {}", setting.takes));
        }
        (setting.set)(self, value)
    }

    /// Every setting by name, as results record it.
    pub fn described(&self) -> BTreeMap<String, String> {
        SETTINGS.iter().map(|setting| (setting.name.to_owned(), setting.of(self))).collect()
    }

    /// Says of each of these settings that makes no difference in a replay or a benchmark why that is so: one zone,
    /// initialised whole, with nothing to reclaim.
    pub fn without_effect(&self, settings: &Settings, what: Measures) -> Vec<String> {
        let reason = |acts: Acts| match acts {
            Acts::Always => None,
            Acts::InReplays | Acts::InReplaysHere if what == Measures::Workloads => {
                Some("no trace is replayed")
            }
            Acts::InReplaysHere if what == Measures::ModelledTrace => {
                Some("on a modelled machine no page is moved")
            }
            Acts::NotModelled if what == Measures::ModelledTrace => {
                Some("on a modelled machine descriptors have 64 bytes")
            }
            Acts::InReplays | Acts::InReplaysHere | Acts::NotModelled => None,
            Acts::AtBootOrModelled if what == Measures::ModelledTrace => None,
            Acts::AtBoot | Acts::AtBootOrModelled => Some("the memory map is initialised before it begins"),
            Acts::UnderPressure => Some("there is one zone, and nothing to reclaim"),
            Acts::WithStruct64
                if self.descriptor == Descriptor::Struct64 || what == Measures::ModelledTrace =>
            {
                None
            }
            Acts::WithStruct64 => {
                Some("descriptors of 8 bytes have nothing to check; set descriptor_bytes=64")
            }
        };
        let named = settings.iter().filter_map(|(key, _)| Setting::find(key).ok());
        named
            .filter_map(|setting| {
                Some(format!("{} has no effect here: {}.", setting.name, reason(setting.acts)?))
            })
            .collect()
    }
}

/// Says of a setting that one list sets under two names, its own and that of a sysctl, to leave one out.
pub(crate) fn set_twice(settings: &Settings) -> Option<String> {
    let known =
        || settings.iter().filter_map(|(key, value)| Some((Setting::find(key).ok()?.name, key, value)));
    known().enumerate().find_map(|(n, (name, key, value))| {
        let (_, earlier, before) = known().take(n).find(|(earlier, ..)| *earlier == name)?;
        Some(format!(
            "`{earlier}` and `{key}` are one setting, set to {before} and to {value}; leave one out"
        ))
    })
}

#[cfg(test)]
mod tests {
    use framewright::config::{
        Experiment, Generation, ListOrder, LockKind, PcpFixed, PcpRule, ZoneReclaimMode, ZonelistCache,
    };

    use super::*;

    fn setup(pairs: &str) -> Result<Setup> {
        Setup::default().with(&Settings::from_pairs(pairs)?)
    }

    fn refusal(pairs: &str) -> String {
        setup(pairs).expect_err("refused").to_string()
    }

    #[test]
    fn settings_apply_in_order() {
        let parsed =
            setup("preset=linux_v5_4,batch=7,high=42,lock_kind=ticket,descriptor_bytes=64").expect("valid");
        assert_eq!(parsed.config.experiment.pcp_fixed, Some(PcpFixed { batch: 7, high: 42 }));
        assert_eq!(parsed.config.experiment.pcp_rule, PcpRule::V5_4);
        assert_eq!(parsed.config.experiment.lock_kind, LockKind::Ticket);
        assert_eq!(parsed.descriptor, Descriptor::Struct64);
        assert_eq!(
            setup("high=42").expect("valid").config.experiment.pcp_fixed,
            Some(PcpFixed { batch: 7, high: 42 })
        );
    }

    /// The last one won, and a result was named after both.
    #[test]
    fn one_setting_by_two_names_is_refused() {
        assert_eq!(
            refusal("pcp_fraction=8,batch=7,vm.percpu_pagelist_high_fraction=16"),
            "`pcp_fraction` and `vm.percpu_pagelist_high_fraction` are one setting, set to 8 and to 16; leave one out"
        );
        let base = setup("pcp_fraction=8").expect("valid");
        let change = Settings::from_pairs("vm.percpu_pagelist_high_fraction=16").expect("a pair");
        assert_eq!(base.with(&change).expect("it refines").config.experiment.pcp_fraction, 16);
    }

    #[test]
    fn pressure_is_configured_by_name() {
        let parsed = setup(
            "preset=linux_v3_0,zonelist_cache=before_first_zone,zone_reclaim=5,min_free_kib=4096,\
             reserve_ratios=256:128:32:0,zonelist_order=zone,rounds=9,keep_marks=false",
        )
        .expect("valid");
        let expected = Config {
            zone_reclaim: ZoneReclaimMode::ON.and(ZoneReclaimMode::UNMAP),
            min_free_kib: 4096,
            keep_marks: false,
            experiment: Experiment {
                zonelist_cache: ZonelistCache::BeforeFirstZone,
                reserve_ratios: [256, 128, 32, 0],
                zonelist_order: ListOrder::Zone,
                ..Config::linux_v3_0().experiment
            },
            ..Config::linux_v3_0()
        };
        assert_eq!(parsed.config.experiment.limits.rounds, 9);
        assert_eq!(
            Config {
                experiment: Experiment { limits: expected.experiment.limits, ..parsed.config.experiment },
                ..parsed.config
            },
            expected
        );
        assert!(refusal("reserve_ratios=256:256").contains("256:256:32:0"));
        assert!(refusal("zone_reclaim=8").contains("from 0 to 7"));
        assert!(refusal("zonelist_cash=off").contains("did you mean `zonelist_cache`?"));
        assert_eq!(
            setup("watermark_scale=50,boost_factor=0,generation=v6_1").expect("valid").config,
            Config {
                watermark_scale: 50,
                boost_factor: 0,
                experiment: Experiment {
                    marks: Generation::V6_1,
                    fallback: Generation::V6_1,
                    passes: Generation::V6_1,
                    reclaim: Generation::V6_1,
                    ..Experiment::default()
                },
                ..Config::framewright()
            }
        );
    }

    #[test]
    fn wrong_settings_say_what_is_taken() {
        assert!(refusal("lock_kind=mcs").contains("expected one of ticket, queued"));
        assert!(refusal("lock_kinds=ticket").contains("did you mean `lock_kind`?"));
        assert!(refusal("batch=0").contains("from 1 to"));
        assert!(refusal("lock_timing=1").contains("true or false"));
        assert!(refusal("engine=lists").contains("expected one of linux"));
        assert!(refusal("free_store=lists").contains("engine=linux"));
        assert!(refusal("descriptor_bytes=32").contains("8, 64"));
        let both = setup("engine=compact,descriptor_bytes=64").expect("either is valid");
        assert!(both.subject(1024, 1).expect_err("not both").to_string().contains("descriptor_bytes = 8"));
    }

    #[test]
    fn every_setting_refuses_what_it_does_not_take_and_reads_back_what_it_does() {
        for setting in SETTINGS {
            let refused = Setup::default().set(setting.name, &Value::Text("no such value".to_owned()));
            let what = refused.expect_err("no setting takes this");
            assert!(!what.contains("no such setting"), "{}", setting.name);
            let words: Vec<String> = match setting.takes {
                Takes::Words(words) => words.iter().map(|word| (*word).to_owned()).collect(),
                Takes::Whole(least, most) => {
                    assert!(setup(&format!("{}={}", setting.name, most + 1)).is_err(), "{}", setting.name);
                    vec![least.to_string(), most.min(1 << 10).to_string()]
                }
                Takes::Flag => vec!["true".to_owned(), "false".to_owned()],
                Takes::Form(_) => vec!["1:2:3:4".to_owned()],
                Takes::Number(..) | Takes::FileOr(_) => panic!("{}: no setting takes these", setting.name),
            };
            for word in words {
                let set = setup(&format!("{}={word}", setting.name)).expect("it takes this");
                assert_eq!(setting.of(&set), word, "{}", setting.name);
                assert_eq!(set.described()[setting.name], word);
            }
        }
    }

    #[test]
    fn settings_that_do_nothing_in_a_replay_are_named_with_the_reason() {
        let settings =
            Settings::from_pairs("pcp_reset=true,batch=7,zone_reclaim=1,refill_check=off,page_cache=movable")
                .expect("pairs");
        let said = |pairs: &str, what| setup(pairs).expect("valid").without_effect(&settings, what);
        let in_replay = said("", Measures::Trace);
        assert_eq!(in_replay.len(), 3, "{in_replay:?}");
        assert!(in_replay[0].starts_with("pcp_reset has no effect here: the memory map"), "{in_replay:?}");
        assert_eq!(said("descriptor_bytes=64", Measures::Trace).len(), 2);
        // Models check descriptors, whatever their size is here; their lists may have been sized early.
        assert_eq!(said("", Measures::ModelledTrace).len(), 1);
        let in_bench = said("", Measures::Workloads);
        assert_eq!(in_bench[3], "page_cache has no effect here: no trace is replayed.");
        let named = Settings::from_pairs("descriptor_bytes=64,compaction_proactiveness=9,page_cache=movable");
        let said = |what| Setup::default().without_effect(named.as_ref().expect("pairs"), what);
        assert_eq!(said(Measures::Trace), [""; 0]);
        assert_eq!(
            said(Measures::ModelledTrace),
            [
                "descriptor_bytes has no effect here: on a modelled machine descriptors have 64 bytes.",
                "compaction_proactiveness has no effect here: on a modelled machine no page is moved."
            ]
        );
    }

    #[test]
    fn pages_of_files_are_asked_for_as_traced_unless_it_is_set() {
        let page_cache = |pairs: &str| setup(pairs).expect("valid").page_cache;
        for (name, preset) in Setting::presets() {
            assert_eq!(preset.page_cache, PageCache::AsTraced, "{name}");
            let both = format!("page_cache=reclaimable,preset={name}");
            assert_eq!(page_cache(&both), PageCache::Reclaimable, "a preset is of the allocator");
        }
        assert_eq!(page_cache(""), PageCache::AsTraced);
    }
}
