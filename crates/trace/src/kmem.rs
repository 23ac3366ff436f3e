//! Page-allocator events as a kernel lays them out: what recording and importing have in common.

pub(crate) mod format;
pub(crate) mod gfp;
pub(crate) mod report;

use crate::trace::{EventKind, MAX_ORDER, PFN_LIMIT};
use format::{Field, Format};

/// What a kmem event says, apart from when and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) kind: EventKind,
    pub(crate) pfn: u64,
    pub(crate) order: u8,
    pub(crate) migratetype: Option<u8>,
    pub(crate) gfp: u64,
}

/// A kmem event, an allocation that got no page, or an event of memory that is no block of the buddy lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    Page(Page),
    NoPage,
    NoBlock,
}

/// Largest order of a huge page that is put together from a range of frames: above any machine's.
const LARGEST: u64 = 30;

/// Where one kind of kmem event keeps its fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    kind: EventKind,
    pfn: Field,
    order: Option<Field>,
    migratetype: Option<Field>,
    gfp: Option<Field>,
}

impl Layout {
    /// The layout that a kernel describes; `None` if it is not one of our events.
    pub(crate) fn new(format: &Format) -> Result<Option<Self>, String> {
        let Some(kind) = EventKind::from_name(&format.name) else { return Ok(None) };
        let when = |is_there: bool, name| is_there.then(|| format.need(name)).transpose();
        let is_free = matches!(kind, EventKind::PageFree | EventKind::PageFreeBatched);
        Ok(Some(Self {
            kind,
            pfn: format.need("pfn")?,
            order: when(kind != EventKind::PageFreeBatched, "order")?,
            migratetype: when(!is_free, "migratetype")?,
            gfp: when(kind == EventKind::PageAlloc, "gfp_flags")?,
        }))
    }

    /// What an event of this layout says.
    pub(crate) fn decode(&self, event: &[u8]) -> Result<Decoded, String> {
        let short = || format!("a {} event of only {} bytes", self.kind, event.len());
        let get = |field: Field| field.integer(event).ok_or_else(short);
        let optional = |field: Option<Field>| field.map(get).transpose();

        let pfn = get(self.pfn)?;
        // The kernel writes -1 for "no page", in a field of its word size.
        if pfn == u64::MAX >> (64 - 8 * self.pfn.size) {
            return Ok(Decoded::NoPage);
        }
        let (order, migratetype) = (optional(self.order)?, optional(self.migratetype)?);
        page(self.kind, pfn, order.unwrap_or(0), migratetype, optional(self.gfp)?.unwrap_or(0))
            .map(|page| page.map_or(Decoded::NoBlock, Decoded::Page))
    }
}

/// An event of these values, if a trace can hold them; none for a huge page of gigabytes, of which Linux from 6.12 on
/// tells when it is given back, and not when it is put together.
pub(crate) fn page(
    kind: EventKind,
    pfn: u64,
    order: u64,
    migratetype: Option<u64>,
    gfp: u64,
) -> Result<Option<Page>, String> {
    if pfn >= PFN_LIMIT {
        return Err(format!("{kind} of pfn {pfn:#x}, which is no frame number"));
    }
    if order > LARGEST {
        return Err(format!("{kind} of order {}, above {LARGEST}", order.cast_signed()));
    }
    let order = order as u8;
    if order > MAX_ORDER {
        return Ok(None);
    }
    let migratetype = match migratetype {
        None => None,
        Some(number) => match i8::try_from(number) {
            Ok(number) => Some(number.cast_unsigned()),
            Err(_) => return Err(format!("{kind} of migratetype {}", number.cast_signed())),
        },
    };
    Ok(Some(Page { kind, pfn, order, migratetype, gfp }))
}
