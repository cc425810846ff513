//! Class `Lease`. Its drop in Python is its release.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use appliance_core::prefix_index::{self as core, LeaseId};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::packed::{Count, pack, unpack};
use crate::prefix_index::{Shared, lock, raised};

#[pyclass(frozen, module = "appliance._core")]
pub struct Lease {
    shared: Shared,
    id: LeaseId,
    /// Hit tokens that were on the device.
    shared_tokens: usize,
    /// The others. A rejection lowers it.
    onloaded_tokens: AtomicUsize,
    prompt_tokens: usize,
}

impl Lease {
    pub fn new(shared: &Shared, id: LeaseId, lease: &core::Lease) -> Self {
        Self {
            shared: Arc::clone(shared),
            id,
            shared_tokens: lease.hit_tokens() - lease.onloaded_tokens(),
            onloaded_tokens: AtomicUsize::new(lease.onloaded_tokens()),
            prompt_tokens: lease.prompt_tokens(),
        }
    }
}

#[pymethods]
impl Lease {
    #[getter]
    fn hit_tokens(&self) -> usize {
        self.shared_tokens + self.onloaded_tokens()
    }

    #[getter]
    fn onloaded_tokens(&self) -> usize {
        self.onloaded_tokens.load(Ordering::Relaxed)
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
    fn is_detached(&self) -> PyResult<bool> {
        let index = lock(&self.shared)?;
        Ok(index.lease(self.id).is_some_and(core::Lease::is_detached))
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

    fn grow(&self, tokens: Count<usize>) -> PyResult<bool> {
        let mut index = lock(&self.shared)?;
        index.grow(self.id, tokens.0).map_err(raised)
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

    fn commit(&self, tokens: Count<usize>) -> PyResult<()> {
        let mut index = lock(&self.shared)?;
        index.commit(self.id, tokens.0).map_err(raised)
    }

    fn reject(&self, tokens: Count<usize>) -> PyResult<()> {
        let mut index = lock(&self.shared)?;
        index.reject(self.id, tokens.0).map_err(raised)?;
        // Written only here, with the index locked.
        let onloaded_tokens = tokens.0 - self.shared_tokens;
        self.onloaded_tokens
            .store(onloaded_tokens, Ordering::Relaxed);
        Ok(())
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
