//! A model's own tokenizer: text to token ids and back.
//!
//! It owns the pipeline (added tokens, normalizer, pre-tokenizer, model) of a `tokenizer.json`, the
//! rule that a content never gives a control token, and the memo of encodings. It never adds BOS or
//! EOS (the chat format is the only authority), never truncates or pads, and never sees a role.
//!
//! The `tokenizers` crate is the definition of the ids: it is what `transformers` runs. Ordinary texts of
//! byte-level vocabularies go through tables that give the same ids ten times faster (`byte_bpe`).
//!
//! Time: the crate merges with a heap (n log n in the length of an unbroken run) and the regular
//! expressions of the known pre-tokenizers are linear on such runs, so texts are not cut into pieces
//! before they are encoded: 200,000 times one character takes 0.1-0.6 s (T10, and a test measures it).

use std::panic::{AssertUnwindSafe, catch_unwind};

use thiserror::Error;
use tokenizers::{
    AddedVocabulary, Model, ModelWrapper, OffsetReferential, OffsetType, PreTokenizer,
    Tokenizer as HfTokenizer,
};

use crate::byte_bpe::ByteBpe;
use crate::control_guard::{ControlGuard, is_control_name};
use crate::memo::{Memo, MemoKey, MemoStats, SharedIds};
use crate::token_table::TokenTable;

/// The longest text to encode. The regular expression engine gives up on a run of some ten million
/// characters, and a text of this length is beyond any context window.
pub const TEXT_BYTES_MAX: usize = 8 << 20;

/// Texts on which the fast way is compared with the crate before it is taken.
const PROBES: [&str; 12] = [
    "Hello! How's it going? I'll be there at 10:45, won't I? They've said we're late; I'd say so.",
    "  two  spaces\t\ttabs \n\n\nlines\r\n  \r end   ",
    "0 12 345 6789 1234567890 3.14159 1,000,000 \u{BD} \u{663} \u{2167}",
    "def f(x: int) -> str:\n    return f\"{x!r}\"  # ok...\n\n\n<tag a='b'>&amp;</tag> || [[x]] {{y}} __z__",
    "Gr\u{F6}\u{DF}e, na\u{EF}ve caf\u{E9} e\u{301} \u{395}\u{3BB}\u{3BB}\u{3B7}\u{3BD}\u{3B9}\u{3BA}\u{3AC} \u{420}\u{443}\u{441}\u{441}\u{43A}\u{438}\u{439}",
    "\u{4F60}\u{597D}\u{4E16}\u{754C}\u{3002} \u{65E5}\u{672C}\u{8A9E}\u{3001} \u{D55C}\u{AD6D}\u{C5B4} \u{627}\u{644}\u{639}\u{631}\u{628}\u{64A}\u{629} \u{939}\u{93F}\u{928}\u{94D}\u{926}\u{940}",
    "\u{1F600}\u{1F642} \u{1F469}\u{200D}\u{1F467} \u{1F1E8}\u{1F1E9}\u{FE0F} !\u{1F600}x\u{1F600} 1\u{1F600}2",
    "\0\u{1}\u{7F} \u{85}\u{A0}\u{3000} \u{2028}\u{FEFF}x\u{202E} \u{FFFD}\u{10FFFF}",
    "'S 'LL 'Re x's'tt '\u{17F} it''s ''ll 'r 'v 'l '",
    "<|im_ end|> < |start| > </s> <s> [INST] <0x0A>",
    "aaaaaaaaaaaaaaaa bbbbbbbbbbbbbbb ================ ---------- abababababababab",
    "",
];

/// What can go wrong with a tokenizer.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TokenizerError {
    /// The JSON does not describe a tokenizer.
    #[error("malformed: {0}")]
    NotATokenizer(String),
    /// The decoder cannot be applied token by token.
    #[error("the tokenizer's decoder is not supported: {0}")]
    UnsupportedDecoder(String),
    /// An id that the vocabulary does not hold.
    #[error("token id {0} is not in the vocabulary")]
    UnknownId(u32),
    /// Ids to be remembered for a text that they do not decode to.
    #[error("the token ids do not decode to the text")]
    OtherText,
    /// A text of so many bytes, more than `TEXT_BYTES_MAX`.
    #[error("a text of {0} bytes is longer than {TEXT_BYTES_MAX}")]
    TextTooLong(usize),
    /// A content that cannot be written without a control token.
    #[error("the text cannot be encoded without control token {0}")]
    ControlTokenInText(u32),
    /// A stop string that would stop everything.
    #[error("a stop string is empty")]
    EmptyStop,
    /// Tokens pushed after the end of a reply.
    #[error("the reply is finished")]
    Finished,
    /// The crate failed on a text: a bug, never the caller's fault.
    #[error("the tokenizer failed: {0}")]
    Failed(String),
}

