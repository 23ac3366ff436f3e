//! From settings by name to an allocator's configuration.

use framewright_host::framewright::config::{
    Bulk, Config, FreeStore, Generation, LargeHeads, ListOrder, LockKind, LockPlace, PcpFixed, PcpOrders,
    PcpRule, RefillCheck, ZoneReclaimMode, ZonelistCache,
};

use framewright_host::framewright::policy::init::Split;

use crate::error::{Result, did_you_mean};
use crate::settings::{Settings, Value};

/// How large a frame descriptor is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Descriptor {
    /// 8 bytes: nothing of the user's.
    #[default]
    Compact,
    /// 64 bytes, as Linux' `struct page`.
    Struct64,
}

/// An allocator to be made: its configuration, and what surrounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The allocator's own configuration.
    pub config: Config,
    /// Size of frame descriptors.
    pub descriptor: Descriptor,
    /// How the part of the memory map that is initialised late is split between CPUs.
    pub split: Split,
}

impl Default for Setup {
    fn default() -> Self {
        Self { config: Config::framewright(), descriptor: Descriptor::Compact, split: Split::default() }
    }
}

/// Every setting's name, for suggestions and for `--help`.
pub const NAMES: &[&str] = &[
    "preset",
    "pcp_rule",
    "pcp_fraction",
    "batch",
    "high",
    "pcp_orders",
    "pcp_slots",
    "pcp_min_refill",
    "pcp_reset",
    "deferred_init",
    "large_heads",
    "lock_place",
    "lock_kind",
    "lock_timing",
    "refill_check",
    "bulk",
    "free_store",
    "remote_drain_spins",
    "descriptor_bytes",
    "keep_marks",
    "generation",
    "min_free_kib",
    "watermark_scale",
    "boost_factor",
    "reserve_ratios",
    "zonelist_order",
    "zonelist_cache",
    "zone_reclaim",
    "rounds",
    "rounds_without_progress",
];

impl Setup {
    /// The default with `settings` applied in order.
    ///
    /// # Errors
    /// A setting that does not exist, or a value that it does not take; the message lists what it takes.
    pub fn from_settings(settings: &Settings) -> Result<Self> {
        let mut setup = Self::default();
        settings.apply(None, |key, value| setup.set(key, value))?;
        Ok(setup)
    }

