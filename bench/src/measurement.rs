//! The result of a load on a server, and its statistics over the rounds of a run.

use serde_json::{Value, json};

/// The result of one load in one round.
#[derive(Clone, Copy)]
pub(crate) struct Measurement {
    pub(crate) answers: u64,
    /// Responses that were errors.
    pub(crate) errors: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// The responses of a load.
#[derive(Default)]
pub(crate) struct ResponseLog {
    answers: u64,
    errors: u64,
    /// In nanoseconds.
    latencies: Vec<u32>,
}

/// The measurements of one contestant, one per round.
#[derive(Default)]
pub(crate) struct Rounds(Vec<Measurement>);

impl Measurement {
    pub(crate) fn per_cpu_second(&self) -> f64 {
        self.answers as f64 / self.cpu_seconds
    }

    /// The part of its core that the server used: below one, the load was the bottleneck.
    pub(crate) fn busy(&self) -> f64 {
        self.cpu_seconds / self.seconds
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.answers as f64 / self.seconds
    }
}

impl ResponseLog {
    /// Records responses that arrived at once, after the given time.
    pub(crate) fn record(&mut self, answers: u64, after: std::time::Duration, is_error: bool) {
        self.latencies.push(u32::try_from(after.as_nanos()).unwrap_or(u32::MAX));
        self.answers += answers;
        self.errors += u64::from(is_error);
    }

    /// Adds the responses of another connection.
    pub(crate) fn add(&mut self, other: Self) {
        self.answers += other.answers;
        self.errors += other.errors;
        self.latencies.extend(other.latencies);
    }

    pub(crate) fn measurement(mut self, seconds: f64, cpu_seconds: f64) -> Measurement {
        self.latencies.sort_unstable();
        Measurement {
            answers: self.answers,
            errors: self.errors,
            seconds,
            cpu_seconds,
            p50_us: self.percentile_us(50),
            p99_us: self.percentile_us(99),
        }
    }

    fn percentile_us(&self, percent: usize) -> f64 {
        let index = self.latencies.len() * percent / 100;
        f64::from(self.latencies.get(index).copied().unwrap_or(0)) / 1_000.0
    }
}

impl Rounds {
    pub(crate) fn push(&mut self, measured: Measurement) {
        self.0.push(measured);
    }

    /// The median of one value over the rounds.
    pub(crate) fn median(&self, figure: fn(&Measurement) -> f64) -> f64 {
        median(self.0.iter().map(figure))
    }

    /// Responses that were errors.
    pub(crate) fn errors(&self) -> u64 {
        self.0.iter().map(|measured| measured.errors).sum()
    }

    /// The median over all rounds of the ratio of a value to another contestant's in the same round.
    pub(crate) fn ratio(&self, other: &Self, figure: fn(&Measurement) -> f64) -> f64 {
        let pairs = self.0.iter().zip(&other.0);
        median(pairs.map(|(own, other)| figure(own) / figure(other)))
    }

    /// The cells of a table: decisions per CPU-second, decisions per second, and the busy part of the core.
    pub(crate) fn rate_cells(&self) -> String {
        format!(
            "{:.0} | {:.0} | {:.2}",
            self.median(Measurement::per_cpu_second),
            self.median(Measurement::per_second),
            self.median(Measurement::busy)
        )
    }

    /// The cells of a table: the median and the 99th percentile of latencies, in microseconds.
    pub(crate) fn latency_cells(&self) -> String {
        let [p50, p99] = [|round: &Measurement| round.p50_us, |round: &Measurement| round.p99_us];
        format!("{:.0} | {:.0}", self.median(p50), self.median(p99))
    }

    /// The medians, and the members that only this row has.
    pub(crate) fn as_json<const N: usize>(&self, members: [(&str, Value); N]) -> Value {
        let mut row = json!({
            "decisions_per_cpu_second": self.median(Measurement::per_cpu_second),
            "decisions_per_second": self.median(Measurement::per_second),
            "busy": self.median(Measurement::busy),
            "p50_us": self.median(|measured| measured.p50_us),
            "p99_us": self.median(|measured| measured.p99_us),
            "errors": self.errors(),
        });
        for (name, value) in members {
            row.as_object_mut().map(|row| row.insert(name.to_owned(), value));
        }
        row
    }
}

pub(crate) fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
