//! What a row found, each figure beside its bound.

use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Measurements(pub(crate) Vec<Measurement>);

#[derive(Debug)]
pub(crate) struct Measurement {
    pub(crate) what: String,
    pub(crate) value: String,
    pub(crate) bound: String,
    pub(crate) passed: bool,
    kind: Kind,
}

/// A figure that must hold every time, or one that a busy machine may spoil.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Count,
    Latency,
}

impl Measurements {
    /// A row that did not come to its end.
    pub(crate) fn panicked(message: &str) -> Self {
        let mut measurements = Self::default();
        let message = message.lines().next().unwrap_or_default();
        measurements.push(
            Kind::Count,
            "came to its end",
            message.to_owned(),
            "yes".to_owned(),
            false,
        );
        measurements
    }

    pub(crate) fn at_most(&mut self, what: &str, value: f64, bound: f64) {
        self.push(
            Kind::Count,
            what,
            short(value),
            format!("<= {}", short(bound)),
            value <= bound,
        );
    }

    pub(crate) fn at_least(&mut self, what: &str, value: f64, bound: f64) {
        self.push(
            Kind::Count,
            what,
            short(value),
            format!(">= {}", short(bound)),
            value >= bound,
        );
    }

    pub(crate) fn none(&mut self, what: &str, value: f64) {
        self.push(Kind::Count, what, short(value), "0".to_owned(), value == 0.0);
    }

    pub(crate) fn holds(&mut self, what: &str, holds: bool) {
        let value = if holds { "yes" } else { "no" };
        self.push(Kind::Count, what, value.to_owned(), "yes".to_owned(), holds);
    }

    /// A time that must keep its bound where latencies count.
    pub(crate) fn latency_at_most(&mut self, what: &str, value: Option<Duration>, bound: Duration) {
        let passed = value.is_some_and(|value| value <= bound);
        let value = value.map_or_else(|| "never".to_owned(), milliseconds);
        self.push(
            Kind::Latency,
            what,
            value,
            format!("<= {}", milliseconds(bound)),
            passed,
        );
    }

    /// A number that depends on latencies.
    pub(crate) fn timed_at_most(&mut self, what: &str, value: f64, bound: f64) {
        self.push(
            Kind::Latency,
            what,
            short(value),
            format!("<= {}", short(bound)),
            value <= bound,
        );
    }

    /// A share that depends on latencies.
    pub(crate) fn timed_at_least(&mut self, what: &str, value: f64, bound: f64) {
        self.push(
            Kind::Latency,
            what,
            short(value),
            format!(">= {}", short(bound)),
            value >= bound,
        );
    }

    /// A share of decisions that a slow machine spoils as well: a loose bound that must hold every time, and one where
    /// latencies are judged.
    pub(crate) fn share(&mut self, what: &str, value: f64, (loose, tight): (f64, f64)) {
        self.at_least(what, value, loose);
        self.timed_at_least(what, value, tight);
    }

    /// A number that explains others and has no bound.
    pub(crate) fn note(&mut self, what: &str, value: f64) {
        self.push(Kind::Count, what, short(value), String::new(), true);
    }

    /// A time that must keep a loose bound at all times.
    pub(crate) fn within(&mut self, what: &str, value: Option<Duration>, bound: Duration) {
        let passed = value.is_some_and(|value| value <= bound);
        let value = value.map_or_else(|| "never".to_owned(), milliseconds);
        self.push(Kind::Count, what, value, format!("<= {}", milliseconds(bound)), passed);
    }

    pub(crate) fn counts_hold(&self) -> bool {
        self.hold(Kind::Count)
    }

    pub(crate) fn latencies_hold(&self) -> bool {
        self.hold(Kind::Latency)
    }

    /// The counts that do not hold, to be shown among those of a whole.
    pub(crate) fn failing_counts(self) -> impl Iterator<Item = Measurement> {
        let measurements = self.0.into_iter();
        measurements.filter(|measurement| !measurement.passed && measurement.kind == Kind::Count)
    }

    /// For runs that are no measurement.
    pub(crate) fn drop_latencies(&mut self) {
        self.0.retain(|measurement| measurement.kind == Kind::Count);
    }

    fn hold(&self, kind: Kind) -> bool {
        self.0
            .iter()
            .filter(|measurement| measurement.kind == kind)
            .all(|measurement| measurement.passed)
    }

    fn push(&mut self, kind: Kind, what: &str, value: String, bound: String, passed: bool) {
        self.0.push(Measurement {
            what: what.to_owned(),
            value,
            bound,
            passed,
            kind,
        });
    }
}

fn milliseconds(time: Duration) -> String {
    format!("{} ms", short(time.as_secs_f64() * 1_000.0))
}

/// Without digits that say nothing.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 1.0 => 1,
        _ => 4,
    };
    format!("{value:.digits$}")
}
