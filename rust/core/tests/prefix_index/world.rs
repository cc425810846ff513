//! The index, its model, and simulated contents: every operation is done to all of them.

use appliance_core::prefix_index::{IndexError, LeaseId, PageId, PrefixIndex, Prompt, RowCopy};
use proptest::sample::Index;

use crate::Operation;
use crate::contents::{Contents, stretches};
use crate::model::{Answer, Model, Pair};
use crate::tips::Turn;

/// A running sequence, as an engine has it.
pub struct Sequence {
    pub lease: LeaseId,
    pub path: Vec<Pair>,
    /// Leading tokens whose rows are written.
    pub computed: usize,
    /// Not done before the first write: the source has to stay as it is until then.
    pub copy: Option<RowCopy>,
}

/// See the module.
pub struct World {
    pub page_size: usize,
    pub namespaces: u8,
    pub alphabet: u32,
    pub index: PrefixIndex,
    pub model: Model,
    pub sequences: Vec<Option<Sequence>>,
    pub contents: Contents,
    pub paths: Vec<Vec<Pair>>,
    /// Numbers of the released leases, in that order.
    pub released: Vec<u64>,
}

impl World {
    pub fn new(
        (page_size, pages, namespaces, alphabet): (usize, usize, u8, u32),
        slots: [u32; 2],
    ) -> Self {
        Self {
            page_size,
            namespaces,
            alphabet,
            index: PrefixIndex::new(page_size, pages)
                .unwrap()
                .with_pins(pages / 2)
                .with_tiers(slots[0], slots[1]),
            model: Model::new(
                page_size,
                pages,
                pages / 2,
                slots.map(|slots| slots as usize),
            ),
            sequences: Vec::new(),
            contents: Contents::new(page_size),
            paths: Vec::new(),
            released: Vec::new(),
        }
    }

    fn table(&self, lease: LeaseId) -> Vec<PageId> {
        self.index.lease(lease).unwrap().page_table().to_vec()
    }

    /// Pages that the index says are fresh: nobody has them, and what is in them is lost.
    fn receive(&mut self, pages: &[PageId]) {
        for &page in pages {
            self.contents.lose(page, 0);
        }
    }

    /// What an admission or a growth moved, before anything is written.
    fn carry_out_moves(&mut self) {
        let moves = self.index.take_moves();
        let expected = self.model.shelf.take_moves();
        self.contents.carry_out(&moves, &expected);
    }

    /// `tip_tokens`: how much of the path is before the tip that the turn goes on from.
    fn admit(&mut self, path: Vec<Pair>, room: usize, turn: Turn, tip_tokens: usize) {
        let new = &path[tip_tokens..];
        let tokens: Vec<u32> = new.iter().map(|pair| pair.1).collect();
        let reserve_tokens = path.len() + room;
        let capacity = self.index.stats().pages_total * self.page_size;
        let prompt = Prompt {
            token_ids: &tokens,
            stretches: &stretches(new),
            after: turn.continued,
            conversation: turn.conversation,
            priority: turn.priority,
            resumes: turn.resumes,
            onload_tokens_min: turn.onload_tokens_min,
        };
        let admitted = self.index.admit(&prompt, reserve_tokens);
        if path.is_empty() || reserve_tokens > capacity {
            assert!(admitted.is_err());
            return;
        }
        let id = admitted.unwrap();
        let answer = id.map(|id| {
            let lease = self.index.lease(id).unwrap();
            assert_eq!(lease.prompt_tokens(), path.len());
            Answer {
                hit_tokens: lease.hit_tokens(),
                copy: lease.copy(),
                page_table: lease.page_table().to_vec(),
            }
        });
        self.model
            .admit(path.clone(), reserve_tokens, turn, answer.as_ref());
        self.carry_out_moves();
        self.paths.push(path.clone());
        let (Some(lease), Some(answer)) = (id, answer) else {
            return;
        };
        assert!(
            answer.hit_tokens < path.len(),
            "one token is always computed"
        );
        let not_fresh = answer.hit_tokens - answer.copy.map_or(0, |copy| copy.rows);
        self.receive(&answer.page_table[not_fresh.div_ceil(self.page_size)..]);
        self.sequences.push(Some(Sequence {
            lease,
            path,
            computed: answer.hit_tokens,
            copy: answer.copy,
        }));
    }

