//! What the benches share: seeded tokens and texts, and chats that live in a prefix index.
//!
//! Each bench uses a part of it.
#![allow(dead_code)]

pub mod chats;
pub mod text;

/// splitmix64 (Steele, Lea, Flood 2014): the benches' own numbers, the same on every machine.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.draw() % limit as u64).expect("below a usize")
    }

    /// So many ordinary token ids.
    pub fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count)
            .map(|_| 300 + u32::try_from(self.below(48_000)).expect("small"))
            .collect()
    }
}
