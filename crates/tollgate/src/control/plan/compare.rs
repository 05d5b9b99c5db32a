//! The differences between two rules of one id.

use super::effect::{Effect, lifetime};
use std::collections::HashMap;
use tollgate_limiter::core::rules::{
    CostSource, Dimension, Experiment, LimitSelector, Mode, OnStoreFailure, Reserve, Rule, Terms, Window,
};
use tollgate_limiter::core::{Limit, Micros};

/// One difference and its effect.
pub(super) type Difference = (String, Effect);

/// A rule that only the next set has.
pub(super) fn added(rule: &Rule) -> Difference {
    let what = match rule.mode() {
        Mode::Enforce => "new".to_owned(),
        mode => format!("new, {}", mode.name()),
    };
    (what, Effect::None)
}

/// A rule that only the live set has.
pub(super) fn removed(rule: &Rule) -> Difference {
    let selectors = [
        Some(rule.limit_selector()),
        rule.experiment().map(Experiment::limit_selector),
    ];
    let terms: Vec<&Terms> = selectors.into_iter().flatten().flat_map(all_terms).collect();
    let longest = terms
        .iter()
        .flat_map(|terms| limits(terms))
        .map(|limit| lifetime(&limit))
        .max();
    let effect = match longest {
        _ if rule.mode() == Mode::Disabled => Effect::None,
        Some(time) => Effect::Expire(time),
        None if terms.iter().any(|terms| matches!(terms, Terms::Banned(_))) => Effect::NoLongerDenies,
        None => Effect::None,
    };
    ("removed".to_owned(), effect)
}

/// All differences of two rules of one id; empty if they have the same meaning.
pub(super) fn differences(live: &Rule, next: &Rule) -> Vec<Difference> {
    let mut found = Vec::new();
    if live.mode() != next.mode() {
        found.push(mode(live.mode(), next.mode()));
    }
    if !live.same_conditions(next) {
        found.push((changed_conditions(live, next), Effect::OtherRequests));
    }
    let mut numbers = Vec::new();
    selector(
        "",
        live.limit_selector(),
        next.limit_selector(),
        next.per(),
        &mut numbers,
    );
    experiment(live.experiment(), next, &mut numbers);
    if live.cost_source() != next.cost_source() {
        numbers.push(cost(live.cost_source(), next.cost_source()));
    }
    if live.per() != next.per() {
        let what = format!("per {} -> {}", per_text(live.per()), per_text(next.per()));
        found.push((what, restart(next.limit_selector(), next.per())));
        // Every subject counts anew, so that no usage is kept.
        for (_, effect) in &mut numbers {
            if matches!(effect, Effect::Stricter | Effect::Looser) {
                *effect = Effect::None;
            }
        }
    }
    found.append(&mut numbers);
    if live.on_store_failure() != next.on_store_failure() {
        let [before, after] = [live, next].map(|rule| failure_text(rule.on_store_failure()));
        found.push((format!("on_store_failure {before} -> {after}"), Effect::None));
    }
    if live.spread() != next.spread() {
        let [before, after] = [live, next].map(|rule| match rule.spread() {
            Some(spread) => spread.to_string(),
            None => "by default".to_owned(),
        });
        found.push((format!("spread {before} -> {after}"), Effect::None));
    }
    if live.reserve() != next.reserve() {
        found.push(reserve(live.reserve(), next.reserve()));
    }
    // Only descriptors of envoyproxy/ratelimit have these.
    if live.counting() != next.counting() {
        found.push(("counting of denied requests".to_owned(), Effect::None));
    }
    if !live.same_group(next) {
        found.push(("replaces and quota".to_owned(), Effect::OtherRequests));
    }
    found
}

/// A reserve takes from the others what it keeps: usage stays where it is, whatever the share.
fn reserve(live: Option<&Reserve>, next: Option<&Reserve>) -> Difference {
    let text = |reserve: Option<&Reserve>| reserve.map_or("none".to_owned(), Reserve::to_string);
    let effect = match (live, next) {
        (Some(live), Some(next)) if live.conditions() != next.conditions() => Effect::OtherRequests,
        // Lent or not decides whether the others may use the whole rate; the share of a lent reserve is of the burst only.
        (Some(live), Some(next)) if live.lends() != next.lends() => match next.lends() {
            true => Effect::Looser,
            false => Effect::Stricter,
        },
        (Some(live), Some(next)) if live.share() < next.share() => Effect::Stricter,
        (Some(_), _) => Effect::Looser,
        (None, Some(_)) => Effect::Stricter,
        (None, None) => Effect::None,
    };
    (format!("reserve {} -> {}", text(live), text(next)), effect)
}

fn mode(live: Mode, next: Mode) -> Difference {
    let effect = match (live == Mode::Enforce, next == Mode::Enforce) {
        (true, false) => Effect::NoLongerDenies,
        (false, true) => Effect::StartsToDeny,
        _ => Effect::None,
    };
    (format!("mode {} -> {}", live.name(), next.name()), effect)
}

