//! Whether a number can be an address.

/// Whether values of type `T` can lie there: not zero, and aligned.
pub(crate) fn can_be_of<T>(address: usize) -> bool {
    address != 0 && address.is_multiple_of(align_of::<T>())
}
