//! Any operations on a small prefix index, with `check` after each: no panic, and the accounting stays right.

#![no_main]

use appliance_core::prefix_index::{LeaseId, PrefixIndex, Prompt, Tier};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

const NAMESPACES: [&[u8]; 3] = [b"public", b"tenant a", b""];
const CONVERSATIONS: [&[u8]; 3] = [b"", b"a", b"b"];

#[derive(Arbitrary, Debug)]
struct Ask {
    tokens: Vec<bool>,
    cut: u8,
    namespaces: (u8, u8),
    room: u8,
    after: Option<u8>,
    conversation: u8,
    priority: u8,
    resumes: bool,
    onload: Option<u8>,
}

#[derive(Arbitrary, Debug)]
enum Operation {
    Admit(Ask),
    Append { lease: u8, tokens: u8 },
    Commit { lease: u8, tokens: u8 },
    Grow { lease: u8, tokens: u8 },
    Release { lease: u8 },
    Reject { lease: u8, tokens: u8 },
    TakeMoves,
    Pin { lease: u8 },
    Unpin { lease: u8 },
    Explain { tokens: Vec<bool>, namespace: u8 },
    Reload,
    Clear,
}

#[derive(Arbitrary, Debug)]
struct Input {
    page_size: u8,
    pages: u8,
    slots: (u8, u8),
    operations: Vec<Operation>,
}

fn admit(index: &mut PrefixIndex, leases: &mut Vec<LeaseId>, ask: &Ask) {
    let token_ids: Vec<u32> = ask.tokens.iter().map(|&token| u32::from(token)).collect();
    let first = usize::from(ask.cut).min(token_ids.len());
    let name = |number: u8| NAMESPACES[usize::from(number) % 3];
    let stretches = [
        (name(ask.namespaces.0), first),
        (name(ask.namespaces.1), token_ids.len() - first),
    ];
    let after = ask.after.and_then(|lease| pick(leases, lease));
    let before = after.and_then(|after| index.node_tokens(after.number()));
    let prompt = Prompt {
        token_ids: &token_ids,
        stretches: &stretches,
        after: after.map(LeaseId::number),
        conversation: CONVERSATIONS[usize::from(ask.conversation) % 3],
        priority: ask.priority,
        resumes: ask.resumes,
        onload_tokens_min: ask.onload.map(usize::from),
    };
    let reserve = before.unwrap_or(0) + token_ids.len() + usize::from(ask.room % 8);
    if let Ok(Some(lease)) = index.admit(&prompt, reserve) {
        assert!(
            index
                .lease(lease)
                .is_some_and(|lease| lease.hit_tokens() < lease.prompt_tokens())
        );
        leases.push(lease);
    }
}

fn pick(leases: &[LeaseId], number: u8) -> Option<LeaseId> {
    leases
        .get(usize::from(number) % leases.len().max(1))
        .copied()
}

/// The tiers fit to the tree that was dumped with them.
fn reload_tiers(index: &PrefixIndex, loaded: PrefixIndex) {
    let mut loaded = loaded.with_tiers(4, 4);
    for tier in [Tier::Host, Tier::Disk] {
        let dump = index.dump_tier(tier, b"fuzz");
        let taken = loaded.load_tier(tier, &dump, b"fuzz");
        taken.expect("a tier's dump can be loaded");
        assert_eq!(loaded.dump_tier(tier, b"fuzz"), dump);
    }
    loaded.check().expect("what is loaded is sound");
}

fn run(index: &mut PrefixIndex, leases: &mut Vec<LeaseId>, operation: &Operation) {
    let lease = |number: &u8| pick(leases, *number);
    match operation {
        Operation::Admit(ask) => admit(index, leases, ask),
        Operation::Append {
            lease: number,
            tokens,
        } => {
            let _ = lease(number).map(|id| index.append(id, &vec![1; usize::from(tokens % 16)]));
        }
        Operation::Commit {
            lease: number,
            tokens,
        } => {
            let _ = lease(number).map(|id| index.commit(id, usize::from(*tokens)));
        }
        Operation::Grow {
            lease: number,
            tokens,
        } => {
            let _ = lease(number).map(|id| index.grow(id, usize::from(*tokens)));
        }
        Operation::Release { lease: number } => {
            let _ = lease(number).map(|id| index.release(id));
        }
        Operation::Reject {
            lease: number,
            tokens,
        } => {
            let _ = lease(number).map(|id| index.reject(id, usize::from(*tokens)));
        }
        Operation::TakeMoves => {
            let moves = index.take_moves();
            assert!(moves.iter().all(|one| one.from != one.to));
        }
        Operation::Pin { lease: number } => {
            let _ = lease(number).map(|id| index.pin(id.number()));
        }
        Operation::Unpin { lease: number } => {
            let _ = lease(number).map(|id| index.unpin(id.number()));
        }
        Operation::Explain { tokens, namespace } => {
            let token_ids: Vec<u32> = tokens.iter().map(|&token| u32::from(token)).collect();
            let name = NAMESPACES[usize::from(*namespace) % 3];
            let _ = index.explain(&token_ids, &[(name, token_ids.len())]);
        }
        Operation::Reload => {
            let stats = index.stats();
            let rows = leases
                .first()
                .and_then(|&id| index.lease(id))
                .map(|lease| lease.tokens_reserved() / lease.page_table().len().max(1));
            if let Some(page_size) = rows.filter(|&rows| rows > 0) {
                let dump = index.dump(b"fuzz");
                let loaded = PrefixIndex::load(&dump, b"fuzz", page_size, stats.pages_total);
                let loaded = loaded.expect("a dump can be loaded");
                let cached = loaded.stats().pages_cached;
                // Pages that a sibling covers, which only a lease's lock keeps, are not dumped.
                let is_held = leases.iter().any(|&id| index.lease(id).is_some());
                assert!(cached == stats.pages_cached || is_held && cached < stats.pages_cached);
                reload_tiers(index, loaded);
            }
        }
        Operation::Clear => {
            index.clear();
        }
    }
}

fuzz_target!(|input: Input| {
    let (page_size, pages) = (input.page_size % 5 + 1, input.pages % 16 + 1);
    let index = PrefixIndex::new(page_size.into(), pages.into());
    let mut index = index
        .expect("a small shape")
        .with_pins(usize::from(pages / 2))
        .with_tiers(u32::from(input.slots.0 % 5), u32::from(input.slots.1 % 5));
    let mut leases = Vec::new();
    for operation in input.operations.iter().take(200) {
        run(&mut index, &mut leases, operation);
        index.check().expect("the accounting is right");
    }
});
