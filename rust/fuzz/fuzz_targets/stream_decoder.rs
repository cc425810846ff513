//! Any tokens, cuts and stop strings: nothing panics, nothing is lost, nothing is taken back.
//!
//! The first byte says how many stop strings follow, each as a length and so many bytes; the rest are
//! tokens (a byte each: its low 7 bits pick a token, its high bit ends a push).

#![no_main]

use std::sync::{Arc, LazyLock};

use appliance_core::stream_decoder::StreamDecoder;
use appliance_core::tokenizer::Tokenizer;
use libfuzzer_sys::fuzz_target;

/// A SentencePiece vocabulary: byte pieces, space marks, control tokens, a `Strip` of the start.
static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let mut pieces: Vec<String> = [
        "<s>",
        "</s>",
        "\u{2581}",
        "a",
        "ab",
        "\u{2581}b",
        "é",
        "😀",
        "\u{FFFD}",
    ]
    .map(String::from)
    .into();
    let bytes = [
        0x20, 0x41, 0x61, 0x7F, 0x80, 0x8F, 0x90, 0x98, 0x9F, 0xA0, 0xA9, 0xBF, 0xC0, 0xC2, 0xC3,
        0xE0, 0xE2, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF, 0xBD, 0xBB,
    ];
    pieces.extend(bytes.map(|byte: u8| format!("<0x{byte:02X}>")));
    let quoted: Vec<String> = (0..)
        .zip(&pieces)
        .map(|(id, piece)| format!("{piece:?}: {id}"))
        .collect();
    let control = |id: u32, name: &str| {
        format!(
            r#"{{"id": {id}, "content": "{name}", "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false}}"#
        )
    };
    let json = format!(
        r#"{{"version": "1.0", "added_tokens": [{}, {}], "model": {{"type": "BPE", "byte_fallback": true, "merges": [], "vocab": {{{}}}}}, "decoder": {{"type": "Sequence", "decoders": [{{"type": "Replace", "pattern": {{"String": "{mark}"}}, "content": " "}}, {{"type": "ByteFallback"}}, {{"type": "Fuse"}}, {{"type": "Strip", "content": " ", "start": 1, "stop": 0}}]}}}}"#,
        control(0, "<s>"),
        control(1, "</s>"),
        quoted.join(", ").replace("\\u{fffd}", "\u{FFFD}"),
        mark = '\u{2581}',
    );
    Arc::new(Tokenizer::new(json.as_bytes(), 0).expect("a tokenizer"))
});

/// Stop strings from the front of the data, and what is left of it.
fn stops(data: &[u8]) -> (Vec<String>, &[u8]) {
    let Some((count, mut rest)) = data.split_first() else {
        return (Vec::new(), data);
    };
    let mut stops = Vec::new();
    for _ in 0..count % 4 {
        let Some((length, behind)) = rest.split_first() else {
            break;
        };
        let (stop, behind) = behind.split_at(behind.len().min(usize::from(length % 8)));
        stops.push(String::from_utf8_lossy(stop).into_owned());
        rest = behind;
    }
    stops.retain(|stop| !stop.is_empty());
    (stops, rest)
}

/// The text in front of the first stop string to be complete, the longest of those that end there.
fn up_to_stop<'text>(text: &'text str, stops: &[String]) -> (&'text str, bool) {
    for (at, character) in text.char_indices() {
        let end = at + character.len_utf8();
        let ending = stops.iter().filter(|stop| text[..end].ends_with(*stop));
        if let Some(length) = ending.map(String::len).max() {
            return (&text[..end - length], true);
        }
    }
    (text, false)
}

fuzz_target!(|data: &[u8]| {
    let (stops, tokens) = stops(data);
    let vocab = TOKENIZER.vocab_size() as u32;
    let ids: Vec<u32> = tokens
        .iter()
        .map(|byte| u32::from(byte & 0x7F) % vocab)
        .collect();
    let mut decoder = StreamDecoder::new(Arc::clone(&TOKENIZER), &stops).expect("no stop is empty");
    let whole = TOKENIZER.decode(&ids).expect("known ids");
    let (expected, stopped) = up_to_stop(&whole, &stops);
    let mut text = String::new();
    let mut delivered = 0;
    let mut start = 0;
    for (at, byte) in tokens.iter().enumerate() {
        if byte & 0x80 == 0 && at + 1 < ids.len() {
            continue;
        }
        text += &decoder.push(&ids[start..=at]).expect("known ids");
        start = at + 1;
        assert!(
            expected.starts_with(&text),
            "what was delivered is taken back"
        );
        assert!(decoder.delivered_tokens() >= delivered && decoder.delivered_tokens() <= start);
        delivered = decoder.delivered_tokens();
        let said = TOKENIZER.decode(&ids[..delivered]).expect("known ids");
        assert!(
            text.starts_with(&said),
            "a token counts before its text is delivered"
        );
    }
    text += &decoder.finish();
    assert_eq!((text.as_str(), decoder.stopped()), (expected, stopped));
    if !stopped {
        assert_eq!(decoder.delivered_tokens(), ids.len());
    }
});
