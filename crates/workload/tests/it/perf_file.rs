//! `perf.data` files made for tests: what the recorded one does not hold.

/// How a file is laid out.
#[derive(Clone)]
pub(crate) struct PerfFile {
    pub(crate) big_endian: bool,
    /// `(sample_type, read_format, numbers of the event)` of each recorded event.
    pub(crate) events: Vec<(u64, u64, Vec<u64>)>,
    /// Type, flags and body of each record.
    pub(crate) records: Vec<(u32, u16, Vec<u8>)>,
}

pub(crate) const IP: u64 = 1 << 0;
pub(crate) const TID: u64 = 1 << 1;
pub(crate) const TIME: u64 = 1 << 2;
pub(crate) const ADDR: u64 = 1 << 3;
pub(crate) const READ: u64 = 1 << 4;
pub(crate) const CALLCHAIN: u64 = 1 << 5;
pub(crate) const ID: u64 = 1 << 6;
pub(crate) const CPU: u64 = 1 << 7;
pub(crate) const PERIOD: u64 = 1 << 8;
pub(crate) const STREAM_ID: u64 = 1 << 9;
pub(crate) const RAW: u64 = 1 << 10;
pub(crate) const IDENTIFIER: u64 = 1 << 16;

const FORMATS: [&str; 2] =
    [include_str!("../data/format-6.18/mm_page_alloc"), include_str!("../data/format-6.18/mm_page_free")];
pub(crate) const ALLOC_ID: u16 = 653;
pub(crate) const FREE_ID: u16 = 655;

impl PerfFile {
    pub(crate) fn n16(&self, number: u16) -> Vec<u8> {
        if self.big_endian { number.to_be_bytes() } else { number.to_le_bytes() }.to_vec()
    }

    pub(crate) fn n32(&self, number: u32) -> Vec<u8> {
        if self.big_endian { number.to_be_bytes() } else { number.to_le_bytes() }.to_vec()
    }

    pub(crate) fn n64(&self, number: u64) -> Vec<u8> {
        if self.big_endian { number.to_be_bytes() } else { number.to_le_bytes() }.to_vec()
    }

    /// Two numbers that share 64 bits.
    pub(crate) fn pair(&self, first: u32, second: u32) -> Vec<u8> {
        [self.n32(first), self.n32(second)].concat()
    }

    /// The tracepoint's fields of a free, after the length that precedes them in a sample.
    pub(crate) fn raw_free(&self, pfn: u64, order: u32) -> Vec<u8> {
        let fields = [self.n16(FREE_ID), vec![0; 6], self.n64(pfn), self.n32(order)].concat();
        [self.n32(u32::try_from(fields.len()).unwrap()), fields].concat()
    }

    /// The same of an allocation.
    pub(crate) fn raw_alloc(&self, pfn: u64, order: u32, migratetype: u32, gfp: u64) -> Vec<u8> {
        let head = [self.n16(ALLOC_ID), vec![0; 6], self.n64(pfn), self.n32(order), vec![0; 4]].concat();
        let fields = [head, self.n64(gfp), self.n32(migratetype)].concat();
        [self.n32(u32::try_from(fields.len()).unwrap()), fields].concat()
    }

    /// The file: header, events' numbers, attributes, records, features.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        const HEADER: usize = 104;
        const ATTR: usize = 64;
        let (mut ids, mut attrs) = (Vec::new(), Vec::new());
        for (sample_type, read_format, numbers) in &self.events {
            let at = (HEADER + ids.len()) as u64;
            ids.extend(numbers.iter().flat_map(|&number| self.n64(number)));
            let sample_id_all = if self.big_endian { 1 << (63 - 18) } else { 1 << 18 };
            // Type 2 is a tracepoint.
            let mut attr =
                [self.pair(2, 64), vec![0; 16], self.n64(*sample_type), self.n64(*read_format)].concat();
            attr.extend(self.n64(sample_id_all));
            attr.resize(ATTR, 0);
            attrs.extend([attr, self.n64(at), self.n64(8 * numbers.len() as u64)].concat());
        }
        let mut data = Vec::new();
        for (kind, flags, body) in &self.records {
            let size = u16::try_from(8 + body.len()).unwrap();
            data.extend([self.n32(*kind), self.n16(*flags), self.n16(size), body.clone()].concat());
        }
        let (attrs_at, data_at) = (HEADER + ids.len(), HEADER + ids.len() + attrs.len());
        let table_at = data_at + data.len();
        let tracing = self.tracing_data();
        let release = [self.n32(8), b"6.18.0\0\0".to_vec()].concat();

        let magic = if self.big_endian { b"2ELIFREP" } else { b"PERFILE2" };
        let section = |at: usize, length: usize| [self.n64(at as u64), self.n64(length as u64)].concat();
        [
            magic.to_vec(),
            self.n64(HEADER as u64),
            self.n64(ATTR as u64 + 16),
            section(attrs_at, attrs.len()),
            section(data_at, data.len()),
            section(0, 0),
            // Features: tracing data, kernel release.
            self.n64(1 << 1 | 1 << 4),
            vec![0; 24],
            ids,
            attrs,
            data,
            section(table_at + 32, tracing.len()),
            section(table_at + 32 + tracing.len(), release.len()),
            tracing,
            release,
        ]
        .concat()
    }

    fn tracing_data(&self) -> Vec<u8> {
        let counted = |text: &[u8]| [self.n64(text.len() as u64), text.to_vec()].concat();
        let mut data = b"\x17\x08\x44tracing0.6\0".to_vec();
        data.extend([u8::from(self.big_endian), 8]);
        data.extend(self.n32(4096));
        for name in [b"header_page\0".as_slice(), b"header_event\0"] {
            data.extend([name.to_vec(), counted(b"any")].concat());
        }
        // No events of ftrace itself; of two groups, one that is not ours.
        data.extend([self.n32(0), self.n32(2)].concat());
        data.extend([b"sched\0".to_vec(), self.n32(1), counted(b"not a format")].concat());
        data.extend([b"kmem\0".to_vec(), self.n32(2)].concat());
        for format in FORMATS {
            data.extend(counted(format.as_bytes()));
        }
        data
    }
}
