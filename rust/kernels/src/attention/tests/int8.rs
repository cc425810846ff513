//! int8 caches: what is stored, and attention over it.

use super::{Case, Elements, Held, Numbers, Random, SHAPE, levels};
use crate::attention::{Cache, CacheShape, NewRows, store_kv};
use crate::quantise::{quantise, quantise_to};

/// Rows that every level holds in whole vectors.
const WHOLE_VECTORS: CacheShape = CacheShape {
    kv_heads: 1,
    head_dim: 64,
    pages: 7,
    page_size: 16,
};

#[test]
fn attention_over_int8_equals_the_reference_over_the_values_it_stands_for() {
    let sequences = [(1, 1), (1, 700), (3, 50), (40, 55), (2, 493)];
    for head_dim in [20, 64, 8, 24, 48, 256] {
        for group in [1, 3, 9] {
            let shape = CacheShape {
                kv_heads: 2,
                head_dim,
                pages: 40,
                page_size: 16,
            };
            let case = Case::new(head_dim as u32, &sequences, group, shape).with_int8();
            case.check(&format!("int8, head_dim {head_dim}, group {group}"));
        }
    }
}

#[test]
fn the_largest_sums_of_whole_numbers_fit_and_larger_heads_do_without() {
    for head_dim in [512, 544] {
        let shape = CacheShape {
            kv_heads: 1,
            head_dim,
            pages: 3,
            page_size: 16,
        };
        let mut case = Case::new(9, &[(12, 40)], 1, shape);
        case.q.fill(-0.01);
        // Keys of unequal size: a sum that wraps around turns their order.
        for (i, row) in case.k.chunks_mut(head_dim).enumerate() {
            row.fill(i as f32 / 48.0);
        }
        case.with_int8().check(&format!("head_dim {head_dim}"));
    }
}

