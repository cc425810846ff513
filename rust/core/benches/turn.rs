//! The control path of one turn of a long chat, on one core:
//!
//! encode a message that nobody sent before (172 characters), go on from the known node, push a
//! 40-token reply through the stream decoder token by token, append and commit, release.
//!
//! `cargo bench -p appliance-core --bench turn`. `residents`: how many chats of 9,000 tokens (180
//! messages) are in the index. `histories`: ten chats of so many tokens each; the time must not grow.
//! `part_*`: the turn's parts alone.

mod support;

use std::cell::RefCell;
use std::sync::Arc;

use appliance_core::stream_decoder::StreamDecoder;
use appliance_core::tokenizer::Tokenizer;
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};

use support::Numbers;
use support::chats::Chats;
use support::text::{message, tokenizer};

const HISTORY: usize = 9_000;
const REPLY_TOKENS: usize = 40;

fn main() {
    divan::main();
}

/// What the server and engine have at hand when a message comes.
struct Workplace {
    tokenizer: Arc<Tokenizer>,
    numbers: Numbers,
    /// `<|im_end|>\n<|im_start|>user\n` and `<|im_end|>\n<|im_start|>assistant\n`.
    before_message: Vec<u32>,
    before_reply: Vec<u32>,
    /// A reply, ended: real text, so that the decoder has real characters.
    reply: Vec<u32>,
}

impl Workplace {
    fn new() -> Self {
        let tokenizer = tokenizer();
        let piece = |text: &str| tokenizer.encode_template(text).expect("a piece").to_vec();
        let mut numbers = Numbers::new(1);
        let mut reply = Vec::new();
        while reply.len() < REPLY_TOKENS {
            let text = message(&mut numbers);
            reply.extend_from_slice(&tokenizer.encode(&text, b"").expect("ids"));
        }
        reply.truncate(REPLY_TOKENS);
        Self {
            before_message: piece("\n<|im_start|>user\n"),
            before_reply: piece("<|im_end|>\n<|im_start|>assistant\n"),
            numbers,
            reply,
            tokenizer,
        }
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        let content = self.tokenizer.encode(text, b"tenant:1").expect("ids");
        [&self.before_message, &*content, &self.before_reply].concat()
    }

    fn decode(&self) {
        let stops: [&str; 0] = [];
        let decoder = StreamDecoder::new(Arc::clone(&self.tokenizer), &stops);
        let mut decoder = decoder.expect("no stop strings");
        for id in &self.reply {
            black_box(decoder.push(&[*id]).expect("a known id"));
        }
        black_box(decoder.finish());
    }
}

fn whole_turn(bencher: Bencher, resident: usize, history: usize) {
    let mut workplace = Workplace::new();
    let mut numbers = std::mem::replace(&mut workplace.numbers, Numbers::new(0));
    let chats = RefCell::new(Chats::new(resident, history, false));
    bencher
        .counter(ItemsCount::new(1usize))
        .with_inputs(|| (chats.borrow_mut().next_chat(), message(&mut numbers)))
        .bench_local_values(|(chat, text)| {
            let chats = &mut *chats.borrow_mut();
            let new = workplace.encode(&text);
            let admitted = chats.admit_after(chat, &new, REPLY_TOKENS);
            workplace.decode();
            chats.finish(&admitted, &workplace.reply);
        });
    assert!(chats.borrow().hit_share() > 0.1, "chats are found");
}

/// Enough turns that each of the chats has some.
#[divan::bench(args = [10, 10_000], sample_count = 2_000, sample_size = 16)]
fn residents(bencher: Bencher, resident: usize) {
    whole_turn(bencher, resident, HISTORY);
}

#[divan::bench(args = [1_024, 2_048, 4_096, 9_000, 16_384, 32_768], sample_count = 200, sample_size = 16)]
fn histories(bencher: Bencher, history: usize) {
    whole_turn(bencher, 10, history);
}

#[divan::bench(sample_count = 200, sample_size = 16)]
fn part_encode(bencher: Bencher) {
    let mut workplace = Workplace::new();
    let mut numbers = std::mem::replace(&mut workplace.numbers, Numbers::new(0));
    bencher
        .counter(ItemsCount::new(1usize))
        .with_inputs(|| message(&mut numbers))
        .bench_local_values(|text| workplace.encode(&text));
}

#[divan::bench(sample_count = 200, sample_size = 16)]
fn part_decode(bencher: Bencher) {
    let workplace = Workplace::new();
    bencher
        .counter(ItemsCount::new(1usize))
        .bench_local(|| workplace.decode());
}

#[divan::bench(args = [10, 10_000], sample_count = 2_000, sample_size = 16)]
fn part_index(bencher: Bencher, resident: usize) {
    let chats = RefCell::new(Chats::new(resident, HISTORY, false));
    let numbers = RefCell::new(Numbers::new(2));
    let reply = Numbers::new(3).tokens(REPLY_TOKENS);
    bencher
        .counter(ItemsCount::new(1usize))
        .with_inputs(|| {
            let new = numbers.borrow_mut().tokens(50);
            (chats.borrow_mut().next_chat(), new)
        })
        .bench_local_values(|(chat, new)| {
            let chats = &mut *chats.borrow_mut();
            let admitted = chats.admit_after(chat, &new, REPLY_TOKENS);
            chats.finish(&admitted, &reply);
        });
}
