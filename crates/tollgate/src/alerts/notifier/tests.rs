use super::*;
use crate::alerts::hysteresis::AlertLevel;
use crate::alerts::model::{AlertKind, AlertRule, Reading};
use crate::alerts::table::{AlertTable, DetectorKind};
use crate::alerts::thresholds::{AlertCondition, TICK_SECONDS, ThresholdDetector};

fn key(rule: &str) -> AlertKey {
    AlertKey::with_rule(
        AlertKind::DenialsJump,
        Some(AlertRule {
            domain: "default".into(),
            rule: rule.into(),
        }),
    )
}

fn end<'a>(table: &'a AlertTable, key: &AlertKey) -> AlertEnd<'a> {
    match (table.get(key), table.last_resolved(key)) {
        (Some(alert), _) if alert.state == AlertState::Firing => AlertEnd::HeldBack,
        (_, Some(alert)) => AlertEnd::Resolved(alert),
        (_, None) => AlertEnd::Forgotten(0),
    }
}

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;

/// A table of alerts and the notifier of one webhook.
struct Site {
    table: AlertTable,
    notifier: Notifier,
}

impl Site {
    fn new() -> Self {
        Self {
            table: AlertTable::default(),
            notifier: Notifier::new(NotifyPace::default()),
        }
    }

    /// The message at a time at which these rules have an alert, as letters: `+a` fires, `-a` is resolved.
    fn at(&mut self, now: u64, rules: &[&str]) -> Option<String> {
        let readings = rules.iter().map(|rule| Reading {
            key: key(rule),
            level: AlertLevel::Firing,
            value: 1,
            baseline: 0,
            summary: String::new(),
        });
        self.table.update(DetectorKind::Anomalies, readings.collect(), now);
        let firing: Vec<&Alert> = self.table.active().collect();
        let message = self.notifier.due(now, &firing, |key| end(&self.table, key))?;
        let alerts = message.alerts.iter().map(|alert| {
            let sign = if alert.state == AlertState::Firing { '+' } else { '-' };
            format!("{sign}{}", alert.key.rule.as_ref().map_or("", |name| &name.rule))
        });
        let digest = if message.is_digest { " digest" } else { "" };
        Some(format!("{}{digest}", alerts.collect::<Vec<_>>().join(" ")))
    }
}

#[test]
fn changes_of_half_a_minute_are_one_message() {
    let mut site = Site::new();
    assert_eq!(site.at(0, &["a"]), None);
    assert_eq!(site.at(20 * SECOND, &["a", "b"]), None);
    assert_eq!(site.at(30 * SECOND, &["a", "b"]).as_deref(), Some("+a +b"));
    assert_eq!(site.at(35 * SECOND, &["a", "b"]), None);
    assert_eq!(site.at(40 * SECOND, &["b", "c"]), None);
    assert_eq!(site.at(70 * SECOND, &["b", "c"]).as_deref(), Some("+c -a"));
    assert_eq!(site.at(75 * SECOND, &["b", "c"]), None);
}

#[test]
fn a_storm_comes_in_several_messages_and_the_critical_alert_first() {
    let reading = |kind, rule: Option<String>| Reading {
        key: AlertKey::with_rule(
            kind,
            rule.map(|rule| AlertRule {
                domain: "default".into(),
                rule: rule.into(),
            }),
        ),
        level: AlertLevel::Firing,
        value: 1,
        baseline: 0,
        summary: String::new(),
    };
    let mut table = AlertTable::default();
    let mut notifier = Notifier::new(NotifyPace::default());
    let jumps = |count| (0..count).map(|rule| reading(AlertKind::ChecksJump, Some(format!("r{rule}"))));
    let mut sent = Vec::new();
    for tick in 0..120 {
        let now = tick * 5 * SECOND;
        // All begin at once, and end after five minutes.
        let (rules, states) = match now < 5 * MINUTE {
            true => (
                130,
                vec![reading(AlertKind::Drift, None), reading(AlertKind::ControlForked, None)],
            ),
            false => (0, Vec::new()),
        };
        table.update(DetectorKind::Anomalies, jumps(rules).collect(), now);
        table.update(DetectorKind::Thresholds, states, now);
        let firing: Vec<&Alert> = table.active().collect();
        if let Some(message) = notifier.due(now, &firing, |key| end(&table, key)) {
            let kinds = message.alerts.iter().take(3).map(|alert| alert.key.kind.name());
            sent.push((message.alerts.len(), message.left_out, kinds.collect::<Vec<_>>()));
        }
    }
    let worst = vec!["control_forked", "drift", "checks_jump"];
    let others = vec!["checks_jump"; 3];
    let expected = [
        (100, 32, worst.clone()),
        (32, 0, others.clone()),
        (100, 32, worst),
        (32, 0, others),
    ];
    assert_eq!(sent, expected);
}

