//! Parts around the history, by what may become of them when the window is full.
//!
//! It owns the order in which parts go: the highest priority number first, in the order of the prompt
//! among equals, a block as one. It never decides how many go (`cut`).

use std::collections::HashMap;

use crate::prompt::cut::{Cut, Optional};

/// A part around the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// What errors call it.
    pub name: &'a str,
    /// 0 never goes; of the others the highest number goes first.
    pub priority: u32,
    /// Parts of one block go together.
    pub block: Option<&'a str>,
}

/// One or more parts that go together.
struct Unit {
    priority: u32,
    tokens: i64,
    is_behind: bool,
    parts: Vec<usize>,
}

/// Parts in the order in which they go.
pub struct Leaving {
    units: Vec<Unit>,
    /// How many units go before any turn does.
    early: usize,
}

impl Leaving {
    /// The order of `parts`, of which the first `front` stand before the history; `tokens` are their
    /// sizes. The turns of the history have the priority `history`.
    pub fn new(parts: &[Part<'_>], tokens: &[i64], front: usize, history: u32) -> Self {
        let mut units: Vec<Unit> = Vec::new();
        let mut blocks = HashMap::new();
        for (index, (part, &tokens)) in parts.iter().zip(tokens).enumerate() {
            let known = part.block.and_then(|name| blocks.get(name).copied());
            let at = known.unwrap_or(units.len());
            if let Some(name) = part.block {
                blocks.insert(name, at);
            }
            if at == units.len() {
                units.push(Unit {
                    priority: part.priority,
                    tokens: 0,
                    is_behind: index >= front,
                    parts: Vec::new(),
                });
            }
            let unit = &mut units[at];
            unit.tokens += tokens;
            // A block with one part that never goes never goes.
            unit.priority = unit.priority.min(part.priority);
            unit.parts.push(index);
        }
        units.retain(|unit| unit.priority > 0);
        units.sort_by_key(|unit| std::cmp::Reverse(unit.priority));
        let early = units
            .iter()
            .take_while(|unit| {
                unit.priority > history || (unit.priority == history && !unit.is_behind)
            })
            .count();
        Self { units, early }
    }

    /// Their sizes, for the cut.
    pub fn optional(&self) -> Optional {
        let sizes = |units: &[Unit]| units.iter().map(|unit| unit.tokens).collect();
        Optional {
            early: sizes(&self.units[..self.early]),
            late: sizes(&self.units[self.early..]),
        }
    }

    /// Whether a part may ever go.
    pub fn may_go(&self, part: usize) -> bool {
        self.units.iter().any(|unit| unit.parts.contains(&part))
    }

    /// The parts that a cut leaves out, by index, in the order of the prompt.
    pub fn left_out(&self, cut: &Cut) -> Vec<usize> {
        let early = &self.units[..cut.early];
        let late = &self.units[self.early..self.early + cut.late];
        let gone = early.iter().chain(late);
        let mut parts: Vec<usize> = gone.flat_map(|unit| unit.parts.iter().copied()).collect();
        parts.sort_unstable();
        parts
    }
}
