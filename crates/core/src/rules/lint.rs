//! Lint warnings for rules that are valid but probably mistakes. Takes time linear in the rules.

mod names;

pub(super) use names::NamesUsed;
pub use names::{Coverage, KnownAttributes};

use super::file::holds_addresses;
use super::model::{
    Condition, CostCase, CostCases, CostSource, Experiment, LimitSelector, Mode, Reserve, Rule, Terms, Test, Window,
};
use crate::limit::Limit;
use crate::problem::Problem;
use crate::settle::OnStoreFailure;
use crate::yaml::excerpt;
use std::collections::{HashMap, HashSet};

/// Returns all warnings. Disabled rules are skipped.
pub(super) fn lint(rules: &[Rule], known: &KnownAttributes) -> Vec<Problem> {
    let mut problems = Vec::new();
    let rules: Vec<&Rule> = rules.iter().filter(|rule| rule.mode != Mode::Disabled).collect();
    for rule in &rules {
        lint_rule(rule, &mut problems);
        if let Some(reserve) = rule.reserve() {
            lint_reserve(rule, reserve, known, &mut problems);
        }
    }
    lint_pairs(&rules, &mut problems);
    problems
}

/// Warns of mistakes within one rule.
fn lint_rule(rule: &Rule, problems: &mut Vec<Problem>) {
    let mut warn = |text: String, hint: &str| {
        let text = format!("rule `{}` {text}", rule.id);
        problems.push(Problem::warning(&rule.location, text).with_hint(hint));
    };
    for Condition { attribute, test } in &rule.when {
        let name = excerpt(attribute);
        if accepts_none(test) {
            warn(
                format!("can never match: `when` has an empty list for `{name}`"),
                "list what it should match, or remove the condition",
            );
        }
        let is_per = rule.per.iter().any(|dimension| dimension.attribute == *attribute);
        if is_per && matches!(test, Test::Present(false)) {
            warn(
                format!("can never match: `when` excludes `{name}` and `per` needs it"),
                "remove `present: false` or the attribute in `per`",
            );
        }
        for value in unreachable_values(rule, attribute, test) {
            warn(
                format!(
                    "has a limit for `{name}` = `{}`, which its `when` excludes",
                    excerpt(&String::from_utf8_lossy(value))
                ),
                "widen `when`, or remove that limit",
            );
        }
    }
    let trial = rule.experiment.as_deref().map(|trial| &trial.selector);
    if is_public(rule) && (is_fixed_window(&rule.selector) || trial.is_some_and(is_fixed_window)) {
        warn(
            "uses fixed_window on a public route; up to twice the limit passes around a window boundary".into(),
            "use `sliding_counter` or `token_bucket`, or count by caller: `per: [user]`",
        );
    }
    if let OnStoreFailure::Open { cap: None } = rule.on_store_failure {
        warn(
            "allows everything while the store is unavailable".into(),
            "cap it: `on_store_failure: { open: { cap: 1000/s } }`",
        );
    }
    if let Some(&Experiment { share, .. }) = rule.experiment.as_deref() {
        if share == 0 {
            warn(
                "has an experiment without subjects".into(),
                "raise its share, or remove it",
            );
        } else if share >= Experiment::ALL {
            warn(
                "has an experiment with all subjects: there is nothing to compare it with".into(),
                "lower its share, or make it the rule",
            );
        }
    }
    if let CostSource::Cases(list) = &rule.cost_source {
        lint_cost_cases(list, &mut warn);
    }
    if rule.cost_source.is_free() {
        warn(
            "costs nothing, so it never limits".into(),
            "give it a `cost` of 1 or more",
        );
    }
}

