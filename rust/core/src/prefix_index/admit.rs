//! Admission: match, lock and reserve as one step. Changes nothing when it cannot be had.

use super::lease::{Lease, LeaseId, Owner, RowCopy, TableEntry};
use super::namespace::{NamespaceId, PathToken};
use super::pages::PageId;
use super::tree::Matched;
use super::{IndexError, PrefixIndex};

impl PrefixIndex {
    /// Match, lock and reserve.
    ///
    /// Finds the longest cached prefix of all but the last token, locks it, and takes pages for
    /// `reserve_tokens` positions in all. `stretches` are (namespace, tokens) in path order and
    /// cover the prompt; one of no tokens at the end names the namespace of the reply. `None`, and
    /// no change, when the pages cannot be had.
    pub fn admit(
        &mut self,
        token_ids: &[u32],
        stretches: &[(&[u8], usize)],
        reserve_tokens: usize,
    ) -> Result<Option<LeaseId>, IndexError> {
        self.check_request(token_ids.len(), stretches, reserve_tokens)?;
        let namespaces: Vec<NamespaceId> = stretches
            .iter()
            .map(|(namespace, _)| self.namespaces.acquire(namespace))
            .collect();
        let mut path = Vec::with_capacity(reserve_tokens);
        let mut rest = token_ids;
        for (&namespace, &(_, tokens)) in namespaces.iter().zip(stretches) {
            let (stretch, after) = rest.split_at(tokens);
            path.extend(
                stretch
                    .iter()
                    .map(|&token| PathToken::new(namespace, token)),
            );
            rest = after;
        }
        let matched = self.tree.find(&path[..path.len() - 1], self.page_size);
        let pages = reserve_tokens.div_ceil(self.page_size);
        let Some((matched, own)) = self.lock_and_take(matched, pages) else {
            for namespace in namespaces {
                self.namespaces.release(namespace);
            }
            return Ok(None);
        };
        let lease = self.new_lease(path, namespaces, &matched, &own);
        self.counters.hit_tokens += lease.hit_tokens as u64;
        self.counters.miss_tokens += (token_ids.len() - lease.hit_tokens) as u64;
        let id = self.lease_count;
        self.lease_count += 1;
        self.leases.insert(id, lease);
        Ok(Some(LeaseId(id)))
    }

    fn check_request(
        &self,
        tokens: usize,
        stretches: &[(&[u8], usize)],
        reserve_tokens: usize,
    ) -> Result<(), IndexError> {
        if tokens == 0 {
            return Err(IndexError::NoTokens);
        }
        let mut counts = stretches.iter().map(|&(_, count)| count);
        if counts.try_fold(0, usize::checked_add) != Some(tokens) {
            return Err(IndexError::Stretches { tokens });
        }
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

    /// Lock what was found, then take the pages that are missing to `pages`. The locks come first:
    /// a reservation must not evict its own prefix.
    ///
    /// Sharing a page never costs room, but a copy keeps its source besides the target. When that
    /// one page is what is missing, the rows are computed again instead.
    fn lock_and_take(&mut self, matched: Matched, pages: usize) -> Option<(Matched, Vec<PageId>)> {
        let missing = pages - matched.nodes.len();
        let deepest = matched.nodes.last().copied();
        if let Some(node) = deepest {
            self.tree.lock(node);
        }
        if let Some((source, _)) = matched.partial {
            self.tree.lock(source);
            if let Some(own) = self.take_pages(missing) {
                return Some((matched, own));
            }
            self.unlock(source);
        }
        if let Some(own) = self.take_pages(missing) {
            let partial = None;
            return Some((Matched { partial, ..matched }, own));
        }
        if let Some(node) = deepest {
            self.unlock(node);
        }
        None
    }

    fn new_lease(
        &mut self,
        path: Vec<PathToken>,
        namespaces: Vec<NamespaceId>,
        matched: &Matched,
        own: &[PageId],
    ) -> Lease {
        let deepest = matched.nodes.last().copied();
        let shared = matched.nodes.iter().map(|&node| TableEntry {
            page: self.tree.node(node).page,
            owner: Owner::Node(node),
        });
        let table = shared.chain(own.iter().map(|&page| TableEntry {
            page,
            owner: Owner::Lease,
        }));
        let table = table.collect();
        let shared_tokens = matched.nodes.len() * self.page_size;
        let copy = matched.partial.map(|(source, rows)| {
            let copy = RowCopy {
                source_page: self.tree.node(source).page,
                // At least one token is computed, so at least one page is the lease's own.
                target_page: own[0],
                rows,
            };
            (source, copy)
        });
        // The shared path is touched at release; the lock on the source ends before that.
        if let Some((source, _)) = copy {
            self.tree.touch(source);
        }
        Lease {
            path,
            namespaces,
            table,
            deepest,
            tail: None,
            set_aside: Vec::new(),
            copy,
            hit_tokens: shared_tokens + copy.map_or(0, |(_, copy)| copy.rows),
            committed: shared_tokens,
            page_size: self.page_size,
        }
    }
}
