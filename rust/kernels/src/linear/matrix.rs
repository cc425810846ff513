//! A packed matrix of integers [outputs, inputs] with a scale, and if wanted a bias, for each output.
//!
//! Owns the order in memory and the filling, a part of the rows at a time; multiplies nothing.

use crate::address;
use crate::quantise::quantise_to;
use std::ptr::with_exposed_provenance;
use thiserror::Error;

/// Outputs of a panel.
pub(super) const LANES: usize = 16;

/// Inputs are padded to a multiple: pairs of inputs of two cache lines.
const INPUTS_STEP: usize = 8;

/// The most inputs: an activation keeps at least 7 bits and a sign, see `tokens`.
pub(super) const INPUTS_MAX: usize = 1 << 17;

/// The most outputs.
const OUTPUTS_MAX: usize = 1 << 24;

/// What does not fit in the arguments of a call on a matrix.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MatrixError {
    /// A size is outside of its limits.
    #[error("bad shape: {0}")]
    Shape(&'static str),
    /// More rows were handed over than the matrix has, or fewer when it is used.
    #[error("{filled} of {outputs} rows are filled")]
    Rows {
        /// Rows that would be, or are, filled.
        filled: usize,
        /// Rows of the matrix.
        outputs: usize,
    },
    /// A number outside of its range.
    #[error("{name} {number} is outside of 0..{limit}")]
    Number {
        /// What the number counts.
        name: &'static str,
        /// The number.
        number: i64,
        /// One more than the largest.
        limit: usize,
    },
    /// An address is zero, or one where values of its type cannot lie.
    #[error("the address of {0} is not that of a tensor of its type")]
    Address(&'static str),
}

/// Raises `Address` unless the address can be that of values of type `T`.
pub(crate) fn check_address<T>(name: &'static str, address: usize) -> Result<(), MatrixError> {
    if address::can_be_of::<T>(address) {
        Ok(())
    } else {
        Err(MatrixError::Address(name))
    }
}

/// Raises `Shape` unless a tensor of [tokens, width] 8-byte values could exist.
pub(crate) fn check_tokens(tokens: usize, width: usize) -> Result<(), MatrixError> {
    let bytes = tokens.checked_mul(width).and_then(|n| n.checked_mul(8));
    match bytes {
        Some(n) if isize::try_from(n).is_ok() => Ok(()),
        _ => Err(MatrixError::Shape("a tensor would not fit into memory")),
    }
}

/// Which outputs share a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Sixteen outputs in a row.
    Plain,
    /// The outputs are [gate; up]: eight of the first half and the eight of the second half that they
    /// are multiplied with.
    Gated,
}

/// How many bits a number has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// A byte for each number.
    Eight,
    /// A byte for the high bits of each number, and half a byte.
    Twelve,
}

impl Width {
    /// The largest number; the smallest is its negative.
    pub(super) fn most(self) -> i16 {
        match self {
            Self::Eight => 127,
            Self::Twelve => 2047,
        }
    }

    /// Pairs of inputs that are summed as integers; the sums of more are added as float32.
    pub(super) fn sum_pairs(self) -> usize {
        match self {
            Self::Eight => INPUTS_MAX / 2,
            Self::Twelve => 64,
        }
    }
}

/// A cache line of numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([i8; 64]);

/// A run of outputs that lie side by side in a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Its first lane in the panel.
    pub lane: usize,
    /// Its first output.
    pub output: usize,
    /// How many.
    pub count: usize,
}

/// A matrix of integers. Numbers lie as [panels][pairs of inputs][LANES outputs][2].
#[derive(Debug)]
pub struct Matrix {
    inputs: usize,
    outputs: usize,
    layout: Layout,
    width: Width,
    /// The numbers, or their high 8 bits.
    numbers: Vec<Line>,
    /// The low 4 bits of twelve, [panels][pairs][16]: a byte has those of the number in its place, and
    /// above them those of the 16th after it.
    low: Vec<Line>,
    /// [panels * LANES] in the order of lanes; zero where there is no output.
    scales: Vec<f32>,
    /// [panels * LANES], zero without a bias.
    bias: Vec<f32>,
    filled: usize,
}

