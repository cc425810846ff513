//! The token table: which bytes each token id adds to a text.
//!
//! It owns the reading of a tokenizer's decoder as a rule per token, so that a reply is decoded token
//! by token with constant work, and the exception at the start of a text (SentencePiece drops the
//! space it put there). It never encodes, and never sees more than one token at a time.

use std::collections::HashMap;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::metaspace::PrependScheme;
use tokenizers::{AddedVocabulary, Decoder, Tokenizer as HfTokenizer};

use crate::tokenizer::TokenizerError;

/// Far above any vocabulary; a table of more ids comes from a broken file.
const TOKEN_IDS_MAX: u32 = 1 << 24;

/// What is still taken off at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// Nothing (any more).
    Keep,
    /// Up to `count` leading bytes equal to `byte` (decoder `Strip` after `Fuse`).
    Strip {
        /// An ASCII character.
        byte: u8,
        /// How many may still go.
        count: usize,
    },
    /// Every space mark of the first token (decoder `Metaspace`).
    DropMarks,
}

/// One step of a decoder that looks at a single token.
enum Stage {
    Replace(DecoderWrapper),
    ByteFallback,
    Metaspace(char),
    ByteLevel,
}

/// A decoder, read as a rule per token.
struct Rule {
    stages: Vec<Stage>,
    head: Head,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Absent,
    Control,
    Text,
}

/// The bytes of every token, by id.
pub struct TokenTable {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    kinds: Vec<Kind>,
    head: Head,
    /// What tokens with a space mark add as the first token, under `Head::DropMarks`.
    first_forms: HashMap<u32, Box<[u8]>>,
    byte_fallback: bool,
}

impl TokenTable {
    /// Read the decoder and apply it to each token.
    ///
    /// # Errors
    /// `UnsupportedDecoder` when a token's text depends on more than its place at the start.
    pub fn new(tokenizer: &HfTokenizer, added: &AddedVocabulary) -> Result<Self, TokenizerError> {
        let rule = Rule::read(tokenizer.get_decoder())?;
        let last_id = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        if last_id >= TOKEN_IDS_MAX {
            return Err(TokenizerError::NotATokenizer(format!(
                "token id {last_id} is out of range"
            )));
        }
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(last_id as usize + 1),
            kinds: Vec::with_capacity(last_id as usize + 1),
            head: rule.head,
            first_forms: HashMap::new(),
            byte_fallback: rule.byte_fallback(),
        };
        for id in 0..=last_id {
            let is_control = added
                .get_added_tokens_decoder()
                .get(&id)
                .is_some_and(|token| token.special);
            let kind = match tokenizer.id_to_token(id) {
                None => Kind::Absent,
                Some(_) if is_control => Kind::Control,
                Some(token) => {
                    let bytes = rule.text(&token, false)?;
                    let first = rule.text(&token, true)?;
                    if first != bytes {
                        table.first_forms.insert(id, first.into());
                    }
                    table.bytes.extend(bytes);
                    Kind::Text
                }
            };
            table.kinds.push(kind);
            table.ends.push(table.bytes.len());
        }
        Ok(table)
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.ends.len()
    }

    /// What is taken off at the start of a text.
    pub fn head(&self) -> Head {
        self.head
    }

    /// Whether `<0xNN>` pieces stand for bytes.
    pub fn byte_fallback(&self) -> bool {
        self.byte_fallback
    }

    /// Whether the id is a control token, which adds nothing to a text.
    pub fn is_control(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&Kind::Control)
    }

    /// The bytes a token adds anywhere but at the start of a text.
    ///
    /// # Errors
    /// `UnknownId`.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        match self.kinds.get(id as usize) {
            None | Some(Kind::Absent) => Err(TokenizerError::UnknownId(id)),
            Some(_) => {
                let index = id as usize;
                let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
                Ok(&self.bytes[start..self.ends[index]])
            }
        }
    }

    /// Append what a token adds to a text of which `head` is the state; returns how many bytes.
    ///
    /// # Errors
    /// `UnknownId`, with nothing changed.
    pub fn append(
        &self,
        id: u32,
        head: &mut Head,
        out: &mut Vec<u8>,
    ) -> Result<usize, TokenizerError> {
        let mut bytes = self.token_bytes(id)?;
        match head {
            Head::Keep => {}
            Head::Strip { byte, count } => {
                while *count > 0 && bytes.first() == Some(byte) {
                    bytes = &bytes[1..];
                    *count -= 1;
                }
                if *count == 0 || !bytes.is_empty() {
                    *head = Head::Keep;
                }
            }
            Head::DropMarks => {
                if !self.is_control(id) {
                    *head = Head::Keep;
                    if let Some(form) = self.first_forms.get(&id) {
                        bytes = form;
                    }
                }
            }
        }
        out.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// The bytes of a whole text.
    ///
    /// # Errors
    /// `UnknownId`.
    pub fn text_bytes(&self, ids: &[u32]) -> Result<Vec<u8>, TokenizerError> {
        let mut head = self.head;
        let mut out = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            self.append(id, &mut head, &mut out)?;
        }
        Ok(out)
    }
}

