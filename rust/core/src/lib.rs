//! The pure core of the chat appliance: no Python, no I/O, no clock.

#![forbid(unsafe_code)]

mod byte_bpe;
mod control_guard;
pub mod lore;
mod memo;
mod own_map;
pub mod page_keys;
pub mod prefix_index;
pub mod prompt;
mod stop_strings;
pub mod stream_decoder;
pub mod token_table;
pub mod tokenizer;
mod word_split;
