//! Events of an arena for a listener: those of the crate `tracing`, with the feature of that name; nothing otherwise.
//!
//! All have the target `framewright` and come off the fast path, with no lock of the arena's held, so that a listener
//! may allocate from it. But one that allocates with a lock of its own held must not hear of what that allocation does:
//! an arena that is the memory of the global allocator says nothing
//! ([`ArenaBuilder::silent`](crate::ArenaBuilder::silent)).
//!
//! | event | level | fields |
//! |---|---|---|
//! | arena made | DEBUG | `pages`, `page_bytes`, `nodes`, `slots` |
//! | no slot to attach to | DEBUG | `slots` |
//! | allocation failed | DEBUG | `order`, `migratetype`, `error` |
//! | pages of ended threads brought back | DEBUG | `slots`, `pages` |
//! | memory given back to the system | DEBUG | `pages`, `blocks` |
//! | background reclaim | DEBUG | `node`, `freed`, `balanced` |
//! | a frame is bad | WARN | `pfn`, `found` |

#[cfg(feature = "tracing")]
macro_rules! event {
    ($silent:expr, $level:ident, $($name:ident = $value:expr,)* $text:literal) => {
        if !$silent {
            tracing::event!(target: "framewright", tracing::Level::$level, $($name = $value,)* $text);
        }
    };
}

// What would be told is looked at by the compiler alone.
#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($silent:expr, $level:ident, $($name:ident = $value:expr,)* $text:literal) => {
        if false {
            let _: bool = $silent;
            $(let _ = &$value;)*
        }
    };
}

pub(crate) use event;
