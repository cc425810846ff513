//! Messages of about 172 characters, and the demo model's tokenizer.

use std::path::PathBuf;
use std::sync::Arc;

use appliance_core::tokenizer::Tokenizer;

use super::Numbers;

/// The length of a message, on average.
pub const MESSAGE_CHARS: usize = 172;

const MEMO_BYTES: usize = 64 << 20;

const WORDS: &str = "the a you and of to that was in it my this with for her his not but what we they \
    about there dragon tavern castle whisper sword moonlight laughs slowly remember yesterday \
    because thinking something strange beautiful would should never always together adventure \
    continue story please explain maybe friend tonight promise window garden river coffee I'm \
    don't it's you're can't we've answer question weekend computer music hungry actually honestly \
    smiles nods sighs closer voice shadow forest mountain letter secret corazón mañana où très \
    schön wirklich ночь история 物語 今日 😀 🐉 42 1999";

/// A message that nobody has sent before: its words are drawn, and there are 10^50 of them.
pub fn message(numbers: &mut Numbers) -> String {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let wanted = MESSAGE_CHARS / 2 + numbers.below(MESSAGE_CHARS);
    let mut text = String::new();
    while text.chars().count() < wanted {
        if !text.is_empty() {
            text.push_str([" ", " ", " ", " ", " ", ", ", ". ", "! "][numbers.below(8)]);
        }
        text.push_str(words[numbers.below(words.len())]);
    }
    text
}

/// The tokenizer of `$APPLIANCE_MODEL`, else of the model that `make demo` fetched.
pub fn tokenizer() -> Arc<Tokenizer> {
    let directory = std::env::var_os("APPLIANCE_MODEL").map_or_else(
        || {
            let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(
                || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache"),
                PathBuf::from,
            );
            cache.join("appliance/models/SmolLM2-135M-Instruct")
        },
        PathBuf::from,
    );
    let path = directory.join("tokenizer.json");
    let json = std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: run `make demo` once", path.display()));
    Arc::new(Tokenizer::new(&json, MEMO_BYTES).expect("a tokenizer"))
}
