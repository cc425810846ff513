//! Pages in lower tiers: where they go, when they come back, and what never comes back.

use std::collections::HashMap;

use super::*;
use crate::page_keys::{PageKey, page_keys};

pub(super) const ALWAYS: Option<usize> = Some(0);

/// What is in each place, as a page's key.
pub(super) type Contents = HashMap<Place, PageKey>;

/// Do the moves in order. What is on the device was committed.
fn carry_out(index: &mut PrefixIndex, contents: &mut Contents) -> Vec<(Place, Place)> {
    let moves = index.take_moves();
    for Move { from, to, key } in &moves {
        if !matches!(from, Place::Device(_)) {
            assert_eq!(contents.get(from), Some(key), "{from:?} has another page");
        }
        contents.insert(*to, *key);
    }
    moves.iter().map(|one| (one.from, one.to)).collect()
}

fn keys(token_ids: &[u32]) -> Vec<PageKey> {
    page_keys(token_ids, &[(ALICE, token_ids.len())], 4).unwrap()
}

fn onload(
    index: &mut PrefixIndex,
    token_ids: &[u32],
    stretches: &[(&[u8], usize)],
    onload_tokens_min: Option<usize>,
) -> Option<LeaseId> {
    let prompt = Prompt {
        token_ids,
        stretches,
        onload_tokens_min,
        ..Prompt::default()
    };
    let lease = index.admit(&prompt, token_ids.len()).unwrap();
    index.check().unwrap();
    lease
}

/// Alice's admission: (hit tokens, onloaded tokens).
pub(super) fn found(
    index: &mut PrefixIndex,
    token_ids: &[u32],
    min: Option<usize>,
) -> (usize, usize) {
    let lease = onload(index, token_ids, &[(ALICE, token_ids.len())], min).unwrap();
    let lease = index.lease(lease).unwrap();
    (lease.hit_tokens(), lease.onloaded_tokens())
}

/// Twelve tokens of Alice on the shelf, in three host slots; other pages on the device.
pub(super) fn shelved(disk_slots: u32) -> (PrefixIndex, Contents) {
    let mut index = index(4, 3).with_tiers(3, disk_slots);
    let mut contents = Contents::new();
    serve(&mut index, &tokens(12));
    serve(&mut index, &[7; 12]);
    carry_out(&mut index, &mut contents);
    assert_eq!(index.stats().pages_host, 3);
    (index, contents)
}

#[test]
fn a_page_goes_from_the_device_to_host_memory_to_disk_and_away() {
    let mut index = index(4, 1).with_tiers(1, 1);
    let (device, host, disk) = (Place::Device(0), Place::Host(0), Place::Disk(0));
    let expected = [
        &[][..],
        &[(device, host)],
        &[(host, disk), (device, host)],
        &[(host, disk), (device, host)],
    ];
    let mut contents = Contents::new();
    for (page, moves) in (0..).zip(expected) {
        serve(&mut index, &[page; 4]);
        assert_eq!(carry_out(&mut index, &mut contents), moves);
    }
    let key_of = |page: u32| keys(&[page; 4])[0];
    assert_eq!((contents[&host], contents[&disk]), (key_of(2), key_of(1)));
    let stats = index.stats();
    assert_eq!((stats.pages_host, stats.pages_disk), (1, 1));
    assert_eq!((stats.offloaded_pages, stats.dropped_pages), (3, 1));
}

#[test]
fn without_host_slots_a_page_goes_to_disk_and_without_slots_nowhere() {
    let mut onto_disk = index(4, 1).with_tiers(0, 1);
    let mut nowhere = index(4, 2);
    for page in 0..3 {
        serve(&mut onto_disk, &[page; 4]);
        serve(&mut nowhere, &[page; 8]);
    }
    let moves = onto_disk.take_moves();
    let to: Vec<Place> = moves.iter().map(|one| one.to).collect();
    assert_eq!(to, [Place::Disk(0), Place::Disk(0)]);
    assert_eq!(onto_disk.stats().dropped_pages, 1);
    assert_eq!(nowhere.take_moves(), []);
    assert_eq!(nowhere.stats().dropped_pages, 0);
    assert_eq!(found(&mut nowhere, &[1; 5], ALWAYS), (0, 0));
}

