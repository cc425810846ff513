//! Single situations of the prefix index. Random ones are in `tests/prefix_index`.

#![allow(clippy::unwrap_used)]

mod accounting;
mod borders;
mod dump;
mod explain;
mod matching;
mod pins;
mod tier_dump;
mod tiers;
mod tips;

use super::*;

const PUBLIC: &[u8] = b"public";
const ALICE: &[u8] = b"tenant alice";
const BOB: &[u8] = b"tenant bob";

fn index(page_size: usize, pages: usize) -> PrefixIndex {
    PrefixIndex::new(page_size, pages).unwrap()
}

fn tokens(count: u32) -> Vec<u32> {
    (100..100 + count).collect()
}

fn admit_in(
    index: &mut PrefixIndex,
    token_ids: &[u32],
    stretches: &[(&[u8], usize)],
) -> Option<LeaseId> {
    let lease = ask(index, token_ids, stretches, token_ids.len()).unwrap();
    index.check().unwrap();
    lease
}

fn ask(
    index: &mut PrefixIndex,
    token_ids: &[u32],
    stretches: &[(&[u8], usize)],
    reserve_tokens: usize,
) -> Result<Option<LeaseId>, IndexError> {
    let prompt = Prompt {
        token_ids,
        stretches,
        ..Prompt::default()
    };
    index.admit(&prompt, reserve_tokens)
}

/// Take out the page that goes first.
fn evict_page(index: &mut PrefixIndex) {
    let gone = index.tree.evict_page().unwrap();
    index.pages.give_back(gone.page);
    index.check().unwrap();
}

fn admit(index: &mut PrefixIndex, token_ids: &[u32]) -> LeaseId {
    admit_in(index, token_ids, &[(ALICE, token_ids.len())]).unwrap()
}

/// Commit `token_ids`, from position 0; appends those that are new.
fn commit(index: &mut PrefixIndex, lease: LeaseId, token_ids: &[u32]) {
    let known = index.lease(lease).unwrap().tokens();
    if let Some(new) = token_ids.get(known..) {
        index.append(lease, new).unwrap();
    }
    assert!(index.token_ids(lease).unwrap().starts_with(token_ids));
    index.commit(lease, token_ids.len()).unwrap();
    index.check().unwrap();
}

fn release(index: &mut PrefixIndex, lease: LeaseId) {
    index.release(lease);
    index.check().unwrap();
}

/// One request from beginning to end; returns its hit tokens.
fn serve_in(index: &mut PrefixIndex, token_ids: &[u32], stretches: &[(&[u8], usize)]) -> usize {
    let lease = admit_in(index, token_ids, stretches).unwrap();
    let hit_tokens = hit(index, lease);
    commit(index, lease, token_ids);
    release(index, lease);
    hit_tokens
}

fn serve(index: &mut PrefixIndex, token_ids: &[u32]) -> usize {
    serve_in(index, token_ids, &[(ALICE, token_ids.len())])
}

fn hit(index: &PrefixIndex, lease: LeaseId) -> usize {
    index.lease(lease).unwrap().hit_tokens()
}

fn copy(index: &PrefixIndex, lease: LeaseId) -> Option<RowCopy> {
    index.lease(lease).unwrap().copy()
}

fn table(index: &PrefixIndex, lease: LeaseId) -> Vec<PageId> {
    index.lease(lease).unwrap().page_table().to_vec()
}
