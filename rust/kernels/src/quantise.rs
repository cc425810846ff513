//! Rows of float32 as integers with one scale, symmetric.
//!
//! Owns the rounding; K/V rows and rows of weights are quantised alike.

/// 1.5 * 2^23: adding it to |x| < 2^22 leaves round(x), ties to even, in the low bits of the sum.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// Bits of float32 without the sign: from these on a value is infinite or NaN.
pub(crate) const NOT_FINITE: u32 = 0x7f80_0000;

/// Fills `numbers` and returns their scale: value = number * scale, to half a scale.
///
/// A row that is not finite gives zeros and a scale of NaN.
pub(crate) fn quantise(values: &[f32], numbers: &mut [i8]) -> f32 {
    let scale = scale_of(values, 127.0);
    for (number, x) in numbers.iter_mut().zip(values) {
        *number = number_of(*x, scale, 127.0) as i8;
    }
    scale
}

/// `quantise` with numbers of up to +-`most`.
#[inline(always)]
pub(crate) fn quantise_to(most: i16, values: &[f32], numbers: &mut [i16]) -> f32 {
    let scale = scale_of(values, f32::from(most));
    for (number, x) in numbers.iter_mut().zip(values) {
        *number = number_of(*x, scale, f32::from(most));
    }
    scale
}

#[inline(always)]
fn scale_of(values: &[f32], most: f32) -> f32 {
    // Magnitudes are in the order of their bits; NaN comes after infinity.
    let magnitudes = values.iter().map(|x| x.to_bits() & !(1 << 31));
    let largest = magnitudes.fold(0, u32::max);
    if largest >= NOT_FINITE {
        return f32::NAN;
    }
    f32::from_bits(largest) / most
}

#[inline(always)]
fn number_of(x: f32, scale: f32, most: f32) -> i16 {
    // Division, since 1 / scale can be infinite. A scale of zero, below what float32 can hold, gives
    // infinity or NaN and with it some number or 0, times zero.
    let number = (x / scale).clamp(-most, most);
    let number = if number.is_nan() { 0.0 } else { number };
    (number + ROUND).to_bits() as i16
}
