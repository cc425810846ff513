//! Tips: where finished turns ended. Owns what continuing from them needs; never keeps a page from eviction.
//!
//! A tip is known by its lease's number. It dies with the page it ends in. There is at most one in a page, and a
//! conversation keeps two: the newest, and the one that was continued to it (for another reply to the same
//! message). A newer one takes the place of the older.

use std::sync::Arc;

use crate::own_map::OwnMap;

use super::admit::Prompt;
use super::pages::PageId;
use super::tree::{NodeId, Tree};

/// The end of what one lease committed.
pub(super) struct Tip {
    /// The node that its last page is in.
    pub(super) node: NodeId,
    /// Positions of its path.
    pub(super) tokens: usize,
    /// The full pages of its path, unless a lease has taken them along.
    pub(super) table: Option<Vec<PageId>>,
    /// None for a request of no conversation.
    pub(super) conversation: Option<Arc<[u8]>>,
    /// The tip that was continued to it.
    pub(super) continued: Option<u64>,
}

#[derive(Default)]
pub(super) struct Tips {
    by_number: OwnMap<u64, Tip>,
    newest: OwnMap<Arc<[u8]>, u64>,
}

impl Tips {
    pub(super) fn get(&self, number: u64) -> Option<&Tip> {
        self.by_number.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Tip> {
        self.by_number.get_mut(&number)
    }

    /// The prompt's conversation; the bytes of its tip are shared, so that to compare them later reads no other memory.
    pub(super) fn conversation(&self, prompt: &Prompt<'_>) -> Option<Arc<[u8]>> {
        let before = prompt.after.and_then(|after| self.get(after));
        match before.and_then(|tip| tip.conversation.as_ref()) {
            Some(same) if **same == *prompt.conversation => Some(Arc::clone(same)),
            _ => (!prompt.conversation.is_empty()).then(|| prompt.conversation.into()),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Tip)> {
        self.by_number.iter().map(|(&number, tip)| (number, tip))
    }

    /// The conversations' newest tips.
    pub(super) fn newest(&self) -> impl Iterator<Item = (&Arc<[u8]>, u64)> {
        self.newest.iter().map(|(key, &number)| (key, number))
    }

    /// A tip is gone: its conversation goes back to the one before it, if that still exists.
    pub(super) fn forget(&mut self, number: u64) -> Option<Tip> {
        let tip = self.by_number.remove(&number)?;
        if let Some(conversation) = &tip.conversation
            && self.newest.get(conversation) == Some(&number)
        {
            match tip
                .continued
                .filter(|&before| self.is_of(before, conversation))
            {
                Some(before) => self.newest.insert(Arc::clone(conversation), before),
                None => self.newest.remove(conversation),
            };
        }
        Some(tip)
    }

    fn is_of(&self, number: u64, conversation: &[u8]) -> bool {
        let tip = self.by_number.get(&number);
        tip.is_some_and(|tip| tip.conversation.as_deref() == Some(conversation))
    }

    /// The tips of a conversation that a newer one, continued from `continued`, takes the place of.
    fn outdated(&self, conversation: &[u8], continued: Option<u64>) -> Vec<u64> {
        let newest = self.newest.get(conversation).copied();
        let before = newest.and_then(|number| self.by_number.get(&number)?.continued);
        let before = before.filter(|&number| self.is_of(number, conversation));
        let kept = [newest, before].into_iter().flatten();
        kept.filter(|&number| Some(number) != continued).collect()
    }
}

impl Tree {
    /// Keep a tip in place of older ones. Where its conversation went before is superseded.
    pub(super) fn add_tip(&mut self, number: u64, tip: Tip) {
        let mut outdated = Vec::new();
        if let Some(conversation) = &tip.conversation {
            let numbers = self.tips.outdated(conversation, tip.continued);
            outdated.extend(
                numbers
                    .into_iter()
                    .filter_map(|number| self.remove_tip(number)),
            );
            self.tips.newest.insert(Arc::clone(conversation), number);
        }
        let pages = tip.tokens.div_ceil(self.page_size);
        // The tip before it in the node is continued rarely from now on: it can find its pages again.
        let before = self.node(tip.node).tips.range(..pages).next_back();
        if let Some((_, &before)) = before {
            self.tips.get_mut(before).expect("a live tip").table = None;
        }
        let older = self.update(tip.node, |node, _| node.tips.insert(pages, number));
        self.tips.by_number.insert(number, tip);
        if let Some(older) = older {
            self.tips.forget(older);
        }
        for Tip { node, tokens, .. } in outdated {
            self.supersede(node, tokens.div_ceil(self.page_size));
        }
    }

    /// Give a tip the page table back that a lease took along, if it has none now.
    pub(super) fn return_table(&mut self, number: u64, mut table: Vec<PageId>) {
        if let Some(tip) = self.tips.get_mut(number) {
            let pages = tip.tokens / self.page_size;
            if tip.table.is_none() && table.len() >= pages {
                table.truncate(pages);
                tip.table = Some(table);
            }
        }
    }

    fn remove_tip(&mut self, number: u64) -> Option<Tip> {
        let tip = self.tips.forget(number)?;
        let pages = tip.tokens.div_ceil(self.page_size);
        self.update(tip.node, |node, _| node.tips.remove(&pages));
        Some(tip)
    }
}