#[test]
fn a_partial_page_is_not_kept() {
    let mut index = index(4, 2).with_tiers(4, 4);
    serve(&mut index, &tokens(7));
    serve(&mut index, &[7; 8]);
    assert_eq!(index.stats().offloaded_pages, 1);
    assert_eq!(found(&mut index, &tokens(7), ALWAYS), (4, 4));
}

#[test]
fn pages_in_a_row_are_restored_into_the_leases_own_pages_and_cached_by_a_commit() {
    let mut index = index(4, 4).with_tiers(8, 0);
    let mut contents = Contents::new();
    serve(&mut index, &tokens(12));
    serve(&mut index, &[7; 16]);
    carry_out(&mut index, &mut contents);
    let path = tokens(13);
    let lease = onload(&mut index, &path, &[(ALICE, 13)], ALWAYS).unwrap();
    let moves = carry_out(&mut index, &mut contents);
    assert_eq!((hit(&index, lease), copy(&index, lease)), (12, None));
    assert_eq!(index.lease(lease).unwrap().onloaded_tokens(), 12);
    let restored = &table(&index, lease)[..3];
    let targets: Vec<Place> = restored.iter().map(|&page| Place::Device(page)).collect();
    let last: Vec<Place> = moves[moves.len() - 3..].iter().map(|one| one.1).collect();
    assert_eq!(last, targets);
    for (target, key) in targets.iter().zip(keys(&path)) {
        assert_eq!(contents[target], key);
    }
    let stats = index.stats();
    assert_eq!((stats.pages_leased, stats.pages_host), (4, 4));
    assert_eq!((stats.hit_tokens, stats.onloaded_tokens), (12, 12));
    commit(&mut index, lease, &path[..12]);
    let stats = index.stats();
    assert_eq!((stats.pages_cached, stats.pages_leased), (3, 1));
    assert_eq!(stats.committed_tokens, 12 + 16);
    release(&mut index, lease);
    assert_eq!(found(&mut index, &path, None), (12, 0));
}

#[test]
fn only_a_run_that_is_long_enough_is_restored_and_only_if_asked_for() {
    for (min, expected) in [(None, 0), (Some(9), 0), (Some(8), 8), (ALWAYS, 8)] {
        let (mut index, _) = shelved(3);
        // Of twelve tokens one is always computed.
        assert_eq!(found(&mut index, &tokens(12), min), (expected, expected));
        assert_eq!(index.stats().pages_host + index.stats().pages_disk, {
            6 - expected / 4
        });
    }
}

#[test]
fn a_hole_ends_the_run() {
    for (hole, expected) in [(0, (0, 0)), (1, (4, 4))] {
        let (mut index, _) = shelved(0);
        index.tree.shelf.forget(&keys(&tokens(12))[hole]);
        assert_eq!(found(&mut index, &tokens(12), ALWAYS), expected);
    }
    let (mut index, _) = shelved(0);
    let mut edited = tokens(12);
    edited[6] = 7;
    assert_eq!(found(&mut index, &edited, ALWAYS), (4, 4));
}

#[test]
fn equal_tokens_under_another_namespace_are_not_restored() {
    for stretches in [
        &[(BOB, 12)][..],
        &[(PUBLIC, 12)],
        &[(BOB, 1), (ALICE, 11)],
        &[(ALICE, 3), (BOB, 9)],
    ] {
        let (mut index, _) = shelved(0);
        let lease = onload(&mut index, &tokens(12), stretches, ALWAYS).unwrap();
        assert_eq!(hit(&index, lease), 0);
    }
    let (mut index, _) = shelved(0);
    let stretches = [(ALICE, 4), (BOB, 8)];
    let lease = onload(&mut index, &tokens(12), &stretches, ALWAYS).unwrap();
    assert_eq!(hit(&index, lease), 4);
}

