use super::*;
use crate::server::gate::Gate;
use crate::server::observers::ObservedVerdict;
use crate::server::telemetry::Protocol;
use std::collections::HashMap as Counts;
use std::sync::Arc;
use std::time::Instant;
use tollgate_core::testing::random::Random;
use tollgate_limiter::Direction;
use tollgate_limiter::core::rules::{Attempt, Attribute, ParserOptions, RulesParser};
use tollgate_limiter::core::{Cost, problem, yaml};
use tollgate_limiter::store::memory::Memory;

const MINUTE: u64 = 30_000_000;

fn rule(number: u64) -> SketchRule {
    SketchRule {
        number,
        name: RuleName::new("default", &format!("rule-{number}")),
    }
}

fn query(minutes: u64, limit: usize) -> TopQuery {
    TopQuery {
        domains: Vec::new(),
        rule: None,
        minutes,
        limit,
    }
}

/// Adds a denial as a thread of some stripe does.
fn deny(top: &TopRefused, rule: &SketchRule, stripe: usize, subject: u64, weight: u32) {
    STRIPE.with(|own| own.set(stripe % STRIPES));
    // Any mixing will do.
    let fingerprint = (subject + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    top.add_subject(rule, fingerprint, weight, || format!("{{\"s\":\"{subject}\"}}").into());
}

/// The number of a listed subject.
fn number(item: &TopItem) -> u64 {
    item.subject
        .trim_matches(|character: char| !character.is_ascii_digit())
        .parse()
        .unwrap()
}

/// Subjects by the law of Zipf.
struct Zipf(Vec<f64>);

#[expect(clippy::float_arithmetic, reason = "a distribution of a test")]
impl Zipf {
    fn new(subjects: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let cumulated = (1..=subjects).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self(cumulated.collect())
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let unit = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let at = unit * self.0.last().unwrap();
        self.0.partition_point(|sum| *sum < at) as u64
    }
}

/// OB3: four instances report ten rows each.
#[test]
fn the_most_refused_subjects_of_a_million_are_listed_and_their_counts_are_within_the_bounds() {
    let zipf = Zipf::new(1_000_000, 1.1);
    let (seeds, mut widest) = (seeds(), 0);
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let instances: Vec<TopRefused> = (0..4).map(|_| TopRefused::default()).collect();
        let mut truth: Counts<u64, u64> = Counts::new();
        for top in &instances {
            top.collect(MINUTE * 60_000, 0);
        }
        for denial in 0..DENIALS {
            let subject = zipf.draw(&mut random);
            *truth.entry(subject).or_default() += 1;
            deny(
                &instances[(random.next() % 4) as usize],
                &rule(1),
                (random.next() % 4) as usize,
                subject,
                1,
            );
            if denial % (DENIALS / 40) == 0 {
                for top in &instances {
                    top.collect(MINUTE * 60_000 + denial * 50_000 / DENIALS, 0);
                }
            }
        }
        let reports: Vec<Vec<RulePart>> = instances
            .iter()
            .map(|top| {
                top.collect(MINUTE * 60_000 + 59_999, 0);
                top.parts(MINUTE, 10)
            })
            .collect();
        assert!(
            reports
                .iter()
                .all(|parts| parts.len() == 1 && parts[0].rows.len() == 10)
        );
        let list = combine(&reports, &query(1, 20), MINUTE, MINUTE * 60_000 + 59_999);
        let listed: Vec<u64> = list.items.iter().map(number).collect();
        let mut ranks: Vec<(u64, u64)> = truth.iter().map(|(subject, count)| (*count, *subject)).collect();
        ranks.sort_unstable_by(|one, other| other.cmp(one));
        for (count, subject) in &ranks[..10] {
            assert!(
                listed.contains(subject),
                "seed {seed}: {subject} with {count} is missing in {listed:?}"
            );
        }
        for item in &list.items {
            let count = truth[&number(item)];
            widest = widest.max((item.upper - item.lower) * 1_000_000 / DENIALS);
            assert!(
                (item.lower..=item.upper).contains(&count),
                "seed {seed}: {count} of {item:?}"
            );
        }
        // The bounds of one instance are narrower than what the size of its table promises.
        for part in reports.iter().flatten() {
            let promised = part.total * 7 / 512;
            assert!(
                part.rows.iter().all(|row| row.upper - row.lower <= promised),
                "seed {seed}: {part:?}"
            );
        }
    }
    println!(
        "{seeds} seeds of {DENIALS} denials: each of the ten most denied subjects listed, each count within its bounds; the widest bounds are \
         {widest} millionths of all denials apart"
    );
}

/// The number of seeds; few, unless the environment names another number.
#[expect(
    clippy::disallowed_methods,
    reason = "the length of the run is an argument, not a setting"
)]
fn seeds() -> u64 {
    let count = std::env::var("TOLLGATE_TOP_SEEDS").ok();
    count.map_or(5, |count| count.parse().expect("TOLLGATE_TOP_SEEDS is a number"))
}

