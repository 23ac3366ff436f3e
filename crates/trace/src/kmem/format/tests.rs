use super::{Field, Format, field};
use crate::kmem::{Decoded, Layout, Page};
use crate::trace::EventKind;
use proptest::prelude::*;

/// As the kernel of that version writes them, x86-64.
const ALLOC_6_18: &str = include_str!("../../../tests/data/format-6.18/mm_page_alloc");
const FREE_6_18: &str = include_str!("../../../tests/data/format-6.18/mm_page_free");
const BATCHED_6_18: &str = include_str!("../../../tests/data/format-6.18/mm_page_free_batched");
const LOCKED_6_18: &str = include_str!("../../../tests/data/format-6.18/mm_page_alloc_zone_locked");
const RENAME_6_18: &str = include_str!("../../../tests/data/format-6.18/task_rename");

/// As a real-time kernel lays it out, which has one more common field, with flags of 32 bits and without
/// `signed`.
const ALLOC_SHIFTED: &str = "\
name: mm_page_alloc
ID: 412
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;
\tfield:unsigned char common_preempt_lazy_count;\toffset:8;\tsize:1;

\tfield:unsigned long pfn;\toffset:16;\tsize:8;\tsigned:0;
\tfield:unsigned int order;\toffset:24;\tsize:4;\tsigned:0;
\tfield:gfp_t gfp_flags;\toffset:28;\tsize:4;\tsigned:0;
\tfield:int migratetype;\toffset:32;\tsize:4;\tsigned:1;

print fmt: \"page=%p pfn=%lu\", REC->pfn, REC->order
";

fn layout(text: &str) -> Layout {
    Layout::new(&Format::parse(text).unwrap()).unwrap().expect("one of our events")
}