/// The attributes whose conditions differ.
fn changed_conditions(live: &Rule, next: &Rule) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (rule, other) in [(live, next), (next, live)] {
        for condition in rule.when() {
            let name = condition.attribute();
            if !other.when().contains(condition) && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    format!("when {}", names.join(", "))
}

fn per_text(per: &[Dimension]) -> String {
    if per.is_empty() {
        return "one counter".to_owned();
    }
    let texts = per.iter().map(|dimension| match dimension.ipv6_prefix() {
        Some(prefix) => format!("{}/{prefix}", dimension.attribute()),
        None => dimension.attribute().to_owned(),
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn failure_text(policy: OnStoreFailure) -> String {
    match policy {
        OnStoreFailure::Local => "local".to_owned(),
        OnStoreFailure::Open { cap: None } => "open".to_owned(),
        OnStoreFailure::Open { cap: Some(cap) } => format!("open (cap {cap})"),
        OnStoreFailure::Closed => "closed".to_owned(),
    }
}

fn cost(live: &CostSource, next: &CostSource) -> Difference {
    let effect = match (live, next) {
        (CostSource::Fixed(before), CostSource::Fixed(after)) if after > before => Effect::Stricter,
        (CostSource::Fixed(_), CostSource::Fixed(_)) => Effect::Looser,
        _ => Effect::None,
    };
    let (before, after) = (live.to_string(), next.to_string());
    let what = if before == after {
        "cost by condition".to_owned()
    } else {
        format!("cost {before} -> {after}")
    };
    (what, effect)
}

/// Subjects that enter or leave an experiment get the counters of the other variant.
fn experiment(live: Option<&Experiment>, next: &Rule, found: &mut Vec<Difference>) {
    let restart = |selector: &LimitSelector| restart(selector, next.per());
    match (live, next.experiment()) {
        (None, None) => {}
        (None, Some(after)) => {
            let what = format!("experiment for {}", share_text(after));
            found.push((what, restart(after.limit_selector())));
        }
        (Some(_), None) => found.push(("experiment removed".to_owned(), restart(next.limit_selector()))),
        (Some(before), Some(after)) => {
            if before.share_millionths() != after.share_millionths() {
                let grows = before.share_millionths() < after.share_millionths();
                let entered = if grows {
                    after.limit_selector()
                } else {
                    next.limit_selector()
                };
                let what = format!("experiment for {} -> {}", share_text(before), share_text(after));
                found.push((what, restart(entered)));
            }
            let (before, after) = (before.limit_selector(), after.limit_selector());
            selector("experiment ", before, after, next.per(), found);
        }
    }
}

/// A share in percent, with up to four decimals.
fn share_text(experiment: &Experiment) -> String {
    let millionths = experiment.share_millionths();
    let text = format!("{}.{:04}", millionths / 10_000, millionths % 10_000);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The differences of the limits of one variant.
fn selector(prefix: &str, live: &LimitSelector, next: &LimitSelector, per: &[Dimension], found: &mut Vec<Difference>) {
    let algorithms = algorithm(live)
        .zip(algorithm(next))
        .filter(|(before, after)| before != after);
    let is_other_algorithm = algorithms.is_some();
    if let Some((before, after)) = algorithms {
        let (old, new) = (live.limit().to_string(), next.limit().to_string());
        let what = match old == new {
            true => format!("{prefix}{before} -> {after}"),
            false => format!("{prefix}{before} {old} -> {after} {new}"),
        };
        // Every subject of the rule gets a new counter, whatever its terms are.
        found.push((what, restart(next, per)));
    } else if live.limit() != next.limit() {
        found.push(terms(prefix, "limit", live.limit(), next.limit(), per));
    }
    let live_terms = exceptions(live);
    let next_terms = exceptions(next);
    let mut lines: Vec<Difference> = Vec::new();
    let mut more = 0_usize;
    let mut push = |subject: &Subject, before: &Terms, after: &Terms| {
        let is_equal = before == after || (is_other_algorithm && before.to_string() == after.to_string());
        if is_equal {
            return;
        }
        if lines.len() >= EXCEPTIONS_MAX {
            more += 1;
            return;
        }
        let (what, effect) = terms(prefix, &subject_text(subject), before, after, per);
        lines.push((what, effect));
    };
    let live_by: HashMap<&Subject, &Terms> = live_terms.iter().map(|(subject, terms)| (subject, *terms)).collect();
    for (subject, after) in &next_terms {
        push(
            subject,
            live_by.get(subject).copied().unwrap_or_else(|| live.limit()),
            after,
        );
    }
    let next_by: HashMap<&Subject, &Terms> = next_terms.iter().map(|(subject, terms)| (subject, *terms)).collect();
    for (subject, before) in live_terms.iter().filter(|(subject, _)| !next_by.contains_key(subject)) {
        push(subject, before, next.limit());
    }
    found.append(&mut lines);
    if more > 0 {
        found.push((format!("{prefix}{more} more limits of single subjects"), Effect::None));
    }
}

/// The attributes and values that terms are for, as text.
type Subject = Vec<(String, String)>;

/// The terms of `by` and of overrides, in file order. An override hides the terms of `by` for the same value.
fn exceptions(selector: &LimitSelector) -> Vec<(Subject, &Terms)> {
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let by = selector
        .by_values()
        .map(|(name, value, terms)| (vec![(name.to_owned(), text(value))], terms));
    let overrides = selector.override_terms().into_iter().map(|entry| {
        let subject = entry
            .subject
            .iter()
            .map(|(name, value)| ((*name).to_owned(), text(value)));
        (subject.collect(), entry.terms)
    });
    let mut found: Vec<(Subject, &Terms)> = Vec::new();
    let mut positions: HashMap<Subject, usize> = HashMap::new();
    for (subject, terms) in by.chain(overrides) {
        match positions.get(&subject).and_then(|at| found.get_mut(*at)) {
            Some(entry) => entry.1 = terms,
            None => {
                positions.insert(subject.clone(), found.len());
                found.push((subject, terms));
            }
        }
    }
    found
}

fn subject_text(subject: &Subject) -> String {
    let values = subject.iter().map(|(name, value)| format!("{name}={value}"));
    values.collect::<Vec<_>>().join(",")
}

/// The difference of the terms of one subject.
fn terms(prefix: &str, name: &str, live: &Terms, next: &Terms, per: &[Dimension]) -> Difference {
    let effect = Effect::of_terms(live, next, per);
    let (before, after) = (live.to_string(), next.to_string());
    if before != after {
        return (format!("{prefix}{name} {before} -> {after}"), effect);
    }
    let options = limits(live)
        .zip(limits(next))
        .find_map(|(before, after)| option(&before, &after));
    (
        format!("{prefix}{}", options.unwrap_or_else(|| name.to_owned())),
        effect,
    )
}

/// The difference of an option of an algorithm, which terms do not show.
fn option(live: &Limit, next: &Limit) -> Option<String> {
    Some(match (live, next) {
        (Limit::SlidingLog(before), Limit::SlidingLog(after)) if before.min_interval() != after.min_interval() => {
            let [before, after] = [before, after].map(|log| match log.min_interval() {
                Micros::ZERO => "none".to_owned(),
                interval => interval.to_string(),
            });
            format!("min_interval {before} -> {after}")
        }
        (Limit::Concurrency(before), Limit::Concurrency(after)) if before.lease_ttl() != after.lease_ttl() => {
            format!("lease_ttl {} -> {}", before.lease_ttl(), after.lease_ttl())
        }
        (Limit::LeakyBucket(before), Limit::LeakyBucket(after)) if before.is_shaping() != after.is_shaping() => {
            format!("shape {} -> {}", before.is_shaping(), after.is_shaping())
        }
        (Limit::FixedWindow(before), Limit::FixedWindow(after)) if before.calendar() != after.calendar() => {
            let [before, after] =
                [before, after].map(|window| window.calendar().map_or("none", |calendar| calendar.zone()));
            format!("calendar {before} -> {after}")
        }
        _ => return None,
    })
}

/// The limits of some terms.
fn limits(terms: &Terms) -> impl Iterator<Item = Limit> {
    let windows: &[Window] = match terms {
        Terms::Limited(windows) => windows.as_slice(),
        Terms::Banned(_) | Terms::Unlimited => &[],
    };
    windows.iter().map(|window| *window.limit())
}

/// The restart of all counters of a variant.
fn restart(selector: &LimitSelector, per: &[Dimension]) -> Effect {
    let limits = all_terms(selector).into_iter().flat_map(limits);
    Effect::restart(limits, per)
}

fn all_terms(selector: &LimitSelector) -> Vec<&Terms> {
    let by = selector.by_values().map(|(_, _, terms)| terms);
    let overrides = selector.override_terms().into_iter().map(|entry| entry.terms);
    [selector.limit()].into_iter().chain(by).chain(overrides).collect()
}

/// The algorithm of a rule's limits; none if it counts nothing.
fn algorithm(selector: &LimitSelector) -> Option<&'static str> {
    let mut limits = all_terms(selector).into_iter().flat_map(limits);
    limits.next().map(|limit| limit.algorithm())
}

/// The most lines about single subjects of one rule.
const EXCEPTIONS_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::testing::rules::rule_set;

    #[test]
    fn a_reserve_that_is_lent_no_more_is_stricter_whatever_its_share() {
        let cases = [
            ("20%", true, "10%", false, Effect::Stricter),
            ("10%", false, "20%", true, Effect::Looser),
            ("20%", false, "20%", true, Effect::Looser),
            ("20%", true, "20%", false, Effect::Stricter),
            ("20%", true, "10%", true, Effect::Looser),
            ("10%", false, "20%", false, Effect::Stricter),
        ];
        let set = |share, lend| {
            rule_set(&format!(
                "rules:\n  - {{ id: r, limit: 90/s, reserve: {{ share: {share}, for: {{ priority: critical }}, lend: {lend} }} }}\n"
            ))
        };
        for (before, lent_before, after, lent_after, expected) in cases {
            let (live, next) = (set(before, lent_before), set(after, lent_after));
            let reserves = [&live, &next].map(|set| set.rules().first().and_then(Rule::reserve));
            let (text, effect) = reserve(reserves[0], reserves[1]);
            assert_eq!(effect, expected, "{text}");
        }
    }
}