const DENIALS: u64 = 300_000;

/// OB3: the time that a denial takes longer. Timed only if the environment asks for figures, in a release build.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a measurement, which no decision depends on")]
async fn each_denial_below_the_full_rate_is_counted() {
    let is_timed = std::env::var("TOLLGATE_TOP_FIGURES").is_ok();
    let mut parser = RulesParser::new(ParserOptions::default());
    let text = "rules: [{ id: plan, per: user, limit: 1/h }]";
    parser.add_file(&yaml::parse(&problem::Origin::new("rules.yaml", text)).unwrap());
    let gate = Gate::new(parser.finish().unwrap().rules, Arc::new(Memory::default()));
    let snapshot = gate.snapshot(Protocol::Http);
    let zipf = Zipf::new(1_000_000, 1.1);
    let mut random = Random::new(1);
    let users: Vec<String> = (0..FULL_RATE)
        .map(|_| format!("u_{}", zipf.draw(&mut random)))
        .collect();
    let attributes: Vec<[Attribute<'_>; 1]> = users
        .iter()
        .map(|user| {
            [Attribute {
                name: "user",
                value: user.as_bytes(),
            }]
        })
        .collect();
    let attempts: Vec<Attempt<'_>> = attributes
        .iter()
        .map(|attributes| Attempt {
            domain: "default",
            attributes,
            cost: Cost::ONE,
        })
        .collect();
    snapshot.limiter().check(&attempts[0]).await;
    let denied = snapshot.limiter().check(&attempts[0]).await;
    assert!(!denied.verdict.allowed);
    let top = TopRefused::default();
    let rules = top.rules(snapshot.limiter().rules());
    let start = MINUTE * 60_000;
    top.collect(start, 0);
    let rounds = if is_timed { 60 } else { 2 };
    let mut times = Vec::new();
    for second in 1..=rounds {
        let began = Instant::now();
        for attempt in &attempts {
            let event = VerdictEvent {
                rules: snapshot.limiter().rules(),
                attempt,
                direction: Direction::Consume,
                verdict: ObservedVerdict::Rules(&denied.verdict),
                request_allowed: false,
                lacks_key: false,
                protocol: Protocol::Http,
            };
            top.record(&rules, &event, &denied.verdict);
        }
        times.push(began.elapsed().as_nanos() as f64 / FULL_RATE as f64);
        // On the path of no decision.
        top.collect(start + second * 900, FULL_RATE);
    }
    let part = top.parts(MINUTE, 10).remove(0);
    assert_eq!((part.total, part.rows.len()), (rounds * FULL_RATE, 10));
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    println!("{median:.1} ns more for a denial, {FULL_RATE} denials of a million subjects per second");
    assert!(!is_timed || median <= 60.0, "{median}");
}

#[test]
fn few_subjects_are_counted_exactly_over_minutes() {
    let top = TopRefused::default();
    let start = MINUTE * 60_000;
    top.collect(start, 0);
    for (subject, times) in [(1, 5), (2, 3), (3, 1)] {
        for time in 0..times {
            deny(&top, &rule(1), time, subject, 1);
        }
    }
    top.collect(start + 1_000, 0);
    // The same rule in another rule set, and another rule.
    let renumbered = SketchRule { number: 7, ..rule(1) };
    deny(&top, &renumbered, 0, 2, 1);
    deny(&top, &rule(2), 0, 9, 1);
    let listed = |minutes, at| {
        let list = top.list(Vec::new(), &query(minutes, 10), at);
        let each = list
            .items
            .iter()
            .map(|item| (number(item), item.lower, item.upper, item.share_ppm));
        each.collect::<Vec<_>>()
    };
    top.collect(start + 59_000, 0);
    let all = vec![
        (1, 5, 5, 500_000),
        (2, 4, 4, 400_000),
        (9, 1, 1, 1_000_000),
        (3, 1, 1, 100_000),
    ];
    let mut found = listed(1, start + 59_000);
    found.sort_by_key(|item| std::cmp::Reverse((item.1, item.3)));
    assert_eq!(found, all);
    // In the next minute, with one more.
    top.collect(start + 60_000, 0);
    deny(&top, &rule(1), 0, 1, 1);
    top.collect(start + 61_000, 0);
    assert_eq!(listed(1, start + 61_000), [(1, 1, 1, 1_000_000)]);
    assert_eq!(listed(2, start + 61_000)[0], (1, 6, 6, 545_454));
    top.collect(start + (MINUTES_MAX + 1) * 60_000, 0);
    assert!(
        top.parts(0, 10).iter().all(|part| part.minute > MINUTE),
        "old minutes are dropped"
    );
}

#[test]
fn sampled_denials_have_wider_bounds() {
    for seed in 0..20 {
        let top = TopRefused::default();
        let mut random = Random::new(seed);
        top.collect(MINUTE * 60_000, 45_000);
        let every = top.every.load(Ordering::Relaxed);
        assert_eq!(every, 5);
        let mut truth = [0_u64; 20];
        for _ in 0..40_000 {
            // The first has a quarter.
            let subject = if random.next().is_multiple_of(4) {
                0
            } else {
                random.next() % 20
            };
            truth[subject as usize] += 1;
            if random.next().is_multiple_of(u64::from(every)) {
                deny(&top, &rule(1), 0, subject, every);
            }
        }
        top.collect(MINUTE * 60_000 + 1_000, 0);
        assert_eq!(
            top.every.load(Ordering::Relaxed),
            1,
            "fewer denials are all taken again"
        );
        let list = top.list(Vec::new(), &query(1, 20), MINUTE * 60_000 + 1_000);
        assert_eq!((list.items.len(), number(&list.items[0])), (20, 0));
        for item in &list.items {
            let count = truth[number(item) as usize];
            assert!(
                (item.lower..=item.upper).contains(&count),
                "seed {seed}: {count} of {item:?}"
            );
            assert!(item.lower > 0, "{item:?}");
        }
    }
}

#[test]
fn names_and_rules_are_bounded() {
    let top = TopRefused::default();
    top.collect(MINUTE * 60_000, 0);
    for number in 0..1_000 {
        deny(&top, &rule(number), 0, 1, 1);
    }
    top.collect(MINUTE * 60_000 + 1, 0);
    assert_eq!(top.parts(MINUTE, 10).len(), RULES_MAX);
    // Long names of subjects that are all equally frequent.
    let top = TopRefused::default();
    top.collect(MINUTE * 60_000, 0);
    for subject in 0..100_000 {
        top.add_subject(&rule(1), subject, 1, || format!("{subject:0>200}").into());
    }
    top.collect(MINUTE * 60_000 + 1, 0);
    let part = top.parts(MINUTE, 1_000).remove(0);
    assert!(
        part.rows.iter().map(|row| row.subject.len()).sum::<usize>() <= (8 << 10) + 200,
        "{}",
        part.rows.len()
    );
    assert!(part.unlisted <= 100_000 * 7 / 512, "{}", part.unlisted);
}

#[test]
fn lists_of_instances_add_up_with_what_they_do_not_list() {
    let part = |total, unlisted, rows: &[(&str, u64, u64)]| RulePart {
        minute: MINUTE,
        name: RuleName::new("default", "plan"),
        total,
        unlisted,
        rows: rows
            .iter()
            .map(|(subject, lower, upper)| PartRow {
                subject: (*subject).into(),
                lower: *lower,
                upper: *upper,
            })
            .collect(),
    };
    let reports = [
        vec![part(100, 3, &[("a", 40, 42), ("b", 10, 11)])],
        vec![part(50, 2, &[("a", 20, 20)])],
        // Of a minute before.
        vec![RulePart {
            minute: MINUTE - 1,
            ..part(1_000, 0, &[("c", 1_000, 1_000)])
        }],
    ];
    let list = combine(&reports, &query(1, 10), MINUTE, 0);
    let rows: Vec<(&str, u64, u64)> = list
        .items
        .iter()
        .map(|item| (&*item.subject, item.lower, item.upper))
        .collect();
    assert_eq!(rows, [("a", 60, 62), ("b", 10, 13)]);
    assert_eq!(list.items[0].share_ppm, 61 * 1_000_000 / 150);
    let elsewhere = TopQuery {
        domains: vec!["shop".into()],
        ..query(1, 10)
    };
    assert!(combine(&reports, &elsewhere, MINUTE, 0).items.is_empty());
}

#[test]
fn a_publish_leaves_all_rules_their_sketches() {
    use tollgate_limiter::core::testing::rules::rule_set;
    let text = |limit: u64| {
        let rules = (0..60).map(|number| format!("- {{ id: r{number}, per: user, limit: {limit}/min }}\n"));
        format!("rules:\n{}", rules.collect::<String>())
    };
    let top = TopRefused::default();
    top.collect(MINUTE * 60_000, 0);
    let deny_all = |rules: &TopRules| rules.0.iter().for_each(|rule| deny(&top, rule, 0, 1, 1));
    deny_all(&top.rules(&rule_set(&text(1))));
    top.collect(MINUTE * 60_000 + 1_000, 0);
    deny_all(&top.rules(&rule_set(&text(2))));
    top.collect(MINUTE * 60_000 + 2_000, 0);
    let parts = top.parts(MINUTE, 10);
    assert_eq!(parts.len(), 60);
    assert!(parts.iter().all(|part| part.total == 2), "{parts:?}");
    // Other subjects are apart.
    let other = top.rules(&rule_set(&text(2).replace("per: user", "per: merchant")));
    let numbers: Vec<u64> = other.0.iter().map(|rule| rule.number).collect();
    assert!(numbers.iter().all(|number| *number > 60), "{numbers:?}");
}
