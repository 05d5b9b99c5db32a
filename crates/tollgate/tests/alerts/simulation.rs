//! Anomalies in simulated weeks: 40 rules, a daily cycle × 5, counts whose variance is three times their mean, and dips at deploys.
//!
//! Of each rule the denials come in clusters of one subject, and subjects are drawn by Zipf's law, so that lists of the most denied
//! subjects have newcomers in them every minute. A rule has up to 20,000 checks and 400 denials per minute: in one with many more denials
//! a single subject is too small a part to be found. `TOLLGATE_ALERT_SEEDS` sets the number of weeks; `--nocapture` prints the figures.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tollgate::alerts::{
    AlertKind, AlertLevel, AlertRule, AnomalyDetector, CheckCounts, MinuteCounts, Reading, RuleMinute,
};
use tollgate::control::model::SubjectValues;
use tollgate_core::testing::random::Random;

const RULES: usize = 40;
const DAY: u64 = 1_440;
const DAYS: u64 = 7;
/// A minute of the epoch.
const START: u64 = 29_000_000;
/// Subjects of one rule that are denied now and then.
const SUBJECTS: usize = 500;
/// Rows of a list of subjects, as instances send them.
const TOP: usize = 10;
/// Between two jumps, each of another rule.
const JUMP_INTERVAL: u64 = 60;
const JUMP_MINUTES: u64 = 10;
/// A subject's limit per minute, in the rule where it jumps.
const LIMIT: f64 = 100.0;

/// The traffic of one rule.
struct RuleTraffic {
    name: AlertRule,
    /// Checks per minute in the quietest minute of a day.
    checks: f64,
    /// Denials among checks.
    denied: f64,
    /// The minute of the day with the most traffic.
    peak: u64,
}

/// One week of traffic.
struct Week {
    random: Random,
    rules: Vec<RuleTraffic>,
    /// Deploys: the first minute, the length, and the part of the traffic that remains.
    deploys: Vec<(u64, u64, f64)>,
    subjects: Vec<Arc<SubjectValues>>,
    /// Cumulative weights of the subjects.
    weights: Vec<f64>,
}

/// A subject that makes five times its usual number of attempts.
#[derive(Clone, Copy)]
struct Jump {
    rule: usize,
    /// The minute in which it begins,
    minute: u64,
    /// and the part of that minute before it.
    offset: f64,
    /// Its usual attempts per minute, below the limit.
    usual: f64,
}

