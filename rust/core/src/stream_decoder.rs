//! The stream decoder: a growing reply as text that is certain.
//!
//! It owns what is still open at the end of a reply: bytes that may become a character, characters
//! that may become a stop string, and which tokens the delivered text covers. It never decodes
//! anything twice: a token costs its own bytes, however long the reply is.
//!
//! The deltas, joined, equal `Tokenizer::decode` of all ids, up to a stop string. A reply that goes on
//! with a text (and so keeps the space that SentencePiece drops at a start) is had by pushing the
//! ids of that text first.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::stop_strings::StopStrings;
use crate::token_table::Head;
use crate::tokenizer::{Tokenizer, TokenizerError};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Stopped,
    Finished,
}

/// The decoder of one reply.
pub struct StreamDecoder {
    tokenizer: Arc<Tokenizer>,
    head: Head,
    stops: StopStrings,
    phase: Phase,
    /// Bytes pushed that are not yet characters: at most 3 between two calls.
    open: Vec<u8>,
    /// Positions in bytes of the reply: pushed, and made into characters.
    pushed: u64,
    decoded: u64,
    /// Characters that may be the start of a stop string.
    held: String,
    /// Positions in bytes of the text: characters made, and characters delivered.
    text_end: u64,
    delivered_end: u64,
    /// Ends of tokens, in `pushed`, whose last character is open.
    open_tokens: VecDeque<u64>,
    /// Ends of tokens, in `text_end`, that are not delivered.
    held_tokens: VecDeque<u64>,
    delivered_tokens: usize,
}

impl StreamDecoder {
    /// A decoder at the start of a reply.
    ///
    /// # Errors
    /// `EmptyStop`.
    pub fn new<S: AsRef<str>>(
        tokenizer: Arc<Tokenizer>,
        stops: &[S],
    ) -> Result<Self, TokenizerError> {
        Ok(Self {
            head: tokenizer.table().head(),
            tokenizer,
            stops: StopStrings::new(stops)?,
            phase: Phase::Open,
            open: Vec::new(),
            pushed: 0,
            decoded: 0,
            held: String::new(),
            text_end: 0,
            delivered_end: 0,
            open_tokens: VecDeque::new(),
            held_tokens: VecDeque::new(),
            delivered_tokens: 0,
        })
    }

    /// Whether a stop string was found; the delivered text ends just before it.
    pub fn stopped(&self) -> bool {
        self.phase == Phase::Stopped
    }

    /// How many leading tokens lie entirely inside the delivered text. A token without text lies
    /// where the one before it ends.
    pub fn delivered_tokens(&self) -> usize {
        self.delivered_tokens
    }

    /// Take more tokens; returns the text that became certain, nothing once stopped.
    ///
    /// # Errors
    /// `UnknownId` with nothing changed; `Finished`.
    pub fn push(&mut self, ids: &[u32]) -> Result<String, TokenizerError> {
        match self.phase {
            Phase::Open => {}
            Phase::Stopped => return Ok(String::new()),
            Phase::Finished => return Err(TokenizerError::Finished),
        }
        let tokenizer = Arc::clone(&self.tokenizer);
        for &id in ids {
            tokenizer.table().token_bytes(id)?;
        }
        for &id in ids {
            let bytes = tokenizer
                .table()
                .append(id, &mut self.head, &mut self.open)?;
            self.pushed += bytes as u64;
            self.open_tokens.push_back(self.pushed);
            self.make_characters();
            if self.stopped() {
                break;
            }
        }
        Ok(self.deliver())
    }

    /// End the reply; returns the rest of its text, an unfinished character as U+FFFD.
    pub fn finish(&mut self) -> String {
        if self.phase != Phase::Open {
            return String::new();
        }
        if !self.open.is_empty() {
            let bytes = std::mem::take(&mut self.open).len();
            self.take_character(char::REPLACEMENT_CHARACTER, bytes);
        }
        if self.phase == Phase::Open {
            self.phase = Phase::Finished;
        }
        self.deliver()
    }

    /// Turn the open bytes into characters as far as they are certain. What is not UTF-8 becomes one
    /// U+FFFD for each longest part that a character may start with, as in Python and in
    /// `String::from_utf8_lossy`.
    fn make_characters(&mut self) {
        self.settle_tokens();
        let open = std::mem::take(&mut self.open);
        let mut rest = open.as_slice();
        while !rest.is_empty() {
            let (valid, invalid) = match std::str::from_utf8(rest) {
                Ok(valid) => (valid, None),
                Err(error) => {
                    let (valid, _) = rest.split_at(error.valid_up_to());
                    let valid = std::str::from_utf8(valid).unwrap_or_default();
                    (valid, Some(error.error_len()))
                }
            };
            rest = &rest[valid.len()..];
            for character in valid.chars() {
                self.take_character(character, character.len_utf8());
                if self.stopped() {
                    return;
                }
            }
            match invalid {
                None => {}
                Some(None) => break,
                Some(Some(bytes)) => {
                    rest = &rest[bytes..];
                    self.take_character(char::REPLACEMENT_CHARACTER, bytes);
                    if self.stopped() {
                        return;
                    }
                }
            }
        }
        self.open.extend_from_slice(rest);
    }

    /// One more character of the text, made of so many bytes of the reply.
    fn take_character(&mut self, character: char, bytes: usize) {
        self.decoded += bytes as u64;
        self.text_end += character.len_utf8() as u64;
        self.held.push(character);
        self.settle_tokens();
        if let Some(length) = self.stops.push(character) {
            self.phase = Phase::Stopped;
            self.held.truncate(self.held.len() - length);
        }
    }

    /// Give the tokens whose last byte is decoded their end in the text.
    fn settle_tokens(&mut self) {
        while self
            .open_tokens
            .front()
            .is_some_and(|end| *end <= self.decoded)
        {
            self.open_tokens.pop_front();
            self.held_tokens.push_back(self.text_end);
        }
    }

    fn deliver(&mut self) -> String {
        let held_bytes = match self.phase {
            Phase::Open => self.stops.held_bytes(),
            Phase::Stopped | Phase::Finished => 0,
        };
        let text: String = self.held.drain(..self.held.len() - held_bytes).collect();
        self.delivered_end += text.len() as u64;
        while self
            .held_tokens
            .front()
            .is_some_and(|end| *end <= self.delivered_end)
        {
            self.held_tokens.pop_front();
            self.delivered_tokens += 1;
        }
        text
    }
}
