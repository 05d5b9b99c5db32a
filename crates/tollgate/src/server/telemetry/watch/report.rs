//! The figures that an instance reports to the others, and the sums over instances.

use super::Watch;
use super::series::{BandCounts, Resolution, RuleName, StepCounts, StepWindow};
use super::top::{PartRow, RulePart, TopQuery, join};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The figures of one instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FiguresReport {
    /// Unix time in milliseconds, by its own clock.
    pub(crate) at: u64,
    /// The totals, by resolution.
    totals: Vec<ReportedWindow>,
    /// The busiest rules in the last minute.
    rules: Vec<ReportedRule>,
    /// The rules that dashboards show, by resolution.
    series: Vec<ReportedSeries>,
    /// Refused subjects of the last [`TOP_MINUTES`].
    top: Vec<ReportedTop>,
}

/// Consecutive steps up to a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ReportedWindow {
    /// The number of the step after the last one.
    end: u64,
    allowed: Vec<Option<u32>>,
    denied: Vec<Option<u32>>,
    /// Empty if all are zero.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    shadow_denied: Vec<Option<u32>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ReportedRule {
    domain: String,
    rule: String,
    counts: [u32; 3],
    bands: [u32; 5],
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ReportedSeries {
    domain: String,
    rule: String,
    windows: Vec<ReportedWindow>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ReportedTop {
    domain: String,
    rule: String,
    total: u64,
    unlisted: u64,
    rows: Vec<(String, u64, u64)>,
}

impl FiguresReport {
    /// The figures of this instance, with the series of these rules.
    pub(crate) fn of(watch: &Watch, watched: &[RuleName], now_ms: u64) -> Self {
        let series = watch.series();
        let totals = Resolution::ALL.map(|resolution| {
            let window = series.totals(resolution);
            let counts = window.values.iter().map(|value| value.map(|totals| totals.counts));
            ReportedWindow::of(window.start_ms, window.step_ms, counts)
        });
        let mut rules: Vec<(RuleName, (StepCounts, BandCounts))> = series.last_minute().into_iter().collect();
        rules.retain(|(_, (counts, _))| counts.checks() > 0);
        rules.sort_by_key(|(_, (counts, _))| std::cmp::Reverse(counts.checks()));
        rules.truncate(RULES_MAX);
        let reported = |(name, (counts, bands)): (RuleName, (StepCounts, BandCounts))| ReportedRule {
            domain: (*name.domain).to_owned(),
            rule: (*name.rule).to_owned(),
            counts: [counts.allowed, counts.denied, counts.shadow_denied],
            bands: bands.0,
        };
        let of_rule = |name: &RuleName| ReportedSeries {
            domain: (*name.domain).to_owned(),
            rule: (*name.rule).to_owned(),
            windows: Resolution::ALL
                .map(|resolution| {
                    let window = series.rule(name, resolution);
                    ReportedWindow::of(window.start_ms, window.step_ms, window.values.into_iter())
                })
                .into(),
        };
        let from = (now_ms / 60_000 + 1).saturating_sub(TOP_MINUTES);
        let parts = join(&watch.top().parts(from, usize::MAX), TOP_ROWS);
        Self {
            at: now_ms,
            totals: totals.into(),
            rules: rules.into_iter().map(reported).collect(),
            series: watched.iter().take(WATCHED_MAX).map(of_rule).collect(),
            top: parts.into_iter().take(TOP_RULES_MAX).map(ReportedTop::of).collect(),
        }
    }

    /// The same with less: for reports that are too large.
    pub(crate) fn halved(mut self) -> Self {
        match self.series.is_empty() {
            false => self.series.clear(),
            true => {
                self.rules.truncate(self.rules.len() / 2);
                self.top.truncate(self.top.len() / 2);
            }
        }
        self
    }

    /// The totals.
    pub(crate) fn totals(&self, resolution: Resolution) -> Option<StepWindow<StepCounts>> {
        Some(self.totals.get(resolution as usize)?.window(resolution))
    }

    /// The decisions of one rule; none: it does not report them.
    pub(crate) fn rule(&self, name: &RuleName, resolution: Resolution) -> Option<StepWindow<StepCounts>> {
        let mut series = self.series.iter();
        let found = series.find(|series| *series.domain == *name.domain && *series.rule == *name.rule)?;
        Some(found.windows.get(resolution as usize)?.window(resolution))
    }

    /// Adds the last minute of its rules.
    pub(crate) fn add_last_minute(&self, sums: &mut HashMap<RuleName, (StepCounts, BandCounts)>) {
        for rule in &self.rules {
            let (counts, bands) = sums.entry(RuleName::new(&rule.domain, &rule.rule)).or_default();
            let [allowed, denied, shadow_denied] = rule.counts;
            counts.add(&StepCounts {
                allowed,
                denied,
                shadow_denied,
            });
            bands.add(&BandCounts(rule.bands));
        }
    }

    /// Its refused subjects.
    pub(crate) fn top(&self) -> Vec<RulePart> {
        let part = |top: &ReportedTop| RulePart {
            minute: u64::MAX,
            name: RuleName::new(&top.domain, &top.rule),
            total: top.total,
            unlisted: top.unlisted,
            rows: top
                .rows
                .iter()
                .map(|(subject, lower, upper)| PartRow {
                    subject: subject.as_str().into(),
                    lower: *lower,
                    upper: *upper,
                })
                .collect(),
        };
        self.top.iter().map(part).collect()
    }
}

/// True if the reports of others can answer: they report one span only.
pub(crate) fn is_reported(query: &TopQuery) -> bool {
    query.minutes == TOP_MINUTES
}

impl ReportedWindow {
    fn of(start_ms: u64, step_ms: u64, values: impl Iterator<Item = Option<StepCounts>>) -> Self {
        // Steps before the first that has data are left out.
        let values: Vec<Option<StepCounts>> = values.collect();
        let first = values.iter().position(Option::is_some).unwrap_or(values.len());
        let shown = values.get(first..).unwrap_or_default();
        let read = |read: fn(&StepCounts) -> u32| shown.iter().map(|value| value.as_ref().map(read)).collect();
        let has_shadow = shown.iter().flatten().any(|counts| counts.shadow_denied > 0);
        Self {
            end: start_ms / step_ms + values.len() as u64,
            allowed: read(|counts| counts.allowed),
            denied: read(|counts| counts.denied),
            shadow_denied: match has_shadow {
                true => read(|counts| counts.shadow_denied),
                false => Vec::new(),
            },
        }
    }

    fn window(&self, resolution: Resolution) -> StepWindow<StepCounts> {
        let step_ms = resolution.seconds() * 1_000;
        let count = self.allowed.len().min(resolution.steps());
        let skipped = self.allowed.len() - count;
        let at = |values: &Vec<Option<u32>>, index: usize| values.get(index).copied().flatten();
        let value = |index: usize| {
            Some(StepCounts {
                allowed: at(&self.allowed, index)?,
                denied: at(&self.denied, index).unwrap_or_default(),
                shadow_denied: at(&self.shadow_denied, index).unwrap_or_default(),
            })
        };
        StepWindow {
            start_ms: self.end.saturating_sub(count as u64).saturating_mul(step_ms),
            step_ms,
            values: (skipped..self.allowed.len()).map(value).collect(),
        }
    }
}

impl ReportedTop {
    fn of(part: RulePart) -> Self {
        Self {
            domain: (*part.name.domain).to_owned(),
            rule: (*part.name.rule).to_owned(),
            total: part.total,
            unlisted: part.unlisted,
            rows: part
                .rows
                .into_iter()
                .map(|row| ((*row.subject).to_owned(), row.lower, row.upper))
                .collect(),
        }
    }
}

/// The sum of windows. It ends with the newest step that all of them have, and is as long as the first one.
pub(crate) fn sum(windows: &[StepWindow<StepCounts>]) -> StepWindow<StepCounts> {
    let Some(own) = windows.first() else {
        return StepWindow {
            start_ms: 0,
            step_ms: 1_000,
            values: Vec::new(),
        };
    };
    let end_of = |window: &StepWindow<StepCounts>| window.start_ms / own.step_ms + window.values.len() as u64;
    let own_end = end_of(own);
    // One that is far behind has stopped to report.
    let current = windows
        .iter()
        .map(end_of)
        .filter(|end| *end + BEHIND_STEPS_MAX >= own_end);
    let end = current.min().unwrap_or(own_end).min(own_end);
    let first = end.saturating_sub(own.values.len() as u64);
    let value = |step: u64| {
        let mut sum = None;
        for window in windows {
            let index = step.checked_sub(window.start_ms / own.step_ms);
            let value = index.and_then(|index| window.values.get(usize::try_from(index).ok()?).copied().flatten());
            if let Some(value) = value {
                sum.get_or_insert_with(StepCounts::default).add(&value);
            }
        }
        sum
    };
    StepWindow {
        start_ms: first * own.step_ms,
        step_ms: own.step_ms,
        values: (first..end).map(value).collect(),
    }
}

/// Minutes of reported refusals.
pub(crate) const TOP_MINUTES: u64 = 15;
/// Rows of a rule in a report.
const TOP_ROWS: usize = 10;
const TOP_RULES_MAX: usize = 50;
const RULES_MAX: usize = 200;
/// Rules whose series are reported.
pub(crate) const WATCHED_MAX: usize = 4;
/// Reports are at most ten seconds old, and take a moment.
const BEHIND_STEPS_MAX: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn window(start: u64, values: &[Option<u32>]) -> StepWindow<StepCounts> {
        let counts = |allowed: u32| StepCounts {
            allowed,
            ..StepCounts::default()
        };
        StepWindow {
            start_ms: start * 1_000,
            step_ms: 1_000,
            values: values.iter().map(|value| value.map(counts)).collect(),
        }
    }

    fn sums(windows: &[StepWindow<StepCounts>]) -> (u64, Vec<Option<u32>>) {
        let sum = sum(windows);
        (
            sum.start_ms / 1_000,
            sum.values
                .iter()
                .map(|value| value.map(|counts| counts.allowed))
                .collect(),
        )
    }

    #[test]
    fn steps_of_instances_add_up_to_the_newest_that_all_have() {
        let own = window(100, &[None, Some(1), Some(2), Some(3)]);
        assert_eq!(
            sums(std::slice::from_ref(&own)),
            (100, vec![None, Some(1), Some(2), Some(3)])
        );
        let other = window(99, &[None, Some(10), Some(20), Some(30)]);
        assert_eq!(
            sums(&[own.clone(), other]),
            (99, vec![None, Some(10), Some(21), Some(32)])
        );
        let ahead = window(102, &[Some(10), Some(20), Some(30), Some(40)]);
        assert_eq!(
            sums(&[own.clone(), ahead]),
            (100, vec![None, Some(1), Some(12), Some(23)])
        );
        let gone = window(50, &[Some(10)]);
        assert_eq!(sums(&[own, gone]), (100, vec![None, Some(1), Some(2), Some(3)]));
    }

    #[test]
    fn a_report_that_was_sent_has_the_same_figures() {
        let watch = Watch::default();
        let name = RuleName::new("default", "plan");
        watch.series().start_after(1_800_000_000);
        for second in 1_800_000_001..1_800_000_100 {
            let counts = StepCounts {
                allowed: 3,
                denied: 2,
                shadow_denied: 1,
            };
            let totals = super::super::series::StepTotals {
                counts,
                ..Default::default()
            };
            let step = super::super::series::RuleStep {
                name: name.clone(),
                counts,
                bands: BandCounts([3, 0, 0, 0, 3]),
            };
            watch.series().add(second, &totals, &[step]);
        }
        let report = FiguresReport::of(&watch, std::slice::from_ref(&name), 1_800_000_100_000);
        let text = serde_json::to_string(&report).unwrap();
        let read: FiguresReport = serde_json::from_str(&text).unwrap();
        assert_eq!(read, report);
        for resolution in Resolution::ALL {
            let window = watch.series().rule(&name, resolution);
            for reported in [read.totals(resolution).unwrap(), read.rule(&name, resolution).unwrap()] {
                assert_eq!(
                    sum(&[window.clone(), reported.clone()]).values.len(),
                    window.values.len()
                );
                assert_eq!(reported.values.last(), window.values.last());
                let first = window.values.len() - reported.values.len();
                assert_eq!(reported.values, window.values[first..]);
                assert_eq!(reported.start_ms, window.start_ms + first as u64 * window.step_ms);
            }
        }
        let mut minute = HashMap::new();
        read.add_last_minute(&mut minute);
        assert_eq!(minute, watch.series().last_minute());
        assert!(
            read.rule(&RuleName::new("default", "other"), Resolution::Second)
                .is_none()
        );
        let halved = read.halved();
        assert!(halved.rule(&name, Resolution::Second).is_none() && halved.totals(Resolution::Second).is_some());
        assert!(halved.halved().rules.is_empty());
    }
}
