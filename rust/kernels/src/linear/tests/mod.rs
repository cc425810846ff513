//! Products against exact integers, at every instruction level this CPU has.

use super::call::linear_at;
use super::{Activation, Input, Layout, Matrix, MatrixError, Output, Width, linear, rows};
use crate::level::IntLevel;
use crate::norm::{Norm, rms_norm};
use crate::rotary::{Rotary, rotate};
use proptest::prelude::*;
use std::sync::Arc;

/// Small numbers that repeat from run to run (the generator of Numerical Recipes).
fn values(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(next).collect()
}

fn address<T>(values: &[T]) -> usize {
    values.as_ptr().expose_provenance()
}

fn place<T>(values: &mut [T]) -> usize {
    values.as_mut_ptr().expose_provenance()
}

const WIDTHS: [Width; 2] = [Width::Eight, Width::Twelve];

/// A matrix that is exactly its float32 weights: integers, the largest of each row the largest there is.
fn matrix(
    seed: u32,
    outputs: usize,
    inputs: usize,
    layout: Layout,
    width: Width,
) -> (Arc<Matrix>, Vec<f32>) {
    let mut weights: Vec<f32> = values(seed, outputs * inputs);
    let most = f32::from(width.most());
    for row in weights.chunks_mut(inputs) {
        for x in row.iter_mut() {
            *x = (*x * most).round();
        }
        row[0] = most;
    }
    let mut matrix = Matrix::new(outputs, inputs, layout, width).expect("a good shape");
    // SAFETY: the vector has the rows.
    unsafe { matrix.push_rows(outputs, address(&weights)) }.expect("rows that fit");
    (Arc::new(matrix), weights)
}

fn levels() -> impl Iterator<Item = IntLevel> {
    IntLevel::ALL.into_iter().filter(|level| level.fits())
}

fn input(x: &[f32], inputs: usize) -> Input {
    Input {
        x: address(x),
        tokens: x.len() / inputs,
        norm: None,
    }
}

fn run(level: IntLevel, matrix: &Arc<Matrix>, x: &[f32]) -> Vec<f32> {
    let input = input(x, matrix.inputs());
    let mut out = vec![f32::NAN; input.tokens * matrix.outputs()];
    let output = Output::Store(place(&mut out));
    // SAFETY: vectors of these shapes; the CPU was asked for the level.
    unsafe { linear_at(level, matrix, input, output) }.expect("a good call");
    out
}

/// Every level against float64; all give the same bits.
fn check(
    seed: u32,
    (outputs, inputs, tokens): (usize, usize, usize),
    layout: Layout,
    width: Width,
) {
    let (matrix, weights) = matrix(seed, outputs, inputs, layout, width);
    let x = values(!seed, tokens * inputs);
    let first = run(IntLevel::Portable, &matrix, &x);
    for level in levels() {
        assert_eq!(run(level, &matrix, &x), first, "{level:?}");
    }
    let summed = match width {
        Width::Eight => 127 * inputs,
        Width::Twelve => 2047 * inputs.min(128),
    };
    let most = (i32::MAX as usize / summed).min(i16::MAX as usize) as f64;
    for (token, x) in x.chunks(inputs).enumerate() {
        let largest = x.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        for (output, w) in weights.chunks(inputs).enumerate() {
            let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
            let exact: f64 = products.sum();
            let sizes: f64 = w.iter().map(|w| f64::from(w.abs())).sum();
            let room = (0.51 / most + 1e-7) * f64::from(largest) * sizes + 1e-6 * exact.abs();
            let got = f64::from(first[token * outputs + output]);
            assert!((got - exact).abs() <= room, "{got} is not {exact}");
        }
    }
}

#[test]
fn every_level_equals_the_reference_and_each_other() {
    for width in WIDTHS {
        for shape in [
            (1, 1, 1),
            (16, 8, 12),
            (17, 9, 13),
            (33, 577, 5),
            (3, 8192, 2),
        ] {
            check(1, shape, Layout::Plain, width);
        }
        for outputs in [2, 14, 16, 18, 34] {
            check(2, (outputs, 31, 7), Layout::Gated, width);
        }
    }
}

#[test]
fn a_token_that_is_not_finite_is_nan_alone_at_every_level() {
    let (matrix, _) = matrix(3, 20, 40, Layout::Plain, Width::Eight);
    let good = values(4, 7 * 40);
    for level in levels() {
        let expected = run(level, &matrix, &good);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = good.clone();
            x[2 * 40 + 39] = bad;
            let out = run(level, &matrix, &x);
            assert!(out[40..60].iter().all(|y| y.is_nan()));
            assert_eq!(out[..40], expected[..40]);
            assert_eq!(out[60..], expected[60..]);
        }
    }
}