    /// From the admission to the release, if it is not refused.
    fn serve(&mut self, back: usize, cut: Option<Index>, new: Vec<Pair>, turn: Turn) {
        let earlier = self.paths.iter().rev().nth(back);
        let mut path = earlier.cloned().unwrap_or_default();
        path.truncate(cut.map_or(path.len(), |cut| cut.index(path.len() + 1)));
        // Of some paths more is asked than the device has.
        path.truncate(self.index.stats().pages_total * self.page_size);
        if cut.is_some() || path.is_empty() {
            path.extend(self.in_world(new));
        }
        let number = self.sequences.len();
        self.admit(path, 0, turn, 0);
        if let Some(Some(sequence)) = self.sequences.get(number) {
            let missing = vec![0; sequence.path.len() - sequence.computed];
            self.compute(number, &missing);
            self.commit(number, 0);
            self.release(number);
        }
    }

    fn go_on(&mut self, back: usize, new: Vec<Pair>, room: usize, turn: Turn) {
        let Some(&number) = self.released.iter().rev().nth(back) else {
            return;
        };
        let known = self.model.tip(number);
        assert_eq!(self.index.node_tokens(number), known.map(<[Pair]>::len));
        if let Some(path) = known {
            let tip_tokens = path.len();
            let path = path.iter().copied().chain(new).collect();
            let continued = Some(number);
            self.admit(path, room, Turn { continued, ..turn }, tip_tokens);
        } else {
            let prompt = Prompt {
                after: Some(number),
                ..Prompt::default()
            };
            let refused = self.index.admit(&prompt, 1);
            assert_eq!(refused, Err(IndexError::UnknownNode));
        }
    }

    fn copy_rows(&mut self, copy: Option<RowCopy>) {
        let Some(copy) = copy else { return };
        self.contents.copy(copy);
    }

    fn compute(&mut self, number: usize, tokens: &[u32]) {
        let Some(mut sequence) = self.sequences[number].take() else {
            return;
        };
        let copy = sequence.copy.take();
        self.copy_rows(copy);
        let namespace = sequence.path.last().unwrap().0;
        for &token in tokens {
            let position = sequence.computed;
            let table = self.table(sequence.lease);
            if position == table.len() * self.page_size {
                let grown = self.index.grow(sequence.lease, position + 1).unwrap();
                let new = self.table(sequence.lease);
                let answer = grown.then_some(&new[..]);
                self.model.grow(number, position + 1, answer);
                self.carry_out_moves();
                assert!(new.starts_with(&table), "a page table changed");
                self.receive(&new[table.len()..]);
                if !grown {
                    break;
                }
            }
            if position == sequence.path.len() {
                let token = token % self.alphabet;
                self.index.append(sequence.lease, &[token]).unwrap();
                sequence.path.push((namespace, token));
            }
            let page = self.table(sequence.lease)[position / self.page_size];
            let row = position % self.page_size;
            self.assert_writable(number, page, row);
            self.contents.write(page, row, &sequence.path[..=position]);
            sequence.computed += 1;
        }
        self.sequences[number] = Some(sequence);
    }

    /// Nobody but this sequence can read the row.
    fn assert_writable(&self, number: usize, page: PageId, row: usize) {
        for entry in self.model.entries.iter().filter(|e| e.page == page) {
            let rows = (entry.path.len() - 1) % self.page_size + 1;
            assert!(row >= rows, "a committed row is written again");
        }
        for (other, sequence) in self.sequences.iter().enumerate() {
            if let Some(sequence) = sequence {
                let has_page = self.table(sequence.lease).contains(&page);
                assert!(other == number || !has_page, "two sequences write one page");
            }
        }
    }

    fn commit(&mut self, number: usize, back: usize) {
        let Some(sequence) = &mut self.sequences[number] else {
            return;
        };
        let copy = sequence.copy.take();
        let lease = sequence.lease;
        let path = sequence.path[..sequence.computed.saturating_sub(back)].to_vec();
        self.copy_rows(copy);
        let table = self.table(lease);
        self.index.commit(lease, path.len()).unwrap();
        assert_eq!(self.table(lease), table, "a page table changed");
        self.model.commit(number, &path);
        self.paths.push(path);
    }

