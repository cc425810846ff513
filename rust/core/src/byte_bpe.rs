//! The fast way for ordinary texts of byte-level vocabularies: words looked up whole, else merged.
//!
//! It owns tables made once from the model file: the words that are one token, and which pairs merge.
//! There is no cache that grows with what users write, so no tenant's words change the time that
//! another's take. It never handles what is rare: a text that holds an added token's name or a byte
//! without a token, a normalizer on a text that is not ASCII, any other kind of model. Those go the
//! crate's way, which is the definition; at the start the two are compared (`Tokenizer::new`), and tests
//! compare them on random texts.
//!
//! Why tables of our own: the tokenizer crate takes 70 microseconds for a message of 172 characters,
//! nearly all for splitting it into owned strings with alignments that nobody reads. Of the faster
//! crates, `tokie` gives other ids for some texts, and `fastokens` is exact but has no fast way through
//! the pre-tokenizer of SmolLM2 (docs/architecture.md has the figures).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;

use aho_corasick::AhoCorasick;
use serde_json::Value;
use tokenizers::{AddedVocabulary, ModelWrapper, NormalizerWrapper, Tokenizer as HfTokenizer};

use crate::own_map::OwnMap;
use crate::token_table::byte_of_char;
use crate::word_split::WordSplit;

/// Up to here a word is merged by looking at every pair for every merge: quadratic, and fast, on short
/// words only. Longer ones (a sentence of Chinese, a run of one character) take a heap.
const SHORT_WORD_BYTES_MAX: usize = 32;

/// A pair that merges: its rank (the lowest goes first), and what it becomes.
#[derive(Clone, Copy)]
struct Merge {
    rank: u32,
    id: u32,
}

const NO_MERGE: Merge = Merge {
    rank: u32::MAX,
    id: 0,
};

/// The tables of one vocabulary.
pub struct ByteBpe {
    split: WordSplit,
    words: OwnMap<Box<[u8]>, u32>,
    /// Bytes without a token are those that no UTF-8 has, or a text with one is not ordinary.
    byte_ids: [Option<u32>; 256],
    merges: OwnMap<u64, Merge>,
    /// Names of added tokens: a text that holds one is not ordinary.
    names: AhoCorasick,
    ascii_only: bool,
}

impl ByteBpe {
    /// The tables of a tokenizer; None when it is of another kind. `json` is the file that `pipeline`
    /// was read from.
    pub fn read(json: &[u8], pipeline: &HfTokenizer, added: &AddedVocabulary) -> Option<Self> {
        let ModelWrapper::BPE(bpe) = pipeline.get_model() else {
            return None;
        };
        let affixes = [bpe.get_continuing_subword_prefix(), &bpe.end_of_word_suffix];
        if affixes
            .iter()
            .any(|affix| affix.as_ref().is_some_and(|text| !text.is_empty()))
        {
            return None;
        }
        let ascii_only = match pipeline.get_normalizer() {
            None => false,
            // Leaves ASCII as it is.
            Some(NormalizerWrapper::NFC(_)) => true,
            Some(_) => return None,
        };
        let split = WordSplit::read(pipeline.get_pre_tokenizer()?)?;
        let names = added.get_added_tokens_decoder().values();
        let names: Vec<&str> = names.map(|token| token.content.as_str()).collect();
        if ascii_only && !names.iter().all(|name| name.is_ascii()) {
            return None; // NFC makes ASCII of some, the Kelvin sign for one
        }
        let names = AhoCorasick::new(names).ok()?;
        let vocab = bpe.get_vocab();
        let mut byte_ids = [None; 256];
        for (token, &id) in &vocab {
            if let [byte] = *raw(token).unwrap_or_default() {
                byte_ids[usize::from(byte)] = Some(id);
            }
        }
        let mut table = Self {
            split,
            words: OwnMap::default(),
            byte_ids,
            merges: merges(json, &vocab)?,
            names,
            ascii_only,
        };
        let mut ids = Vec::new();
        for (token, id) in vocab {
            let Some(word) = raw(&token) else { continue };
            ids.clear();
            let is_written = table.merge(&word, &mut ids);
            // Else no text gives the token by itself.
            if bpe.ignore_merges || (is_written && ids == [id]) {
                table.words.insert(word.into(), id);
            }
        }
        Some(table)
    }

    /// The ids of an ordinary text; None when it is none.
    pub fn encode(&self, text: &str) -> Option<Vec<u32>> {
        if (self.ascii_only && !text.is_ascii()) || self.names.is_match(text) {
            return None;
        }
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        self.split
            .each_word(text, |word| {
                let word = word.as_bytes();
                match self.words.get(word) {
                    Some(&id) => {
                        ids.push(id);
                        true
                    }
                    None => self.merge(word, &mut ids),
                }
            })
            .then_some(ids)
    }

