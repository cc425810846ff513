//! Going on from a finished turn.

use super::*;

fn go_on(
    index: &mut PrefixIndex,
    after: LeaseId,
    new: &[u32],
    reserve_tokens: usize,
) -> Result<Option<LeaseId>, IndexError> {
    let prompt = Prompt {
        token_ids: new,
        stretches: &[(ALICE, new.len())],
        after: Some(after.number()),
        conversation: b"chat",
        ..Prompt::default()
    };
    let lease = index.admit(&prompt, reserve_tokens);
    index.check().unwrap();
    lease
}

/// A turn of the conversation "chat": `new` tokens after `after`, all of them committed.
fn turn(index: &mut PrefixIndex, after: LeaseId, new: &[u32]) -> LeaseId {
    let tokens = index.node_tokens(after.number()).unwrap() + new.len();
    let lease = go_on(index, after, new, tokens).unwrap().unwrap();
    index.commit(lease, tokens).unwrap();
    release(index, lease);
    lease
}

fn first_turn(index: &mut PrefixIndex, token_ids: &[u32]) -> LeaseId {
    let prompt = Prompt {
        token_ids,
        stretches: &[(ALICE, token_ids.len())],
        after: None,
        conversation: b"chat",
        ..Prompt::default()
    };
    let lease = index.admit(&prompt, token_ids.len()).unwrap().unwrap();
    commit(index, lease, token_ids);
    release(index, lease);
    lease
}

fn known(index: &PrefixIndex, lease: LeaseId) -> Option<usize> {
    index.node_tokens(lease.number())
}

#[test]
fn a_continuation_computes_the_new_tokens_and_leaves_the_next_tip() {
    let mut index = index(4, 32);
    let path = tokens(100);
    let mut tip = first_turn(&mut index, &path[..10]);
    for end in [11, 12, 13, 20, 26] {
        let before = known(&index, tip).unwrap();
        let lease = go_on(&mut index, tip, &path[before..end], end).unwrap();
        let lease = lease.unwrap();
        assert_eq!((hit(&index, lease), copy(&index, lease)), (before, None));
        assert_eq!(index.lease(lease).unwrap().prompt_tokens(), end);
        assert_eq!(index.token_ids(lease).unwrap(), path[..end]);
        assert_eq!(known(&index, lease), None, "the lease is not released");
        index.commit(lease, end).unwrap();
        release(&mut index, lease);
        tip = lease;
    }
    assert_eq!(serve(&mut index, &path[..27]), 26);
    let stats = index.stats();
    assert_eq!((stats.pages_cached, stats.nodes), (7, 1));
}

#[test]
fn the_page_table_goes_along_and_is_not_copied() {
    let mut index = index(4, 64);
    let tip = first_turn(&mut index, &tokens(100));
    // The first page more makes room for others.
    let tip = turn(&mut index, tip, &[1]);
    let place = |index: &PrefixIndex, lease: LeaseId| {
        let tip = index.tree.tips.get(lease.number()).unwrap();
        tip.table.as_ref().map(Vec::as_ptr)
    };
    let before = place(&index, tip).unwrap();
    let lease = go_on(&mut index, tip, &[1], 102).unwrap().unwrap();
    assert_eq!(index.lease(lease).unwrap().page_table().as_ptr(), before);
    assert_eq!(place(&index, tip), None);
    // Nothing is committed: it goes back.
    release(&mut index, lease);
    assert_eq!(known(&index, lease), None);
    assert_eq!(place(&index, tip), Some(before));
    // There are no pages: it stays.
    let other = admit_in(&mut index, &[7; 128], &[(BOB, 128)]).unwrap();
    assert_eq!(go_on(&mut index, tip, &[1], 132), Ok(None));
    assert_eq!(place(&index, tip), Some(before));
    release(&mut index, other);
    let next = turn(&mut index, tip, &[1, 2]);
    assert_eq!(place(&index, next), Some(before));
}

#[test]
fn two_sequences_may_go_on_from_one_tip_at_once() {
    let mut index = index(4, 32);
    let tip = first_turn(&mut index, &tokens(10));
    let first = go_on(&mut index, tip, &[1, 2, 3], 13).unwrap().unwrap();
    let second = go_on(&mut index, tip, &[1, 2, 4], 13).unwrap().unwrap();
    assert_eq!((hit(&index, first), copy(&index, first)), (10, None));
    assert_eq!(
        (hit(&index, second), copy(&index, second).unwrap().rows),
        (10, 2)
    );
    assert_eq!(table(&index, first)[..2], table(&index, second)[..2]);
    assert_ne!(table(&index, first)[2], table(&index, second)[2]);
    index.commit(first, 13).unwrap();
    index.commit(second, 13).unwrap();
    index.check().unwrap();
    release(&mut index, first);
    release(&mut index, second);
    let other_reply = [&tokens(10)[..], &[1, 2, 4, 9]].concat();
    assert_eq!(serve(&mut index, &other_reply), 13);
}