    /// Applies one setting. `preset` replaces the whole allocator configuration.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn set(&mut self, key: &str, value: &Value) -> core::result::Result<(), String> {
        let config = &mut self.config;
        match key {
            "preset" => {
                *config = choice(
                    value,
                    &[
                        ("framewright", Config::framewright()),
                        ("linux_v3_0", Config::linux_v3_0()),
                        ("linux_v5_4", Config::linux_v5_4()),
                        ("linux_v6_1", Config::linux_v6_1()),
                        ("linux_v6_7", Config::linux_v6_7()),
                    ],
                )?;
            }
            "pcp_rule" => {
                config.pcp_rule = choice(
                    value,
                    &[("v5_4", PcpRule::V5_4), ("v6_1", PcpRule::V6_1), ("auto", PcpRule::Auto)],
                )?;
            }
            "pcp_fraction" => config.pcp_fraction = number(value, 0, u32::MAX)?,
            "batch" => {
                let batch = number(value, 1, 1 << 20)?;
                let high = config.pcp_fixed.map_or(batch.saturating_mul(6), |fixed| fixed.high);
                config.pcp_fixed = Some(PcpFixed { batch, high });
            }
            "high" => {
                let high = number(value, 0, 1 << 30)?;
                let batch = config.pcp_fixed.map_or((high / 6).max(1), |fixed| fixed.batch);
                config.pcp_fixed = Some(PcpFixed { batch, high });
            }
            "pcp_orders" => {
                config.pcp_orders = choice(
                    value,
                    &[
                        ("none", PcpOrders::None),
                        ("zero", PcpOrders::Zero),
                        ("up_to_costly", PcpOrders::UpToCostly),
                        ("up_to_costly_and_huge", PcpOrders::UpToCostlyAndHuge),
                    ],
                )?;
            }
            "pcp_slots" => config.pcp_slots = number(value, 2, 1 << 20)?,
            "pcp_min_refill" => config.pcp_min_refill = number(value, 1, 1 << 10)?,
            "pcp_reset" => config.pcp_reset = flag(value)?,
            "deferred_init" => {
                self.split = choice(
                    value,
                    &[
                        ("one_thread_per_node", Split::OneThread),
                        ("all_cpus", Split::AllCpus),
                        ("all_cpus_by_section", Split::AllCpusBySection),
                    ],
                )?;
            }
            "lock_place" => {
                config.lock_place = choice(
                    value,
                    &[
                        ("with_order0_lists", LockPlace::WithOrder0Lists),
                        ("other_end", LockPlace::OtherEnd),
                        ("own_line", LockPlace::OwnLine),
                    ],
                )?;
            }
            "lock_kind" => {
                config.lock_kind = choice(
                    value,
                    &[
                        ("ticket", LockKind::Ticket),
                        ("queued", LockKind::Queued),
                        ("parking", LockKind::Parking),
                        ("by_platform", LockKind::ByPlatform),
                    ],
                )?;
            }
            "lock_timing" => config.lock_timing = flag(value)?,
            "refill_check" => {
                config.refill_check = choice(
                    value,
                    &[
                        ("under_zone_lock", RefillCheck::UnderZoneLock),
                        ("after_unlock", RefillCheck::AfterUnlock),
                        ("off", RefillCheck::Off),
                    ],
                )?;
            }
            "free_store" => {
                let stores = [("lists", FreeStore::Lists), ("maps", FreeStore::Maps)];
                config.free_store = choice(value, &stores)?;
            }
            "bulk" => {
                config.bulk = choice(value, &[("one_by_one", Bulk::OneByOne), ("runs", Bulk::Runs)])?;
            }
            "large_heads" => {
                config.large_heads =
                    choice(value, &[("pageblocks", LargeHeads::Pageblocks), ("frames", LargeHeads::Frames)])?;
            }
            "remote_drain_spins" => config.remote_drain_spins = number(value, 0, 1 << 30)?,
            "descriptor_bytes" => {
                self.descriptor = match number(value, 0, 64)? {
                    8 => Descriptor::Compact,
                    64 => Descriptor::Struct64,
                    _ => return Err("a descriptor has 8 or 64 bytes".to_owned()),
                };
            }
            _ if set_pressure(config, key, value)? => {}
            _ => {
                let hint = did_you_mean(key, NAMES.iter().copied());
                let list = if hint.is_empty() { format!("; there are {}", NAMES.join(", ")) } else { hint };
                return Err(format!("no such setting{list}"));
            }
        }
        Ok(())
    }
}

/// Applies a setting that is about memory pressure. Whether it is one.
fn set_pressure(config: &mut Config, key: &str, value: &Value) -> core::result::Result<bool, String> {
    match key {
        "keep_marks" => config.keep_marks = flag(value)?,
        "generation" => {
            config.generation = choice(value, &[("v3_0", Generation::V3_0), ("v6_1", Generation::V6_1)])?;
        }
        "min_free_kib" => config.min_free_kib = number(value, 0, u32::MAX)?.into(),
        "watermark_scale" => config.watermark_scale = number(value, 0, 3000)?.into(),
        "boost_factor" => config.boost_factor = number(value, 0, 1 << 20)?.into(),
        "reserve_ratios" => config.reserve_ratios = ratios(value)?,
        "zonelist_order" => {
            config.zonelist_order = choice(
                value,
                &[("node", ListOrder::Node), ("zone", ListOrder::Zone), ("as_v3_0", ListOrder::AsV3_0)],
            )?;
        }
        "zonelist_cache" => {
            config.zonelist_cache = choice(
                value,
                &[
                    ("off", ZonelistCache::Off),
                    ("after_first_zone", ZonelistCache::AfterFirstZone),
                    ("before_first_zone", ZonelistCache::BeforeFirstZone),
                    ("before_first_zone_and_clear", ZonelistCache::BeforeFirstZoneAndClear),
                ],
            )?;
        }
        "zone_reclaim" => config.zone_reclaim = ZoneReclaimMode(number(value, 0, 7)? as u8),
        "rounds" => config.limits.rounds = number(value, 1, u32::MAX)?,
        "rounds_without_progress" => config.limits.without_progress = number(value, 1, u32::MAX)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Ratios by zone type, lowest first, with colons between them: the comma separates settings.
fn ratios(value: &Value) -> core::result::Result<[u64; 4], String> {
    let text = value.to_string();
    let numbers: Option<Vec<u64>> = text.split(':').map(|part| part.parse().ok()).collect();
    numbers.and_then(|numbers| numbers.try_into().ok()).ok_or_else(|| {
        "expected four whole numbers (DMA:DMA32:Normal:Movable), such as 256:256:32:0".to_owned()
    })
}

fn choice<T: Copy>(value: &Value, choices: &[(&str, T)]) -> core::result::Result<T, String> {
    let word = value.to_string();
    choices.iter().find(|(name, _)| *name == word).map(|&(_, choice)| choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|&(name, _)| name).collect();
        format!("expected {}", names.join(", "))
    })
}