impl Rule {
    fn read(decoder: Option<&DecoderWrapper>) -> Result<Self, TokenizerError> {
        let mut rule = Self {
            stages: Vec::new(),
            head: Head::Keep,
        };
        let mut fused = false;
        match decoder {
            None => return Err(unsupported("none")),
            Some(decoder) => rule.add(decoder, &mut fused)?,
        }
        Ok(rule)
    }

    fn add(&mut self, decoder: &DecoderWrapper, fused: &mut bool) -> Result<(), TokenizerError> {
        match decoder {
            DecoderWrapper::Sequence(sequence) => {
                for part in sequence.get_decoders() {
                    self.add(part, fused)?;
                }
            }
            DecoderWrapper::Fuse(_) => *fused = true,
            // Before `Fuse` it would strip every token, and a stripped end needs the last token.
            DecoderWrapper::Strip(strip) => {
                let starts = *fused && strip.stop == 0 && strip.content.is_ascii();
                if !starts || self.head != Head::Keep {
                    return Err(unsupported("Strip, other than of the start after Fuse"));
                }
                self.head = Head::Strip {
                    byte: strip.content as u8,
                    count: strip.start,
                };
            }
            // After `Fuse` these would see the whole text at once.
            _ if *fused => return Err(unsupported("more than Strip after Fuse")),
            DecoderWrapper::Replace(_) => self.stages.push(Stage::Replace(decoder.clone())),
            DecoderWrapper::ByteFallback(_) => self.stages.push(Stage::ByteFallback),
            DecoderWrapper::ByteLevel(_) => self.stages.push(Stage::ByteLevel),
            DecoderWrapper::Metaspace(metaspace) => {
                self.stages
                    .push(Stage::Metaspace(metaspace.get_replacement()));
                if metaspace.prepend_scheme != PrependScheme::Never {
                    self.head = Head::DropMarks;
                }
            }
            DecoderWrapper::BPE(_) => return Err(unsupported("BPEDecoder")),
            DecoderWrapper::WordPiece(_) => return Err(unsupported("WordPiece")),
            DecoderWrapper::CTC(_) => return Err(unsupported("CTC")),
        }
        Ok(())
    }

    fn byte_fallback(&self) -> bool {
        self.stages
            .iter()
            .any(|stage| matches!(stage, Stage::ByteFallback))
    }

    /// The bytes of one token, as the first of its text or not.
    fn text(&self, token: &str, first: bool) -> Result<Vec<u8>, TokenizerError> {
        let mut token = token.to_owned();
        for stage in &self.stages {
            match stage {
                Stage::Replace(decoder) => {
                    token = decoder
                        .decode_chain(vec![token])
                        .map_err(|error| TokenizerError::NotATokenizer(error.to_string()))?
                        .concat();
                }
                Stage::ByteFallback => {
                    if let Some(byte) = byte_of_piece(&token) {
                        return Ok(vec![byte]);
                    }
                }
                Stage::Metaspace(mark) => {
                    let drop = first && self.head == Head::DropMarks;
                    token = token.replace(*mark, if drop { "" } else { " " });
                }
                Stage::ByteLevel => {
                    // A token with any other character was added as plain text.
                    let bytes: Option<Vec<u8>> = token.chars().map(byte_of_char).collect();
                    return Ok(bytes.unwrap_or_else(|| token.into_bytes()));
                }
            }
        }
        Ok(token.into_bytes())
    }
}

fn unsupported(what: &str) -> TokenizerError {
    TokenizerError::UnsupportedDecoder(what.to_owned())
}

/// The byte that a SentencePiece byte piece, `<0xNN>`, stands for.
pub fn byte_of_piece(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// The byte that a character of a byte-level vocabulary stands for: printable Latin-1 is itself, the
/// other bytes follow from U+0100 on (`bytes_to_unicode` of GPT-2's `encoder.py`).
pub fn byte_of_char(character: char) -> Option<u8> {
    let code = u32::from(character);
    let byte = match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}
