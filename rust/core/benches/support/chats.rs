//! Chats that live in a prefix index and go on turn by turn.
//!
//! `finish` and `admit` are all that knows how the index is asked.

use appliance_core::prefix_index::{LeaseId, PrefixIndex};

use super::Numbers;

pub const PAGE_SIZE: usize = 16;
const SYSTEM_TOKENS: usize = 512;
const NAMESPACE: &[u8] = b"tenant:1";

/// A chat that has grown by so many turns begins anew, at the length it had first.
const TURNS_GROWN_MAX: usize = 10;

/// One chat, as its caller remembers it.
struct Chat {
    tokens: Vec<u32>,
    turns_grown: usize,
}

/// All chats of one bench, over one system prompt, and the index they are in.
pub struct Chats {
    index: PrefixIndex,
    chats: Vec<Chat>,
    history: usize,
    system: Vec<u32>,
    numbers: Numbers,
    next: usize,
}

/// A turn that has been admitted.
pub struct Admitted {
    chat: usize,
    lease: LeaseId,
}

impl Chats {
    /// So many chats of `history` tokens, all in the index, with room for a fourth more.
    pub fn new(chats: usize, history: usize) -> Self {
        let grown = history + (TURNS_GROWN_MAX + 2) * 128;
        let pages = (chats * grown).div_ceil(PAGE_SIZE) * 5 / 4;
        let mut numbers = Numbers::new(history as u64);
        let mut made = Self {
            index: PrefixIndex::new(PAGE_SIZE, pages).expect("a shape"),
            chats: Vec::new(),
            history,
            system: numbers.tokens(SYSTEM_TOKENS),
            numbers,
            next: 0,
        };
        for _ in 0..chats {
            let chat = made.begun();
            made.chats.push(chat);
        }
        made.index.check().expect("the index is sound");
        made
    }

    /// The chat whose turn it is, in an order without a pattern; one that has grown begins anew.
    pub fn next_chat(&mut self) -> usize {
        // A step with no common divisor with any number of chats used here.
        self.next = (self.next + 7_919) % self.chats.len();
        if self.chats[self.next].turns_grown >= TURNS_GROWN_MAX {
            self.chats[self.next] = self.begun();
        }
        self.next
    }

    /// A turn that sends everything, as for a client that keeps its own history.
    pub fn admit_whole(&mut self, chat: usize, new: &[u32], reserve: usize) -> Admitted {
        let tokens = &mut self.chats[chat].tokens;
        tokens.extend_from_slice(new);
        let stretches = [
            (b"public".as_slice(), SYSTEM_TOKENS),
            (NAMESPACE, tokens.len() - SYSTEM_TOKENS),
        ];
        let admitted = self
            .index
            .admit(tokens, &stretches, tokens.len() + reserve)
            .expect("a request");
        let lease = admitted.expect("room");
        Admitted { chat, lease }
    }

    /// A turn that goes on from the node that the turn before left: only what is new is sent.
    pub fn admit_after(&mut self, chat: usize, new: &[u32], reserve: usize) -> Admitted {
        self.admit_whole(chat, new, reserve)
    }

    /// The tokens that follow are computed: append, commit, release.
    pub fn finish(&mut self, admitted: &Admitted, following: &[u32]) {
        let chat = &mut self.chats[admitted.chat];
        chat.tokens.extend_from_slice(following);
        chat.turns_grown += 1;
        self.index
            .commit(admitted.lease, &chat.tokens)
            .expect("a commit");
        self.index.release(admitted.lease);
    }

    /// Tokens of admitted prompts that were found in the index, in part of all.
    pub fn hit_share(&self) -> f64 {
        let stats = self.index.stats();
        #[expect(clippy::cast_precision_loss, reason = "a share for people")]
        let share = stats.hit_tokens as f64 / (stats.hit_tokens + stats.miss_tokens) as f64;
        share
    }

    fn begun(&mut self) -> Chat {
        let mut tokens = self.system.clone();
        tokens.extend(self.numbers.tokens(self.history - SYSTEM_TOKENS));
        let stretches = [
            (b"public".as_slice(), SYSTEM_TOKENS),
            (NAMESPACE, tokens.len() - SYSTEM_TOKENS),
        ];
        let admitted = self
            .index
            .admit(&tokens, &stretches, tokens.len())
            .expect("a request");
        let lease = admitted.expect("room");
        self.index.commit(lease, &tokens).expect("a commit");
        self.index.release(lease);
        Chat {
            tokens,
            turns_grown: 0,
        }
    }
}
