//! Module `appliance._core`: converts buffers, releases the GIL, maps errors. No logic lives here.

use pyo3::prelude::*;

#[pymodule]
fn _core(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
