//! The domains that have rules, and the error of one that has none.

use super::model::RuleSet;
use crate::problem::closest_match;
use crate::yaml::excerpt;
use std::fmt;

/// A domain without rules: no attempt in it is limited, usually because its name is misspelt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDomain {
    name: Box<str>,
    /// The closest domain that has rules.
    suggestion: Option<Box<str>>,
    /// Domains that have rules, if none is close: the first few, sorted.
    others: Vec<Box<str>>,
}

impl RuleSet {
    /// True if rules or descriptors name this domain, disabled ones included, or an empty list of rules was written for
    /// it.
    pub fn is_known_domain(&self, domain: &str) -> bool {
        let is_named = self.domains.binary_search_by(|known| (**known).cmp(domain)).is_ok();
        is_named || self.descriptors().has_domain(domain)
    }

    /// The error of a domain that has no rules; none if it has some.
    pub fn unknown_domain(&self, domain: &str) -> Option<UnknownDomain> {
        if self.is_known_domain(domain) {
            return None;
        }
        let known = || self.domains.iter().map(|known| &**known);
        let suggestion = closest_match(domain, known());
        let others = known().filter(|_| suggestion.is_none()).take(SHOWN_MAX);
        Some(UnknownDomain {
            name: domain.into(),
            suggestion: suggestion.map(Box::from),
            others: others.map(Box::from).collect(),
        })
    }
}

impl UnknownDomain {
    /// The error with the domain that may be meant, and without a list of others: a caller may be one of many tenants.
    pub fn caller_text(&self) -> String {
        let text = self.public_text();
        match &self.suggestion {
            Some(suggestion) => format!("{text}; did you mean `{}`?", excerpt(suggestion)),
            None => text,
        }
    }

    /// The error without the names of other domains, for a response that anyone may see.
    pub fn public_text(&self) -> String {
        format!("domain `{}` has no rules", excerpt(&self.name))
    }
}

impl fmt::Display for UnknownDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.public_text())?;
        match (&self.suggestion, &*self.others) {
            (Some(suggestion), _) => write!(f, "; did you mean `{}`?", excerpt(suggestion)),
            (None, []) => Ok(()),
            (None, others) => {
                let others: Vec<String> = others.iter().map(|name| format!("`{}`", excerpt(name))).collect();
                write!(f, "; there are rules for {}", others.join(", "))
            }
        }
    }
}

impl std::error::Error for UnknownDomain {}

/// The most domains that are listed where none is close.
const SHOWN_MAX: usize = 5;

#[cfg(test)]
mod tests {
    use crate::rules::sample;

    #[test]
    fn a_domain_without_rules_is_answered_with_the_one_that_may_be_meant() {
        let rules = sample(
            "domain: api\nrules:\n- { id: a, limit: 1/s }\n- { id: b, domain: jobs, limit: 1/s, mode: disabled }\n",
        );
        for (domain, expected) in [
            ("api", None),
            ("jobs", None),
            ("apii", Some("domain `apii` has no rules; did you mean `api`?")),
            ("Api", Some("domain `Api` has no rules; did you mean `api`?")),
            ("", Some("domain `` has no rules; there are rules for `api`, `jobs`")),
            (
                "payments",
                Some("domain `payments` has no rules; there are rules for `api`, `jobs`"),
            ),
        ] {
            let text = rules.unknown_domain(domain).map(|unknown| unknown.to_string());
            assert_eq!(text.as_deref(), expected, "{domain}");
        }
        let unknown = rules.unknown_domain("apii").expect("it has no rules");
        assert_eq!(unknown.public_text(), "domain `apii` has no rules");
    }

    #[test]
    fn an_empty_list_of_rules_is_a_domain_that_limits_nothing() {
        let rules = sample("domain: api\nrules: []\n");
        assert!(rules.is_known_domain("api"));
        assert!(!rules.is_known_domain("default"));
    }
}
