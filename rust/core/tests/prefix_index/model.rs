//! The slow, obvious index: a list of cached pages, each with its whole path. Every question is
//! answered by looking at all of them; nothing is counted, ordered or remembered.
//!
//! It does not choose page ids, nor among equally good copy sources: there it follows the index
//! under test, after making sure that the choice was allowed.

use std::collections::HashSet;

use appliance_core::prefix_index::{PRIORITY_USES, PageId, RowCopy, Stats};

use crate::shelf::{Kind, Shelf};
use crate::tips::{Tip, Turn};

/// (namespace, token id)
pub type Pair = (u8, u32);

pub type EntryId = u64;

#[derive(Debug)]
pub struct Entry {
    pub id: EntryId,
    /// From position 0 to the last row of the page that is known.
    pub path: Vec<Pair>,
    pub page: PageId,
    /// (whether it is not superseded, moment moved by priority)
    pub last_use: (bool, u64),
}

/// A page of a lease's table: whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Lease(PageId),
    Entry(EntryId),
    /// In no tree any more; of every lease that holds it.
    Quarantined(PageId),
}

#[derive(Debug)]
pub struct Hold {
    pub path: Vec<Pair>,
    pub table: Vec<Place>,
    /// The entries of the committed full pages, from the first on.
    pub full: Vec<EntryId>,
    pub source: Option<EntryId>,
    pub hit_tokens: usize,
    pub onloaded_tokens: usize,
    pub committed: usize,
    pub has_committed: bool,
    pub is_detached: bool,
    pub turn: Turn,
}

pub struct Model {
    pub page_size: usize,
    pages: usize,
    pub entries: Vec<Entry>,
    pub holds: Vec<Option<Hold>>,
    pub tips: Vec<Tip>,
    /// Numbers of tips, their pages, and the entries they end in.
    pub pins: Vec<(u64, usize, EntryId)>,
    pub pin_pages_max: usize,
    entry_count: u64,
    ticks: u64,
    pub shelf: Shelf,
    pub counters: Stats,
}

/// What the index under test answered to an admission.
pub struct Answer {
    pub hit_tokens: usize,
    pub copy: Option<RowCopy>,
    pub page_table: Vec<PageId>,
}

fn common(left: &[Pair], right: &[Pair]) -> usize {
    left.iter().zip(right).take_while(|(l, r)| l == r).count()
}

impl Model {
    pub fn new(page_size: usize, pages: usize, pin_pages_max: usize, slots: [usize; 2]) -> Self {
        Self {
            page_size,
            pages,
            entries: Vec::new(),
            holds: Vec::new(),
            tips: Vec::new(),
            pins: Vec::new(),
            pin_pages_max,
            entry_count: 0,
            ticks: 0,
            shelf: Shelf::new(slots),
            counters: Stats::default(),
        }
    }

    pub fn entry(&self, id: EntryId) -> &Entry {
        self.entries.iter().find(|entry| entry.id == id).unwrap()
    }