#[test]
fn what_is_evicted_for_a_restoration_does_not_overwrite_it() {
    for disk_slots in [0, 1, 5] {
        let (mut index, mut contents) = shelved(disk_slots);
        // The host tier is full, and the device is full of others' pages.
        let path = tokens(12);
        let lease = onload(&mut index, &path, &[(ALICE, 12)], ALWAYS).unwrap();
        carry_out(&mut index, &mut contents);
        for (page, key) in table(&index, lease).into_iter().zip(keys(&path)).take(2) {
            assert_eq!(contents[&Place::Device(page)], key);
        }
    }
}

#[test]
fn a_refused_admission_changes_nothing() {
    let (mut index, _) = shelved(0);
    let other = admit_in(&mut index, &[7; 9], &[(ALICE, 9)]).unwrap();
    index.take_moves();
    let before = (index.stats(), index.dump_tier(Tier::Host, b""));
    assert_eq!(
        onload(&mut index, &tokens(12), &[(ALICE, 12)], ALWAYS),
        None
    );
    assert_eq!((index.stats(), index.dump_tier(Tier::Host, b"")), before);
    assert_eq!(index.take_moves(), []);
    release(&mut index, other);
}

#[test]
fn a_page_that_is_computed_again_leaves_the_shelf() {
    let (mut index, _) = shelved(3);
    let lease = onload(&mut index, &tokens(12), &[(ALICE, 12)], None).unwrap();
    for pages_on_disk in (0..=3).rev() {
        index.commit(lease, 4 * (3 - pages_on_disk)).unwrap();
        index.check().unwrap();
        let stats = index.stats();
        assert_eq!((stats.pages_host, stats.pages_disk), (3, pages_on_disk));
    }
    release(&mut index, lease);
    assert_eq!(found(&mut index, &tokens(12), ALWAYS), (8, 0));
}

#[test]
fn a_rejected_page_is_computed_again() {
    let (mut index, _) = shelved(0);
    let lease = onload(&mut index, &tokens(12), &[(ALICE, 12)], ALWAYS).unwrap();
    let outside = |tokens, from, hit_tokens| {
        Err(IndexError::NotRestored {
            tokens,
            from,
            hit_tokens,
        })
    };
    assert_eq!(index.reject(lease, 9), outside(9, 0, 8));
    assert_eq!(index.reject(lease, 4), Ok(()));
    index.check().unwrap();
    assert_eq!(index.reject(lease, 5), outside(5, 0, 4));
    let held = index.lease(lease).unwrap();
    assert_eq!((held.hit_tokens(), held.onloaded_tokens()), (4, 4));
    let stats = index.stats();
    assert_eq!((stats.hit_tokens, stats.miss_tokens), (4, 32));
    assert_eq!(stats.onloaded_tokens, 4);
    commit(&mut index, lease, &tokens(12));
    assert_eq!(index.stats().committed_tokens, 24 + 8);
    assert_eq!(index.reject(lease, 4), outside(4, 12, 4));
    release(&mut index, lease);
    assert_eq!(index.reject(lease, 4), Err(IndexError::Released));
}

#[test]
fn what_the_device_shares_cannot_be_rejected() {
    let mut index = index(4, 3).with_tiers(3, 0);
    serve(&mut index, &tokens(12));
    // The last page is evicted.
    serve(&mut index, &[7; 4]);
    let lease = onload(&mut index, &tokens(12), &[(ALICE, 12)], ALWAYS).unwrap();
    assert_eq!(hit(&index, lease), 8);
    let refused = index.reject(lease, 7);
    let (tokens, from, hit_tokens) = (7, 8, 8);
    assert_eq!(
        refused,
        Err(IndexError::NotRestored {
            tokens,
            from,
            hit_tokens
        })
    );
}