/// Warns of a reserve that no attempt may use, or that every caller may.
fn lint_reserve(rule: &Rule, reserve: &Reserve, known: &KnownAttributes, problems: &mut Vec<Problem>) {
    let mut warn = |text: &str, hint: &str| {
        let text = format!("rule `{}` {text}", rule.id);
        problems.push(Problem::warning(&rule.location, text).with_hint(hint));
    };
    if reserve
        .conditions()
        .iter()
        .any(|condition| accepts_none(&condition.test))
    {
        warn(
            "has a reserve that no attempt may use: its `for` has an empty list",
            "list what may use it, or remove `reserve`",
        );
    }
    let selector = &rule.selector;
    let by = selector.by.iter().flat_map(|by| by.terms.as_slice());
    let overrides = selector.overrides.iter().flat_map(|set| set.terms.values());
    let mut terms = by.chain(overrides.map(|(_, terms)| terms)).chain([&selector.limit]);
    if terms.all(|terms| windows_of(terms).is_empty()) {
        warn(
            "has a reserve and no limit that it could be a part of",
            "remove `reserve`, or write a limit",
        );
    }
    let is_from_header = |condition: &Condition| known.from_headers.iter().any(|name| **name == *condition.attribute);
    if reserve.conditions().iter().all(is_from_header) {
        warn(
            "has a reserve for every caller that sends a header: its `for` tests nothing else",
            "test also what callers cannot choose, such as `endpoint`, or let the gateway overwrite the header",
        );
    }
}

/// Warns of cases of a cost that never apply.
fn lint_cost_cases(list: &CostCases, warn: &mut impl FnMut(String, &str)) {
    let texts = |case: &CostCase| -> HashSet<String> { case.when.iter().map(|it| format!("{it:?}")).collect() };
    let cases: Vec<HashSet<String>> = list.cases.iter().map(texts).collect();
    for (index, (case, conditions)) in list.cases.iter().zip(&cases).enumerate() {
        let earlier = cases.iter().take(index).position(|other| other.is_subset(conditions));
        if let Some(earlier) = earlier {
            let (number, earlier) = (index + 1, earlier + 1);
            warn(
                format!("never applies entry {number} of `cost`: entry {earlier} matches whenever it does"),
                "move it up, or remove it: the first that matches wins",
            );
        } else if case.when.iter().any(|condition| accepts_none(&condition.test)) {
            warn(
                format!(
                    "never applies entry {} of `cost`: its `when` has an empty list",
                    index + 1
                ),
                "list what it should match, or remove the entry",
            );
        }
    }
}

/// True if no value passes, and no absence either.
fn accepts_none(test: &Test) -> bool {
    match test {
        Test::OneOf(values) => values.is_empty(),
        Test::Cidr(networks) => networks.is_empty(),
        Test::Any(tests) => tests.iter().all(accepts_none),
        Test::Glob(_) | Test::Regex(_) | Test::Present(_) => false,
    }
}

/// Returns some of the values that have limits but that `when` excludes.
fn unreachable_values<'r>(rule: &'r Rule, attribute: &str, test: &Test) -> Vec<&'r [u8]> {
    const REPORTED_MAX: usize = 10;
    // Values times parts that are tried; the rest is not checked.
    const WORK_MAX: usize = 1_000_000;
    let by = rule.selector.by.iter().filter(|by| *by.attribute == *attribute);
    let by = by.flat_map(|by| by.values.iter());
    // The values of overrides with several attributes are not stored separately, and of addresses only the networks
    // are.
    let overrides = rule
        .selector
        .overrides
        .iter()
        .filter(|set| matches!(&*set.attributes, [only] if *only.attribute == *attribute && only.ipv6_prefix.is_none()))
        .flat_map(|set| set.terms.keys());
    let values = by.chain(overrides).map(|value| &**value);
    let parts = match test {
        Test::Any(tests) => tests.len(),
        Test::Cidr(networks) => networks.len(),
        Test::OneOf(_) | Test::Glob(_) | Test::Regex(_) | Test::Present(_) => 1,
    };
    let values = values.take(WORK_MAX / parts.max(1));
    let mut values: Vec<&[u8]> = values.filter(|value| !test.accepts(value)).collect();
    values.sort_unstable();
    values.truncate(REPORTED_MAX);
    values
}

