//! Chats that live in a prefix index and go on turn by turn.
//!
//! `admit` and `append_commit_release` are all that knows how the index is asked.

use appliance_core::prefix_index::{LeaseId, PrefixIndex, Prompt};

use super::Numbers;

pub const PAGE_SIZE: usize = 16;
const SYSTEM_TOKENS: usize = 512;
const NAMESPACE: &[u8] = b"tenant:1";

/// A chat that has grown by so many turns begins anew, at the length it had first: rarely, because that pushes all
/// else out of the CPU's caches.
const TURNS_GROWN_MAX: usize = 100;

/// One chat, as its caller remembers it.
struct Chat {
    /// All of its tokens, for turns that send everything; empty when no turn does.
    tokens: Vec<u32>,
    /// How many there are.
    length: usize,
    /// The number of the lease of its last turn.
    node: u64,
    turns_grown: usize,
}

/// All chats of one bench, over one system prompt, and the index they are in.
pub struct Chats {
    index: PrefixIndex,
    all: Vec<Chat>,
    history: usize,
    system: Vec<u32>,
    numbers: Numbers,
    next: usize,
    sends_everything: bool,
}

/// A turn that has been admitted.
pub struct Admitted {
    chat: usize,
    lease: LeaseId,
}

impl Chats {
    /// So many chats of `history` tokens, all in the index. There is room for those that began anew beside what
    /// they were before: what is evicted is the chat of two beginnings ago, and never one that goes on.
    ///
    /// `sends_everything`: keep the tokens for `admit_whole`.
    pub fn new(chats: usize, history: usize, sends_everything: bool) -> Self {
        let grown = history + (TURNS_GROWN_MAX + 2) * 128;
        let pages = (chats * grown).div_ceil(PAGE_SIZE) * 9 / 4;
        let mut numbers = Numbers::new(history as u64);
        let mut made = Self {
            index: PrefixIndex::new(PAGE_SIZE, pages).expect("a shape"),
            all: Vec::new(),
            history,
            system: numbers.tokens(SYSTEM_TOKENS),
            numbers,
            next: 0,
            sends_everything,
        };
        for _ in 0..chats {
            let chat = made.begun();
            made.all.push(chat);
        }
        made.index.check().expect("the index is sound");
        made
    }

    /// The chat whose turn it is, in an order without a pattern; one that has grown begins anew.
    pub fn next_chat(&mut self) -> usize {
        // A step with no common divisor with any number of chats used here.
        self.next = (self.next + 7_919) % self.all.len();
        if self.all[self.next].turns_grown >= TURNS_GROWN_MAX {
            self.all[self.next] = self.begun();
        }
        self.next
    }

    /// A turn that sends everything, as for a client that keeps its own history.
    pub fn admit_whole(&mut self, chat: usize, new: &[u32], reserve: usize) -> Admitted {
        let tokens = &mut self.all[chat].tokens;
        tokens.extend_from_slice(new);
        let prompt = Prompt {
            token_ids: tokens,
            stretches: &whole_stretches(tokens.len()),
            ..Prompt::default()
        };
        let lease = admit(&mut self.index, &prompt, tokens.len() + reserve);
        self.all[chat].length += new.len();
        Admitted { chat, lease }
    }

    /// A turn that goes on from the node that the turn before left: only what is new is sent.
    pub fn admit_after(&mut self, chat: usize, new: &[u32], reserve: usize) -> Admitted {
        let known = &mut self.all[chat];
        known.length += new.len();
        let prompt = Prompt {
            token_ids: new,
            stretches: &[(NAMESPACE, new.len())],
            after: Some(known.node),
            conversation: &(chat as u64).to_le_bytes(),
            ..Prompt::default()
        };
        let lease = admit(&mut self.index, &prompt, known.length + reserve);
        Admitted { chat, lease }
    }

    /// The tokens that follow are computed: append, commit, release.
    pub fn finish(&mut self, admitted: &Admitted, following: &[u32]) {
        let chat = &mut self.all[admitted.chat];
        if self.sends_everything {
            chat.tokens.extend_from_slice(following);
        }
        chat.length += following.len();
        chat.node = admitted.lease.number();
        chat.turns_grown += 1;
        append_commit_release(&mut self.index, admitted.lease, following, chat.length);
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
        let length = tokens.len();
        let prompt = Prompt {
            token_ids: &tokens,
            stretches: &whole_stretches(length),
            ..Prompt::default()
        };
        let lease = admit(&mut self.index, &prompt, length);
        append_commit_release(&mut self.index, lease, &[], length);
        Chat {
            tokens: if self.sends_everything {
                tokens
            } else {
                Vec::new()
            },
            length,
            node: lease.number(),
            turns_grown: 0,
        }
    }
}

fn whole_stretches(tokens: usize) -> [(&'static [u8], usize); 2] {
    [
        (b"public", SYSTEM_TOKENS),
        (NAMESPACE, tokens - SYSTEM_TOKENS),
    ]
}

fn admit(index: &mut PrefixIndex, prompt: &Prompt<'_>, reserve_tokens: usize) -> LeaseId {
    let admitted = index.admit(prompt, reserve_tokens).expect("a request");
    admitted.expect("room")
}

fn append_commit_release(
    index: &mut PrefixIndex,
    lease: LeaseId,
    following: &[u32],
    tokens: usize,
) {
    index.append(lease, following).expect("room");
    index.commit(lease, tokens).expect("computed tokens");
    index.release(lease);
}
