use super::*;
use crate::decision::Cost;
use crate::rules::model::RuleSet;
use crate::rules::{Attribute, attributes, sample};
use proptest::prelude::*;

fn parts(rules: &RuleSet, attributes: &[Attribute<'_>]) -> Option<Vec<Vec<u8>>> {
    let attempt = Attempt {
        domain: Attempt::DOMAIN,
        attributes,
        cost: Cost::ONE,
    };
    let subject = rules.rules.first()?.subject(&attempt)?;
    Some(subject.parts().as_slice().iter().map(|part| part.to_vec()).collect())
}

#[test]
fn an_address_counts_for_its_network() {
    let rules = sample("rules:\n- {id: r, per: ip, limit: 1/s}\n");
    let sites = sample("rules:\n- {id: r, per: ip, ipv6_prefix: 48, limit: 1/s}\n");
    let names = sample("rules:\n- {id: r, per: name, limit: 1/s}\n");
    let whole = sample("rules:\n- {id: r, per: ip, ipv6_prefix: 128, limit: 1/s}\n");
    for (rules, given, counted) in [
        (&rules, "10.0.0.1", "10.0.0.1"),
        (&rules, "::ffff:10.0.0.1", "10.0.0.1"),
        (&rules, "::FFFF:0a00:0001", "10.0.0.1"),
        (&rules, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        (&rules, "2001:0DB8:0001:0002::", "2001:db8:1:2::"),
        (&rules, "2001:db8:1:3::1", "2001:db8:1:3::"),
        (&rules, "::1", "::"),
        (&rules, "2001:db8::1%eth0", "2001:db8::1%eth0"),
        (&rules, "[2001:db8::1]:80", "[2001:db8::1]:80"),
        (&rules, "not: an address", "not: an address"),
        (&sites, "2001:db8:1:2::3", "2001:db8:1::"),
        (&whole, "2001:db8::1", "2001:db8::1"),
        (&whole, "::10.0.0.1", "::a00:1"),
        (&names, "2001:db8::1", "2001:db8::1"),
    ] {
        let name = if std::ptr::eq(rules, &raw const names) {
            "name"
        } else {
            "ip"
        };
        let attributes = attributes(&[(name, given.as_bytes())]);
        assert_eq!(parts(rules, &attributes), Some(vec![counted.into()]), "{given}");
    }
}

#[test]
fn the_split_is_the_same_for_ever() {
    // What instances of every version agree on. If one of these changes, subjects change sides while a fleet is upgraded.
    for (rule, parts, expected) in [
        ("try-sliding", &[&b"m_1"[..]][..], 3605693166),
        ("try-sliding", &[b"m_2"], 378065157),
        ("try", &[b"m_1", b"/v1/charges"], 1667012833),
        ("try", &[b"", b"\xff\x00"], 501923856),
    ] {
        assert_eq!(experiment_hash(rule, parts), expected, "{rule} {parts:?}");
    }
}

fn on_trial(share: &str, merchants: u32) -> Vec<bool> {
    let rules = sample(&format!(
        "rules:\n- {{id: r, per: merchant, limit: 1/s, experiment: {{share: {share}, algorithm: gcra}}}}\n"
    ));
    let rule = rules.rules.first().expect("one rule");
    let side = |merchant: u32| rule.variant_of(&[format!("m_{merchant}").as_bytes()]);
    (0..merchants)
        .map(|merchant| side(merchant) == Variant::Experiment)
        .collect()
}

#[test]
fn a_growing_share_moves_nobody_out_and_is_about_what_it_says() {
    let mut before = on_trial("0%", 20_000);
    assert!(!before.contains(&true), "none of nobody");
    for (share, expected) in [
        ("1%", 200),
        ("10%", 2_000),
        ("50%", 10_000),
        ("90%", 18_000),
        ("100%", 20_000),
    ] {
        let now = on_trial(share, 20_000);
        let moved_out = before.iter().zip(&now).filter(|(was, is)| **was && !**is).count();
        let count = now.iter().filter(|is| **is).count();
        assert_eq!(moved_out, 0, "{share}");
        assert!(count.abs_diff(expected) < 300, "{share} of 20,000 are {count}");
        before = now;
    }
}

proptest! {
    #[test]
    fn two_attempts_share_a_counter_only_if_their_values_are_the_same(
        one in proptest::collection::vec((0..3_usize, proptest::collection::vec(0..2_u8, 0..3)), 0..6),
        other in proptest::collection::vec((0..3_usize, proptest::collection::vec(0..2_u8, 0..3)), 0..6),
    ) {
        let rules = sample("rules:\n- {id: r, per: [a, b], limit: 1/s}\n");
        let given = |pairs: &[(usize, Vec<u8>)]| -> Vec<(&'static str, Vec<u8>)> {
            pairs.iter().map(|(name, value)| (["a", "b", "c"][*name], value.clone())).collect()
        };
        let (one, other) = (given(&one), given(&other));
        let parts = |pairs: &[(&'static str, Vec<u8>)]| {
            let attributes: Vec<Attribute<'_>> = pairs.iter().map(|(name, value)| Attribute { name, value }).collect();
            parts(&rules, &attributes)
        };
        let of = |pairs: &[(&'static str, Vec<u8>)], name: &str| -> Vec<Vec<u8>> {
            pairs.iter().filter(|(known, _)| *known == name).map(|(_, value)| value.clone()).collect()
        };
        let is_met = |pairs: &[(&'static str, Vec<u8>)]| !of(pairs, "a").is_empty() && !of(pairs, "b").is_empty();
        prop_assert_eq!(parts(&one).is_some(), is_met(&one));
        if let (Some(parts_of_one), Some(parts_of_other)) = (parts(&one), parts(&other)) {
            let are_alike = of(&one, "a") == of(&other, "a") && of(&one, "b") == of(&other, "b");
            prop_assert_eq!(parts_of_one == parts_of_other, are_alike);
        }
    }
}
