//! `IntMatrix`, `rms_norm` and `rotate` of `_core`: addresses passed on.

use std::sync::Arc;

use appliance_kernels::linear::{self, Activation, Input, Layout, Matrix, Output, Width};
use appliance_kernels::norm::{self, Norm};
use appliance_kernels::rotary::{self, Rotary};
use appliance_kernels::set_threads;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::packed::{Count, value_error};

/// Weights as integers; see `_core.pyi`.
#[pyclass(module = "appliance._core")]
pub struct IntMatrix(Arc<Matrix>);

/// (address of the weight, epsilon).
type PyNorm = Option<(usize, f32)>;

/// The activation of a name.
pub(crate) fn activation(name: &str) -> PyResult<Activation> {
    match name {
        "silu" => Ok(Activation::Silu),
        "gelu_tanh" => Ok(Activation::GeluTanh),
        "gelu_erf" => Ok(Activation::GeluErf),
        other => {
            let text = format!("activation {other:?} is none of silu, gelu_tanh, gelu_erf");
            Err(PyValueError::new_err(text))
        }
    }
}

impl IntMatrix {
    /// The matrix, shared with a layer: from then on no rows can be added.
    pub(crate) fn shared(&self) -> Arc<Matrix> {
        Arc::clone(&self.0)
    }

    /// The matrix, while nothing else uses it.
    fn writable(&mut self) -> PyResult<&mut Matrix> {
        let used =
            || PyRuntimeError::new_err("the matrix is in use by another thread or by a layer");
        Arc::get_mut(&mut self.0).ok_or_else(used)
    }

    fn product(
        &self,
        py: Python<'_>,
        (x, tokens): (usize, Count<usize>),
        norm: PyNorm,
        output: Output,
    ) -> PyResult<()> {
        let input = Input {
            x,
            tokens: tokens.0,
            norm: norm.map(|(weight, epsilon)| Norm { weight, epsilon }),
        };
        let matrix = Arc::clone(&self.0);
        // SAFETY: the caller keeps tensors of these shapes alive, by the contract in `_core.pyi`.
        py.detach(|| unsafe { linear::linear(&matrix, input, output) })
            .map_err(value_error)
    }
}

#[pymethods]
impl IntMatrix {
    #[new]
    #[pyo3(signature = (outputs, inputs, *, bits = 8, gated = false))]
    fn new(outputs: Count<usize>, inputs: Count<usize>, bits: i64, gated: bool) -> PyResult<Self> {
        let layout = if gated { Layout::Gated } else { Layout::Plain };
        let width = match bits {
            8 => Width::Eight,
            12 => Width::Twelve,
            other => {
                let text = format!("bits are 8 or 12, not {other}");
                return Err(PyValueError::new_err(text));
            }
        };
        let matrix = Matrix::new(outputs.0, inputs.0, layout, width).map_err(value_error)?;
        Ok(Self(Arc::new(matrix)))
    }

    #[getter]
    fn outputs(&self) -> usize {
        self.0.outputs()
    }

    #[getter]
    fn inputs(&self) -> usize {
        self.0.inputs()
    }

    #[getter]
    fn bits(&self) -> u32 {
        match self.0.width() {
            Width::Eight => 8,
            Width::Twelve => 12,
        }
    }

    #[getter]
    fn gated(&self) -> bool {
        self.0.layout() == Layout::Gated
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes()
    }

    fn push_rows(&mut self, py: Python<'_>, rows: usize, count: Count<usize>) -> PyResult<()> {
        let matrix = self.writable()?;
        // SAFETY: as in `product`.
        py.detach(|| unsafe { matrix.push_rows(count.0, rows) })
            .map_err(value_error)
    }

    fn set_bias(&mut self, bias: usize) -> PyResult<()> {
        // SAFETY: as in `product`.
        unsafe { self.writable()?.set_bias(bias) }.map_err(value_error)
    }

    #[pyo3(signature = (out, x, tokens, *, norm = None))]
    fn linear(
        &self,
        py: Python<'_>,
        out: usize,
        x: usize,
        tokens: Count<usize>,
        norm: PyNorm,
    ) -> PyResult<()> {
        self.product(py, (x, tokens), norm, Output::Store(out))
    }

    #[pyo3(signature = (residual, x, tokens, *, norm = None))]
    fn add_linear(
        &self,
        py: Python<'_>,
        residual: usize,
        x: usize,
        tokens: Count<usize>,
        norm: PyNorm,
    ) -> PyResult<()> {
        self.product(py, (x, tokens), norm, Output::Add(residual))
    }

    #[pyo3(signature = (out, x, tokens, *, activation, norm = None))]
    fn gate(
        &self,
        py: Python<'_>,
        out: usize,
        x: usize,
        tokens: Count<usize>,
        activation: &str,
        norm: PyNorm,
    ) -> PyResult<()> {
        let output = Output::Gate(out, self::activation(activation)?);
        self.product(py, (x, tokens), norm, output)
    }

    fn rows(
        &self,
        py: Python<'_>,
        out: usize,
        token_ids: usize,
        tokens: Count<usize>,
    ) -> PyResult<()> {
        // SAFETY: as in `product`.
        py.detach(|| unsafe { linear::rows(&self.0, out, token_ids, tokens.0) })
            .map_err(value_error)
    }
}

/// RMSNorm of rows; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (out, x, weight, *, tokens, hidden, epsilon))]
fn rms_norm(
    py: Python<'_>,
    out: usize,
    x: usize,
    weight: usize,
    tokens: Count<usize>,
    hidden: Count<usize>,
    epsilon: f32,
) -> PyResult<()> {
    let norm = Norm { weight, epsilon };
    // SAFETY: the caller keeps tensors of these shapes alive, by the contract in `_core.pyi`.
    py.detach(|| unsafe { norm::rms_norm(out, x, tokens.0, hidden.0, norm) })
        .map_err(value_error)
}

/// Rotary embedding in place; see `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (x, positions, table, *, tokens, heads, head_dim, stride, rows, pairs))]
#[expect(clippy::too_many_arguments, reason = "keywords of one Python call")]
fn rotate(
    py: Python<'_>,
    x: usize,
    positions: usize,
    table: usize,
    tokens: Count<usize>,
    heads: Count<usize>,
    head_dim: Count<usize>,
    stride: Count<usize>,
    rows: Count<usize>,
    pairs: Count<usize>,
) -> PyResult<()> {
    let rotary = Rotary {
        heads: heads.0,
        head_dim: head_dim.0,
        stride: stride.0,
        table,
        rows: rows.0,
        pairs: pairs.0,
    };
    // SAFETY: the caller keeps tensors of these shapes alive, by the contract in `_core.pyi`.
    py.detach(|| unsafe { rotary::rotate(x, positions, tokens.0, rotary) })
        .map_err(value_error)
}

/// Set how many threads share a kernel; see `_core.pyi`.
#[pyfunction]
fn set_kernel_threads(n: Count<usize>) -> PyResult<()> {
    if !(1..=1024).contains(&n.0) {
        return Err(PyValueError::new_err("threads are 1 to 1024"));
    }
    set_threads(n.0);
    Ok(())
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<IntMatrix>()?;
    module.add_function(wrap_pyfunction!(rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(rotate, module)?)?;
    module.add_function(wrap_pyfunction!(set_kernel_threads, module)?)
}
