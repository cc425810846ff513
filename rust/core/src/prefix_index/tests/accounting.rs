//! Locks, leases and pages, and refusals.

use super::*;

#[test]
fn malformed_requests_are_refused_and_change_nothing() {
    let mut index = index(4, 4);
    let before = index.stats();
    let mut refusal = |token_ids: &[u32], stretches: &[(&[u8], usize)], reserve| {
        ask(&mut index, token_ids, stretches, reserve).unwrap_err()
    };
    let one_short = IndexError::Stretches { tokens: 3 };
    assert_eq!(refusal(&[], &[], 1), IndexError::NoTokens);
    assert_eq!(refusal(&tokens(3), &[], 3), one_short);
    assert_eq!(refusal(&tokens(3), &[(ALICE, 2)], 3), one_short);
    assert_eq!(refusal(&tokens(3), &[(ALICE, 2), (BOB, 2)], 3), one_short);
    let overflowing = [(ALICE, usize::MAX), (BOB, 4)];
    assert_eq!(refusal(&tokens(3), &overflowing, 3), one_short);
    assert!(matches!(
        refusal(&tokens(3), &[(ALICE, 3)], 2),
        IndexError::ReserveTooSmall { .. }
    ));
    assert!(matches!(
        refusal(&tokens(3), &[(ALICE, 3)], 17),
        IndexError::OverCapacity { capacity: 16, .. }
    ));
    assert!(matches!(
        refusal(&tokens(3), &[(ALICE, 3)], usize::MAX),
        IndexError::OverCapacity { .. }
    ));
    assert_eq!(index.stats(), before);
    index.check().unwrap();
    assert_eq!(index.tree.namespaces.live(), 0);
    for (page_size, pages) in [
        (0, 1),
        (1, 0),
        (usize::MAX, 2),
        (2, 1 << 32),
        (1 << 17, 1 << 16),
    ] {
        let refused = PrefixIndex::new(page_size, pages);
        assert_eq!(refused.err(), Some(IndexError::Shape));
    }
}

#[test]
fn commits_past_what_is_known_are_refused_and_change_nothing() {
    let mut index = index(4, 8);
    let lease = admit(&mut index, &tokens(6));
    commit(&mut index, lease, &tokens(7));
    let before = index.stats();
    assert_eq!(
        index.commit(lease, 8),
        Err(IndexError::CommitPastTokens {
            tokens: 8,
            known: 7
        })
    );
    index.append(lease, &[1, 2]).unwrap();
    assert_eq!(
        index.commit(lease, 9),
        Err(IndexError::CommitPastRoom {
            tokens: 9,
            reserved: 8
        })
    );
    // Fewer tokens than before are nothing new.
    commit(&mut index, lease, &tokens(3));
    commit(&mut index, lease, &[]);
    assert_eq!(index.stats(), before);
    release(&mut index, lease);
    release(&mut index, lease);
    assert_eq!(index.commit(lease, 1), Err(IndexError::Released));
    assert_eq!(index.append(lease, &[1]), Err(IndexError::Released));
    assert_eq!(index.token_ids(lease), Err(IndexError::Released));
    assert_eq!(index.grow(lease, 1), Err(IndexError::Released));
    assert!(index.lease(lease).is_none());
}

#[test]
fn an_admission_that_cannot_be_had_evicts_nothing() {
    let mut index = index(4, 6);
    serve(&mut index, &tokens(7));
    let running = admit(&mut index, &[1; 12]);
    let before = index.stats();
    assert_eq!(before.pages_evictable, 2);
    assert_eq!(admit_in(&mut index, &[2; 16], &[(BOB, 16)]), None);
    assert_eq!(index.grow(running, 25), Ok(false));
    assert_eq!(index.grow(running, usize::MAX), Ok(false));
    assert_eq!(index.stats(), before);
    assert_eq!(index.tree.namespaces.live(), 1);
    assert_eq!(index.grow(running, 24), Ok(true));
    index.check().unwrap();
    assert_eq!(index.stats().pages_cached, 0);
}

#[test]
fn a_reservation_does_not_evict_the_prefix_it_found() {
    let mut index = index(4, 4);
    serve(&mut index, &tokens(8));
    serve(&mut index, &[1; 8]);
    // The matched page is the least recently used one.
    let lease = admit(&mut index, &tokens(12));
    assert_eq!(hit(&index, lease), 8);
    assert_eq!(index.stats().evicted_pages, 1);
}

#[test]
fn a_request_that_needs_every_page_gets_them_even_from_its_own_copy_source() {
    let mut index = index(4, 4);
    serve(&mut index, &tokens(6));
    let mut edited = tokens(16);
    edited[5] = 7;
    let lease = admit(&mut index, &edited);
    // The full page is shared; the partial one would have needed a fifth page.
    assert_eq!(hit(&index, lease), 4);
    assert_eq!(copy(&index, lease), None);
    assert_eq!(table(&index, lease).len(), 4);
}

