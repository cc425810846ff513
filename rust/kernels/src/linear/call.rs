//! A checked product, cut into items for threads.
//!
//! Owns the checks and the items: panels against blocks of tokens. Which items there are depends on the number
//! of threads and changes no result: sums are of integers, or of floats in one order.

use super::activation::Activation;
use super::finish::Finish;
use super::groups::{Groups, even};
use super::kernel::{self, PANELS_MAX, PanelSums, Portable, Sums, TOKENS_MAX, WideLine};
use super::matrix::{LANES, Layout, Matrix, MatrixError, Width, check_address, check_tokens};
use super::tokens::Tokens;
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Avx512, Vnni};
use crate::level::IntLevel;
use crate::norm::Norm;
use crate::pool::{self, Work};
use std::cell::Cell;
use std::sync::Arc;

/// About what a core reads and multiplies in a nanosecond; only the cut depends on it.
const BYTES_PER_NS: usize = 8;
const PRODUCTS_PER_NS: usize = 64;

/// An item's time, at most (unless one panel takes longer) and at least: the caller waits for the last
/// one, and taking one costs about 0.1 us.
const ITEM_NS_MAX: usize = 25_000;
const ITEM_NS_MIN: usize = 3_000;

/// Items for each thread, so that threads end together.
const ITEMS_PER_THREAD: usize = 4;

/// Activations.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    /// Address of float32 [tokens, inputs].
    pub x: usize,
    /// Tokens.
    pub tokens: usize,
    /// An RMSNorm that x goes through first.
    pub norm: Option<Norm>,
}

/// Where y goes.
#[derive(Clone, Copy, Debug)]
pub enum Output {
    /// Address of float32 [tokens, outputs]: y.
    Store(usize),
    /// Address of float32 [tokens, outputs]: y is added.
    Add(usize),
    /// Address of float32 [tokens, outputs / 2]: the activation of the first half of y times the second.
    Gate(usize, Activation),
}

/// `y = x W^T + b` to the output.
///
/// A token whose values are not all finite gets NaN in all of its outputs; it does not touch others.
///
/// # Errors
/// `MatrixError` when rows are missing, the matrix has another layout than `Gate` needs, or sizes or
/// addresses do not fit; then nothing was read or written.
///
/// # Safety
/// The addresses are those of contiguous tensors of these shapes; they live, and nothing else writes
/// them or reads the output, during the call. The output overlaps neither the weight of the norm, nor x unless
/// both are the same.
pub unsafe fn linear(
    matrix: &Arc<Matrix>,
    input: Input,
    output: Output,
) -> Result<(), MatrixError> {
    // SAFETY: the caller's promise, and the CPU has what it says it has.
    unsafe { linear_at(IntLevel::detect(), matrix, input, output) }
}

/// `linear` with the instructions of a level that the CPU has.
pub(super) unsafe fn linear_at(
    level: IntLevel,
    matrix: &Arc<Matrix>,
    input: Input,
    output: Output,
) -> Result<(), MatrixError> {
    check(matrix, input, output)?;
    if input.tokens == 0 {
        return Ok(());
    }
    let groups = Groups::new(input.tokens, matrix.pairs());
    // SAFETY: the caller's promise.
    let tokens = unsafe { Tokens::new(input, matrix, groups, level) };
    let plan = Plan::new(matrix, groups, pool::threads());
    let product = Product {
        matrix: Arc::clone(matrix),
        tokens,
        output,
        plan,
        level,
    };
    pool::share(Arc::new(product));
    Ok(())
}

fn check(matrix: &Matrix, input: Input, output: Output) -> Result<(), MatrixError> {
    matrix.check_filled()?;
    check_tokens(input.tokens, matrix.inputs().max(matrix.outputs()))?;
    if input.tokens == 0 {
        return Ok(());
    }
    check_address::<f32>("x", input.x)?;
    if let Some(norm) = input.norm {
        norm.check()?;
    }
    if matches!(output, Output::Gate(..)) && matrix.layout() != Layout::Gated {
        return Err(MatrixError::Shape("the matrix is not gated"));
    }
    match output {
        Output::Store(out) | Output::Gate(out, _) => check_address::<f32>("out", out),
        Output::Add(out) => check_address::<f32>("residual", out),
    }
}

/// How a product is cut.
#[derive(Debug)]
struct Plan {
    groups: Groups,
    /// Panels of an item.
    panels: usize,
    /// Items of a block of tokens.
    columns: usize,
    items: usize,
}

