//! What has to hold after every operation.

use appliance_core::prefix_index::{self, PageId, Stats};

use crate::Operation;
use crate::model::{Pair, Place};
use crate::world::World;

impl World {
    /// The accounting, the model, and the contents of every row that somebody may read.
    pub fn verify(&self) {
        self.index.check().unwrap();
        let stats = self.index.stats();
        assert!(stats.nodes <= stats.pages_cached);
        assert_eq!(Stats { nodes: 0, ..stats }, self.model.stats());
        self.contents.verify(&self.model.shelf);
        for &number in &self.released {
            let known = self.model.tip(number).map(<[Pair]>::len);
            assert_eq!(self.index.node_tokens(number), known, "tip {number}");
        }
        for entry in &self.model.entries {
            let start = (entry.path.len() - 1) / self.page_size * self.page_size;
            for position in start..entry.path.len() {
                self.assert_content(entry.page, &entry.path[..=position]);
            }
        }
        for (number, sequence) in self.sequences.iter().enumerate() {
            let Some(sequence) = sequence else { continue };
            let lease = self.index.lease(sequence.lease).unwrap();
            let places = &self.model.holds[number].as_ref().unwrap().table;
            let pages = lease.page_table();
            let tokens: Vec<u32> = sequence.path.iter().map(|pair| pair.1).collect();
            assert_eq!(self.index.token_ids(sequence.lease), Ok(tokens));
            let expected = places.iter().map(|place| match place {
                Place::Lease(page) | Place::Quarantined(page) => *page,
                Place::Entry(id) => self.model.entry(*id).page,
            });
            assert_eq!(pages, expected.collect::<Vec<_>>());
            let mut readable = sequence.computed;
            if let Some(copy) = sequence.copy {
                readable -= copy.rows;
                for row in 0..copy.rows {
                    self.assert_content(copy.source_page, &sequence.path[..=readable + row]);
                }
            }
            for position in 0..readable {
                self.assert_content(
                    pages[position / self.page_size],
                    &sequence.path[..=position],
                );
            }
        }
    }

    fn assert_content(&self, page: PageId, path: &[Pair]) {
        let place = prefix_index::Place::Device(page);
        self.contents.assert_row(place, path);
    }

    /// Give everything back: nothing may be left in use.
    pub fn finish(&mut self) {
        for number in 0..self.sequences.len() {
            self.release(number);
            self.verify();
        }
        for number in self.released.clone() {
            assert_eq!(self.index.unpin(number), self.model.unpin(number));
        }
        let stats = self.index.stats();
        assert_eq!(stats.pages_leased, 0);
        assert_eq!(stats.pages_evictable, stats.pages_cached);
        self.run(Operation::Clear);
        assert_eq!(self.index.stats().pages_free, stats.pages_total);
        self.verify();
    }
}
