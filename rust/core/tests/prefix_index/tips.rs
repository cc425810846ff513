//! The model's tips and pins: where leases ended, what they keep, and what they leave behind.

use appliance_core::prefix_index::IndexError;

use crate::AnyTurn;
use crate::model::{Entry, EntryId, Model, Pair, Place};

/// Where a released lease ended.
#[derive(Debug)]
pub struct Tip {
    pub number: u64,
    pub path: Vec<Pair>,
    /// The entry it ends in: it dies with it.
    pub entry: EntryId,
    pub turn: Turn,
}

const CONVERSATIONS: [&[u8]; 4] = [b"", b"a", b"a", b"b"];

/// Whose turn a request is, and the tip it goes on from.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub conversation: &'static [u8],
    pub continued: Option<u64>,
    pub priority: u8,
    pub resumes: bool,
    pub onload_tokens_min: Option<usize>,
}

impl Turn {
    pub fn of((conversation, priority, resumes, onload_tokens_min): AnyTurn) -> Self {
        Self {
            conversation: CONVERSATIONS[conversation as usize],
            continued: None,
            priority,
            resumes,
            onload_tokens_min,
        }
    }
}

impl Model {
    pub fn release(&mut self, lease: usize, number: u64) {
        let Some(hold) = self.holds[lease].take() else {
            return;
        };
        let last = match hold.table.get(hold.full.len()) {
            Some(&Place::Entry(tail)) => Some(tail),
            _ => hold.full.last().copied(),
        };
        if let Some(id) = last {
            let path = self.entry(id).path.clone();
            self.touch(&path, hold.turn.priority);
            if hold.has_committed && path.len() == hold.committed {
                self.add_tip(Tip {
                    number,
                    path,
                    entry: id,
                    turn: hold.turn,
                });
            }
        }
        self.drop_superseded();
    }

    /// A conversation keeps its newest tip and the one continued to it, a page the newest.
    pub fn add_tip(&mut self, tip: Tip) {
        let is_outdated = |other: &Tip| {
            let of_conversation = !tip.turn.conversation.is_empty()
                && other.turn.conversation == tip.turn.conversation;
            of_conversation && Some(other.number) != tip.turn.continued
        };
        let (outdated, mut kept): (Vec<Tip>, Vec<Tip>) = std::mem::take(&mut self.tips)
            .into_iter()
            .partition(is_outdated);
        kept.retain(|other| other.entry != tip.entry);
        kept.push(tip);
        self.tips = kept;
        for other in outdated {
            self.supersede(&other);
        }
    }

    /// Where a conversation went before goes first, but for what a tip or a lock is on.
    fn supersede(&mut self, old: &Tip) {
        let is_on =
            |tip: &Tip, entry: &Entry| tip.entry == entry.id || tip.path.starts_with(&entry.path);
        if !self.entries.iter().any(|entry| entry.id == old.entry) {
            return;
        }
        let is_superseded = |entry: &&Entry| {
            let is_kept = self.live_tips().any(|tip| is_on(tip, entry));
            is_on(old, entry) && !is_kept && !self.is_protected(entry, &[])
        };
        let all = self.entries.iter();
        let superseded: Vec<EntryId> = all.filter(is_superseded).map(|e| e.id).collect();
        for entry in &mut self.entries {
            if superseded.contains(&entry.id) {
                entry.last_use.0 = false;
            }
        }
    }

    /// Judges the answer to a pin.
    pub fn pin(&mut self, number: u64, answer: &Result<(), IndexError>) {
        let tip = self.live_tips().find(|tip| tip.number == number);
        let tip = tip.map(|tip| (tip.path.len().div_ceil(self.page_size), tip.entry));
        let pinned = self.pages_pinned();
        let pages_max = self.pin_pages_max;
        let is_pinned = self.pins.iter().any(|&(other, ..)| other == number);
        let expected = match tip {
            _ if is_pinned => Ok(()),
            None => Err(IndexError::UnknownNode),
            Some((pages, _)) if pinned + pages > pages_max => Err(IndexError::PinBudget {
                pages,
                pinned,
                pages_max,
            }),
            Some((pages, entry)) => {
                self.pins.push((number, pages, entry));
                Ok(())
            }
        };
        assert_eq!(*answer, expected);
    }

    pub fn unpin(&mut self, number: u64) -> bool {
        let before = self.pins.len();
        self.pins.retain(|&(other, ..)| other != number);
        self.drop_superseded();
        self.pins.len() < before
    }

    pub fn pages_pinned(&self) -> usize {
        self.pins.iter().map(|&(_, pages, _)| pages).sum()
    }

    /// The path to a tip, if it is known.
    pub fn tip(&self, number: u64) -> Option<&[Pair]> {
        let tip = self.live_tips().find(|tip| tip.number == number);
        tip.map(|tip| &*tip.path)
    }

    pub fn live_tips(&self) -> impl Iterator<Item = &Tip> {
        let lives = |tip: &&Tip| self.entries.iter().any(|entry| entry.id == tip.entry);
        self.tips.iter().filter(lives)
    }
}
