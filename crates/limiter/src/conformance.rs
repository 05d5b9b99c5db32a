//! What every store must do, as one function: a new store is right when it passes, and not before.
//!
//! The core is the referee. Every answer of the store is held against what [`Limit::decide`] says of a state kept on
//! the side, at the moment the store names: so a store can neither round differently nor remember differently. At the
//! end many threads settle at once, and their totals must be exact.
//!
//! ```
//! use tollgate_limiter::clock::Clock;
//! use tollgate_limiter::conformance::{Bench, block_on, conformance};
//! use tollgate_limiter::core::Timestamp;
//! use tollgate_limiter::store::memory::Memory;
//!
//! let clock = Clock::stopped(Timestamp::from_micros(1_700_000_000_000_000));
//! let store = Memory::options().clock(clock.clone()).build();
//! let bench = Bench::new(store).moved_by(move |span| clock.advance(span)).threads(2, 20);
//! let report = block_on(conformance(&bench))?;
//! assert!(report.answers > 1_000);
//! # Ok::<(), String>(())
//! ```
//!
//! A store whose clock cannot be moved, such as a server's, leaves `moved_by` out; one that spreads its keys over nodes
//! says `compensated`. A store that needs a runtime of its own calls [`conformance`] inside it and enters it on other
//! threads by [`Bench::on_threads`].

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

/// A store on the bench: how it is reached, how its time passes, and what it promises.
pub struct Harness<S> {
    store: Arc<S>,
    domain: String,
    advance: Option<Advance>,
    atomicity: Atomicity,
    thread_wrapper: ThreadWrapper,
    threads: usize,
    settles: usize,
}

/// What several keys settled in one request are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Atomicity {
    /// One moment: nobody ever sees one of them charged and another not.
    Atomic,
    /// Taken one after the other and taken back if one refuses: exact when all is quiet again.
    Compensated,
}

/// Moves a store's clock on.
type Advance = Box<dyn Fn(Micros) + Send + Sync>;

/// Runs the work of a thread inside whatever the store needs there.
type ThreadWrapper = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConformanceReport {
    /// Answers held against the core, field by field.
    pub answers: u64,
    /// Settlements made by threads at the same time.
    pub concurrent: u64,
}

/// Leads a store through everything it must do, and stops at its first mistake.
///
/// It uses counters of a domain of its own, so it can be run on a store that is in use. It ends in bounded time, also
/// when the store's threads wait for each other for ever.
///
/// # Errors
/// The algorithm, the step, what was expected and what came.
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
    /// A store that settles all keys of a request at one moment, on a clock that runs by itself.
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

    /// Its clock stands still and is moved on by this. Without it the checks that need time wait for a few short
    /// periods.
    pub fn with_clock(self, advance: impl Fn(Micros) + Send + Sync + 'static) -> Self {
        Self {
            advance: Some(Box::new(advance)),
            ..self
        }
    }

    /// Keys of one request may lie on several nodes: a charge that another key's refusal made void is taken back, and
    /// until then others may see it.
    pub fn compensated(self) -> Self {
        Self {
            atomicity: Atomicity::Compensated,
            ..self
        }
    }

    /// How the work of a thread is run, for a store that needs something there: a runtime to be entered, say.
    pub fn with_threads(self, thread_wrapper: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static) -> Self {
        Self {
            thread_wrapper: Arc::new(thread_wrapper),
            ..self
        }
    }

    /// How many threads settle at once at the end, and how often each of them. 8 and 50 unless said; at most 64 and
    /// 10,000.
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
        f.debug_struct("Bench")
            .field("domain", &self.domain)
            .field("moved", &self.advance.is_some())
            .field("across", &self.atomicity)
            .field("threads", &self.threads)
            .field("settles", &self.settles)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for ConformanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} answers as the core gives them, {} settlements at the same time",
            self.answers, self.concurrent
        )
    }
}
