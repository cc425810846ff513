//! The shelf: full pages that were evicted from the device and are kept in lower tiers. Owns which slot has
//! which page, the order in which a tier gives its pages up, and the moves that the caller has to carry out;
//! never sees a content.
//!
//! A page on the shelf is known by its key alone. The key is a BLAKE3 chain over the namespaces and tokens from
//! position 0 on, framed so that different paths are different messages (`page_keys`): equal keys are equal
//! paths, as far as anything that is 256 bits long can say so, and who can compute a key can name all tokens
//! under their namespaces. So tokens are not kept here again. That a slot really holds what the shelf says is
//! the business of the slots' owner: it stores the key as a tag with the content, and calls
//! `PrefixIndex::reject` when a page that it reads back has another.
//!
//! Pages of a conversation are evicted from its end, so the oldest page of a tier, which goes first, is never one
//! that newer ones need before them.

use std::collections::BTreeMap;

use crate::own_map::OwnMap;
use crate::page_keys::PageKey;

use super::moves::{Move, Place, Tier};
use super::pages::{PageId, PagePool};

/// Where a page is, and when it came there: a count of arrivals, not a time.
struct Entry {
    tier: Tier,
    slot: u32,
    arrival: u64,
}

/// One tier's slots, and its pages by arrival.
struct Slots {
    free: PagePool,
    order: BTreeMap<u64, PageKey>,
}

impl Slots {
    fn new(total: u32) -> Self {
        Self {
            free: PagePool::new(total),
            order: BTreeMap::new(),
        }
    }
}

/// A page taken out to be restored. Its slot is not free yet.
pub(super) struct Held {
    key: PageKey,
    tier: Tier,
    slot: u32,
}

pub(super) struct Shelf {
    host: Slots,
    disk: Slots,
    entries: OwnMap<PageKey, Entry>,
    arrivals: u64,
    moves: Vec<Move>,
    offloaded_pages: u64,
    dropped_pages: u64,
}

impl Shelf {
    /// An empty one; without slots it never has a page.
    pub(super) fn new(host_slots: u32, disk_slots: u32) -> Self {
        Self {
            host: Slots::new(host_slots),
            disk: Slots::new(disk_slots),
            entries: OwnMap::default(),
            arrivals: 0,
            moves: Vec::new(),
            offloaded_pages: 0,
            dropped_pages: 0,
        }
    }

    fn slots(&self, tier: Tier) -> &Slots {
        match tier {
            Tier::Host => &self.host,
            Tier::Disk => &self.disk,
        }
    }

    fn slots_mut(&mut self, tier: Tier) -> &mut Slots {
        match tier {
            Tier::Host => &mut self.host,
            Tier::Disk => &mut self.disk,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn contains(&self, key: &PageKey) -> bool {
        self.entries.contains_key(key)
    }

    /// How many of these pages are in a tier.
    pub(super) fn count(&self, keys: &[PageKey], tier: Tier) -> usize {
        let in_tier = |key: &&PageKey| self.entries.get(*key).is_some_and(|at| at.tier == tier);
        keys.iter().filter(in_tier).count()
    }

    /// Pages in a tier.
    pub(super) fn pages(&self, tier: Tier) -> usize {
        self.slots(tier).order.len()
    }

    /// Pages that went from the device to a slot, in all.
    pub(super) fn offloaded_pages(&self) -> u64 {
        self.offloaded_pages
    }

    /// Pages that found no slot or lost it to a newer one, in all.
    pub(super) fn dropped_pages(&self) -> u64 {
        self.dropped_pages
    }

    /// A tier's pages with their slots, those that go first first.
    pub(super) fn entries(&self, tier: Tier) -> impl Iterator<Item = (&PageKey, u32)> {
        let keys = self.slots(tier).order.values();
        keys.map(|key| (key, self.entries[key].slot))
    }

    pub(super) fn take_moves(&mut self) -> Vec<Move> {
        std::mem::take(&mut self.moves)
    }

    /// Keep the content of a page that was just evicted.
    pub(super) fn put(&mut self, key: PageKey, page: PageId) {
        if self.host.free.total() + self.disk.free.total() == 0 {
            return;
        }
        if self.settle(key, Place::Device(page), Tier::Host) {
            self.offloaded_pages += 1;
        }
    }

    /// Give a page a slot in `tier` or below; false when it was dropped because there is none.
    fn settle(&mut self, key: PageKey, from: Place, tier: Tier) -> bool {
        if let Some(slot) = self.make_slot(tier) {
            let to = tier.place(slot);
            self.moves.push(Move { from, to, key });
            self.insert(key, tier, slot);
            return true;
        }
        if let Some(below) = tier.below() {
            return self.settle(key, from, below);
        }
        self.dropped_pages += 1;
        false
    }

    /// A free slot, or that of the tier's oldest page, which goes on to the tier below.
    fn make_slot(&mut self, tier: Tier) -> Option<u32> {
        let slots = self.slots_mut(tier);
        if let Some(slot) = slots.free.take() {
            return Some(slot);
        }
        let &oldest = slots.order.first_key_value()?.1;
        let slot = self.remove(&oldest).expect("a page in order").slot;
        if let Some(below) = tier.below() {
            self.settle(oldest, tier.place(slot), below);
        } else {
            self.dropped_pages += 1;
        }
        Some(slot)
    }

    fn insert(&mut self, key: PageKey, tier: Tier, slot: u32) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.slots_mut(tier).order.insert(arrival, key);
        let entry = Entry {
            tier,
            slot,
            arrival,
        };
        let known = self.entries.insert(key, entry);
        assert!(known.is_none(), "a page is in two slots");
    }

    /// The slot is not free by that.
    fn remove(&mut self, key: &PageKey) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.slots_mut(entry.tier).order.remove(&entry.arrival);
        Some(entry)
    }

