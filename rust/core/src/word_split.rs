//! Words of a text, cut exactly as the pre-tokenizers of common byte-level vocabularies cut it.
//!
//! It owns hand-written scanners for two regular expressions, GPT-2's and the one of GPT-4 that Llama 3
//! and Qwen use too (their alternatives are quoted where they are taken), and for the `Digits`
//! pre-tokenizer in front of them. Which characters are letters, numbers and white space it asks the
//! tokenizer crate's own regular expression engine once, so that no Unicode version can differ. It never
//! looks at a vocabulary.

use std::sync::LazyLock;

use tokenizers::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::utils::SysRegex;

/// GPT-4's pattern as model files write it, in front of and behind the number of digits in a word.
const GPT4: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Other,
    Letter,
    Number,
    Space,
}

/// The class of every character.
static CLASSES: LazyLock<Vec<Class>> = LazyLock::new(|| {
    let every: String = ('\0'..=char::MAX).collect();
    let mut classes = vec![Class::Other; char::MAX as usize + 1];
    for (pattern, class) in [
        (r"\p{L}+", Class::Letter),
        (r"\p{N}+", Class::Number),
        (r"\s+", Class::Space),
    ] {
        let regex = SysRegex::new(pattern).expect("three fixed patterns, which a test compiles");
        for (start, end) in regex.find_iter(&every) {
            for character in every[start..end].chars() {
                classes[character as usize] = class;
            }
        }
    }
    classes
});

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    Gpt2,
    Gpt4 { digits_max: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digits {
    Alone,
    Together,
}

/// One pre-tokenizer, read from its description.
pub struct WordSplit {
    digits: Option<Digits>,
    pattern: Pattern,
    classes: &'static [Class],
}

impl WordSplit {
    /// None for a pre-tokenizer that cuts in another way.
    pub fn read(pre_tokenizer: &PreTokenizerWrapper) -> Option<Self> {
        let parts = match pre_tokenizer {
            PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref(),
            one => std::slice::from_ref(one),
        };
        let (last, before) = parts.split_last()?;
        let PreTokenizerWrapper::ByteLevel(byte_level) = last else {
            return None;
        };
        let (digits, pattern) = match (before, byte_level.use_regex) {
            ([], true) => (None, Pattern::Gpt2),
            ([PreTokenizerWrapper::Digits(digits)], true) => {
                let digits = if digits.individual_digits {
                    Digits::Alone
                } else {
                    Digits::Together
                };
                (Some(digits), Pattern::Gpt2)
            }
            ([PreTokenizerWrapper::Split(split)], false) => {
                let SplitPattern::Regex(regex) = &split.pattern else {
                    return None;
                };
                let isolated = split.behavior == SplitDelimiterBehavior::Isolated;
                let digits_max = match regex.strip_prefix(GPT4[0])?.strip_suffix(GPT4[1])? {
                    "" => 1,
                    "{1,3}" => 3,
                    _ => return None,
                };
                if !isolated || split.invert {
                    return None;
                }
                (None, Pattern::Gpt4 { digits_max })
            }
            _ => return None,
        };
        (!byte_level.add_prefix_space).then(|| Self {
            digits,
            pattern,
            classes: &CLASSES,
        })
    }

    /// Call `take` with each word in order; joined they are the text. Stops and returns false when it
    /// does.
    pub fn each_word(&self, text: &str, mut take: impl FnMut(&str) -> bool) -> bool {
        let Some(digits) = self.digits else {
            return self.each_in_piece(text, &mut take);
        };
        let mut start = 0;
        let mut numeric_before = false;
        for (at, character) in text.char_indices() {
            let numeric = character.is_numeric();
            let cut = numeric != numeric_before || (numeric && digits == Digits::Alone);
            if cut && at > start {
                if !self.each_in_piece(&text[start..at], &mut take) {
                    return false;
                }
                start = at;
            }
            numeric_before = numeric;
        }
        self.each_in_piece(&text[start..], &mut take)
    }

    fn each_in_piece(&self, piece: &str, take: &mut impl FnMut(&str) -> bool) -> bool {
        let mut rest = piece;
        while !rest.is_empty() {
            let length = match self.pattern {
                Pattern::Gpt2 => self.gpt2(rest),
                Pattern::Gpt4 { digits_max } => self.gpt4(rest, digits_max),
            };
            let (word, behind) = rest.split_at(length);
            if !take(word) {
                return false;
            }
            rest = behind;
        }
        true
    }

    /// The length of the word at the start of a text that is not empty.
    fn gpt2(&self, text: &str) -> usize {
        // 's|'t|'re|'ve|'m|'ll|'d
        if let Some(length) = contraction(text, |byte| byte) {
            return length;
        }
        // ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+
        let space = usize::from(text.starts_with(' '));
        match self.class_at(text, space) {
            Some(class) if class != Class::Space => space + self.run(&text[space..], class),
            _ => self.white_space(text),
        }
    }

    fn gpt4(&self, text: &str, digits_max: usize) -> usize {
        // (?i:'s|'t|'re|'ve|'m|'ll|'d)
        if let Some(length) = contraction(text, |byte| byte.to_ascii_lowercase()) {
            return length;
        }
        let first = text.chars().next().map_or(0, char::len_utf8);
        let class = self.class_at(text, 0);
        let line_end = text.starts_with(['\r', '\n']);
        // [^\r\n\p{L}\p{N}]?\p{L}+
        if class == Some(Class::Letter) {
            return self.run(text, Class::Letter);
        }
        if class != Some(Class::Number)
            && !line_end
            && self.class_at(text, first) == Some(Class::Letter)
        {
            return first + self.run(&text[first..], Class::Letter);
        }
        // \p{N}{1,digits_max}
        if class == Some(Class::Number) {
            // Not the whole run: it would be looked at again for each word of it.
            let end = text.char_indices().map(|(at, _)| at).nth(digits_max);
            return self.run(&text[..end.unwrap_or(text.len())], Class::Number);
        }
        // ?[^\s\p{L}\p{N}]+[\r\n]*
        let space = usize::from(text.starts_with(' '));
        if self.class_at(text, space) == Some(Class::Other) {
            let end = space + self.run(&text[space..], Class::Other);
            return end + text[end..].len() - text[end..].trim_start_matches(['\r', '\n']).len();
        }
        // \s*[\r\n]+
        let run = &text[..self.run(text, Class::Space)];
        match run.rfind(['\r', '\n']) {
            Some(at) => at + 1,
            None => self.white_space(text),
        }
    }

    /// `\s+(?!\S)|\s+` where the text starts with white space: the last one of several goes with the
    /// word that follows.
    fn white_space(&self, text: &str) -> usize {
        let length = self.run(text, Class::Space);
        if length == text.len() {
            return length;
        }
        let last = text[..length].chars().next_back().map_or(0, char::len_utf8);
        if last < length { length - last } else { length }
    }

    fn class_at(&self, text: &str, at: usize) -> Option<Class> {
        let character = text[at..].chars().next()?;
        Some(self.classes[character as usize])
    }

    /// How many bytes at the start are of this class.
    fn run(&self, text: &str, class: Class) -> usize {
        text.char_indices()
            .find(|(_, character)| self.classes[*character as usize] != class)
            .map_or(text.len(), |(at, _)| at)
    }
}

/// The length of one of `'s 't 're 've 'm 'll 'd` at the start, letters seen through `fold`.
fn contraction(text: &str, fold: impl Fn(u8) -> u8) -> Option<usize> {
    let [b'\'', letters @ ..] = text.as_bytes() else {
        return None;
    };
    match *letters {
        [one, ..] if b"stmd".contains(&fold(one)) => Some(2),
        [one, two, ..] if matches!(&[fold(one), fold(two)], b"re" | b"ve" | b"ll") => Some(3),
        // U+017F, long s, is an s to a pattern that does not look at case.
        [0xC5, 0xBF, ..] if fold(b'S') == b's' => Some(3),
        _ => None,
    }
}
