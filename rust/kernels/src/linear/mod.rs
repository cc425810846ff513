//! Products with matrices of integers: `y = x W^T + b`, x and y float32, the way through integers.
//!
//! A weight is a number times the scale of its output channel. A token's values become numbers too, of
//! as many bits as the sums can hold (`tokens`), so that what is lost is what the weights lost. Sums are of
//! integers and exact, and where they would not fit, float32 sums of them in one order: no batch and no
//! number of threads changes a bit.

mod activation;
mod call;
mod finish;
mod groups;
mod kernel;
mod matrix;
mod rows;
#[cfg(test)]
mod tests;
mod tokens;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use activation::Activation;
pub use call::{Input, Output, linear};
pub use matrix::{Layout, Matrix, MatrixError, Width};
pub(crate) use matrix::{check_address, check_tokens};
pub use rows::rows;
