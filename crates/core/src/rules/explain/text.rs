//! An explanation in words, and for each rule what would have to change.

use super::{Explanation, LimitTrace, MatchedRule, RuleMatch, RuleTrace, SkipReason};
use crate::decision::{Cost, Decision, Retry};
use crate::limit::Limit;
use crate::rules::model::LimitOrigin;
use crate::rules::model::{Terms, Test, Variant};
use crate::rules::verdict::{Ruling, Verdict};
use crate::settle::source::Source;
use std::fmt;

/// As a person reads it: the answer first, then rule by rule.
impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", VerdictText(&self.verdict))?;
        for trace in &self.traces {
            writeln!(f)?;
            write!(f, "{trace}")?;
        }
        Ok(())
    }
}

/// The verdict in one line.
struct VerdictText<'a, 'r>(&'a Verdict<'r>);

impl fmt::Display for VerdictText<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = self.0;
        let result = if verdict.allowed { "allowed" } else { "denied" };
        match verdict.nearest() {
            Some(ruling) => write!(f, "{result}: `{}` {}", ruling.name, RulingText(ruling)),
            None if verdict.rulings.is_empty() => write!(f, "{result}: no rule applies"),
            None => write!(f, "{result}: no rule that applies can refuse"),
        }
    }
}

impl fmt::Display for RuleTrace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = self.rule;
        write!(f, "{}", rule.id())?;
        if rule.domain() != crate::rules::Attempt::DOMAIN {
            write!(f, " (domain {})", rule.domain())?;
        }
        match &self.rule_match {
            RuleMatch::Skipped(reasons) => {
                writeln!(f, ": does not apply")?;
                for reason in reasons {
                    writeln!(f, "    {reason}")?;
                }
            }
            RuleMatch::Matched(matched) => {
                writeln!(f, ": applies, {}", rule.mode().name())?;
                matched.write(rule.experiment().is_some(), f)?;
            }
        }
        for suggestion in self.suggestions() {
            writeln!(f, "    suggestion: {suggestion}")?;
        }
        Ok(())
    }
}

impl MatchedRule<'_> {
    fn write(&self, is_split: bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = self
            .subject
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        match &*values {
            [] => writeln!(f, "    counts for everybody")?,
            values => writeln!(f, "    counts for {}", values.join(", "))?,
        }
        let variant = match self.variant {
            Variant::Experiment => " on trial",
            Variant::Control if is_split => " not on trial",
            Variant::Control => "",
        };
        writeln!(
            f,
            "    costs {}; what it says comes from {}{variant}",
            self.cost.get(),
            self.origin
        )?;
        for limit in &self.limits {
            writeln!(f, "    {limit}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LimitTrace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ruling = &self.ruling;
        match ruling.window {
            None => write!(f, "{}", RulingText(ruling))?,
            Some(window) => write!(
                f,
                "{}: {}; {}",
                window.name(),
                LimitText(window.limit()),
                RulingText(ruling)
            )?,
        }
        match &self.key {
            Some(key) => write!(f, "; key {key}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for SkipReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => write!(f, "it is disabled"),
            Self::Domain { actual: was } => write!(f, "it is of another domain than `{was}`"),
            Self::Condition {
                attribute,
                expected: wanted,
                actual: was,
            } if was.is_empty() => {
                write!(f, "`{attribute}` is not there, wanted {wanted}")
            }
            Self::Condition {
                attribute,
                expected: wanted,
                actual: was,
            } => {
                write!(f, "`{attribute}` is `{}`, wanted {wanted}", was.join("`, `"))
            }
            Self::MissingAttribute { attribute } => write!(f, "`{attribute}` is not there, and it counts by it"),
            Self::Descriptor {
                matched_rule: Some(other),
            } => write!(f, "the entries lead to `{other}`"),
            Self::Descriptor { matched_rule: None } => write!(f, "the entries lead to no limit"),
        }
    }
}

impl RuleTrace<'_> {
    /// What would have to change for the rule to apply, or for what it refuses to pass. Nothing for a rule that applies and
    /// lets pass.
    pub fn suggestions(&self) -> Vec<String> {
        match &self.rule_match {
            RuleMatch::Skipped(reasons) => reasons.iter().map(|reason| self.suggestion(reason)).collect(),
            RuleMatch::Matched(matched) => matched
                .limits
                .iter()
                .filter_map(|limit| matched.suggestion(limit))
                .collect(),
        }
    }

    fn suggestion(&self, reason: &SkipReason<'_>) -> String {
        match reason {
            SkipReason::Disabled => "give the rule the mode enforce or shadow".to_owned(),
            SkipReason::Domain { .. } => format!("ask in domain `{}`", self.rule.domain()),
            SkipReason::Condition {
                attribute,
                expected: wanted,
                ..
            } => format!("`{attribute}` would have to be {wanted}"),
            SkipReason::MissingAttribute { attribute } => format!("give `{attribute}`"),
            SkipReason::Descriptor { .. } => {
                "send the entries that its file has, in their order and no others".to_owned()
            }
        }
    }
}

impl MatchedRule<'_> {
    fn suggestion(&self, limit_trace: &LimitTrace<'_>) -> Option<String> {
        let Some(decision) = &limit_trace.ruling.decision else {
            let is_closed = limit_trace.ruling.source == Source::Closed;
            return is_closed.then(|| "the store would have to be reached".to_owned());
        };
        let limit = decision.standing().limit;
        Some(match decision.retry()? {
            Retry::After(wait) => {
                let wait = wait.round_for_display();
                format!("wait {wait}, ask for no more than is left, or raise {}", self.origin)
            }
            Retry::Unknown => format!("somebody would have to release a lease, or raise {}", self.origin),
            Retry::Never if matches!(self.terms, Terms::Banned) => {
                format!("{} would have to allow something", self.origin)
            }
            Retry::Never if self.cost > Cost::MAX => format!("no limit holds so much: ask for at most {limit}"),
            Retry::Never => format!(
                "a cost of {} never passes: ask for at most {limit}, or raise {}",
                self.cost.get(),
                self.origin
            ),
        })
    }
}