    /// Some position of a path is wrong. Copies come first, as they do in an engine.
    fn quarantine(&mut self, path: &[Pair], position: Index) {
        for number in 0..self.sequences.len() {
            let sequence = self.sequences[number].as_mut();
            let copy = sequence.and_then(|sequence| sequence.copy.take());
            self.copy_rows(copy);
        }
        let tokens: Vec<u32> = path.iter().map(|pair| pair.1).collect();
        let from_token = position.index(path.len() + 1);
        let answer = self.index.quarantine(&tokens, &stretches(path), from_token);
        if from_token < path.len() {
            assert_eq!(answer, Ok(self.model.quarantine(&path[..=from_token])));
        } else {
            assert!(answer.is_err());
        }
    }

    /// Once something was computed after it, nothing that was restored is rejected.
    fn reject(&mut self, number: usize, back: usize) {
        let Some(sequence) = &mut self.sequences[number] else {
            return;
        };
        let lease = self.index.lease(sequence.lease).unwrap();
        if sequence.computed != lease.hit_tokens() {
            return;
        }
        let table = lease.page_table().to_vec();
        let tokens = lease.hit_tokens().saturating_sub(back);
        let answer = self.index.reject(sequence.lease, tokens);
        self.model.reject(number, tokens, answer.is_ok());
        if answer.is_ok() {
            for position in tokens..sequence.computed {
                let row = position % self.page_size;
                self.contents.lose(table[position / self.page_size], row);
            }
            sequence.computed = tokens;
        }
    }

    pub fn release(&mut self, number: usize) {
        if let Some(sequence) = self.sequences[number].take() {
            self.index.release(sequence.lease);
            self.index.release(sequence.lease);
            self.model.release(number, sequence.lease.number());
            self.released.push(sequence.lease.number());
        }
    }

    fn in_world(&self, pairs: Vec<Pair>) -> Vec<Pair> {
        let (namespaces, alphabet) = (self.namespaces, self.alphabet);
        let pairs = pairs.into_iter();
        pairs
            .map(|(n, token)| (n % namespaces, token % alphabet))
            .collect()
    }

    pub fn run(&mut self, operation: Operation) {
        let numbers = 0..self.sequences.len();
        let live: Vec<usize> = numbers.filter(|&n| self.sequences[n].is_some()).collect();
        let pick = |lease: Index| (!live.is_empty()).then(|| *lease.get(&live));
        match operation {
            Operation::Admit {
                earlier,
                new,
                room,
                turn,
            } => {
                let mut path = Vec::new();
                if let (Some((which, cut)), false) = (earlier, self.paths.is_empty()) {
                    let whole = which.get(&self.paths);
                    path = whole[..cut.index(whole.len() + 1)].to_vec();
                }
                path.extend(self.in_world(new));
                self.admit(path, room, Turn::of(turn), 0);
            }
            Operation::Serve {
                back,
                cut,
                new,
                turn,
            } => self.serve(back, cut, new, Turn::of(turn)),
            Operation::Continue {
                back,
                new,
                room,
                turn,
            } => {
                let new = self.in_world(new);
                self.go_on(back, new, room, Turn::of(turn));
            }
            Operation::Compute { lease, tokens } => {
                if let Some(number) = pick(lease) {
                    self.compute(number, &tokens);
                }
            }
            Operation::Commit { lease, back } => {
                if let Some(number) = pick(lease) {
                    self.commit(number, back);
                }
            }
            Operation::Release { lease } => {
                if let Some(number) = pick(lease) {
                    self.release(number);
                }
            }
            Operation::Reject { lease, back } => {
                if let Some(number) = pick(lease) {
                    self.reject(number, back);
                }
            }
            Operation::Quarantine { which, position } => {
                if !self.paths.is_empty() {
                    let path = which.get(&self.paths).clone();
                    self.quarantine(&path, position);
                }
            }
            Operation::Pin { back } => {
                if let Some(&number) = self.released.iter().rev().nth(back) {
                    let answer = self.index.pin(number);
                    self.model.pin(number, &answer);
                }
            }
            Operation::Unpin { back } => {
                if let Some(&number) = self.released.iter().rev().nth(back) {
                    assert_eq!(self.index.unpin(number), self.model.unpin(number));
                }
            }
            Operation::Clear => assert_eq!(self.index.clear(), self.model.clear()),
        }
    }
}
