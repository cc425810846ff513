//! Plain keys: two Aho-Corasick automata, one for texts as they are and one for texts without case.

use aho_corasick::{AhoCorasick, Match};

use super::Key;

/// Places of keys that are looked at in one text. Texts that people write have fewer; keys that are each
/// other's beginnings, all of whole words, would have as many as there are characters for each.
const PLACES_MAX: usize = 1 << 20;

/// All plain keys. An empty one is never found.
#[derive(Debug)]
pub struct Words {
    as_written: Option<Automaton>,
    folded: Option<Automaton>,
    keys: usize,
}

#[derive(Debug)]
struct Automaton {
    finder: AhoCorasick,
    /// By the automaton's number of a pattern: the index of the key, and whether it is a whole word.
    keys: Vec<(usize, bool)>,
}

impl Words {
    pub fn new(keys: &[Key<'_>]) -> Self {
        let of = |case_sensitive| {
            keys.iter().enumerate().filter(move |(_, key)| {
                key.case_sensitive == case_sensitive && !key.text.is_empty()
            })
        };
        Self {
            as_written: Automaton::new(of(true).map(|(at, key)| (at, key, key.text.to_owned()))),
            folded: Automaton::new(of(false).map(|(at, key)| (at, key, fold(key.text)))),
            keys: keys.len(),
        }
    }

    /// The indexes of the keys in a text, ascending.
    pub fn matches(&self, text: &str) -> Vec<usize> {
        let mut found = vec![false; self.keys];
        if let Some(automaton) = &self.as_written {
            automaton.mark(text, &mut found);
        }
        if let Some(automaton) = &self.folded {
            automaton.mark(&fold(text), &mut found);
        }
        (0..self.keys).filter(|&index| found[index]).collect()
    }
}

impl Automaton {
    fn new<'a>(keys: impl Iterator<Item = (usize, &'a Key<'a>, String)>) -> Option<Self> {
        let (keys, texts): (Vec<_>, Vec<_>) = keys
            .map(|(index, key, text)| ((index, key.whole_words), text))
            .unzip();
        if keys.is_empty() {
            return None;
        }
        let finder = AhoCorasick::new(texts).ok()?;
        Some(Self { finder, keys })
    }

    /// Mark what the text holds; ends early when that is all there is.
    fn mark(&self, text: &str, found: &mut [bool]) {
        let mut left = self.keys.len();
        for place in self.finder.find_overlapping_iter(text).take(PLACES_MAX) {
            let (index, whole_words) = self.keys[place.pattern().as_usize()];
            if found[index] || (whole_words && !stands_alone(text, &place)) {
                continue;
            }
            found[index] = true;
            left -= 1;
            if left == 0 {
                return;
            }
        }
    }
}

/// Whether no letter or digit continues the found text on either side.
fn stands_alone(text: &str, place: &Match) -> bool {
    let (before, rest) = text.split_at(place.start());
    let (inner, after) = rest.split_at(place.end() - place.start());
    let joins = |left: Option<char>, right: Option<char>| {
        left.is_some_and(is_word) && right.is_some_and(is_word)
    };
    !joins(before.chars().next_back(), inner.chars().next())
        && !joins(inner.chars().next_back(), after.chars().next())
}

/// Letters and digits of scripts that put spaces between words.
fn is_word(character: char) -> bool {
    (character.is_alphanumeric() || character == '_') && !is_unspaced(character)
}

/// Thai, Lao, Tibetan, Burmese, Khmer; kana, Chinese characters and their forms: in these the end of a
/// word shows in no space.
fn is_unspaced(character: char) -> bool {
    matches!(character,
        '\u{0E00}'..='\u{0FFF}' | '\u{1000}'..='\u{109F}' | '\u{1780}'..='\u{17FF}'
        | '\u{2E80}'..='\u{31FF}' | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}'
        | '\u{F900}'..='\u{FAFF}' | '\u{FF66}'..='\u{FF9D}' | '\u{20000}'..='\u{3FFFF}')
}

/// A text without case: each character's small letter, and one small sigma.
fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    text.chars()
        .flat_map(char::to_lowercase)
        .map(|character| if character == 'ς' { 'σ' } else { character })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(keys: &[(&str, bool, bool)], text: &str) -> Vec<usize> {
        let keys: Vec<Key<'_>> = keys
            .iter()
            .map(|&(text, case_sensitive, whole_words)| Key {
                text,
                case_sensitive,
                whole_words,
            })
            .collect();
        Words::new(&keys).matches(text)
    }

    #[test]
    fn overlapping_and_equal_keys_are_all_found() {
        let keys = [
            ("drag", false, false),
            ("Dragon", false, false),
            ("agon", true, false),
            ("dragon", false, false),
            ("", false, false),
        ];
        assert_eq!(found(&keys, "A DRAGON!"), [0, 1, 3]);
        assert_eq!(found(&keys, "a dragon"), [0, 1, 2, 3]);
    }

    #[test]
    fn a_whole_word_is_not_found_within_another() {
        let keys = [("elf", false, true), ("'elf'", false, true)];
        assert!(found(&keys, "herself, elfin").is_empty());
        assert_eq!(found(&keys, "an ELF."), [0]);
        assert_eq!(found(&keys, "x'elf'x"), [0, 1]);
        assert_eq!(found(&[("龍", false, true)], "黒龍王"), [0]);
        assert!(found(&[("élan", false, true)], "élané").is_empty());
    }

    #[test]
    fn case_is_folded_beyond_ascii() {
        assert_eq!(found(&[("ΟΔΟΣ", false, false)], "η οδος"), [0]);
        assert!(found(&[("Éa", true, false)], "éa").is_empty());
        assert_eq!(found(&[("İ", false, true)], "x İ y"), [0]);
    }
}
