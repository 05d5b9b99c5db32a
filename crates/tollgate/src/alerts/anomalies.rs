//! Anomalies: counts of one minute that are far above what is usual, for checks and denials of each rule and in total, and for the
//! subjects that are denied most.

use super::baseline::{Comparison, RISE_MIN, median};
use super::hysteresis::{AlertLevel, Finding, Hysteresis, Persistence};
use super::model::{AlertKey, AlertKind, AlertRule, Reading};
use super::series::{HOUR_COUNTS_MIN, MinuteSeries};
use crate::control::model::SubjectValues;
use std::collections::HashMap;
use std::sync::Arc;

/// Watches the counts of every minute. Its time is the number of the minute since the epoch.
#[derive(Clone, Debug)]
pub struct AnomalyDetector {
    total: RuleWatch,
    rules: HashMap<AlertRule, RuleWatch>,
    /// The minute that was taken last.
    last: Option<u64>,
}

/// The counts of one minute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MinuteCounts {
    /// All checks.
    pub total: CheckCounts,
    /// The active rules; the busiest first.
    pub rules: Vec<RuleMinute>,
}

/// Checks of one minute, and those among them that were denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// The checks.
    pub checks: u64,
    /// The denials.
    pub denials: u64,
}

/// One rule in one minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMinute {
    /// The rule.
    pub name: AlertRule,
    /// Its counts.
    pub counts: CheckCounts,
    /// The subjects that it denied most often, with at least so many denials.
    pub top: Vec<(Arc<SubjectValues>, u64)>,
}

/// The series of one rule, or of all of them.
#[derive(Clone, Debug)]
struct RuleWatch {
    checks: SeriesWatch,
    denials: SeriesWatch,
    subjects: HashMap<Arc<SubjectValues>, SubjectWatch>,
}

#[derive(Clone, Debug)]
struct SeriesWatch {
    series: MinuteSeries,
    state: Hysteresis,
    /// The last comparison while the alert was not quiet: the usual count before the jump.
    baseline: u64,
}

/// The denials of one subject, in the minutes in which it was listed.
#[derive(Clone, Debug)]
struct SubjectWatch {
    series: MinuteSeries,
    state: Hysteresis,
    /// The count from which on it is a jump, when it became one.
    threshold: u64,
    baseline: u64,
}

/// Rules that are watched. Each takes 12 KiB.
const RULES_MAX: usize = 500;
/// Subjects of one rule that are watched. Each takes half a KiB.
const SUBJECTS_MAX: usize = 64;
/// Subjects of all rules that are watched.
const ALL_SUBJECTS_MAX: usize = 6_400;
/// A listed subject jumps at so many times its own median,
const SUBJECT_FACTOR: u64 = 10;
/// and at least at so many denials.
const SUBJECT_MIN: u64 = 100;
/// A subject that was not listed for an hour jumps above one in so many denials of its rule.
const NEW_SHARE: u64 = 5;
/// A rule or subject that was not seen for so many minutes is no longer watched.
const RULE_FORGOTTEN: u64 = 25 * 60;
const SUBJECT_FORGOTTEN: u64 = 60;

impl AnomalyDetector {
    /// A detector that has seen nothing.
    pub fn new() -> Self {
        Self {
            total: RuleWatch::new(),
            rules: HashMap::new(),
            last: None,
        }
    }

    /// Takes the counts of a minute that has ended, and returns every alert that is pending or fires. Minutes come in order; after one
    /// that does not, the clock was set back, and what is known belongs to other times.
    pub fn minute(&mut self, minute: u64, counts: &MinuteCounts) -> Vec<Reading> {
        if self.last.is_some_and(|last| minute <= last) {
            *self = Self::new();
        }
        self.last = Some(minute);
        let mut readings = Vec::new();
        self.total.take(minute, counts.total, None, &mut readings);
        let mut subjects = self.rules.values().map(|watch| watch.subjects.len()).sum::<usize>();
        for rule in counts.rules.iter().take(RULES_MAX) {
            if self.rules.len() >= RULES_MAX && !self.rules.contains_key(&rule.name) {
                self.forget_rules(minute, counts);
            }
            let watch = self.rules.entry(rule.name.clone()).or_insert_with(RuleWatch::new);
            watch.take(minute, rule.counts, Some(&rule.name), &mut readings);
            let before = watch.subjects.len();
            let capacity = SUBJECTS_MAX.min(before + ALL_SUBJECTS_MAX.saturating_sub(subjects));
            watch.take_subjects(minute, rule, capacity, &mut readings);
            subjects = (subjects + watch.subjects.len()).saturating_sub(before);
        }
        self.rules
            .retain(|_, watch| watch.checks.series.last() + RULE_FORGOTTEN > minute);
        readings
    }

