//! Explanations as text, with suggestions for each rule.

use super::{Explanation, LimitTrace, MatchedRule, ReserveTrace, RuleMatch, RuleTrace, SkipReason};
use crate::decision::{Cost, Decision, Retry};
use crate::limit::Limit;
use crate::rules::derive::{DerivedOrigin, DerivedValue};
use crate::rules::model::LimitOrigin;
use crate::rules::model::{CostOrigin, Terms, Test, Variant};
use crate::rules::verdict::{DenialReason, Ruling, Verdict};
use crate::settle::source::Source;
use std::fmt;

/// Renders the verdict first, then each rule.
impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unknown_domain {
            Some(unknown) => writeln!(f, "allowed: {unknown}")?,
            None => writeln!(f, "{}", VerdictText(&self.verdict))?,
        }
        for derived in &self.derived {
            writeln!(f, "{derived}")?;
        }
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
            None if verdict.rulings.is_empty() => write!(f, "{result}: no rule matched"),
            None => write!(f, "{result}: no enforced rule matched"),
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
                writeln!(f, ": skipped")?;
                for reason in reasons {
                    writeln!(f, "    {reason}")?;
                }
            }
            RuleMatch::Matched(matched) => {
                writeln!(f, ": matched, {}", rule.mode().name())?;
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
            [] => writeln!(f, "    counted globally")?,
            values => writeln!(f, "    counted for {}", values.join(", "))?,
        }
        let variant = match self.variant {
            Variant::Experiment => ", experiment",
            Variant::Control if is_split => ", control",
            Variant::Control => "",
        };
        let (cost, from) = (self.cost.get(), self.cost_origin);
        writeln!(f, "    cost {cost}{from}; limit from {}{variant}", self.origin)?;
        for limit in &self.limits {
            writeln!(f, "    {limit}")?;
        }
        match &self.reserve {
            Some(reserve) => write!(f, "{reserve}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ReserveTrace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let use_text = if self.is_for_attempt {
            "may use it"
        } else {
            "may not use it"
        };
        writeln!(f, "    reserve of {}: the attempt {use_text}", self.reserve)?;
        for (part, counter) in &self.counters {
            writeln!(f, "        {}: {counter}", part.name())?;
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
            Self::Disabled => write!(f, "disabled"),
            Self::Domain { actual: was } => write!(f, "the attempt's domain is `{was}`"),
            Self::Condition {
                attribute,
                expected: wanted,
                actual: was,
            } if was.is_empty() => {
                write!(f, "`{attribute}` is missing, expected {wanted}")
            }
            Self::Condition {
                attribute,
                expected: wanted,
                actual: was,
            } => {
                write!(f, "`{attribute}` is `{}`, expected {wanted}", was.join("`, `"))
            }
            Self::MissingAttribute { attribute } => write!(f, "`{attribute}` is missing, and `per` needs it"),
            Self::Descriptor {
                matched_rule: Some(other),
            } => write!(f, "the entries lead to `{other}`"),
            Self::Descriptor { matched_rule: None } => write!(f, "the entries lead to no limit"),
        }
    }
}

