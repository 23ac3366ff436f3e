//! Platforms on which the generic allocator is checked: one module each, all in one binary.
//!
//! | platform | for | what it finds |
//! |---|---|---|
//! | [`Plain`](plain::Plain) | long histories, exhaustive small worlds | wrong results, at full speed |
//! | [`Checked`](checked::Checked) | one thread | a cell entered while it is entered; what a handler breaks that runs before any one of a call's accesses; counts every shared access |
//! | [`Loom`](loom::Loom) | two or three threads, every interleaving and every allowed stale read | missing orderings, races |
//! | [`Shuttle`](shuttle::Shuttle) | many threads, random interleavings, sequentially consistent | lost updates, double owners, deadlock |
//!
//! loom owns questions of ordering, shuttle questions of size.

/// Kind of an access to a word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touch {
    Load,
    Store,
    /// An atomic read-modify-write.
    Exchange,
}

/// Words of a platform: each call is one call of an atomic. Before it `$before` sees the word and the kind of access.
macro_rules! word_over {
    ($atomic:ty, $word:ty, $before:expr) => {
        // SAFETY: each call is one call of an atomic word.
        unsafe impl framewright::platform::Word for $word {
            fn new(value: u64) -> Self {
                Self(<$atomic>::new(value))
            }

            fn load(&self, order: Ordering) -> u64 {
                $before(self, $crate::platform::Touch::Load);
                self.0.load(order)
            }

            fn store(&self, value: u64, order: Ordering) {
                $before(self, $crate::platform::Touch::Store);
                self.0.store(value, order);
            }

            fn compare_exchange(
                &self,
                current: u64,
                new: u64,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u64, u64> {
                $before(self, $crate::platform::Touch::Exchange);
                self.0.compare_exchange(current, new, success, failure)
            }

            fn swap(&self, value: u64, order: Ordering) -> u64 {
                $before(self, $crate::platform::Touch::Exchange);
                self.0.swap(value, order)
            }

            fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
                $before(self, $crate::platform::Touch::Exchange);
                self.0.fetch_add(value, order)
            }
        }
    };
}

pub mod checked;
#[cfg(feature = "models")]
pub mod loom;
pub mod pin;
pub mod plain;
#[cfg(feature = "models")]
pub mod shuttle;