#[test]
fn a_partial_page_is_continued_in_place_by_one_sequence_at_a_time() {
    let mut index = index(4, 4);
    serve(&mut index, &tokens(6));
    let lease = admit(&mut index, &tokens(16));
    assert_eq!((hit(&index, lease), copy(&index, lease)), (6, None));
    release(&mut index, lease);
    // What the first wrote is not known: the second writes over it. The third must not.
    let second = admit(&mut index, &tokens(8));
    assert_eq!((hit(&index, second), copy(&index, second)), (6, None));
    let third = admit(&mut index, &tokens(8));
    assert_eq!(hit(&index, third), 6);
    assert_eq!(
        copy(&index, third).unwrap().source_page,
        table(&index, second)[1]
    );
    commit(&mut index, third, &tokens(8));
    commit(&mut index, second, &tokens(8));
    release(&mut index, third);
    // The second's page is read by it to the end, and it is not the tree's any more.
    let fourth = admit(&mut index, &tokens(7));
    assert_ne!(table(&index, fourth)[1], table(&index, second)[1]);
    release(&mut index, fourth);
    release(&mut index, second);
    assert_eq!(index.stats().pages_cached, 2);
}

#[test]
fn a_copy_source_stays_until_the_commit() {
    let mut index = index(4, 4);
    serve(&mut index, &tokens(3));
    let lease = admit(&mut index, &tokens(3));
    let source = copy(&index, lease).unwrap().source_page;
    assert_eq!(index.stats().pages_evictable, 0);
    assert_eq!(index.clear(), 0);
    assert_eq!(copy(&index, lease).unwrap().source_page, source);
    commit(&mut index, lease, &tokens(4));
    // The partial page is a prefix of the full one: it went with its lock.
    assert_eq!(copy(&index, lease), None);
    assert_eq!(index.stats().pages_cached, 1);
    assert_eq!(index.stats().pages_free, 3);
}

#[test]
fn two_sequences_that_compute_the_same_keep_their_own_pages() {
    let mut index = index(4, 8);
    let first = admit(&mut index, &tokens(8));
    let second = admit(&mut index, &tokens(8));
    let tables = (table(&index, first), table(&index, second));
    commit(&mut index, first, &tokens(8));
    commit(&mut index, second, &tokens(8));
    assert_eq!((table(&index, first), table(&index, second)), tables);
    let stats = index.stats();
    assert_eq!((stats.pages_cached, stats.pages_leased), (2, 2));
    release(&mut index, second);
    assert_eq!(index.stats().pages_leased, 0);
    // The first one's pages were followed by both; they are free to go only now.
    assert_eq!(index.stats().pages_evictable, 0);
    release(&mut index, first);
    assert_eq!(index.stats().pages_evictable, 2);
}

#[test]
fn a_growing_tail_keeps_its_page_while_others_copy_from_it() {
    let mut index = index(4, 8);
    let writer = ask(&mut index, &tokens(2), &[(ALICE, 2)], 8)
        .unwrap()
        .unwrap();
    commit(&mut index, writer, &tokens(2));
    let page = table(&index, writer)[0];
    let reader = admit(&mut index, &[100, 101, 7]);
    assert_eq!(copy(&index, reader).unwrap().source_page, page);
    commit(&mut index, writer, &tokens(3));
    commit(&mut index, writer, &tokens(5));
    release(&mut index, writer);
    assert_eq!(copy(&index, reader).unwrap().source_page, page);
    assert!(index.clear() == 1, "all but the page that is read");
    commit(&mut index, reader, &[100, 101, 7]);
    release(&mut index, reader);
    assert_eq!(index.stats().pages_cached, 2);
}

#[test]
fn a_tail_that_another_sequence_overtook_is_kept_for_its_writer_and_then_freed() {
    let mut index = index(4, 8);
    let slow = ask(&mut index, &tokens(2), &[(ALICE, 2)], 8)
        .unwrap()
        .unwrap();
    commit(&mut index, slow, &tokens(2));
    let before = table(&index, slow);
    serve(&mut index, &tokens(4));
    assert_eq!(index.stats().pages_cached, 2);
    commit(&mut index, slow, &tokens(6));
    assert_eq!(table(&index, slow), before);
    // The overtaken tail, the full page of the other, and the new tail below it.
    assert_eq!(index.stats().pages_cached, 3);
    assert_eq!(index.clear(), 0);
    release(&mut index, slow);
    assert_eq!(index.stats().pages_cached, 2);
    assert_eq!(serve(&mut index, &tokens(7)), 6);
}
