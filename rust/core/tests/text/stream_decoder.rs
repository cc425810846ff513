//! The stream decoder against a reference that decodes the whole reply each time.

use std::sync::{Arc, LazyLock};

use crate::small_tokenizers::{FIRST_BYTE_ID, byte_level};
use appliance_core::stream_decoder::StreamDecoder;
use appliance_core::tokenizer::{Tokenizer, TokenizerError};
use proptest::prelude::*;

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(byte_level(0)));

fn ids(bytes: &[u8]) -> Vec<u32> {
    bytes
        .iter()
        .map(|&byte| u32::from(byte) + FIRST_BYTE_ID)
        .collect()
}

/// The text in front of the first stop string to be complete (the longest, where several end there).
fn up_to_stop(text: &str, stops: &[String]) -> (String, bool) {
    for (at, character) in text.char_indices() {
        let end = at + character.len_utf8();
        let ending = stops.iter().filter(|stop| text[..end].ends_with(*stop));
        if let Some(length) = ending.map(String::len).max() {
            return (text[..end - length].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

/// Bytes of a small alphabet, in which broken characters and stop strings are common.
fn replies() -> impl Strategy<Value = Vec<u8>> {
    let parts = prop_oneof![
        4 => Just(b"a".to_vec()),
        2 => Just(b"b".to_vec()),
        2 => Just("é".as_bytes().to_vec()),
        2 => Just("😀".as_bytes().to_vec()),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
    ];
    prop::collection::vec(parts, 0..12).prop_map(|parts| parts.concat())
}

#[test]
fn an_empty_stop_string_and_tokens_after_the_end_are_refused() {
    let empty = StreamDecoder::new(Arc::clone(&TOKENIZER), &["a", ""]);
    assert_eq!(empty.err(), Some(TokenizerError::EmptyStop));
    let mut decoder = StreamDecoder::new::<&str>(Arc::clone(&TOKENIZER), &[]).expect("a decoder");
    assert_eq!(decoder.push(&ids(b"a")).as_deref(), Ok("a"));
    assert_eq!(decoder.finish(), "");
    assert_eq!(decoder.push(&ids(b"a")), Err(TokenizerError::Finished));
}

proptest! {
    #[test]
    fn however_a_reply_is_cut_its_deltas_join_to_the_same_text(
        bytes in replies(),
        stops in prop::collection::vec("[abé😀\u{FFFD}]{1,4}", 0..3),
        step in 1usize..6,
    ) {
        let mut decoder = StreamDecoder::new(Arc::clone(&TOKENIZER), &stops).expect("a decoder");
        let mut text = String::new();
        for part in ids(&bytes).chunks(step) {
            text += &decoder.push(part).expect("known ids");
        }
        text += &decoder.finish();
        let expected = up_to_stop(&String::from_utf8_lossy(&bytes), &stops);
        prop_assert_eq!((text, decoder.stopped()), expected);
    }

    #[test]
    fn delivered_tokens_decode_to_a_beginning_of_the_delivered_text(
        bytes in replies(),
        stops in prop::collection::vec("[abé😀]{1,4}", 0..3),
    ) {
        let all = ids(&bytes);
        let mut decoder = StreamDecoder::new(Arc::clone(&TOKENIZER), &stops).expect("a decoder");
        let mut text = String::new();
        for id in &all {
            text += &decoder.push(&[*id]).expect("known ids");
            let delivered = decoder.delivered_tokens();
            let said = TOKENIZER.decode(&all[..delivered]).expect("known ids");
            prop_assert!(text.starts_with(&said));
            // At most the last character of the text is made of more tokens than are counted.
            prop_assert!(text[said.len()..].chars().count() <= 1 || decoder.stopped());
        }
    }
}
