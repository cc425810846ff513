//! Small hand-written tokenizers for the tests.

use std::collections::BTreeMap;

use appliance_core::token_table::byte_of_char;
use appliance_core::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// Control tokens of the byte-level tokenizer: ids 0 and 1.
pub const CONTROL: [&str; 2] = ["<|start|>", "<|end|>"];

/// The first id of the 256 byte tokens of `byte_level`.
pub const FIRST_BYTE_ID: u32 = 2;

fn added(names: &[&str]) -> Vec<Value> {
    names
        .iter()
        .enumerate()
        .map(|(id, name)| {
            json!({
                "id": id, "content": name, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        })
        .collect()
}

fn load(json: &Value, memo_bytes_max: usize) -> Tokenizer {
    Tokenizer::new(json.to_string().as_bytes(), memo_bytes_max).expect("a tokenizer")
}

/// A byte-level BPE: the control tokens, every byte (its id is the byte plus `FIRST_BYTE_ID`), and a
/// few merges.
pub fn byte_level(memo_bytes_max: usize) -> Tokenizer {
    load(&byte_level_json(), memo_bytes_max)
}

/// Its file.
pub fn byte_level_json() -> Value {
    let mut vocab: BTreeMap<String, u32> = BTreeMap::new();
    for (id, name) in (0..).zip(CONTROL) {
        vocab.insert(name.to_owned(), id);
    }
    for character in (0..0x200).filter_map(char::from_u32) {
        if let Some(byte) = byte_of_char(character) {
            vocab.insert(character.to_string(), u32::from(byte) + FIRST_BYTE_ID);
        }
    }
    let merges = [
        ["a", "a"],
        ["aa", "aa"],
        ["Ġ", "a"],
        ["Ġa", "b"],
        ["<", "|"],
    ];
    for [left, right] in merges {
        let id = u32::try_from(vocab.len()).expect("a small vocabulary");
        vocab.insert(format!("{left}{right}"), id);
    }
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true});
    json!({
        "version": "1.0",
        "added_tokens": added(&CONTROL),
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    })
}

/// A unigram model with byte pieces, control pieces and a space mark.
pub fn unigram() -> Tokenizer {
    let mut vocab = vec![
        json!(["<unk>", 0.0]),
        json!(["<s>", 0.0]),
        json!(["</s>", 0.0]),
    ];
    vocab.extend((0..=u8::MAX).map(|byte| json!([format!("<0x{byte:02X}>"), 0.0])));
    for piece in [
        "\u{2581}",
        "a",
        "b",
        "\u{2581}a",
        "ab",
        "<",
        ">",
        "s",
        "/",
        "0",
        "x",
        "A",
    ] {
        let length = u32::try_from(piece.len()).expect("a short piece");
        vocab.push(json!([piece, -1.0 - f64::from(length) / 10.0]));
    }
    let metaspace = json!({
        "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true,
    });
    let json = json!({
        "version": "1.0",
        "added_tokens": added(&["<unk>", "<s>", "</s>"]),
        "pre_tokenizer": metaspace,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace]},
        "model": {"type": "Unigram", "vocab": vocab, "unk_id": 0, "byte_fallback": true},
    });
    load(&json, 0)
}
