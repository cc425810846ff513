//! Module `appliance._core`: converts buffers, releases the GIL, maps errors. No logic lives here.

use pyo3::prelude::*;

mod prefix_index;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<prefix_index::PrefixIndex>()?;
    module.add_class::<prefix_index::Lease>()?;
    Ok(())
}