#[test]
fn the_end_of_an_alert_is_sent_though_five_hundred_others_ended_since() {
    let mut site = Site::new();
    let names: Vec<String> = (0..450).map(|number| format!("r{number}")).collect();
    let others: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(site.at(0, &["a"]), None);
    assert_eq!(site.at(30 * SECOND, &["a"]).as_deref(), Some("+a"));
    // It ends, and is pushed out of the table before the end could be sent.
    site.at(35 * SECOND, &others);
    site.at(40 * SECOND, &[]);
    site.at(45 * SECOND, &others);
    site.at(50 * SECOND, &[]);
    assert!(site.table.last_resolved(&key("a")).is_none());
    let message = site.at(65 * SECOND, &[]);
    assert_eq!(message.as_deref(), Some("-a"));
    // Nothing of it stays behind.
    site.at(2 * 60 * MINUTE, &[]);
    assert!(site.notifier.sent.is_empty());
}

#[test]
fn who_takes_over_sends_what_fires_and_what_has_just_ended() {
    let mut site = Site::new();
    // Another one sends this.
    site.at(0, &["a", "b", "c"]);
    assert_eq!(site.at(30 * SECOND, &["a", "b", "c"]).as_deref(), Some("+a +b +c"));
    site.at(10 * MINUTE, &["b", "c"]);
    site.at(11 * MINUTE, &["b", "c"]);
    site.at(20 * MINUTE, &["c"]);
    assert_eq!(site.at(20 * MINUTE + 30 * SECOND, &["c"]).as_deref(), Some("-b"));
    site.notifier
        .take_over(20 * MINUTE + 40 * SECOND, Duration::from_secs(60));
    site.at(20 * MINUTE + 40 * SECOND, &["c"]);
    let message = site.at(20 * MINUTE + 70 * SECOND, &["c"]);
    assert_eq!(message.as_deref(), Some("+c -b"));
    site.at(20 * MINUTE + 75 * SECOND, &["c"]);
    assert_eq!(site.at(22 * MINUTE, &["c"]), None);
}

#[test]
fn what_is_over_before_it_was_sent_is_not_sent() {
    let mut site = Site::new();
    assert_eq!(site.at(0, &["a"]), None);
    assert_eq!(site.at(25 * SECOND, &[]), None);
    assert_eq!(site.at(40 * SECOND, &[]), None);
}

#[test]
fn an_alert_that_goes_on_is_repeated_after_four_hours() {
    let mut site = Site::new();
    let mut messages = Vec::new();
    for tick in 0..=(9 * 60 * 2) {
        let now = tick * 30 * SECOND;
        if let Some(message) = site.at(now, &["a"]) {
            messages.push((now / MINUTE, message));
        }
    }
    let times: Vec<u64> = messages.iter().map(|(minute, _)| *minute).collect();
    assert_eq!(times, [0, 241, 481]);
    assert!(messages.iter().all(|(_, message)| message == "+a"));
}

#[test]
fn repetitions_do_not_delay_the_end() {
    let mut site = Site::new();
    site.notifier = Notifier::new(NotifyPace {
        repeat: Duration::from_secs(5 * 60),
        ..NotifyPace::default()
    });
    let mut messages = Vec::new();
    // It fires for half an hour.
    for tick in 0..40 * 12 {
        let now = tick * 5 * SECOND;
        let rules: &[&str] = if now < 30 * MINUTE { &["a"] } else { &[] };
        if let Some(message) = site.at(now, rules) {
            messages.push((now / SECOND, message));
        }
    }
    let (end, repeated) = messages.split_last().expect("there are messages");
    assert_eq!((end.0, &*end.1), (30 * 60 + 30, "-a"));
    let times: Vec<u64> = repeated.iter().map(|(second, _)| *second).collect();
    assert_eq!(times, [30, 360, 690, 1_020, 1_350, 1_680]);
    assert!(repeated.iter().all(|(_, message)| message == "+a"));
}

