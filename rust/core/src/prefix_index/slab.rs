//! Values under small numbers that are given again. Owns the numbers.

/// A number is valid from `insert` to `remove`.
pub(super) struct Slab<T> {
    slots: Vec<Option<T>>,
    unused: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            unused: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> u32 {
        if let Some(number) = self.unused.pop() {
            self.slots[number as usize] = Some(value);
            return number;
        }
        // Nodes have pages, locks have leases, leases have pages, and those are numbered in u32.
        let number = u32::try_from(self.slots.len()).expect("fewer values than 2^32");
        self.slots.push(Some(value));
        number
    }

    pub(super) fn get(&self, number: u32) -> &T {
        self.slots[number as usize].as_ref().expect("a live value")
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut T {
        self.slots[number as usize].as_mut().expect("a live value")
    }

    pub(super) fn remove(&mut self, number: u32) -> T {
        self.unused.push(number);
        self.slots[number as usize].take().expect("a live value")
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.unused.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let slots = (0_u32..).zip(&self.slots);
        slots.filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }
}