#[test]
fn a_resumption_that_is_rejected_is_counted_apart() {
    let (mut index, _) = shelved(0);
    let prompt = Prompt {
        token_ids: &tokens(12),
        stretches: &[(ALICE, 12)],
        resumes: true,
        onload_tokens_min: ALWAYS,
        ..Prompt::default()
    };
    let lease = index.admit(&prompt, 12).unwrap().unwrap();
    index.reject(lease, 4).unwrap();
    let stats = index.stats();
    assert_eq!((stats.resumed_tokens, stats.recomputed_tokens), (4, 8));
    assert_eq!((stats.hit_tokens, stats.onloaded_tokens), (0, 4));
}

#[test]
fn a_tip_is_gone_on_from_into_the_shelf() {
    let mut index = index(4, 4).with_tiers(4, 0);
    let first = admit(&mut index, &tokens(6));
    commit(&mut index, first, &tokens(6));
    release(&mut index, first);
    let following: Vec<u32> = tokens(16)[6..].to_vec();
    let go_on = |index: &mut PrefixIndex| {
        let prompt = Prompt {
            token_ids: &following,
            stretches: &[(ALICE, 10)],
            after: Some(first.number()),
            onload_tokens_min: ALWAYS,
            ..Prompt::default()
        };
        let lease = index.admit(&prompt, 16).unwrap().unwrap();
        index.check().unwrap();
        lease
    };
    let second = go_on(&mut index);
    commit(&mut index, second, &tokens(16));
    release(&mut index, second);
    // The last two of four pages go; the first tip is in the second.
    serve(&mut index, &[7; 8]);
    let third = go_on(&mut index);
    let lease = index.lease(third).unwrap();
    // The fourth page is not restored: a token of it is computed.
    assert_eq!((lease.hit_tokens(), lease.onloaded_tokens()), (12, 4));
    assert_eq!(table(&index, third).len(), 4);
}

#[test]
fn a_shelved_page_wins_over_the_beginning_of_one_on_the_device() {
    let mut index = index(4, 2).with_pins(1).with_tiers(4, 0);
    serve(&mut index, &tokens(4));
    serve(&mut index, &[7; 8]);
    let short = admit(&mut index, &tokens(2));
    commit(&mut index, short, &tokens(2));
    release(&mut index, short);
    index.pin(short.number()).unwrap();
    // Two pages cannot be had, but one can, after the pinned page's two rows.
    let path = tokens(5);
    let tight = onload(&mut index, &path, &[(ALICE, 5)], ALWAYS).unwrap();
    assert_eq!(hit(&index, tight), 2);
    release(&mut index, tight);
    assert_eq!(index.stats().pages_host, 3);
    index.unpin(short.number());
    assert_eq!(found(&mut index, &path, ALWAYS), (4, 4));
}

#[test]
fn clear_empties_every_tier() {
    let (mut index, _) = shelved(3);
    serve(&mut index, &[8; 12]);
    assert_eq!((index.stats().pages_host, index.stats().pages_disk), (3, 3));
    assert_eq!(index.clear(), 3);
    index.check().unwrap();
    assert_eq!((index.stats().pages_host, index.stats().pages_disk), (0, 0));
    assert_eq!(found(&mut index, &tokens(12), ALWAYS), (0, 0));
}

#[test]
fn explain_counts_what_would_be_restored() {
    let mut index = index(4, 4).with_tiers(2, 1);
    serve(&mut index, &tokens(12));
    serve(&mut index, &[7; 16]);
    let explain = |index: &mut PrefixIndex, path: &[u32]| {
        let before = index.stats();
        let found = index.explain(path, &[(ALICE, path.len())]).unwrap();
        assert_eq!(index.stats(), before);
        (
            found.hit_tokens,
            found.host_tokens,
            found.disk_tokens,
            found.cause,
        )
    };
    assert_eq!(explain(&mut index, &tokens(13)), (12, 8, 4, Cause::Hit));
    assert_eq!(explain(&mut index, &tokens(12)), (8, 8, 0, Cause::Evicted));
    assert_eq!(explain(&mut index, &tokens(14)), (12, 8, 4, Cause::Cold));
    let bobs = index.explain(&tokens(13), &[(BOB, 13)]).unwrap();
    assert_eq!((bobs.hit_tokens, bobs.cause), (0, Cause::Cold));
}