/// True if more than single subjects have fixed windows.
fn is_fixed_window(choice: &LimitSelector) -> bool {
    let by = choice.by.iter().flat_map(|by| by.terms.as_slice());
    let mut windows = by.chain([&choice.limit]).flat_map(windows_of);
    windows.any(|window| matches!(window.limit(), Limit::FixedWindow(_)))
}

fn windows_of(terms: &Terms) -> &[Window] {
    match terms {
        Terms::Limited(windows) => windows.as_slice(),
        Terms::Banned(_) | Terms::Unlimited => &[],
    }
}

/// True if any caller may be counted: no attribute identifies the caller.
fn is_public(rule: &Rule) -> bool {
    let conditions = rule.when.iter().filter(|condition| !condition.test.accepts_absence());
    let tested = conditions.map(|condition| &condition.attribute);
    let counted_by = rule.per.iter().map(|dimension| &dimension.attribute);
    tested.chain(counted_by).all(|attribute| is_anonymous(attribute))
}

/// True if the name of an attribute says where a request came from or what it wants, not who makes it.
fn is_anonymous(attribute: &str) -> bool {
    const ANONYMOUS_WORDS: [&str; 9] = [
        "endpoint", "path", "route", "url", "uri", "method", "host", "country", "region",
    ];
    let is_anonymous_word = |word: &str| ANONYMOUS_WORDS.iter().any(|known| word.eq_ignore_ascii_case(known));
    holds_addresses(attribute) || attribute.split(['_', '-', '.']).any(is_anonymous_word)
}

/// The requirements of a rule, as ids: domain, `per` and `when`, each sorted.
#[derive(PartialEq, Eq, Hash)]
struct Overlap {
    domain: u32,
    per: Box<[u32]>,
    when: Box<[u32]>,
}

/// Assigns ids to texts.
#[derive(Default)]
struct TextIds(HashMap<String, u32>);

impl TextIds {
    fn id(&mut self, text: String) -> u32 {
        let next = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        *self.0.entry(text).or_insert(next)
    }
}

/// Warns of mistakes between rules: one that another makes ineffective, and two that contradict each other.
///
/// A rule is compared with those that match whenever it does: the same `per`, and all or some of its conditions.
fn lint_pairs(rules: &[&Rule], problems: &mut Vec<Problem>) {
    let mut ids = TextIds::default();
    let overlaps: Vec<Overlap> = rules.iter().map(|rule| overlap(rule, &mut ids)).collect();
    let mut by_overlap: HashMap<&Overlap, Vec<usize>> = HashMap::new();
    for (index, overlap) in overlaps.iter().enumerate() {
        let group = by_overlap.entry(overlap).or_default();
        // Among thousands of equal rules some comparisons are enough.
        if group.len() < COMPARED_MAX {
            group.push(index);
        }
    }
    for (index, (rule, overlap)) in rules.iter().zip(&overlaps).enumerate() {
        // Remaining comparisons of one of its windows with one of another rule.
        let mut comparisons = COMPARISONS_MAX;
        for when in subsets(&overlap.when) {
            let wider = Overlap {
                domain: overlap.domain,
                per: overlap.per.clone(),
                when,
            };
            let others = by_overlap.get(&wider).map(Vec::as_slice).unwrap_or_default();
            let same = wider.when == overlap.when;
            let warning = others
                .iter()
                .filter(|other| **other != index)
                .filter_map(|other| Some((*other, rules.get(*other)?)))
                .take_while(|(_, other)| {
                    let windows = |rule: &Rule| windows_of(&rule.selector.limit).len().max(1);
                    let needed = windows(rule).saturating_mul(windows(other));
                    let left = comparisons.checked_sub(needed);
                    comparisons = left.unwrap_or(0);
                    left.is_some()
                })
                .find_map(|(number, other)| compare(rule, other, same, number < index));
            if let Some(warning) = warning {
                problems.push(warning);
                break;
            }
        }
    }
}

