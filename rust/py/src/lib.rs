//! Module `appliance._core`: converts buffers, releases the GIL, maps errors. No logic lives here.

mod attention;
mod packed;
mod prefix_index;
mod tokenizer;

use pyo3::prelude::*;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    attention::register(module)?;
    module.add_class::<prefix_index::PrefixIndex>()?;
    module.add_class::<prefix_index::Lease>()?;
    module.add_function(wrap_pyfunction!(prefix_index::page_keys, module)?)?;
    module.add_class::<tokenizer::Tokenizer>()?;
    module.add_class::<tokenizer::StreamDecoder>()?;
    Ok(())
}