impl RuleTrace<'_> {
    /// Returns what would have to change for a skipped rule to match, or for a denied attempt to be allowed. Empty for
    /// a rule that matched and allows.
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
            SkipReason::Disabled => "set the rule's mode to enforce or shadow".to_owned(),
            SkipReason::Domain { .. } => format!("send the attempt in domain `{}`", self.rule.domain()),
            SkipReason::Condition {
                attribute,
                expected: wanted,
                ..
            } => format!("`{attribute}` must be {wanted}"),
            SkipReason::MissingAttribute { attribute } => format!("send `{attribute}`"),
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
            return is_closed.then(|| "the store must be reachable".to_owned());
        };
        let limit = decision.standing().limit;
        match limit_trace.ruling.denial_reason()? {
            DenialReason::Limit => {}
            DenialReason::MinInterval(_) => {
                let Retry::After(wait) = decision.retry()? else {
                    return None;
                };
                let wait = wait.round_for_display();
                return Some(format!("wait {wait}, or lower `min_interval`"));
            }
            DenialReason::NoMemory => {
                return Some(
                    "wait until idle keys make space, raise `store.max_memory`, or use `overflow: share`".into(),
                );
            }
        }
        Some(match decision.retry()? {
            Retry::After(wait) => {
                let wait = wait.round_for_display();
                let kept = if limit_trace.ruling.reserved {
                    ": the rest is kept for others"
                } else {
                    ""
                };
                format!(
                    "wait {wait}, lower the cost to what remains, or raise {}{kept}",
                    self.origin
                )
            }
            Retry::Unknown => format!("wait until a lease is released, or raise {}", self.origin),
            Retry::Never if matches!(self.terms, Terms::Banned(_)) => {
                format!("{} must allow something", self.origin)
            }
            Retry::Never if self.cost > Cost::MAX => format!("no limit has this capacity: request at most {limit}"),
            Retry::Never => format!(
                "a cost of {} is never allowed: request at most {limit}, or raise {}",
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
            Self::Row(subject) => {
                f.write_str("the row of")?;
                for (index, (name, value)) in subject.pairs().enumerate() {
                    let separator = if index == 0 { " " } else { ", " };
                    write!(f, "{separator}{name}={}", super::printable(value))?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for DerivedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, from) = (&self.attribute.name, &self.attribute.from);
        let value = self.values.join(", ");
        match self.origin {
            DerivedOrigin::Table => write!(f, "{name}={value}: derived from {from}"),
            DerivedOrigin::Caller => write!(f, "{name}={value}: sent by the caller, nothing is known of its {from}"),
            DerivedOrigin::Default => write!(f, "{name}={value}: the default, nothing is known of its {from}"),
            DerivedOrigin::Missing => write!(
                f,
                "{name} is missing: nothing is known of its {from}, and there is no default"
            ),
        }
    }
}

impl fmt::Display for CostOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost => Ok(()),
            Self::Case(index) => write!(f, " from entry {} of `cost`", index + 1),
            Self::Default => f.write_str(" from the default of `cost`"),
        }
    }
}

/// A ruling as text, after the name of its limit.
struct RulingText<'a, 'r>(&'a Ruling<'r>);

impl fmt::Display for RulingText<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(decision) = &self.0.decision else {
            return f.write_str(match (self.0.window, self.0.source) {
                (None, _) => "unlimited",
                (Some(_), Source::Closed) => "store unavailable, denies",
                (Some(_), _) => "store unavailable, allows",
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
                    _ => write!(f, ", delayed by {}", delay.round_for_display()),
                }
            }
            Decision::Deny { retry, .. } => {
                write!(f, "denies: {remaining} of {limit} remaining, ")?;
                match self.0.denial_reason() {
                    Some(DenialReason::MinInterval(interval)) => write!(f, "min_interval of {interval}, ")?,
                    Some(DenialReason::NoMemory) => {
                        return f.write_str("no memory for a new key, and overflow: deny");
                    }
                    Some(DenialReason::Limit) | None => {}
                }
                match retry {
                    Retry::After(wait) => write!(f, "retry in {}", wait.round_for_display()),
                    Retry::Unknown => f.write_str("retry when a lease is released"),
                    Retry::Never => f.write_str("never allowed"),
                }
            }
        }
    }
}

/// The parameters of a limit as text.
struct LimitText<'a>(&'a Limit);

impl fmt::Display for LimitText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capacity = self.0.capacity();
        write!(f, "{} of ", self.0.algorithm())?;
        if let Limit::FixedWindow(window) = self.0
            && let Some(calendar) = window.calendar()
        {
            return write!(f, "{capacity} per {} of {}", calendar.unit().name(), calendar.zone());
        }
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

/// Renders a test close to the form rules write it in.
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

/// The maximum number of alternatives that are listed.
const LISTED_MAX: usize = 8;
