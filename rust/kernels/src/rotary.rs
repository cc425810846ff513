//! Rotary embedding (arXiv:2104.09864) of pairs that lie side by side, in place.

use crate::linear::MatrixError;
use crate::linear::{check_address, check_tokens};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// The heads that turn, and by what.
#[derive(Clone, Copy, Debug)]
pub struct Rotary {
    /// Heads of a token, from its first value on.
    pub heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// Values from one token to the next: heads that do not turn may follow.
    pub stride: usize,
    /// Address of float32 [rows, pairs, 2]: cosine and sine.
    pub table: usize,
    /// Positions of the table.
    pub rows: usize,
    /// Pairs of a head that turn, its first ones.
    pub pairs: usize,
}

/// Turns x, float32 [tokens, stride], by the row of each token's position, i64 [tokens].
///
/// # Errors
/// `MatrixError` when a position, a size or an address does not fit; then nothing was written.
///
/// # Safety
/// The addresses are those of contiguous tensors of these shapes, which do not overlap; they live, and
/// nothing else uses x or writes the others, during the call.
pub unsafe fn rotate(
    x: usize,
    positions: usize,
    tokens: usize,
    rotary: Rotary,
) -> Result<(), MatrixError> {
    let Rotary {
        heads,
        head_dim,
        stride,
        table,
        rows,
        pairs,
    } = rotary;
    check_tokens(tokens, stride)?;
    check_tokens(rows, pairs)?;
    if pairs > head_dim / 2 {
        return Err(MatrixError::Shape("more pairs than a head has"));
    }
    if heads.checked_mul(head_dim).is_none_or(|n| n > stride) {
        return Err(MatrixError::Shape("heads reach past the stride"));
    }
    if tokens == 0 || pairs == 0 {
        return Ok(());
    }
    check_address::<f32>("x", x)?;
    check_address::<i64>("positions", positions)?;
    check_address::<f32>("table", table)?;
    let positions = with_exposed_provenance::<i64>(positions);
    // SAFETY: `tokens` positions, by the caller.
    let positions = unsafe { std::slice::from_raw_parts(positions, tokens) };
    let check = |&number: &i64| match usize::try_from(number) {
        Ok(row) if row < rows => Ok(row),
        _ => Err(MatrixError::Number {
            name: "position",
            number,
            limit: rows,
        }),
    };
    let positions = positions.iter().map(check).collect::<Result<Vec<_>, _>>()?;
    for (token, row) in positions.into_iter().enumerate() {
        let turns = with_exposed_provenance::<[f32; 2]>(table).wrapping_add(row * pairs);
        // SAFETY: a row of the table.
        let turns = unsafe { std::slice::from_raw_parts(turns, pairs) };
        for head in 0..heads {
            let start = token * stride + head * head_dim;
            let values = with_exposed_provenance_mut::<f32>(x).wrapping_add(start);
            // SAFETY: the first values of a head.
            let values = unsafe { std::slice::from_raw_parts_mut(values, 2 * pairs) };
            for (pair, [cos, sin]) in values.as_chunks_mut::<2>().0.iter_mut().zip(turns) {
                let [a, b] = *pair;
                *pair = [a * cos - b * sin, a * sin + b * cos];
            }
        }
    }
    Ok(())
}
