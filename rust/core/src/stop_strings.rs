//! Stop strings, looked for in a growing text.
//!
//! It owns how much of each stop string the end of the text matches (Knuth, Morris, Pratt 1977: a
//! constant amount of work per byte, whatever the borders of the pieces). It never holds the text.
//!
//! The first match to be complete counts; of several that end together the longest, so the one that
//! starts first. The result is the same however the text was cut into tokens.

use crate::tokenizer::TokenizerError;

struct StopString {
    bytes: Vec<u8>,
    /// `borders[n]`: the longest proper border of the first `n + 1` bytes.
    borders: Vec<usize>,
    matched: usize,
}

/// A stop string in the text that was given last.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Where it ends in that text; it may have begun before it.
    pub end: usize,
    /// Its length in bytes.
    pub length: usize,
}

/// The state of all stop strings of one reply.
pub struct StopStrings(Vec<StopString>);

impl StopStrings {
    /// # Errors
    /// `EmptyStop`.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, TokenizerError> {
        let strings = stops.iter().map(|stop| StopString::new(stop.as_ref()));
        strings.collect::<Result<_, _>>().map(Self)
    }

    /// Take more of the text, up to the end of the first stop string that is complete.
    pub fn find(&mut self, text: &str) -> Option<Found> {
        if self.0.is_empty() {
            return None;
        }
        text.bytes().enumerate().find_map(|(at, byte)| {
            for stop in &mut self.0 {
                stop.push(byte);
            }
            let complete = self.0.iter().filter(|stop| stop.is_complete());
            let length = complete.map(|stop| stop.bytes.len()).max()?;
            Some(Found {
                end: at + 1,
                length,
            })
        })
    }

    /// How many bytes at the end of the text may be the start of a stop string.
    pub fn held_bytes(&self) -> usize {
        self.0.iter().map(|stop| stop.matched).max().unwrap_or(0)
    }
}

impl StopString {
    fn new(stop: &str) -> Result<Self, TokenizerError> {
        if stop.is_empty() {
            return Err(TokenizerError::EmptyStop);
        }
        let bytes = stop.as_bytes().to_vec();
        let mut borders = vec![0; bytes.len()];
        let mut border = 0;
        for end in 1..bytes.len() {
            while border > 0 && bytes[border] != bytes[end] {
                border = borders[border - 1];
            }
            if bytes[border] == bytes[end] {
                border += 1;
            }
            borders[end] = border;
        }
        Ok(Self {
            bytes,
            borders,
            matched: 0,
        })
    }

    /// Not called once complete: the reply ends there.
    fn push(&mut self, byte: u8) {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
    }

    fn is_complete(&self) -> bool {
        self.matched == self.bytes.len()
    }
}
