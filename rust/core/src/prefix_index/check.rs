//! The proof of the accounting: everything that is counted is counted again from the ground up.

use std::collections::HashMap;

use super::PrefixIndex;
use super::lease::{Lease, Owner};
use super::namespace::{PathToken, namespaces_of};
use super::tree::NodeId;

type Checked = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}

/// See [`PrefixIndex::check`].
pub(super) fn check(index: &PrefixIndex) -> Checked {
    let mut locks: HashMap<NodeId, u32> = HashMap::new();
    for lease in index.leases.values() {
        check_lease(index, lease)?;
        for node in lease.locked_nodes() {
            *locks.entry(node).or_default() += 1;
        }
    }
    check_tree(index, &locks)?;

    let tree = &index.tree;
    let own_pages = index.leases.values().flat_map(|lease| &lease.table);
    let own_pages = own_pages.filter(|entry| entry.owner == Owner::Lease);
    let cached = tree.live_nodes().map(|(_, node)| node.page);
    index
        .pages
        .check(cached.chain(own_pages.map(|entry| entry.page)))?;

    let of_keys = tree.live_nodes().flat_map(|(_, n)| namespaces_of(&n.key));
    let of_leases = index.leases.values().flat_map(|lease| &lease.namespaces);
    index.namespaces.check(of_keys.chain(of_leases.copied()))
}

/// Structure, locks and the set of evictable leaves; `locks` are those of all leases.
fn check_tree(index: &PrefixIndex, locks: &HashMap<NodeId, u32>) -> Checked {
    let tree = &index.tree;
    let mut reached = 0;
    let mut protected = 0;
    let mut evictable = 0;
    let mut parents = vec![None];
    while let Some(parent) = parents.pop() {
        let mut protected_children = 0;
        for (key, &id) in tree.children(parent) {
            let node = tree.node(id);
            reached += 1;
            ensure!(
                *key == node.key && node.parent == parent,
                "{id:?} stands in a wrong place"
            );
            let rows = key.len();
            ensure!(
                (1..=index.page_size).contains(&rows),
                "{id:?} has {rows} rows"
            );
            ensure!(
                rows == index.page_size || node.children.is_empty(),
                "{id:?} is partial and has children"
            );
            let counted = locks.get(&id).copied().unwrap_or(0);
            ensure!(
                node.lock_ref == counted,
                "{id:?} counts {} locks, leases hold {counted}",
                node.lock_ref
            );
            ensure!(
                node.is_protected() || !tree.is_superseded(id),
                "{id:?} is superseded, unlocked, and still there"
            );
            let is_leaf = node.children.is_empty() && !node.is_protected();
            ensure!(
                tree.is_listed(id) == is_leaf,
                "{id:?}: evictable is {is_leaf}, the list disagrees"
            );
            evictable += usize::from(is_leaf);
            protected_children += u32::from(node.is_protected());
            parents.push(Some(id));
        }
        protected += protected_children as usize;
        if let Some(id) = parent {
            let counted = tree.node(id).protected_children;
            ensure!(
                counted == protected_children,
                "{id:?} counts {counted} protected children, not {protected_children}"
            );
        }
    }
    ensure!(reached == tree.len(), "nodes out of reach of the root");
    ensure!(
        tree.evictable_pages() == reached - protected,
        "the count of protected nodes is off"
    );
    ensure!(
        tree.listed() == evictable,
        "dead nodes are listed evictable"
    );
    Ok(())
}

/// The lease's page table against the nodes it follows and locks.
fn check_lease(index: &PrefixIndex, lease: &Lease) -> Checked {
    let page_size = index.page_size;
    let full_pages = lease.committed / page_size;
    let path = index.tree.path_to(lease.deepest);
    ensure!(
        path.len() == full_pages,
        "a lease follows {} full pages, {full_pages} are committed",
        path.len()
    );
    for (position, &id) in path.iter().enumerate() {
        check_key(index, lease, position, id)?;
    }
    for (position, entry) in lease.table.iter().enumerate() {
        let Owner::Node(id) = entry.owner else {
            continue;
        };
        ensure!(
            index.tree.node(id).page == entry.page,
            "the page of {id:?} is not the one in the page table"
        );
        check_key(index, lease, position, id)?;
        let on_path = path.get(position) == Some(&id);
        ensure!(
            on_path || lease.tail == Some(id) || lease.set_aside.contains(&id),
            "{id:?} is in a page table and not locked by it"
        );
    }
    if let Some(tail) = lease.tail {
        let node = index.tree.node(tail);
        let rows = node.key.len();
        ensure!(
            node.parent == lease.deepest && rows < page_size,
            "the tail {tail:?} does not follow the last full page"
        );
        let owner = lease.table.get(full_pages).map(|entry| entry.owner);
        ensure!(
            owner == Some(Owner::Node(tail)),
            "the tail {tail:?} is not in the page table"
        );
    }
    for id in &lease.set_aside {
        let owned = lease.table.iter().any(|e| e.owner == Owner::Node(*id));
        ensure!(owned, "{id:?} is set aside and not in the page table");
    }
    if let Some((source, copy)) = lease.copy {
        let node = index.tree.node(source);
        let target = lease.table.get(full_pages).map(|entry| entry.page);
        let start = full_pages * page_size;
        ensure!(
            node.parent == lease.deepest
                && node.page == copy.source_page
                && target == Some(copy.target_page)
                && node.key.get(..copy.rows) == lease.path.get(start..start + copy.rows),
            "the copy from {source:?} is not of the lease's own prefix"
        );
    }
    Ok(())
}

/// The node's rows are those of the lease's path at that page.
fn check_key(index: &PrefixIndex, lease: &Lease, position: usize, id: NodeId) -> Checked {
    let key: &[PathToken] = &index.tree.node(id).key;
    let start = position * index.page_size;
    let known = lease.path.get(start..start + key.len());
    ensure!(known == Some(key), "{id:?} has rows of another path");
    Ok(())
}
