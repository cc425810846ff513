//! Threads that share the items of a job with the caller.
//!
//! Owns the helper threads; knows nothing of kernels. A decode step is some hundred jobs of 10 to 50 us, and
//! waking a thread takes as long as such a job: a helper looks out for the next job for a moment
//! (`SPIN`), then sleeps. The caller works too and waits only for items that were begun: a helper that
//! is not scheduled, because other processes want the cores, finds nothing to do and is not missed.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a helper looks out for work, and a caller for the end of the last items, before it sleeps.
const SPIN: Duration = Duration::from_micros(60);

/// A look-out that the system held up for so long was not alone on its core: the helper sleeps then, since
/// what it spins away is taken from its next item.
const HELD_UP: Duration = Duration::from_micros(300);

/// Looks between two looks at the clock.
const LOOKS: usize = 16;

/// Work cut into independent items.
pub(crate) trait Work: Send + Sync + 'static {
    /// How many items there are.
    fn items(&self) -> usize;
    /// Does item `i`; called once for each `i < items()`, from any thread.
    fn run(&self, i: usize);
}

struct Job {
    work: Arc<dyn Work>,
    items: usize,
    /// The next item that nobody took.
    next: AtomicUsize,
    /// Items that are not done.
    left: AtomicUsize,
    failed: AtomicBool,
    caller: Thread,
}

impl Job {
    /// Takes items until there are none.
    fn help(&self) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= self.items {
                return;
            }
            let work = AssertUnwindSafe(|| self.work.run(i));
            if catch_unwind(work).is_err() {
                self.failed.store(true, Ordering::Relaxed);
            }
            // The caller sees what the item wrote once it sees that it is done.
            if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.caller.unpark();
            }
        }
    }

    fn is_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Waits for every item; says whether one panicked.
    fn wait(&self) -> bool {
        if !look_out(|| self.is_done()) {
            while !self.is_done() {
                thread::park();
            }
        }
        self.failed.load(Ordering::Relaxed)
    }
}

/// Whether something is seen within `SPIN`.
fn look_out(seen: impl Fn() -> bool) -> bool {
    if seen() {
        return true;
    }
    let start = Instant::now();
    let mut last = start;
    loop {
        for _ in 0..LOOKS {
            if seen() {
                return true;
            }
            spin_loop();
        }
        let now = Instant::now();
        if now - start >= SPIN || now - last >= HELD_UP {
            return seen();
        }
        last = now;
    }
}

#[derive(Default)]
struct Pool {
    /// One entry for each helper that a job wants.
    queue: Mutex<VecDeque<Arc<Job>>>,
    /// Entries of the queue, for those that look without the lock.
    queued: AtomicUsize,
    /// Helpers that look out for an entry. One that stops holds the lock, so that who holds the lock
    /// knows that so many will see what is put into the queue.
    spinning: AtomicUsize,
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
        items,
        next: AtomicUsize::new(0),
        left: AtomicUsize::new(items),
        failed: AtomicBool::new(false),
        caller: thread::current(),
    });
    if helpers > 0 {
        let pool = POOL.get_or_init(Arc::default);
        hire(pool, helpers);
        pool.put(&job, helpers);
        job.help();
        pool.take_back(&job);
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
        pool.next().help();
    }
}

impl Pool {
    /// Asks for helpers, and wakes as many as do not look out anyway.
    fn put(&self, job: &Arc<Job>, helpers: usize) {
        let mut queue = lock(&self.queue);
        queue.extend((0..helpers).map(|_| Arc::clone(job)));
        self.queued.store(queue.len(), Ordering::Release);
        let awake = self.spinning.load(Ordering::Relaxed);
        drop(queue);
        for _ in awake..helpers {
            self.ready.notify_one();
        }
    }

    /// Asks no more for helpers that did not come.
    fn take_back(&self, job: &Arc<Job>) {
        if self.queued.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut queue = lock(&self.queue);
        queue.retain(|queued| !Arc::ptr_eq(queued, job));
        self.queued.store(queue.len(), Ordering::Release);
    }

    /// The next job of a helper: it looks out for one, then sleeps until there is one.
    fn next(&self) -> Arc<Job> {
        self.spinning.fetch_add(1, Ordering::Relaxed);
        look_out(|| self.queued.load(Ordering::Acquire) > 0);
        let mut queue = lock(&self.queue);
        self.spinning.fetch_sub(1, Ordering::Relaxed);
        loop {
            if let Some(job) = queue.pop_front() {
                self.queued.store(queue.len(), Ordering::Release);
                return job;
            }
            let woken = self.ready.wait(queue);
            queue = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
