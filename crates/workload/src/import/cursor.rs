//! Reading numbers and strings off bytes, never past their end.

use super::ENDED_THREAD;
use crate::kmem::format::ByteOrder;

/// What is wrong with a file, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Offset in bytes from the start of the file.
    pub(super) at: u64,
    /// What is wrong there.
    pub(super) what: String,
    /// What to do about it, if it is not to record again.
    pub(super) fix: Option<&'static str>,
}

impl Fault {
    pub(super) fn new(at: usize, what: impl Into<String>) -> Self {
        Self { at: at as u64, what: what.into(), fix: None }
    }
}

/// A place in a file and the end of what may be read there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
    order: ByteOrder,
    /// What is being read, for messages.
    part: &'static str,
}

impl<'a> Cursor<'a> {
    /// At the start of a whole file.
    pub(super) const fn new(file: &'a [u8], order: ByteOrder, part: &'static str) -> Self {
        Self { file, at: 0, order, part }
    }

    /// At the start of a part of the file, bounded by its end. The part may not reach past what `self` may
    /// read.
    pub(super) fn section(&self, start: u64, length: u64, part: &'static str) -> Result<Self, Fault> {
        let inside = |start: usize, length: usize| {
            let end = start.checked_add(length)?;
            Some(Self { file: self.file.get(..end)?, at: start, order: self.order, part })
        };
        let section = usize::try_from(start).ok().zip(usize::try_from(length).ok());
        section.and_then(|(start, length)| inside(start, length)).ok_or_else(|| {
            let what = format!(
                "{part} of {length} bytes at byte {start} would end after the {} bytes there are",
                self.file.len()
            );
            Fault::new(self.at, what)
        })
    }

    /// Offset from the start of the file.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// Bytes left.
    pub(super) const fn left(&self) -> usize {
        self.file.len() - self.at
    }

    pub(super) const fn order(&self) -> ByteOrder {
        self.order
    }

    pub(super) fn is_big_endian(&self) -> bool {
        self.order == ByteOrder::Big
    }

    pub(super) const fn set_order(&mut self, order: ByteOrder) {
        self.order = order;
    }

    /// A fault where the cursor is.
    pub(super) fn fault(&self, what: impl Into<String>) -> Fault {
        Fault::new(self.at, what)
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let rest = &self.file[self.at..];
        let Some(bytes) = rest.get(..length) else {
            return Err(Fault::new(
                self.file.len(),
                format!("{} ends here, {} bytes too early", self.part, length - rest.len()),
            ));
        };
        self.at += length;
        Ok(bytes)
    }

    /// The next `length` bytes, whose number the file says.
    pub(super) fn take_counted(&mut self, length: u64) -> Result<&'a [u8], Fault> {
        match usize::try_from(length) {
            Ok(length) => self.take(length),
            Err(_) => Err(self.fault(format!("{} has an impossible length", self.part))),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Fault> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Fault> {
        let bytes = self.array()?;
        Ok(if self.order == ByteOrder::Big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        let bytes = self.array()?;
        Ok(if self.order == ByteOrder::Big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        let bytes = self.array()?;
        Ok(if self.order == ByteOrder::Big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }

    /// A process and a thread of it: the thread's number. `u32::MAX` is how the kernel names one that has
    /// ended and has none any more; it becomes [`ENDED_THREAD`].
    pub(super) fn thread(&mut self) -> Result<u32, Fault> {
        let at = *self;
        let (_process, thread) = (self.u32()?, self.u32()?);
        match i32::try_from(thread) {
            Ok(_) => Ok(thread),
            Err(_) if thread == u32::MAX => Ok(ENDED_THREAD),
            Err(_) => Err(at.fault(format!("a thread of number {thread}, which no kernel gives"))),
        }
    }

    /// Passes over `count` numbers of 64 bits.
    pub(super) fn skip_u64s(&mut self, count: u64) -> Result<(), Fault> {
        self.take_counted(count.saturating_mul(8)).map(|_| ())
    }

    /// Text up to a zero, which is passed over.
    pub(super) fn text(&mut self) -> Result<&'a [u8], Fault> {
        let rest = &self.file[self.at..];
        let Some(length) = rest.iter().position(|&byte| byte == 0) else {
            return Err(Fault::new(self.file.len(), format!("{} ends here, within a text", self.part)));
        };
        self.at += length + 1;
        Ok(&rest[..length])
    }
}
