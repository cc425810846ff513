//! What of a long conversation still goes into the prompt: a sticky sawtooth. Pure integers.
//!
//! The first kept turn only moves forward, only when the window is full, and then to the next whole step
//! of the path, so that between two moves every prompt starts with the one before it and the cache keeps
//! serving it; parts that may go do so at such a move, and stay away. The cut is a fold over the sizes of
//! the path alone: the same path gives the same cut after a restart, on a branch, and for a prompt that is
//! looked at years later. Steps are counted from the start of the path, so that branches which are cut at
//! different turns are cut at the same places: what one computed after a cut serves the others. It never
//! sees text or token ids.

/// Room for a prompt, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The model's context.
    pub limit: i64,
    /// What the reply needs.
    pub reserve: i64,
    /// The places to cut at are so many tokens apart.
    pub step: i64,
    /// What the newest opening counts for at least: within it, another wording of the newest message
    /// has the same cut.
    pub draft: i64,
}

impl Window {
    /// What a prompt may use.
    pub fn room(&self) -> i64 {
        self.limit - self.reserve
    }

    /// How much of the path is to be gone when `needed` tokens must be: whole steps, so that a quarter
    /// of one at least is free afterwards.
    fn place(&self, needed: i64) -> i64 {
        if self.step == 0 {
            return needed;
        }
        (needed + self.step / 4 + self.step - 1) / self.step * self.step
    }
}

/// What a message is for the turns of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It opens a turn: a user's message.
    Opens,
    /// It belongs to the opening that follows it, if one does at once: a system text.
    Leads,
    /// It belongs to what is before it: a reply, and what goes on with the block before it.
    Follows,
}

/// One message of a path, as the cut sees it. What comes first opens a turn, whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// What it is for the turns.
    pub place: Place,
    /// Its tokens, the format's text in front of it included.
    pub tokens: i64,
}

/// What may be left out besides turns: tokens of each unit, in the order in which they go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Optional {
    /// Less important than old turns: they go before them.
    pub early: Vec<i64>,
    /// More important: they go when the newest turn would not fit otherwise, and no further.
    pub late: Vec<i64>,
}

/// What is kept of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How many messages at the front are not in the prompt.
    pub dropped: usize,
    /// How many of `Optional::early` are not.
    pub early: usize,
    /// How many of `Optional::late` are not.
    pub late: usize,
    /// The fixed parts and all that is kept. The next turn goes on from it: while it, the reply and
    /// the next opening (`Window::draft` at least) together are within the room, the cut stays.
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
pub fn cut(
    sizes: impl Iterator<Item = Size>,
    fixed: i64,
    optional: &Optional,
    window: &Window,
) -> Cut {
    let turns = turns(sizes);
    let (mut early, mut late, mut anchor) = (0, 0, 0);
    // Tokens cut so far.
    let mut gone = 0;
    let mut held = fixed + optional.early.iter().chain(&optional.late).sum::<i64>();
    for (index, turn) in turns.iter().enumerate() {
        let asked = turn.opening.max(window.draft);
        if held + asked > window.room() {
            let place = window.place(gone + held + asked - window.room());
            let before = held + gone;
            while early < optional.early.len() && gone < place {
                gone += optional.early[early];
                early += 1;
            }
            // A turn that fills the window alone is kept alone.
            while anchor < index && gone < place {
                gone += turns[anchor].opening + turns[anchor].answer;
                anchor += 1;
            }
            held = before - gone;
            while late < optional.late.len() && held + turn.opening > window.room() {
                held -= optional.late[late];
                late += 1;
            }
        }
        held += turn.opening + turn.answer;
    }
    Cut {
        dropped: turns[anchor].start,
        early,
        late,
        window_tokens: held,
        newest_opening: turns[turns.len() - 1].opening,
    }
}

/// The turns of a path; of none, one without a message, so that the fixed parts are cut too.
fn turns(sizes: impl Iterator<Item = Size>) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    // Where the system texts just before this message start, and their tokens.
    let mut leading: Option<(usize, i64)> = None;
    for (index, Size { place, tokens }) in sizes.enumerate() {
        match turns.last_mut() {
            None => turns.push(Turn {
                start: index,
                opening: tokens,
                answer: 0,
            }),
            Some(turn) => match (place, leading) {
                (Place::Opens, Some((start, _))) if start == turn.start => turn.opening += tokens,
                (Place::Opens, _) => {
                    let (start, led) = leading.unwrap_or((index, 0));
                    turn.answer -= led;
                    turns.push(Turn {
                        start,
                        opening: led + tokens,
                        answer: 0,
                    });
                }
                (Place::Leads, Some((start, _))) if start == turn.start => turn.opening += tokens,
                (Place::Leads | Place::Follows, _) => turn.answer += tokens,
            },
        }
        leading = match place {
            Place::Leads => {
                let (start, led) = leading.unwrap_or((index, 0));
                Some((start, led + tokens))
            }
            Place::Opens | Place::Follows => None,
        };
    }
    if turns.is_empty() {
        turns.push(Turn {
            start: 0,
            opening: 0,
            answer: 0,
        });
    }
    turns
}
