//! Single frames and pageblocks: marks, places, types, bad memory.

mod compact;
mod compaction;
mod damage;
mod faults;
mod given;
mod high_order_atomic;
mod hwpoison;
mod maps;
mod marks;
mod pageblocks;
mod reports;
mod rounds;
