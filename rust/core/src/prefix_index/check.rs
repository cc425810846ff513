//! The proof of the accounting: everything that is counted is counted again from the ground up.

use std::collections::HashMap;

use super::PrefixIndex;
use super::lease::Lease;
use super::tree::{Node, NodeId, Tree};

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
    for lease in index.leases.values() {
        check_lease(index, lease)?;
    }
    let tree = &index.tree;
    check_counts(tree)?;
    check_locks(index)?;
    check_tips(tree)?;
    tree.shelf.check()?;
    ensure!(
        !tree.keys().any(|key| tree.shelf.contains(key)),
        "a page is in the tree and on the shelf"
    );

    let own_pages = index.leases.values().flat_map(Lease::own_pages);
    let cached = tree.live_nodes().flat_map(|(_, node)| &node.pages);
    let quarantined = index.quarantined.pages();
    index
        .pages
        .check(cached.copied().chain(own_pages).chain(quarantined))?;
    check_quarantined(index)?;

    let of_nodes = tree
        .live_nodes()
        .flat_map(|(_, node)| node.borders.namespaces());
    let leases = index.leases.values();
    let of_leases =
        leases.flat_map(|lease| lease.pending.borders().namespaces().chain([lease.reply]));
    tree.namespaces.check(of_nodes.chain(of_leases))
}

/// Every page in quarantine is held, by as many leases as are counted.
fn check_quarantined(index: &PrefixIndex) -> Checked {
    let leases = index.leases.values();
    let held = leases.flat_map(Lease::quarantined_pages);
    let mut holders: HashMap<u32, usize> =
        index.quarantined.pages().map(|page| (page, 0)).collect();
    for page in held {
        *holders.entry(page).or_default() += 1;
    }
    for (page, count) in holders {
        let known = index.quarantined.holders(page);
        ensure!(
            known == count && count > 0,
            "page {page} is in quarantine for {known} leases, {count} hold it"
        );
    }
    Ok(())
}

/// Structure, and the counts and the list of what may be evicted.
fn check_counts(tree: &Tree) -> Checked {
    let mut reached = 0;
    let (mut pages, mut protected, mut evictable) = (0, 0, 0);
    let mut parents = vec![None];
    while let Some(parent) = parents.pop() {
        let (mut protected_children, mut tipped_children) = (0, 0);
        for (key, &id) in tree.children(parent) {
            let node = tree.node(id);
            ensure!(
                *key == node.key && node.parent == parent,
                "{id:?} stands in a wrong place"
            );
            check_node(tree, id, node)?;
            reached += 1;
            pages += node.pages.len();
            protected += node.protected_pages();
            protected_children += usize::from(node.is_protected());
            tipped_children += usize::from(node.is_tipped());
            if let Some(last_use) = node.evictable_since() {
                evictable += 1;
                ensure!(
                    tree.evictable.contains(last_use, id),
                    "{id:?} may be evicted and is not listed"
                );
            }
            parents.push(Some(id));
        }
        if let Some(id) = parent {
            let node = tree.node(id);
            let counted = (node.protected_children, node.tipped_children);
            ensure!(
                counted == (protected_children, tipped_children),
                "{id:?} counts {counted:?} protected and tipped children, \
                 not {protected_children} and {tipped_children}"
            );
        }
    }
    ensure!(reached == tree.len(), "nodes out of reach of the root");
    ensure!(tree.pages() == pages, "the count of pages is off");
    ensure!(
        tree.evictable_pages() == pages - protected,
        "the count of protected pages is off"
    );
    ensure!(
        tree.evictable.len() == evictable,
        "what may not be evicted is listed"
    );
    Ok(())
}

fn check_node(tree: &Tree, id: NodeId, node: &Node) -> Checked {
    let page_size = tree.page_size;
    let above = node.parent.map_or(0, |parent| tree.node(parent).end());
    ensure!(node.start == above, "{id:?} starts where nothing ends");
    ensure!(
        node.borders.is_sound() && node.uses.is_sound() && !node.pages.is_empty(),
        "{id:?} has broken borders or no page"
    );
    ensure!(
        node.borders.len().div_ceil(page_size) == node.pages.len(),
        "{id:?} has {} pages for {} tokens",
        node.pages.len(),
        node.borders.len()
    );
    ensure!(
        *tree.first_page(node) == *node.key,
        "{id:?} has not the key of its first page"
    );
    let mut key = tree.key_above(node);
    for nth in 0..node.borders.len() / page_size {
        key = tree.key_of(&key, tree.page_pieces(node, nth));
        ensure!(
            key == *tree.rows.key(node.pages[nth]),
            "{id:?} has the page keys of others"
        );
    }
    let is_partial = !node.borders.len().is_multiple_of(page_size);
    ensure!(
        !is_partial || node.children.is_empty(),
        "{id:?} ends in a partial page and has children"
    );
    ensure!(
        node.is_protected() || !tree.is_covered(id),
        "{id:?} is covered by a sibling, unlocked, and still there"
    );
    for &(pages, lock) in &node.locks {
        let known = tree.locks.get(lock.0);
        ensure!(
            known.node == id && known.pages == pages && node.has_page(pages),
            "{id:?} has a lock on pages that are not its own"
        );
    }
    Ok(())
}

