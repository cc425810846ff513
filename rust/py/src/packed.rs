//! Numbers as they cross into Python: arrays of u32 as packed little-endian bytes, and counts.

use std::borrow::Cow;

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zerocopy::FromBytes;

const WORD_BYTES: usize = 4;

/// The words of `packed`, the argument `name`; a ValueError when its length is not a multiple of 4.
/// They are read where they are, if they stand there as this machine reads them.
pub fn unpack<'a>(name: &str, packed: &'a [u8]) -> PyResult<Cow<'a, [u32]>> {
    let (words, rest) = packed.as_chunks::<WORD_BYTES>();
    if !rest.is_empty() {
        let text = format!(
            "{name} are not a whole number of u32: {} bytes",
            packed.len()
        );
        return Err(PyValueError::new_err(text));
    }
    match <[u32]>::ref_from_bytes(packed) {
        Ok(words) if cfg!(target_endian = "little") => Ok(Cow::Borrowed(words)),
        _ => Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect()),
    }
}

pub fn pack<'py>(py: Python<'py>, words: &[u32]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, words.len() * WORD_BYTES, |bytes| {
        for (chunk, word) in bytes.chunks_exact_mut(WORD_BYTES).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    })
}

/// What the core says is wrong with a value.
pub fn value_error(error: impl ToString) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// A number that is no less than zero. One that is negative or does not fit is a wrong value, not an overflow.
pub struct Count<T>(pub T);

impl<'a, 'py, T: FromPyObject<'a, 'py, Error = PyErr>> FromPyObject<'a, 'py> for Count<T> {
    type Error = PyErr;

    fn extract(number: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        number.extract().map(Self).map_err(|error: PyErr| {
            if error.is_instance_of::<PyOverflowError>(number.py()) {
                PyValueError::new_err("a number is negative or too large")
            } else {
                error
            }
        })
    }
}
