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

/// How many bytes at the end are the beginning of a character: some bytes behind them make it one.
fn open_bytes(data: &[u8]) -> usize {
    (1..=data.len().min(3))
        .rev()
        .find(|&count| {
            let start = &data[data.len() - count..];
            (1..=4 - count).any(|missing| {
                [0x80, 0x90, 0xA0, 0xBF].iter().any(|&second| {
                    let mut whole = start.to_vec();
                    whole.push(second);
                    whole.resize(count + missing, 0x80);
                    std::str::from_utf8(&whole).is_ok_and(|text| text.chars().count() == 1)
                })
            })
        })
        .unwrap_or(0)
}

/// The text that no further byte changes, and whether a stop string ended it.
fn certain(data: &[u8], stops: &[String]) -> (String, bool) {
    let text = String::from_utf8_lossy(&data[..data.len() - open_bytes(data)]).into_owned();
    let (said, stopped) = up_to_stop(&text, stops);
    if stopped {
        return (said, true);
    }
    let is_held = |length: &usize| {
        let end = &text.as_bytes()[text.len() - length..];
        stops
            .iter()
            .any(|stop| stop.len() > *length && stop.as_bytes().starts_with(end))
    };
    let held = (1..=text.len()).filter(is_held).max().unwrap_or(0);
    (text[..text.len() - held].to_owned(), false)
}

/// Tokens of `byte_level`: bytes, merged ones and control tokens, and the bytes each adds.
fn tokens() -> impl Strategy<Value = Vec<(u32, Vec<u8>)>> {
    let merged = FIRST_BYTE_ID + 256;
    let byte = |byte: u8| (u32::from(byte) + FIRST_BYTE_ID, vec![byte]);
    let token = prop_oneof![
        3 => Just(byte(b'a')),
        2 => Just(byte(b'b')),
        2 => prop::sample::select("é😀\u{FFFD}漢".as_bytes()).prop_map(byte),
        1 => any::<u8>().prop_map(byte),
        2 => prop::sample::select(vec![
            (merged, b"aa".to_vec()),
            (merged + 1, b"aaaa".to_vec()),
            (merged + 2, b" a".to_vec()),
            (merged + 3, b" ab".to_vec()),
        ]),
        1 => (0..FIRST_BYTE_ID).prop_map(|id| (id, Vec::new())),
    ];
    prop::collection::vec(token, 0..16)
}

#[test]
fn a_long_reply_costs_the_same_a_token_as_a_short_one_and_holds_no_more() {
    let stops = ["aab".repeat(20), "never".to_owned()];
    let mut decoder = StreamDecoder::new(Arc::clone(&TOKENIZER), &stops).expect("a decoder");
    let mut text = 0;
    for _ in 0..200_000 {
        text += decoder.push(&ids(b"aa")).expect("known ids").len();
        text += decoder
            .push(&ids("b😀".as_bytes()))
            .expect("known ids")
            .len();
    }
    // Decoding the whole reply for each token would be 10^11 bytes of work.
    assert_eq!(text + decoder.finish().len(), 200_000 * 7);
}

proptest! {
    #[test]
    fn each_push_delivers_all_that_is_certain_and_no_more(
        tokens in tokens(),
        stops in prop::collection::vec("[abé😀 \u{FFFD}]{1,5}", 0..4),
    ) {
        let mut decoder = StreamDecoder::new(Arc::clone(&TOKENIZER), &stops).expect("a decoder");
        let (mut text, mut data) = (String::new(), Vec::new());
        for (id, bytes) in &tokens {
            text += &decoder.push(&[*id]).expect("known ids");
            data.extend(bytes);
            prop_assert_eq!((text.clone(), decoder.stopped()), certain(&data, &stops));
            if decoder.stopped() {
                break;
            }
        }
        text += &decoder.finish();
        let whole = String::from_utf8_lossy(&data);
        prop_assert_eq!((text, decoder.stopped()), up_to_stop(&whole, &stops));
        if !decoder.stopped() {
            prop_assert_eq!(decoder.delivered_tokens(), tokens.len());
        }
    }

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