/// Every lock is on its node and one lease's, and who may write in a partial page is one of them.
fn check_locks(index: &PrefixIndex) -> Checked {
    let tree = &index.tree;
    let mut holders: HashMap<u32, usize> = HashMap::new();
    let mut writers: HashMap<NodeId, usize> = HashMap::new();
    for lease in index.leases.values() {
        for lock in lease.locks() {
            *holders.entry(lock.0).or_default() += 1;
        }
        let former = lease.set_aside.iter().map(|&(_, lock)| lock);
        for tail in former.chain(lease.lock.filter(|_| lease.has_tail)) {
            *writers.entry(tree.locks.get(tail.0).node).or_default() += 1;
        }
    }
    for lock in index.pins.locks() {
        *holders.entry(lock.0).or_default() += 1;
    }
    let on_nodes: usize = tree.live_nodes().map(|(_, node)| node.locks.len()).sum();
    ensure!(
        holders.len() == tree.locks.len() && holders.values().all(|&count| count == 1),
        "locks and their holders do not belong together one to one"
    );
    ensure!(tree.locks.len() == on_nodes, "locks are not on their nodes");
    for (id, node) in tree.live_nodes() {
        let count = writers.get(&id).copied().unwrap_or(0);
        ensure!(
            count == usize::from(node.has_writer),
            "{count} leases write at the end of {id:?}"
        );
    }
    Ok(())
}

/// Tips end in their pages, tables are those of their paths, a conversation has two at most.
fn check_tips(tree: &Tree) -> Checked {
    let on_nodes: usize = tree.live_nodes().map(|(_, node)| node.tips.len()).sum();
    ensure!(on_nodes == tree.tips.len(), "tips are not on their nodes");
    let mut of_conversations = 0;
    for (number, tip) in tree.tips.iter() {
        let pages = tip.tokens.div_ceil(tree.page_size);
        let node = tree.node(tip.node);
        ensure!(
            node.tips.get(&pages) == Some(&number) && node.has_page(pages),
            "tip {number} is not in its node"
        );
        let rows = tip.tokens - (pages - 1) * tree.page_size;
        ensure!(
            rows <= node.rows(pages - 1, tree.page_size),
            "tip {number} ends in rows that are not known"
        );
        if let Some(table) = &tip.table {
            let at = tree.position(tip.node, tip.tokens / tree.page_size);
            ensure!(
                *table == tree.page_table(at),
                "tip {number} has another page table"
            );
        }
        of_conversations += usize::from(tip.conversation.is_some());
    }
    for (conversation, number) in tree.tips.newest() {
        let is_of = |number| {
            let tip = tree.tips.get(number)?;
            (tip.conversation.as_ref() == Some(conversation)).then_some(tip)
        };
        let Some(newest) = is_of(number) else {
            return Err(format!("the newest tip {number} is another's or gone"));
        };
        let before = newest.continued.and_then(is_of);
        of_conversations -= 1 + usize::from(before.is_some());
    }
    ensure!(
        of_conversations == 0,
        "tips that their conversation does not know"
    );
    Ok(())
}

/// The lease's page table against the path that it follows and locks.
fn check_lease(index: &PrefixIndex, lease: &Lease) -> Checked {
    let tree = &index.tree;
    let page_size = index.page_size;
    let end = tree.locked(lease.lock);
    ensure!(
        end.pages == lease.given() && lease.given() <= lease.table.len(),
        "a lease locks {} pages, {} are known",
        end.pages,
        lease.given()
    );
    ensure!(lease.pending.is_sound(), "a lease has a broken run");
    let path = tree.page_table(end);
    for (place, (known, page)) in path.iter().zip(&lease.table).enumerate() {
        let other = lease.duplicates.contains(&place)
            || lease.set_aside.iter().any(|&(aside, _)| aside == place);
        ensure!(
            (known != page) == other,
            "page {place} of a page table is not the tree's"
        );
    }
    for &(place, lock) in &lease.set_aside {
        let lock = tree.locks.get(lock.0);
        let node = tree.node(lock.node);
        ensure!(
            node.pages[place - node.start] == lease.table[place] && lock.pages == place + 1,
            "a former tail is not in the page table"
        );
    }
    if lease.has_tail {
        let node = tree.node(end.node.expect("a tail is in a node"));
        let rows = node.rows(lease.full, page_size);
        let first = lease.full - node.start;
        ensure!(
            rows < page_size && tree.common(node, first, &lease.pending, 0, rows) == rows,
            "a tail is not the lease's own"
        );
    }
    if let Some((lock, copy)) = lease.copy {
        let lock = tree.locks.get(lock.0);
        let node = tree.node(lock.node);
        let first = lease.full - node.start;
        ensure!(
            lock.pages == lease.full + 1
                && node.pages[first] == copy.source_page
                && lease.table.get(lease.full) == Some(&copy.target_page)
                && tree.common(node, first, &lease.pending, 0, copy.rows) == copy.rows,
            "a copy is not of the lease's own prefix"
        );
    }
    Ok(())
}
