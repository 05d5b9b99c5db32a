//! The conformance suite of stores, as one function: a new store is correct when it passes.
//!
//! Every result of the store is compared with [`Limit::decide`] on a reference state, at the instant the store reports: so
//! a store can neither round nor remember differently. At the end many threads settle at once, and their totals must be
//! exact.
//!
//! ```
//! use tollgate_limiter::clock::Clock;
//! use tollgate_limiter::conformance::{Harness, block_on, conformance};
//! use tollgate_limiter::core::Timestamp;
//! use tollgate_limiter::store::memory::Memory;
//!
//! let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
//! let store = Memory::options().clock(clock.clone()).build();
//! let harness = Harness::new(store).with_clock(move |span| clock.advance(span)).threads(2, 20);
//! let report = block_on(conformance(&harness))?;
//! assert!(report.answers > 1_000);
//! # Ok::<(), String>(())
//! ```
//!
//! A store whose clock cannot be advanced, such as a server's, omits `with_clock`; one that spreads its keys over nodes
//! sets `compensated`. A store that needs a runtime calls [`conformance`] inside it and enters it on other threads by
//! [`Harness::with_threads`].

mod contention;
mod reference;
mod run;
mod samples;
mod steps;

use self::reference::ReferenceModel;
use self::samples::Shape;
use crate::store::Store;
use std::fmt;
use std::sync::Arc;
use tollgate_core::{Limit, Micros};

pub use self::run::block_on;

/// A store under test: how its time passes, and what it promises.
pub struct Harness<S> {
    store: Arc<S>,
    domain: String,
    advance: Option<Advance>,
    atomicity: Atomicity,
    thread_wrapper: ThreadWrapper,
    threads: usize,
    settles: usize,
}

/// The relation of several keys settled in one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Atomicity {
    /// One instant: no caller ever sees one of them charged and another not.
    Atomic,
    /// Charged one by one and compensated if one denies: exact once no request is in flight.
    Compensated,
}

/// Advances a store's clock.
type Advance = Box<dyn Fn(Micros) + Send + Sync>;

/// Runs the work of a thread inside the context that the store needs.
type ThreadWrapper = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

/// The extent of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConformanceReport {
    /// Results compared with the core, field by field.
    pub answers: u64,
    /// Settlements made by concurrent threads.
    pub concurrent: u64,
}

/// Runs the suite on a store, and stops at the first error.
///
/// It uses counters of a domain of its own, so it can be run on a store in use. It ends in bounded time, also when the
/// store's threads deadlock.
///
/// # Errors
/// The algorithm, the step, the expected and the actual result.
pub async fn conformance<S: Store + 'static>(harness: &Harness<S>) -> Result<ConformanceReport, String> {
    if let Some(name) = Limit::ALGORITHMS.iter().find(|name| !Shape::covers(name)) {
        return Err(format!("{name}: conformance has no sample of this algorithm"));
    }
    let mut report = ConformanceReport::default();
    for shape in Shape::ALL {
        let mut model = ReferenceModel::new(harness, shape);
        steps::all(&mut model).await?;
        report.answers += model.answers();
    }
    for shape in Shape::ALL {
        report.concurrent += contention::one_key(harness, shape).await?;
        report.concurrent += contention::reversed_key_order(harness, shape).await?;
    }
    Ok(report)
}

impl<S: Store> Harness<S> {
    /// A store that settles all keys of a request at one instant, on a running clock.
    pub fn new(store: S) -> Self {
        Self {
            store: Arc::new(store),
            domain: format!("conformance-{:016x}", crate::lease::random_id().0),
            advance: None,
            atomicity: Atomicity::Atomic,
            thread_wrapper: Arc::new(|work| work()),
            threads: 8,
            settles: 50,
        }
    }

    /// Sets the function that advances its manual clock. Without it, steps that need time wait for a few short periods.
    pub fn with_clock(self, advance: impl Fn(Micros) + Send + Sync + 'static) -> Self {
        Self {
            advance: Some(Box::new(advance)),
            ..self
        }
    }

    /// Declares that keys of one request may be on several nodes: if another key denies, a charge is compensated, and
    /// visible until then.
    pub fn compensated(self) -> Self {
        Self {
            atomicity: Atomicity::Compensated,
            ..self
        }
    }

    /// Sets how the work of a thread is run, for a store that needs a context there, such as a runtime.
    pub fn with_threads(self, thread_wrapper: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static) -> Self {
        Self {
            thread_wrapper: Arc::new(thread_wrapper),
            ..self
        }
    }

    /// Runs the work of threads inside the current tokio runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[cfg(feature = "redis")]
    pub fn in_runtime(self) -> Self {
        let handle = tokio::runtime::Handle::current();
        self.with_threads(move |work| {
            let _entered = handle.enter();
            work();
        })
    }

    /// Sets the number of concurrent threads, and of settlements of each. 8 and 50 by default; at most 64 and 10,000.
    pub fn threads(self, threads: usize, settles: usize) -> Self {
        Self {
            threads: threads.clamp(1, 64),
            settles: settles.clamp(1, 10_000),
            ..self
        }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn is_compensated(&self) -> bool {
        self.atomicity == Atomicity::Compensated
    }
}

impl<S> fmt::Debug for Harness<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness")
            .field("domain", &self.domain)
            .field("has_manual_clock", &self.advance.is_some())
            .field("atomicity", &self.atomicity)
            .field("threads", &self.threads)
            .field("settles", &self.settles)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for ConformanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} results equal to the core's, {} concurrent settlements",
            self.answers, self.concurrent
        )
    }
}