    /// Merge the pair of the lowest rank, the first of equals, until none is left (Sennrich et al.
    /// 2016). False when a byte of the word has no token.
    fn merge(&self, word: &[u8], ids: &mut Vec<u32>) -> bool {
        if word.len() <= SHORT_WORD_BYTES_MAX {
            self.merge_short(word, ids)
        } else {
            self.merge_long(word, ids)
        }
    }

    fn merge_short(&self, word: &[u8], ids: &mut Vec<u32>) -> bool {
        let mut symbols = [0; SHORT_WORD_BYTES_MAX];
        // `pairs[i]`: what symbols i and i + 1 merge to.
        let mut pairs = [NO_MERGE; SHORT_WORD_BYTES_MAX];
        let mut length = word.len();
        for (symbol, byte) in symbols.iter_mut().zip(word) {
            let Some(id) = self.byte_ids[usize::from(*byte)] else {
                return false;
            };
            *symbol = id;
        }
        for at in 1..length {
            pairs[at - 1] = self.pair(symbols[at - 1], symbols[at]);
        }
        while length > 1 {
            let mut at = 0;
            for other in 1..length - 1 {
                if pairs[other].rank < pairs[at].rank {
                    at = other;
                }
            }
            if pairs[at].rank == NO_MERGE.rank {
                break;
            }
            symbols[at] = pairs[at].id;
            symbols.copy_within(at + 2..length, at + 1);
            pairs.copy_within(at + 1..length - 1, at);
            length -= 1;
            pairs[length - 1] = NO_MERGE;
            if at > 0 {
                pairs[at - 1] = self.pair(symbols[at - 1], symbols[at]);
            }
            if at + 1 < length {
                pairs[at] = self.pair(symbols[at], symbols[at + 1]);
            }
        }
        ids.extend_from_slice(&symbols[..length]);
        true
    }

    /// n log n in the length of the word.
    fn merge_long(&self, word: &[u8], ids: &mut Vec<u32>) -> bool {
        let bytes = word.iter().map(|byte| self.byte_ids[usize::from(*byte)]);
        // None once a symbol went into the one before it.
        let Some(mut symbols) = bytes.map(|id| id.map(Some)).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let mut next: Vec<usize> = (1..=word.len()).collect();
        let mut before: Vec<usize> = (0..word.len()).map(|at| at.saturating_sub(1)).collect();
        let pair_at = |symbols: &[Option<u32>], next: &[usize], at: usize| {
            let right = *symbols.get(next[at])?;
            Some(self.pair(symbols[at]?, right?)).filter(|merge| merge.rank != NO_MERGE.rank)
        };
        let mut heap: BinaryHeap<Reverse<(u32, usize)>> = (0..word.len())
            .filter_map(|at| Some(Reverse((pair_at(&symbols, &next, at)?.rank, at))))
            .collect();
        while let Some(Reverse((rank, at))) = heap.pop() {
            // A rank is that of one pair: another rank now means that the pair is gone.
            let Some(merge) = pair_at(&symbols, &next, at).filter(|now| now.rank == rank) else {
                continue;
            };
            let gone = next[at];
            symbols[at] = Some(merge.id);
            symbols[gone] = None;
            next[at] = next[gone];
            if let Some(behind) = before.get_mut(next[at]) {
                *behind = at;
            }
            let left = (at > 0).then(|| before[at]);
            for changed in left.into_iter().chain([at]) {
                if let Some(merge) = pair_at(&symbols, &next, changed) {
                    heap.push(Reverse((merge.rank, changed)));
                }
            }
        }
        ids.extend(symbols.into_iter().flatten());
        true
    }

    fn pair(&self, left: u32, right: u32) -> Merge {
        let key = pair_key(left, right);
        self.merges.get(&key).copied().unwrap_or(NO_MERGE)
    }
}

fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// The bytes of a token of a byte-level vocabulary.
fn raw(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of_char).collect()
}

/// The merges of a model file, which the crate does not show. None when they are not what the crate
/// would take.
fn merges(json: &[u8], vocab: &HashMap<String, u32>) -> Option<OwnMap<u64, Merge>> {
    let file: Value = serde_json::from_slice(json).ok()?;
    let listed = file.get("model")?.get("merges")?.as_array()?;
    let mut merges = OwnMap::with_capacity_and_hasher(listed.len(), BuildHasherDefault::default());
    for (rank, merge) in (0..).zip(listed) {
        let (left, right) = match merge {
            Value::String(pair) => pair.split_once(' ')?,
            Value::Array(pair) => match pair.as_slice() {
                [left, right] => (left.as_str()?, right.as_str()?),
                _ => return None,
            },
            _ => return None,
        };
        let key = pair_key(*vocab.get(left)?, *vocab.get(right)?);
        let id = *vocab.get(&format!("{left}{right}"))?;
        // A pair that is listed twice has the later rank, as in the crate.
        merges.insert(key, Merge { rank, id });
    }
    Some(merges)
}
