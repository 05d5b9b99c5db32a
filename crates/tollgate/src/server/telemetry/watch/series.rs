//! Time series of the last day in rings of fixed size: totals, and the busiest rules.
//!
//! A ring has a slot for each of its steps, and one more for the step in progress. Slots are cleared when their step begins, so that a
//! ring needs no times of its own.

use super::latency::LatencyCounts;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tollgate_limiter::core::Source;

/// The length of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// One second, for five minutes.
    Second,
    /// Ten seconds, for an hour.
    TenSeconds,
    /// One minute, for a day.
    Minute,
}

/// A rule of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RuleName {
    /// Its domain.
    pub(crate) domain: Arc<str>,
    /// Its id.
    pub(crate) rule: Arc<str>,
}

/// Decisions of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepCounts {
    /// Allowed, also by shadow rules.
    pub(crate) allowed: u32,
    /// Denied by an enforced limit.
    pub(crate) denied: u32,
    /// Allowed although a shadow rule would deny.
    pub(crate) shadow_denied: u32,
}

/// Decisions of a rule by the part of its limit that is used: below 50 %, 80 %, 95 %, 100 %, and denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BandCounts(pub(crate) [u32; BANDS.len()]);

/// The totals of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepTotals {
    /// By result. Shadow denials are counted once per rule.
    pub(crate) counts: StepCounts,
    /// Checks by source, each at the index of its number.
    pub(crate) sources: [u32; Source::ALL.len()],
    /// From planning to verdict.
    pub(crate) decision: LatencyCounts,
    /// Calls of the shared store.
    pub(crate) store: LatencyCounts,
}

/// Consecutive steps, the oldest first. The last one is the newest that is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepWindow<T> {
    /// Unix time of the first step, in milliseconds.
    pub(crate) start_ms: u64,
    /// The length of a step.
    pub(crate) step_ms: u64,
    /// One entry per step; none: no data.
    pub(crate) values: Vec<Option<T>>,
}

impl StepWindow<StepTotals> {
    /// The counts alone.
    pub(crate) fn counts(&self) -> StepWindow<StepCounts> {
        let values = self.values.iter();
        StepWindow {
            start_ms: self.start_ms,
            step_ms: self.step_ms,
            values: values.map(|totals| totals.map(|totals| totals.counts)).collect(),
        }
    }
}

/// The figures of one rule in one second.
#[derive(Clone, Debug)]
pub(crate) struct RuleStep {
    /// The rule.
    pub(crate) name: RuleName,
    /// Its decisions.
    pub(crate) counts: StepCounts,
    /// The same by utilization.
    pub(crate) bands: BandCounts,
}

/// The series of one server.
#[derive(Debug)]
pub(crate) struct SeriesStore {
    state: Mutex<SeriesState>,
    completed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct SeriesState {
    /// The newest complete second.
    newest: Option<u64>,
    /// True for steps that have data.
    filled: Rings<bool>,
    totals: Rings<StepTotals>,
    rules: HashMap<RuleName, RuleSeries>,
    /// True once there were more rules than are kept: then one without a series may have had decisions.
    is_full: bool,
}

#[derive(Debug)]
struct RuleSeries {
    counts: Rings<StepCounts>,
    /// By second, for the last minute.
    bands: Box<[BandCounts]>,
    /// The first second that it has all decisions of.
    since: u64,
    /// Recent checks, the older ones with less weight: the least busy rule gives way.
    recent: u64,
}

/// Values at all resolutions.
#[derive(Debug)]
struct Rings<T>([Box<[T]>; Resolution::ALL.len()]);

impl Resolution {
    /// All, the finest first.
    pub(crate) const ALL: [Self; 3] = [Self::Second, Self::TenSeconds, Self::Minute];

    /// The length of a step.
    pub(crate) const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::TenSeconds => 10,
            Self::Minute => 60,
        }
    }

    /// The number of steps.
    pub(crate) const fn steps(self) -> usize {
        match self {
            Self::Second => 300,
            Self::TenSeconds => 360,
            Self::Minute => 1_440,
        }
    }
}

impl RuleName {
    /// A rule by its domain and its id.
    pub(crate) fn new(domain: &str, rule: &str) -> Self {
        Self {
            domain: domain.into(),
            rule: rule.into(),
        }
    }
}

impl StepCounts {
    /// Decisions of any result.
    pub(crate) fn checks(&self) -> u64 {
        u64::from(self.allowed) + u64::from(self.denied) + u64::from(self.shadow_denied)
    }

    /// Adds others.
    pub(crate) fn add(&mut self, other: &Self) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.denied = self.denied.saturating_add(other.denied);
        self.shadow_denied = self.shadow_denied.saturating_add(other.shadow_denied);
    }
}

impl BandCounts {
    /// Adds others.
    pub(crate) fn add(&mut self, other: &Self) {
        for (count, other) in self.0.iter_mut().zip(&other.0) {
            *count = count.saturating_add(*other);
        }
    }
}

