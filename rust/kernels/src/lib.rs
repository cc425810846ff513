//! Kernels for the CPU: paged attention and matrices of integers, and what a decoder needs between them.
//!
//! Owns the choice of instructions (`level`, `simd`) and one pool of threads for every kernel. All memory of
//! tensors is the caller's, reached through addresses; every length, id and slot is checked before
//! an address is used. No result depends on the number of threads or on what else is in a batch.

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions are at most 2^24 and never negative: exact as float32 and back; an int8 value is \
              rounded and clamped before it is cast; sums of products are rounded once"
)]

mod address;
pub mod attention;
pub mod layer;
mod level;
pub mod linear;
pub mod norm;
mod pool;
mod quantise;
pub mod rotary;
mod simd;
#[cfg(test)]
mod tests;

pub use pool::set_threads;
