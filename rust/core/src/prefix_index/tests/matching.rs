//! What is found, and what goes first.

use super::*;

#[test]
fn a_repeated_prompt_computes_only_its_last_token() {
    for count in [1, 2, 15, 16, 17, 31, 32, 33, 64] {
        let mut index = index(16, 8);
        let prompt = tokens(count);
        assert_eq!(serve(&mut index, &prompt), 0);
        assert_eq!(serve(&mut index, &prompt), count as usize - 1);
        // The least recently used leaf is the last page of the prompt.
        let evicted = index.tree.next_evicted().unwrap();
        let removed = index.tree.remove(evicted);
        index.take_back(removed);
        let full_pages_left = (count as usize - 1) / 16 * 16;
        assert_eq!(serve(&mut index, &prompt), full_pages_left);
        assert_eq!(serve(&mut index, &prompt), count as usize - 1);
    }
}

#[test]
fn a_longer_prompt_finds_every_token_of_the_turn_before() {
    let mut index = index(4, 32);
    for turn in 1..12 {
        assert_eq!(
            serve(&mut index, &tokens(turn * 5)),
            (turn as usize - 1) * 5
        );
    }
    // A partial page was superseded at each turn: none is left over.
    assert_eq!(index.stats().pages_cached, 55_usize.div_ceil(4));
}

#[test]
fn an_edit_in_the_middle_of_a_page_reuses_the_rows_before_it() {
    let mut index = index(4, 32);
    serve(&mut index, &tokens(12));
    let mut edited = tokens(12);
    edited[6] = 7;
    let lease = admit(&mut index, &edited);
    assert_eq!(hit(&index, lease), 6);
    let copy = copy(&index, lease).unwrap();
    assert_eq!(copy.rows, 2);
    assert_eq!(copy.target_page, table(&index, lease)[1]);
    assert_ne!(copy.source_page, copy.target_page);
}

#[test]
fn the_least_recently_used_conversation_goes_first_and_from_its_end() {
    let mut index = index(2, 9);
    let (old, new) = ([1; 6], [2; 6]);
    serve(&mut index, &old);
    serve(&mut index, &new);
    // Using a conversation's beginning keeps the beginning, not its end.
    serve(&mut index, &old[..3]);
    let mut order = Vec::new();
    while let Some(leaf) = index.tree.next_evicted() {
        let path = index.tree.path_to(Some(leaf));
        order.push((index.tree.node(path[0]).key[0].token_id(), path.len()));
        let removed = index.tree.remove(leaf);
        index.take_back(removed);
        index.check().unwrap();
    }
    assert_eq!(order, [(1, 3), (1, 2), (2, 3), (2, 2), (2, 1), (1, 1)]);
}

#[test]
fn ten_thousand_siblings_with_a_common_beginning_are_told_apart() {
    let mut index = index(16, 10_003);
    let prompt = |sibling: u32| {
        let mut prompt = vec![7; 17];
        prompt[14] = sibling >> 8;
        prompt[15] = sibling & 255;
        prompt
    };
    for sibling in 0..10_000 {
        let lease = index.admit(&prompt(sibling), &[(ALICE, 17)], 17).unwrap();
        let lease = lease.unwrap();
        index.commit(lease, &prompt(sibling)[..16]).unwrap();
        index.release(lease);
    }
    index.check().unwrap();
    let wanted = prompt(4321);
    let lease = admit(&mut index, &wanted);
    assert_eq!(hit(&index, lease), 16);
    release(&mut index, lease);
    let mut near = prompt(4321);
    near[15] = 999;
    let lease = admit(&mut index, &near);
    assert_eq!(hit(&index, lease), 15);
    assert_eq!(index.stats().evicted_pages, 0);
}

#[test]
fn a_page_that_becomes_a_leaf_was_used_when_the_pages_after_it_were() {
    let mut index = index(2, 9);
    serve(&mut index, &[2, 2]);
    serve(&mut index, &[1, 1, 1, 1]);
    // Out of turn, as no eviction does it: the end goes before older leaves.
    let first = index.tree.children(None).values();
    let above = first
        .copied()
        .find(|&id| !index.tree.children(Some(id)).is_empty());
    let end = *index.tree.children(above).values().next().unwrap();
    let removed = index.tree.remove(end);
    index.take_back(removed);
    index.check().unwrap();
    let next = index.tree.next_evicted();
    assert_ne!(next, above);
}
