//! Dump and load of a tier: which slots have which pages, as bytes, for a restart that the tier's contents
//! survive. Owns the format; the tree's is another (`dump`), so that each place is loaded exactly when what is
//! in it was kept.
//!
//! All numbers little-endian. Header: magic, version u32, page_size u32, tier u32 (0 host, 1 disk), fingerprint
//! (u32 length, bytes). Then pages, those that go first first: count u32, each with key (32 bytes) and slot
//! u32. At the end BLAKE3 of all before it.

use std::collections::HashSet;

use crate::page_keys::PageKey;

use super::PrefixIndex;
use super::codec::{Reader, Writer};
use super::load_error::{LoadError, contradiction};
use super::moves::Tier;

const MAGIC: &[u8; 8] = b"appl-tie";
const VERSION: u32 = 1;

impl PrefixIndex {
    /// The pages of one tier and their slots. `fingerprint` as in `dump`.
    ///
    /// All moves decided before must have been carried out when the dump is used.
    pub fn dump_tier(&self, tier: Tier, fingerprint: &[u8]) -> Vec<u8> {
        let mut out = Writer::new(MAGIC, VERSION);
        out.len(self.page_size);
        out.u32(tier as u32);
        out.framed(fingerprint);
        out.len(self.tree.shelf.pages(tier));
        for (key, slot) in self.tree.shelf.entries(tier) {
            out.bytes(key);
            out.u32(slot);
        }
        out.seal()
    }

    /// Take back a tier as it was dumped, into the same tier of an index that has nothing in it. It may have
    /// got more slots, not fewer.
    ///
    /// On an error the index is unchanged: a damaged dump, one of something else, one that has a page that is
    /// already here. A dump older than the slots' contents does no harm where the tags are compared.
    pub fn load_tier(
        &mut self,
        tier: Tier,
        bytes: &[u8],
        fingerprint: &[u8],
    ) -> Result<(), LoadError> {
        if self.tree.shelf.pages(tier) > 0 {
            return Err(LoadError::TierInUse);
        }
        let mut input = Reader::open(bytes, MAGIC, VERSION)?;
        let shape = (input.len()?, input.u32()?);
        if shape != (self.page_size, tier as u32) || input.framed()? != fingerprint {
            return Err(LoadError::OtherTier);
        }
        let mut pages: Vec<(PageKey, u32)> = Vec::new();
        for _ in 0..input.len()? {
            pages.push((input.array()?, input.u32()?));
        }
        input.end()?;
        self.fill_tier(tier, &pages)
    }

    /// The pages of one tier and their slots, those that go first first.
    pub fn tier_pages(&self, tier: Tier) -> Vec<(PageKey, u32)> {
        let entries = self.tree.shelf.entries(tier);
        entries.map(|(key, slot)| (*key, slot)).collect()
    }

    /// Take pages that are in slots of an empty tier, those that go first first: `load_tier` for slots that
    /// say themselves what is in them.
    ///
    /// On an error the index is unchanged: a slot that there is not, or is given twice, a page that is given
    /// twice or is already here.
    pub fn fill_tier(&mut self, tier: Tier, pages: &[(PageKey, u32)]) -> Result<(), LoadError> {
        if self.tree.shelf.pages(tier) > 0 {
            return Err(LoadError::TierInUse);
        }
        let keys: HashSet<&PageKey> = pages.iter().map(|(key, _)| key).collect();
        if self.tree.keys().any(|key| keys.contains(key)) {
            return Err(contradiction("a page is on the device too"));
        }
        if !self.tree.shelf.load(tier, pages) {
            return Err(contradiction("a slot or a page is used twice, or is none"));
        }
        Ok(())
    }
}
