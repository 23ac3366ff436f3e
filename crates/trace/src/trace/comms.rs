//! Command names, each kept once.

use std::collections::HashMap;

/// A table of names; events hold indices into it.
#[derive(Clone, Debug, Default)]
pub struct Comms {
    names: Vec<String>,
    index: HashMap<String, u32>,
}

impl Comms {
    /// Index of `name`, which is added if it is new. O(1) on average.
    ///
    /// # Panics
    /// At 2^32 different names.
    pub fn intern(&mut self, name: &str) -> u32 {
        if let Some(&index) = self.index.get(name) {
            return index;
        }
        let index = u32::try_from(self.names.len()).expect("fewer than 2^32 names");
        self.names.push(name.to_owned());
        self.index.insert(name.to_owned(), index);
        index
    }

    /// The name at `index`.
    ///
    /// # Panics
    /// If `index` did not come from [`intern`](Self::intern).
    #[must_use]
    pub fn name(&self, index: u32) -> &str {
        &self.names[index as usize]
    }

    /// All names, by index.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is no name yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// Two tables are equal if they give the same names to the same indices.
impl PartialEq for Comms {
    fn eq(&self, second: &Self) -> bool {
        self.names == second.names
    }
}

impl Eq for Comms {}
