//! The fast way for ordinary texts of byte-level vocabularies: words looked up whole, else merged.
//!
//! It owns tables made once from the model file: the words that are one token, and which pairs merge.
//! There is no cache that grows with what users write, so no tenant's words change the time that
//! another's take. It never handles what is rare: a text that holds an added token's name, a word of more
//! than `WORD_BYTES_MAX` bytes, a normalizer on a text that is not ASCII, any other kind of model. Those go
//! the crate's way, which is the definition; at the start the two are compared (`Tokenizer::new`), and tests compare
//! them on random texts.
//!
//! The tokenizer crate takes 70 microseconds for a message of 172 characters, nearly all of them for splitting it
//! into owned strings with alignments that nobody reads; these tables take 3 to 5.

use std::collections::HashMap;

use ahash::RandomState;
use aho_corasick::AhoCorasick;
use serde_json::Value;
use tokenizers::{AddedVocabulary, ModelWrapper, NormalizerWrapper, Tokenizer as HfTokenizer};

use crate::token_table::byte_of_char;
use crate::word_split::WordSplit;

/// Merging looks at every pair for every merge: quadratic, and fast, on short words only.
const WORD_BYTES_MAX: usize = 64;

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
    words: HashMap<Box<[u8]>, u32, RandomState>,
    byte_ids: [u32; 256],
    merges: HashMap<u64, Merge, RandomState>,
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
        let names = AhoCorasick::new(names.map(|token| &token.content)).ok()?;
        let vocab = bpe.get_vocab();
        let mut byte_ids = [None; 256];
        for (token, &id) in &vocab {
            if let [byte] = *raw(token).unwrap_or_default() {
                byte_ids[usize::from(byte)] = Some(id);
            }
        }
        let mut table = Self {
            split,
            words: HashMap::with_hasher(hasher()),
            byte_ids: byte_ids
                .into_iter()
                .collect::<Option<Vec<u32>>>()?
                .try_into()
                .ok()?,
            merges: merges(json, &vocab)?,
            names,
            ascii_only,
        };
        let mut ids = Vec::new();
        for (token, id) in vocab {
            let Some(word) = raw(&token).filter(|word| word.len() <= WORD_BYTES_MAX) else {
                continue;
            };
            ids.clear();
            table.merge(&word, &mut ids);
            // Else no text gives the token by itself.
            if bpe.ignore_merges || ids == [id] {
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
                    Some(&id) => ids.push(id),
                    None if word.len() > WORD_BYTES_MAX => return false,
                    None => self.merge(word, &mut ids),
                }
                true
            })
            .then_some(ids)
    }

    /// Merge the pair of the lowest rank, the first of equals, until none is left (Sennrich et al.
    /// 2016). `word` is at most `WORD_BYTES_MAX` bytes.
    fn merge(&self, word: &[u8], ids: &mut Vec<u32>) {
        let mut symbols = [0; WORD_BYTES_MAX];
        // `pairs[i]`: what symbols i and i + 1 merge to.
        let mut pairs = [NO_MERGE; WORD_BYTES_MAX];
        let mut length = word.len();
        for (symbol, byte) in symbols.iter_mut().zip(word) {
            *symbol = self.byte_ids[usize::from(*byte)];
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
    }

    fn pair(&self, left: u32, right: u32) -> Merge {
        let key = pair_key(left, right);
        self.merges.get(&key).copied().unwrap_or(NO_MERGE)
    }
}

fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Fixed seeds: the keys are the vocabulary's, which no user chooses.
fn hasher() -> RandomState {
    RandomState::with_seeds(1, 2, 3, 4)
}

/// The bytes of a token of a byte-level vocabulary.
fn raw(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of_char).collect()
}

/// The merges of a model file, which the crate does not show. None when they are not what the crate
/// would take.
fn merges(json: &[u8], vocab: &HashMap<String, u32>) -> Option<HashMap<u64, Merge, RandomState>> {
    let file: Value = serde_json::from_slice(json).ok()?;
    let listed = file.get("model")?.get("merges")?.as_array()?;
    let mut merges = HashMap::with_capacity_and_hasher(listed.len(), hasher());
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
        merges.insert(key, Merge { rank, id });
    }
    Some(merges)
}
