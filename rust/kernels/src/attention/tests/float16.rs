//! float16 caches: what is stored, and attention over it.

use super::{Case, Elements, Random, SHAPE};
use crate::attention::{Cache, CacheShape, NewRows, store_kv};
use half::f16;

#[test]
fn attention_over_float16_equals_the_reference_over_the_values_it_stands_for() {
    let sequences = [(1, 1), (1, 700), (3, 50), (40, 55), (2, 493)];
    for head_dim in [20, 64, 8, 24, 128, 256] {
        for group in [1, 3, 9] {
            let shape = CacheShape {
                kv_heads: 2,
                head_dim,
                pages: 40,
                page_size: 16,
            };
            let case = Case::new(head_dim as u32, &sequences, group, shape);
            let what = format!("float16, head_dim {head_dim}, group {group}");
            case.with(Elements::Float16).check(&what);
        }
    }
}

#[test]
fn stored_rows_are_the_nearest_halves_in_their_slots_and_nothing_else_is_written() {
    let mut random = Random(3);
    let mut rows = [0; 2].map(|_| random.values(2 * 2 * 8));
    // A tie to the even one below, one to the even one above, what is too large, too small, and no number.
    rows[0][..6].copy_from_slice(&[
        1.0 + 1.0 / 2048.0,
        1.0 + 3.0 / 2048.0,
        65_520.0,
        1e-8,
        f32::NAN,
        f32::NEG_INFINITY,
    ]);
    let untouched = f16::from_f32(77.0);
    let mut halves = [0; 2].map(|_| vec![untouched; 5 * 2 * 4 * 8]);
    let new = NewRows {
        k: rows[0].as_ptr().expose_provenance(),
        v: rows[1].as_ptr().expose_provenance(),
        cache: Cache::Float16 {
            k: halves[0].as_mut_ptr().expose_provenance(),
            v: halves[1].as_mut_ptr().expose_provenance(),
        },
    };
    // SAFETY: the vectors have the shapes of SHAPE and two tokens.
    unsafe { store_kv(new, SHAPE, &[19, 6]) }.expect("good slots");
    for side in 0..2 {
        let mut expected = vec![untouched; 5 * 2 * 4 * 8];
        for (token, (page, row)) in [(4, 3), (1, 2)].into_iter().enumerate() {
            for head in 0..2 {
                let (from, to) = (token * 2 + head, (page * 2 + head) * 4 + row);
                for i in 0..8 {
                    expected[to * 8 + i] = f16::from_f32_const(rows[side][from * 8 + i]);
                }
            }
        }
        let bits = |values: &[f16]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&halves[side]), bits(&expected));
    }
    let first = (4 * 2 * 4 + 3) * 8;
    let stored = halves[0][first..first + 6].iter().map(|x| x.to_f32());
    let stored: Vec<f32> = stored.collect();
    assert_eq!(stored[..4], [1.0, 1.0 + 2.0 / 1024.0, f32::INFINITY, 0.0]);
    assert!(stored[4].is_nan());
    assert_eq!(stored[5], f32::NEG_INFINITY);
}
