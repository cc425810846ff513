//! The prefix index against its slow model, and against simulated contents of all places, with random
//! operations; `check()` after each of them.
//!
//! 200,000 operations (a few seconds); the environment variable `PREFIX_INDEX_OPERATIONS` asks for
//! another number (1000000 or more in a nightly run).

#![allow(clippy::unwrap_used)]

mod contents;
mod model;
mod quarantine;
mod shelf;
mod tips;
mod verify;
mod world;

use proptest::prelude::*;

use model::Pair;
use world::World;

/// Conversation, priority, whether it resumes, and `onload_tokens_min`.
pub type AnyTurn = (u8, u8, bool, Option<usize>);

/// Namespaces and tokens are taken modulo the world's numbers of them.
#[derive(Clone, Debug)]
enum Operation {
    /// Tokens go on from a cut of an earlier path, if any.
    Admit {
        earlier: Option<(prop::sample::Index, prop::sample::Index)>,
        new: Vec<Pair>,
        room: usize,
        turn: AnyTurn,
    },
    /// A whole turn at once: fills the tree, and makes it evict. Tokens are a late path's, or go on from a cut of it.
    Serve {
        back: usize,
        cut: Option<prop::sample::Index>,
        new: Vec<Pair>,
        turn: AnyTurn,
    },
    /// Tokens go on from a released lease, the latest ones more often.
    Continue {
        back: usize,
        new: Vec<Pair>,
        room: usize,
        turn: AnyTurn,
    },
    /// Write the K/V of so many more tokens, growing if needed.
    Compute {
        lease: prop::sample::Index,
        tokens: Vec<u32>,
    },
    /// Commit all that is computed but the last `back` tokens.
    Commit {
        lease: prop::sample::Index,
        back: usize,
    },
    Release {
        lease: prop::sample::Index,
    },
    /// What was restored is doubtful from `back` positions before the end of the hit on.
    Reject {
        lease: prop::sample::Index,
        back: usize,
    },
    /// A position of an earlier path is wrong.
    Quarantine {
        which: prop::sample::Index,
        position: prop::sample::Index,
    },
    Pin {
        back: usize,
    },
    Unpin {
        back: usize,
    },
    Clear,
}

fn pairs() -> impl Strategy<Value = Vec<Pair>> {
    let stretch = (any::<u8>(), prop::collection::vec(any::<u32>(), 0..8));
    prop::collection::vec(stretch, 1..4).prop_map(|stretches| {
        let tokens = |(ns, tokens): (u8, Vec<u32>)| tokens.into_iter().map(move |t| (ns, t));
        stretches.into_iter().flat_map(tokens).collect()
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let lease = any::<prop::sample::Index>;
    let back = || prop_oneof![3 => 0_usize..3, 1 => 0_usize..20];
    let onload = || prop::option::weighted(0.8, prop_oneof![2 => Just(0), 1 => 0_usize..12]);
    let turn = move || (0_u8..4, 0_u8..3, any::<bool>(), onload());
    let earlier = prop::option::weighted(0.7, (lease(), lease()));
    prop_oneof![
        5 => (earlier, pairs(), 0_usize..6, turn())
            .prop_map(|(earlier, new, room, turn)| Operation::Admit { earlier, new, room, turn }),
        16 => (0_usize..12, prop::option::weighted(0.4, lease()), pairs(), turn())
            .prop_map(|(back, cut, new, turn)| Operation::Serve { back, cut, new, turn }),
        4 => (back(), pairs(), 0_usize..6, turn())
            .prop_map(|(back, new, room, turn)| Operation::Continue { back, new, room, turn }),
        1 => back().prop_map(|back| Operation::Pin { back }),
        1 => back().prop_map(|back| Operation::Unpin { back }),
        8 => (lease(), prop::collection::vec(any::<u32>(), 1..7))
            .prop_map(|(lease, tokens)| Operation::Compute { lease, tokens }),
        8 => (lease(), prop_oneof![3 => Just(0_usize), 1 => 1_usize..4])
            .prop_map(|(lease, back)| Operation::Commit { lease, back }),
        6 => lease().prop_map(|lease| Operation::Release { lease }),
        2 => (lease(), 0_usize..8).prop_map(|(lease, back)| Operation::Reject { lease, back }),
        1 => (lease(), lease())
            .prop_map(|(which, position)| Operation::Quarantine { which, position }),
        1 => Just(Operation::Clear),
    ]
}

/// Cases of 100 operations on average.
fn config() -> ProptestConfig {
    let asked = std::env::var("PREFIX_INDEX_OPERATIONS").ok();
    let operations = asked.map_or(200_000, |number| number.parse().unwrap());
    ProptestConfig {
        cases: operations / 100,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_operation_agrees_with_the_model_and_every_row_holds_its_prefix(
        shape in (1_usize..6, 1_usize..14, 1_u8..4, 1_u32..4),
        slots in prop_oneof![1 => Just([0, 0]), 4 => [0_u32..8, 0_u32..8]],
        operations in prop::collection::vec(operation(), 1..200),
    ) {
        let mut world = World::new(shape, slots);
        for operation in operations {
            world.run(operation);
            world.verify();
        }
        world.finish();
    }
}