    fn with_path(&self, path: &[Pair]) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.path == path)
    }

    /// The positions before the entry's page.
    pub fn above<'a>(&self, path: &'a [Pair]) -> &'a [Pair] {
        &path[..(path.len() - 1) / self.page_size * self.page_size]
    }

    /// `extra`: entries an admission in progress uses.
    pub fn is_protected(&self, entry: &Entry, extra: &[EntryId]) -> bool {
        let is_used = |other: &Entry| {
            let of_hold = |hold: &Hold| {
                hold.table.contains(&Place::Entry(other.id))
                    || hold.full.contains(&other.id)
                    || hold.source == Some(other.id)
            };
            let is_pinned = self.pins.iter().any(|&(_, _, last)| last == other.id);
            is_pinned || extra.contains(&other.id) || self.holds.iter().flatten().any(of_hold)
        };
        let is_full = entry.path.len().is_multiple_of(self.page_size);
        let is_below = |other: &Entry| is_full && self.above(&other.path).starts_with(&entry.path);
        let mut entries = self.entries.iter();
        entries.any(|other| (other.id == entry.id || is_below(other)) && is_used(other))
    }

    fn unprotected(&self, extra: &[EntryId]) -> usize {
        let all = self.entries.iter();
        all.filter(|entry| !self.is_protected(entry, extra)).count()
    }

    fn leased(&self) -> usize {
        let places = self.holds.iter().flatten().flat_map(|hold| &hold.table);
        let pages = places.filter_map(|place| match place {
            Place::Lease(page) | Place::Quarantined(page) => Some(page),
            Place::Entry(_) => None,
        });
        pages.collect::<HashSet<_>>().len()
    }

    pub fn free(&self) -> usize {
        self.pages - self.entries.len() - self.leased()
    }

    pub fn touch(&mut self, path: &[Pair], priority: u8) {
        self.ticks += 1;
        let now = (true, self.ticks + u64::from(priority) * PRIORITY_USES);
        for entry in &mut self.entries {
            // A partial page with the first rows of another page is not on that page's path.
            let is_page = entry.path.len().is_multiple_of(self.page_size);
            if path.starts_with(&entry.path) && (is_page || entry.path.len() == path.len()) {
                entry.last_use = entry.last_use.max(now);
            }
        }
    }

    /// Whether a sequence with `tokens` positions of the entry's path may write on in its page.
    fn can_go_on_in(&self, entry: &Entry, tokens: usize) -> bool {
        let mut holds = self.holds.iter().flatten();
        entry.path.len() == tokens
            && !tokens.is_multiple_of(self.page_size)
            && !holds.any(|hold| hold.table.contains(&Place::Entry(entry.id)))
    }

    /// Unprotected entries whose rows another entry has as well, and more, are not kept.
    pub fn drop_superseded(&mut self) {
        let superseded = |entry: &Entry| {
            let longer = |other: &Entry| {
                other.path.len() > entry.path.len()
                    && other.path.starts_with(&entry.path)
                    && self.above(&other.path) == self.above(&entry.path)
            };
            self.entries.iter().any(longer) && !self.is_protected(entry, &[])
        };
        let all = self.entries.iter();
        let gone: Vec<_> = all.filter(|e| superseded(e)).map(|e| e.id).collect();
        self.entries.retain(|entry| !gone.contains(&entry.id));
    }

    pub fn admit(
        &mut self,
        path: Vec<Pair>,
        reserve_tokens: usize,
        turn: Turn,
        answer: Option<&Answer>,
    ) {
        let known = &path[..path.len() - 1];
        let mut full: Vec<EntryId> = Vec::new();
        for end in (self.page_size..=known.len()).step_by(self.page_size) {
            match self.with_path(&known[..end]) {
                Some(entry) => full.push(entry.id),
                None => break,
            }
        }
        let shared = full.len() * self.page_size;
        let missing = reserve_tokens.div_ceil(self.page_size) - full.len();
        let rows_of = |entry: &Entry| {
            let is_child = self.above(&entry.path) == &path[..shared];
            if is_child {
                common(&entry.path, known) - shared
            } else {
                0
            }
        };
        let best = self.entries.iter().map(rows_of).max().unwrap_or(0);
        let best_sources = self.entries.iter().filter(|entry| rows_of(entry) == best);
        let has_room = |source: Option<EntryId>| {
            let mut extra = full.clone();
            extra.extend(source);
            self.free() + self.unprotected(&extra) >= missing
        };
        let Some(answer) = answer else {
            assert!(!has_room(None), "refused, and there was room");
            return;
        };
        let restored = self.restorable(&path, full.len(), turn.onload_tokens_min);
        if !restored.is_empty() && has_room(None) {
            self.admit_restoring(path, full, &restored, turn, answer);
            return;
        }
        let own_from = full.len();
        let is_source = |entry: &&Entry, page: PageId| best > 0 && entry.page == page;
        let next = answer.page_table[own_from];
        // Rows that are found without a copy are in a page to go on in.
        let in_place = answer.copy.is_none() && answer.hit_tokens > shared;
        let tail = in_place.then(|| {
            let mut sources = best_sources.clone();
            let tail = sources.find(|entry| is_source(entry, next));
            tail.expect("the page has the longest common prefix")
        });
        let source = answer.copy.map(|copy| {
            let mut sources = best_sources.clone();
            let source = sources.find(|entry| is_source(entry, copy.source_page));
            let source = source.expect("the source has the longest common prefix");
            assert_eq!(copy.rows, best);
            assert_eq!(copy.target_page, next);
            assert!(
                !self.can_go_on_in(source, shared + best),
                "no copy is needed"
            );
            source.id
        });
        if let Some(tail) = tail {
            assert!(source.is_none() && self.can_go_on_in(tail, shared + best));
        } else if source.is_none() && best > 0 {
            let mut sources = best_sources.clone();
            let without_room = sources
                .any(|entry| !has_room(Some(entry.id)) && !self.can_go_on_in(entry, shared + best));
            assert!(without_room, "there was room for the copy");
        }
        let tail = tail.map(|entry| entry.id);
        let missing = missing - usize::from(tail.is_some());
        let found = tail.or(source);
        let mut extra = full.clone();
        extra.extend(found);
        assert!(
            self.free() + self.unprotected(&extra) >= missing,
            "there was no room"
        );
        let hit_tokens = shared + if found.is_some() { best } else { 0 };
        assert_eq!(answer.hit_tokens, hit_tokens);
        self.make_room(missing, &extra);
        if let Some(id) = source {
            let path = self.entry(id).path.clone();
            self.touch(&path, turn.priority);
        }
        let (hit, miss) = (hit_tokens as u64, (path.len() - hit_tokens) as u64);
        self.count_found(turn.resumes, hit, miss);
        let mut table: Vec<Place> = full.iter().map(|&id| Place::Entry(id)).collect();
        table.extend(tail.map(Place::Entry));
        let own = answer.page_table[table.len()..].iter();
        table.extend(own.map(|&page| Place::Lease(page)));
        self.holds.push(Some(Hold {
            path,
            table,
            full,
            source,
            hit_tokens,
            onloaded_tokens: 0,
            committed: if tail.is_some() { hit_tokens } else { shared },
            has_committed: false,
            is_detached: false,
            turn,
        }));
    }

    pub fn grow(&mut self, lease: usize, tokens: usize, page_table: Option<&[PageId]>) {
        let before = self.holds[lease].as_ref().unwrap().table.len();
        let missing = tokens.div_ceil(self.page_size).saturating_sub(before);
        let has_room = self.free() + self.unprotected(&[]) >= missing;
        assert_eq!(page_table.is_some(), has_room, "growing by {missing} pages");
        let Some(page_table) = page_table else { return };
        self.make_room(missing, &[]);
        let hold = self.holds[lease].as_mut().unwrap();
        let own = page_table[before..].iter();
        hold.table.extend(own.map(|&page| Place::Lease(page)));
        assert_eq!(hold.table.len(), before + missing);
    }

    pub fn commit(&mut self, lease: usize, path: &[Pair]) {
        let mut hold = self.holds[lease].take().unwrap();
        if path.len() > hold.path.len() {
            hold.path = path.to_vec();
        }
        if path.len() > hold.committed && !hold.is_detached {
            let known = hold.committed.max(hold.hit_tokens);
            self.counters.committed_tokens += path.len().saturating_sub(known) as u64;
            let first = hold.committed / self.page_size;
            hold.source = None;
            hold.committed = path.len();
            hold.has_committed = true;
            for index in first..path.len().div_ceil(self.page_size) {
                let end = path.len().min((index + 1) * self.page_size);
                self.commit_page(&mut hold, index, &path[..end]);
            }
        }
        self.holds[lease] = Some(hold);
        self.drop_superseded();
    }

    fn commit_page(&mut self, hold: &mut Hold, index: usize, path: &[Pair]) {
        let is_full = path.len() == (index + 1) * self.page_size;
        let covers = |entry: &&Entry| {
            entry.path.starts_with(path) && self.above(&entry.path) == self.above(path)
        };
        let id = match (self.entries.iter().find(covers), hold.table[index]) {
            (Some(entry), _) => entry.id,
            (None, Place::Entry(tail)) => {
                let mut entries = self.entries.iter_mut();
                let entry = entries.find(|entry| entry.id == tail).unwrap();
                entry.path = path.to_vec();
                tail
            }
            (None, Place::Lease(page)) => {
                let id = self.entry_count;
                self.entry_count += 1;
                hold.table[index] = Place::Entry(id);
                self.entries.push(Entry {
                    id,
                    path: path.to_vec(),
                    page,
                    last_use: (false, 0),
                });
                id
            }
            (None, Place::Quarantined(_)) => unreachable!("a lease that commits nothing"),
        };
        if is_full {
            self.shelf.forget(path);
            hold.full.push(id);
        }
    }

    pub fn stats(&self) -> Stats {
        Stats {
            pages_total: self.pages,
            pages_free: self.free(),
            pages_cached: self.entries.len(),
            pages_leased: self.leased(),
            pages_evictable: self.unprotected(&[]),
            nodes: 0,
            tips: self.live_tips().count(),
            pages_pinned: self.pages_pinned(),
            pages_host: self.shelf.pages(Kind::Host).len(),
            pages_disk: self.shelf.pages(Kind::Disk).len(),
            offloaded_pages: self.shelf.offloaded_pages,
            dropped_pages: self.shelf.dropped_pages,
            ..self.counters
        }
    }
}