impl StepTotals {
    /// Adds others.
    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        for (count, other) in self.sources.iter_mut().zip(&other.sources) {
            *count = count.saturating_add(*other);
        }
        self.decision.add(&other.decision);
        self.store.add(&other.store);
    }
}

impl<T: Copy + Default> Rings<T> {
    fn slot(&mut self, resolution: Resolution, step: u64) -> Option<&mut T> {
        let ring = self.0.get_mut(resolution as usize)?;
        let index = usize::try_from(step).ok()? % ring.len();
        ring.get_mut(index)
    }

    fn get(&self, resolution: Resolution, step: u64) -> T {
        let ring = self.0.get(resolution as usize);
        let value = ring.and_then(|ring| ring.get(usize::try_from(step).ok()? % ring.len()));
        value.copied().unwrap_or_default()
    }

    fn set(&mut self, resolution: Resolution, step: u64, value: T) {
        if let Some(slot) = self.slot(resolution, step) {
            *slot = value;
        }
    }
}

impl<T: Copy + Default> Default for Rings<T> {
    fn default() -> Self {
        Self(Resolution::ALL.map(|resolution| vec![T::default(); resolution.steps() + 1].into()))
    }
}

impl Default for SeriesStore {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            completed: watch::Sender::new(0),
        }
    }
}

impl SeriesStore {
    fn state(&self) -> MutexGuard<'_, SeriesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The Unix second whose figures were added last; 0: none yet.
    pub(crate) fn completed(&self) -> watch::Receiver<u64> {
        self.completed.subscribe()
    }

    /// True if the figures of this second can be added: it is later than the last one, or the clock was set back.
    pub(crate) fn is_due(&self, second: u64) -> bool {
        let newest = self.state().newest;
        newest.is_none_or(|newest| second > newest || newest - second > CLOCK_STEP_SECONDS)
    }

    /// Starts after this second, which has no data.
    pub(crate) fn start_after(&self, second: u64) {
        self.state().advance(second);
    }

    /// Adds the figures of one second. Seconds that were left out have no data.
    pub(crate) fn add(&self, second: u64, totals: &StepTotals, rules: &[RuleStep]) {
        let mut state = self.state();
        state.advance(second);
        state.add(second, totals, rules);
        drop(state);
        self.completed.send_replace(second);
    }

    /// The totals.
    pub(crate) fn totals(&self, resolution: Resolution) -> StepWindow<StepTotals> {
        let state = self.state();
        state.window(resolution, |step| Some(state.totals.get(resolution, step)))
    }

    /// The totals of one second.
    pub(crate) fn totals_at(&self, second: u64) -> StepTotals {
        self.state().totals.get(Resolution::Second, second)
    }

    /// The decisions of one rule.
    pub(crate) fn rule(&self, name: &RuleName, resolution: Resolution) -> StepWindow<StepCounts> {
        let state = self.state();
        let series = state.rules.get(name);
        state.window(resolution, |step| match series {
            Some(series) if step * resolution.seconds() < series.since => None,
            Some(series) => Some(series.counts.get(resolution, step)),
            None if state.is_full => None,
            None => Some(StepCounts::default()),
        })
    }

    /// The decisions of all rules that match, added up.
    pub(crate) fn rules_of(
        &self,
        resolution: Resolution,
        matches: impl Fn(&RuleName) -> bool,
    ) -> StepWindow<StepCounts> {
        let state = self.state();
        let series: Vec<&RuleSeries> = state.matching(&matches).collect();
        state.window(resolution, |step| {
            let mut sum = StepCounts::default();
            let each = series.iter().map(|series| series.counts.get(resolution, step));
            each.for_each(|counts| sum.add(&counts));
            Some(sum)
        })
    }

    /// The decisions of all rules that match in the seconds up to this one.
    pub(crate) fn sum_until(&self, second: u64, seconds: u64, matches: impl Fn(&RuleName) -> bool) -> StepCounts {
        let state = self.state();
        let mut sum = StepCounts::default();
        for series in state.matching(&matches) {
            sum.add(&series.until(second, seconds));
        }
        sum
    }

    /// The rules that have a series.
    pub(crate) fn tracked(&self) -> Vec<RuleName> {
        self.state().rules.keys().cloned().collect()
    }

    /// The figures of each rule that has a series, in the last minute.
    pub(crate) fn last_minute(&self) -> HashMap<RuleName, (StepCounts, BandCounts)> {
        let state = self.state();
        let figures = |series: &RuleSeries| {
            let mut bands = BandCounts::default();
            series.bands.iter().for_each(|counts| bands.add(counts));
            let newest = state.newest.unwrap_or_default();
            (series.until(newest, BAND_SECONDS as u64), bands)
        };
        let each = state.rules.iter();
        each.map(|(name, series)| (name.clone(), figures(series))).collect()
    }
}