impl fmt::Display for LimitOrigin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit => f.write_str("`limit`"),
            Self::By { attribute, value } => write!(f, "`by` {attribute} = {}", super::printable(value)),
            Self::Override(index) => write!(f, "override {}", index + 1),
        }
    }
}

/// What a ruling says, after the name of its limit.
struct RulingText<'a, 'r>(&'a Ruling<'r>);

impl fmt::Display for RulingText<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(decision) = &self.0.decision else {
            return f.write_str(match (self.0.window, self.0.source) {
                (None, _) => "does not limit",
                (Some(_), Source::Closed) => "could not be asked, and refuses",
                (Some(_), _) => "could not be asked, and lets pass",
            });
        };
        let standing = decision.standing();
        let (remaining, limit) = (standing.remaining, standing.limit);
        match decision {
            _ if self.0.window.is_none() => f.write_str("bans"),
            Decision::Allow { delay, .. } => {
                write!(
                    f,
                    "would leave {remaining} of {limit}, resets in {}",
                    standing.reset_after.round_for_display()
                )?;
                match delay.get() {
                    0 => Ok(()),
                    _ => write!(f, ", held for {}", delay.round_for_display()),
                }
            }
            Decision::Deny { retry, .. } => {
                write!(f, "refuses: {remaining} of {limit} left, ")?;
                match retry {
                    Retry::After(wait) => write!(f, "would pass in {}", wait.round_for_display()),
                    Retry::Unknown => f.write_str("would pass when a lease is released"),
                    Retry::Never => f.write_str("would never pass"),
                }
            }
        }
    }
}

/// The numbers of a limit.
struct LimitText<'a>(&'a Limit);

impl fmt::Display for LimitText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity = self.0.capacity();
        write!(f, "{} of ", self.0.algorithm())?;
        match (self.0, self.0.rate()) {
            (Limit::Concurrency(limit), _) => {
                write!(f, "{capacity} in flight, each for at most {}", limit.lease_ttl())
            }
            (_, Some(rate)) if rate.units() == capacity => write!(f, "{rate}"),
            (_, Some(rate)) => write!(f, "{rate}, burst {capacity}"),
            (_, None) => write!(f, "{capacity}"),
        }
    }
}

/// What a test wants, much as rules write it.
impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, alternatives: &mut dyn Iterator<Item = String>| {
            let alternatives: Vec<String> = alternatives.take(LISTED_MAX + 1).collect();
            let shown = alternatives.get(..LISTED_MAX).unwrap_or(&alternatives);
            let more = if alternatives.len() > LISTED_MAX {
                " or others"
            } else {
                ""
            };
            write!(f, "{}{more}", shown.join(" or "))
        };
        match self {
            Self::OneOf(values) => list(f, &mut values.iter().map(|value| format!("`{value}`"))),
            Self::Glob(parts) => write!(f, "`{}`", parts.join("*")),
            Self::Any(tests) => list(f, &mut tests.iter().map(Self::to_string)),
            Self::Regex(regex) => write!(f, "what matches `{regex}`"),
            Self::Cidr(networks) => list(f, &mut networks.iter().map(|network| format!("in `{network}`"))),
            Self::Present(true) => f.write_str("there"),
            Self::Present(false) => f.write_str("absent"),
        }
    }
}

/// The most alternatives of a test that are listed.
const LISTED_MAX: usize = 8;
