//! The free pages. Owns which pages nobody uses; never knows what is in a page.

/// A page's number on the device, below the number of pages.
pub type PageId = u32;

/// Free pages: those never used yet (from `fresh` on) and those given back.
pub(super) struct PagePool {
    total: u32,
    fresh: u32,
    returned: Vec<PageId>,
}

impl PagePool {
    pub(super) fn new(total: u32) -> Self {
        Self {
            total,
            fresh: 0,
            returned: Vec::new(),
        }
    }

    /// All pages but those in use; `None` when one of these is no page, or is named twice.
    pub(super) fn without(total: usize, used: impl Iterator<Item = PageId>) -> Option<Self> {
        let total = u32::try_from(total).ok()?;
        let mut taken: Vec<PageId> = used.collect();
        taken.sort_unstable();
        let fresh = taken.last().map_or(Some(0), |last| last.checked_add(1))?;
        if fresh > total || taken.windows(2).any(|pair| pair[0] == pair[1]) {
            return None;
        }
        let is_free = |page: &PageId| taken.binary_search(page).is_err();
        Some(Self {
            total,
            fresh,
            returned: (0..fresh).filter(is_free).collect(),
        })
    }

    pub(super) fn total(&self) -> usize {
        self.total as usize
    }

    pub(super) fn free(&self) -> usize {
        (self.total - self.fresh) as usize + self.returned.len()
    }

    /// A free page; the one given back last comes first, it is the likeliest to be warm.
    pub(super) fn take(&mut self) -> Option<PageId> {
        if let Some(page) = self.returned.pop() {
            return Some(page);
        }
        if self.fresh == self.total {
            return None;
        }
        self.fresh += 1;
        Some(self.fresh - 1)
    }

    pub(super) fn give_back(&mut self, page: PageId) {
        self.returned.push(page);
    }

    /// Prove that the free pages and `used` are all pages, each once.
    pub(super) fn check(&self, used: impl Iterator<Item = PageId>) -> Result<(), String> {
        let mut seen = vec![false; self.fresh as usize];
        for page in self.returned.iter().copied().chain(used) {
            match seen.get_mut(page as usize) {
                None => return Err(format!("page {page} is in use and was never taken")),
                Some(true) => return Err(format!("page {page} is in two places")),
                Some(place) => *place = true,
            }
        }
        match seen.iter().position(|place| !place) {
            Some(page) => Err(format!("page {page} is in no place")),
            None => Ok(()),
        }
    }
}
