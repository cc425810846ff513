//! The memo of encodings: a byte-bounded LRU from (namespace, text) to token ids.
//!
//! It owns which encodings are kept and in which order they go. It never encodes, and never keeps a
//! text: its key is the BLAKE3 digest of namespace and text, so that a look-up allocates nothing and
//! the memory holds no message. Namespaces share nothing, because the time an encode takes would
//! otherwise tell one tenant what another one has sent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::own_map::OwnMap;

/// Token ids that the memo and its users share.
pub type SharedIds = Arc<[u32]>;

/// What one entry costs beside its ids: key, table slot, links and the allocation's header.
const ENTRY_OVERHEAD_BYTES: usize = 160;

/// The end of a chain of links.
const NONE: usize = usize::MAX;

/// The digest that stands for one (namespace, text).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoKey([u8; 32]);

impl MemoKey {
    /// The length of the namespace goes in first, so that no other split of the same bytes collides.
    pub fn new(namespace: &[u8], text: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(namespace.len() as u64).to_le_bytes());
        hasher.update(namespace);
        hasher.update(text.as_bytes());
        Self(*hasher.finalize().as_bytes())
    }
}

/// Counters of a memo since its start, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoStats {
    /// Look-ups that found ids.
    pub hits: u64,
    /// Look-ups that found none.
    pub misses: u64,
    /// Entries held now.
    pub entries: u64,
    /// Bytes held now, overhead included.
    pub bytes: u64,
    /// Entries that made room for others.
    pub evictions: u64,
}

struct Entry {
    key: MemoKey,
    ids: SharedIds,
    newer: usize,
    older: usize,
}

struct State {
    /// Its keys are digests already: nobody chooses where they go.
    slots: OwnMap<MemoKey, usize>,
    entries: Vec<Entry>,
    vacant: Vec<usize>,
    newest: usize,
    oldest: usize,
    bytes: usize,
    hits: u64,
    misses: u64,
    evictions: u64,
}

/// A byte-bounded LRU of encodings. Thread-safe.
pub struct Memo {
    bytes_max: usize,
    state: Mutex<State>,
}

impl Memo {
    /// A memo that holds at most `bytes_max` bytes; 0 keeps nothing.
    pub fn new(bytes_max: usize) -> Self {
        let state = State {
            slots: OwnMap::default(),
            entries: Vec::new(),
            vacant: Vec::new(),
            newest: NONE,
            oldest: NONE,
            bytes: 0,
            hits: 0,
            misses: 0,
            evictions: 0,
        };
        Self {
            bytes_max,
            state: Mutex::new(state),
        }
    }

    /// The ids under a key, which becomes the newest.
    pub fn get(&self, key: &MemoKey) -> Option<SharedIds> {
        let mut state = self.lock();
        let Some(&slot) = state.slots.get(key) else {
            state.misses += 1;
            return None;
        };
        state.hits += 1;
        state.unlink(slot);
        state.link_newest(slot);
        Some(Arc::clone(&state.entries[slot].ids))
    }

    /// Keep ids under a key unless it has some: what was remembered is never overwritten by an encode
    /// that ran meanwhile.
    pub fn insert_if_absent(&self, key: MemoKey, ids: &SharedIds) {
        let mut state = self.lock();
        if !state.slots.contains_key(&key) {
            state.insert(key, ids, self.bytes_max);
        }
    }

    /// Keep ids under a key, in place of what it had.
    pub fn replace(&self, key: MemoKey, ids: &SharedIds) {
        let mut state = self.lock();
        state.remove(&key);
        state.insert(key, ids, self.bytes_max);
    }

