//! Other people's crates at work on the kernel's frames: a disk is read and written, and pages are mapped.
#![expect(unsafe_code, reason = "blocks are read and written")]

use core::fmt::Write;
use core::{ptr, slice, str};

use framewright::units::PAGEBLOCK_ORDER;
use framewright::{Migratetype, Order, Pfn};
use virtio_drivers::device::blk::{SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::bus::{Command, PciRoot};
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};
use x86_64::structures::paging::mapper::CleanUp;
use x86_64::structures::paging::page::PageRangeInclusive;
use x86_64::structures::paging::{
    Mapper, Page, PageSize, PageTableFlags, PhysFrame, Size2MiB, Size4KiB, Translate,
};
use x86_64::{PhysAddr, VirtAddr};

use super::support::Rng;
use crate::clients::{disk, pci, tables};
use crate::kernel::{Kernel, memory};
use crate::log;
use crate::paging::PAGE;

type Disk = VirtIOBlk<disk::Frames, PciTransport>;

/// Sectors hold their number as text, filled up with spaces. `kernel/test` writes them so, and looks at what is there
/// afterwards.
struct Text<'s>(&'s mut [u8]);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let (front, rest) =
            core::mem::take(&mut self.0).split_at_mut_checked(text.len()).ok_or(core::fmt::Error)?;
        front.copy_from_slice(text.as_bytes());
        self.0 = rest;
        Ok(())
    }
}

fn find_disk() -> Disk {
    let mut root = PciRoot::new(pci::Ports);
    let is_disk = |info: &_| virtio_device_type(info) == Some(DeviceType::Block);
    let (device, _) =
        root.enumerate_bus(0).find(|(_, info)| is_disk(info)).expect("a virtio disk: kernel/run --disk FILE");
    root.set_command(device, Command::MEMORY_SPACE | Command::BUS_MASTER);
    let transport = PciTransport::new::<disk::Frames, _>(&mut root, device).expect("a transport");
    VirtIOBlk::new(transport).expect("a disk")
}

/// A block of frames as a buffer.
struct Buffer(&'static Kernel, Pfn, Order);

impl Buffer {
    fn new(kernel: &'static Kernel, order: Order) -> Self {
        let pfn = kernel.alloc(order, Migratetype::Unmovable).unwrap_or_else(|error| panic!("{error}"));
        Self(kernel, pfn, order)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the block is ours.
        unsafe { slice::from_raw_parts_mut(memory(self.1), (PAGE << self.2.get()) as usize) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.0.free(self.1, self.2).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Reads every sector into blocks of all sizes, writes every sector from others, and reads it again.
pub(super) fn disk(kernel: &'static Kernel) {
    let mut disk = find_disk();
    let sectors = disk.capacity() as usize;
    let mut rng = Rng::new(7);
    let (mut at, mut blocks) = (0, 0);
    while at < sectors {
        let order = Order::new(rng.below(6) as u8).expect("an order");
        let (mut buffer, mut again) = (Buffer::new(kernel, order), Buffer::new(kernel, order));
        let bytes = buffer.bytes().len().min((sectors - at) * SECTOR_SIZE);
        let (old, new) = (&mut buffer.bytes()[..bytes], &mut again.bytes()[..bytes]);
        disk.read_blocks(at, old).expect("a read");
        for (n, sector) in old.chunks_exact_mut(SECTOR_SIZE).enumerate() {
            let number = str::from_utf8(sector).ok().and_then(|text| text.trim_ascii_end().parse().ok());
            assert_eq!(number, Some(at + n), "what the disk has in sector {}", at + n);
            sector.fill(b' ');
            write!(Text(sector), "framewright {}", at + n).expect("a sector has room");
        }
        disk.write_blocks(at, old).expect("a write");
        disk.read_blocks(at, new).expect("a read");
        assert_eq!(old, new, "what was written to sectors from {at} on");
        (at, blocks) = (at + bytes / SECTOR_SIZE, blocks + 2);
    }
    disk.flush().expect("a flush");
    log!("disk: {sectors} sectors read, written and read again, in {blocks} blocks");
}

/// Address at which pages are mapped for a while, in a part that no other code uses.
const SCRATCH: u64 = 0xffff_b100_0000_0000;
const PAGES: u64 = 1000;
const HUGE_PAGES: u64 = 16;

/// Maps single and huge pages; writes through the new addresses and reads through the old ones; then the tables go.
pub(super) fn tables(kernel: &'static Kernel) {
    // SAFETY: the other CPUs sleep, and this scenario is the only one that runs.
    let mut tables = unsafe { tables::in_use() };
    map::<Size4KiB>(kernel, &mut tables, SCRATCH, Order::ZERO);
    map::<Size2MiB>(kernel, &mut tables, SCRATCH + (1 << 38), PAGEBLOCK_ORDER);
    let page = |address| Page::<Size4KiB>::containing_address(VirtAddr::new(address));
    let range = PageRangeInclusive { start: page(SCRATCH), end: page(SCRATCH + (1 << 39) - PAGE) };
    // SAFETY: nothing is mapped there any more, and no other CPU has been there.
    unsafe { tables.clean_up_addr_range(range, &mut tables::Frames(kernel)) };
    crate::arch::forget_all();
    log!("tables: {PAGES} pages of 4 KiB and {HUGE_PAGES} of 2 MiB, by x86_64");
}

fn map<S: PageSize + core::fmt::Debug>(
    kernel: &'static Kernel,
    tables: &mut (impl Mapper<S> + Translate),
    from: u64,
    order: Order,
) {
    let count = if order == Order::ZERO { PAGES } else { HUGE_PAGES };
    // Not side by side, so that they need many tables.
    let address = |n: u64| VirtAddr::new(from + n * n * 3 * S::SIZE);
    let flags = PageTableFlags::PRESENT | PageTableFlags::WRITABLE | PageTableFlags::NO_EXECUTE;
    for n in 0..count {
        let pfn = kernel.alloc(order, Migratetype::Movable).unwrap_or_else(|error| panic!("{error}"));
        let frame = PhysFrame::from_start_address(PhysAddr::new(pfn.0 * PAGE)).expect("blocks are aligned");
        let page = Page::from_start_address(address(n)).expect("an aligned address");
        // SAFETY: no other code uses the address, and the block is ours.
        let mapped = unsafe { tables.map_to(page, frame, flags, &mut tables::Frames(kernel)) };
        mapped.unwrap_or_else(|error| panic!("{error:?}")).flush();
        let last = address(n) + S::SIZE - 8;
        // SAFETY: mapped just now.
        unsafe { ptr::with_exposed_provenance_mut::<u64>(last.as_u64() as usize).write(n ^ pfn.0) };
        let there = tables.translate_addr(last).map(PhysAddr::as_u64);
        assert_eq!(there, Some((pfn.0 + order.pages()) * PAGE - 8), "where {last:?} is");
    }
    for n in 0..count {
        let page = Page::from_start_address(address(n)).expect("an aligned address");
        let (frame, flush) = tables.unmap(page).unwrap_or_else(|error| panic!("{error:?}"));
        flush.flush();
        let pfn = Pfn(frame.start_address().as_u64() / PAGE);
        // SAFETY: the block is still ours.
        let found =
            unsafe { memory(pfn.add(order.pages() - 1)).cast::<u64>().add(PAGE as usize / 8 - 1).read() };
        assert_eq!(found, n ^ pfn.0, "what was written at {:?} is not at {pfn:?}", address(n));
        kernel.free(pfn, order).unwrap_or_else(|error| panic!("{error}"));
    }
}
