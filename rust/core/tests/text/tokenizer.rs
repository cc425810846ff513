//! The tokenizer: contents, templates, decoding and what is remembered.

use std::sync::Arc;
use std::thread;

use crate::small_tokenizers::{CONTROL, FIRST_BYTE_ID, byte_level, unigram};
use appliance_core::token_table::{byte_of_char, byte_of_piece};
use appliance_core::tokenizer::{Tokenizer, TokenizerError};
use proptest::prelude::*;

fn is_control(tokenizer: &Tokenizer, ids: &[u32]) -> bool {
    ids.iter().any(|&id| tokenizer.table().is_control(id))
}

#[test]
fn every_byte_has_one_letter_of_the_byte_level_alphabet() {
    let mut bytes: Vec<u8> = ('\0'..='\u{1FF}').filter_map(byte_of_char).collect();
    bytes.sort_unstable();
    assert_eq!(bytes, (0..=u8::MAX).collect::<Vec<u8>>());
    assert_eq!(byte_of_char('Ġ'), Some(b' '));
    assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
    assert_eq!(byte_of_char('▁'), None);
}

#[test]
fn only_two_hex_digits_make_a_byte_piece() {
    assert_eq!(byte_of_piece("<0xEA>"), Some(0xEA));
    assert_eq!(byte_of_piece("<0x0a>"), Some(0x0A));
    for piece in ["<0xE>", "<0xEAA>", "<0x+1>", "0xEA", "<0xé>", "<0xGG>", ""] {
        assert_eq!(byte_of_piece(piece), None, "{piece}");
    }
}

#[test]
fn a_panic_of_the_crate_is_an_error() {
    // The crate's deserializer of decoders expects an object.
    let json = br#"{"decoder": 3, "model": {"type": "BPE", "vocab": {}, "merges": []}}"#;
    assert!(matches!(
        Tokenizer::new(json, 0).err(),
        Some(TokenizerError::NotATokenizer(_))
    ));
}

#[test]
fn what_is_remembered_is_seen_by_every_thread() {
    let tokenizer = Arc::new(byte_level(1 << 20));
    let ids: Vec<u32> = b"aaaa"
        .iter()
        .map(|&byte| u32::from(byte) + FIRST_BYTE_ID)
        .collect();
    assert_eq!(tokenizer.encode("aaaa", b"n").expect("ids").len(), 1);
    tokenizer.remember(b"n", "aaaa", &ids).expect("remembered");
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let tokenizer = Arc::clone(&tokenizer);
            thread::spawn(move || tokenizer.encode("aaaa", b"n").expect("ids").to_vec())
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().expect("no panic"), ids);
    }
}

#[test]
fn a_unigram_model_spells_control_and_byte_names() {
    let tokenizer = unigram();
    for text in ["<s>", "</s>", "a<s>b</s>", "<0x0A>", "x<0xAA><s>"] {
        let ids = tokenizer.encode(text, b"").expect("ids");
        assert!(!is_control(&tokenizer, &ids), "{text}");
        assert_eq!(tokenizer.decode(&ids).as_deref(), Ok(text));
    }
    // A character without a piece is written in bytes, and stays so.
    let ids = tokenizer.encode("é", b"").expect("ids");
    assert_eq!(tokenizer.decode(&ids).as_deref(), Ok("é"));
}

proptest! {
    #[test]
    fn any_text_comes_back_and_holds_no_control_token(
        parts in prop::collection::vec(
            prop_oneof![Just(CONTROL[0].to_owned()), Just(CONTROL[1].to_owned()), any::<String>()],
            0..5,
        ),
    ) {
        let tokenizer = byte_level(0);
        let text = parts.concat();
        let ids = tokenizer.encode(&text, b"").expect("ids");
        prop_assert!(!is_control(&tokenizer, &ids));
        prop_assert_eq!(tokenizer.decode(&ids), Ok(text));
    }

    #[test]
    fn no_text_makes_the_unigram_model_give_a_control_token(text in "[ab </s>0xA]{0,20}") {
        let tokenizer = unigram();
        let ids = tokenizer.encode(&text, b"").expect("ids");
        prop_assert!(!is_control(&tokenizer, &ids));
    }

    #[test]
    fn any_bytes_decode_as_the_standard_library_decodes_them(bytes: Vec<u8>) {
        let tokenizer = byte_level(0);
        let ids: Vec<u32> = bytes.iter().map(|&byte| u32::from(byte) + FIRST_BYTE_ID).collect();
        let expected = String::from_utf8_lossy(&bytes).into_owned();
        prop_assert_eq!(tokenizer.decode(&ids), Ok(expected));
    }
}
