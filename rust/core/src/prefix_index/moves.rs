//! Places of a page, and moves between them. Owns the words and the contract; decides nothing.

use crate::page_keys::PageKey;

use super::PrefixIndex;
use super::pages::PageId;

/// A tier below the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    Host,
    Disk,
}

impl Tier {
    pub(super) const ALL: [Self; 2] = [Self::Host, Self::Disk];

    /// Where its oldest page goes when it is full.
    pub(super) fn below(self) -> Option<Self> {
        match self {
            Self::Host => Some(Self::Disk),
            Self::Disk => None,
        }
    }

    pub(super) fn place(self, slot: u32) -> Place {
        match self {
            Self::Host => Place::Host(slot),
            Self::Disk => Place::Disk(slot),
        }
    }
}

/// Where a page's content is: a page of the device, or a slot of a lower tier. Slots are numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    Device(PageId),
    Host(u32),
    Disk(u32),
}

/// A full page's content goes from one place to another. What is left in `from` means nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub from: Place,
    pub to: Place,
    /// The page's key: the tag to write with the content into a slot, and to compare when it is read back.
    pub key: PageKey,
}

impl PrefixIndex {
    /// The moves decided since the last call, in order. Only `admit` and `grow` decide any.
    ///
    /// The contract: the caller takes the moves after an `admit` or `grow` and carries them out in this order,
    /// before a row is written into a page that the call gave (a lease's `copy` is such a write) and before the
    /// moves of a later call. Carried out may mean enqueued: copies may be asynchronous as long as whatever
    /// reads or writes one of the places later, computing included, is ordered after them. A `from` on the
    /// device is a page whose rows all were committed; a `to` on the device is a page of the lease just
    /// admitted, whose rows are there once the move is done. A later move may use again what an earlier one
    /// left, and an earlier one may write to a slot that no entry has any more: to carry it out is harmless, to
    /// change the order is not.
    pub fn take_moves(&mut self) -> Vec<Move> {
        self.tree.shelf.take_moves()
    }
}
