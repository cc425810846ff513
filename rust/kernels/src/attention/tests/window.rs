//! Sliding windows: what a query sees, and what is never read.

use super::{Case, levels};
use crate::attention::CacheShape;

const SHAPE: CacheShape = CacheShape {
    kv_heads: 1,
    // Whole numbers over int8 too, where the CPU has them.
    head_dim: 32,
    pages: 140,
    page_size: 8,
};

#[test]
fn every_window_equals_the_reference() {
    let sequences = [(1, 1), (1, 1000), (3, 50), (130, 150), (40, 640)];
    for window in [
        1,
        2,
        7,
        8,
        9,
        47,
        48,
        49,
        100,
        480,
        481,
        999,
        1000,
        u32::MAX,
    ] {
        for group in [1, 3, 16] {
            let case = Case::new(window, &sequences, group, SHAPE).with_window(Some(window));
            case.check(&format!("window {window}, group {group}"));
            case.with_int8()
                .check(&format!("int8, window {window}, group {group}"));
        }
    }
}

#[test]
fn pages_before_the_window_are_never_read() {
    for (group, queries, window) in [(1, 1, 5), (1, 3, 30), (16, 1, 1), (16, 20, 100), (3, 90, 8)] {
        let mut case = Case::new(1, &[(queries, 1000)], group, SHAPE).with_window(Some(window));
        let first = (1000 - queries + 1).saturating_sub(window as usize) / 8;
        // Two kinds of pages: visible ones, and page 0 with what would spoil every result.
        for (i, page) in case.page_tables.iter_mut().enumerate() {
            *page = if i < first { 0 } else { 1 + i as u32 };
        }
        let poison = 8 * SHAPE.head_dim;
        case.k[..poison].fill(f32::NAN);
        case.v[..poison].fill(f32::NAN);
        case.check(&format!(
            "group {group}, queries {queries}, window {window}"
        ));
        let int8 = case.with_int8();
        int8.check(&format!("int8, group {group}, queries {queries}"));
    }
}

#[test]
fn a_chunk_gives_the_same_bits_alone_and_in_a_longer_one_with_a_window() {
    for int8 in [false, true] {
        let whole = Case::new(2, &[(400, 900)], 16, SHAPE).with_window(Some(77));
        let whole = if int8 { whole.with_int8() } else { whole };
        for level in levels(SHAPE.head_dim) {
            let expected = whole.run(level);
            let mut done = 0;
            for chunk in [1, 37, 62, 300] {
                let mut part =
                    Case::new(2, &[(chunk, 500 + done + chunk)], 16, SHAPE).with_window(Some(77));
                part.page_tables = whole.page_tables[..part.page_tables.len()].to_vec();
                let token = 16 * SHAPE.head_dim;
                let range = done * token..(done + chunk) * token;
                part.q = whole.q[range.clone()].to_vec();
                (part.k, part.v) = (whole.k.clone(), whole.v.clone());
                let part = if int8 { part.with_int8() } else { part };
                assert_eq!(part.run(level), expected[range], "{level:?} {chunk}");
                done += chunk;
            }
        }
    }
}
