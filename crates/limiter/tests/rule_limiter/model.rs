//! Random attempts against random rules, compared with a model that only adds and compares.

use super::{attempt, rules, stopped_store};
use std::collections::HashMap;
use std::fmt::Write;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::core::rules::{Attribute, Mode};
use tollgate_limiter::core::testing::random::Random;

/// A rule as the model knows it.
struct ModelRule {
    id: String,
    limit: u64,
    shadow: bool,
    /// Only for this colour.
    colour: Option<&'static str>,
    per: Vec<&'static str>,
    cost: u64,
}

const COLOURS: [&str; 3] = ["red", "green", "blue"];
const USERS: [&str; 3] = ["u1", "u2", "u3"];

fn random_rules(random: &mut Random) -> Vec<ModelRule> {
    (0..random.between(1, 6))
        .map(|number| ModelRule {
            id: format!("r{number}"),
            limit: random.between(1, 30),
            shadow: random.one_in(4),
            colour: random.one_in(2).then(|| random.pick(&COLOURS)),
            per: random
                .pick(&[&[][..], &["user"], &["colour"], &["user", "colour"]])
                .to_vec(),
            cost: random.between(1, 3),
        })
        .collect()
}

fn render(model_rules: &[ModelRule]) -> String {
    let mut text = String::from("rules:\n");
    for rule in model_rules {
        // Algorithms that agree while no time passes.
        write!(
            text,
            "- {{id: {}, limit: {}/day, algorithm: fixed_window, cost: {}",
            rule.id, rule.limit, rule.cost
        )
        .expect("a string takes all");
        if let Some(colour) = rule.colour {
            write!(text, ", when: {{colour: {colour}}}").expect("a string takes all");
        }
        if !rule.per.is_empty() {
            write!(text, ", per: [{}]", rule.per.join(", ")).expect("a string takes all");
        }
        writeln!(text, ", mode: {}}}", if rule.shadow { "shadow" } else { "enforce" }).expect("a string takes all");
    }
    text
}

#[test]
fn all_rules_are_charged_or_none_is() {
    let mut denied = 0;
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let model_rules = random_rules(&mut random);
        let text = render(&model_rules);
        let (store, _) = stopped_store();
        let limiter = RuleLimiter::new(rules(&text), store);
        let mut used: HashMap<(&str, Vec<&str>), u64> = HashMap::new();
        for _ in 0..60 {
            let (user, colour) = (random.pick(&USERS), random.pick(&COLOURS));
            let cost = random.below(4);
            let mut attributes: Vec<Attribute<'_>> = Vec::new();
            for (name, value) in [("user", user), ("colour", colour)] {
                if !random.one_in(5) {
                    let value = value.as_bytes();
                    attributes.insert(
                        random.below(attributes.len() as u64 + 1) as usize,
                        Attribute { name, value },
                    );
                }
            }
            let given = |name: &str| attributes.iter().find(|attribute| attribute.name == name);
            let matches = |rule: &&ModelRule| {
                let colour_fits = |colour: &str| given("colour").is_some_and(|it| it.value == colour.as_bytes());
                rule.colour.is_none_or(colour_fits) && rule.per.iter().all(|name| given(name).is_some())
            };
            let subject = |rule: &ModelRule| -> Vec<&str> {
                let value = |name: &&str| if *name == "user" { user } else { colour };
                rule.per.iter().map(value).collect()
            };
            let matched: Vec<&ModelRule> = model_rules.iter().filter(matches).collect();
            let fits: Vec<bool> = matched
                .iter()
                .map(|rule| {
                    let used = used.get(&(&*rule.id, subject(rule))).copied().unwrap_or(0);
                    cost == 0 || used + cost * rule.cost <= rule.limit
                })
                .collect();
            let allowed = matched.iter().zip(&fits).all(|(rule, fits)| rule.shadow || *fits);
            denied += u32::from(!allowed);
            for (rule, fits) in matched.iter().zip(&fits) {
                if allowed && *fits {
                    *used.entry((&rule.id, subject(rule))).or_default() += cost * rule.cost;
                }
            }
            let verdict = limiter.check_now(&attempt(&attributes, cost)).verdict;
            assert_eq!(verdict.allowed, allowed, "seed {seed}: {text}");
            let rulings: Vec<(&str, Mode, bool, u64)> = verdict
                .rulings
                .iter()
                .map(|ruling| {
                    let remaining = ruling.decision.expect("all are limits").standing().remaining;
                    (ruling.name, ruling.mode, ruling.is_allow(), remaining)
                })
                .collect();
            let expected: Vec<(&str, Mode, bool, u64)> = matched
                .iter()
                .zip(&fits)
                .map(|(rule, fits)| {
                    let used = used.get(&(&*rule.id, subject(rule))).copied().unwrap_or(0);
                    let mode = if rule.shadow { Mode::Shadow } else { Mode::Enforce };
                    (&*rule.id, mode, *fits, rule.limit - used)
                })
                .collect();
            assert_eq!(rulings, expected, "seed {seed}, {attributes:?} at {cost}: {text}");
        }
    }
    assert!(denied > 1_000, "only {denied} were refused: too few to tell anything");
}
