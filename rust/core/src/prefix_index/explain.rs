//! Explanations: why a prompt misses the cache. Changes nothing, and reveals no token that the asker does not
//! present the namespace of, after a beginning that it presents itself.

use crate::page_keys::PageKey;

use super::namespace::NamespaceId;
use super::run::Run;
use super::search::Matched;
use super::tree::Tree;
use super::{IndexError, PrefixIndex, Prompt, Tier};

/// Tokens shown before and after a difference.
pub const CONTEXT_TOKENS: usize = 8;

/// Why the first token that misses is not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Only the last token misses: it is always computed.
    Hit,
    /// The index never knew what follows, or forgot it long ago.
    Cold,
    /// It was evicted lately.
    Evicted,
    /// Something else of the asker's own, or public, stands there: an edit, a swipe, another template.
    Diverged,
    /// The next tokens stand further on in what is cached: something before them was cut out.
    Truncated,
    /// The token stands there under another namespace of the prompt.
    Namespace,
}

/// The first difference, and what is there instead. The tokens before are the same in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub before: Vec<u32>,
    pub asked: Vec<u32>,
    pub cached: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Tokens that an admission would find, and would not; the first of these is at position `hit_tokens`.
    pub hit_tokens: usize,
    pub miss_tokens: usize,
    /// Of the tokens found, those in a lower tier, by tier.
    pub host_tokens: usize,
    pub disk_tokens: usize,
    pub cause: Cause,
    pub difference: Option<Difference>,
}

impl PrefixIndex {
    /// What an admission of all of a prompt would find, and why not more. `stretches` as there. Assumes that it
    /// restores what there is on the shelf, however little: pages in lower tiers count as hits.
    ///
    /// A tenant's own text and public text may be shown to it. Of other tenants' text not even that it exists
    /// can be told from the answer: it explains as cold.
    pub fn explain(
        &mut self,
        token_ids: &[u32],
        stretches: &[(&[u8], usize)],
    ) -> Result<Explanation, IndexError> {
        let prompt = Prompt {
            token_ids,
            stretches,
            ..Prompt::default()
        };
        self.check_prompt(&prompt)?;
        let mut start = self.start(&prompt);
        let limit = token_ids.len() - 1;
        let mut table = Vec::new();
        let matched = self.tree.find(start.at, &start.path, limit, &mut table);
        let from = matched.at.pages * self.page_size;
        let restored = self.tree.shelved(&table, &start.path, from);
        let explanation = self.tree.explain(&start.path, matched, &restored);
        start.path.clear(&mut self.tree.namespaces);
        self.tree.namespaces.release(start.reply);
        Ok(explanation)
    }
}

impl Tree {
    /// `restored`: pages that follow the match on the shelf. After them the tree has nothing of the path.
    fn explain(&self, path: &Run<'_>, matched: Matched, restored: &[PageKey]) -> Explanation {
        let pages = matched.at.pages + restored.len();
        let on_device = restored.is_empty();
        let partial = matched.partial.filter(|_| on_device);
        let rows = partial.map_or(0, |partial| partial.rows);
        let hit_tokens = pages * self.page_size + rows;
        let mut explanation = Explanation {
            hit_tokens,
            miss_tokens: path.len() - hit_tokens,
            host_tokens: self.page_size * self.shelf.count(restored, Tier::Host),
            disk_tokens: self.page_size * self.shelf.count(restored, Tier::Disk),
            cause: Cause::Hit,
            difference: None,
        };
        if explanation.miss_tokens == 1 {
            return explanation;
        }
        let asked = path.pieces(hit_tokens..path.len()).next();
        let (namespace, asked) = asked.expect("a token misses");
        let instead = on_device
            .then(|| self.instead(matched, namespace))
            .flatten();
        explanation.cause = if self.was_evicted(path, pages) {
            Cause::Evicted
        } else if on_device && self.stands_elsewhere(path, matched, namespace, asked[0]) {
            Cause::Namespace
        } else {
            match instead {
                None => Cause::Cold,
                Some(ref cached) if stands_later(asked, cached) => Cause::Truncated,
                Some(_) => Cause::Diverged,
            }
        };
        explanation.difference = instead.map(|cached| {
            let before = hit_tokens.saturating_sub(CONTEXT_TOKENS)..hit_tokens;
            Difference {
                before: path.tokens()[before].to_vec(),
                asked: asked[..asked.len().min(CONTEXT_TOKENS)].to_vec(),
                cached: cached[..cached.len().min(CONTEXT_TOKENS)].to_vec(),
            }
        });
        explanation
    }

    /// What the tree has after the match, as far as it stands in `namespace`.
    fn instead(&self, matched: Matched, namespace: NamespaceId) -> Option<Vec<u32>> {
        let (id, from) = match (matched.partial, matched.at.node) {
            (Some(partial), _) => {
                let first = matched.at.pages - self.node(partial.node).start;
                (partial.node, first * self.page_size + partial.rows)
            }
            (None, Some(id)) if matched.at.pages < self.node(id).end() => {
                let first = matched.at.pages - self.node(id).start;
                (id, first * self.page_size)
            }
            (None, parent) => (self.first_child_in(parent, namespace)?, 0),
        };
        let node = self.node(id);
        let (there, piece) = node.borders.pieces(from..node.borders.len()).next()?;
        (there == namespace).then(|| self.tokens_of(node, piece))
    }

    /// Whether the page that misses is one that was evicted lately.
    fn was_evicted(&self, path: &Run<'_>, pages: usize) -> bool {
        if path.len() < (pages + 1) * self.page_size {
            return false;
        }
        let key = (0..=pages).fold(self.root_key(), |above, page| {
            let rows = page * self.page_size..(page + 1) * self.page_size;
            self.key_of(&above, path.pieces(rows))
        });
        self.evicted.contains(&key)
    }

    /// Whether the token stands after the match under another namespace of the path.
    fn stands_elsewhere(
        &self,
        path: &Run<'_>,
        matched: Matched,
        own: NamespaceId,
        token_id: u32,
    ) -> bool {
        let mut others = path.borders().namespaces().filter(|&other| other != own);
        others.any(|other| {
            let instead = self.instead(matched, other);
            instead.is_some_and(|tokens| tokens[0] == token_id)
        })
    }
}

/// Whether the first tokens of `asked` stand in `cached`, but not at once.
fn stands_later(asked: &[u32], cached: &[u32]) -> bool {
    asked.len() >= CONTEXT_TOKENS
        && cached
            .windows(CONTEXT_TOKENS)
            .any(|window| *window == asked[..CONTEXT_TOKENS])
}
