//! Warm restarts, and what is not taken for one.

use super::*;

const FINGERPRINT: &[u8] = b"model";

fn load(bytes: &[u8]) -> Result<PrefixIndex, LoadError> {
    PrefixIndex::load(bytes, FINGERPRINT, 4, 32)
}

/// The checksum made right again after a change.
pub(super) fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - 32;
    let checksum = *blake3::hash(&bytes[..end]).as_bytes();
    bytes[end..].copy_from_slice(&checksum);
    bytes
}

fn used_index() -> PrefixIndex {
    let mut index = index(4, 32);
    serve_in(&mut index, &tokens(30), &[(PUBLIC, 10), (ALICE, 20)]);
    serve_in(&mut index, &tokens(22), &[(PUBLIC, 10), (BOB, 12)]);
    let mut branch = tokens(30);
    branch[17] = 7;
    serve_in(&mut index, &branch, &[(PUBLIC, 10), (ALICE, 20)]);
    index
}

#[test]
fn a_loaded_index_finds_and_evicts_what_the_dumped_one_would() {
    let mut before = used_index();
    let running = admit(&mut before, &tokens(9));
    let bytes = before.dump(FINGERPRINT);
    let mut after = load(&bytes).unwrap();
    after.check().unwrap();
    assert_eq!(after.dump(FINGERPRINT), bytes);
    assert_eq!(after.stats().pages_cached, before.stats().pages_cached);
    assert_eq!((after.stats().pages_leased, after.stats().tips), (0, 0));
    release(&mut before, running);
    for (path, stretches) in [
        (tokens(31), [(PUBLIC, 10), (ALICE, 21)]),
        (tokens(31), [(PUBLIC, 10), (BOB, 21)]),
    ] {
        let found = [&mut before, &mut after].map(|index| {
            let lease = admit_in(index, &path, &stretches).unwrap();
            let found = (hit(index, lease), table(index, lease)[..2].to_vec());
            release(index, lease);
            found
        });
        assert_eq!(found[0], found[1]);
    }
    while before.tree.evictable.first().is_some() {
        assert_eq!(before.tree.evict_page(), after.tree.evict_page());
    }
}

#[test]
fn an_empty_index_is_loaded_empty() {
    let empty = index(4, 32);
    let loaded = load(&empty.dump(FINGERPRINT)).unwrap();
    assert_eq!(loaded.stats(), empty.stats());
}

#[test]
fn a_dump_of_something_else_is_refused_with_the_reason() {
    let bytes = used_index().dump(FINGERPRINT);
    let reason = |result: Result<PrefixIndex, LoadError>| result.err().unwrap();
    assert_eq!(reason(load(b"")), LoadError::NotADump);
    assert_eq!(reason(load(&[7; 100])), LoadError::NotADump);
    let other = [
        PrefixIndex::load(&bytes, b"other", 4, 32),
        PrefixIndex::load(&bytes, FINGERPRINT, 8, 32),
        PrefixIndex::load(&bytes, FINGERPRINT, 4, 33),
    ];
    for result in other {
        assert_eq!(reason(result), LoadError::OtherDevice);
    }
    let shape = PrefixIndex::load(&bytes, FINGERPRINT, 0, 32);
    assert_eq!(reason(shape), LoadError::Shape(IndexError::Shape));
    let mut newer = bytes.clone();
    newer[8] = 2;
    let version = LoadError::Version {
        found: 2,
        expected: 1,
    };
    assert_eq!(reason(load(&newer)), version);
    let longer = [&bytes[..bytes.len() - 32], &[0; 36]].concat();
    assert!(matches!(
        reason(load(&sealed(longer))),
        LoadError::Contradiction(_)
    ));
}

#[test]
fn no_damaged_byte_and_no_cut_is_taken_for_a_dump() {
    let bytes = used_index().dump(FINGERPRINT);
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1 << (place % 8);
        assert!(load(&damaged).is_err(), "byte {place}");
        assert!(load(&bytes[..place]).is_err(), "cut at {place}");
    }
}

#[test]
fn a_forged_dump_is_an_error_or_a_sound_index() {
    let bytes = used_index().dump(FINGERPRINT);
    for place in 0..bytes.len() - 32 {
        for value in [0, 1, 2, 0x7f, 0xff, bytes[place].wrapping_add(1)] {
            let mut forged = bytes.clone();
            forged[place] = value;
            if let Ok(index) = load(&sealed(forged)) {
                index.check().unwrap();
            }
        }
        if let Ok(index) = load(&sealed(bytes[..place.max(32)].to_vec())) {
            index.check().unwrap();
        }
    }
}

#[test]
fn a_tail_that_is_kept_only_for_its_writer_is_not_dumped() {
    let mut index = index(4, 32);
    let slow = ask(&mut index, &tokens(2), &[(ALICE, 2)], 8)
        .unwrap()
        .unwrap();
    commit(&mut index, slow, &tokens(2));
    serve(&mut index, &tokens(4));
    assert_eq!(index.stats().pages_cached, 2);
    let loaded = load(&index.dump(FINGERPRINT)).unwrap();
    assert_eq!(
        (loaded.stats().pages_cached, loaded.stats().pages_free),
        (1, 31)
    );
}

#[test]
fn what_only_the_check_can_see_is_an_error_too() {
    let mut index = index(4, 32);
    serve(&mut index, &[1]);
    serve(&mut index, &[2, 3]);
    let mut forged = index.dump(FINGERPRINT);
    let both: Vec<u8> = [2_u32, 3]
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect();
    let place = forged.windows(8).position(|window| window == both).unwrap();
    // Now the first page is the beginning of the second, which covers it.
    forged[place] = 1;
    assert!(matches!(
        load(&sealed(forged)),
        Err(LoadError::Contradiction(_))
    ));
}
