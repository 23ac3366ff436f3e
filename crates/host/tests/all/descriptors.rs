//! Memory of frame descriptors that goes from one boot to the next.

use framewright::boot::map::Kind;
use framewright::boot::zones::Rules;
use framewright::policy::init::Split;
use framewright::{Config, NodeId};
use framewright_host::{
    Arena, BootMap, BootOptions, DescriptorMemory, Descriptors, FirmwareMap, framewright,
};

fn map(gib: u64) -> BootMap {
    let map = FirmwareMap { ranges: vec![(0, gib << 30, Kind::Usable)], nodes: Vec::new() };
    map.divide(Rules::default(), |_| Ok(())).expect("it is sound")
}

fn options() -> BootOptions {
    BootOptions {
        cpu_nodes: vec![NodeId(0)],
        config: Config::default(),
        split: Split::default(),
        workers: 1,
        descriptors: Descriptors::AsTheyAre,
    }
}

fn boot(arena: &Arena) -> u64 {
    let booting = arena.allocator().begin().expect("it is the first time");
    booting.run();
    booting.finish().expect("nothing is left");
    arena.allocator().verify().expect("all is well").free
}

/// The bytes: all were written, and slots of type `()` have no padding.
fn values(memory: &mut DescriptorMemory) -> &[u8] {
    // SAFETY: as above.
    unsafe { &*(core::ptr::from_ref(memory.as_uninit_mut()) as *const [u8]) }
}

#[test]
fn memory_that_holds_anything_boots_like_new() {
    let map = map(6);
    let arena: Arena = map.build(&options()).expect("it is sound");
    let free = boot(&arena);
    let mut memory = arena.into_descriptors();
    assert_eq!(memory.bytes(), (6 << 18) * 8);
    for byte in [0xff, 0xa5] {
        memory.fill(byte);
        let arena: Arena = map.build_in(&options(), memory).expect("it is sound");
        assert_eq!(boot(&arena), free);
        memory = arena.into_descriptors();
        let ready = values(&mut memory)[..6 << 21].iter().filter(|value| **value != byte).count();
        assert!(ready > 11 << 20, "descriptors were cleared: {ready} bytes");
    }
    memory.forget();
    assert!(values(&mut memory).iter().all(|byte| *byte == 0));
}

#[test]
fn too_small_a_memory_is_replaced() {
    let small: Arena = map(1).build(&options()).expect("it is sound");
    let memory = small.into_descriptors();
    let arena: Arena = map(8).build_in(&options(), memory).expect("it is sound");
    boot(&arena);
    assert!(arena.into_descriptors().bytes() >= (8 << 18) * 8);
}
