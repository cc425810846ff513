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
        evict_page(&mut index);
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
    while let Some(leaf) = index.tree.evictable.first() {
        let node = index.tree.node(leaf);
        order.push((index.tree.rows.tokens(node.pages[0])[0], node.end()));
        evict_page(&mut index);
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
        let lease = ask(&mut index, &prompt(sibling), &[(ALICE, 17)], 17).unwrap();
        let lease = lease.unwrap();
        index.commit(lease, 16).unwrap();
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
    let (old, new) = ([[1, 1], [1, 1]].concat(), [[1, 1], [3, 3]].concat());
    serve(&mut index, &old);
    serve(&mut index, &[2, 2]);
    serve(&mut index, &new);
    // Out of turn, as no eviction does it: the newest branch goes before older leaves.
    let above = index.tree.roots.values().copied();
    let above = above.max_by_key(|&id| index.tree.children(Some(id)).len());
    for child in index.tree.children(above).clone().into_values() {
        let page = index.tree.remove_last_page(child);
        index.pages.give_back(page);
        index.check().unwrap();
    }
    assert_ne!(index.tree.evictable.first(), above);
}
