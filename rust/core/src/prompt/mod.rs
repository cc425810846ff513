//! Prompts: from messages, stored ids and a chat format's own ids to the one list the model reads.
//!
//! It owns the cut of a long conversation (`cut`, `parts`), the format as ids (`pieces`) and the putting
//! together (`assemble`), so that a prompt of any length is one call. It never renders a template,
//! never reads a conversation, and never changes a message: what a strict format wants merged is
//! merged by the caller.

pub mod assemble;
pub mod cut;
pub mod parts;
pub mod pieces;
