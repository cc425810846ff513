//! The keys of a lorebook for Python: lists in, indexes out, the GIL released for long texts.

use appliance_core::lore::{self, Key, Pattern};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

/// Texts from so many bytes on are searched with the GIL released.
const RELEASE_BYTES_MIN: usize = 2 << 10;

/// The compiled keys of a lorebook.
#[pyclass(frozen, module = "appliance._core")]
pub struct LoreMatcher {
    matcher: lore::LoreMatcher,
}

#[pymethods]
impl LoreMatcher {
    #[new]
    #[pyo3(signature = (*, keys, patterns))]
    fn new(
        py: Python<'_>,
        keys: Vec<(PyBackedStr, bool, bool)>,
        patterns: Vec<(PyBackedStr, bool)>,
    ) -> Self {
        let matcher = py.detach(|| {
            let keys: Vec<Key<'_>> = keys
                .iter()
                .map(|(text, case_sensitive, whole_words)| Key {
                    text,
                    case_sensitive: *case_sensitive,
                    whole_words: *whole_words,
                })
                .collect();
            let patterns: Vec<Pattern<'_>> = patterns
                .iter()
                .map(|(text, case_sensitive)| Pattern {
                    text,
                    case_sensitive: *case_sensitive,
                })
                .collect();
            lore::LoreMatcher::new(&keys, &patterns)
        });
        Self { matcher }
    }

    #[getter]
    fn refused(&self) -> Vec<(usize, &str)> {
        let refused = self.matcher.refused().iter();
        refused
            .map(|(index, reason)| (*index, reason.as_str()))
            .collect()
    }

    fn matches(&self, py: Python<'_>, text: PyBackedStr) -> Vec<usize> {
        if text.len() < RELEASE_BYTES_MIN {
            self.matcher.matches(&text)
        } else {
            py.detach(|| self.matcher.matches(&text))
        }
    }
}
