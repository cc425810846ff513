//! Admission: match, lock and reserve as one step. Changes nothing when it cannot be had.

use std::borrow::Cow;

use crate::page_keys::PageKey;

use super::borders::Borders;
use super::lease::{Lease, LeaseId, RowCopy};
use super::locks::LockId;
use super::namespace::NamespaceId;
use super::pages::PageId;
use super::run::Run;
use super::search::{Matched, Partial};
use super::tree::Position;
use super::{IndexError, PrefixIndex};

/// What to admit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prompt<'a> {
    /// All of the prompt, or what follows the tip `after`.
    pub token_ids: &'a [u32],
    /// (namespace, tokens) in path order, covering `token_ids`. One of no tokens at the end names the
    /// namespace of the reply. After a tip there may be none: the reply stands in the namespace that the
    /// path ends in.
    pub stretches: &'a [(&'a [u8], usize)],
    /// The number of an earlier lease, to go on from its tip. The index takes the caller's word that the
    /// asker may know the tip's path.
    pub after: Option<u64>,
    /// Whose turn it is, for the tip that it leaves; empty for none.
    pub conversation: &'a [u8],
    /// Pages of a higher priority are evicted later: one step outlives `PRIORITY_USES` later uses.
    pub priority: u8,
    /// Whether this goes on with a sequence that was preempted: what it finds and lacks is counted apart.
    pub resumes: bool,
    /// From how many tokens on a run of pages in lower tiers is restored instead of computed; `None` for never.
    pub onload_tokens_min: Option<usize>,
}

/// What an admission starts from.
pub(super) struct Start<'a> {
    /// The end of the full pages known before.
    pub(super) at: Position,
    /// Those pages.
    pub(super) table: Vec<PageId>,
    /// The path from there on.
    pub(super) path: Run<'a>,
    /// All of the prompt's tokens.
    pub(super) tokens: usize,
    pub(super) reply: NamespaceId,
}

/// What locks and pages an admission got.
pub(super) struct Taken {
    pub(super) lock: Option<LockId>,
    /// The partial page to go on in, or to copy from and the lock on it.
    pub(super) tail: Option<Partial>,
    pub(super) source: Option<(Partial, LockId)>,
    pub(super) own: Vec<PageId>,
    /// How many of these are restored, the first ones; not with a tail or a source.
    pub(super) restored: usize,
}

impl PrefixIndex {
    /// Match, lock and reserve.
    ///
    /// Finds the longest cached prefix of all but the last token, locks it, and takes pages for
    /// `reserve_tokens` positions in all. A page that matches in part is continued in place if the match is all
    /// of it and no other lease writes in it; else its rows are copied. Full pages that follow the device's in
    /// a row on the shelf are restored, into pages of the lease's own, if the prompt asks for it; they count as
    /// found. `None`, and no change, when the pages cannot be had. From a tip, nothing of what is before it is
    /// walked over or compared.
    pub fn admit(
        &mut self,
        prompt: &Prompt<'_>,
        reserve_tokens: usize,
    ) -> Result<Option<LeaseId>, IndexError> {
        let tokens = self.check_prompt(prompt)?;
        self.check_room(tokens, reserve_tokens)?;
        let mut start = self.start(prompt);
        let limit = start.tokens - 1 - start.at.pages * self.page_size;
        let known = start.table.len();
        let matched = self
            .tree
            .find(start.at, &start.path, limit, &mut start.table);
        let missing = reserve_tokens.div_ceil(self.page_size) - matched.at.pages;
        let run = self.restorable(&start, matched, prompt.onload_tokens_min);
        let Some(taken) = self.lock_and_take(matched, missing, &run) else {
            start.table.truncate(known);
            self.give_up(prompt, start);
            return Ok(None);
        };
        let lease = self.new_lease(prompt, start, matched, taken);
        self.counters.admitted(&lease);
        let id = self.lease_count;
        self.lease_count += 1;
        self.leases.insert(id, lease);
        Ok(Some(LeaseId(id)))
    }

