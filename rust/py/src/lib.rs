//! Module `appliance._core`: converts buffers, releases the GIL, maps errors. No logic lives here.

mod attention;
mod int_layer;
mod int_matrix;
mod lease;
mod lore;
mod packed;
mod prefix_index;
mod prompt;
mod tokenizer;

use pyo3::prelude::*;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    attention::register(module)?;
    int_matrix::register(module)?;
    module.add_class::<int_layer::IntLayer>()?;
    module.add_class::<prefix_index::PrefixIndex>()?;
    module.add_class::<lease::Lease>()?;
    module.add_class::<lore::LoreMatcher>()?;
    module.add_class::<prompt::Assembled>()?;
    module.add_class::<prompt::ChatPieces>()?;
    module.add(
        "ContentRefused",
        module.py().get_type::<prompt::ContentRefused>(),
    )?;
    module.add(
        "PromptTooLong",
        module.py().get_type::<prompt::PromptTooLong>(),
    )?;
    module.add_function(wrap_pyfunction!(prompt::cut, module)?)?;
    module.add_function(wrap_pyfunction!(prompt::join_prompt, module)?)?;
    module.add_function(wrap_pyfunction!(prefix_index::page_keys, module)?)?;
    module.add_class::<tokenizer::Tokenizer>()?;
    module.add_class::<tokenizer::StreamDecoder>()?;
    Ok(())
}
