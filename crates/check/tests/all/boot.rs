//! Checks of boot: memory that is initialised bit by bit, by several threads, from any map.

mod hotplug;
mod kernel;
mod maps;
mod steps;
mod threads;
