//! The guard that keeps control tokens out of contents.
//!
//! It owns the list of names that a model would turn into a control token or a byte although the
//! tokenizer's special tokens are off, and cuts a content inside each of them. It never changes a
//! content without such a name, so the ids of ordinary texts are the model's own.
//!
//! A unigram model looks every piece up in its vocabulary, so the text `</s>` gives the control token
//! and the text `<0xEA>` gives the byte; SentencePiece itself leaves these pieces out of its trie, the
//! crate does not. A BPE model reaches a piece only through merges, so each name is tried once.

use aho_corasick::AhoCorasick;
use tokenizers::{AddedVocabulary, Model, ModelWrapper};

use crate::token_table::TokenTable;

/// Whether a token that a file does not mark as special is one by its name: `<|...|>`, with ASCII or
/// fullwidth bars. Some files leave chat markers unmarked, and a user must not be able to write one.
pub fn is_control_name(name: &str) -> bool {
    let inner = name
        .strip_prefix('<')
        .and_then(|rest| rest.strip_suffix('>'))
        .unwrap_or_default();
    let is_bar = |character| character == '|' || character == '\u{FF5C}';
    inner.chars().count() > 2 && inner.starts_with(is_bar) && inner.ends_with(is_bar)
}

/// Names that a content must not spell in one piece.
pub struct ControlGuard {
    names: Option<AhoCorasick>,
}

impl ControlGuard {
    /// Find the names that the model turns into control tokens or bytes.
    pub fn new(model: &ModelWrapper, added: &AddedVocabulary, table: &TokenTable) -> Self {
        let special = added
            .get_added_tokens_decoder()
            .values()
            .filter(|token| token.special)
            .map(|token| token.content.clone());
        let bytes = (0..=u8::MAX)
            .filter(|_| table.byte_fallback())
            .map(|byte| format!("<0x{byte:02X}>"));
        // A name of one character cannot be cut; the check behind the model refuses it.
        let names: Vec<String> = special
            .chain(bytes)
            .filter(|name| name.chars().count() > 1 && is_written_by(model, name))
            .collect();
        Self {
            names: AhoCorasick::new(&names).ok().filter(|_| !names.is_empty()),
        }
    }

    /// The parts of a text, cut behind the first character of every name.
    pub fn pieces<'text>(&self, text: &'text str) -> Vec<&'text str> {
        let Some(names) = &self.names else {
            return vec![text];
        };
        let mut cuts: Vec<usize> = names
            .find_overlapping_iter(text)
            .filter_map(|found| {
                let first = text[found.start()..].chars().next()?;
                Some(found.start() + first.len_utf8())
            })
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        let mut pieces = Vec::with_capacity(cuts.len() + 1);
        let mut start = 0;
        for cut in cuts {
            pieces.push(&text[start..cut]);
            start = cut;
        }
        pieces.push(&text[start..]);
        pieces
    }
}

/// Whether the model may turn this very text into the token of that name. For BPE no merge within the
/// name depends on what stands around it, unless it crosses the border, and then the name is not
/// made: trying it alone decides.
fn is_written_by(model: &ModelWrapper, name: &str) -> bool {
    let Some(id) = model.token_to_id(name) else {
        return false;
    };
    match model {
        ModelWrapper::BPE(bpe) => bpe
            .tokenize(name)
            .is_ok_and(|tokens| tokens.iter().any(|token| token.id == id)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_inside_every_name_also_where_names_overlap() {
        let guard = ControlGuard {
            names: AhoCorasick::new(["<s>", "s><", "é<"]).ok(),
        };
        assert_eq!(guard.pieces("a<s><s>é<"), ["a<", "s", "><", "s>é", "<"]);
        assert_eq!(guard.pieces("nothing"), ["nothing"]);
        assert_eq!(guard.pieces(""), [""]);
    }

    #[test]
    fn a_control_name_is_written_between_bars() {
        for name in ["<|im_end|>", "<|User|>", "<\u{FF5C}User\u{FF5C}>"] {
            assert!(is_control_name(name), "{name}");
        }
        for name in ["<|>", "<||>", "<think>", "|x|", "<|x>", "", "\n\n"] {
            assert!(!is_control_name(name), "{name}");
        }
    }
}