/// The maximum number of window comparisons per rule: two rules with the maximum number of windows, or all comparisons
/// of a rule with one window.
const COMPARISONS_MAX: usize = 512;
/// The maximum number of rules with equal requirements that are compared.
const COMPARED_MAX: usize = 8;
/// The maximum number of conditions whose subsets are looked up.
const CONDITIONS_MAX: usize = 4;

fn overlap(rule: &Rule, ids: &mut TextIds) -> Overlap {
    let mut when: Vec<u32> = rule
        .when
        .iter()
        .map(|condition| ids.id(format!("when {condition:?}")))
        .collect();
    let mut per: Vec<u32> = rule.per.iter().map(|it| ids.id(format!("per {it:?}"))).collect();
    when.sort_unstable();
    per.sort_unstable();
    Overlap {
        domain: ids.id(format!("domain {}", rule.domain)),
        per: per.into(),
        when: when.into(),
    }
}

/// Returns the whole set first, then every subset if there are few.
fn subsets(all: &[u32]) -> Vec<Box<[u32]>> {
    let whole = (1_u32 << all.len().min(CONDITIONS_MAX)) - 1;
    if all.len() > CONDITIONS_MAX {
        return vec![all.into()];
    }
    let part = |mask: u32| {
        let chosen = all.iter().enumerate().filter(move |(bit, _)| mask & (1 << bit) != 0);
        chosen.map(|(_, number)| *number).collect()
    };
    (0..=whole).rev().map(part).collect()
}

/// Warns of a mistake in `rule` given `other`, which matches whenever it does.
fn compare(rule: &Rule, other: &Rule, same: bool, other_is_first: bool) -> Option<Problem> {
    if other.mode != Mode::Enforce || rule.mode != Mode::Enforce {
        return None;
    }
    let (limit, others) = (plain(rule)?, plain(other)?);
    let warn = |text: String, hint: &str| {
        Some(
            Problem::warning(&rule.location, text)
                .with_hint(format!("{hint} (`{}` is at {})", other.id, other.location)),
        )
    };
    match (limit, others) {
        (Terms::Unlimited, Terms::Banned(_)) => warn(
            format!("rule `{}` is unlimited where rule `{}` bans", rule.id, other.id),
            "all rules that match apply together: `unlimited` lifts no other rule; remove one of them",
        ),
        (Terms::Unlimited, Terms::Limited(_)) => warn(
            format!("rule `{}` is unlimited where rule `{}` limits", rule.id, other.id),
            "all rules that match apply together: `unlimited` lifts no other rule; write an override there",
        ),
        (Terms::Limited(_), Terms::Banned(_)) => warn(
            format!(
                "rule `{}` is ineffective: rule `{}` bans everything it matches",
                rule.id, other.id
            ),
            "remove one of them",
        ),
        (Terms::Limited(of_rule), Terms::Limited(of_other)) => {
            let (of_rule, of_other) = (of_rule.as_slice(), of_other.as_slice());
            let stricter = of_rule
                .iter()
                .all(|window| of_other.iter().any(|other| is_within(other, window)));
            // Of two equal rules, the second is ineffective.
            let equal = same
                && of_other
                    .iter()
                    .all(|window| of_rule.iter().any(|other_window| is_within(other_window, window)));
            let is_same_without_store = rule.on_store_failure == other.on_store_failure;
            // Of a rule with a reserve, the part of the others is stricter than its limit.
            let has_reserve = rule.reserve().is_some();
            if has_reserve
                || !stricter
                || !is_same_cost(rule, other)
                || !is_same_without_store
                || (equal && !other_is_first)
            {
                return None;
            }
            warn(
                format!(
                    "rule `{}` never decides: rule `{}` is at least as strict wherever it matches",
                    rule.id, other.id
                ),
                "remove it, or lower its limit",
            )
        }
        _ => None,
    }
}