    /// Makes room for rules of this minute by dropping those that are not among them.
    fn forget_rules(&mut self, minute: u64, counts: &MinuteCounts) {
        let present: std::collections::HashSet<&AlertRule> =
            counts.rules.iter().take(RULES_MAX).map(|rule| &rule.name).collect();
        self.rules
            .retain(|name, watch| watch.checks.series.last() == minute || present.contains(name));
    }
}

impl Default for AnomalyDetector {
    fn default() -> Self {
        Self::new()
    }
}

impl RuleWatch {
    fn new() -> Self {
        Self {
            checks: SeriesWatch::new(),
            denials: SeriesWatch::new(),
            subjects: HashMap::new(),
        }
    }

    fn take(&mut self, minute: u64, counts: CheckCounts, rule: Option<&AlertRule>, readings: &mut Vec<Reading>) {
        for (watch, count, kind, noun) in [
            (&mut self.checks, counts.checks, AlertKind::ChecksJump, "checks"),
            (&mut self.denials, counts.denials, AlertKind::DenialsJump, "denials"),
        ] {
            let level = watch.take(minute, count);
            if level == AlertLevel::Quiet {
                continue;
            }
            let scope = match rule {
                Some(name) => format!("{}/{}", name.domain, name.rule),
                None => "all rules".to_owned(),
            };
            readings.push(Reading {
                key: AlertKey::with_rule(kind, rule.cloned()),
                level,
                value: count,
                baseline: watch.baseline,
                summary: format!("{scope}: {count} {noun} in a minute, usually {}", watch.baseline),
            });
        }
    }

    fn take_subjects(&mut self, minute: u64, rule: &RuleMinute, capacity: usize, readings: &mut Vec<Reading>) {
        for (subject, count) in &rule.top {
            if !self.subjects.contains_key(subject) && self.subjects.len() >= capacity {
                // The one that was not listed for the longest time makes room.
                let is_quiet = |watch: &SubjectWatch| watch.state.level() == AlertLevel::Quiet;
                let oldest = self
                    .subjects
                    .iter()
                    .filter(|(_, watch)| is_quiet(watch) && watch.series.last() < minute)
                    .min_by_key(|(_, watch)| watch.series.last())
                    .map(|(subject, _)| Arc::clone(subject));
                match oldest {
                    Some(oldest) => self.subjects.remove(&oldest),
                    None => continue,
                };
            }
            let watch = self
                .subjects
                .entry(Arc::clone(subject))
                .or_insert_with(SubjectWatch::new);
            watch.series.push(minute, *count);
        }
        // Before that every subject would be new.
        let is_known = self.denials.series.hour(minute).len() >= HOUR_COUNTS_MIN;
        self.subjects.retain(|subject, watch| {
            let level = watch.step(minute, rule.counts.denials, is_known);
            if level > AlertLevel::Quiet {
                let value = watch.series.count(minute).unwrap_or(0);
                let (AlertRule { domain, rule }, denials) = (&rule.name, rule.counts.denials);
                readings.push(Reading {
                    key: AlertKey {
                        kind: AlertKind::SubjectJump,
                        rule: Some(rule_name(domain, rule)),
                        subject: Some(Arc::clone(subject)),
                    },
                    level,
                    value,
                    baseline: watch.baseline,
                    summary: format!("{domain}/{rule}: one subject has {value} of {denials} denials in a minute"),
                });
            }
            level > AlertLevel::Quiet || watch.series.last() + SUBJECT_FORGOTTEN > minute
        });
    }
}

fn rule_name(domain: &Arc<str>, rule: &Arc<str>) -> AlertRule {
    AlertRule {
        domain: Arc::clone(domain),
        rule: Arc::clone(rule),
    }
}

impl SeriesWatch {
    fn new() -> Self {
        Self {
            series: MinuteSeries::long(),
            state: Hysteresis::default(),
            baseline: 0,
        }
    }

    fn take(&mut self, minute: u64, count: u64) -> AlertLevel {
        self.series.push(minute, count);
        let was_firing = self.state.level() == AlertLevel::Firing;
        let comparison = self.series.compare(was_firing);
        if let Some(comparison) = comparison.filter(|comparison| comparison.is_jump || !was_firing) {
            self.baseline = comparison.baseline;
        }
        self.state.step(finding(comparison), Persistence::ANOMALY)
    }
}

/// Without a baseline nothing is a jump.
fn finding(comparison: Option<Comparison>) -> Finding {
    match comparison {
        Some(comparison) if comparison.is_jump => Finding::Holds,
        Some(comparison) if !comparison.is_clear() => Finding::Between,
        _ => Finding::Gone,
    }
}

impl SubjectWatch {
    fn new() -> Self {
        Self {
            series: MinuteSeries::short(),
            state: Hysteresis::default(),
            threshold: 0,
            baseline: 0,
        }
    }

