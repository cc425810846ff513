//! Shapes chosen by hand, float32, and the exponential.

use super::Case;
use crate::attention::CacheShape;
use crate::simd;

#[test]
fn every_level_equals_the_reference() {
    // Small under an interpreter that checks every access.
    let (long, dims) = if cfg!(miri) {
        (60, [5, 16])
    } else {
        (1100, [20, 64])
    };
    let sequences = [(1, 1), (1, long), (3, 50), (40, 55), (0, 4), (2, long - 7)];
    let mut compared = 0;
    for head_dim in dims.into_iter().chain([8, 24, 80]) {
        for group in [1, 3, 9] {
            let shape = CacheShape {
                kv_heads: 2,
                head_dim,
                pages: 40,
                page_size: 7,
            };
            let case = Case::new(head_dim as u32, &sequences, group, shape);
            compared += case.check(&format!("head_dim {head_dim}, group {group}"));
        }
    }
    assert!(compared >= 15 + 12);
}

#[test]
fn every_number_of_query_heads_to_a_kv_head_equals_the_reference() {
    let shape = CacheShape {
        kv_heads: 1,
        head_dim: 16,
        pages: 9,
        page_size: 16,
    };
    for group in (1..=18).chain([25, 31, 32, 33, 48, 71]) {
        let case = Case::new(group as u32, &[(1, 100), (2, 60)], group, shape);
        case.check(&format!("group {group}"));
    }
}

#[test]
fn the_exponential_is_within_two_units_in_the_last_place() {
    let mut x = 0.0_f32;
    while x > -125.0 {
        let (got, exact) = (f64::from(simd::exp2(x)), f64::from(x).exp2());
        assert!((got / exact - 1.0).abs() < 2.4e-7, "2^{x}: {got}");
        x -= if cfg!(miri) { 1.37 } else { 1e-4 };
    }
    assert_eq!(simd::exp2(0.0), 1.0);
    assert_eq!(simd::exp2(-126.0), 0.0);
    assert_eq!(simd::exp2(f32::MIN), 0.0);
    assert_eq!(simd::exp2(f32::NEG_INFINITY), 0.0);
    // NaN with any of the bits that say nothing.
    for bits in [0x7fc0_0000, 0x7fc0_0001, 0x7fff_ffff, 0xffff_ffff] {
        assert!(simd::exp2(f32::from_bits(bits)).is_nan(), "{bits:x}");
    }
}
