//! The one call that makes a prompt: encode what has no ids, cut, and put the pieces together.
//!
//! It owns the order of these steps and the sums over them. It never decides how a cut is made (`cut`)
//! or what a format writes (`pieces`).

use std::borrow::Cow;
use std::ops::Deref;

use thiserror::Error;

use crate::memo::SharedIds;
use crate::prompt::cut::{Cut, Size, Window, cut};
use crate::prompt::pieces::{ChatPieces, Placement, Role};
use crate::tokenizer::{Tokenizer, TokenizerError};

/// One message on its way into a prompt.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    /// Who says it.
    pub role: Role,
    /// Its content.
    pub text: &'a str,
    /// Stored ids of exactly `text`.
    pub token_ids: Option<Cow<'a, [u32]>>,
    /// Who may share its tokens, and whose encodings the memo may use for it.
    pub namespace: &'a [u8],
    /// Whether that is everybody: the operator's own text.
    pub is_public: bool,
}

/// How a prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With the header of a new reply.
    Reply,
    /// Right after the last content, which the model goes on writing.
    Continue,
}

/// What a prompt is made of.
#[derive(Debug, PartialEq, Eq)]
pub struct Assembled<'a> {
    /// What the model reads.
    pub token_ids: Vec<u32>,
    /// (namespace, tokens) in order, covering the prompt; neighbours differ.
    pub stretches: Vec<(&'a [u8], usize)>,
    /// Tokens of each message with the format's text in front of it; one more, when there is any, for
    /// the text after the last. They cover the prompt too.
    pub part_tokens: Vec<usize>,
}

/// Why there is no prompt.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AssembleError {
    /// A content that cannot be encoded.
    #[error("content {index}: {error}")]
    Content {
        /// Which message.
        index: usize,
        /// What is wrong with its content.
        error: TokenizerError,
    },
    /// The parts in every prompt and the newest message are more than the room; names and numbers.
    #[error("{0}")]
    TooLong(String),
}

/// The cut of a conversation, and the prompt of what it keeps.
///
/// The first messages, which `front` names, are in every prompt. None when the format refuses the order of roles of
/// what is kept.
///
/// # Errors
/// `Content`, `TooLong`.
pub fn fit<'a>(
    tokenizer: &Tokenizer,
    pieces: &ChatPieces,
    messages: &[Message<'a>],
    front: &[&str],
    window: &Window,
) -> Result<(Cut, Option<Assembled<'a>>), AssembleError> {
    let contents = messages
        .iter()
        .enumerate()
        .map(|(index, message)| content_ids(tokenizer, index, message, message.text))
        .collect::<Result<Vec<_>, _>>()?;
    let size = |index: usize| {
        signed(contents[index].len()) + signed(pieces.overhead(messages[index].role))
    };
    let format_tokens = signed(pieces.fixed_tokens(!front.is_empty()));
    let protected: Vec<(&str, i64)> = front
        .iter()
        .enumerate()
        .map(|(index, name)| (*name, size(index)))
        .chain([("chat format", format_tokens)])
        .collect();
    let front = front.len();
    let sizes = (front..messages.len()).map(|index| Size {
        opens: messages[index].role == Role::User,
        tokens: size(index),
    });
    let cut = checked_cut(sizes, &protected, window)?;
    let kept = |index: &usize| *index < front || *index >= front + cut.dropped;
    let kept: Vec<usize> = (0..messages.len()).filter(kept).collect();
    let roles = kept.iter().map(|&index| messages[index].role);
    let Some(placement) = pieces.place(roles, true) else {
        return Ok((cut, None));
    };
    let mut assembly = Assembly::default();
    for (&index, slot) in kept.iter().zip(&placement.slots) {
        let message = &messages[index];
        let text = slot.trimmed(message.text);
        let again;
        let content = if text.len() == message.text.len() {
            &contents[index]
        } else {
            again = content_ids(tokenizer, index, message, text)?;
            &again
        };
        assembly.add(&slot.before, content, message);
    }
    Ok((cut, Some(assembly.finish(placement.after))))
}

