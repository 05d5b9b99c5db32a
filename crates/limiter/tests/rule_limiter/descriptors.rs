//! Counters of descriptors: named by the entries of the request in their order, not by the keys of the file.

use super::ratelimit::parser_of;
use super::{attributes, stopped_store};
use tollgate_limiter::conformance::block_on;
use tollgate_limiter::core::Cost;
use tollgate_limiter::core::rules::{Attempt, Attribute, RuleMatch};
use tollgate_limiter::{AttemptItem, Direction, ItemVerdict, RuleLimiter};

const FILE: &str = include_str!("descriptors.yaml");

fn attempt<'a>(entries: &'a [Attribute<'a>]) -> Attempt<'a> {
    Attempt {
        domain: "shop",
        attributes: entries,
        cost: Cost::ONE,
    }
}

fn limiter(strict: bool) -> RuleLimiter {
    let rules = parser_of(FILE, strict).finish().expect("sound descriptors").rules;
    RuleLimiter::new(rules, stopped_store().0)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CounterRelation {
    Same,
    Different,
}

/// Uses a limit up by one descriptor, and asks by another whether something is left.
fn check(strict: bool, one: &[&str], other: &[&str], relation: CounterRelation) {
    let limiter = limiter(strict);
    let is_allowed = |pairs: &[&str]| limiter.check_now(&attempt(&attributes(pairs))).verdict.allowed;
    let used = [is_allowed(one), is_allowed(one), is_allowed(one)];
    assert_eq!(used, [true, true, false], "{one:?}, strict {strict}: its limit is two");
    assert_eq!(
        is_allowed(other),
        relation == CounterRelation::Different,
        "{one:?} and {other:?}, strict {strict}"
    );
}

#[test]
fn whatever_leads_to_a_limit_is_counted_by_the_entries_that_came() {
    use CounterRelation::{Different, Same};
    for (one, other, relation) in [
        // A star in a key.
        (&["starlight=x"][..], &["starlight=x"][..], Same),
        (&["starlight=x"], &["starlight=y"], Different),
        (&["starlight=x"], &["starry=x"], Different),
        (&["starlight="], &["star=light"], Different),
        // The pattern stands for the value, and the key stays.
        (&["joined1=x"], &["joined1=y"], Same),
        (&["joined1=x"], &["joined2=x"], Different),
        // What is joined by underscores is one, however it is cut.
        (&["a=b_c"], &["a_b=c"], Same),
        (&["a=b_c"], &["a_b=d"], Different),
        (&["a=b"], &["a_b=d"], Different),
        (&["empty="], &["empty="], Same),
        (&["empty="], &["empty_=x"], Different),
        (&["empty="], &["empty_="], Different),
        // A key that comes twice: each by its place.
        (&["path=/a/1", "path=z"], &["path=/a/2", "path=z"], Same),
        (&["path=/a/1", "path=z"], &["path=/a/1", "path=y"], Different),
        (&["path=/a/1", "path=/a/1"], &["path=/a/2", "path=/a/2"], Different),
    ] {
        check(false, one, other, relation);
        check(true, one, other, relation);
    }
}

#[test]
fn what_is_counted_can_be_forgotten() {
    for strict in [false, true] {
        let limiter = limiter(strict);
        for pairs in [&["starlight=x"][..], &["a=b_c"], &["path=/a/1", "path=z"]] {
            let entries = attributes(pairs);
            let attempt = attempt(&entries);
            limiter.check_now(&attempt);
            let forget = || block_on(limiter.forget(&attempt, None)).expect("a store");
            assert_eq!((forget(), forget()), (1, 0), "{pairs:?}, strict {strict}");
        }
    }
}

#[test]
fn only_the_descriptor_that_the_entries_lead_to_applies() {
    let limiter = limiter(false);
    for (pairs, met, subject) in [
        (&["plan=free", "user=u"][..], Some("plan_free.user"), "plan=free user=u"),
        // In another order, or with others beside them, they lead elsewhere or nowhere.
        (&["user=u", "plan=free"], None, ""),
        (&["user=u"], Some("user"), "user=u"),
        (&["plan=free"], None, ""),
        (&["a=b"], Some("a_b"), "a=b"),
        (&["a=b_c"], Some("a_b_c"), "a=b_c"),
        (&["joined1=x"], Some("joined-"), "joined1=joined*"),
    ] {
        let entries = attributes(pairs);
        let told = block_on(limiter.explain(&attempt(&entries)));
        let applying = told.traces.iter().filter_map(|story| match &story.rule_match {
            RuleMatch::Matched(met) => Some((story.rule.id(), met)),
            RuleMatch::Skipped(_) => None,
        });
        let applying: Vec<_> = applying.collect();
        let ids: Vec<&str> = applying.iter().map(|(id, _)| *id).collect();
        let begins = |(id, begin): (&&str, &str)| id.starts_with(begin);
        assert!(
            ids.len() == usize::from(met.is_some()) && ids.iter().zip(met).all(begins),
            "{pairs:?}: {ids:?}"
        );
        for (_, met) in applying {
            let values: Vec<String> = met
                .subject
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            assert_eq!(values.join(" "), subject);
            assert!(met.limits[0].key.is_some(), "{pairs:?}");
        }
        let words = told.to_string();
        let leads = met.map_or("the entries lead to no limit".to_owned(), |id| {
            format!("the entries lead to `{id}")
        });
        assert!(words.contains(&leads), "{words}");
    }
}

#[test]
fn what_another_limit_replaces_is_not_given_back_either() {
    use Direction::{Consume, Refund};
    for strict in [false, true] {
        for (special, all) in [(Consume, Refund), (Refund, Consume), (Refund, Refund)] {
            let limiter = limiter(strict);
            let check = |pairs: &[(&str, Direction)]| {
                let entries: Vec<_> = pairs.iter().map(|(pair, _)| attributes(&[pair])).collect();
                let item = |index: usize| AttemptItem {
                    attempt: attempt(&entries[index]),
                    direction: pairs[index].1,
                    inline_limit: None,
                };
                let items: Vec<AttemptItem<'_>> = (0..pairs.len()).map(item).collect();
                let combined = limiter.check_all_now(&items);
                let is_limited = |verdict: &ItemVerdict<'_>| match verdict {
                    ItemVerdict::Rules(rules_verdict) => !rules_verdict.rulings.is_empty(),
                    ItemVerdict::Inline(..) => panic!("nobody brought a limit"),
                };
                (
                    combined.allowed,
                    combined.items.iter().map(is_limited).collect::<Vec<_>>(),
                )
            };
            // One of two is used; the other stays there whatever is done beside what replaces it.
            assert_eq!(check(&[("all=x", Consume)]), (true, vec![true]));
            for _ in 0..3 {
                assert_eq!(
                    check(&[("special=x", special), ("all=x", all)]),
                    (true, vec![true, false]),
                    "{strict} {special:?} {all:?}"
                );
            }
            let left = [check(&[("all=x", Consume)]).0, check(&[("all=x", Consume)]).0];
            assert_eq!(left, [true, false], "{strict} {special:?} {all:?}");
        }
    }
}
