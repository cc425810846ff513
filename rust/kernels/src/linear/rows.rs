//! Rows of a matrix of integers as float32: the embeddings of tokens, where the matrix is also the head.

use super::matrix::{Matrix, MatrixError, check_address, check_tokens};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// Writes the row of each id to `out`, float32 [tokens, inputs]; `ids` is the address of i64 [tokens].
///
/// # Errors
/// `MatrixError` when rows are missing or an id, a size or an address does not fit; then nothing was
/// written.
///
/// # Safety
/// The addresses are those of contiguous tensors of these shapes, which do not overlap; they live, and
/// nothing else writes them or reads `out`, during the call.
pub unsafe fn rows(
    matrix: &Matrix,
    out: usize,
    ids: usize,
    tokens: usize,
) -> Result<(), MatrixError> {
    matrix.check_filled()?;
    check_tokens(tokens, matrix.inputs())?;
    if tokens == 0 {
        return Ok(());
    }
    check_address::<f32>("out", out)?;
    check_address::<i64>("token_ids", ids)?;
    // SAFETY: `tokens` ids, by the caller.
    let ids = unsafe { std::slice::from_raw_parts(with_exposed_provenance::<i64>(ids), tokens) };
    let (name, limit) = ("token id", matrix.outputs());
    // Copied as they are checked: what is used is what was checked.
    let check = |&number: &i64| match usize::try_from(number) {
        Ok(row) if row < limit => Ok(row),
        _ => Err(MatrixError::Number {
            name,
            number,
            limit,
        }),
    };
    let rows = ids.iter().map(check).collect::<Result<Vec<_>, _>>()?;
    for (token, row) in rows.into_iter().enumerate() {
        let place = matrix.place(row);
        let scale = matrix.scales(place.0)[place.1];
        let to = with_exposed_provenance_mut::<f32>(out).wrapping_add(token * matrix.inputs());
        // SAFETY: a row of `out`.
        let to = unsafe { std::slice::from_raw_parts_mut(to, matrix.inputs()) };
        for (input, to) in to.iter_mut().enumerate() {
            *to = f32::from(matrix.number(place, input)) * scale;
        }
    }
    Ok(())
}