impl Matrix {
    /// Room for a matrix, its numbers zero.
    ///
    /// # Errors
    /// `Shape` unless inputs are 1 to 2^17 and outputs 1 to 2^24, an even number when the layout is `Gated`.
    pub fn new(
        outputs: usize,
        inputs: usize,
        layout: Layout,
        width: Width,
    ) -> Result<Self, MatrixError> {
        if !(1..=INPUTS_MAX).contains(&inputs) {
            return Err(MatrixError::Shape("inputs are 1 to 131072"));
        }
        if !(1..=OUTPUTS_MAX).contains(&outputs) {
            return Err(MatrixError::Shape("outputs are 1 to 16777216"));
        }
        if layout == Layout::Gated && !outputs.is_multiple_of(2) {
            return Err(MatrixError::Shape(
                "a gated matrix has an even number of outputs",
            ));
        }
        let panels = match layout {
            Layout::Plain => outputs.div_ceil(LANES),
            Layout::Gated => (outputs / 2).div_ceil(LANES / 2),
        };
        let lines = panels * LANES * inputs.next_multiple_of(INPUTS_STEP) / 64;
        Ok(Self {
            inputs,
            outputs,
            layout,
            width,
            numbers: vec![Line([0; 64]); lines],
            low: match width {
                Width::Eight => Vec::new(),
                Width::Twelve => vec![Line([0; 64]); lines / 2],
            },
            scales: vec![0.0; panels * LANES],
            bias: vec![0.0; panels * LANES],
            filled: 0,
        })
    }

    /// Inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Outputs.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Which outputs share a panel.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// How many bits a number has.
    pub fn width(&self) -> Width {
        self.width
    }

    /// Bytes of memory that it holds.
    pub fn bytes(&self) -> usize {
        let lines = size_of_val(&*self.numbers) + size_of_val(&*self.low);
        lines + size_of_val(&*self.scales) + size_of_val(&*self.bias)
    }

    /// Quantises the next `rows` rows, float32 [rows, inputs].
    ///
    /// # Errors
    /// `Rows` when there are not so many left, `Address`; then nothing was read.
    ///
    /// # Safety
    /// The address is that of such a tensor, and nothing writes it during the call.
    pub unsafe fn push_rows(&mut self, rows: usize, address: usize) -> Result<(), MatrixError> {
        let filled = self.filled.saturating_add(rows);
        if filled > self.outputs {
            let outputs = self.outputs;
            return Err(MatrixError::Rows { filled, outputs });
        }
        check_address::<f32>("rows", address)?;
        let mut numbers = vec![0; self.inputs];
        for row in 0..rows {
            let from = with_exposed_provenance::<f32>(address).wrapping_add(row * self.inputs);
            // SAFETY: `rows` rows of `inputs` values, by the caller.
            let values = unsafe { std::slice::from_raw_parts(from, self.inputs) };
            let scale = quantise_to(self.width.most(), values, &mut numbers);
            let place = self.place(self.filled);
            self.scales[place.0 * LANES + place.1] = scale;
            self.put(place, &numbers);
            self.filled += 1;
        }
        Ok(())
    }

    /// Writes the numbers of a row, which were zero.
    fn put(&mut self, (panel, lane): (usize, usize), numbers: &[i16]) {
        let start = panel * self.panel_bytes();
        for (i, number) in numbers.iter().enumerate() {
            let at = start + i / 2 * 2 * LANES + lane * 2 + i % 2;
            let high = &mut self.numbers[at / 64].0[at % 64];
            match self.width {
                Width::Eight => *high = *number as i8,
                Width::Twelve => {
                    *high = (number >> 4) as i8;
                    let (at, shift) = low_place(at);
                    self.low[at / 64].0[at % 64] |= ((number & 15) as i8) << shift;
                }
            }
        }
    }

