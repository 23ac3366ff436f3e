use super::Layout;
use proptest::prelude::*;

const HEADER_PAGE_6_18: &str = include_str!("../../../tests/data/format-6.18/header_page");
const HEADER_EVENT_6_18: &str = include_str!("../../../tests/data/format-6.18/header_event");

fn layout() -> Layout {
    Layout::parse(HEADER_PAGE_6_18, HEADER_EVENT_6_18).unwrap()
}

/// A word that begins an event.
fn word(kind: u32, delta: u32) -> [u8; 4] {
    if cfg!(target_endian = "big") { kind << 27 | delta } else { delta << 5 | kind }.to_ne_bytes()
}

/// A page that starts at `time`, with `flags` beside the length of its data.
fn page(time: u64, flags: u64, data: &[&[u8]]) -> Vec<u8> {
    let data = data.concat();
    let mut page = time.to_ne_bytes().to_vec();
    page.extend((data.len() as u64 | flags).to_ne_bytes());
    page.extend(data);
    page
}

/// Times and payloads.
type Events = Vec<(u64, Vec<u8>)>;

/// All events of a page, and how many were lost before.
fn read(page: &[u8]) -> Result<(Events, u64), String> {
    let mut events = Vec::new();
    let lost = layout().events(page, |time, payload| events.push((time, payload.to_vec())))?;
    Ok((events, lost))
}

#[test]
fn every_type_of_event() {
    let page = page(
        1000,
        0,
        &[
            // Eight bytes of payload, 5 after the page's time.
            &word(2, 5),
            b"01234567",
            // A gap of 2^27 + 3.
            &word(30, 3),
            &1_u32.to_ne_bytes(),
            &word(1, 4),
            b"abcd",
            // Discarded: padding of 12 bytes in all.
            &word(29, 9),
            &8_u32.to_ne_bytes(),
            &[0xff; 4],
            // A length of its own: the word and six bytes, padded.
            &word(0, 0),
            &10_u32.to_ne_bytes(),
            b"longer",
            &[0xff; 2],
            // An absolute time, then an event at it.
            &word(31, 7),
            &2_u32.to_ne_bytes(),
            &word(1, 0),
            b"last",
            // The rest of the page is unused.
            &word(29, 0),
            &[0xff; 12],
        ],
    );
    let gap = (1 << 27) + 3;
    let events = [
        (1005, b"01234567".to_vec()),
        (1005 + gap + 4, b"abcd".to_vec()),
        (1005 + gap + 4, b"longer".to_vec()),
        ((2 << 27) + 7, b"last".to_vec()),
    ];
    assert_eq!(read(&page), Ok((events.to_vec(), 0)));
}

#[test]
fn an_absolute_time_takes_its_high_bits_from_the_time_before() {
    let stamp = |time: u64, low: u64| {
        let (word, high) =
            (word(31, u32::try_from(low & ((1 << 27) - 1)).unwrap()), u32::try_from(low >> 27).unwrap());
        let page = page(time, 0, &[&word, &high.to_ne_bytes(), &self::word(1, 0), b"abcd"]);
        read(&page).unwrap().0[0].0
    };
    let top = 3 << 59;
    assert_eq!(stamp(top | 100, 200), top | 200);
    // A little before: a clock may step back.
    assert_eq!(stamp(top | 200, 100), top | 100);
    // Run over since.
    assert_eq!(stamp(top | ((1 << 59) - 1), 5), (4 << 59) | 5);
}

#[test]
fn lost_events_are_told() {
    let event = [&word(1, 0)[..], b"abcd"].concat();
    assert_eq!(read(&page(0, 1 << 31, &[&event])).unwrap().1, 1);
    let mut counted = page(0, 3 << 30, &[&event]);
    counted.extend(42_u64.to_ne_bytes());
    assert_eq!(read(&counted).unwrap().1, 42);
    // Said to be stored, but cut off: at least one.
    counted.pop();
    assert_eq!(read(&counted).unwrap().1, 1);
}

#[test]
fn cut_pages_are_refused_or_shorter() {
    let page = page(7, 0, &[&word(2, 5), b"01234567", &word(0, 1), &8_u32.to_ne_bytes(), b"wxyz"]);
    assert_eq!(read(&page).unwrap().0.len(), 2);
    for length in 0..page.len() {
        assert!(read(&page[..length]).is_err(), "cut to {length} bytes");
    }
    let shorter = |data: &[&[u8]]| read(&self::page(7, 0, data)).unwrap_err();
    assert_eq!(shorter(&[&word(28, 5), b"0123"]), "an event cut off at byte 0 of its page");
    assert_eq!(shorter(&[&word(1, 0), b"abcd", &word(0, 1)]), "an event cut off at byte 8 of its page");
    assert_eq!(shorter(&[&word(0, 1), &2_u32.to_ne_bytes()]), "an event cut off at byte 0 of its page");
}

#[test]
fn the_kernels_own_description_is_read() {
    assert_eq!(layout().page_bytes(), 4096);
    let larger = HEADER_PAGE_6_18.replace("size:4080", "size:65520");
    assert_eq!(Layout::parse(&larger, HEADER_EVENT_6_18).unwrap().page_bytes(), 65536);
    assert_eq!(Layout::parse("", HEADER_EVENT_6_18), Err("header_page has no field timestamp".into()));
    assert_eq!(Layout::parse(HEADER_PAGE_6_18, ""), Err("header_event says nothing of padding".into()));
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer(page in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = read(&page);
    }

    /// Headers that fit, so that the events are looked at.
    #[test]
    fn any_data_are_an_answer(words in prop::collection::vec((0..32_u32, 0..9_u32, 0..40_u32), 0..64)) {
        let data: Vec<[u8; 8]> = words
            .iter()
            .map(|&(kind, delta, next)| {
                let mut bytes = [0; 8];
                bytes[..4].copy_from_slice(&word(kind, delta));
                bytes[4..].copy_from_slice(&next.to_ne_bytes());
                bytes
            })
            .collect();
        let data: Vec<&[u8]> = data.iter().map(|bytes| &bytes[..]).collect();
        let _ = read(&page(5, 0, &data));
    }
}
