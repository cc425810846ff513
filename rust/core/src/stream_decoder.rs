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

/// Stands for bytes that are no character: U+FFFD.
const REPLACEMENT: &str = "\u{FFFD}";

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
    pushed: usize,
    decoded: usize,
    /// Characters that may be the start of a stop string.
    held: String,
    /// Positions in bytes of the text: characters made, and characters delivered.
    text_end: usize,
    delivered_end: usize,
    /// Ends of tokens, in `pushed`, whose last character is open.
    open_tokens: VecDeque<usize>,
    /// Ends of tokens, in `text_end`, that are not delivered.
    held_tokens: VecDeque<usize>,
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
            self.pushed += bytes;
            self.open_tokens.push_back(self.pushed);
        }
        self.make_characters();
        Ok(self.deliver())
    }

    /// End the reply; returns the rest of its text, an unfinished character as U+FFFD.
    pub fn finish(&mut self) -> String {
        if self.phase != Phase::Open {
            return String::new();
        }
        if !self.open.is_empty() {
            let bytes = std::mem::take(&mut self.open).len();
            self.take_text(REPLACEMENT, bytes);
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
        // Tokens without text lie where the text ends already.
        self.take_text("", 0);
        let mut open = std::mem::take(&mut self.open);
        let mut done = 0;
        for chunk in open.utf8_chunks() {
            let (valid, invalid) = (chunk.valid(), chunk.invalid());
            done += valid.len();
            self.take_text(valid, valid.len());
            let at_end = done + invalid.len() == open.len();
            if self.stopped() || invalid.is_empty() || at_end && is_unfinished(invalid) {
                break;
            }
            done += invalid.len();
            self.take_text(REPLACEMENT, invalid.len());
            if self.stopped() {
                break;
            }
        }
        open.drain(..done);
        self.open = open;
    }

    /// More of the text, made of the next `bytes` bytes of the reply. It ends at the first stop string.
    fn take_text(&mut self, text: &str, bytes: usize) {
        let stop = self.stops.find(text);
        self.held
            .push_str(&text[..stop.map_or(text.len(), |stop| stop.end)]);
        while let Some(&end) = self.open_tokens.front()
            && end <= self.decoded + bytes
        {
            self.open_tokens.pop_front();
            // Inside a character, or inside bytes that became U+FFFD, is good enough: either is delivered whole.
            let inside = end.saturating_sub(self.decoded);
            self.held_tokens.push_back(self.text_end + inside);
        }
        self.decoded += bytes;
        self.text_end += text.len();
        if let Some(stop) = stop {
            self.phase = Phase::Stopped;
            self.held.truncate(self.held.len() - stop.length);
        }
    }

    fn deliver(&mut self) -> String {
        let held_bytes = match self.phase {
            Phase::Open => self.stops.held_bytes(),
            Phase::Stopped | Phase::Finished => 0,
        };
        // What may be a long stop string is not copied at every token.
        let text = if self.held.len() == held_bytes {
            String::new()
        } else {
            let held = self.held.split_off(self.held.len() - held_bytes);
            std::mem::replace(&mut self.held, held)
        };
        self.delivered_end += text.len();
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

/// Whether bytes that are no character may become one when more come.
fn is_unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
