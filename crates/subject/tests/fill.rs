//! The memory of descriptors, filled as initialisation fills it.
#![expect(unsafe_code, reason = "bytes that are read back were all written")]

use framewright::boot::map::Kind;
use framewright::boot::zones::Rules;
use framewright_host::{BootOptions, Config, Descriptors, FirmwareMap};
use framewright_subject::boot::fill;
use framewright_subject::{Descriptor, Subject};

#[test]
fn all_of_a_range_is_filled_by_any_number_of_threads_and_no_other_byte() {
    let mut map = FirmwareMap::default();
    // Five sections of 128 MiB and a bit.
    map.ranges.push((4 << 30, 645 << 20, Kind::Usable));
    let map = map.divide(Rules::default(), |_| Ok(())).expect("one zone");
    let options = BootOptions {
        cpu_nodes: vec![framewright::NodeId(0)],
        config: Config::framewright(),
        split: framewright::policy::init::Split::default(),
        workers: 1,
        descriptors: Descriptors::AsTheyAre,
    };
    let subject = Subject::of_map(&map, &options, Descriptor::Struct64).expect("it is sound");
    let mut descriptors = subject.into_descriptors();
    for threads in 1..4 {
        descriptors.fill(1);
        let bytes = descriptors.bytes();
        assert!(fill(&mut descriptors, 64..bytes - 64, threads, 64) > 0.0);
        // SAFETY: all bytes have been filled.
        let filled = |byte: &core::mem::MaybeUninit<u8>| unsafe { byte.assume_init() };
        let found: Vec<u8> = descriptors.as_uninit_mut().iter().map(filled).collect();
        let zeroes = found.iter().filter(|byte| **byte == 0).count();
        assert_eq!((zeroes, found[63], found[bytes - 64]), (bytes - 128, 1, 1), "{threads} threads");
    }
}
