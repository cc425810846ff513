//! Class `PrefixIndex`, and the keys of pages.

#![expect(
    clippy::needless_pass_by_value,
    reason = "extracted arguments and `map_err` give values"
)]

use std::sync::{Arc, Mutex, MutexGuard};

use appliance_core::page_keys as keys;
use appliance_core::prefix_index::{
    self as core, Cause, Difference, IndexError, Place, Prompt, Tier,
};
use pyo3::exceptions::{PyAssertionError, PyLookupError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};

use crate::lease::Lease;
use crate::packed::{Count, pack, unpack, value_error};

pub type Shared = Arc<Mutex<core::PrefixIndex>>;

/// The index for one call. No call runs Python code while it holds it, so the GIL may be held.
pub fn lock(shared: &Shared) -> PyResult<MutexGuard<'_, core::PrefixIndex>> {
    let broken = |_| PyRuntimeError::new_err("the prefix index failed before and is not trusted");
    shared.lock().map_err(broken)
}

pub fn raised(error: IndexError) -> PyErr {
    match error {
        IndexError::UnknownNode => PyLookupError::new_err(error.to_string()),
        _ => value_error(error),
    }
}

fn tier(name: &str) -> PyResult<Tier> {
    match name {
        "host" => Ok(Tier::Host),
        "disk" => Ok(Tier::Disk),
        _ => Err(PyValueError::new_err(format!("{name:?} is no tier"))),
    }
}

fn named(place: Place) -> (&'static str, u32) {
    match place {
        Place::Device(page) => ("device", page),
        Place::Host(slot) => ("host", slot),
        Place::Disk(slot) => ("disk", slot),
    }
}

/// (place, number, place, number, key)
type Moved<'py> = (&'static str, u32, &'static str, u32, Bound<'py, PyBytes>);

/// (namespace, tokens) of each stretch.
type Stretches = Vec<(PyBackedBytes, Count<usize>)>;