impl SeriesState {
    /// Begins a second: steps between the newest one and it are cleared.
    fn advance(&mut self, second: u64) {
        let newest = match self.newest {
            Some(newest) if second <= newest => {
                // The clock was set back: what is there belongs to other times.
                *self = Self::default();
                second
            }
            Some(newest) => newest,
            None => second,
        };
        for resolution in Resolution::ALL {
            let (first, last) = (newest / resolution.seconds() + 1, second / resolution.seconds());
            // No slot more than once.
            let first = first.max(last.saturating_sub(resolution.steps() as u64));
            for step in first..=last {
                self.filled.set(resolution, step, false);
                self.totals.set(resolution, step, StepTotals::default());
                for series in self.rules.values_mut() {
                    series.counts.set(resolution, step, StepCounts::default());
                }
            }
        }
        for gone in (newest + 1..=second).rev().take(BAND_SECONDS) {
            for series in self.rules.values_mut() {
                if let Some(bands) = series.bands_at(gone) {
                    *bands = BandCounts::default();
                }
            }
        }
        if second / 60 != newest / 60 {
            for series in self.rules.values_mut() {
                series.recent -= series.recent / RECENT_MINUTES;
            }
        }
        self.newest = Some(second);
    }

    fn add(&mut self, second: u64, totals: &StepTotals, rules: &[RuleStep]) {
        for resolution in Resolution::ALL {
            let step = second / resolution.seconds();
            self.filled.set(resolution, step, true);
            if let Some(slot) = self.totals.slot(resolution, step) {
                slot.add(totals);
            }
        }
        for figures in rules.iter().filter(|figures| figures.counts.checks() > 0) {
            let Some(series) = self.series_for(second, figures) else {
                continue;
            };
            series.recent = series.recent.saturating_add(figures.counts.checks());
            if series.since > second {
                continue;
            }
            for resolution in Resolution::ALL {
                if let Some(slot) = series.counts.slot(resolution, second / resolution.seconds()) {
                    slot.add(&figures.counts);
                }
            }
            if let Some(bands) = series.bands_at(second) {
                bands.add(&figures.bands);
            }
        }
    }

    /// The series of a rule. One that has none takes a free place, or that of a rule which is far less busy.
    fn series_for(&mut self, second: u64, figures: &RuleStep) -> Option<&mut RuleSeries> {
        if !self.rules.contains_key(&figures.name) {
            let mut since = 0;
            if self.rules.len() >= RULES_MAX {
                self.is_full = true;
                let (least, recent) = self
                    .rules
                    .iter()
                    .map(|(name, series)| (name, series.recent))
                    .min_by_key(|(_, recent)| *recent)?;
                if figures.counts.checks() <= recent.saturating_mul(2) {
                    return None;
                }
                let least = least.clone();
                self.rules.remove(&least);
            }
            if self.is_full {
                // Its earlier decisions were not kept, and those of this reading are of more than a second.
                since = second + 1;
            }
            self.rules.insert(figures.name.clone(), RuleSeries::new(since));
        }
        self.rules.get_mut(&figures.name)
    }

    fn matching<'s>(&'s self, matches: &'s impl Fn(&RuleName) -> bool) -> impl Iterator<Item = &'s RuleSeries> {
        let each = self.rules.iter().filter(|(name, _)| matches(name));
        each.map(|(_, series)| series)
    }

    fn window<T>(&self, resolution: Resolution, read: impl Fn(u64) -> Option<T>) -> StepWindow<T> {
        let (seconds, steps) = (resolution.seconds(), resolution.steps() as u64);
        let newest = self.newest.unwrap_or_default();
        // The steps before this one are complete.
        let end = ((newest + 1) / seconds).max(steps);
        let first = end - steps;
        let value = |step: u64| match self.filled.get(resolution, step) {
            true => read(step),
            false => None,
        };
        StepWindow {
            start_ms: first * seconds * 1_000,
            step_ms: seconds * 1_000,
            values: (first..end).map(value).collect(),
        }
    }
}

impl RuleSeries {
    fn new(since: u64) -> Self {
        Self {
            counts: Rings::default(),
            bands: vec![BandCounts::default(); BAND_SECONDS].into(),
            since,
            recent: 0,
        }
    }

    /// The decisions of the seconds up to this one.
    fn until(&self, second: u64, seconds: u64) -> StepCounts {
        let mut sum = StepCounts::default();
        for second in (second + 1).saturating_sub(seconds)..=second {
            sum.add(&self.counts.get(Resolution::Second, second));
        }
        sum
    }

    fn bands_at(&mut self, second: u64) -> Option<&mut BandCounts> {
        self.bands.get_mut(usize::try_from(second).ok()? % BAND_SECONDS)
    }
}

/// The names of the bands in metrics and the API.
pub(crate) const BANDS: [&str; 5] = ["50", "80", "95", "100", "denied"];
/// Rules that have a series. Each takes 27 KB, so that all take less than 16 MiB.
pub(crate) const RULES_MAX: usize = 500;
const BAND_SECONDS: usize = 60;
/// The weight of recent checks halves in about ten minutes.
const RECENT_MINUTES: u64 = 16;
/// A clock that is set back by no more is waited for.
pub(crate) const CLOCK_STEP_SECONDS: u64 = 10;

#[cfg(test)]
mod tests;
