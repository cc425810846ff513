//! When pages were used last. Owns the order of these moments; never tells time.

/// When a page was used: a count of touches, not of time, moved forward by priority; with `LIVE` unless the
/// page is superseded, so that superseded pages come before all others and are in order among themselves.
pub(super) type Tick = u64;

const LIVE: Tick = 1 << 63;

/// How many later uses one step of priority outlives.
pub const PRIORITY_USES: u64 = 4096;

/// The use at the `touches`-th touch.
pub(super) fn used_at(touches: u64, priority: u8) -> Tick {
    LIVE | (touches + u64::from(priority) * PRIORITY_USES)
}

/// When the pages of one node were used last.
///
/// A use of a page is a use of all pages before it, so the last uses fall from page to page: only
/// the page at the end of each step is kept, with pages ascending and ticks descending.
#[derive(Debug, Default)]
pub(super) struct Uses {
    steps: Vec<(usize, Tick)>,
}

impl Uses {
    /// The last use of page `pages - 1`; 0 for one never used.
    pub(super) fn of(&self, pages: usize) -> Tick {
        let step = self.steps.partition_point(|&(end, _)| end < pages);
        self.steps.get(step).map_or(0, |&(_, tick)| tick)
    }

    /// The first `pages` pages were used at `tick`.
    pub(super) fn raise(&mut self, pages: usize, tick: Tick) {
        if self.of(pages) >= tick {
            return;
        }
        let above = self.steps.partition_point(|&(end, _)| end <= pages);
        let older = self.steps[..above].partition_point(|&(_, earlier)| earlier > tick);
        self.steps.splice(older..above, [(pages, tick)]);
    }

    /// Forget the pages from `pages` on.
    pub(super) fn truncate(&mut self, pages: usize) {
        let last = self.of(pages);
        self.steps.retain(|&(end, _)| end < pages);
        if last > 0 {
            self.steps.push((pages, last));
        }
    }

    /// Pages from `from` on and before `to` are superseded: what was used after them still counts for them.
    pub(super) fn supersede(&mut self, from: usize, to: usize) {
        let last = self.of(from);
        let ends_live = self.of(to + 1) & LIVE != 0;
        if ends_live {
            self.steps.retain(|&(end, _)| end <= from || to < end);
        }
        let first = self.steps.partition_point(|&(end, _)| end <= from);
        if !ends_live {
            // Later pages, superseded before, may have been used with a higher priority.
            let mut below = 0;
            for (_, tick) in self.steps[first..].iter_mut().rev() {
                below = below.max(*tick & !LIVE);
                *tick = below;
            }
            // A step that was cut before, and its other part, are one again.
            self.steps.dedup_by(|later, kept| {
                let same = later.1 == kept.1;
                kept.0 = if same { later.0 } else { kept.0 };
                same
            });
        }
        // The step that reached across `from` was cut there.
        if self.of(from) < last {
            self.steps.insert(first, (from, last));
        }
    }

    pub(super) fn steps(&self) -> &[(usize, Tick)] {
        &self.steps
    }

    /// Take what `steps` gave; false when it cannot have given it.
    pub(super) fn restore(&mut self, steps: &[(usize, Tick)]) -> bool {
        self.steps = steps.to_vec();
        self.is_sound()
    }

    /// Whether pages ascend and uses descend.
    pub(super) fn is_sound(&self) -> bool {
        let mut pairs = self.steps.windows(2);
        pairs.all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1)
    }

    /// Keep the first `pages` pages, give the uses of the others.
    pub(super) fn split_off(&mut self, pages: usize) -> Self {
        let below = self.steps.partition_point(|&(end, _)| end <= pages);
        let lower = self.steps.split_off(below);
        if let Some(&(_, tick)) = lower.first() {
            self.raise(pages, tick);
        }
        Self { steps: lower }
    }
}