fn flag(value: &Value) -> core::result::Result<bool, String> {
    match value {
        Value::Bool(flag) => Ok(*flag),
        _ => Err("expected true or false".to_owned()),
    }
}

fn number(value: &Value, least: u32, most: u32) -> core::result::Result<u32, String> {
    let wrong = || format!("expected a whole number from {least} to {most}");
    match value {
        Value::Integer(number) => {
            u32::try_from(*number).ok().filter(|n| (least..=most).contains(n)).ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(pairs: &str) -> Result<Setup> {
        Setup::from_settings(&Settings::from_pairs(pairs)?)
    }

    fn refusal(pairs: &str) -> String {
        setup(pairs).expect_err("refused").to_string()
    }

    #[test]
    fn settings_apply_in_order() {
        let it =
            setup("preset=linux_v5_4,batch=7,high=42,lock_kind=ticket,descriptor_bytes=64").expect("valid");
        assert_eq!(it.config.pcp_fixed, Some(PcpFixed { batch: 7, high: 42 }));
        assert_eq!(it.config.pcp_rule, PcpRule::V5_4);
        assert_eq!(it.config.lock_kind, LockKind::Ticket);
        assert_eq!(it.descriptor, Descriptor::Struct64);
        assert_eq!(setup("high=42").expect("valid").config.pcp_fixed, Some(PcpFixed { batch: 7, high: 42 }));
    }

    #[test]
    fn pressure_is_configured_by_name() {
        let it = setup(
            "preset=linux_v3_0,zonelist_cache=before_first_zone,zone_reclaim=5,min_free_kib=4096,\
             reserve_ratios=256:128:32:0,zonelist_order=zone,rounds=9,keep_marks=false",
        )
        .expect("valid");
        let expected = Config {
            zonelist_cache: ZonelistCache::BeforeFirstZone,
            zone_reclaim: ZoneReclaimMode::ON.and(ZoneReclaimMode::UNMAP),
            min_free_kib: 4096,
            reserve_ratios: [256, 128, 32, 0],
            zonelist_order: ListOrder::Zone,
            keep_marks: false,
            ..Config::linux_v3_0()
        };
        assert_eq!(it.config.limits.rounds, 9);
        assert_eq!(Config { limits: expected.limits, ..it.config }, expected);
        assert!(refusal("reserve_ratios=256:256").contains("256:256:32:0"));
        assert!(refusal("zone_reclaim=8").contains("from 0 to 7"));
        assert!(refusal("zonelist_cash=off").contains("did you mean `zonelist_cache`?"));
        assert_eq!(
            setup("watermark_scale=50,boost_factor=0,generation=v6_1").expect("valid").config,
            Config { watermark_scale: 50, boost_factor: 0, ..Config::framewright() }
        );
    }

    #[test]
    fn wrong_settings_say_what_is_taken() {
        assert!(refusal("lock_kind=mcs").contains("expected ticket, queued"));
        assert!(refusal("lock_kinds=ticket").contains("did you mean `lock_kind`?"));
        assert!(refusal("batch=0").contains("from 1 to"));
        assert!(refusal("lock_timing=1").contains("true or false"));
        assert!(refusal("descriptor_bytes=32").contains("8 or 64"));
    }

    #[test]
    fn every_name_is_a_setting() {
        for name in NAMES {
            let refused = Setup::default().set(name, &Value::Text("no such value".to_owned()));
            let what = refused.expect_err("no setting takes this");
            assert!(!what.contains("no such setting"), "{name}");
        }
    }
}
