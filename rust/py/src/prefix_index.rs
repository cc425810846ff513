//! Classes `PrefixIndex` and `Lease`. A lease's drop in Python is its release.

#![expect(
    clippy::needless_pass_by_value,
    reason = "extracted arguments and `map_err` give values"
)]

use std::sync::{Arc, Mutex, MutexGuard};

use appliance_core::page_keys as keys;
use appliance_core::prefix_index::{self as core, Cause, Difference, IndexError, LeaseId, Prompt};
use pyo3::exceptions::{
    PyAssertionError, PyLookupError, PyOverflowError, PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};

use crate::packed::{pack, unpack};

type Shared = Arc<Mutex<core::PrefixIndex>>;

/// The index for one call. No call runs Python code while it holds it, so the GIL may be held.
fn lock(shared: &Shared) -> PyResult<MutexGuard<'_, core::PrefixIndex>> {
    let broken = |_| PyRuntimeError::new_err("the prefix index failed before and is not trusted");
    shared.lock().map_err(broken)
}

fn raised(error: IndexError) -> PyErr {
    match error {
        IndexError::UnknownNode => PyLookupError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

/// A count; one that is negative or does not fit is a wrong value, not an overflow.
fn count(number: &Bound<'_, PyAny>) -> PyResult<usize> {
    number.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(number.py()) {
            PyValueError::new_err(format!("{number} is not a count"))
        } else {
            error
        }
    })
}

fn counted<'a>(
    stretches: &'a [(PyBackedBytes, Bound<'_, PyAny>)],
) -> PyResult<Vec<(&'a [u8], usize)>> {
    let mut counted: Vec<(&[u8], usize)> = Vec::with_capacity(stretches.len());
    for (namespace, tokens) in stretches {
        counted.push((namespace, count(tokens)?));
    }
    Ok(counted)
}

fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Hit => "hit",
        Cause::Cold => "cold",
        Cause::Evicted => "evicted",
        Cause::Diverged => "diverged",
        Cause::Truncated => "truncated",
        Cause::Namespace => "namespace",
    }
}

/// The keys of a path's full pages; see `_core.pyi`.
#[pyfunction]
pub fn page_keys<'py>(
    py: Python<'py>,
    token_ids: &[u8],
    stretches: Vec<(PyBackedBytes, Bound<'_, PyAny>)>,
    page_size: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let token_ids = unpack("token_ids", token_ids)?;
    let found = keys::page_keys(&token_ids, &counted(&stretches)?, count(page_size)?);
    let found = found.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, found.as_flattened()))
}

#[pyclass(frozen, module = "appliance._core")]
pub struct PrefixIndex {
    shared: Shared,
}

impl PrefixIndex {
    fn of(index: core::PrefixIndex) -> Self {
        Self {
            shared: Arc::new(Mutex::new(index)),
        }
    }
}

#[pymethods]
impl PrefixIndex {
    #[new]
    #[pyo3(signature = (*, page_size, pages, pin_pages_max=0))]
    fn new(
        page_size: &Bound<'_, PyAny>,
        pages: &Bound<'_, PyAny>,
        pin_pages_max: usize,
    ) -> PyResult<Self> {
        let index = core::PrefixIndex::new(count(page_size)?, count(pages)?).map_err(raised)?;
        Ok(Self::of(index.with_pins(pin_pages_max)))
    }