/// The prompt of messages that are all in it, at these places.
///
/// # Errors
/// `Content`.
pub fn join<'a>(
    tokenizer: &Tokenizer,
    placement: &Placement<'_>,
    messages: &[Message<'a>],
    end: End,
) -> Result<Assembled<'a>, AssembleError> {
    let mut assembly = Assembly::default();
    for (index, (message, slot)) in messages.iter().zip(&placement.slots).enumerate() {
        // A reply to be continued keeps its end: its last space belongs to the next word.
        let goes_on = end == End::Continue && index + 1 == messages.len();
        let text = if goes_on {
            message.text
        } else {
            slot.trimmed(message.text)
        };
        let content = content_ids(tokenizer, index, message, text)?;
        assembly.add(&slot.before, &content, message);
    }
    let after = match end {
        End::Reply => placement.after,
        End::Continue => &[],
    };
    Ok(assembly.finish(after))
}

/// The cut of these sizes, when the protected parts and the newest opening fit into the room.
///
/// # Errors
/// `TooLong`, with the names and sizes of `protected`.
pub fn checked_cut(
    sizes: impl Iterator<Item = Size>,
    protected: &[(&str, i64)],
    window: &Window,
) -> Result<Cut, AssembleError> {
    let fixed: i64 = protected.iter().map(|(_, tokens)| tokens).sum();
    let cut = cut(sizes, fixed, window);
    let needed = fixed + cut.newest_opening;
    if needed <= window.room() {
        return Ok(cut);
    }
    let parts: Vec<String> = protected
        .iter()
        .chain([&("new message", cut.newest_opening)])
        .map(|(name, tokens)| format!("{name} {tokens}"))
        .collect();
    Err(AssembleError::TooLong(format!(
        "the prompt does not fit: {} are {needed} tokens, the context is {} tokens of which {} are \
         kept for the reply",
        parts.join(", "),
        window.limit,
        window.reserve,
    )))
}

/// Stored ids where they are those of `text`, else the memo's or new ones.
fn content_ids<'m>(
    tokenizer: &Tokenizer,
    index: usize,
    message: &'m Message<'_>,
    text: &str,
) -> Result<Content<'m>, AssembleError> {
    match &message.token_ids {
        Some(ids) if text.len() == message.text.len() => Ok(Content::Stored(ids)),
        _ => tokenizer
            .encode(text, message.namespace)
            .map(Content::Encoded)
            .map_err(|error| AssembleError::Content { index, error }),
    }
}

/// A count of tokens; memory holds no more than `i64` can say.
fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

enum Content<'a> {
    Stored(&'a [u32]),
    Encoded(SharedIds),
}

impl Deref for Content<'_> {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match self {
            Self::Stored(ids) => ids,
            Self::Encoded(ids) => ids,
        }
    }
}

/// A prompt that grows by one message at a time.
#[derive(Default)]
struct Assembly<'a> {
    token_ids: Vec<u32>,
    stretches: Vec<(&'a [u8], usize)>,
    part_tokens: Vec<usize>,
    /// Whose the next tokens are.
    namespace: Option<&'a [u8]>,
}

impl<'a> Assembly<'a> {
    /// The format's text in front of a public first message is public too; from the first private
    /// content on, every token belongs to the latest private namespace. A prompt that begins with
    /// private text is private from its first token: even the format's own words would tell one tenant,
    /// by a hit, that another was here.
    fn add(&mut self, before: &[u32], content: &[u32], message: &Message<'a>) {
        let front = *self.namespace.get_or_insert(message.namespace);
        self.extend_stretch(front, before.len());
        self.token_ids.extend_from_slice(before);
        let own = if message.is_public {
            front
        } else {
            message.namespace
        };
        self.namespace = Some(own);
        self.extend_stretch(own, content.len());
        self.token_ids.extend_from_slice(content);
        self.part_tokens.push(before.len() + content.len());
    }

    fn finish(mut self, after: &[u32]) -> Assembled<'a> {
        if !after.is_empty() {
            self.extend_stretch(self.namespace.unwrap_or_default(), after.len());
            self.token_ids.extend_from_slice(after);
            self.part_tokens.push(after.len());
        }
        Assembled {
            token_ids: self.token_ids,
            stretches: self.stretches,
            part_tokens: self.part_tokens,
        }
    }

    fn extend_stretch(&mut self, namespace: &'a [u8], tokens: usize) {
        match self.stretches.last_mut() {
            Some((last, length)) if *last == namespace => *length += tokens,
            _ if tokens > 0 => self.stretches.push((namespace, tokens)),
            _ => {}
        }
    }
}