    /// Sets the bias, float32 [outputs].
    ///
    /// # Errors
    /// `Address`; then nothing was read.
    ///
    /// # Safety
    /// As `push_rows`.
    pub unsafe fn set_bias(&mut self, address: usize) -> Result<(), MatrixError> {
        check_address::<f32>("bias", address)?;
        let from = with_exposed_provenance::<f32>(address);
        // SAFETY: as stated.
        let values = unsafe { std::slice::from_raw_parts(from, self.outputs) };
        for (output, value) in values.iter().enumerate() {
            let (panel, lane) = self.place(output);
            self.bias[panel * LANES + lane] = *value;
        }
        Ok(())
    }

    /// Raises `Rows` unless every row is filled.
    pub(crate) fn check_filled(&self) -> Result<(), MatrixError> {
        let (filled, outputs) = (self.filled, self.outputs);
        if filled == outputs {
            Ok(())
        } else {
            Err(MatrixError::Rows { filled, outputs })
        }
    }

    /// The panel and the lane of an output.
    pub(super) fn place(&self, output: usize) -> (usize, usize) {
        match self.layout {
            Layout::Plain => (output / LANES, output % LANES),
            Layout::Gated => {
                let (half, side) = (self.outputs / 2, LANES / 2);
                let (upper, i) = (output / half, output % half);
                (i / side, upper * side + i % side)
            }
        }
    }

    /// The outputs of a panel, as one run or, gated, as two.
    pub(super) fn runs(&self, panel: usize) -> [Run; 2] {
        let run = |lane: usize, output: usize, end: usize, most: usize| Run {
            lane,
            output,
            count: most.min(end - output),
        };
        match self.layout {
            Layout::Plain => {
                let first = run(0, panel * LANES, self.outputs, LANES);
                [first, Run { count: 0, ..first }]
            }
            Layout::Gated => {
                let (half, side) = (self.outputs / 2, LANES / 2);
                [
                    run(0, panel * side, half, side),
                    run(side, half + panel * side, self.outputs, side),
                ]
            }
        }
    }

    pub(super) fn panels(&self) -> usize {
        self.scales.len() / LANES
    }

    /// Pairs of inputs, with those that only fill up.
    pub(super) fn pairs(&self) -> usize {
        self.inputs.next_multiple_of(INPUTS_STEP) / 2
    }

    pub(super) fn panel_bytes(&self) -> usize {
        self.pairs() * 2 * LANES
    }

    /// The numbers of a panel, or their high bits: `panel_bytes` of them, and behind them those of the next panels.
    pub(super) fn panel(&self, panel: usize) -> *const i8 {
        let lines = self.panel_bytes() / 64;
        self.numbers[panel * lines..].as_ptr().cast()
    }

    /// The low bits of a panel of twelve: half as many bytes.
    pub(super) fn low(&self, panel: usize) -> Option<*const u8> {
        let lines = self.panel_bytes() / 128;
        let low = self.low.get(panel * lines..(panel + 1) * lines)?;
        Some(low.as_ptr().cast())
    }

    /// The number at a lane of a panel for an input.
    pub(super) fn number(&self, (panel, lane): (usize, usize), input: usize) -> i16 {
        let at = panel * self.panel_bytes() + input / 2 * 2 * LANES + lane * 2 + input % 2;
        let high = i16::from(self.numbers[at / 64].0[at % 64]);
        match self.width {
            Width::Eight => high,
            Width::Twelve => {
                let (at, shift) = low_place(at);
                (high << 4) | (i16::from(self.low[at / 64].0[at % 64]) >> shift & 15)
            }
        }
    }

    /// The scales of a panel's lanes.
    pub(super) fn scales(&self, panel: usize) -> &[f32; LANES] {
        &self.scales.as_chunks().0[panel]
    }

    /// The bias of a panel's lanes.
    pub(super) fn bias(&self, panel: usize) -> &[f32; LANES] {
        &self.bias.as_chunks().0[panel]
    }
}

/// The byte and the shift of the low bits of the number at a place.
fn low_place(at: usize) -> (usize, usize) {
    let (pair, number) = (at / (2 * LANES), at % (2 * LANES));
    (pair * LANES + number % LANES, number / LANES * 4)
}