    #[pyo3(
        signature = (
            token_ids, stretches, reserve_tokens, *,
            after=None, conversation=b"".as_slice(), priority=0, resumes=false
        ),
        text_signature = "($self, token_ids, stretches, reserve_tokens, *, after=None, \
            conversation=b'', priority=0, resumes=False)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords of one Python call")]
    fn admit(
        &self,
        token_ids: &[u8],
        stretches: Vec<(PyBackedBytes, Bound<'_, PyAny>)>,
        reserve_tokens: &Bound<'_, PyAny>,
        after: Option<u64>,
        conversation: &[u8],
        priority: u8,
        resumes: bool,
    ) -> PyResult<Option<Lease>> {
        let token_ids = unpack("token_ids", token_ids)?;
        let stretches = counted(&stretches)?;
        let prompt = Prompt {
            token_ids: &token_ids,
            stretches: &stretches,
            after,
            conversation,
            priority,
            resumes,
        };
        let reserve_tokens = count(reserve_tokens)?;
        let mut index = lock(&self.shared)?;
        let admitted = index.admit(&prompt, reserve_tokens).map_err(raised)?;
        Ok(admitted.and_then(|id| {
            let lease = index.lease(id)?;
            Some(Lease {
                shared: Arc::clone(&self.shared),
                id,
                hit_tokens: lease.hit_tokens(),
                prompt_tokens: lease.prompt_tokens(),
            })
        }))
    }

    fn node_tokens(&self, node: u64) -> PyResult<Option<usize>> {
        Ok(lock(&self.shared)?.node_tokens(node))
    }

    fn pin(&self, node: u64) -> PyResult<()> {
        lock(&self.shared)?.pin(node).map_err(raised)
    }

    fn unpin(&self, node: u64) -> PyResult<bool> {
        Ok(lock(&self.shared)?.unpin(node))
    }

    fn explain<'py>(
        &self,
        py: Python<'py>,
        token_ids: &[u8],
        stretches: Vec<(PyBackedBytes, Bound<'_, PyAny>)>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let token_ids = unpack("token_ids", token_ids)?;
        let stretches = counted(&stretches)?;
        let explained = lock(&self.shared)?.explain(&token_ids, &stretches);
        let explained = explained.map_err(raised)?;
        let dict = PyDict::new(py);
        dict.set_item("hit_tokens", explained.hit_tokens)?;
        dict.set_item("miss_tokens", explained.miss_tokens)?;
        dict.set_item("cause", cause_name(explained.cause))?;
        let difference = explained.difference;
        let shown = |part: fn(&Difference) -> &[u32]| {
            let tokens = difference.as_ref().map(part);
            tokens.map(|tokens| pack(py, tokens)).transpose()
        };
        dict.set_item("before", shown(|difference| &difference.before)?)?;
        dict.set_item("asked", shown(|difference| &difference.asked)?)?;
        dict.set_item("cached", shown(|difference| &difference.cached)?)?;
        Ok(dict)
    }

    fn dump<'py>(&self, py: Python<'py>, fingerprint: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| PyResult::Ok(lock(&self.shared)?.dump(fingerprint)))?;
        Ok(PyBytes::new(py, &bytes))
    }

    #[staticmethod]
    #[pyo3(signature = (dump, fingerprint, *, page_size, pages, pin_pages_max=0))]
    fn load(
        py: Python<'_>,
        dump: &[u8],
        fingerprint: &[u8],
        page_size: &Bound<'_, PyAny>,
        pages: &Bound<'_, PyAny>,
        pin_pages_max: usize,
    ) -> PyResult<Self> {
        let (page_size, pages) = (count(page_size)?, count(pages)?);
        let loaded = py.detach(|| core::PrefixIndex::load(dump, fingerprint, page_size, pages));
        let loaded = loaded.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self::of(loaded.with_pins(pin_pages_max)))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = lock(&self.shared)?.stats();
        let dict = PyDict::new(py);
        dict.set_item("pages_total", stats.pages_total)?;
        dict.set_item("pages_free", stats.pages_free)?;
        dict.set_item("pages_cached", stats.pages_cached)?;
        dict.set_item("pages_leased", stats.pages_leased)?;
        dict.set_item("pages_evictable", stats.pages_evictable)?;
        dict.set_item("nodes", stats.nodes)?;
        dict.set_item("tips", stats.tips)?;
        dict.set_item("pages_pinned", stats.pages_pinned)?;
        dict.set_item("hit_tokens", stats.hit_tokens)?;
        dict.set_item("miss_tokens", stats.miss_tokens)?;
        dict.set_item("resumed_tokens", stats.resumed_tokens)?;
        dict.set_item("recomputed_tokens", stats.recomputed_tokens)?;
        dict.set_item("evicted_pages", stats.evicted_pages)?;
        dict.set_item("committed_tokens", stats.committed_tokens)?;
        Ok(dict)
    }

    fn check(&self) -> PyResult<()> {
        lock(&self.shared)?
            .check()
            .map_err(PyAssertionError::new_err)
    }

    fn clear(&self) -> PyResult<usize> {
        Ok(lock(&self.shared)?.clear())
    }
}

#[pyclass(frozen, module = "appliance._core")]
pub struct Lease {
    shared: Shared,
    id: LeaseId,
    hit_tokens: usize,
    prompt_tokens: usize,
}

#[pymethods]
impl Lease {
    #[getter]
    fn hit_tokens(&self) -> usize {
        self.hit_tokens
    }

    #[getter]
    fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    #[getter]
    fn tokens(&self) -> PyResult<usize> {
        let index = lock(&self.shared)?;
        Ok(index.lease(self.id).map_or(0, core::Lease::tokens))
    }

    #[getter]
    fn node(&self) -> u64 {
        self.id.number()
    }

    #[getter]
    fn copy(&self) -> PyResult<Option<(u32, u32, usize)>> {
        let index = lock(&self.shared)?;
        let copy = index.lease(self.id).and_then(core::Lease::copy);
        Ok(copy.map(|copy| (copy.source_page, copy.target_page, copy.rows)))
    }

    #[getter]
    fn page_table<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let index = lock(&self.shared)?;
        let table = index.lease(self.id).map(core::Lease::page_table);
        pack(py, table.unwrap_or_default())
    }

    #[getter]
    fn tokens_reserved(&self) -> PyResult<usize> {
        let index = lock(&self.shared)?;
        let lease = index.lease(self.id);
        Ok(lease.map_or(0, core::Lease::tokens_reserved))
    }

    fn grow(&self, tokens: &Bound<'_, PyAny>) -> PyResult<bool> {
        let tokens = count(tokens)?;
        let mut index = lock(&self.shared)?;
        index.grow(self.id, tokens).map_err(raised)
    }

    fn token_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let token_ids = lock(&self.shared)?.token_ids(self.id).map_err(raised)?;
        pack(py, &token_ids)
    }

    fn append(&self, token_ids: &[u8]) -> PyResult<()> {
        let token_ids = unpack("token_ids", token_ids)?;
        let mut index = lock(&self.shared)?;
        index.append(self.id, &token_ids).map_err(raised)
    }

    fn commit(&self, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        let tokens = count(tokens)?;
        let mut index = lock(&self.shared)?;
        index.commit(self.id, tokens).map_err(raised)
    }

    fn release(&self) -> PyResult<()> {
        lock(&self.shared)?.release(self.id);
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // An index that failed before is not worth a panic in a destructor.
        if let Ok(mut index) = self.shared.lock() {
            index.release(self.id);
        }
    }
}
