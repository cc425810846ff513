//! `Tokenizer` and `StreamDecoder` for Python: packed ids in and out, the GIL released around work.

use std::sync::Arc;

use appliance_core::stream_decoder;
use appliance_core::tokenizer::{self, TokenizerError};
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyDict};

use crate::packed::{Count, pack, unpack};

fn to_python(error: TokenizerError) -> PyErr {
    match error {
        TokenizerError::Failed(_) => PyRuntimeError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

/// A model's own tokenizer with a byte-bounded memo of encodings. Thread-safe.
#[pyclass(frozen, module = "appliance._core")]
pub struct Tokenizer(Arc<tokenizer::Tokenizer>);

impl Tokenizer {
    pub(crate) fn shared(&self) -> Arc<tokenizer::Tokenizer> {
        Arc::clone(&self.0)
    }
}

#[pymethods]
impl Tokenizer {
    #[new]
    #[pyo3(signature = (tokenizer_json, *, memo_bytes_max))]
    fn new(py: Python<'_>, tokenizer_json: &[u8], memo_bytes_max: Count<usize>) -> PyResult<Self> {
        py.detach(|| tokenizer::Tokenizer::new(tokenizer_json, memo_bytes_max.0))
            .map(|tokenizer| Self(Arc::new(tokenizer)))
            .map_err(to_python)
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    #[getter]
    fn is_fast(&self) -> bool {
        self.0.is_fast()
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        self.0.fingerprint()
    }

    #[pyo3(
        signature = (text, namespace = b"".as_slice()),
        text_signature = "($self, text, namespace=b'')"
    )]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        text: &str,
        namespace: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let ids = py.detach(|| self.0.encode(text, namespace));
        pack(py, &ids.map_err(to_python)?)
    }

    #[pyo3(
        signature = (texts, namespace = b"".as_slice()),
        text_signature = "($self, texts, namespace=b'')"
    )]
    fn encode_many<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<PyBackedStr>,
        namespace: &[u8],
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let all: Result<Vec<_>, _> = py.detach(|| {
            texts
                .iter()
                .map(|text| self.0.encode(text, namespace))
                .collect()
        });
        all.map_err(to_python)?
            .iter()
            .map(|ids| pack(py, ids))
            .collect()
    }

    fn encode_template<'py>(&self, py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyBytes>> {
        let ids = py.detach(|| self.0.encode_template(text));
        pack(py, &ids.map_err(to_python)?)
    }

    fn remember(
        &self,
        py: Python<'_>,
        namespace: &[u8],
        text: &str,
        token_ids: &[u8],
    ) -> PyResult<()> {
        let ids = unpack("token_ids", token_ids)?;
        py.detach(|| self.0.remember(namespace, text, &ids))
            .map_err(to_python)
    }

    fn decode(&self, py: Python<'_>, token_ids: &[u8]) -> PyResult<String> {
        let ids = unpack("token_ids", token_ids)?;
        py.detach(|| self.0.decode(&ids)).map_err(to_python)
    }

    fn token_id(&self, token: &str) -> Option<u32> {
        self.0.token_id(token)
    }

    fn token_bytes<'py>(&self, token_id: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let py = token_id.py();
        let id = token_id.extract().map_err(|error: PyErr| {
            if error.is_instance_of::<PyOverflowError>(py) {
                PyValueError::new_err(format!("token id {token_id} is not in the vocabulary"))
            } else {
                error
            }
        })?;
        let bytes = self.0.table().token_bytes(id).map_err(to_python)?;
        Ok(PyBytes::new(py, bytes))
    }

    fn memo_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.0.memo_stats();
        let counts = PyDict::new(py);
        counts.set_item("hits", stats.hits)?;
        counts.set_item("misses", stats.misses)?;
        counts.set_item("entries", stats.entries)?;
        counts.set_item("bytes", stats.bytes)?;
        counts.set_item("evictions", stats.evictions)?;
        Ok(counts)
    }
}

/// Turns a growing reply into text that is certain: whole characters, no part of a stop string.
#[pyclass(module = "appliance._core")]
pub struct StreamDecoder(stream_decoder::StreamDecoder);

#[pymethods]
impl StreamDecoder {
    #[new]
    #[pyo3(signature = (tokenizer, *, stop = Vec::new()), text_signature = "(tokenizer, *, stop=())")]
    fn new(tokenizer: &Tokenizer, stop: Vec<String>) -> PyResult<Self> {
        stream_decoder::StreamDecoder::new(Arc::clone(&tokenizer.0), &stop)
            .map(Self)
            .map_err(to_python)
    }

    fn push(&mut self, token_ids: &[u8]) -> PyResult<String> {
        self.0
            .push(&unpack("token_ids", token_ids)?)
            .map_err(to_python)
    }

    fn finish(&mut self) -> String {
        self.0.finish()
    }

    #[getter]
    fn stopped(&self) -> bool {
        self.0.stopped()
    }

    #[getter]
    fn delivered_tokens(&self) -> usize {
        self.0.delivered_tokens()
    }
}
