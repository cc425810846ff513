//! The model's evictions and lower tiers: lists of pages, each with its whole path, oldest first. The model decides
//! which page goes where; slots are the index's choice, and `contents` watches them.

use crate::model::{Answer, Entry, EntryId, Hold, Model, Pair, Place};
use crate::tips::Turn;

/// Where a page is, but for the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Device,
    Host,
    Disk,
}

/// A full page in a lower tier.
#[derive(Debug)]
pub struct Shelved {
    pub path: Vec<Pair>,
    /// Being restored: it has its slot until its move is decided.
    is_held: bool,
}

/// A move that is to come next.
#[derive(Debug, PartialEq, Eq)]
pub struct ExpectedMove {
    pub path: Vec<Pair>,
    pub from: Kind,
    pub to: Kind,
}

pub struct Shelf {
    /// Host and disk.
    tiers: [Vec<Shelved>; 2],
    slots: [usize; 2],
    moves: Vec<ExpectedMove>,
    pub offloaded_pages: u64,
    pub dropped_pages: u64,
}

const KINDS: [Kind; 2] = [Kind::Host, Kind::Disk];

impl Shelf {
    pub fn new(slots: [usize; 2]) -> Self {
        Self {
            tiers: [Vec::new(), Vec::new()],
            slots,
            moves: Vec::new(),
            offloaded_pages: 0,
            dropped_pages: 0,
        }
    }

    pub fn pages(&self, kind: Kind) -> &[Shelved] {
        match kind {
            Kind::Host => &self.tiers[0],
            Kind::Disk => &self.tiers[1],
            Kind::Device => unreachable!(),
        }
    }

    pub fn has(&self, path: &[Pair]) -> bool {
        self.tiers.iter().flatten().any(|page| page.path == path)
    }

    pub fn take_moves(&mut self) -> Vec<ExpectedMove> {
        std::mem::take(&mut self.moves)
    }

    pub fn put(&mut self, path: Vec<Pair>) {
        if self.slots != [0, 0] {
            let kept = self.settle(path, Kind::Device, 0);
            self.offloaded_pages += u64::from(kept);
        }
    }

    fn settle(&mut self, path: Vec<Pair>, from: Kind, tier: usize) -> bool {
        if tier == 2 {
            self.dropped_pages += 1;
            return false;
        }
        if self.tiers[tier].len() == self.slots[tier] {
            let Some(oldest) = self.tiers[tier].iter().position(|page| !page.is_held) else {
                return self.settle(path, from, tier + 1);
            };
            let oldest = self.tiers[tier].remove(oldest);
            self.settle(oldest.path, KINDS[tier], tier + 1);
        }
        self.moves.push(ExpectedMove {
            path: path.clone(),
            from,
            to: KINDS[tier],
        });
        self.tiers[tier].push(Shelved {
            path,
            is_held: false,
        });
        true
    }

    pub fn hold(&mut self, path: &[Pair]) {
        for page in self.tiers.iter_mut().flatten() {
            page.is_held |= page.path == path;
        }
    }

    /// What is held goes to the device, beginnings first.
    pub fn restore_held(&mut self) {
        let mut moves = Vec::new();
        for (tier, from) in self.tiers.iter_mut().zip(KINDS) {
            for page in tier.extract_if(.., |page| page.is_held) {
                moves.push(ExpectedMove {
                    path: page.path,
                    from,
                    to: Kind::Device,
                });
            }
        }
        moves.sort_by_key(|one| one.path.len());
        self.moves.extend(moves);
    }

    pub fn forget(&mut self, path: &[Pair]) {
        for tier in &mut self.tiers {
            tier.retain(|page| page.path != path);
        }
    }

    pub fn clear(&mut self) -> usize {
        let pages = self.tiers.iter().map(Vec::len).sum();
        self.tiers = [Vec::new(), Vec::new()];
        pages
    }
}

impl Model {
    /// What was used after a page counts for it. Gives the path.
    fn evict(&mut self, id: EntryId) -> Vec<Pair> {
        let place = self.entries.iter().position(|entry| entry.id == id);
        let gone = self.entries.remove(place.unwrap());
        let above = self.above(&gone.path).to_vec();
        for entry in &mut self.entries {
            if entry.path == above {
                entry.last_use = entry.last_use.max(gone.last_use);
            }
        }
        gone.path
    }

