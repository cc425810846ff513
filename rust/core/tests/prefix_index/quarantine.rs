//! The model's quarantine: pages whose path begins with a wrong one are nobody's but their leases'.

use crate::model::{Entry, EntryId, Model, Pair, Place};

impl Model {
    /// Every page of a path that begins with `wrong` goes. Gives how many.
    pub fn quarantine(&mut self, wrong: &[Pair]) -> usize {
        let entries = std::mem::take(&mut self.entries);
        let (gone, kept) = entries
            .into_iter()
            .partition(|entry| entry.path.starts_with(wrong));
        self.entries = kept;
        let mut gone: Vec<Entry> = gone;
        // As in an eviction, the use of a page that goes stays one of the page before it; deepest first.
        gone.sort_by_key(|entry| std::cmp::Reverse(entry.path.len()));
        for at in 0..gone.len() {
            let (above, last_use) = (self.above(&gone[at].path).to_vec(), gone[at].last_use);
            for entry in gone.iter_mut().chain(&mut self.entries) {
                if entry.path == above {
                    entry.last_use = entry.last_use.max(last_use);
                }
            }
        }
        let page_of = |id: &EntryId| gone.iter().find(|entry| entry.id == *id).map(|e| e.page);
        self.pins.retain(|(_, _, last)| page_of(last).is_none());
        for hold in self.holds.iter_mut().flatten() {
            let is_held = |id: &EntryId| page_of(id).is_some();
            let restored = hold.onloaded_tokens > 0
                && hold.hit_tokens >= wrong.len()
                && hold.path.starts_with(wrong);
            let table = hold.table.iter().any(|place| match place {
                Place::Entry(id) => is_held(id),
                _ => false,
            });
            let is_source = hold.source.as_ref().is_some_and(is_held);
            if !(restored || table || is_source || hold.full.iter().any(is_held)) {
                continue;
            }
            for place in &mut hold.table {
                if let Place::Entry(id) = place
                    && let Some(page) = page_of(id)
                {
                    *place = Place::Quarantined(page);
                }
            }
            let good = hold.full.iter().position(is_held);
            hold.full.truncate(good.unwrap_or(hold.full.len()));
            hold.source = hold.source.filter(|id| !is_held(id));
            hold.is_detached = true;
            hold.has_committed = false;
        }
        self.drop_superseded();
        gone.len() + self.shelf.clear()
    }
}