impl Week {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let rules = (0..RULES).map(|index| RuleTraffic {
            name: AlertRule {
                domain: "default".into(),
                rule: format!("rule-{index}").into(),
            },
            // From 20 to 4,000 per minute, and five times as many at the peak.
            checks: 20.0 * 200_f64.powf(unit(&mut random)),
            denied: 0.002 + 0.018 * unit(&mut random),
            peak: random.below(DAY),
        });
        let rules = rules.collect();
        let deploys = (0..DAYS * 2).map(|index| {
            let minute = index * DAY / 2 + random.below(DAY / 2 - 20);
            (minute, random.between(1, 8), 0.1 + 0.5 * unit(&mut random))
        });
        let deploys = deploys.collect();
        let subject = |index: usize| Arc::new([("merchant".to_owned(), format!("m_{index}"))].into());
        let mut total = 0.0;
        let weights = (1..=SUBJECTS).map(|rank| {
            total += 1.0 / (rank as f64).powf(1.1);
            total
        });
        Self {
            weights: weights.collect(),
            subjects: (0..SUBJECTS + 1).map(subject).collect(),
            random,
            rules,
            deploys,
        }
    }

    /// The part of its usual traffic that arrives in a minute: less in a deploy, and more right after it, as callers retry.
    fn dip(&self, minute: u64) -> f64 {
        for &(first, length, rest) in &self.deploys {
            if (first..first + length).contains(&minute) {
                return rest;
            }
            if (first + length..first + length + 2).contains(&minute) {
                return 1.5;
            }
        }
        1.0
    }

    /// The counts of a minute since the start.
    fn minute(&mut self, minute: u64, jump: Option<Jump>) -> MinuteCounts {
        let dip = self.dip(minute);
        let mut counts = MinuteCounts::default();
        for index in 0..RULES {
            let rule = &self.rules[index];
            let phase = (minute + DAY - rule.peak) as f64 / DAY as f64 * std::f64::consts::TAU;
            // From 1 to 5 and back in a day.
            let expected = rule.checks * dip * (3.0 + 2.0 * phase.cos());
            let (mut of_jump, name) = (0.0, rule.name.clone());
            let denied = expected * rule.denied;
            let passed = overdispersed(&mut self.random, expected - denied);
            let (mut denials, mut by_subject) = self.denials(denied);
            if let Some(jump) = jump.filter(|jump| jump.rule == index && minute >= jump.minute) {
                let active = if minute == jump.minute { 1.0 - jump.offset } else { 1.0 };
                let attempts = overdispersed(&mut self.random, jump.usual * 5.0 * active) as f64;
                of_jump = (attempts - LIMIT * active).max(0.0);
            }
            denials += of_jump as u64;
            if of_jump >= 1.0 {
                by_subject.insert(SUBJECTS, of_jump as u64);
            }
            let mut top: Vec<(usize, u64)> = by_subject.into_iter().collect();
            top.sort_by_key(|&(subject, count)| (std::cmp::Reverse(count), subject));
            top.truncate(TOP);
            let check_counts = CheckCounts {
                checks: passed + denials,
                denials,
            };
            counts.total.checks += check_counts.checks;
            counts.total.denials += check_counts.denials;
            counts.rules.push(RuleMinute {
                name,
                counts: check_counts,
                top: top
                    .into_iter()
                    .map(|(subject, count)| (Arc::clone(&self.subjects[subject]), count))
                    .collect(),
            });
        }
        counts
    }

    /// Denials in clusters, each of one subject: their sum has three times the variance of its mean.
    fn denials(&mut self, mean: f64) -> (u64, HashMap<usize, u64>) {
        let clusters = poisson(&mut self.random, mean / 2.0);
        let (mut sum, mut by_subject) = (0, HashMap::new());
        for _ in 0..clusters {
            let size = cluster(&mut self.random);
            let drawn = unit(&mut self.random) * self.weights[SUBJECTS - 1];
            let subject = self.weights.partition_point(|&weight| weight < drawn);
            *by_subject.entry(subject).or_default() += size;
            sum += size;
        }
        (sum, by_subject)
    }

    /// The jump of one subject in each rule in turn, once an hour.
    fn jump(&mut self, number: u64, minute: u64) -> Jump {
        Jump {
            rule: (number % RULES as u64) as usize,
            minute,
            offset: unit(&mut self.random),
            usual: LIMIT * (0.6 + 0.4 * unit(&mut self.random)),
        }
    }
}

/// From 0 to 1.
fn unit(random: &mut Random) -> f64 {
    random.below(1 << 52) as f64 / (1_u64 << 52) as f64
}

/// The size of a cluster: geometric with mean 2, so that the variance of a sum of clusters is three times its mean.
fn cluster(random: &mut Random) -> u64 {
    1 + u64::from(random.next().trailing_ones())
}

fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - unit(random)).ln()).sqrt();
    radius * (unit(random) * std::f64::consts::TAU).cos()
}

fn poisson(random: &mut Random, mean: f64) -> u64 {
    if mean > 50.0 {
        return (mean + mean.sqrt() * normal(random)).round().max(0.0) as u64;
    }
    let (limit, mut product, mut count) = ((-mean).exp(), unit(random), 0);
    while product > limit {
        product *= unit(random);
        count += 1;
    }
    count
}

