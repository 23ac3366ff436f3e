//! From the firmware's memory ranges to a running allocator.
//!
//! [`map`] sorts the ranges; [`early`] allocates from them before there are zones; [`zones`] divides them and hands
//! over the rest; [`deferred`] initialises it, now or later, by any number of workers; [`late`] is the order of these
//! steps. [`srat`] reads the firmware table of the nodes' memory. [`ranges`] is the short way: one zone over all
//! ranges.

pub mod deferred;
pub mod early;
pub mod late;
pub mod map;
pub mod ranges;
pub mod spans;
pub mod srat;
pub mod zones;

use core::fmt;

use crate::error::SetupError;
use early::EarlyError;
use map::MapError;
use zones::ZonesError;

/// Reason why a step before the allocator failed. `?` converts the errors of all these steps into it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BootError {
    /// A range is refused.
    Map(MapError),
    /// An early allocation, reservation or free is refused.
    Early(EarlyError),
    /// The memory cannot be divided into zones.
    Zones(ZonesError),
    /// The allocator cannot be planned or made.
    Setup(SetupError),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Map(error) => error.fmt(f),
            Self::Early(error) => error.fmt(f),
            Self::Zones(error) => error.fmt(f),
            Self::Setup(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for BootError {}

macro_rules! from_steps {
    ($($error:ty => $variant:ident,)*) => {
        $(impl From<$error> for BootError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        })*
    };
}

from_steps! { MapError => Map, EarlyError => Early, ZonesError => Zones, SetupError => Setup, }
