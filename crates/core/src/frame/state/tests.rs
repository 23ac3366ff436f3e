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
        assert_eq!(info.isolated_by(None).before_isolation(), mt);
        assert_eq!(info.isolated_by(None).migratetype(), Migratetype::Isolate);
        assert_eq!(info.isolated_by(None).zone(), ZoneId(255));
    }
    assert!(!BlockInfo(0).is_present());
}

/// Each property of a pageblock changes alone.
#[test]
fn properties_of_a_pageblock_are_apart() {
    for mt in Migratetype::ALL {
        let holders = [None, Some(CpuId(0)), Some(CpuId(0xa5)), Some(CpuId(u16::MAX - 1))];
        for (n, holder) in (0..4).flat_map(|n| holders.map(|holder| (n, holder))) {
            let [reported, poisoned] = [1, 2].map(|bit| n & bit != 0);
            let base = BlockInfo::new(ZoneId(0xa5), mt);
            let info = base.reported(reported).poisoned(poisoned);
            assert_eq!(info.reported(reported).poisoned(poisoned), info, "twice is once");
            let says = |info: BlockInfo| {
                (info.is_present(), info.zone(), info.is_reported(), info.is_poisoned(), info.holder())
            };
            assert_eq!(says(info), (true, ZoneId(0xa5), reported, poisoned, None));
            assert_eq!((info.migratetype(), info.is_plain()), (mt, mt.is_ordinary() && !poisoned));
            assert_eq!(info.plain_type(), Some(mt).filter(|mt| mt.is_ordinary() && !poisoned));
            let isolated = info.isolated_by(holder);
            assert_eq!(says(isolated), (true, ZoneId(0xa5), reported, poisoned, holder));
            assert_eq!((isolated.migratetype(), isolated.before_isolation()), (Migratetype::Isolate, mt));
            assert_eq!(isolated.reported(!reported).poisoned(!poisoned).before_isolation(), mt);
            assert_eq!(isolated.with_migratetype(mt), info);
            for absent in [0, 1, 300, 511] {
                let short = info.with_absent(400).with_absent(absent);
                assert_eq!((short.absent(), says(short), short.with_absent(0)), (absent, says(info), info));
                assert_eq!((short.migratetype(), short.isolated_by(holder).absent()), (mt, absent));
            }
            let unmovable = BlockInfo::new(ZoneId(0xa5), Migratetype::Unmovable);
            let is_same = !reported && !poisoned && mt.is_ordinary();
            assert_eq!(info.ordinary_as(unmovable), is_same.then_some(mt));
        }
    }
    assert_eq!(BlockInfo::ABSENT.poisoned(true).poisoned(false), BlockInfo::ABSENT);
}

#[test]
fn links_of_a_free_head_are_apart() {
    let last = LINK_MASK as u32;
    for (next, prev) in [(0, last), (last, 0), (last, last), (5, 0x0a5a_5a5a)] {
        let head = FreeHead::new(PAGEBLOCK_ORDER, Migratetype::Isolate, next, prev);
        for (now, then) in [(head.with_next(prev), (prev, prev)), (head.with_prev(next), (next, next))] {
            assert_eq!((now.next(), now.prev(), now.list()), (then.0, then.1, Migratetype::Isolate));
            assert_eq!(FreeHead::of_order(now.word(), PAGEBLOCK_ORDER), Some(now));
        }
        for order in Order::all().filter(|&order| order != PAGEBLOCK_ORDER) {
            assert_eq!(FreeHead::of_order(head.word(), order), None);
        }
    }
    assert_eq!(FreeHead::of_order(State::Reserved.pack(), Order::ZERO), None);
}

#[test]
fn fields_of_an_open_head_are_apart() {
    let last = OpenHead::MASK as u32;
    for (free, largest, next, prev) in
        [(1, 0, 0, last), (63, 3, last, 0), (64, 6, last, last), (511, 8, 7, 0), (512, 8, 0, 0)]
    {
        let head = OpenHead::new(free, largest, next, prev);
        let says = |head: OpenHead| (head.free(), head.largest(), head.next(), head.prev());
        assert_eq!(says(head), (free, largest, next, prev));
        assert_eq!(OpenHead::of(head.word()), Some(head));
        assert_eq!(State::unpack(head.word()), State::Body);
        assert_eq!(OpenHead::is_sparse(head.word(), OpenHead::SPARSE), free >= 64);
        for source in [1, 62, 63, 64, 510, 511, 512] {
            let least = OpenHead::new(source, 3, last, 0).sparser();
            assert_eq!(
                OpenHead::is_sparse(head.word(), least),
                free >= 64 && free > source,
                "{free}, {source}"
            );
        }
        assert_eq!(says(head.with_free(300)), (300, largest, next, prev));
        assert_eq!(says(head.with_next(prev)), (free, largest, prev, prev));
        assert_eq!(says(head.with_prev(next)), (free, largest, next, next));
        assert_eq!(says(head.with_more(17)), (free + 17, largest, next, prev));
        for more in 0..64 {
            let is_in_step = head.with_more(more).is_in_step_with(head);
            assert_eq!(is_in_step, (u64::from(free) + more) / 16 == u64::from(free) / 16, "{free} + {more}");
        }
    }
    let whole = FreeHead::whole(Migratetype::Movable).word();
    let others = [0, State::Reserved.pack(), whole, MARK, (KIND_OPEN + 1) << KIND];
    assert!(
        others
            .iter()
            .all(|&word| OpenHead::of(word).is_none() && !OpenHead::is_sparse(word, OpenHead::SPARSE))
    );
}

/// The tag of a list, and a position on it, are the head word of a block there.
#[test]
fn a_tag_and_a_position_make_a_head() {
    for (cpu, order, asked) in [(0, 0, 0), (u16::MAX, 9, 2), (7, 10, 1)] {
        let (order, asked) = (Order::from_bits(order), Migratetype::ALL[asked]);
        let tag = PlaceTag::new(CpuId(cpu)).on_list(order, asked);
        for position in [0, 1, u32::MAX] {
            let list_place = Some(ListPlace { cpu: CpuId(cpu), position });
            assert_eq!(State::unpack(tag.at(position)), State::Taken { order, asked, list_place });
            assert!(PlaceTag::same_list(tag.at(position), tag.at(3)));
            let elsewhere =
                PlaceTag::new(CpuId(cpu)).on_list(order, Migratetype::ALL[(asked as usize + 1) % 3]);
            assert!(!PlaceTag::same_list(tag.at(position), elsewhere.at(position)));
        }
    }
    let tag = PlaceTag::new(CpuId(5)).on_list(Order::ZERO, Migratetype::Reclaimable);
    let order = Order::from_bits(7);
    assert_eq!(tag.of_order(order), PlaceTag::new(CpuId(5)).on_list(order, Migratetype::Reclaimable));
}
