//! A hash map for keys that no user chooses, or whose number is bounded: quick to hash, the same in every run.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use ahash::AHasher;

/// `HashMap` with the fixed seeds of `AHasher::default()`.
pub(crate) type OwnMap<K, V> = HashMap<K, V, BuildHasherDefault<AHasher>>;
