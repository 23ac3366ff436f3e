//! Page caches over an arena: on real files, with a swap file, under pressure, and one that is not ours.

pub(crate) mod files;
mod model;
pub(crate) mod pressure;
pub(crate) mod swap;
