//! What can be wrong with a call of the prefix index.

use thiserror::Error;

/// What is wrong with a call's input. The index is unchanged.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum IndexError {
    #[error("page_size and pages must be from 1 to 2^32 - 1 and have at most 2^32 slots together")]
    Shape,
    #[error("a prompt needs at least one token")]
    NoTokens,
    #[error("the stretches do not cover the {tokens} tokens exactly")]
    Stretches { tokens: usize },
    #[error("reserve_tokens is {reserve_tokens}, less than the {tokens} tokens of the prompt")]
    ReserveTooSmall {
        reserve_tokens: usize,
        tokens: usize,
    },
    #[error("reserve_tokens is {reserve_tokens}, more than the {capacity} of the whole device")]
    OverCapacity {
        reserve_tokens: usize,
        capacity: usize,
    },
    #[error("from_token is {from_token}, the path has {tokens} tokens")]
    NoSuchToken { from_token: usize, tokens: usize },
    #[error("the lease has been released")]
    Released,
    #[error("the node is not known, or not any more")]
    UnknownNode,
    #[error("a pin of {pages} pages does not fit: {pinned} of at most {pages_max} are pinned")]
    PinBudget {
        pages: usize,
        pinned: usize,
        pages_max: usize,
    },
    #[error("{tokens} tokens are more than the {known} that were admitted and appended")]
    CommitPastTokens { tokens: usize, known: usize },
    #[error("{tokens} tokens go past the {reserved} that are reserved")]
    CommitPastRoom { tokens: usize, reserved: usize },
    #[error(
        "{tokens} is not among the positions restored and not committed, {from} to {hit_tokens}"
    )]
    NotRestored {
        tokens: usize,
        from: usize,
        hit_tokens: usize,
    },
}