#[test]
fn a_gate_equals_its_formula_at_every_level() {
    let (matrix, _) = matrix(5, 2 * 13, 30, Layout::Gated, Width::Eight);
    let x: Vec<f32> = values(6, 5 * 30).iter().map(|x| x / 200.0).collect();
    for level in levels() {
        let both = run(level, &matrix, &x);
        let mut out = vec![f32::NAN; 5 * 13];
        let output = Output::Gate(place(&mut out), Activation::Silu);
        // SAFETY: vectors of these shapes; the CPU was asked for the level.
        unsafe { linear_at(level, &matrix, input(&x, 30), output) }.expect("a good call");
        for (out, both) in out.chunks(13).zip(both.chunks(26)) {
            for i in 0..13 {
                let (gate, up) = (f64::from(both[i]), f64::from(both[13 + i]));
                let exact = gate / (1.0 + (-gate).exp()) * up;
                assert!((f64::from(out[i]) - exact).abs() <= 1e-5 * (1.0 + exact.abs()));
            }
        }
    }
}

#[test]
fn a_norm_in_front_is_the_norm_alone() {
    let (matrix, _) = matrix(7, 9, 50, Layout::Plain, Width::Twelve);
    let (x, weight) = (values(8, 3 * 50), values(9, 50));
    let norm = Norm {
        weight: address(&weight),
        epsilon: 1e-5,
    };
    let (mut normed, mut out) = (vec![0.0; 3 * 50], vec![0.0; 3 * 9]);
    // SAFETY: vectors of these shapes.
    unsafe {
        rms_norm(place(&mut normed), address(&x), 3, 50, norm).expect("a good call");
        let input = Input {
            norm: Some(norm),
            ..input(&x, 50)
        };
        linear(&matrix, input, Output::Store(place(&mut out))).expect("a good call");
    }
    assert_eq!(out, run(IntLevel::detect(), &matrix, &normed));
    let squares: f64 = x[..50].iter().map(|x| f64::from(*x).powi(2)).sum();
    let exact = f64::from(x[3]) / (squares / 50.0 + 1e-5).sqrt() * f64::from(weight[3]);
    assert!((f64::from(normed[3]) - exact).abs() < 1e-6);
}

#[test]
fn rows_are_the_weights_and_unknown_ids_are_refused() {
    for width in WIDTHS {
        let (matrix, weights) = matrix(10, 6, 5, Layout::Gated, width);
        let mut out = [0.0; 10];
        let mut read = |ids: [i64; 2]| {
            // SAFETY: arrays of these shapes.
            let done = unsafe { rows(&matrix, place(&mut out), address(&ids), 2) };
            done.map(|()| out)
        };
        let got = read([5, 2]).expect("good ids");
        assert_eq!(got[..5], weights[25..30]);
        assert_eq!(got[5..], weights[10..15]);
        for number in [-1, 6, i64::MIN] {
            let (name, limit) = ("token id", 6);
            let expected = MatrixError::Number {
                name,
                number,
                limit,
            };
            assert_eq!(read([0, number]), Err(expected));
        }
    }
}

#[test]
fn heads_that_reach_past_a_token_and_positions_past_the_table_are_refused() {
    let (mut x, table, positions) = ([1.0; 8], [0.0; 8], [0_i64, 1]);
    let good = Rotary {
        heads: 1,
        head_dim: 4,
        stride: 4,
        table: address(&table),
        rows: 2,
        pairs: 2,
    };
    let mut turn = |rotary| {
        // SAFETY: arrays of these shapes.
        unsafe { rotate(place(&mut x), address(&positions), 2, rotary) }
    };
    assert_eq!(turn(good), Ok(()));
    for bad in [
        Rotary { heads: 2, ..good },
        Rotary { pairs: 3, ..good },
        Rotary { rows: 1, ..good },
        Rotary {
            heads: usize::MAX,
            ..good
        },
        Rotary { table: 2, ..good },
    ] {
        assert!(turn(bad).is_err(), "{bad:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_products_equal_the_reference(
        half in 1..40_usize,
        inputs in prop_oneof![1..20_usize, 1..700_usize],
        tokens in prop_oneof![1..3_usize, 1..40_usize],
        gated: bool,
        twelve: bool,
        seed: u32,
    ) {
        let layout = if gated { Layout::Gated } else { Layout::Plain };
        let outputs = if gated { 2 * half } else { half };
        let width = if twelve { Width::Twelve } else { Width::Eight };
        check(seed, (outputs, inputs, tokens), layout, width);
    }
}
