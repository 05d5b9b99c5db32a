//! The bench that rows run on: nodes over a store, and a load with one hot key and many others.

use crate::envelope::over_admission;
use crate::load::{Load, Sample, Traffic};
use crate::measurements::Measurements;
use crate::node::Node;
use crate::plan::Plan;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tollgate_core::testing::random::Random;

/// The hot key's rate and capacity.
pub(crate) const RATE: u64 = 100;
pub(crate) const CAPACITY: u64 = 100;
/// The part of its limits that a node enforces among the others while the store is away, if nothing else is set.
pub(crate) const FALLBACK_SHARE: f64 = 0.8;
/// How often it is asked for, and the others together: ten times what it allows, and as much again by others.
const HOT: u32 = 1_000;
const MANY: u32 = 500;
const KEYS: u64 = 10_000;

/// The subject that many keys share in samples; hot ones are counted from 0.
pub(crate) const OTHERS: u16 = u16::MAX;

/// What a bench is to be.
pub(crate) struct Setup {
    /// The store of each node.
    pub(crate) stores: Vec<String>,
    /// Further settings of the store, as in a YAML map in one line.
    pub(crate) store_settings: String,
    pub(crate) rules: String,
    pub(crate) traffic: Traffic,
    pub(crate) environments: Vec<Vec<(&'static str, PathBuf)>>,
}

/// Nodes, a load on them, and the threads that make it.
pub(crate) struct Harness {
    pub(crate) nodes: Vec<Node>,
    load: Option<Load>,
    traffic: Traffic,
    seed: u64,
    runtime: Arc<Runtime>,
    built: Instant,
}

/// What was seen of a load.
pub(crate) struct LoadResult {
    pub(crate) samples: Vec<Sample>,
}

impl Setup {
    /// Two nodes over one store.
    pub(crate) fn two_nodes(store: &str) -> Self {
        Self {
            stores: vec![store.to_owned(); 2],
            store_settings: String::new(),
            rules: hot_and_many("local"),
            traffic: traffic(&["h0"], HOT, MANY),
            environments: Vec::new(),
        }
    }

    /// The settings of one of its nodes.
    pub(crate) fn settings(&self, plan: &Plan, store: &str) -> String {
        // A debug build on a machine that runs all tests at once needs more time than the product.
        let deadline = plan.pick("50ms", "10ms");
        let store = match store {
            "memory" => "store: memory".to_owned(),
            url => format!("store: {{ url: '{url}', deadline: {deadline}{} }}", self.store_settings),
        };
        format!("{store}\nlog: info\n{}", self.rules)
    }

    pub(crate) fn start(self, plan: &Plan) -> Harness {
        let runtime = runtime();
        let nodes: Vec<Node> = self
            .stores
            .iter()
            .enumerate()
            .map(|(number, store)| {
                let environment = self.environments.get(number).cloned().unwrap_or_default();
                Node::start_in(&self.settings(plan, store), environment)
            })
            .collect();
        Harness {
            nodes,
            load: None,
            traffic: self.traffic,
            seed: plan.seed,
            runtime,
            built: Instant::now(),
        }
    }
}

impl Harness {
    /// Over nodes that run already.
    pub(crate) fn over(nodes: Vec<Node>, plan: &Plan) -> Self {
        Self {
            nodes,
            load: None,
            traffic: traffic(&["h0"], HOT, MANY),
            seed: plan.seed,
            runtime: runtime(),
            built: Instant::now(),
        }
    }

    /// Waits until every node has reached its store and knows of all others, and starts the load.
    pub(crate) fn load(&mut self) {
        let all = self.nodes.len() as u64;
        for node in &self.nodes {
            wait_until("every node knows its store and the others", || {
                let ready = node.json("/readyz");
                let knows_all = self.nodes.len() == 1 || ready["instances"].as_u64() >= Some(all);
                ready["store"]["reachable"] == true && knows_all
            });
        }
        self.load_now();
    }

    /// Starts the load, whatever nodes know.
    pub(crate) fn load_now(&mut self) {
        let addresses: Vec<_> = self.nodes.iter().map(Node::address).collect();
        let load = Load::start(self.runtime.handle(), &addresses, &self.traffic, self.seed);
        self.load = Some(load);
    }