fn counted(stretches: &Stretches) -> Vec<(&[u8], usize)> {
    let pairs = stretches.iter();
    pairs
        .map(|(namespace, tokens)| (&**namespace, tokens.0))
        .collect()
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
    stretches: Stretches,
    page_size: Count<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let token_ids = unpack("token_ids", token_ids)?;
    let found = keys::page_keys(&token_ids, &counted(&stretches), page_size.0);
    let found = found.map_err(value_error)?;
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
    #[pyo3(
        signature = (*, page_size, pages, pin_pages_max=Count(0), host_slots=Count(0), disk_slots=Count(0)),
        text_signature = "(*, page_size, pages, pin_pages_max=0, host_slots=0, disk_slots=0)"
    )]
    fn new(
        page_size: Count<usize>,
        pages: Count<usize>,
        pin_pages_max: Count<usize>,
        host_slots: Count<u32>,
        disk_slots: Count<u32>,
    ) -> PyResult<Self> {
        let index = core::PrefixIndex::new(page_size.0, pages.0).map_err(raised)?;
        let index = index
            .with_pins(pin_pages_max.0)
            .with_tiers(host_slots.0, disk_slots.0);
        Ok(Self::of(index))
    }

    #[pyo3(
        signature = (
            token_ids, stretches, reserve_tokens, *,
            after=None, conversation=b"".as_slice(), priority=Count(0), resumes=false,
            onload_tokens_min=None
        ),
        text_signature = "($self, token_ids, stretches, reserve_tokens, *, after=None, \
            conversation=b'', priority=0, resumes=False, onload_tokens_min=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords of one Python call")]
    fn admit(
        &self,
        token_ids: &[u8],
        stretches: Stretches,
        reserve_tokens: Count<usize>,
        after: Option<Count<u64>>,
        conversation: &[u8],
        priority: Count<u8>,
        resumes: bool,
        onload_tokens_min: Option<Count<usize>>,
    ) -> PyResult<Option<Lease>> {
        let token_ids = unpack("token_ids", token_ids)?;
        let stretches = counted(&stretches);
        let prompt = Prompt {
            token_ids: &token_ids,
            stretches: &stretches,
            after: after.map(|Count(node)| node),
            conversation,
            priority: priority.0,
            resumes,
            onload_tokens_min: onload_tokens_min.map(|Count(tokens)| tokens),
        };
        let mut index = lock(&self.shared)?;
        let admitted = index.admit(&prompt, reserve_tokens.0).map_err(raised)?;
        Ok(admitted.and_then(|id| {
            let lease = index.lease(id)?;
            Some(Lease::new(&self.shared, id, lease))
        }))
    }

    fn take_moves<'py>(&self, py: Python<'py>) -> PyResult<Vec<Moved<'py>>> {
        let moves = lock(&self.shared)?.take_moves();
        let tuples = moves.into_iter().map(|one| {
            let (from, to) = (named(one.from), named(one.to));
            (from.0, from.1, to.0, to.1, PyBytes::new(py, &one.key))
        });
        Ok(tuples.collect())
    }

    fn node_tokens(&self, node: Count<u64>) -> PyResult<Option<usize>> {
        Ok(lock(&self.shared)?.node_tokens(node.0))
    }

    fn pin(&self, node: Count<u64>) -> PyResult<()> {
        lock(&self.shared)?.pin(node.0).map_err(raised)
    }

    fn unpin(&self, node: Count<u64>) -> PyResult<bool> {
        Ok(lock(&self.shared)?.unpin(node.0))
    }

    fn explain<'py>(
        &self,
        py: Python<'py>,
        token_ids: &[u8],
        stretches: Stretches,
    ) -> PyResult<Bound<'py, PyDict>> {
        let token_ids = unpack("token_ids", token_ids)?;
        let stretches = counted(&stretches);
        let explained = lock(&self.shared)?.explain(&token_ids, &stretches);
        let explained = explained.map_err(raised)?;
        let dict = PyDict::new(py);
        dict.set_item("hit_tokens", explained.hit_tokens)?;
        dict.set_item("miss_tokens", explained.miss_tokens)?;
        dict.set_item("host_tokens", explained.host_tokens)?;
        dict.set_item("disk_tokens", explained.disk_tokens)?;
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

    fn dump_tier<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        fingerprint: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let tier = tier(name)?;
        let bytes = py.detach(|| PyResult::Ok(lock(&self.shared)?.dump_tier(tier, fingerprint)))?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn load_tier(
        &self,
        py: Python<'_>,
        name: &str,
        dump: &[u8],
        fingerprint: &[u8],
    ) -> PyResult<()> {
        let tier = tier(name)?;
        py.detach(|| {
            let loaded = lock(&self.shared)?.load_tier(tier, dump, fingerprint);
            loaded.map_err(value_error)
        })
    }

    fn tier_pages<'py>(
        &self,
        py: Python<'py>,
        name: &str,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, u32)>> {
        let pages = lock(&self.shared)?.tier_pages(tier(name)?);
        let named = pages.iter();
        Ok(named
            .map(|(key, slot)| (PyBytes::new(py, key), *slot))
            .collect())
    }

    fn fill_tier(&self, name: &str, pages: Vec<(PyBackedBytes, Count<u32>)>) -> PyResult<()> {
        let tier = tier(name)?;
        let pages = pages.iter().map(|(key, slot)| {
            let key = <[u8; 32]>::try_from(&**key);
            let key = key.map_err(|_| PyValueError::new_err("a page key has 32 bytes"))?;
            Ok((key, slot.0))
        });
        let pages = pages.collect::<PyResult<Vec<_>>>()?;
        let filled = lock(&self.shared)?.fill_tier(tier, &pages);
        filled.map_err(value_error)
    }

    #[staticmethod]
    #[pyo3(
        signature = (
            dump, fingerprint, *, page_size, pages, pin_pages_max=Count(0), host_slots=Count(0),
            disk_slots=Count(0)
        ),
        text_signature = "(dump, fingerprint, *, page_size, pages, pin_pages_max=0, host_slots=0, \
            disk_slots=0)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keywords of one Python call")]
    fn load(
        py: Python<'_>,
        dump: &[u8],
        fingerprint: &[u8],
        page_size: Count<usize>,
        pages: Count<usize>,
        pin_pages_max: Count<usize>,
        host_slots: Count<u32>,
        disk_slots: Count<u32>,
    ) -> PyResult<Self> {
        let (page_size, pages) = (page_size.0, pages.0);
        let loaded = py.detach(|| core::PrefixIndex::load(dump, fingerprint, page_size, pages));
        let loaded = loaded.map_err(value_error)?;
        let loaded = loaded
            .with_pins(pin_pages_max.0)
            .with_tiers(host_slots.0, disk_slots.0);
        Ok(Self::of(loaded))
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
        dict.set_item("pages_host", stats.pages_host)?;
        dict.set_item("pages_disk", stats.pages_disk)?;
        dict.set_item("hit_tokens", stats.hit_tokens)?;
        dict.set_item("miss_tokens", stats.miss_tokens)?;
        dict.set_item("resumed_tokens", stats.resumed_tokens)?;
        dict.set_item("recomputed_tokens", stats.recomputed_tokens)?;
        dict.set_item("onloaded_tokens", stats.onloaded_tokens)?;
        dict.set_item("offloaded_pages", stats.offloaded_pages)?;
        dict.set_item("dropped_pages", stats.dropped_pages)?;
        dict.set_item("evicted_pages", stats.evicted_pages)?;
        dict.set_item("committed_tokens", stats.committed_tokens)?;
        Ok(dict)
    }

    fn check(&self) -> PyResult<()> {
        lock(&self.shared)?
            .check()
            .map_err(PyAssertionError::new_err)
    }

    fn quarantine(
        &self,
        token_ids: &[u8],
        stretches: Stretches,
        from_token: Count<usize>,
    ) -> PyResult<usize> {
        let token_ids = unpack("token_ids", token_ids)?;
        let mut index = lock(&self.shared)?;
        let dropped = index.quarantine(&token_ids, &counted(&stretches), from_token.0);
        dropped.map_err(raised)
    }

    fn purge(&self, namespace: &[u8]) -> PyResult<usize> {
        Ok(lock(&self.shared)?.purge(namespace))
    }

    fn clear(&self) -> PyResult<usize> {
        Ok(lock(&self.shared)?.clear())
    }
}