/// An event of `length` bytes with these numbers at these offsets.
fn event(length: usize, numbers: &[(usize, &[u8])]) -> Vec<u8> {
    let mut event = vec![0xee; length];
    for &(offset, bytes) in numbers {
        event[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    event
}

#[test]
fn formats_of_a_running_kernel() {
    let format = Format::parse(ALLOC_6_18).unwrap();
    assert_eq!((format.name.as_str(), format.id), ("mm_page_alloc", 653));
    assert_eq!(format.find("common_pid"), Some(Field { offset: 4, size: 4, signed: true }));
    assert_eq!(format.find("gfp_flags"), Some(Field { offset: 24, size: 8, signed: false }));
    assert_eq!(format.find("page"), None);
    let rename = Format::parse(RENAME_6_18).unwrap();
    assert_eq!(rename.find("newcomm"), Some(Field { offset: 28, size: 16, signed: false }));
    assert_eq!(rename.need("pfn"), Err("event task_rename has no field pfn".into()));
}

#[test]
fn both_layouts_decode_to_the_same() {
    let page =
        Page { kind: EventKind::PageAlloc, pfn: 0x12_dc61, order: 9, migratetype: Some(1), gfp: 0xcc0 };
    let (pfn, gfp) = (0x12_dc61_u64.to_ne_bytes(), 0xcc0_u64.to_ne_bytes());
    let modern = event(40, &[(8, &pfn), (16, &[9, 0, 0, 0]), (24, &gfp), (32, &[1, 0, 0, 0])]);
    let shifted = event(36, &[(16, &pfn), (24, &[9, 0, 0, 0]), (28, &gfp[..4]), (32, &[1, 0, 0, 0])]);
    assert_eq!(layout(ALLOC_6_18).decode(&modern), Ok(Decoded::Page(page)));
    assert_eq!(layout(ALLOC_SHIFTED).decode(&shifted), Ok(Decoded::Page(page)));
}

#[test]
fn frees_have_what_their_tracepoints_report() {
    let event = event(20, &[(8, &77_u64.to_ne_bytes()), (16, &[3, 0, 0, 0])]);
    let page = Page { kind: EventKind::PageFree, pfn: 77, order: 3, migratetype: None, gfp: 0 };
    assert_eq!(layout(FREE_6_18).decode(&event), Ok(Decoded::Page(page)));
    let page = Page { kind: EventKind::PageFreeBatched, order: 0, ..page };
    assert_eq!(layout(BATCHED_6_18).decode(&event), Ok(Decoded::Page(page)));
}

#[test]
fn an_allocation_without_a_page_is_told_apart() {
    let event = event(40, &[(8, &[0xff; 8]), (16, &[0; 24])]);
    assert_eq!(layout(ALLOC_6_18).decode(&event), Ok(Decoded::NoPage));
}

/// Linux 6.12 and later report when such a page is given back, and not when one is put together.
#[test]
fn a_huge_page_of_a_gibibyte_is_no_block() {
    let event = event(20, &[(8, &(1_u64 << 18).to_ne_bytes()), (16, &[18, 0, 0, 0])]);
    assert_eq!(layout(FREE_6_18).decode(&event), Ok(Decoded::NoBlock));
}

#[test]
fn what_no_trace_can_hold_is_refused() {
    let event = |pfn: u64, order: u32, migratetype: i32| {
        let (pfn, order, migratetype) = (pfn.to_ne_bytes(), order.to_ne_bytes(), migratetype.to_ne_bytes());
        let event = event(28, &[(8, &pfn), (16, &order), (20, &migratetype)]);
        layout(LOCKED_6_18).decode(&event)
    };
    assert!(event(5, 10, 5).is_ok());
    assert_eq!(event(5, 31, 5), Err("mm_page_alloc_zone_locked of order 31, above 30".into()));
    assert_eq!(event(5, 0, -1), Err("mm_page_alloc_zone_locked of migratetype -1".into()));
    assert_eq!(
        event(1 << 52, 0, 0),
        Err("mm_page_alloc_zone_locked of pfn 0x10000000000000, which is no frame number".into())
    );
}

#[test]
fn events_cut_short_are_refused() {
    let event = [0; 40];
    for length in 0..36 {
        let cut = layout(ALLOC_6_18).decode(&event[..length]);
        assert_eq!(cut, Err(format!("a mm_page_alloc event of only {length} bytes")));
    }
    assert!(layout(ALLOC_6_18).decode(&event[..36]).is_ok());
}

#[test]
fn formats_that_say_too_little_are_refused() {
    assert_eq!(Format::parse(""), Err("a format without a name".into()));
    assert_eq!(Format::parse("name: x\n"), Err("the format of x has no ID".into()));
    assert_eq!(Format::parse("name: x\nID: 70000\n"), Err("the format of x has no ID".into()));
    let line = "field:int a; offset:; size:4;";
    assert_eq!(
        Format::parse(&format!("name: x\nID: 7\nformat:\n\t{line}\n")),
        Err(format!("cannot read the format line {line:?}"))
    );
    // A kernel of before 2011 reports the address of a page structure instead.
    let old =
        Format::parse("name: mm_page_free\nID: 7\nformat:\n\tfield:struct page * page; offset:8; size:8;\n")
            .unwrap();
    assert_eq!(Layout::new(&old).unwrap_err(), "event mm_page_free has no field pfn");
    assert!(Layout::new(&Format::parse(RENAME_6_18).unwrap()).unwrap().is_none());
}

#[test]
fn declarations_of_all_shapes() {
    let name =
        |declaration: &str| field(&format!("field:{declaration};\toffset:8;\tsize:4;\tsigned:0;")).unwrap().0;
    assert_eq!(name("unsigned long pfn"), "pfn");
    assert_eq!(name("char newcomm[16]"), "newcomm");
    assert_eq!(name("__data_loc char[] parent_comm"), "parent_comm");
    assert_eq!(name("struct page *page"), "page");
    assert_eq!(name(" u64 timestamp"), "timestamp");
}

proptest! {
    #[test]
    fn any_text_and_any_bytes_are_an_answer(text in "\\PC*", event in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Format::parse(&text);
        let _ = Format::parse(&format!("name: mm_page_alloc\nID: 1\nformat:\n\tfield:{text}\n"));
        let _ = layout(ALLOC_6_18).decode(&event);
        let _ = layout(ALLOC_SHIFTED).decode(&event);
    }

    #[test]
    fn any_field_is_read_or_refused(offset: usize, size: usize, signed: bool, event in prop::collection::vec(any::<u8>(), 0..64)) {
        let field = Field { offset, size, signed };
        let _ = (field.integer(&event), field.text(&event));
    }

    #[test]
    fn integers_keep_value_and_sign(value: i32, offset in 0_usize..8) {
        let mut event = [0xaa; 12];
        event[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        let field = |signed| Field { offset, size: 4, signed };
        prop_assert_eq!(field(true).integer(&event), Some(i64::from(value).cast_unsigned()));
        prop_assert_eq!(field(false).integer(&event), Some(u64::from(value.cast_unsigned())));
        prop_assert_eq!(field(true).integer(&event[..offset + 3]), None);
    }
}
