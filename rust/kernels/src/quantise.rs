//! Rows of float32 as int8 with one scale, symmetric.
//!
//! Owns the rounding; K/V rows and rows of weights are quantised alike.

/// Fills `numbers` and returns their scale: value = number * scale, to half a scale.
pub(crate) fn quantise(values: &[f32], numbers: &mut [i8]) -> f32 {
    let largest = values.iter().fold(0.0, |max, x| f32::max(x.abs(), max));
    let scale = largest / 127.0;
    // `max` passes over NaN.
    if !largest.is_finite() || values.iter().any(|x| x.is_nan()) {
        numbers.fill(0);
        return f32::NAN;
    }
    for (number, x) in numbers.iter_mut().zip(values) {
        // Division, since 1 / scale can be infinite. A scale of zero, below what float32 can hold,
        // gives infinity or NaN and with it some number or 0, times zero.
        *number = (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
    }
    scale
}
