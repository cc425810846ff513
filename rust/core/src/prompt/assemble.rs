//! The one call that makes a prompt: encode what has no ids, cut, and put the pieces together.
//!
//! It owns the order of these steps and the sums over them. It never decides how a cut is made (`cut`)
//! or what a format writes (`pieces`).

use std::borrow::Cow;
use std::ops::Deref;

use thiserror::Error;

use crate::memo::SharedIds;
use crate::prompt::cut::{Cut, Place, Size, Window, cut};
use crate::prompt::parts::{Leaving, Part};
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

/// What a cut is made of: the parts around the history, what goes on with a block, and the room.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The parts before the history, then those behind it.
    pub parts: &'a [Part<'a>],
    /// How many of them stand before it.
    pub front: usize,
    /// Messages of the history, by index in it, that go on with the block of the message before them: a
    /// cut never parts the two.
    pub holds: &'a [usize],
    /// The priority of the history's turns.
    pub history: u32,
    /// The room.
    pub window: &'a Window,
}

/// What is kept of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The cut of the turns.
    pub cut: Cut,
    /// The parts that are not in the prompt, by index.
    pub left_out: Vec<usize>,
}

/// The cut of a conversation, and the prompt of what it keeps.
///
/// The messages are the parts before the history, the history, and the parts behind it. None when the format
/// refuses the order of roles of what is kept.
///
/// # Errors
/// `Content`, `TooLong`.
pub fn fit<'a>(
    tokenizer: &Tokenizer,
    pieces: &ChatPieces,
    messages: &[Message<'a>],
    asked: &Asked<'_>,
) -> Result<(Kept, Option<Assembled<'a>>), AssembleError> {
    let contents = messages
        .iter()
        .enumerate()
        .map(|(index, message)| content_ids(tokenizer, index, message, message.text))
        .collect::<Result<Vec<_>, _>>()?;
    let size = |index: usize| {
        signed(contents[index].len()) + signed(pieces.overhead(messages[index].role))
    };
    let (front, behind) = (
        asked.front,
        messages.len() + asked.front - asked.parts.len(),
    );
    let tokens: Vec<i64> = (0..front).chain(behind..messages.len()).map(size).collect();
    let history = (front..behind).map(|index| (messages[index].role, size(index)));
    let format_tokens = signed(pieces.fixed_tokens(front > 0));
    let kept = checked_cut(history, &tokens, format_tokens, asked)?;
    let is_kept = |index: &usize| match *index {
        index if index < front => kept.left_out.binary_search(&index).is_err(),
        index if index < behind => index >= front + kept.cut.dropped,
        index => kept
            .left_out
            .binary_search(&(index - behind + front))
            .is_err(),
    };
    let order: Vec<usize> = (0..messages.len()).filter(is_kept).collect();
    let roles = order.iter().map(|&index| messages[index].role);
    let Some(placement) = pieces.place(roles, true) else {
        return Ok((kept, None));
    };
    let mut assembly = Assembly::default();
    for (&index, slot) in order.iter().zip(&placement.slots) {
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
    Ok((kept, Some(assembly.finish(placement.after))))
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

/// What is kept of a history (roles and sizes) between parts of these sizes, when the parts that never go
/// and the newest opening fit into the room. `format_tokens` are the format's own in every prompt.
///
/// # Errors
/// `TooLong`, with the names and sizes of all that never goes.
pub fn checked_cut(
    history: impl Iterator<Item = (Role, i64)>,
    tokens: &[i64],
    format_tokens: i64,
    asked: &Asked<'_>,
) -> Result<Kept, AssembleError> {
    let mut holds = asked.holds.iter().copied().peekable();
    let sizes = history.enumerate().map(|(index, (role, tokens))| {
        let goes_on = holds.next_if_eq(&index).is_some();
        let place = match role {
            _ if goes_on => Place::Follows,
            Role::User => Place::Opens,
            Role::System => Place::Leads,
            Role::Assistant => Place::Follows,
        };
        Size { place, tokens }
    });
    let leaving = Leaving::new(asked.parts, tokens, asked.front, asked.history);
    let protected: Vec<(&str, i64)> = (asked.parts.iter().zip(tokens).enumerate())
        .filter(|(index, _)| !leaving.may_go(*index))
        .map(|(_, (part, &tokens))| (part.name, tokens))
        .chain([("chat format", format_tokens)])
        .collect();
    let fixed: i64 = protected.iter().map(|(_, tokens)| tokens).sum();
    let cut = cut(sizes, fixed, &leaving.optional(), asked.window);
    let needed = fixed + cut.newest_opening;
    if needed <= asked.window.room() {
        let left_out = leaving.left_out(&cut);
        return Ok(Kept { cut, left_out });
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
        asked.window.limit,
        asked.window.reserve,
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
