//! K/V heads that share an item, and items that follow each other.

use super::{Case, levels};
use crate::attention::CacheShape;
use crate::attention::batch::Batch;
use crate::attention::plan::Plan;

const SHAPE: CacheShape = CacheShape {
    kv_heads: 5,
    // Whole numbers over int8 too, where the CPU has them.
    head_dim: 32,
    pages: 90,
    page_size: 16,
};

#[test]
fn heads_share_an_item_when_there_are_items_enough_and_their_rows_are_few() {
    let sequences = [(1, 1100), (1, 500), (2, 700), (0, 9)];
    let heads = |group: usize, threads: usize| {
        let case = Case::new(1, &sequences, group, SHAPE);
        let batch = Batch::new(case.shape, case.query, case.ragged()).expect("a good batch");
        let items = Plan::new(&batch, threads).items;
        items.iter().map(|item| item.kv_heads.len()).max()
    };
    assert_eq!(heads(1, 1), Some(5));
    assert_eq!(heads(1, 3), Some(3));
    assert_eq!(heads(1, 64), Some(1));
    assert_eq!(heads(12, 1), Some(3));
    assert_eq!(heads(60, 1), Some(1));
}

#[test]
fn heads_that_share_an_item_equal_the_reference_and_give_the_same_bits_as_alone() {
    // One short sequence makes items of one head each, twelve of them items of more.
    let one = [(1, 470)];
    for group in [1, 3, 7, 9, 12] {
        let alone = Case::new(group as u32, &one, group, SHAPE);
        let mut many = Case::new(group as u32, &one.repeat(12), group, SHAPE);
        many.page_tables = alone.page_tables.repeat(12);
        many.q = alone.q.repeat(12);
        (many.k, many.v) = (alone.k.clone(), alone.v.clone());
        same_bits(&alone, &many, &format!("group {group}"));
        let (alone, many) = (alone.with_int8(), many.with_int8());
        same_bits(&alone, &many, &format!("int8, group {group}"));
    }
}

#[test]
fn sequences_of_the_same_positions_read_their_own_pages() {
    for context in [1, 5, 48] {
        let case = Case::new(3, &[(1, context); 9], 2, SHAPE);
        case.check(&format!("context {context}"));
        case.with_int8().check(&format!("int8, context {context}"));
    }
}

fn same_bits(alone: &Case, many: &Case, what: &str) {
    many.check(what);
    for level in levels(SHAPE.head_dim) {
        let expected = alone.run(level).repeat(12);
        assert_eq!(many.run(level), expected, "{level:?}, {what}");
    }
}
