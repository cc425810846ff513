//! `load` and `load_tier` of anything: arbitrary bytes, damaged dumps, and dumps forged with a right checksum.
//! An error, or an index that passes `check` and works; never a panic.

#![no_main]

use appliance_core::prefix_index::{PrefixIndex, Prompt, Tier};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

const PAGE_SIZE: usize = 4;
const PAGES: usize = 16;
const SLOTS: u32 = 12;
const NAMES: [&[u8]; 2] = [b"public", b"tenant"];

#[derive(Arbitrary, Debug)]
enum Change {
    Set { place: u16, value: u8 },
    Cut { place: u16 },
    Insert { place: u16, bytes: Vec<u8> },
}

#[derive(Arbitrary, Debug)]
enum Input {
    Anything(Vec<u8>),
    Changed {
        paths: Vec<(Vec<u8>, u8)>,
        changes: Vec<Change>,
        seal: bool,
        tier: bool,
    },
}

fn empty() -> PrefixIndex {
    let index = PrefixIndex::new(PAGE_SIZE, PAGES);
    index.expect("a small shape").with_tiers(SLOTS, SLOTS)
}

/// Of the tree, or of its pages after they were evicted to host memory.
fn dump(paths: &[(Vec<u8>, u8)], tier: bool) -> Vec<u8> {
    let mut index = empty();
    for (path, cut) in paths.iter().take(8) {
        let token_ids: Vec<u32> = path
            .iter()
            .take(40)
            .map(|&token| u32::from(token % 3))
            .collect();
        let first = usize::from(*cut).min(token_ids.len());
        let prompt = Prompt {
            token_ids: &token_ids,
            stretches: &[(NAMES[0], first), (NAMES[1], token_ids.len() - first)],
            ..Prompt::default()
        };
        if let Ok(Some(lease)) = index.admit(&prompt, token_ids.len()) {
            index
                .commit(lease, token_ids.len())
                .expect("all of it has room");
            index.release(lease);
        }
    }
    if !tier {
        return index.dump(b"fuzz");
    }
    let all = PAGE_SIZE * PAGES;
    let prompt = Prompt {
        token_ids: &vec![9; all],
        stretches: &[(NAMES[0], all)],
        ..Prompt::default()
    };
    let admitted = index.admit(&prompt, all);
    assert!(matches!(admitted, Ok(Some(_))), "nothing is held");
    index.dump_tier(Tier::Host, b"fuzz")
}

fn change(bytes: &mut Vec<u8>, change: &Change) {
    let at = |place: &u16, len: usize| usize::from(*place) % len.max(1);
    match change {
        Change::Set { place, value } => {
            let place = at(place, bytes.len());
            if let Some(byte) = bytes.get_mut(place) {
                *byte = *value;
            }
        }
        Change::Cut { place } => bytes.truncate(at(place, bytes.len())),
        Change::Insert { place, bytes: new } => {
            let place = at(place, bytes.len());
            let place = place..place;
            bytes.splice(place, new.iter().copied());
        }
    }
}

fuzz_target!(|input: Input| {
    let bytes = match input {
        Input::Anything(bytes) => bytes,
        Input::Changed {
            paths,
            changes,
            seal,
            tier,
        } => {
            let mut bytes = dump(&paths, tier);
            bytes.truncate(bytes.len() - 32);
            for one in changes.iter().take(16) {
                change(&mut bytes, one);
            }
            let checksum = if seal {
                *blake3::hash(&bytes).as_bytes()
            } else {
                [0; 32]
            };
            bytes.extend(checksum);
            bytes
        }
    };
    let mut index = match PrefixIndex::load(&bytes, b"fuzz", PAGE_SIZE, PAGES) {
        Ok(index) => index,
        Err(_) => {
            let mut index = empty();
            if index.load_tier(Tier::Host, &bytes, b"fuzz").is_err() {
                assert_eq!(index.stats().pages_host, 0);
                return;
            }
            index
        }
    };
    index.check().expect("what is loaded is sound");
    let prompt = Prompt {
        token_ids: &[0, 1, 2, 0, 1],
        stretches: &[(NAMES[0], 5)],
        onload_tokens_min: Some(0),
        ..Prompt::default()
    };
    if let Ok(Some(lease)) = index.admit(&prompt, PAGE_SIZE * PAGES) {
        index.commit(lease, 5).expect("all of it has room");
        index.release(lease);
    }
    index.check().expect("and stays so");
    index.clear();
});
