//! The pool that shares items among threads.

use crate::pool::{self, Work};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Count {
    seen: Vec<AtomicUsize>,
    bad: Option<usize>,
}

impl Work for Count {
    fn items(&self) -> usize {
        self.seen.len()
    }
    fn run(&self, i: usize) {
        self.seen[i].fetch_add(1, Ordering::Relaxed);
        assert!(self.bad != Some(i), "a bad item");
    }
}

fn count(items: usize, bad: Option<usize>) -> Arc<Count> {
    let seen = (0..items).map(|_| AtomicUsize::new(0)).collect();
    Arc::new(Count { seen, bad })
}

#[test]
fn every_item_runs_once() {
    for items in [0, 1, 2, 3, 50] {
        let work = count(items, None);
        pool::share(Arc::clone(&work) as Arc<dyn Work>);
        assert!(work.seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn a_panic_in_an_item_reaches_the_caller_after_the_others_are_done() {
    let work = count(20, Some(7));
    let shared = Arc::clone(&work) as Arc<dyn Work>;
    assert!(catch_unwind(AssertUnwindSafe(|| pool::share(shared))).is_err());
    assert!(work.seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
    every_item_runs_once();
}