    /// Lets the load go on for so long.
    pub(crate) fn pause(&self, time: Duration) -> u64 {
        pause(time);
        self.now_us()
    }

    /// Since the bench was built.
    pub(crate) fn now(&self) -> Duration {
        self.built.elapsed()
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.load.as_ref().map_or(0, Load::now_us)
    }

    pub(crate) fn end_load(&mut self) -> LoadResult {
        let samples = self.load.take().map(|load| load.end(self.runtime.handle()));
        LoadResult {
            samples: samples.unwrap_or_default(),
        }
    }

    /// The sum of a metric over the nodes.
    pub(crate) fn metric(&self, name: &str, labels: &str) -> f64 {
        self.nodes.iter().map(|node| node.metric(name, labels)).sum()
    }
}

impl LoadResult {
    pub(crate) fn for_subject(&self, subject: u16) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.subject == subject)
    }

    /// The worst over-admission of the hot key.
    pub(crate) fn excess(&self) -> f64 {
        over_admission(self.for_subject(0), RATE, CAPACITY)
    }

    /// What may pass beyond the limit of a hot key whose rate and capacity are the same, where nodes decided alone now and
    /// then: formula M4 for the longest time that each of them did so on end, as one of so many. They pay back what they let
    /// pass, so that such times do not add up. The store itself is exact, so that it is never more than what passed without
    /// it; and one unit that a count may be off by.
    pub(crate) fn allowance(&self, subject: u16, rate: u64, instances: usize) -> f64 {
        let part = FALLBACK_SHARE * rate as f64 / instances as f64;
        let outages = (0..self.nodes()).filter_map(|node| self.longest_outage(subject, node));
        let longest_outages: f64 = outages.map(|time| part * (1.0 + time.as_secs_f64())).sum();
        1.0 + longest_outages.min(self.allowed_locally(subject))
    }

    /// The longest time in which a node decided for a subject without the store, whenever it was asked.
    fn longest_outage(&self, subject: u16, node: usize) -> Option<Duration> {
        let (mut longest, mut started) = (None, None);
        for sample in self.for_subject(subject).filter(|sample| sample.node == node) {
            if sample.is_fallback() {
                let from_us = *started.get_or_insert(sample.sent_us);
                longest = longest.max(Some(sample.received_us.saturating_sub(from_us)));
            } else {
                started = None;
            }
        }
        longest.map(Duration::from_micros)
    }

    fn nodes(&self) -> usize {
        1 + self.samples.iter().map(|sample| sample.node).max().unwrap_or(0)
    }

    /// How many of a subject passed without the store.
    pub(crate) fn allowed_locally(&self, subject: u16) -> f64 {
        let allowed = self
            .for_subject(subject)
            .filter(|sample| sample.is_admitted() && sample.is_fallback());
        allowed.count() as f64
    }

    /// Those that were answered in a stretch of time.
    pub(crate) fn between(&self, from_us: u64, to_us: u64) -> impl Iterator<Item = &Sample> {
        self.samples
            .iter()
            .filter(move |sample| (from_us..to_us).contains(&sample.received_us))
    }

    /// Those without a verdict, and those that had to be sent again: nodes that live end no connection.
    pub(crate) fn failed(&self) -> f64 {
        let failed = |sample: &&Sample| sample.is_failed() || sample.is_resent;
        self.samples.iter().filter(failed).count() as f64
    }

    /// The share of decisions in a stretch that the store made.
    pub(crate) fn shared(&self, from_us: u64, to_us: u64) -> f64 {
        share(self.between(from_us, to_us), Sample::is_shared)
    }

    pub(crate) fn fallbacks(&self, from_us: u64, to_us: u64) -> f64 {
        self.between(from_us, to_us)
            .filter(|sample| sample.is_fallback())
            .count() as f64
    }

    /// From the first decision without the store to the last.
    pub(crate) fn time_without(&self, from_us: u64, to_us: u64) -> Duration {
        let moments = || {
            let without = self.between(from_us, to_us).filter(|sample| sample.is_fallback());
            without.map(|sample| sample.received_us)
        };
        let time = moments().max().zip(moments().min()).map(|(last, first)| last - first);
        Duration::from_micros(time.unwrap_or_default())
    }

    /// The least share that the store decided in any 200 ms of a stretch.
    pub(crate) fn shared_at_worst(&self, from_us: u64, to_us: u64) -> f64 {
        let starts = (from_us..to_us.saturating_sub(WINDOW_US)).step_by(STEP_US as usize);
        starts
            .map(|from_us| self.shared(from_us, from_us + WINDOW_US))
            .fold(1.0, f64::min)
    }

    /// How long after a moment the store decided 99 of 100 again.
    pub(crate) fn shared_again(&self, after_us: u64) -> Option<Duration> {
        let end = self.samples.last().map_or(0, |sample| sample.received_us);
        let mut from = after_us;
        while from + WINDOW_US <= end {
            if self.shared(from, from + WINDOW_US) >= 0.99 {
                return Some(Duration::from_micros(from - after_us));
            }
            from += STEP_US;
        }
        None
    }

    /// The latency that this share of the decisions in a stretch kept within.
    pub(crate) fn latency(&self, share: f64, from_us: u64, to_us: u64) -> Option<Duration> {
        let mut all: Vec<u64> = self.between(from_us, to_us).map(|sample| sample.latency_us).collect();
        all.sort_unstable();
        let index = ((all.len() as f64 * share).ceil() as usize).clamp(1, all.len().max(1)) - 1;
        all.get(index).copied().map(Duration::from_micros)
    }

    /// No request failed, and the p99 in a stretch keeps the bound that `bound` makes of the one before it.
    pub(crate) fn undisturbed(
        &self,
        measurements: &mut Measurements,
        (failed, p99): (&str, &str),
        (from_us, to_us): (u64, u64),
        bound: impl FnOnce(Duration) -> Duration,
    ) {
        measurements.none(failed, self.failed());
        let before = self.latency(0.99, SETTLED_US, from_us).unwrap_or_default();
        measurements.latency_at_most(p99, self.latency(0.99, from_us, to_us), bound(before));
    }

    pub(crate) fn end_us(&self) -> u64 {
        self.samples.last().map_or(0, |sample| sample.received_us + 1)
    }

    /// What holds for every outage: nothing failed, nobody waited, and afterwards all is as before.
    pub(crate) fn common(&self, measurements: &mut Measurements, plan: &Plan, outage: Outage) {
        self.during_outage(measurements, outage);
        let Outage { from_us, back_us } = outage;
        let again = self.shared_again(back_us);
        measurements.within("shared again", again, plan.seconds(4.0, 3.0));
        measurements.latency_at_most("shared again after", again, Duration::from_secs(1));
        let control = self.latency(0.99, 500_000, from_us).unwrap_or_default();
        let bound = control.mul_f64(1.5).max(Duration::from_millis(2));
        measurements.latency_at_most(
            "p99 afterwards, against 1.5 x before",
            self.latency(0.99, back_us + 1_000_000, self.end_us()),
            bound,
        );
    }

    /// The part of it that holds also where the store does not come back.
    pub(crate) fn during_outage(&self, measurements: &mut Measurements, outage: Outage) {
        let Outage { from_us, back_us } = outage;
        measurements.none("requests that failed", self.failed());
        measurements.at_least(
            "decided without the store while it was away",
            self.fallbacks(from_us, back_us),
            1.0,
        );
        let end = self.end_us();
        measurements.latency_at_most("p99.9", self.latency(0.999, 0, end), Duration::from_millis(20));
        measurements.latency_at_most("max", self.latency(1.0, 0, end), Duration::from_millis(50));
        let slow = self
            .between(from_us, end)
            .filter(|sample| sample.latency_us > 5_000)
            .count();
        let slow = slow as f64 / self.nodes() as f64;
        measurements.timed_at_most("decisions above 5 ms, per node", slow, 100.0);
        let open_us = from_us + 500_000;
        if open_us < back_us {
            measurements.latency_at_most(
                "p99 while the store was away",
                self.latency(0.99, open_us, back_us),
                Duration::from_millis(2),
            );
        }
    }

    /// How long after a server fell silent each node decided without it.
    pub(crate) fn noticed(&self, measurements: &mut Measurements, outage: Outage) {
        for node in 0..self.nodes() {
            let first = self
                .between(outage.from_us, outage.back_us)
                .find(|sample| sample.node == node && sample.is_fallback());
            let noticed = first.map(|sample| Duration::from_micros(sample.received_us.saturating_sub(outage.from_us)));
            measurements.latency_at_most("noticed after", noticed, Duration::from_millis(100));
        }
    }
}

