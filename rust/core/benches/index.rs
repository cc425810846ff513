//! Match and insert of chats that go on turn by turn, in Rust alone: the counterpart of
//! `python -m bench.index`, whose shapes these are (8,512 tokens, about 100 more a turn).
//!
//! `whole`: the turn sends the whole prompt. `known`: it goes on from the node of the turn before.

mod support;

use std::cell::RefCell;

use divan::Bencher;
use divan::counter::ItemsCount;

use support::Numbers;
use support::chats::{Admitted, Chats};

const HISTORY: usize = 8_512;
const TURN_TOKENS: usize = 50;

fn main() {
    divan::main();
}

type Admit = fn(&mut Chats, usize, &[u32], usize) -> Admitted;

fn turns(bencher: Bencher, resident: usize, admit: Admit, sends_everything: bool) {
    let chats = RefCell::new(Chats::new(resident, HISTORY, sends_everything));
    let numbers = RefCell::new(Numbers::new(4));
    let reply = Numbers::new(5).tokens(TURN_TOKENS);
    bencher
        .counter(ItemsCount::new(1usize))
        .with_inputs(|| {
            let new = numbers.borrow_mut().tokens(TURN_TOKENS);
            (chats.borrow_mut().next_chat(), new)
        })
        .bench_local_values(|(chat, new)| {
            let chats = &mut *chats.borrow_mut();
            let admitted = admit(chats, chat, &new, TURN_TOKENS);
            chats.finish(&admitted, &reply);
        });
}

#[divan::bench(args = [10, 100, 1_000], sample_count = 200, sample_size = 16)]
fn whole(bencher: Bencher, resident: usize) {
    turns(bencher, resident, Chats::admit_whole, true);
}

#[divan::bench(args = [10, 100, 1_000], sample_count = 200, sample_size = 16)]
fn known(bencher: Bencher, resident: usize) {
    turns(bencher, resident, Chats::admit_after, false);
}
