//! Borders between namespaces: who finds whose tokens.

use super::*;

#[test]
fn a_private_stretch_is_found_only_by_its_tenant() {
    for (public, private) in [(4, 4), (6, 6), (3, 1), (0, 9), (5, 12)] {
        let mut index = index(4, 64);
        let prompt = tokens((public + private) as u32);
        let as_tenant = |tenant| [(PUBLIC, public), (tenant, private)];
        assert_eq!(serve_in(&mut index, &prompt, &as_tenant(ALICE)), 0);
        let public_hit = public.min(prompt.len() - 1);
        assert_eq!(serve_in(&mut index, &prompt, &as_tenant(BOB)), public_hit);
        assert_eq!(
            serve_in(&mut index, &prompt, &as_tenant(ALICE)),
            prompt.len() - 1
        );
    }
}

#[test]
fn public_tokens_after_private_ones_are_not_public() {
    let mut index = index(4, 64);
    let prompt = tokens(12);
    serve_in(&mut index, &prompt, &[(PUBLIC, 2), (ALICE, 3), (PUBLIC, 7)]);
    for stretches in [
        &[(PUBLIC, 2), (BOB, 3), (PUBLIC, 7)][..],
        &[(PUBLIC, 12)],
        &[(PUBLIC, 2), (BOB, 10)],
        &[(PUBLIC, 2), (BOB, 3), (ALICE, 7)],
    ] {
        let lease = admit_in(&mut index, &prompt, stretches).unwrap();
        assert_eq!(hit(&index, lease), 2);
        index.release(lease);
    }
    let same = &[(PUBLIC, 2), (ALICE, 3), (PUBLIC, 7)];
    assert_eq!(serve_in(&mut index, &prompt, same), 11);
}

#[test]
fn a_border_is_a_change_of_namespace_and_not_a_way_of_counting() {
    let mut index = index(4, 64);
    let prompt = tokens(10);
    serve_in(&mut index, &prompt, &[(ALICE, 5), (BOB, 5)]);
    let split: &[(&[u8], usize)] = &[(ALICE, 2), (BOB, 0), (ALICE, 3), (BOB, 1), (BOB, 4)];
    assert_eq!(serve_in(&mut index, &prompt, split), 9);
    let framed_otherwise: &[(&[u8], usize)] = &[(b"tenant alicet", 5), (b"enant bob", 5)];
    assert_eq!(serve_in(&mut index, &prompt, framed_otherwise), 0);
}

#[test]
fn an_empty_last_stretch_names_the_namespace_of_the_reply() {
    let mut index = index(4, 64);
    let lease = ask(&mut index, &tokens(6), &[(PUBLIC, 6), (ALICE, 0)], 12)
        .unwrap()
        .unwrap();
    commit(&mut index, lease, &tokens(10));
    release(&mut index, lease);
    let lease = admit_in(&mut index, &tokens(11), &[(PUBLIC, 6), (ALICE, 5)]).unwrap();
    assert_eq!(hit(&index, lease), 10);
    let lease = admit_in(&mut index, &tokens(11), &[(PUBLIC, 11)]).unwrap();
    assert_eq!(hit(&index, lease), 6);
}

#[test]
fn namespaces_are_forgotten_with_their_last_page_and_lease() {
    let mut index = index(2, 4);
    for tenant in 0..1000_u32 {
        let name = tenant.to_le_bytes();
        serve_in(&mut index, &tokens(3), &[(&name, 3)]);
    }
    assert!(index.tree.namespaces.live() <= 2);
    index.clear();
    index.check().unwrap();
    assert_eq!(index.tree.namespaces.live(), 0);
}