impl Plan {
    fn new(matrix: &Matrix, groups: Groups, threads: usize) -> Self {
        let blocks = groups.blocks();
        let bytes = matrix.panel_bytes();
        let panel_ns = (bytes / BYTES_PER_NS)
            .max(bytes * groups.block_tokens() / PRODUCTS_PER_NS)
            .max(1);
        let all = matrix.panels();
        let share_ns = panel_ns * all * blocks / (threads * ITEMS_PER_THREAD);
        let item_ns = share_ns.clamp(ITEM_NS_MIN, ITEM_NS_MAX);
        let columns = all.div_ceil((item_ns / panel_ns).clamp(1, all));
        Self {
            groups,
            panels: all.div_ceil(columns),
            columns,
            items: columns * blocks,
        }
    }
}

/// A call ready to be shared by threads.
#[derive(Debug)]
struct Product {
    matrix: Arc<Matrix>,
    tokens: Tokens,
    output: Output,
    plan: Plan,
    level: IntLevel,
}

impl Work for Product {
    fn items(&self) -> usize {
        self.plan.items
    }

    fn run(&self, i: usize) {
        // SAFETY: the call was promised good tensors and a level that the CPU has; items write different
        // values.
        unsafe {
            match self.level {
                IntLevel::Portable => run::<Portable>(self, i),
                #[cfg(target_arch = "x86_64")]
                IntLevel::Avx2 => run_avx2(self, i),
                #[cfg(target_arch = "x86_64")]
                IntLevel::Avx512 => run_avx512(self, i),
                #[cfg(target_arch = "x86_64")]
                IntLevel::Vnni => run_vnni(self, i),
                #[cfg(not(target_arch = "x86_64"))]
                IntLevel::Avx2 | IntLevel::Avx512 | IntLevel::Vnni => {
                    unreachable!("IntLevel::fits says no")
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn run_avx2(product: &Product, i: usize) {
    // SAFETY: as in `Work::run`.
    unsafe { run::<Avx2>(product, i) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn run_avx512(product: &Product, i: usize) {
    // SAFETY: as in `Work::run`.
    unsafe { run::<Avx512>(product, i) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn run_vnni(product: &Product, i: usize) {
    // SAFETY: as in `Work::run`.
    unsafe { run::<Vnni>(product, i) }
}

thread_local! {
    /// Room for panels of 16-bit numbers.
    static WIDE: Cell<Vec<WideLine>> = const { Cell::new(Vec::new()) };
}

/// Some panels against a block of tokens.
#[inline(always)]
unsafe fn run<S: Sums>(product: &Product, item: usize) {
    let (matrix, tokens, plan) = (&*product.matrix, &product.tokens, &product.plan);
    let (block, column) = (item / plan.columns, item % plan.columns);
    let groups = plan.groups.of_block(block);
    let panels = column * plan.panels..matrix.panels().min((column + 1) * plan.panels);
    // Widened once for all groups, and where that takes more than one instruction.
    let widen = groups.len() > 1 || matrix.width() == Width::Twelve;
    let (pairs, sum_pairs) = (matrix.pairs(), matrix.width().sum_pairs());
    let mut sums: [PanelSums; PANELS_MAX] = [[[0.0; LANES]; TOKENS_MAX]; PANELS_MAX];
    // One token waits for weights, and these are read faster from one panel than from two.
    let most = if plan.groups.block_tokens() == 1 {
        1
    } else {
        S::PANELS
    };
    // Taken out and put back: a closure would be compiled without the instructions of `S`.
    let mut wide = WIDE.take();
    if widen {
        wide.resize(most * pairs, WideLine::ZERO);
    }
    for first in panels.clone().step_by(most) {
        let side_by_side = first..panels.end.min(first + most);
        let sums = &mut sums[..side_by_side.len()];
        if widen {
            for (panel, wide) in side_by_side.clone().zip(wide.chunks_mut(pairs)) {
                // SAFETY: the panel has `pairs` pairs, as `wide` has.
                unsafe { kernel::widen::<S>(matrix.panel(panel), matrix.low(panel), wide) };
            }
        }
        for group in plan.groups.of_block(block) {
            let (x, step) = (tokens.of_group(group.start), 2 * group.len());
            let size = even(group.len(), S::TOKENS);
            for start in group.clone().step_by(size) {
                let part = start..group.end.min(start + size);
                // SAFETY: the panels and the tokens have `pairs` pairs; the output is good, by the call.
                unsafe {
                    let x = (x.add(2 * (start - group.start)), step, part.len());
                    if widen {
                        let numbers = wide.as_ptr().cast::<i16>();
                        kernel::dots::<S, i16>(numbers, x, (pairs, sum_pairs), sums);
                    } else {
                        kernel::dots::<S, i8>(matrix.panel(first), x, (pairs, sum_pairs), sums);
                    }
                    for (panel, sums) in side_by_side.clone().zip(&*sums) {
                        let finish = Finish::new(matrix, product.output, panel);
                        for (token, sums) in part.clone().zip(sums) {
                            finish.token(token, sums, tokens.scale(token));
                        }
                    }
                }
            }
        }
    }
    WIDE.set(wide);
}
