//! Random ragged batches of any shape against the reference.

use super::{Case, Elements};
use crate::attention::CacheShape;
use proptest::prelude::*;

/// (queries, context) of a sequence.
fn sequence() -> impl Strategy<Value = (usize, usize)> {
    let context = prop_oneof![1..8_usize, 1..100_usize, 1..1100_usize];
    context.prop_flat_map(|n| (prop_oneof![Just(1), 0..=n.min(60)], Just(n)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 90, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_batches_equal_the_reference(
        sequences in prop::collection::vec(sequence(), 1..5),
        kv_heads in 1..4_usize,
        group in prop_oneof![Just(1), 2..10_usize, Just(16), Just(71)],
        head_dim in prop_oneof![Just(32), Just(64), Just(100), Just(128), Just(256), 1..140_usize],
        page_size in prop_oneof![Just(1), Just(3), Just(16), Just(32)],
        window in prop_oneof![Just(None), (1..1200_u32).prop_map(Some)],
        elements in prop_oneof![Just(Elements::Float32), Just(Elements::Float16), Just(Elements::Int8)],
        seed: u32,
    ) {
        let group = if head_dim > 128 || kv_heads > 1 { group.min(9) } else { group };
        let shape = CacheShape { kv_heads, head_dim, pages: 37, page_size };
        let case = Case::new(seed, &sequences, group, shape).with_window(window);
        let what = format!("{sequences:?} {shape:?} group {group} window {window:?} {elements:?}");
        case.with(elements).check(&what);
    }
}