#[test]
fn an_alert_that_flaps_has_three_messages_an_hour() {
    let mut site = Site::new();
    let mut messages = Vec::new();
    // Six minutes with it, six without, for two hours.
    for tick in 0..2 * 720 {
        let now = tick * 5 * SECOND;
        let rules: &[&str] = if now / MINUTE % 12 < 6 { &["a"] } else { &[] };
        if let Some(message) = site.at(now, rules) {
            messages.push((now / MINUTE, message));
        }
    }
    let in_first_hour = messages.iter().filter(|(minute, _)| *minute < 60).count();
    assert_eq!(in_first_hour, 3, "{messages:?}");
    assert!(messages.len() <= 6, "{messages:?}");
    let alternates = messages.windows(2).all(|pair| pair[0].1 != pair[1].1);
    assert!(alternates, "{messages:?}");
}

/// Row 50.
#[test]
fn a_store_that_flaps_for_an_hour_has_at_most_four_messages() {
    // Seconds for which it is unavailable, and for which it answers.
    for (away, back) in [
        (5, 5),
        (10, 20),
        (20, 10),
        (30, 60),
        (60, 240),
        (60, 320),
        (300, 300),
        (600, 600),
    ] {
        let mut detector = ThresholdDetector::default();
        let mut table = AlertTable::default();
        let mut notifier = Notifier::new(NotifyPace::default());
        let mut messages = Vec::new();
        for tick in 0..3_600 / TICK_SECONDS {
            let second = tick * TICK_SECONDS;
            let now = second * SECOND;
            let condition = AlertCondition {
                kind: AlertKind::StoreUnavailable,
                summary: String::new(),
                value: 1,
                threshold: 0,
            };
            let conditions = match second % (away + back) < away {
                true => vec![condition],
                false => Vec::new(),
            };
            table.update(DetectorKind::Thresholds, detector.tick(&conditions, &[]), now);
            let firing = table.active().filter(|alert| alert.state == AlertState::Firing);
            let firing: Vec<&Alert> = firing.collect();
            if notifier.due(now, &firing, |key| end(&table, key)).is_some() {
                messages.push(second);
            }
        }
        assert!(messages.len() <= 4, "{away} s away, {back} s back: {messages:?}");
    }
}

#[test]
fn after_twenty_messages_in_an_hour_one_digest_has_the_rest() {
    let mut site = Site::new();
    let names: Vec<String> = (0..60).map(|number| format!("r{number:02}")).collect();
    let mut messages = Vec::new();
    // One more alert each minute.
    for tick in 0..=(70 * 12) {
        let now = tick * 5 * SECOND;
        let count = usize::try_from(now / MINUTE + 1).unwrap_or(0).min(60);
        let rules: Vec<&str> = names.iter().take(count).map(String::as_str).collect();
        if let Some(message) = site.at(now, &rules) {
            messages.push((now / MINUTE, message));
        }
    }
    let (first, rest) = messages.split_at(20);
    assert!(first.iter().all(|(_, message)| message.len() == 4), "{first:?}");
    let (minute, digest) = rest.first().expect("a digest");
    assert_eq!(*minute, 60);
    assert!(
        digest.ends_with(" digest") && digest.split(' ').count() == 41,
        "{digest}"
    );
    assert!(rest.len() < 10, "{rest:?}");
}

#[test]
fn a_digest_has_what_fired_and_ended_while_messages_were_held_back() {
    let pace = NotifyPace {
        max_per_hour: 1,
        ..NotifyPace::default()
    };
    let mut site = Site::new();
    site.notifier = Notifier::new(pace);
    let mut messages = Vec::new();
    for tick in 0..70 * 12 {
        let now = tick * 5 * SECOND;
        let rules: &[&str] = match now / MINUTE {
            // Ten minutes of it, and nothing for the rest of the hour.
            10..20 => &["a", "b"],
            _ => &["a"],
        };
        if let Some(message) = site.at(now, rules) {
            messages.push((now / MINUTE, message));
        }
    }
    assert_eq!(messages, [(0, "+a".to_owned()), (60, "-b digest".to_owned())]);
}

#[test]
fn a_message_after_a_time_without_changes_is_no_digest() {
    let mut site = Site::new();
    site.notifier = Notifier::new(NotifyPace {
        max_per_hour: 1,
        ..NotifyPace::default()
    });
    let mut messages = Vec::new();
    for tick in 0..90 * 12 {
        let now = tick * 5 * SECOND;
        let rules: &[&str] = match now / MINUTE {
            // It ended, and fires again before that could be sent.
            30..35 => &[],
            0..80 => &["a"],
            _ => &["a", "b"],
        };
        if let Some(message) = site.at(now, rules) {
            messages.push((now / MINUTE, message));
        }
    }
    assert_eq!(messages, [(0, "+a".to_owned()), (80, "+b".to_owned())]);
}