    /// Counters and current size.
    pub fn stats(&self) -> MemoStats {
        let state = self.lock();
        MemoStats {
            hits: state.hits,
            misses: state.misses,
            entries: state.slots.len() as u64,
            bytes: state.bytes as u64,
            evictions: state.evictions,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code of this file panics between two halves of a change, so a poisoned state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cost(ids: &SharedIds) -> usize {
    ENTRY_OVERHEAD_BYTES + size_of_val::<[u32]>(ids)
}

impl State {
    fn insert(&mut self, key: MemoKey, ids: &SharedIds, bytes_max: usize) {
        let cost = cost(ids);
        if cost > bytes_max {
            return;
        }
        while self.bytes + cost > bytes_max {
            let key = self.entries[self.oldest].key;
            self.remove(&key);
            self.evictions += 1;
        }
        let entry = Entry {
            key,
            ids: Arc::clone(ids),
            newer: NONE,
            older: NONE,
        };
        let slot = if let Some(slot) = self.vacant.pop() {
            self.entries[slot] = entry;
            slot
        } else {
            self.entries.push(entry);
            self.entries.len() - 1
        };
        self.slots.insert(key, slot);
        self.bytes += cost;
        self.link_newest(slot);
    }

    fn remove(&mut self, key: &MemoKey) {
        if let Some(slot) = self.slots.remove(key) {
            self.unlink(slot);
            let ids = std::mem::replace(&mut self.entries[slot].ids, Arc::new([]));
            self.bytes -= cost(&ids);
            self.vacant.push(slot);
        }
    }

    fn unlink(&mut self, slot: usize) {
        let (newer, older) = (self.entries[slot].newer, self.entries[slot].older);
        match newer {
            NONE => self.newest = older,
            _ => self.entries[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            _ => self.entries[older].newer = newer,
        }
    }

    fn link_newest(&mut self, slot: usize) {
        self.entries[slot].newer = NONE;
        self.entries[slot].older = self.newest;
        match self.newest {
            NONE => self.oldest = slot,
            _ => self.entries[self.newest].newer = slot,
        }
        self.newest = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(count: usize) -> SharedIds {
        vec![7; count].into()
    }

    #[test]
    fn namespace_text_and_the_border_between_them_count() {
        assert!(MemoKey::new(b"a", "x") != MemoKey::new(b"b", "x"));
        assert!(MemoKey::new(b"a", "x") != MemoKey::new(b"a", "y"));
        assert!(MemoKey::new(b"ab", "c") != MemoKey::new(b"a", "bc"));
        assert!(MemoKey::new(b"", "abc") != MemoKey::new(b"abc", ""));
    }

    #[test]
    fn an_entry_larger_than_the_bound_is_not_kept_and_evicts_nothing() {
        let memo = Memo::new(cost(&ids(10)));
        memo.replace(MemoKey::new(b"", "small"), &ids(10));
        memo.replace(MemoKey::new(b"", "large"), &ids(11));
        assert_eq!(memo.get(&MemoKey::new(b"", "small")), Some(ids(10)));
        assert_eq!(memo.get(&MemoKey::new(b"", "large")), None);
    }

    #[test]
    fn an_encode_that_ran_meanwhile_does_not_overwrite_what_was_remembered() {
        let memo = Memo::new(10_000);
        let key = MemoKey::new(b"tenant", "reply");
        memo.replace(key, &ids(3));
        memo.insert_if_absent(key, &ids(2));
        assert_eq!(memo.get(&key), Some(ids(3)));
    }

    /// The slow reference: newest last, walked from the front when room is needed.
    #[derive(Default)]
    struct Reference(Vec<(u8, usize)>);

    impl Reference {
        fn get(&mut self, key: u8) -> Option<usize> {
            let at = self.0.iter().position(|entry| entry.0 == key)?;
            let entry = self.0.remove(at);
            self.0.push(entry);
            Some(entry.1)
        }

        fn bytes(&self) -> usize {
            self.0.iter().map(|entry| cost(&ids(entry.1))).sum()
        }

        fn insert(&mut self, key: u8, count: usize, bytes_max: usize, replace: bool) {
            let at = self.0.iter().position(|entry| entry.0 == key);
            match (at, replace) {
                (Some(_), false) => return,
                (Some(at), true) => drop(self.0.remove(at)),
                (None, _) => {}
            }
            if cost(&ids(count)) <= bytes_max {
                while self.bytes() + cost(&ids(count)) > bytes_max {
                    self.0.remove(0);
                }
                self.0.push((key, count));
            }
        }
    }

    proptest! {
        #[test]
        fn the_memo_behaves_like_its_slow_reference(
            bytes_max in 0usize..2000,
            steps in prop::collection::vec((0u8..3, 0u8..12, 0usize..80), 0..200),
        ) {
            let memo = Memo::new(bytes_max);
            let mut reference = Reference::default();
            for (step, name, count) in steps {
                let key = MemoKey::new(b"n", &name.to_string());
                match step {
                    0 => prop_assert_eq!(
                        memo.get(&key).map(|ids| ids.len()),
                        reference.get(name)
                    ),
                    1 => {
                        memo.insert_if_absent(key, &ids(count));
                        reference.insert(name, count, bytes_max, false);
                    }
                    _ => {
                        memo.replace(key, &ids(count));
                        reference.insert(name, count, bytes_max, true);
                    }
                }
                let stats = memo.stats();
                prop_assert_eq!(stats.bytes, reference.bytes() as u64);
                prop_assert_eq!(stats.entries, reference.0.len() as u64);
                prop_assert!(stats.bytes <= bytes_max as u64);
            }
        }
    }
}
