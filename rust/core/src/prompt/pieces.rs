//! A chat format as token ids: what stands in front of a content, by the role before it and its own,
//! and what follows the last.
//!
//! It owns the table and the look-up. It never derives one from a template, and never sees a content.

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The operator's text.
    System,
    /// A person.
    User,
    /// The model.
    Assistant,
}

const ROLES: usize = 3;

/// What a format puts in front of a content, and whether it takes white space off the content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Ids in front of the content, those that close the message before it included.
    pub before: Vec<u32>,
    /// White space at the start of the content is taken off.
    pub trim_left: bool,
    /// White space at its end is.
    pub trim_right: bool,
}

impl Slot {
    /// The content as the template places it.
    pub fn trimmed<'text>(&self, content: &'text str) -> &'text str {
        let mut content = content;
        if self.trim_left {
            content = content.trim_start_matches(is_space);
        }
        if self.trim_right {
            content = content.trim_end_matches(is_space);
        }
        content
    }
}

/// White space as Python's `str.strip`, which trims for the templates, sees it: Unicode's, and the
/// four ASCII separators.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&character)
}

/// Where the contents of a list of messages go: a slot each, and the ids after the last.
#[derive(Debug, PartialEq, Eq)]
pub struct Placement<'format> {
    /// One for each message.
    pub slots: Vec<&'format Slot>,
    /// What follows the last content.
    pub after: &'format [u32],
}

/// The table of a format whose texts depend on neighbours only.
#[derive(Debug, Default)]
pub struct ChatPieces {
    slots: [[Option<Slot>; ROLES]; ROLES + 1],
    /// By the last role: without and with the header of a reply.
    ends: [[Option<Vec<u32>>; 2]; ROLES],
    overhead: [usize; ROLES],
}

impl ChatPieces {
    /// Set the slot of a role behind another, or at the start.
    pub fn set_slot(&mut self, before: Option<Role>, role: Role, slot: Slot) {
        self.slots[row(before)][role as usize] = Some(slot);
    }

    /// Set what follows a last message of a role, with the header of a reply or without.
    pub fn set_end(&mut self, last: Role, header: bool, ids: Vec<u32>) {
        self.ends[last as usize][usize::from(header)] = Some(ids);
    }

    /// Set how many tokens the cut counts for the format's text in front of a role's content.
    pub fn set_overhead(&mut self, role: Role, tokens: usize) {
        self.overhead[role as usize] = tokens;
    }

    /// What the cut counts for the format's text in front of a content.
    pub fn overhead(&self, role: Role) -> usize {
        self.overhead[role as usize]
    }

    /// What the cut counts for the format's text in every prompt: the header of the reply and, without
    /// a system text, what a prompt begins with (often one of the format's own).
    pub fn fixed_tokens(&self, has_system: bool) -> usize {
        let header = self.end(Role::User, true).map_or(0, <[u32]>::len);
        if has_system {
            return header;
        }
        let opening = self.slots[row(None)][Role::User as usize]
            .as_ref()
            .map_or(0, |slot| slot.before.len());
        header + opening.saturating_sub(self.overhead(Role::User))
    }

    /// The places of messages of these roles; None when the format refuses their order.
    pub fn place(&self, roles: impl Iterator<Item = Role>, header: bool) -> Option<Placement<'_>> {
        let mut slots = Vec::with_capacity(roles.size_hint().0);
        let mut before = None;
        for role in roles {
            slots.push(self.slots[row(before)][role as usize].as_ref()?);
            before = Some(role);
        }
        Some(Placement {
            slots,
            after: self.end(before?, header)?,
        })
    }

    fn end(&self, last: Role, header: bool) -> Option<&[u32]> {
        self.ends[last as usize][usize::from(header)].as_deref()
    }
}

fn row(before: Option<Role>) -> usize {
    before.map_or(ROLES, |role| role as usize)
}
