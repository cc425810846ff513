//! Namespaces and the path tokens made of them. Owns the mapping of namespace bytes to small ids;
//! never looks at pages.
//!
//! # Why nobody is given another tenant's rows
//!
//! A prompt is a *path*: a sequence of (namespace, token id) pairs, one pair a position. Every node
//! in the tree has a run of such pairs, and every comparison is a comparison of whole pairs. A row
//! of a page holds the K and V of one position; they are a function of the tokens at that position
//! and before it, so the row may be given to exactly those who may know all of these tokens.
//! A match gives out row `p` only when the asker's pairs `0..=p` are all equal to the pairs the row
//! was committed under. So:
//!
//! * public → tenant A in one page: the rows before the border have only public pairs before them
//!   and are shared (by copy); the first private row differs in its namespace for everybody but A.
//! * tenant A → public, or A → tenant B, in one page or in several: each later row has A's pairs
//!   before it. An asker has to present these pairs, under A's namespace, to come to it.
//! * equal tokens under two namespaces are two paths, and two pages.
//!
//! A continuation (`after`) skips the comparison of what its tip's path holds: the caller who names
//! the tip vouches for it. The new pairs are compared as always, under their own namespaces, which
//! may be others than those of the path before.
//!
//! The framing of stretches needs no encoding that could collide: a border between two stretches is
//! a change of the pair's namespace, and namespaces are compared by value once, when interned.

use std::sync::Arc;

use crate::own_map::OwnMap;

/// A namespace's small number, valid while something refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NamespaceId(u32);

/// One position of a path: namespace and token id, compared as a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PathToken(u64);

impl PathToken {
    pub(super) fn new(namespace: NamespaceId, token_id: u32) -> Self {
        Self(u64::from(namespace.0) << 32 | u64::from(token_id))
    }

    /// Those of pieces that stand in one namespace each.
    pub(super) fn of<'a>(pieces: impl Iterator<Item = (NamespaceId, &'a [u32])>) -> Vec<Self> {
        let mut pairs = Vec::new();
        for (namespace, tokens) in pieces {
            pairs.extend(tokens.iter().map(|&token| Self::new(namespace, token)));
        }
        pairs
    }

    pub(super) fn is_in(self, namespace: NamespaceId) -> bool {
        self.0 >> 32 == u64::from(namespace.0)
    }
}

struct Entry {
    bytes: Arc<[u8]>,
    references: u64,
}

/// Interned namespaces, counted: a number is given again only when no key and no lease has it.
#[derive(Default)]
pub(super) struct Namespaces {
    by_bytes: OwnMap<Arc<[u8]>, NamespaceId>,
    entries: Vec<Option<Entry>>,
    unused: Vec<NamespaceId>,
}

impl Namespaces {
    /// The namespace's id, with one reference more.
    pub(super) fn acquire(&mut self, bytes: &[u8]) -> NamespaceId {
        if let Some(&id) = self.by_bytes.get(bytes) {
            self.retain(id);
            return id;
        }
        let bytes: Arc<[u8]> = bytes.into();
        let entry = Some(Entry {
            bytes: Arc::clone(&bytes),
            references: 1,
        });
        let id = if let Some(id) = self.unused.pop() {
            self.entries[id.0 as usize] = entry;
            id
        } else {
            // Fewer than 2^32 are alive: each is referred to by a lease's stretch or a page's row.
            let id = u32::try_from(self.entries.len()).expect("fewer than 2^32 live namespaces");
            self.entries.push(entry);
            NamespaceId(id)
        };
        self.by_bytes.insert(bytes, id);
        id
    }

    pub(super) fn retain(&mut self, id: NamespaceId) {
        let entry = self.entries[id.0 as usize].as_mut();
        entry.expect("a live namespace").references += 1;
    }

    pub(super) fn release(&mut self, id: NamespaceId) {
        let slot = &mut self.entries[id.0 as usize];
        let entry = slot.as_mut().expect("a live namespace");
        entry.references -= 1;
        if entry.references == 0 {
            self.by_bytes.remove(&entry.bytes);
            *slot = None;
            self.unused.push(id);
        }
    }

    pub(super) fn bytes(&self, id: NamespaceId) -> &[u8] {
        let entry = self.entries[id.0 as usize].as_ref();
        &entry.expect("a live namespace").bytes
    }

    /// How many are referred to.
    #[cfg(test)]
    pub(super) fn live(&self) -> usize {
        self.by_bytes.len()
    }

    /// Compare the counts with the references that were counted elsewhere.
    pub(super) fn check(&self, used: impl Iterator<Item = NamespaceId>) -> Result<(), String> {
        let mut counts = vec![0_u64; self.entries.len()];
        for id in used {
            counts[id.0 as usize] += 1;
        }
        for (slot, count) in counts.into_iter().enumerate() {
            let references = self.entries[slot].as_ref().map_or(0, |e| e.references);
            if references != count {
                return Err(format!(
                    "namespace {slot} counts {references} references, {count} exist"
                ));
            }
        }
        let live = self.entries.iter().flatten().count();
        if live != self.by_bytes.len() || live + self.unused.len() != self.entries.len() {
            return Err("the namespace tables disagree".to_owned());
        }
        Ok(())
    }
}
