//! From what firmware says of the memory to a running allocator.
//!
//! [`map`] brings the ranges into order; [`early`] allocates from them before there are zones; [`zones`] divides
//! them and hands over what is left; [`deferred`] initialises it, now or later, by any number of workers; [`late`]
//! is the order of it all. [`srat`] reads the firmware table that says which node memory is on.

pub mod deferred;
pub mod early;
pub mod late;
pub mod map;
pub mod spans;
pub mod srat;
pub mod zones;