/// A tokenizer with its memo. Thread-safe.
pub struct Tokenizer {
    pipeline: HfTokenizer,
    /// As the file has it: a control token's name gives the control token.
    template_tokens: AddedVocabulary,
    /// Control tokens off.
    content_tokens: AddedVocabulary,
    guard: ControlGuard,
    fast: Option<ByteBpe>,
    unknown_id: Option<u32>,
    table: TokenTable,
    memo: Memo,
    fingerprint: String,
}

impl Tokenizer {
    /// Read a `tokenizer.json`; its truncation, padding, dropout and post-processor are not used.
    ///
    /// # Errors
    /// `NotATokenizer`, `UnsupportedDecoder`.
    pub fn new(json: &[u8], memo_bytes_max: usize) -> Result<Self, TokenizerError> {
        let fingerprint = blake3::hash(json).to_hex().to_string();
        // The crate's deserializers panic on some malformed files.
        let read = catch_unwind(|| HfTokenizer::from_bytes(json))
            .map_err(|_| TokenizerError::NotATokenizer("malformed part".to_owned()))?;
        let mut pipeline =
            read.map_err(|error| TokenizerError::NotATokenizer(error.to_string()))?;
        make_deterministic(&mut pipeline);
        let template_tokens = with_control_names(&pipeline)?;
        let mut content_tokens = template_tokens.clone();
        content_tokens.set_encode_special_tokens(true);
        let table = TokenTable::new(&pipeline, &template_tokens)?;
        let guard = ControlGuard::new(pipeline.get_model(), &template_tokens, &table);
        let fast = ByteBpe::read(json, &pipeline, &template_tokens);
        let mut tokenizer = Self {
            unknown_id: unknown_id(pipeline.get_model()),
            pipeline,
            template_tokens,
            content_tokens,
            guard,
            fast: None,
            table,
            memo: Memo::new(memo_bytes_max),
            fingerprint,
        };
        tokenizer.fast = fast.filter(|fast| tokenizer.agrees(fast));
        Ok(tokenizer)
    }

    /// Whether the fast way gives what the crate gives.
    fn agrees(&self, fast: &ByteBpe) -> bool {
        PROBES.iter().all(|probe| {
            let slow = self.encode_with(&self.content_tokens, Some(&self.guard), probe);
            fast.encode(probe).is_none_or(|ids| Ok(ids) == slow)
        })
    }

    /// Whether ordinary texts go the fast way (`byte_bpe`).
    pub fn is_fast(&self) -> bool {
        self.fast.is_some()
    }

