//! Golden page keys, and the same chain computed by hand from its description.

#![allow(clippy::unwrap_used)]

use appliance_core::page_keys::{PageKey, PageKeysError, page_keys};

/// The bytes that are hashed, written out: no part of the library but BLAKE3 itself.
fn by_hand(page_size: u32, pages: &[&[(&[u8], &[u32])]]) -> Vec<PageKey> {
    let mut root = b"appliance page key 1".to_vec();
    root.extend(page_size.to_le_bytes());
    let mut above = *blake3::hash(&root).as_bytes();
    let mut keys = Vec::new();
    for page in pages {
        let mut bytes = above.to_vec();
        for (namespace, tokens) in *page {
            bytes.extend(u32::try_from(namespace.len()).unwrap().to_le_bytes());
            bytes.extend(*namespace);
            bytes.extend(u32::try_from(tokens.len()).unwrap().to_le_bytes());
            bytes.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        }
        above = *blake3::hash(&bytes).as_bytes();
        keys.push(above);
    }
    keys
}

fn hex(key: &PageKey) -> String {
    blake3::Hash::from_bytes(*key).to_hex().to_string()
}

#[test]
fn keys_are_the_chain_that_is_described() {
    let tokens: Vec<u32> = (1..=11).collect();
    let stretches: [(&[u8], usize); 3] = [(b"public", 6), (b"tenant", 3), (b"", 2)];
    let expected: [&[(&[u8], &[u32])]; 2] = [
        &[(b"public", &[1, 2, 3, 4])],
        &[(b"public", &[5, 6]), (b"tenant", &[7, 8])],
    ];
    assert_eq!(
        page_keys(&tokens, &stretches, 4).unwrap(),
        by_hand(4, &expected)
    );
    let single: Vec<[(&[u8], &[u32]); 1]> = tokens
        .chunks(1)
        .zip(
            [&b"public"[..]; 6]
                .into_iter()
                .chain([&b"tenant"[..]; 3])
                .chain([&b""[..]; 2]),
        )
        .map(|(token, namespace)| [(namespace, token)])
        .collect();
    let single: Vec<&[(&[u8], &[u32])]> = single.iter().map(|page| &page[..]).collect();
    assert_eq!(
        page_keys(&tokens, &stretches, 1).unwrap(),
        by_hand(1, &single)
    );
}

#[test]
fn keys_never_change() {
    let tokens: Vec<u32> = (0..8).map(|token| token * 0x0101_0101).collect();
    let keys = page_keys(&tokens, &[(b"public", 5), (b"tenant a", 3)], 4).unwrap();
    let keys: Vec<String> = keys.iter().map(hex).collect();
    assert_eq!(keys, GOLDEN);
}

/// From Python's `blake3`, over bytes put together with `struct.pack("<I", ...)`.
const GOLDEN: [&str; 2] = [
    "92fe52a8395c173e088146b10b8472b9162efbdd696224b8038d5bffc1612db2",
    "84b4c664ab3cb255022af4a8db6a87bf14423fe9ad7d0d05f85f321ed2176114",
];

#[test]
fn framing_tells_apart_what_looks_alike_when_joined() {
    let keys = |stretches: &[(&[u8], usize)]| page_keys(&[1, 2], stretches, 2).unwrap();
    let all = [
        keys(&[(b"ab", 1), (b"c", 1)]),
        keys(&[(b"a", 1), (b"bc", 1)]),
        keys(&[(b"abc", 2)]),
        keys(&[(b"ab", 2)]),
        keys(&[(b"", 2)]),
        keys(&[(b"ab", 1), (b"c\x01\0\0\0", 1)]),
    ];
    for (place, key) in all.iter().enumerate() {
        assert!(!all[..place].contains(key), "{place}");
    }
    // Where a stretch is cut, and empty ones, make no difference.
    let cut = keys(&[(b"x", 0), (b"abc", 1), (b"y", 0), (b"abc", 1)]);
    assert_eq!(cut, keys(&[(b"abc", 2)]));
}

#[test]
fn a_key_depends_on_all_before_it_and_nothing_after_it() {
    let tokens = |change: usize| -> Vec<u32> {
        (0..20)
            .map(|place| if place == change { 99 } else { 7 })
            .collect()
    };
    let keys = |tokens: &[u32]| page_keys(tokens, &[(b"ns", tokens.len())], 4).unwrap();
    let unchanged = keys(&tokens(20));
    assert_eq!(unchanged.len(), 5);
    for change in 0..20 {
        let changed = keys(&tokens(change));
        for page in 0..5 {
            assert_eq!(changed[page] == unchanged[page], page < change / 4);
        }
    }
    assert_eq!(keys(&[7; 19])[..], unchanged[..4]);
    assert_ne!(
        page_keys(&[7; 4], &[(b"ns", 4)], 2).unwrap()[1],
        unchanged[0]
    );
}

#[test]
fn malformed_paths_are_refused() {
    let refused =
        |stretches: &[(&[u8], usize)], size| page_keys(&[1], stretches, size).unwrap_err();
    assert_eq!(refused(&[], 1), PageKeysError::Stretches { tokens: 1 });
    assert_eq!(
        refused(&[(b"", usize::MAX), (b"", 2)], 1),
        PageKeysError::Stretches { tokens: 1 }
    );
    assert_eq!(refused(&[(b"", 1)], 0), PageKeysError::PageSize);
    assert_eq!(refused(&[(b"", 1)], 1 << 32), PageKeysError::PageSize);
}
