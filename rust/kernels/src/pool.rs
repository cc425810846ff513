//! Threads that share the items of a job with the caller.
//!
//! Owns the helper threads; knows nothing of kernels. Helpers sleep between jobs and never spin, since
//! other thread pools live in the same process. The caller works too and waits only for items that
//! were begun: a helper that wakes late finds nothing to do and touches nothing.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

/// Work cut into independent items.
pub(crate) trait Work: Send + Sync + 'static {
    /// How many items there are.
    fn items(&self) -> usize;
    /// Does item `i`; called once for each `i < items()`, from any thread.
    fn run(&self, i: usize);
}

struct Job {
    work: Arc<dyn Work>,
    next: AtomicUsize,
    left: Mutex<Left>,
    done: Condvar,
}

struct Left {
    items: usize,
    failed: bool,
}

impl Job {
    /// Takes items until there are none.
    fn help(&self) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= self.work.items() {
                return;
            }
            let work = AssertUnwindSafe(|| self.work.run(i));
            let failed = catch_unwind(work).is_err();
            let mut left = lock(&self.left);
            left.items -= 1;
            left.failed |= failed;
            if left.items == 0 {
                self.done.notify_all();
            }
        }
    }

    /// Waits for every item; says whether one panicked.
    fn wait(&self) -> bool {
        let mut left = lock(&self.left);
        while left.items > 0 {
            left = self.done.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
        left.failed
    }
}

#[derive(Default)]
struct Pool {
    /// One entry for each helper that a job wants.
    queue: Mutex<VecDeque<Arc<Job>>>,
    ready: Condvar,
    helpers: Mutex<usize>,
}

static POOL: OnceLock<Arc<Pool>> = OnceLock::new();

/// Threads of a job, the caller included; 0 = not set.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Sets how many threads share a job, the caller included. Results do not depend on it.
///
/// `threads` is in 1..=1024; the default is the number of cores this process may use.
pub fn set_threads(threads: usize) {
    THREADS.store(threads.clamp(1, 1024), Ordering::Relaxed);
}

/// Threads of a job, the caller included.
pub(crate) fn threads() -> usize {
    match THREADS.load(Ordering::Relaxed) {
        0 => {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            THREADS.store(cores, Ordering::Relaxed);
            cores
        }
        n => n,
    }
}

/// Does every item of `work`; returns when all are done.
pub(crate) fn share(work: Arc<dyn Work>) {
    let items = work.items();
    let helpers = threads().min(items).saturating_sub(1);
    let job = Arc::new(Job {
        work,
        next: AtomicUsize::new(0),
        left: Mutex::new(Left {
            items,
            failed: false,
        }),
        done: Condvar::new(),
    });
    if helpers > 0 {
        let pool = POOL.get_or_init(Arc::default);
        hire(pool, helpers);
        lock(&pool.queue).extend((0..helpers).map(|_| Arc::clone(&job)));
        for _ in 0..helpers {
            pool.ready.notify_one();
        }
        job.help();
        lock(&pool.queue).retain(|queued| !Arc::ptr_eq(queued, &job));
    } else {
        job.help();
    }
    assert!(!job.wait(), "an item of shared work panicked");
}

/// Starts helpers until there are `wanted`; fewer, when the system has no more threads to give.
fn hire(pool: &Arc<Pool>, wanted: usize) {
    let mut helpers = lock(&pool.helpers);
    while *helpers < wanted {
        let shared = Arc::clone(pool);
        let name = format!("kernels-{}", *helpers);
        let helper = thread::Builder::new().name(name);
        if helper.spawn(move || serve(&shared)).is_err() {
            return;
        }
        *helpers += 1;
    }
}

fn serve(pool: &Pool) -> ! {
    loop {
        let mut queue = lock(&pool.queue);
        let job = loop {
            match queue.pop_front() {
                Some(job) => break job,
                None => {
                    queue = pool
                        .ready
                        .wait(queue)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(queue);
        job.help();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
