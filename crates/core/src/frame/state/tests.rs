use super::*;

#[test]
fn every_state_survives_packing() {
    let list_place = ListPlace { cpu: CpuId(u16::MAX), position: u32::MAX };
    for order in Order::all() {
        for mt in Migratetype::ALL {
            for link in [0, 1, LINK_MASK as u32] {
                let state = State::Free { order, list: mt, next: link, prev: LINK_MASK as u32 - link };
                assert_eq!(State::unpack(state.pack()), state);
            }
            if mt.is_ordinary() {
                for list_place in [None, Some(list_place), Some(ListPlace { cpu: CpuId(0), position: 0 })] {
                    let state = State::Taken { order, asked: mt, list_place };
                    assert_eq!(State::unpack(state.pack()), state);
                }
            }
        }
        assert_eq!(State::unpack(State::Quarantined { order }.pack()), State::Quarantined { order });
    }
    assert_eq!(State::unpack(State::Reserved.pack()), State::Reserved);
    assert_eq!(State::Body.pack(), 0, "zeroed memory is a valid frame map");
    assert_eq!(State::unpack(0), State::Body);
}

#[test]
fn pageblock_info_survives_packing_and_isolation() {
    for mt in Migratetype::ALL {
        let info = BlockInfo::new(ZoneId(255), mt);
        assert!(info.is_present());
        assert_eq!((info.zone(), info.migratetype()), (ZoneId(255), mt));
        assert_eq!(info.isolated_by(false).before_isolation(), mt);
        assert_eq!(info.isolated_by(false).migratetype(), Migratetype::Isolate);
        assert_eq!(info.isolated_by(false).zone(), ZoneId(255));
    }
    assert!(!BlockInfo(0).is_present());
}