    /// One more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        self.table.vocab_size()
    }

    /// BLAKE3 of the JSON, hex.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// What each token adds to a text.
    pub fn table(&self) -> &TokenTable {
        &self.table
    }

    /// The id of a token by its name in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.pipeline.token_to_id(token)
    }

    /// Counters of the memo.
    pub fn memo_stats(&self) -> MemoStats {
        self.memo.stats()
    }

    /// Ids of a content: a control token's name in it is plain text. A text remembered under the same
    /// namespace gives the remembered ids.
    ///
    /// # Errors
    /// `TextTooLong`; `ControlTokenInText` where the vocabulary has no other way to write the text;
    /// `Failed`.
    pub fn encode(&self, text: &str, namespace: &[u8]) -> Result<SharedIds, TokenizerError> {
        let key = MemoKey::new(namespace, text);
        if let Some(ids) = self.memo.get(&key) {
            return Ok(ids);
        }
        let ids: SharedIds = match self.encode_fast(text) {
            Some(ids) => ids,
            None => self.encode_with(&self.content_tokens, Some(&self.guard), text)?,
        }
        .into();
        self.memo.insert_if_absent(key, &ids);
        Ok(ids)
    }

    /// Ids of a chat format's own text, in which control tokens count.
    ///
    /// # Errors
    /// `TextTooLong`, `Failed`.
    pub fn encode_template(&self, text: &str) -> Result<SharedIds, TokenizerError> {
        Ok(self.encode_with(&self.template_tokens, None, text)?.into())
    }

    /// Make `encode(text, namespace)` return these ids.
    ///
    /// Ids with a control token among them are not kept: it adds nothing to the text, so the check of
    /// the text would let it through, and then a message of that text would bring it into a prompt.
    ///
    /// # Errors
    /// `UnknownId`, `OtherText`.
    pub fn remember(
        &self,
        namespace: &[u8],
        text: &str,
        ids: &[u32],
    ) -> Result<(), TokenizerError> {
        if self.decode(ids)? != text {
            return Err(TokenizerError::OtherText);
        }
        if !ids.iter().any(|&id| self.table.is_control(id)) {
            self.memo
                .replace(MemoKey::new(namespace, text), &ids.into());
        }
        Ok(())
    }

    /// The text of the ids. Bytes that are not UTF-8 become U+FFFD as in Python's
    /// `bytes.decode("utf-8", "replace")`; control tokens add nothing.
    ///
    /// # Errors
    /// `UnknownId`.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let bytes = self.table.text_bytes(ids)?;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Ids of an ordinary text. The guard's names are among those that make a text another one, and
    /// what still gives a control token is left to the way that says so.
    fn encode_fast(&self, text: &str) -> Option<Vec<u32>> {
        let fast = self
            .fast
            .as_ref()
            .filter(|_| text.len() <= TEXT_BYTES_MAX)?;
        let ids = fast.encode(text)?;
        let plain = !ids.iter().any(|&id| self.table.is_control(id));
        plain.then_some(ids)
    }

    fn encode_with(
        &self,
        added: &AddedVocabulary,
        guard: Option<&ControlGuard>,
        text: &str,
    ) -> Result<Vec<u32>, TokenizerError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TokenizerError::TextTooLong(text.len()));
        }
        // The crate unwraps here and there; a panic must not reach Python nor poison anything of ours.
        catch_unwind(AssertUnwindSafe(|| self.run_pipeline(added, guard, text)))
            .unwrap_or_else(|_| Err(TokenizerError::Failed("panic".to_owned())))
    }

    /// What the crate's `encode_fast` does, without its post-processor, and with the guard between
    /// pre-tokenizer and model.
    fn run_pipeline(
        &self,
        added: &AddedVocabulary,
        guard: Option<&ControlGuard>,
        text: &str,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut splits = added.extract_and_normalize(self.pipeline.get_normalizer(), text);
        if let Some(pre_tokenizer) = self.pipeline.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut splits).map_err(failed)?;
        }
        let model = self.pipeline.get_model();
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        for (split, _, tokens) in splits.get_splits(OffsetReferential::Normalized, OffsetType::None)
        {
            match (tokens, guard) {
                (Some(tokens), _) => ids.extend(tokens.iter().map(|token| token.id)),
                (None, None) => {
                    ids.extend(model.tokenize(split).map_err(failed)?.iter().map(|t| t.id));
                }
                (None, Some(guard)) => {
                    for piece in guard.pieces(split) {
                        for token in model.tokenize(piece).map_err(failed)? {
                            self.check_plain(token.id)?;
                            ids.push(token.id);
                        }
                    }
                }
            }
        }
        Ok(ids)
    }

    fn check_plain(&self, id: u32) -> Result<(), TokenizerError> {
        if self.table.is_control(id) && Some(id) != self.unknown_id {
            return Err(TokenizerError::ControlTokenInText(id));
        }
        Ok(())
    }
}

fn failed(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Failed(error.to_string())
}

/// One text, one encoding: switch off what a training run may have left in the file.
fn make_deterministic(pipeline: &mut HfTokenizer) {
    match pipeline.get_model() {
        ModelWrapper::BPE(bpe) if bpe.dropout.is_some() => {
            let mut bpe = bpe.clone();
            bpe.dropout = None;
            pipeline.with_model(bpe);
        }
        ModelWrapper::Unigram(unigram) if unigram.alpha.is_some() => {
            let mut unigram = unigram.clone();
            unigram.alpha = None;
            pipeline.with_model(unigram);
        }
        _ => {}
    }
}

/// The added tokens, those with a control token's name marked special even where the file forgot.
fn with_control_names(pipeline: &HfTokenizer) -> Result<AddedVocabulary, TokenizerError> {
    let mut added = pipeline.get_added_vocabulary().clone();
    let mut renamed = Vec::new();
    for token in added.get_added_tokens_decoder().values() {
        if !token.special && is_control_name(&token.content) {
            renamed.push(token.clone().special(true));
        }
    }
    added
        .add_tokens(renamed, pipeline.get_model(), pipeline.get_normalizer())
        .map_err(|error| TokenizerError::NotATokenizer(error.to_string()))?;
    Ok(added)
}

/// The id the model gives to what it cannot write, if it has one: seen on a character that no
/// vocabulary holds (U+10FFFF is a noncharacter), since not every model of the crate tells.
fn unknown_id(model: &ModelWrapper) -> Option<u32> {
    match model.tokenize("\u{10FFFF}").ok()?.as_slice() {
        [token] => Some(token.id),
        _ => None,
    }
}
