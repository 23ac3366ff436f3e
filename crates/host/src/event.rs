//! Events that an arena reports through the crate `tracing`. Without the feature `tracing` they cost nothing.
//!
//! All have the target `framewright`. They are reported off the fast path, while no lock of the arena is held, so a
//! listener may allocate from the arena. An exception is a listener that holds a lock of its own while it allocates:
//! the events of that allocation would take the lock again. So an arena that serves the global allocator reports
//! nothing ([`ArenaBuilder::silent`](crate::ArenaBuilder::silent)).
//!
//! | event | level | fields |
//! |---|---|---|
//! | arena made | DEBUG | `pages`, `page_bytes`, `nodes`, `slots` |
//! | no CPU to attach to | DEBUG | `cpus` |
//! | allocation failed | DEBUG | `order`, `migratetype`, `error` |
//! | pages of ended threads brought back | DEBUG | `cpus`, `pages` |
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

// Never run: it lets the compiler check the arguments in a build without the feature.
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