/// From when the store was away, and from when it answered again.
#[derive(Clone, Copy)]
pub(crate) struct Outage {
    pub(crate) from_us: u64,
    pub(crate) back_us: u64,
}

impl Outage {
    /// What may pass beyond the limit when all nodes go on with their shares: formula M3.
    pub(crate) fn excess(self) -> f64 {
        let refilled = RATE as f64 * (self.back_us - self.from_us) as f64 / 1e6;
        CAPACITY as f64 + refilled.min(CAPACITY as f64)
    }
}

pub(crate) fn share<'s>(samples: impl Iterator<Item = &'s Sample>, is_it: impl Fn(&Sample) -> bool) -> f64 {
    let (mut all, mut matching) = (0_u32, 0_u32);
    for sample in samples {
        all += 1;
        matching += u32::from(is_it(sample));
    }
    f64::from(matching) / f64::from(all.max(1))
}

/// A rule for the hot key and one for the others, with what holds while the store is away.
pub(crate) fn hot_and_many(on_store_failure: &str) -> String {
    format!(
        "rules:\n- {{ id: hot, when: {{ kind: hot }}, per: user, limit: {RATE}/s, on_store_failure: {on_store_failure} }}\n\
         - {{ id: many, when: {{ kind: many }}, per: user, limit: {RATE}/s, on_store_failure: {on_store_failure} }}\n"
    )
}

