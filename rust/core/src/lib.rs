//! The pure core of the chat appliance: no Python, no I/O, no clock.

#![forbid(unsafe_code)]

pub mod byte_bpe;
pub mod control_guard;
pub mod memo;
mod own_map;
pub mod page_keys;
pub mod prefix_index;
pub mod prompt;
pub mod stop_strings;
pub mod stream_decoder;
pub mod token_table;
pub mod tokenizer;
pub mod word_split;
