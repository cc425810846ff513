//! Text to token ids and back, through the public names of the crate.

mod fast_way;
mod small_tokenizers;
mod stream_decoder;
mod tokenizer;
