//! From what firmware says of the memory to a running allocator.
//!
//! [`map`] brings the ranges into order; [`early`] allocates from them before there are zones; [`zones`] divides
//! them and hands over what is left.

pub mod early;
pub mod map;
pub mod spans;
pub mod zones;
