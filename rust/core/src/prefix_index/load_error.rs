//! Why a dump is not loaded.

use thiserror::Error;

use super::IndexError;

/// Why a dump is not loaded.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LoadError {
    #[error(transparent)]
    Shape(#[from] IndexError),
    #[error("this is no dump of a prefix index")]
    NotADump,
    #[error("the dump has version {found}, not {expected}")]
    Version { found: u32, expected: u32 },
    #[error("the checksum does not fit: the dump is damaged")]
    Checksum,
    #[error("the dump is of another model, or of pages of another size or number")]
    OtherDevice,
    #[error("the dump is of another tier, of another model, or of pages of another size")]
    OtherTier,
    #[error("the tier has pages already")]
    TierInUse,
    #[error("the dump contradicts itself: {0}")]
    Contradiction(String),
}

pub(super) fn contradiction(what: &str) -> LoadError {
    LoadError::Contradiction(what.to_owned())
}