    fn leaf_to_evict(&self, extra: &[EntryId]) -> Option<EntryId> {
        let has_child = |entry: &Entry| {
            let mut all = self.entries.iter();
            all.any(|other| self.above(&other.path) == entry.path)
        };
        let all = self.entries.iter();
        all.filter(|entry| !has_child(entry) && !self.is_protected(entry, extra))
            .min_by_key(|entry| entry.last_use)
            .map(|entry| entry.id)
    }

    pub fn make_room(&mut self, count: usize, extra: &[EntryId]) {
        while self.free() < count {
            let leaf = self.leaf_to_evict(extra).expect("room was counted before");
            let path = self.evict(leaf);
            if path.len().is_multiple_of(self.page_size) {
                self.shelf.put(path);
            }
            self.counters.evicted_pages += 1;
        }
    }

    pub fn clear(&mut self) -> usize {
        let before = self.entries.len();
        self.shelf.clear();
        while let Some(leaf) = self.leaf_to_evict(&[]) {
            self.evict(leaf);
        }
        before - self.entries.len()
    }

    /// The paths of the pages after the `full` ones that an admission of `path` restores, if there is room.
    pub fn restorable(
        &self,
        path: &[Pair],
        full: usize,
        tokens_min: Option<usize>,
    ) -> Vec<Vec<Pair>> {
        let page_size = self.page_size;
        let ends = ((full + 1) * page_size..path.len()).step_by(page_size);
        let run: Vec<Vec<Pair>> = ends
            .map(|end| path[..end].to_vec())
            .take_while(|page| self.shelf.has(page))
            .collect();
        match tokens_min {
            Some(tokens_min) if run.len() * page_size >= tokens_min => run,
            _ => Vec::new(),
        }
    }

    /// Pages of the shelf come to the lease's own pages.
    pub fn admit_restoring(
        &mut self,
        path: Vec<Pair>,
        full: Vec<EntryId>,
        restored: &[Vec<Pair>],
        turn: Turn,
        answer: &Answer,
    ) {
        let shared = full.len() * self.page_size;
        let onloaded_tokens = restored.len() * self.page_size;
        let hit_tokens = shared + onloaded_tokens;
        assert_eq!((answer.hit_tokens, answer.copy), (hit_tokens, None));
        for page in restored {
            self.shelf.hold(page);
        }
        self.make_room(answer.page_table.len() - full.len(), &full);
        self.shelf.restore_held();
        let (hit, miss) = (hit_tokens as u64, (path.len() - hit_tokens) as u64);
        self.count_found(turn.resumes, hit, miss);
        self.counters.onloaded_tokens += onloaded_tokens as u64;
        let mut table: Vec<Place> = full.iter().map(|&id| Place::Entry(id)).collect();
        let own = answer.page_table[full.len()..].iter();
        table.extend(own.map(|&page| Place::Lease(page)));
        self.holds.push(Some(Hold {
            path,
            table,
            full,
            source: None,
            hit_tokens,
            onloaded_tokens,
            committed: shared,
            has_committed: false,
            is_detached: false,
            turn,
        }));
    }

    /// Differences may be negative.
    pub fn count_found(&mut self, resumes: bool, hit: u64, miss: u64) {
        let counters = &mut self.counters;
        let (found, lacked) = if resumes {
            (
                &mut counters.resumed_tokens,
                &mut counters.recomputed_tokens,
            )
        } else {
            (&mut counters.hit_tokens, &mut counters.miss_tokens)
        };
        *found = found.wrapping_add(hit);
        *lacked += miss;
    }

    /// Judges the answer to a rejection.
    pub fn reject(&mut self, lease: usize, tokens: usize, is_ok: bool) {
        let hold = self.holds[lease].as_mut().unwrap();
        let from = (hold.hit_tokens - hold.onloaded_tokens).max(hold.committed);
        assert_eq!(is_ok, from <= tokens && tokens <= hold.hit_tokens);
        if is_ok {
            let lost = hold.hit_tokens - tokens;
            hold.hit_tokens = tokens;
            hold.onloaded_tokens -= lost;
            let resumes = hold.turn.resumes;
            self.counters.onloaded_tokens -= lost as u64;
            self.count_found(resumes, (lost as u64).wrapping_neg(), lost as u64);
        }
    }
}
