//! Watchers: one client per instance, which checks at an interval until a change is obeyed.

use super::client::Connection;
use super::fleet::Instance;
use super::report::Times;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A check that has this limit once a change is effective.
#[derive(Clone)]
pub(super) struct Expectation {
    /// The number of the change.
    pub(super) change: u64,
    pub(super) acknowledged: Instant,
    pub(super) attributes: Value,
    pub(super) limit: u64,
}

/// One watcher for each instance. Changes are awaited in the order of their revisions.
pub(super) struct Watchers {
    expectations: Vec<Sender<Expectation>>,
    observations: Receiver<Result<Observation, String>>,
    tasks: Vec<JoinHandle<()>>,
}

/// The time from the acknowledgement of a change to the first check of one instance that obeyed.
struct Observation {
    change: u64,
    time: Duration,
}

/// The pause between two checks of one instance. The checks of all instances take a tenth of a core at most.
const INTERVAL: Duration = Duration::from_millis(5);

/// A change that is not effective by then is lost.
const LOST: Duration = Duration::from_secs(30);

impl Watchers {
    pub(super) fn start(instances: &[Instance]) -> Result<Self, String> {
        let (sender, observations) = mpsc::channel();
        let (mut expectations, mut tasks) = (Vec::new(), Vec::new());
        for instance in instances {
            let (expectation, expected) = mpsc::channel();
            let (connection, sender) = (Connection::open(instance.http)?, sender.clone());
            expectations.push(expectation);
            tasks.push(std::thread::spawn(move || watch(connection, &expected, &sender)));
        }
        Ok(Self {
            expectations,
            observations,
            tasks,
        })
    }

    /// Has all instances checked until they obey. A watcher that has failed says so in its observation.
    pub(super) fn expect(&self, expectation: &Expectation) {
        for sender in &self.expectations {
            let _ = sender.send(expectation.clone());
        }
    }

    /// Waits until all instances obey so many changes. Returns for each change the time of the slowest instance.
    pub(super) fn slowest(&self, changes: usize) -> Result<Times, String> {
        let mut slowest: HashMap<u64, Duration> = HashMap::new();
        for _ in 0..changes * self.expectations.len() {
            let observed = self.observations.recv().map_err(|_| "a watcher has ended")??;
            let time = slowest.entry(observed.change).or_default();
            *time = observed.time.max(*time);
        }
        Ok(slowest.into_values().collect())
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.expectations.clear();
        for task in self.tasks.drain(..) {
            let _ = task.join();
        }
    }
}

fn watch(mut connection: Connection, expected: &Receiver<Expectation>, sender: &Sender<Result<Observation, String>>) {
    while let Ok(expectation) = expected.recv() {
        let observation = observe(&mut connection, &expectation);
        let has_failed = observation.is_err();
        if sender.send(observation).is_err() || has_failed {
            return;
        }
    }
}

/// Checks until the change is obeyed.
fn observe(connection: &mut Connection, expectation: &Expectation) -> Result<Observation, String> {
    loop {
        let limit = connection.check(&expectation.attributes)?.limit();
        let time = expectation.acknowledged.elapsed();
        if limit == Some(expectation.limit) {
            return Ok(Observation {
                change: expectation.change,
                time,
            });
        }
        if time > LOST {
            let Expectation {
                change, limit: wanted, ..
            } = expectation;
            return Err(format!(
                "change {change} is not effective after {LOST:?}: {limit:?} instead of {wanted}"
            ));
        }
        std::thread::sleep(INTERVAL);
    }
}