/// Returns the limit of a rule that gives all subjects the same and charges them.
fn plain(rule: &Rule) -> Option<&Terms> {
    let choice = &rule.selector;
    let is_free = rule.cost_source.is_free();
    let is_plain = choice.by.is_none() && choice.overrides.is_empty() && rule.experiment.is_none();
    (is_plain && !is_free).then_some(&choice.limit)
}

fn is_same_cost(one: &Rule, other: &Rule) -> bool {
    let free_of_trial = one.experiment.is_none() && other.experiment.is_none();
    free_of_trial
        && matches!((&one.cost_source, &other.cost_source), (CostSource::Fixed(one), CostSource::Fixed(other)) if one == other)
}

/// True if everything that `strict` allows, `loose` allows too.
fn is_within(strict: &Window, loose: &Window) -> bool {
    let slower = |strict: &Limit, loose: &Limit| match (strict.rate(), loose.rate()) {
        (Some(strict), Some(loose)) => {
            let per = |units: u64, of: u64| u128::from(units) * u128::from(of);
            per(strict.units(), loose.period().get()) <= per(loose.units(), strict.period().get())
        }
        _ => false,
    };
    let smaller = strict.limit.capacity() <= loose.limit.capacity();
    match (strict.limit(), loose.limit()) {
        (Limit::TokenBucket(_), Limit::TokenBucket(_)) | (Limit::Gcra(_), Limit::Gcra(_)) => {
            smaller && slower(strict.limit(), loose.limit())
        }
        (Limit::FixedWindow(one), Limit::FixedWindow(other)) => {
            smaller && one.rate().period() == other.rate().period() && one.calendar() == other.calendar()
        }
        (Limit::SlidingCounter(_), Limit::SlidingCounter(_)) => {
            smaller && strict.limit.window() == loose.limit.window()
        }
        (Limit::SlidingLog(one), Limit::SlidingLog(other)) => {
            smaller && one.rate().period() == other.rate().period() && one.min_interval() >= other.min_interval()
        }
        (Limit::Concurrency(one), Limit::Concurrency(other)) => smaller && one.lease_ttl() == other.lease_ttl(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use crate::problem::{Origin, Problem};
    use crate::rules::{KnownAttributes, ParserOptions, RulesParser};

    /// The warnings about a rule with a reserve for these attempts, where `tier` and `kind` are taken from headers.
    fn warnings(conditions: &str) -> String {
        let text = format!("rules: [{{ id: r, limit: 10/s, reserve: {{ share: 20%, for: {conditions} }} }}]");
        let mut parser = RulesParser::new(ParserOptions::default());
        parser.set_known_attributes(KnownAttributes {
            names: ["tier", "kind", "endpoint"].map(Box::from).into(),
            from_headers: ["tier", "kind"].map(Box::from).into(),
            ..KnownAttributes::default()
        });
        parser.add_file(&crate::yaml::parse(&Origin::new("rules.yaml", text)).expect("yaml"));
        let warnings = parser.finish().expect("valid rules").warnings;
        warnings.iter().map(Problem::to_string).collect()
    }

    #[test]
    fn a_reserve_that_depends_on_a_header_is_reported() {
        for conditions in ["{ tier: critical }", "{ tier: critical, kind: live }"] {
            let text = warnings(conditions);
            assert!(
                text.contains("rule `r` has a reserve for every caller that sends a header"),
                "{text}"
            );
        }
        for conditions in [
            "{ tier: critical, endpoint: /pay }",
            "{ endpoint: /pay }",
            "{ priority: critical }",
        ] {
            assert_eq!(warnings(conditions), "", "{conditions}");
        }
    }
}