    /// Take pages out, which are there, to restore them. Their slots are free only after `restore`: what is
    /// evicted to make room for them must not be moved over them.
    pub(super) fn take_out(&mut self, keys: &[PageKey]) -> Vec<Held> {
        let held = keys.iter().map(|key| {
            let Entry { tier, slot, .. } = self.remove(key).expect("a page on the shelf");
            Held {
                key: *key,
                tier,
                slot,
            }
        });
        held.collect()
    }

    /// Move what was taken out into device pages, the first ones of `pages`.
    pub(super) fn restore(&mut self, held: Vec<Held>, pages: &[PageId]) {
        for (Held { key, tier, slot }, &page) in held.into_iter().zip(pages) {
            self.moves.push(Move {
                from: tier.place(slot),
                to: Place::Device(page),
                key,
            });
            self.slots_mut(tier).free.give_back(slot);
        }
    }

    /// The page is on the device again, by other means.
    pub(super) fn forget(&mut self, key: &PageKey) {
        if self.is_empty() {
            return;
        }
        if let Some(Entry { tier, slot, .. }) = self.remove(key) {
            self.slots_mut(tier).free.give_back(slot);
        }
    }

    /// Forget all pages; says how many.
    pub(super) fn clear(&mut self) -> usize {
        let keys: Vec<PageKey> = self.entries.keys().copied().collect();
        for key in &keys {
            self.forget(key);
        }
        keys.len()
    }

    /// Fill an empty tier, the pages that go first first; false, and no change, when a slot is none or given
    /// twice, or a key is known.
    pub(super) fn load(&mut self, tier: Tier, pages: &[(PageKey, u32)]) -> bool {
        let total = self.slots(tier).free.total();
        let Some(free) = PagePool::without(total, pages.iter().map(|&(_, slot)| slot)) else {
            return false;
        };
        let mut keys: Vec<&PageKey> = pages.iter().map(|(key, _)| key).collect();
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1])
            || keys.iter().any(|key| self.contains(key))
        {
            return false;
        }
        self.slots_mut(tier).free = free;
        for &(key, slot) in pages {
            self.insert(key, tier, slot);
        }
        true
    }

    /// Prove that map, order and slots say the same.
    pub(super) fn check(&self) -> Result<(), String> {
        for tier in Tier::ALL {
            let slots = self.slots(tier);
            let mut used = Vec::with_capacity(slots.order.len());
            for (arrival, key) in &slots.order {
                match self.entries.get(key) {
                    Some(entry) if entry.tier == tier && entry.arrival == *arrival => {
                        used.push(entry.slot);
                    }
                    _ => return Err(format!("{tier:?} has a page in order that is not there")),
                }
            }
            let checked = slots.free.check(used.into_iter());
            checked.map_err(|what| format!("slots of {tier:?}: {what}"))?;
        }
        let in_order = self.pages(Tier::Host) + self.pages(Tier::Disk);
        if self.entries.len() != in_order {
            return Err("a page on the shelf is in no order".to_owned());
        }
        Ok(())
    }
}
