//! Simulated contents: each row of each place holds the path it was computed from. Moves and copies are carried
//! out here.

use std::collections::HashMap;

use appliance_core::page_keys::{PageKey, page_keys};
use appliance_core::prefix_index::{Move, PageId, Place, RowCopy};

use crate::model::Pair;
use crate::shelf::{ExpectedMove, Kind, Shelf};

const NAMESPACES: [&[u8]; 3] = [b"public", b"tenant a", b""];
/// The runs of a path, as the index is given them.
pub fn stretches(path: &[Pair]) -> Vec<(&'static [u8], usize)> {
    let runs = path.chunk_by(|left, right| left.0 == right.0);
    runs.map(|run| (NAMESPACES[run[0].0 as usize], run.len()))
        .collect()
}

pub struct Contents {
    page_size: usize,
    rows: HashMap<(Place, usize), Vec<Pair>>,
    /// The place that each page of a lower tier was moved to last.
    slots: HashMap<Vec<Pair>, Place>,
}

fn kind(place: Place) -> Kind {
    match place {
        Place::Device(_) => Kind::Device,
        Place::Host(_) => Kind::Host,
        Place::Disk(_) => Kind::Disk,
    }
}

impl Contents {
    pub fn new(page_size: usize) -> Self {
        Self {
            page_size,
            rows: HashMap::new(),
            slots: HashMap::new(),
        }
    }

    pub fn write(&mut self, page: PageId, row: usize, path: &[Pair]) {
        self.rows.insert((Place::Device(page), row), path.to_vec());
    }

    /// What is in these rows means nothing any more.
    pub fn lose(&mut self, page: PageId, from_row: usize) {
        for row in from_row..self.page_size {
            self.rows.remove(&(Place::Device(page), row));
        }
    }

    pub fn copy(&mut self, copy: RowCopy) {
        for row in 0..copy.rows {
            let content = self.rows[&(Place::Device(copy.source_page), row)].clone();
            self.write(copy.target_page, row, &content);
        }
    }

    /// Do the moves in order, against those that the model expects. What was moved away is lost where it was.
    pub fn carry_out(&mut self, moves: &[Move], expected: &[ExpectedMove]) {
        assert_eq!(moves.len(), expected.len(), "{moves:?} {expected:?}");
        for (one, expected) in moves.iter().zip(expected) {
            assert_eq!((kind(one.from), kind(one.to)), (expected.from, expected.to));
            assert_eq!(one.key, self.key(&expected.path));
            self.assert_page(one.from, &expected.path);
            for row in 0..self.page_size {
                let content = self.rows.remove(&(one.from, row)).unwrap();
                self.rows.insert((one.to, row), content);
            }
            if expected.from != Kind::Device {
                assert_eq!(self.slots.remove(&expected.path), Some(one.from));
            }
            if expected.to != Kind::Device {
                self.slots.insert(expected.path.clone(), one.to);
            }
        }
    }

    /// Of the page that ends `path`.
    fn key(&self, path: &[Pair]) -> PageKey {
        let tokens: Vec<u32> = path.iter().map(|pair| pair.1).collect();
        let keys = page_keys(&tokens, &stretches(path), self.page_size).unwrap();
        *keys.last().unwrap()
    }

    /// A full page, the last of `path`.
    fn assert_page(&self, place: Place, path: &[Pair]) {
        for end in path.len() - self.page_size + 1..=path.len() {
            self.assert_row(place, &path[..end]);
        }
    }

    pub fn assert_row(&self, place: Place, path: &[Pair]) {
        let row = (path.len() - 1) % self.page_size;
        let content = self.rows.get(&(place, row));
        let content = content.map(Vec::as_slice);
        assert_eq!(content, Some(path), "{place:?}, row {row}");
    }

    /// Every page of the model's shelf is in a slot of its own, with its content.
    pub fn verify(&self, tiers: &Shelf) {
        let mut used = Vec::new();
        for tier in [Kind::Host, Kind::Disk] {
            for page in tiers.pages(tier) {
                let place = self.slots[&page.path];
                assert_eq!(kind(place), tier);
                assert!(!used.contains(&place), "two pages in {place:?}");
                used.push(place);
                self.assert_page(place, &page.path);
            }
        }
    }
}