#[test]
fn a_tip_is_gone_when_its_last_page_is() {
    let mut index = index(4, 4);
    let tip = first_turn(&mut index, &tokens(9));
    serve(&mut index, &[1; 8]);
    assert_eq!(known(&index, tip), None);
    assert_eq!(index.stats().pages_evictable, 4);
    assert_eq!(
        go_on(&mut index, tip, &[5], 10),
        Err(IndexError::UnknownNode)
    );
    assert_eq!(serve(&mut index, &tokens(9)), 8);
    assert_eq!(
        go_on(&mut index, tip, &[5], 10),
        Err(IndexError::UnknownNode)
    );
}

#[test]
fn a_conversation_keeps_its_newest_tip_and_the_one_before_it() {
    let mut index = index(4, 32);
    let first = first_turn(&mut index, &tokens(5));
    let second = turn(&mut index, first, &tokens(5));
    let swipe = turn(&mut index, first, &[1; 5]);
    assert_eq!(known(&index, first), Some(5));
    assert_eq!(known(&index, second), None);
    let third = turn(&mut index, swipe, &[2; 5]);
    assert_eq!(known(&index, first), None);
    assert_eq!(
        (known(&index, swipe), known(&index, third)),
        (Some(10), Some(15))
    );
    // A turn that sends everything ends the chain.
    first_turn(&mut index, &[3; 3]);
    assert_eq!(index.stats().tips, 1);
}

#[test]
fn a_page_has_one_tip_and_a_request_of_no_conversation_leaves_one_too() {
    let mut index = index(4, 32);
    let leave = |index: &mut PrefixIndex, count| {
        let lease = admit(index, &tokens(count));
        commit(index, lease, &tokens(count));
        release(index, lease);
        lease
    };
    let tips: Vec<LeaseId> = (1..=9).map(|count| leave(&mut index, count)).collect();
    let known: Vec<usize> = tips.iter().filter_map(|&tip| known(&index, tip)).collect();
    assert_eq!(known, [4, 8, 9]);
    assert_eq!(index.stats().tips, 3);
    let tables = index
        .tree
        .tips
        .iter()
        .filter(|(_, tip)| tip.table.is_some());
    assert_eq!(tables.count(), 1, "only the last one has its page table");
    let middle = go_on(&mut index, tips[7], &[1, 2], 10).unwrap().unwrap();
    let whole = admit(&mut index, &tokens(9));
    assert_eq!(table(&index, middle)[..2], table(&index, whole)[..2]);
}

#[test]
fn a_tip_that_is_asked_for_again_without_new_tokens_computes_the_last_one() {
    for count in [1, 3, 4, 5, 8, 9] {
        let mut index = index(4, 32);
        let tip = first_turn(&mut index, &tokens(count));
        let tokens = count as usize;
        let prompt = Prompt {
            after: Some(tip.number()),
            ..Prompt::default()
        };
        let lease = index.admit(&prompt, tokens + 1).unwrap().unwrap();
        index.check().unwrap();
        assert_eq!(hit(&index, lease), tokens - 1);
        // Without stretches, the reply stands in the path's last namespace.
        index.append(lease, &[7]).unwrap();
        index.commit(lease, tokens + 1).unwrap();
        release(&mut index, lease);
        let path = [&super::tokens(count)[..], &[7, 8]].concat();
        assert_eq!(serve(&mut index, &path), tokens + 1);
    }
}

#[test]
fn a_continuation_stands_in_its_own_namespaces_after_those_of_the_path() {
    let mut index = index(4, 32);
    let lease = admit_in(&mut index, &tokens(6), &[(PUBLIC, 6)]).unwrap();
    commit(&mut index, lease, &tokens(6));
    release(&mut index, lease);
    turn(&mut index, lease, &[1, 2, 3]);
    let path = [&tokens(6)[..], &[1, 2, 3, 4]].concat();
    assert_eq!(serve_in(&mut index, &path, &[(PUBLIC, 6), (BOB, 4)]), 6);
    assert_eq!(serve_in(&mut index, &path, &[(PUBLIC, 6), (ALICE, 4)]), 9);
}

#[test]
fn a_branch_keeps_the_locks_and_tips_on_both_sides_of_it() {
    let mut index = index(2, 32);
    let tip = first_turn(&mut index, &tokens(4));
    let long = turn(&mut index, tip, &tokens(9));
    let reader = go_on(&mut index, tip, &[tokens(9)[0]], 5).unwrap().unwrap();
    let whole = go_on(&mut index, long, &[1], 14).unwrap().unwrap();
    let mut other = [&tokens(4)[..], &tokens(9)].concat();
    other[5] = 7;
    serve(&mut index, &other);
    assert!(index.stats().nodes >= 3);
    assert_eq!(
        (known(&index, tip), known(&index, long)),
        (Some(4), Some(13))
    );
    let protected = index.stats();
    assert_eq!(protected.pages_cached - protected.pages_evictable, 7);
    release(&mut index, whole);
    // The reader holds two pages, and the rows it copies from the third.
    assert_eq!(
        index.stats().pages_cached - index.stats().pages_evictable,
        2 + usize::from(copy(&index, reader).is_some())
    );
    release(&mut index, reader);
    turn(&mut index, long, &[1, 2]);
}
