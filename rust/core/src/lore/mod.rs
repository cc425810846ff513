//! Which keys of a lorebook a text holds: all of them in one pass, in time linear in the text.
//!
//! Keys come from strangers. Plain ones go through Aho-Corasick, regular expressions through one set of
//! the `regex` crate, which never backtracks; both are bounded in size when they are compiled. It never
//! decides what a found key means.

mod pattern;
mod words;

use pattern::Patterns;
use words::Words;

/// A plain key.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// What is looked for.
    pub text: &'a str,
    /// Whether capitals differ from small letters.
    pub case_sensitive: bool,
    /// Whether it must not stand within a longer word.
    pub whole_words: bool,
}

/// A regular expression as JavaScript writes them: `/pattern/flags`, or the pattern alone.
#[derive(Clone, Copy, Debug)]
pub struct Pattern<'a> {
    /// The expression.
    pub text: &'a str,
    /// Whether capitals differ from small letters, where no flags say so.
    pub case_sensitive: bool,
}

/// The compiled keys of a lorebook.
#[derive(Debug)]
pub struct LoreMatcher {
    words: Words,
    patterns: Patterns,
    keys: usize,
}

impl LoreMatcher {
    /// Compile keys and patterns. What cannot be is `refused` and never found.
    pub fn new(keys: &[Key<'_>], patterns: &[Pattern<'_>]) -> Self {
        Self {
            words: Words::new(keys),
            patterns: Patterns::new(patterns),
            keys: keys.len(),
        }
    }

    /// The patterns that are not looked for: their index, and why.
    pub fn refused(&self) -> &[(usize, String)] {
        self.patterns.refused()
    }

    /// The indexes of what the text holds, ascending: keys first, patterns counted on behind them.
    pub fn matches(&self, text: &str) -> Vec<usize> {
        let mut found = self.words.matches(text);
        found.extend(self.patterns.matches(text).map(|index| self.keys + index));
        found
    }
}
