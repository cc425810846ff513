//! Tiers that survive a restart, and dumps that are not taken for one.

use super::dump::sealed;
use super::tiers::{ALWAYS, found, shelved};
use super::*;

#[test]
fn tiers_survive_a_restart_each_by_itself() {
    let (mut before, _) = shelved(3);
    serve(&mut before, &[8; 8]);
    let dumps = [Tier::Host, Tier::Disk].map(|tier| (tier, before.dump_tier(tier, b"model")));
    // The device's pages are lost.
    let mut after = index(4, 3).with_tiers(3, 3);
    for (tier, dump) in &dumps {
        after.load_tier(*tier, dump, b"model").unwrap();
        after.check().unwrap();
        assert_eq!(after.dump_tier(*tier, b"model"), *dump);
        let again = after.load_tier(*tier, dump, b"model");
        assert_eq!(again, Err(LoadError::TierInUse));
    }
    assert_eq!((after.stats().pages_host, after.stats().pages_disk), (3, 2));
    assert_eq!(found(&mut after, &tokens(12), ALWAYS), (8, 8));
    // Or host memory is lost too: the end of a conversation without its beginning is of no use.
    let mut later = index(4, 3).with_tiers(0, 9);
    later.load_tier(Tier::Disk, &dumps[1].1, b"model").unwrap();
    assert_eq!(later.stats().pages_disk, 2);
    assert_eq!(found(&mut later, &tokens(12), ALWAYS), (0, 0));
    // Or nothing is lost.
    let tree = before.dump(b"model");
    let mut whole = PrefixIndex::load(&tree, b"model", 4, 3).unwrap();
    whole = whole.with_tiers(3, 3);
    for (tier, dump) in &dumps {
        whole.load_tier(*tier, dump, b"model").unwrap();
    }
    whole.check().unwrap();
    assert_eq!(whole.stats().pages_cached, before.stats().pages_cached);
}

#[test]
fn a_tier_of_something_else_is_refused_and_nothing_changed() {
    let (before, _) = shelved(0);
    let dump = before.dump_tier(Tier::Host, b"model");
    let mut other = index(4, 3).with_tiers(3, 3);
    let mut small = index(4, 3).with_tiers(2, 9);
    let mut wide = index(8, 3).with_tiers(3, 3);
    let mut warm = index(4, 3).with_tiers(3, 3);
    serve(&mut warm, &tokens(12));
    let other_device = Err(LoadError::OtherTier);
    assert_eq!(other.load_tier(Tier::Host, &dump, b"other"), other_device);
    assert_eq!(other.load_tier(Tier::Disk, &dump, b"model"), other_device);
    assert_eq!(wide.load_tier(Tier::Host, &dump, b"model"), other_device);
    let tree = before.dump(b"model");
    let not_a_dump = other.load_tier(Tier::Host, &tree, b"model");
    assert_eq!(not_a_dump, Err(LoadError::NotADump));
    for refusing in [&mut small, &mut warm] {
        let refused = refusing.load_tier(Tier::Host, &dump, b"model");
        assert!(matches!(refused, Err(LoadError::Contradiction(_))));
    }
    for index in [other, small, wide, warm] {
        index.check().unwrap();
        assert_eq!(index.stats().pages_host, 0);
    }
}

#[test]
fn a_damaged_tier_is_an_error_and_a_forged_one_an_error_or_sound() {
    let (before, _) = shelved(0);
    let bytes = before.dump_tier(Tier::Host, b"model");
    let load = |bytes: &[u8]| {
        let mut index = index(4, 3).with_tiers(3, 3);
        let loaded = index.load_tier(Tier::Host, bytes, b"model");
        index.check().unwrap();
        loaded
    };
    for place in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1 << (place % 8);
        assert!(load(&damaged).is_err(), "byte {place}");
        assert!(load(&bytes[..place]).is_err(), "cut at {place}");
    }
    for place in 0..bytes.len() - 32 {
        for value in [0, 1, 2, 0x7f, 0xff, bytes[place].wrapping_add(1)] {
            let mut forged = bytes.clone();
            forged[place] = value;
            let _ = load(&sealed(forged));
        }
        let _ = load(&sealed(bytes[..place.max(32)].to_vec()));
    }
    let first = bytes.len() - 32 - 3 * 36;
    let mut one_slot = bytes.clone();
    one_slot.copy_within(first + 32..first + 36, first + 68);
    let mut one_key = bytes.clone();
    one_key.copy_within(first..first + 32, first + 36);
    for forged in [one_slot, one_key] {
        let loaded = load(&sealed(forged));
        assert!(matches!(loaded, Err(LoadError::Contradiction(_))));
    }
    // The number of the tier stands after magic, version and page size.
    let mut on_disk_too = bytes.clone();
    on_disk_too[16] = 1;
    let mut index = index(4, 3).with_tiers(3, 3);
    index.load_tier(Tier::Host, &bytes, b"model").unwrap();
    let loaded = index.load_tier(Tier::Disk, &sealed(on_disk_too), b"model");
    assert!(matches!(loaded, Err(LoadError::Contradiction(_))));
    index.check().unwrap();
}