/// Hot users, so often a second each, and others among [`KEYS`] so often together.
pub(crate) fn traffic(users: &[&str], hot: u32, many: u32) -> Traffic {
    let users: Vec<String> = users.iter().map(|&user| user.to_owned()).collect();
    let all_hot = hot * users.len() as u32;
    let next = move |random: &mut Random| {
        let chosen = random.below(u64::from(all_hot + many));
        let index = (chosen / u64::from(hot)) as usize;
        match users.get(index).filter(|_| chosen < u64::from(all_hot)) {
            Some(user) => (index as u16, check("hot", user)),
            None => (OTHERS, check("many", &format!("m{}", random.below(KEYS)))),
        }
    };
    Traffic {
        per_second: all_hot + many,
        next: Arc::new(next),
    }
}

pub(crate) fn check(kind: &str, user: &str) -> String {
    format!(r#"{{"attributes":{{"kind":"{kind}","user":"{user}"}}}}"#)
}

/// What the counter of a hot user is called in the store.
pub(crate) fn stored_key(node: &Node, user: &str) -> String {
    let (_, body) = node.post("/v1/explain", &check("hot", user)).unwrap();
    let key = body
        .split_once("\"key\":\"")
        .and_then(|(_, rest)| rest.split('"').next());
    key.unwrap_or_else(|| panic!("no key in {body}")).to_owned()
}

pub(crate) fn runtime() -> Arc<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    Arc::new(runtime.unwrap())
}

/// Waits for something that tells nobody when it happens.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let reached = (0..POLLS).any(|_| {
        let holds = holds();
        if !holds {
            pause(POLL_INTERVAL);
        }
        holds
    });
    assert!(reached, "not so within {POLLS} looks: {what}");
}

#[expect(clippy::disallowed_methods, reason = "a phase of a row is a length of real time")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

const POLL_INTERVAL: Duration = Duration::from_millis(10);
const POLLS: u32 = 3_000;
const WINDOW_US: u64 = 200_000;
/// Connections are open from then on.
const SETTLED_US: u64 = 200_000;
const STEP_US: u64 = 20_000;
