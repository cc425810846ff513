//! Pins, priorities, superseded branches, and what resumes.

use super::*;

/// A finished turn: all of `token_ids`, after a tip or from the start.
fn turn(index: &mut PrefixIndex, token_ids: &[u32], prompt: Prompt<'_>) -> u64 {
    let before = prompt
        .after
        .map_or(0, |after| index.node_tokens(after).unwrap());
    let prompt = Prompt {
        token_ids,
        stretches: &[(ALICE, token_ids.len())],
        ..prompt
    };
    let end = before + token_ids.len();
    let lease = index.admit(&prompt, end).unwrap().unwrap();
    index.commit(lease, end).unwrap();
    release(index, lease);
    lease.number()
}

/// First tokens of the pages in the order in which they go.
fn order(index: &mut PrefixIndex) -> Vec<u32> {
    let mut order = Vec::new();
    while let Some(leaf) = index.tree.evictable.first() {
        let node = index.tree.node(leaf);
        let last = node.pages.len() - 1;
        order.push(index.tree.rows.tokens(node.pages[last])[0]);
        evict_page(index);
    }
    order
}

#[test]
fn a_pin_keeps_its_path_within_the_budget() {
    let mut index = index(4, 8).with_pins(4);
    let pinned = turn(&mut index, &tokens(10), Prompt::default());
    assert_eq!(index.pin(99), Err(IndexError::UnknownNode));
    index.pin(pinned).unwrap();
    index.pin(pinned).unwrap();
    index.check().unwrap();
    assert_eq!(
        (index.stats().pages_pinned, index.stats().pages_evictable),
        (3, 0)
    );
    let other = turn(&mut index, &[7; 8], Prompt::default());
    let refused = IndexError::PinBudget {
        pages: 2,
        pinned: 3,
        pages_max: 4,
    };
    assert_eq!(index.pin(other), Err(refused));
    assert_eq!(index.clear(), 2);
    assert!(index.unpin(pinned));
    assert!(!index.unpin(pinned));
    index.check().unwrap();
    assert_eq!((index.clear(), index.stats().pages_pinned), (3, 0));
    let none = PrefixIndex::new(4, 8).unwrap();
    assert_eq!(none.stats().pages_pinned, 0);
}

#[test]
fn no_pin_is_allowed_without_a_budget() {
    let mut index = index(4, 8);
    let tip = turn(&mut index, &tokens(3), Prompt::default());
    assert!(matches!(
        index.pin(tip),
        Err(IndexError::PinBudget { pages_max: 0, .. })
    ));
}

#[test]
fn old_swipes_and_edited_tails_go_before_everything_else() {
    let mut index = index(2, 32);
    let chat = |after| Prompt {
        after,
        conversation: b"chat",
        ..Prompt::default()
    };
    turn(&mut index, &[90, 91], Prompt::default());
    let start = turn(&mut index, &[10, 11], chat(None));
    turn(&mut index, &[20, 21, 22, 23], chat(Some(start)));
    turn(&mut index, &[30, 31], chat(Some(start)));
    let copy = turn(&mut index, &[40, 41, 42, 43], chat(Some(start)));
    // Another conversation is on the branch, up to its first page.
    turn(
        &mut index,
        &[10, 11, 40, 41],
        Prompt {
            conversation: b"fork",
            ..Prompt::default()
        },
    );
    turn(&mut index, &[50, 51], chat(Some(start)));
    assert_eq!(index.node_tokens(copy), None);
    // Superseded ones first, the older before; then by use, from the ends.
    assert_eq!(order(&mut index), [22, 20, 30, 42, 90, 40, 50, 10]);
}

#[test]
fn a_branch_that_is_used_again_is_covered_no_more() {
    let mut index = index(2, 32);
    let chat = |after| Prompt {
        after,
        conversation: b"chat",
        ..Prompt::default()
    };
    let start = turn(&mut index, &[10, 11], chat(None));
    turn(&mut index, &[20, 21, 22, 23], chat(Some(start)));
    turn(&mut index, &[30, 31], chat(Some(start)));
    turn(&mut index, &[90, 91], Prompt::default());
    serve(&mut index, &[10, 11, 20, 21, 7]);
    assert_eq!(order(&mut index), [22, 30, 90, 7, 20, 10]);
}

#[test]
fn a_step_of_priority_outlives_so_many_later_uses_and_no_more() {
    for (later, expected) in [(PRIORITY_USES - 1, 2), (PRIORITY_USES + 1, 1)] {
        let mut index = index(1, 8);
        turn(
            &mut index,
            &[1],
            Prompt {
                priority: 1,
                ..Prompt::default()
            },
        );
        for _ in 0..later {
            turn(&mut index, &[2], Prompt::default());
        }
        assert_eq!(order(&mut index)[0], expected);
    }
}

#[test]
fn what_a_preempted_sequence_computes_again_is_no_miss() {
    let mut index = index(4, 8);
    serve(&mut index, &tokens(6));
    let before = index.stats();
    let prompt = Prompt {
        token_ids: &tokens(9),
        stretches: &[(ALICE, 9)],
        resumes: true,
        ..Prompt::default()
    };
    index.admit(&prompt, 9).unwrap().unwrap();
    let after = index.stats();
    assert_eq!((after.resumed_tokens, after.recomputed_tokens), (6, 3));
    assert_eq!(
        (after.hit_tokens, after.miss_tokens),
        (before.hit_tokens, before.miss_tokens)
    );
}

#[test]
fn what_is_pinned_when_its_conversation_goes_elsewhere_is_not_superseded() {
    let mut index = index(2, 32).with_pins(3);
    let chat = |after| Prompt {
        after,
        conversation: b"chat",
        ..Prompt::default()
    };
    let start = turn(&mut index, &[10, 11], chat(None));
    turn(&mut index, &[90, 91], Prompt::default());
    let pinned = turn(&mut index, &[20, 21, 22, 23], chat(Some(start)));
    index.pin(pinned).unwrap();
    turn(&mut index, &[30, 31], chat(Some(start)));
    assert_eq!(index.node_tokens(pinned), None);
    assert!(index.unpin(pinned));
    assert_eq!(order(&mut index), [90, 22, 20, 30, 10]);
}

#[test]
fn a_branch_may_be_superseded_part_by_part() {
    let mut index = index(2, 32);
    let chat = |conversation, after| Prompt {
        after,
        conversation,
        ..Prompt::default()
    };
    turn(&mut index, &[10, 11], chat(b"other", None));
    turn(&mut index, &[10, 11, 20, 21, 22, 23], chat(b"chat", None));
    turn(&mut index, &[30, 31], chat(b"chat", None));
    index.check().unwrap();
    turn(&mut index, &[40, 41], chat(b"other", None));
    index.check().unwrap();
    assert_eq!(order(&mut index), [22, 20, 10, 30, 40]);
}

#[test]
fn pages_superseded_twice_are_still_used_no_less_than_those_after_them() {
    let mut uses = uses::Uses::default();
    uses.raise(8, uses::used_at(1, 1));
    uses.supersede(0, 8);
    uses.raise(5, uses::used_at(2, 0));
    uses.supersede(0, 8);
    assert!(uses.is_sound());
    assert_eq!(uses.of(1), uses.of(8));
}
