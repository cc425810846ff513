//! Dump and load: the tree as bytes, for a restart that the device's pages survive. Owns the format; never
//! reads or writes a file or a page. Lower tiers have dumps of their own (`tier_dump`).
//!
//! All numbers little-endian. Header: magic, version u32, page_size u32, pages u64, fingerprint (u32 length,
//! bytes), touches u64. Then namespaces: count u32, each u32 length and bytes. Then nodes, parents before
//! children: count u32, each with parent u32 (its place + 1; 0 for none), runs (u32 count; namespace u32 and
//! tokens u32 each), token ids (u32 count, u32 each), page ids (u32 count, u32 each), uses (u32 count; pages
//! u64 and use u64 each), and the key of its last full page, if there is one, 32 bytes. At the end BLAKE3 of
//! all before it. Tips, pins, leases and counters are not kept.

use std::collections::HashMap;

use super::PrefixIndex;
use super::codec::{Reader, Writer};
use super::load_error::{LoadError, contradiction};
use super::namespace::NamespaceId;
use super::pages::PagePool;
use super::run::Run;
use super::tree::{Node, NodeId};

const MAGIC: &[u8; 8] = b"appl-idx";
const VERSION: u32 = 1;
/// Far beyond what an index lives to see; a use is less than this and a bit.
const TOUCHES_MAX: u64 = 1 << 62;

/// One node as it stands in a dump.
struct Record {
    parent: Option<usize>,
    runs: Vec<(usize, usize)>,
    tokens: Vec<u32>,
    pages: Vec<u32>,
    uses: Vec<(usize, u64)>,
    last_key: Option<[u8; 32]>,
}

impl PrefixIndex {
    /// The cached pages and what they hold. `fingerprint`: of the model and of whatever else makes K/V
    /// what they are. O(everything).
    ///
    /// The dump is of use only while the pages' contents are kept. Pages that a lease holds and the tree does
    /// not know are left out.
    pub fn dump(&self, fingerprint: &[u8]) -> Vec<u8> {
        let mut out = Writer::new(MAGIC, VERSION);
        out.len(self.page_size);
        out.u64(self.pages.total() as u64);
        out.framed(fingerprint);
        out.u64(self.tree.touches());
        let mut places = HashMap::new();
        let mut order = Vec::new();
        let mut names: Vec<NamespaceId> = Vec::new();
        let mut numbers = HashMap::new();
        let mut parents = vec![None];
        while let Some(parent) = parents.pop() {
            for &id in self.tree.children(parent).values() {
                // Covered by a sibling, and kept for the lease that has it in its page table.
                if self.tree.is_covered(id) {
                    continue;
                }
                places.insert(id, order.len());
                order.push(id);
                parents.push(Some(id));
                for name in self.tree.node(id).borders.namespaces() {
                    numbers.entry(name).or_insert_with(|| {
                        names.push(name);
                        names.len() - 1
                    });
                }
            }
        }
        out.len(names.len());
        for name in names {
            out.framed(self.tree.namespaces.bytes(name));
        }
        out.len(order.len());
        for id in order {
            self.write_node(&mut out, self.tree.node(id), &places, &numbers);
        }
        out.seal()
    }

    /// An index as it was dumped, every page of it evictable.
    ///
    /// A dump that is damaged, or was not written by `dump`, is an error: what is loaded passes `check`.
    pub fn load(
        bytes: &[u8],
        fingerprint: &[u8],
        page_size: usize,
        pages: usize,
    ) -> Result<Self, LoadError> {
        let mut index = Self::new(page_size, pages)?;
        let mut input = Reader::open(bytes, MAGIC, VERSION)?;
        let shape = (input.len()?, input.u64()?);
        if shape != (page_size, pages as u64) || input.framed()? != fingerprint {
            return Err(LoadError::OtherDevice);
        }
        let touches = input.u64()?;
        if touches > TOUCHES_MAX {
            return Err(contradiction("more touches than there ever are"));
        }
        let mut names = Vec::new();
        for _ in 0..input.len()? {
            names.push(input.framed()?.to_vec());
        }
        let mut ids = Vec::new();
        for _ in 0..input.len()? {
            let record = Record::read(&mut input, page_size)?;
            ids.push(index.load_node(&record, &names, &ids)?);
        }
        input.end()?;
        index.tree.set_touches(touches);
        let used = index.tree.live_nodes().flat_map(|(_, node)| &node.pages);
        index.pages = PagePool::without(pages, used.copied())
            .ok_or_else(|| contradiction("a page is used twice"))?;
        index.check().map_err(LoadError::Contradiction)?;
        Ok(index)
    }

