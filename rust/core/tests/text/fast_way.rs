//! The fast way against the tokenizer crate: the same ids for every text.

use appliance_core::tokenizer::Tokenizer;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::Tokenizer as HfTokenizer;

use crate::small_tokenizers::byte_level_json;

const GPT4: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn gpt4(pattern: &str) -> Value {
    let split = json!({
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false,
    });
    json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]})
}

fn digits(individual: bool) -> Value {
    let digits = json!({"type": "Digits", "individual_digits": individual});
    json!({"type": "Sequence", "pretokenizers": [digits, byte_level(true)]})
}

/// The same small vocabulary behind each pre-tokenizer that the fast way knows.
fn kinds() -> Vec<Value> {
    let mut kinds: Vec<Value> = [
        byte_level(true),
        digits(true),
        digits(false),
        gpt4(GPT4),
        gpt4(&GPT4.replace("{1,3}", "")),
    ]
    .into_iter()
    .map(|pre_tokenizer| {
        let mut fields = byte_level_json();
        fields["pre_tokenizer"] = pre_tokenizer;
        fields
    })
    .collect();
    let mut whole_words = kinds[3].clone();
    whole_words["model"]["ignore_merges"] = json!(true);
    let mut normalized = kinds[4].clone();
    normalized["normalizer"] = json!({"type": "NFC"});
    kinds.extend([whole_words, normalized]);
    kinds
}

fn both(fields: &Value) -> (Tokenizer, HfTokenizer) {
    let text = fields.to_string();
    let ours = Tokenizer::new(text.as_bytes(), 0).expect("a tokenizer");
    assert!(ours.is_fast(), "{}", fields["pre_tokenizer"]);
    let mut theirs: HfTokenizer = text.parse().expect("a tokenizer");
    theirs.set_encode_special_tokens(true);
    (ours, theirs)
}

fn compare((ours, theirs): &(Tokenizer, HfTokenizer), text: &str) {
    let expected = theirs.encode_fast(text, false).expect("ids");
    let found = ours.encode(text, b"").expect("ids");
    assert_eq!(&found[..], expected.get_ids(), "{text:?}");
}

#[test]
fn every_character_alone_and_beside_others_gives_the_crates_ids() {
    let kinds: Vec<_> = kinds().iter().map(both).collect();
    // In long texts, so that it does not take minutes; each character has each kind of neighbour.
    let every: Vec<char> = ('\0'..=char::MAX).collect();
    for block in every.chunks(4096) {
        let text: String = block
            .iter()
            .flat_map(|character| ['a', *character, ' ', *character, '1'])
            .collect();
        for kind in [&kinds[1], &kinds[3]] {
            compare(kind, &text);
        }
    }
    for character in ('\0'..'\u{3100}').chain("'ſ🙂\u{10FFFF}".chars()) {
        for text in [
            format!("{character}"),
            format!(" {character}{character}x"),
            format!("'{character}  {character}"),
        ] {
            for kind in &kinds {
                compare(kind, &text);
            }
        }
    }
}

#[test]
fn texts_that_are_not_ordinary_go_the_crates_way() {
    for kind in kinds().iter().map(both) {
        for text in ["<|start|>", "x <|end|> y", "<|", "|end|>", "e\u{301} "] {
            compare(&kind, text);
        }
    }
}

#[test]
fn words_of_any_length_give_the_crates_ids() {
    for kind in kinds().iter().map(both) {
        for length in [1, 2, 31, 32, 33, 34, 64, 65, 1000] {
            for unit in ["a", "ab", "aab", "中", " a", "=", " ", "1", "a<|"] {
                let text = unit.repeat(length);
                compare(&kind, &text);
                compare(&kind, &format!("b{text}z "));
            }
        }
    }
}

#[test]
fn a_text_with_a_byte_that_has_no_token_goes_the_crates_way() {
    let mut fields = byte_level_json();
    let vocab = fields["model"]["vocab"].as_object_mut();
    assert!(vocab.is_some_and(|vocab| vocab.remove("z").is_some()));
    let kind = both(&fields);
    for text in ["z", "xyz aab", "a z", "aaaa"] {
        compare(&kind, text);
    }
}

#[test]
fn other_kinds_of_tokenizers_have_no_fast_way() {
    let changes: [fn(&mut Value); 5] = [
        |fields| fields["pre_tokenizer"]["add_prefix_space"] = json!(true),
        |fields| fields["pre_tokenizer"] = gpt4(r"\s+"),
        |fields| fields["pre_tokenizer"] = gpt4(&GPT4.replace("{1,3}", "{1,2}")),
        |fields| fields["normalizer"] = json!({"type": "Lowercase"}),
        |fields| fields["model"]["end_of_word_suffix"] = json!("</w>"),
    ];
    for change in changes {
        let mut fields = byte_level_json();
        change(&mut fields);
        let tokenizer = Tokenizer::new(fields.to_string().as_bytes(), 0).expect("a tokenizer");
        assert!(!tokenizer.is_fast(), "{}", fields["pre_tokenizer"]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn random_texts_give_the_crates_ids(
        kind in 0..kinds().len(),
        text in prop::collection::vec(
            prop_oneof![
                4 => "[ab <|'stmdreveLL]{0,9}",
                2 => "[ab]{0,90}",
                2 => "[ \t\n\r\u{A0}\u{3000}]{0,4}",
                2 => "[0-9½²٣Ⅷ]{0,5}",
                1 => "\\PC{0,4}",
                1 => any::<String>(),
            ],
            0..8,
        ),
    ) {
        thread_local! {
            static KINDS: Vec<(Tokenizer, HfTokenizer)> = kinds().iter().map(both).collect();
        }
        KINDS.with(|kinds| compare(&kinds[kind], &text.concat()));
    }
}
