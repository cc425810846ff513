//! Which turns of a long conversation still go into the prompt: a sticky sawtooth. Pure integers.
//!
//! The first kept turn only moves forward, only when the window is full, and then by a whole step, so
//! that between two moves every prompt starts with the one before it and the cache keeps serving it. The
//! move is a fold over the sizes of the path alone: the same path gives the same cut after a restart, on
//! a branch, and for a prompt that is looked at years later; and a path that starts at a cut of before
//! gives the same cut as the whole one. It never sees text or token ids.

/// Room for a prompt, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The model's context.
    pub limit: i64,
    /// What the reply needs.
    pub reserve: i64,
    /// How much is cut at once.
    pub step: i64,
}

impl Window {
    /// What a prompt may use.
    pub fn room(&self) -> i64 {
        self.limit - self.reserve
    }
}

/// One message of a path, as the cut sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Whether it opens a turn: a user's message does. What comes first opens one too.
    pub opens: bool,
    /// Its tokens, the format's text in front of it included.
    pub tokens: i64,
}

/// What is kept of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How many messages at the front are not in the prompt.
    pub dropped: usize,
    /// The fixed parts and all that is kept. The next turn goes on from it: while it, the reply and
    /// the next opening together are within the room, the cut stays.
    pub window_tokens: i64,
    /// The opening of the newest turn, 0 without turns. With the fixed parts alone it may be more than
    /// the room: then there is no prompt.
    pub newest_opening: i64,
}

struct Turn {
    start: usize,
    opening: i64,
    answer: i64,
}

/// The cut for a reply to the last turn, whose answer so far, if any, is not counted against the room.
/// `fixed` are the tokens of the parts in every prompt. O(messages).
pub fn cut(sizes: impl Iterator<Item = Size>, fixed: i64, window: &Window) -> Cut {
    let turns = turns(sizes);
    let mut anchor = 0;
    let mut kept = 0;
    for (index, turn) in turns.iter().enumerate() {
        let mut needed = fixed + kept + turn.opening;
        if needed > window.room() {
            // A turn that fills the window alone is kept alone: the low-water mark yields to it.
            while anchor < index && needed > window.room() - window.step {
                let gone = turns[anchor].opening + turns[anchor].answer;
                anchor += 1;
                kept -= gone;
                needed -= gone;
            }
        }
        kept += turn.opening + turn.answer;
    }
    Cut {
        dropped: turns.get(anchor).map_or(0, |turn| turn.start),
        window_tokens: fixed + kept,
        newest_opening: turns.last().map_or(0, |turn| turn.opening),
    }
}

fn turns(sizes: impl Iterator<Item = Size>) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for (start, size) in sizes.enumerate() {
        match turns.last_mut() {
            Some(turn) if !size.opens => turn.answer += size.tokens,
            _ => turns.push(Turn {
                start,
                opening: size.tokens,
                answer: 0,
            }),
        }
    }
    turns
}