    fn load_node(
        &mut self,
        record: &Record,
        names: &[Vec<u8>],
        ids: &[NodeId],
    ) -> Result<NodeId, LoadError> {
        let parent = match record.parent {
            Some(place) => Some(*ids.get(place).ok_or_else(|| contradiction("no parent"))?),
            None => None,
        };
        if record.tokens.is_empty()
            || record.tokens.len().div_ceil(self.page_size) != record.pages.len()
        {
            return Err(contradiction("tokens and pages do not fit"));
        }
        let on_device = |&page: &u32| (page as usize) < self.pages.total();
        if !record.pages.iter().all(on_device) {
            return Err(contradiction("a page is not on the device"));
        }
        let mut run = Run::default();
        let mut rest = &record.tokens[..];
        for &(name, count) in &record.runs {
            let name = names
                .get(name)
                .ok_or_else(|| contradiction("no namespace"))?;
            let Some((tokens, after)) = rest.split_at_checked(count) else {
                return Err(contradiction("runs and tokens do not fit"));
            };
            rest = after;
            let namespace = self.tree.namespaces.acquire(name);
            run.push(namespace, tokens, &mut self.tree.namespaces);
            self.tree.namespaces.release(namespace);
        }
        if !rest.is_empty() {
            return Err(contradiction("runs and tokens do not fit"));
        }
        let id = self.tree.load_child(parent, &run, &record.pages);
        run.clear(&mut self.tree.namespaces);
        let id = id.ok_or_else(|| contradiction("two nodes with one first page"))?;
        let sound = self
            .tree
            .update(id, |node, _| node.uses.restore(&record.uses));
        if !sound || self.tree.last_key(self.tree.node(id)) != record.last_key.as_ref() {
            return Err(contradiction("uses or page keys are not those of the node"));
        }
        Ok(id)
    }

    fn write_node(
        &self,
        out: &mut Writer,
        node: &Node,
        places: &HashMap<NodeId, usize>,
        numbers: &HashMap<NamespaceId, usize>,
    ) {
        out.len(node.parent.map_or(0, |parent| places[&parent] + 1));
        let runs: Vec<_> = node.borders.pieces(0..node.borders.len()).collect();
        out.len(runs.len());
        for (namespace, run) in runs {
            out.len(numbers[&namespace]);
            out.len(run.len());
        }
        out.words(&self.tree.tokens_of(node, 0..node.borders.len()));
        out.words(&node.pages);
        out.len(node.uses.steps().len());
        for &(pages, tick) in node.uses.steps() {
            out.u64(pages as u64);
            out.u64(tick);
        }
        if let Some(key) = self.tree.last_key(node) {
            out.bytes(key);
        }
    }
}

impl Record {
    fn read(input: &mut Reader<'_>, page_size: usize) -> Result<Self, LoadError> {
        let parent = input.len()?.checked_sub(1);
        let mut runs = Vec::new();
        for _ in 0..input.len()? {
            runs.push((input.len()?, input.len()?));
        }
        let (tokens, pages) = (input.words()?, input.words()?);
        let mut uses = Vec::new();
        for _ in 0..input.len()? {
            let end =
                usize::try_from(input.u64()?).map_err(|_| contradiction("a use of no page"))?;
            uses.push((end, input.u64()?));
        }
        let last_key = if tokens.len() >= page_size {
            Some(input.array()?)
        } else {
            None
        };
        Ok(Self {
            parent,
            runs,
            tokens,
            pages,
            uses,
            last_key,
        })
    }
}