    /// The tokens of a sound prompt, those before a tip included.
    pub(super) fn check_prompt(&self, prompt: &Prompt<'_>) -> Result<usize, IndexError> {
        let before = match prompt.after {
            Some(after) => self.node_tokens(after).ok_or(IndexError::UnknownNode)?,
            None => 0,
        };
        let new = prompt.token_ids.len();
        let tokens = before + new;
        if tokens == 0 {
            return Err(IndexError::NoTokens);
        }
        let mut counts = prompt.stretches.iter().map(|&(_, count)| count);
        if counts.try_fold(0, usize::checked_add) != Some(new) {
            return Err(IndexError::Stretches { tokens: new });
        }
        Ok(tokens)
    }

    fn check_room(&self, tokens: usize, reserve_tokens: usize) -> Result<(), IndexError> {
        if reserve_tokens < tokens {
            return Err(IndexError::ReserveTooSmall {
                reserve_tokens,
                tokens,
            });
        }
        let capacity = self.pages.total() * self.page_size;
        if reserve_tokens > capacity {
            return Err(IndexError::OverCapacity {
                reserve_tokens,
                capacity,
            });
        }
        Ok(())
    }

    /// The path and the pages to begin with: nothing, or those of the tip.
    pub(super) fn start<'a>(&mut self, prompt: &Prompt<'a>) -> Start<'a> {
        let (at, table, before, rows, mut borders) = match prompt.after {
            Some(after) => self.start_at_tip(after, prompt.token_ids.len()),
            None => (
                Position::ROOT,
                Vec::new(),
                0,
                Vec::new(),
                Borders::default(),
            ),
        };
        let namespaces = &mut self.tree.namespaces;
        let mut reply = None;
        for &(namespace, tokens) in prompt.stretches {
            let namespace = namespaces.acquire(namespace);
            borders.push(namespace, tokens, namespaces);
            if let Some(earlier) = reply.replace(namespace) {
                namespaces.release(earlier);
            }
        }
        let tokens = if rows.is_empty() {
            Cow::Borrowed(prompt.token_ids)
        } else {
            Cow::Owned([&rows, prompt.token_ids].concat())
        };
        let reply = reply.unwrap_or_else(|| {
            let last = borders.last_namespace();
            let last = last.expect("a prompt of tokens has a stretch, or is after a tip");
            namespaces.retain(last);
            last
        });
        Start {
            at,
            table,
            path: Run::new(tokens, borders),
            tokens: before + prompt.token_ids.len(),
            reply,
        }
    }

    /// The last border of pages before the tip's end, or before the last token of all: its position, the
    /// pages before it, the tip's tokens, and the rows after it, which are in the page the tip ends in.
    fn start_at_tip(
        &mut self,
        after: u64,
        new: usize,
    ) -> (Position, Vec<PageId>, usize, Vec<u32>, Borders) {
        let tip = self.tree.tips.get_mut(after).expect("looked up before");
        let (id, tokens, table) = (tip.node, tip.tokens, tip.table.take());
        // With a new token this leaves at least one to pass from a full last page to the next.
        let pages = tokens.min(tokens + new - 1) / self.page_size;
        let at = self.tree.position(id, pages);
        let mut table = table.unwrap_or_else(|| self.tree.page_table(at));
        table.truncate(pages);
        let tree = &mut self.tree;
        let node = tree.nodes.get(id.0);
        let mut borders = Borders::default();
        let range = pages * self.page_size..tokens;
        if range.is_empty() {
            return (at, table, tokens, Vec::new(), borders);
        }
        let before = node.start * self.page_size;
        let range = range.start - before..range.end - before;
        let rows = tree.tokens_of(node, range.clone());
        borders.append(&node.borders, range, &mut tree.namespaces);
        (at, table, tokens, rows, borders)
    }

    /// An admission was not to be had: give back what its start took.
    fn give_up(&mut self, prompt: &Prompt<'_>, mut start: Start<'_>) {
        start.path.clear(&mut self.tree.namespaces);
        self.tree.namespaces.release(start.reply);
        if let Some(after) = prompt.after {
            self.tree.return_table(after, start.table);
        }
    }

    /// Lock what was found, then take the pages that are missing. The locks come first:
    /// a reservation must not evict its own prefix.
    ///
    /// Sharing a page never costs room, nor does going on in one, but a copy keeps its source besides the
    /// target. When that one page is what is missing, the rows are computed again instead. A `run` to restore
    /// takes the place of a partial match, unless going on in that page is what there is room for.
    fn lock_and_take(
        &mut self,
        matched: Matched,
        missing: usize,
        run: &[PageKey],
    ) -> Option<Taken> {
        if !run.is_empty()
            && let Some(taken) = self.take_and_restore(matched.at, missing, run)
        {
            return Some(taken);
        }
        let after = |partial: Partial| Position {
            node: Some(partial.node),
            pages: matched.at.pages + 1,
        };
        let tail = matched
            .partial
            .filter(|partial| self.tree.can_go_on_in(matched.at, *partial));
        let end = tail.map_or(matched.at, after);
        let lock = self.tree.lock(end);
        let mut taken = Taken {
            lock,
            tail,
            source: None,
            own: Vec::new(),
            restored: 0,
        };
        if let (Some(partial), None) = (matched.partial, tail) {
            let source = self.tree.lock(after(partial)).expect("not at the root");
            if let Some(own) = self.take_pages(missing) {
                taken.source = Some((partial, source));
                taken.own = own;
                return Some(taken);
            }
            self.unlock(source);
        }
        if let Some(own) = self.take_pages(missing - usize::from(tail.is_some())) {
            taken.own = own;
            return Some(taken);
        }
        if let Some(lock) = taken.lock {
            self.unlock(lock);
        }
        None
    }

    fn new_lease(
        &mut self,
        prompt: &Prompt<'_>,
        start: Start<'_>,
        matched: Matched,
        taken: Taken,
    ) -> Lease {
        let mut table = start.table;
        let full = matched.at.pages;
        let mut pending = start.path;
        let found = (full - start.at.pages) * self.page_size;
        pending.drop_front(found, &mut self.tree.namespaces);
        let shared = full * self.page_size;
        let (mut hit_tokens, mut committed) = (shared, shared);
        if let Some(tail) = taken.tail {
            let node = self.tree.node_mut(tail.node);
            node.has_writer = true;
            table.push(node.pages[full - node.start]);
            hit_tokens += tail.rows;
            committed = hit_tokens;
        }
        let copy = taken.source.map(|(partial, lock)| {
            let node = self.tree.node(partial.node);
            let copy = RowCopy {
                source_page: node.pages[full - node.start],
                // At least one token is computed, so at least one page is the lease's own.
                target_page: taken.own[0],
                rows: partial.rows,
            };
            // The shared path is touched at release; the lock on the source ends before that.
            self.tree
                .touch(self.tree.locked(Some(lock)), prompt.priority);
            hit_tokens += partial.rows;
            (lock, copy)
        });
        table.extend(taken.own);
        let onloaded_tokens = taken.restored * self.page_size;
        hit_tokens += onloaded_tokens;
        Lease {
            page_size: self.page_size,
            table,
            full,
            lock: taken.lock,
            has_tail: taken.tail.is_some(),
            duplicates: Vec::new(),
            set_aside: Vec::new(),
            copy,
            pending: pending.into_owned(),
            reply: start.reply,
            prompt_tokens: start.tokens,
            hit_tokens,
            onloaded_tokens,
            committed,
            has_committed: false,
            conversation: self.tree.tips.conversation(prompt),
            continued: prompt.after,
            priority: prompt.priority,
            resumes: prompt.resumes,
            quarantined: None,
        }
    }
}