    /// Judges the count of a minute; 0 if the subject is not listed. `is_known` is true once the rule was watched for long enough to
    /// know its subjects.
    fn step(&mut self, minute: u64, rule_denials: u64, is_known: bool) -> AlertLevel {
        let count = self.series.count(minute).unwrap_or(0);
        // One minute less than of a series: a jump begins within a minute, whose count is low and must not be its baseline.
        let mut listed = self.series.hour(minute.saturating_sub(1));
        let listed_minutes = listed.len();
        let own_median = median(&mut listed);
        let threshold = match own_median {
            Some(own) => own.saturating_mul(SUBJECT_FACTOR).max(SUBJECT_MIN),
            None => (rule_denials / NEW_SHARE + 1).max(RISE_MIN),
        };
        let level_before = self.state.level();
        let finding = if level_before == AlertLevel::Firing {
            // The usual count follows a jump that lasts: then it is no longer one.
            let is_usual =
                listed_minutes >= HOUR_COUNTS_MIN && own_median.is_some_and(|own| count < own.saturating_mul(2));
            match is_usual || count.saturating_mul(2) < self.threshold {
                true => Finding::Gone,
                false => Finding::Between,
            }
        } else if is_known && count >= threshold {
            Finding::Holds
        } else {
            Finding::Gone
        };
        let level = self.state.step(finding, Persistence::ANOMALY);
        if level_before == AlertLevel::Quiet && level != AlertLevel::Quiet {
            (self.threshold, self.baseline) = (threshold, own_median.unwrap_or(0));
        }
        level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 29_000_000;

    fn name(rule: &str) -> AlertRule {
        rule_name(&"default".into(), &rule.into())
    }

    fn subject(value: &str) -> Arc<SubjectValues> {
        Arc::new([("merchant".to_owned(), value.to_owned())].into())
    }

    /// One rule in a minute, and as much in total.
    fn counts(checks: u64, denials: u64, top: &[(&str, u64)]) -> MinuteCounts {
        let counts = CheckCounts { checks, denials };
        MinuteCounts {
            total: counts,
            rules: vec![RuleMinute {
                name: name("plan"),
                counts,
                top: top.iter().map(|(value, count)| (subject(value), *count)).collect(),
            }],
        }
    }

    /// The alerts that fire, as `kind rule-or-all subject`.
    fn firing(readings: &[Reading]) -> Vec<String> {
        let mut firing: Vec<String> = readings
            .iter()
            .filter(|reading| reading.level == AlertLevel::Firing)
            .map(|reading| {
                let rule = reading.key.rule.as_ref().map_or("all", |name| &name.rule);
                let subject = reading.key.subject.as_ref().and_then(|values| values.get("merchant"));
                let subject = subject.map_or(String::new(), |subject| format!(" {subject}"));
                format!("{} {rule}{subject}", reading.key.kind.name())
            })
            .collect();
        firing.sort();
        firing
    }

    #[test]
    fn a_jump_of_denials_fires_in_its_second_minute_and_resolves_five_minutes_after_it() {
        let mut detector = AnomalyDetector::new();
        let mut minute = START;
        let mut next = |counts: &MinuteCounts| {
            minute += 1;
            firing(&detector.minute(minute, counts))
        };
        for _ in 0..60 {
            assert!(next(&counts(1_000, 20, &[("m_1", 9)])).is_empty());
        }
        let jump = counts(1_300, 300, &[("m_2", 100), ("m_1", 9)]);
        assert!(next(&jump).is_empty());
        let expected = ["denials_jump all", "denials_jump plan", "subject_jump plan m_2"];
        assert_eq!(next(&jump), expected);
        let readings = detector.minute(minute + 1, &jump);
        let of_rule = readings
            .iter()
            .find(|reading| reading.key == AlertKey::with_rule(AlertKind::DenialsJump, Some(name("plan"))))
            .expect("it fires");
        assert_eq!((of_rule.value, of_rule.baseline), (300, 20));
        assert_eq!(of_rule.summary, "default/plan: 300 denials in a minute, usually 20");
        minute += 1;
        let mut next = |counts: &MinuteCounts| {
            minute += 1;
            firing(&detector.minute(minute, counts))
        };
        for _ in 0..4 {
            assert_eq!(next(&counts(1_000, 20, &[("m_1", 9)])), expected);
        }
        assert!(next(&counts(1_000, 20, &[("m_1", 9)])).is_empty());
    }

    #[test]
    fn a_listed_subject_jumps_at_ten_times_its_own_median() {
        let mut detector = AnomalyDetector::new();
        let mut minute = START;
        let mut next = |of_subject: u64| {
            minute += 1;
            // Denials of others hide it in the series of the rule.
            let others = 5_000;
            firing(&detector.minute(minute, &counts(100_000, others + of_subject, &[("m_1", of_subject)])))
        };
        for _ in 0..60 {
            assert!(next(30).is_empty());
        }
        for _ in 0..5 {
            assert!(next(299).is_empty());
        }
        for _ in 0..60 {
            next(30);
        }
        assert!(next(300).is_empty());
        assert_eq!(next(300), ["subject_jump plan m_1"]);
    }

    #[test]
    fn a_new_subject_needs_a_fifth_of_the_denials_and_fifty() {
        for (of_subject, denials, fires) in [(49, 60, false), (50, 200, true), (50, 250, false), (51, 250, true)] {
            let mut detector = after_an_hour(&counts(10_000, denials, &[("m_1", denials / 2)]));
            let mut found = Vec::new();
            for minute in 60..62 {
                let top = [("m_1", denials / 2), ("m_2", of_subject)];
                found = firing(&detector.minute(START + minute, &counts(10_000, denials, &top)));
            }
            assert_eq!(!found.is_empty(), fires, "{of_subject} of {denials}: {found:?}");
        }
    }

    #[test]
    fn no_subject_is_new_before_the_rule_was_watched_for_twenty_minutes() {
        let mut detector = AnomalyDetector::new();
        for minute in 0..22 {
            let readings = detector.minute(START + minute, &counts(10_000, 300, &[("m_1", 250)]));
            assert!(readings.is_empty(), "{minute}: {readings:?}");
        }
    }

    /// A detector after an hour of equal minutes.
    fn after_an_hour(minute_counts: &MinuteCounts) -> AnomalyDetector {
        let mut detector = AnomalyDetector::new();
        for minute in 0..60 {
            detector.minute(START + minute, minute_counts);
        }
        detector
    }

    #[test]
    fn a_jump_that_begins_within_a_minute_fires_after_two_whole_ones() {
        let mut detector = after_an_hour(&counts(10_000, 1_000, &[]));
        let mut fired = Vec::new();
        // Denials of others hide it in the series of the rule.
        for (minute, of_subject) in [(60, 60), (61, 300), (62, 300)] {
            let readings = detector.minute(START + minute, &counts(10_000, 1_000, &[("m_1", of_subject)]));
            fired = firing(&readings);
        }
        assert_eq!(fired, ["subject_jump plan m_1"]);
    }

    #[test]
    fn a_jump_that_lasts_becomes_usual() {
        let mut detector = after_an_hour(&counts(1_000, 0, &[]));
        let mut fired = Vec::new();
        for minute in 60..130 {
            let found = firing(&detector.minute(START + minute, &counts(1_000, 400, &[("m_1", 400)])));
            fired.push(found.len());
        }
        assert_eq!(fired.iter().max(), Some(&3));
        assert_eq!(fired.last(), Some(&0), "{fired:?}");
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_jump_of_one_minute_fire() {
        let mut detector = AnomalyDetector::new();
        for minute in 0..60 {
            detector.minute(START + minute, &counts(1_000, 20, &[]));
        }
        detector.minute(START + 60, &counts(5_000, 20, &[]));
        for minute in 30..60 {
            let readings = detector.minute(START + minute, &counts(1_000, 20, &[]));
            assert!(readings.is_empty(), "{minute}: {readings:?}");
        }
        // The minutes since then are a baseline again.
        for minute in 60..62 {
            detector.minute(START + minute, &counts(5_000, 20, &[]));
        }
        let readings = detector.minute(START + 62, &counts(5_000, 20, &[]));
        assert_eq!(firing(&readings), ["checks_jump all", "checks_jump plan"]);
    }

    #[test]
    fn rules_and_subjects_are_bounded() {
        let mut detector = AnomalyDetector::new();
        let rule = |minute: u64, number: u64| RuleMinute {
            name: name(&format!("r{number}")),
            counts: CheckCounts { checks: 10, denials: 5 },
            top: (0..10)
                .map(|index| (subject(&format!("m_{minute}_{index}")), 1))
                .collect(),
        };
        for minute in 0..70 {
            let minute_counts = MinuteCounts {
                total: CheckCounts::default(),
                // Others each time.
                rules: (0..600).map(|number| rule(minute, minute * 7 + number)).collect(),
            };
            detector.minute(START + minute, &minute_counts);
            assert!(detector.rules.len() <= RULES_MAX);
            let subjects: Vec<usize> = detector.rules.values().map(|watch| watch.subjects.len()).collect();
            assert!(subjects.iter().all(|&subjects| subjects <= SUBJECTS_MAX));
            assert!(subjects.iter().sum::<usize>() <= ALL_SUBJECTS_MAX);
        }
        assert!(
            detector.rules.contains_key(&name("r483")),
            "the newest rules are watched"
        );
    }
}