/// A count whose variance is three times its mean.
fn overdispersed(random: &mut Random, mean: f64) -> u64 {
    if mean > 200.0 {
        return (mean + (3.0 * mean).sqrt() * normal(random)).round().max(0.0) as u64;
    }
    let clusters = poisson(random, mean / 2.0);
    (0..clusters).map(|_| cluster(random)).sum()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the number of weeks is an argument of the run, not a setting"
)]
fn seeds() -> u64 {
    let count = std::env::var("TOLLGATE_ALERT_SEEDS").ok();
    count.map_or(1, |count| count.parse().expect("TOLLGATE_ALERT_SEEDS is a number"))
}

fn is_firing(reading: &&Reading) -> bool {
    reading.level == AlertLevel::Firing
}

#[test]
fn usual_weeks_have_at_most_one_false_alert_each() {
    let seeds = seeds();
    let mut by_kind: BTreeMap<AlertKind, u64> = BTreeMap::new();
    let mut checks = 0;
    for seed in 0..seeds {
        let mut week = Week::new(seed);
        let mut detector = AnomalyDetector::new();
        let mut before = Vec::new();
        for minute in 0..DAYS * DAY {
            let counts = week.minute(minute, None);
            checks += counts.total.checks;
            let readings = detector.minute(START + minute, &counts);
            let firing: Vec<_> = readings
                .iter()
                .filter(is_firing)
                .map(|reading| reading.key.clone())
                .collect();
            for reading in readings.iter().filter(is_firing) {
                if !before.contains(&reading.key) {
                    *by_kind.entry(reading.key.kind).or_default() += 1;
                    println!("week {seed}, minute {minute}: {}", reading.summary);
                }
            }
            before = firing;
        }
    }
    let alerts: u64 = by_kind.values().sum();
    println!("{alerts} false alerts in {seeds} weeks of {RULES} rules and {checks} checks: {by_kind:?}");
    assert!(
        checks > seeds * 300_000_000,
        "the traffic is that of a service: {checks}"
    );
    assert!(alerts <= seeds, "{alerts} in {seeds} weeks: {by_kind:?}");
}

#[test]
fn a_subject_with_five_times_its_attempts_is_named_within_three_minutes() {
    let seeds = seeds();
    let (mut jumps, mut found, mut named, mut others) = (0, 0, 0, 0);
    for seed in 0..seeds {
        let mut week = Week::new(1_000 + seed);
        let mut detector = AnomalyDetector::new();
        let subject = Arc::clone(&week.subjects[SUBJECTS]);
        let mut jump: Option<Jump> = None;
        let (mut is_found, mut is_named) = (false, false);
        for minute in 0..DAYS * DAY {
            // After the first day, so that there is a yesterday.
            if minute > DAY + 2 * JUMP_INTERVAL && minute % JUMP_INTERVAL == 0 {
                jump = Some(week.jump(minute / JUMP_INTERVAL, minute));
                jumps += 1;
                (is_found, is_named) = (false, false);
            }
            jump = jump.filter(|jump| minute < jump.minute + JUMP_MINUTES);
            let counts = week.minute(minute, jump);
            let readings = detector.minute(START + minute, &counts);
            let Some(jump) = jump else { continue };
            // At the end of this minute as many minutes have passed since the jump.
            let minutes = (minute + 1 - jump.minute) as f64 - jump.offset;
            let rule = &week.rules[jump.rule].name;
            for reading in readings.iter().filter(is_firing) {
                let is_rule = reading.key.rule.as_ref() == Some(rule);
                let is_subject = is_rule && reading.key.subject.as_ref() == Some(&subject);
                others += u64::from(reading.key.rule.is_some() && !is_rule && minute == jump.minute + 3);
                if minutes > 3.0 {
                    continue;
                }
                is_found |= is_rule;
                is_named |= is_subject;
            }
            if minute == jump.minute + JUMP_MINUTES - 1 {
                found += u64::from(is_found);
                named += u64::from(is_named);
            }
        }
    }
    println!(
        "{jumps} jumps: {found} found in time, {named} with the name of the subject; {others} alerts of other rules"
    );
    assert!(jumps >= seeds * 100, "{jumps}");
    assert!(found * 100 >= jumps * 99, "{found} of {jumps}");
    assert!(named * 100 >= jumps * 95, "{named} of {jumps}");
}