#[test]
fn a_query_that_is_not_finite_spoils_its_own_row_alone() {
    // The last one is a NaN whose low bits are not zero.
    for bad in [f32::NAN, f32::INFINITY, f32::from_bits(0x7fc0_0001)] {
        for elements in [Elements::Float32, Elements::Int8] {
            let mut case = Case::new(9, &[(12, 40)], 1, WHOLE_VECTORS).with(elements);
            case.q[5 * 64 + 3] = bad;
            for level in levels(64) {
                let rows = case.run(level);
                for (row, values) in rows.chunks(64).enumerate() {
                    let finite = values.iter().all(|x| x.is_finite());
                    let what = format!("{level:?}, {elements:?}, row {row}, {:x}", bad.to_bits());
                    assert_eq!(finite, row != 5, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_query_of_zeros_sees_all_positions_alike() {
    for queries in [3, 12] {
        let mut case = Case::new(9, &[(queries, 40)], 1, WHOLE_VECTORS).with_int8();
        case.q[64..2 * 64].fill(0.0);
        case.check(&format!("{queries} queries"));
    }
}

#[test]
fn scales_that_an_earlier_call_left_are_not_seen() {
    for (queries, window) in [(1, 30), (20, 30)] {
        let mut left = Case::new(1, &[(20, 48)], 1, WHOLE_VECTORS).with_int8();
        if let Some(Held::Int8(sides)) = &mut left.held {
            for Numbers(_, scales) in sides {
                scales.fill(f32::NAN);
            }
        }
        // The window starts within a tile.
        let case = Case::new(2, &[(queries, 100)], 1, WHOLE_VECTORS);
        let case = case.with_window(Some(window)).with_int8();
        for level in levels(64) {
            assert!(left.run(level).iter().all(|x| x.is_nan()));
            let finite = case.run(level).iter().all(|x| x.is_finite());
            assert!(finite, "{level:?}, {queries} queries");
        }
    }
}

#[test]
fn a_quantised_row_is_within_half_a_scale() {
    let mut random = Random(5);
    for size in [1e-30, 1e-3, 1.0, 1e30] {
        let values: Vec<f32> = random.values(100).iter().map(|x| x * size).collect();
        let mut numbers = [0; 100];
        let scale = quantise(&values, &mut numbers);
        assert_eq!(numbers.iter().map(|n| n.unsigned_abs()).max(), Some(127));
        for (x, n) in values.iter().zip(numbers) {
            assert!((x - f32::from(n) * scale).abs() <= 0.500_001 * scale);
        }
        let mut numbers = [0; 100];
        let scale = quantise_to(i16::MAX, &values, &mut numbers);
        let largest = numbers.iter().map(|n| n.unsigned_abs()).max();
        assert_eq!(largest, Some(32_767));
        for (x, n) in values.iter().zip(numbers) {
            // The quotient itself has an error of 2^-9 by then.
            assert!((x - f32::from(n) * scale).abs() <= 0.503 * scale);
        }
    }
}

#[test]
fn a_row_of_zeros_and_rows_at_the_ends_of_float32_are_quantised() {
    let mut numbers = [9; 3];
    assert_eq!(quantise(&[0.0, -0.0, 0.0], &mut numbers), 0.0);
    assert_eq!(numbers, [0; 3]);
    let scale = quantise(&[f32::MAX, f32::MIN, 0.0], &mut numbers);
    assert_eq!((numbers, scale), ([127, -127, 0], f32::MAX / 127.0));
    // The scale itself is too small for float32.
    assert_eq!(quantise(&[1e-45, -1e-45, 0.0], &mut numbers), 0.0);
}

#[test]
fn ties_are_rounded_to_even() {
    let mut numbers = [0; 5];
    assert_eq!(quantise(&[127.0, 0.5, 1.5, -2.5, -3.5], &mut numbers), 1.0);
    assert_eq!(numbers, [127, 0, 2, -2, -4]);
}

#[test]
fn a_row_with_a_value_that_is_not_finite_has_no_scale() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in 0..3 {
            let mut row = [1.0, 2.0, 3.0];
            row[place] = bad;
            assert!(quantise(&row, &mut [0; 3]).is_nan());
        }
    }
}

#[test]
fn stored_rows_are_in_their_slots_and_nothing_else_is_written() {
    let mut random = Random(3);
    let rows = [0; 2].map(|_| random.values(2 * 2 * 8));
    let mut numbers = [0; 2].map(|_| vec![77_i8; 5 * 2 * 4 * 8]);
    let mut scales = [0; 2].map(|_| vec![-1.0_f32; 5 * 2 * 4]);
    let cache = Cache::Int8 {
        k: numbers[0].as_mut_ptr().expose_provenance(),
        v: numbers[1].as_mut_ptr().expose_provenance(),
        k_scales: scales[0].as_mut_ptr().expose_provenance(),
        v_scales: scales[1].as_mut_ptr().expose_provenance(),
    };
    let new = NewRows {
        k: rows[0].as_ptr().expose_provenance(),
        v: rows[1].as_ptr().expose_provenance(),
        cache,
    };
    // SAFETY: the vectors have the shapes of SHAPE and two tokens.
    unsafe { store_kv(new, SHAPE, &[19, 6]) }.expect("good slots");
    for side in 0..2 {
        let mut expected = (vec![77_i8; 5 * 2 * 4 * 8], vec![-1.0_f32; 5 * 2 * 4]);
        for (token, (page, row)) in [(4, 3), (1, 2)].into_iter().enumerate() {
            for head in 0..2 {
                let (from, to) = (token * 2 + head, (page * 2 + head) * 4 + row);
                let values = &rows[side][from * 8..from * 8 + 8];
                expected.1[to] = quantise(values, &mut expected.0[to * 8..to * 8 + 8]);
            }
        }
        assert_eq!(numbers[side], expected.0);
        assert_eq!(scales[side], expected.1);
    }
}
