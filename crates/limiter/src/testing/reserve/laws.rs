//! The laws of a reserve, as models of three limits: the whole, the part of the others, and the reserve alone.

use std::num::NonZeroU64;
use tollgate_core::rules::{ParserOptions, RuleSet, RulesParser, Terms};
use tollgate_core::{Cost, LeaseId, Limit, Now, State, Timestamp, problem, yaml};

/// A rule set of one rule with a reserve, and the numbers of its laws.
#[derive(Debug)]
pub struct ReservedRule {
    /// The rule set.
    pub rules: RuleSet,
    /// The whole limit.
    pub all: Limit,
    /// The limit of those that may not use the reserve.
    pub others: Limit,
    /// The reserve as a limit of its own. None if it holds less than one unit.
    pub reserve: Option<Limit>,
    /// True if the reserve is lent.
    pub lends: bool,
}

/// The decisions of one counter of a rule, compared with what the laws say.
///
/// 1. What passes is within the whole limit.
/// 2. What passes of the others is within their part, unless the reserve is lent.
/// 3. A critical attempt is denied only by the whole limit; and never while the critical attempts alone, from the start,
///    are within the reserve.
///
/// Nothing else is denied.
#[derive(Debug)]
pub struct ReserveLaws<'r> {
    rule: &'r ReservedRule,
    all: Option<State>,
    others: Option<State>,
    reserve: Option<State>,
    is_within_reserve: bool,
}

impl ReservedRule {
    /// Parses a rule `r` of these members, counted by `case`: `limit: 10/s`, and a reserve of a share for `priority:
    /// critical`. None if the rule is rejected.
    pub fn parse(members: &str, share_millionths: u64, lends: bool) -> Option<Self> {
        let (percent, decimals) = (share_millionths / 10_000, share_millionths % 10_000);
        let text = format!(
            "rules: [{{ id: r, per: case, {members}, reserve: {{ share: {percent}.{decimals:04}%, for: {{ priority: \
             critical }}, lend: {lends} }} }}]"
        );
        let mut parser = RulesParser::new(ParserOptions::default());
        parser.add_file(&yaml::parse(&problem::Origin::new("rules.yaml", text)).ok()?);
        let rules = parser.finish().ok()?.rules;
        let Terms::Limited(windows) = rules.rules().first()?.limit_selector().limit() else {
            return None;
        };
        let (all, others) = (*windows.as_slice().first()?.limit(), *windows.others().first()?.limit());
        let million = NonZeroU64::new(1_000_000)?;
        let has_unit = all.capacity().saturating_mul(share_millionths) >= 1_000_000;
        let reserve = NonZeroU64::new(share_millionths).filter(|_| has_unit);
        Some(Self {
            reserve: reserve.map(|share| all.portion(share, million)),
            rules,
            all,
            others,
            lends,
        })
    }
}

impl<'r> ReserveLaws<'r> {
    /// The laws of a fresh counter.
    pub const fn new(rule: &'r ReservedRule) -> Self {
        Self {
            rule,
            all: None,
            others: None,
            reserve: None,
            is_within_reserve: true,
        }
    }

    /// Records a decision at the store's time. True if the whole limit allows it.
    ///
    /// # Errors
    /// The law that it breaks.
    pub fn record(&mut self, is_critical: bool, cost: Cost, now: Timestamp, allowed: bool) -> Result<bool, String> {
        let ReservedRule { all, others, lends, .. } = self.rule;
        let lease = LeaseId::default();
        let step = |limit: &Limit, state: &Option<State>| limit.decide(state.as_ref(), cost, Now::new(now));
        let of_all = step(all, &self.all);
        // Others who are lent the reserve share its counter.
        let of_others = step(others, if *lends { &self.all } else { &self.others });
        let (all_allow, others_allow) = (of_all.decision.is_allow(), of_others.decision.is_allow());
        let mut is_due = false;
        if is_critical && let Some(reserve) = &self.rule.reserve {
            let of_reserve = step(reserve, &self.reserve);
            self.is_within_reserve &= of_reserve.decision.is_allow();
            is_due = self.is_within_reserve;
            if let Some(change) = of_reserve.next.filter(|_| is_due) {
                reserve.keep(&mut self.reserve, change, lease);
            }
        }
        match (allowed, is_critical) {
            (true, _) if !all_allow => return Err("law 1: more than the whole limit passed".to_owned()),
            (true, false) if !others_allow => return Err("law 2: the others got more than their part".to_owned()),
            (false, true) if all_allow => return Err("law 3: a critical attempt was denied by the reserve".to_owned()),
            (false, true) if is_due => {
                return Err("law 3: critical attempts within the reserve were denied".to_owned());
            }
            (false, false) if all_allow && others_allow => return Err("nothing denies it".to_owned()),
            _ => {}
        }
        if allowed {
            if let Some(change) = of_all.next {
                all.keep(&mut self.all, change, lease);
            }
            if let Some(change) = of_others.next.filter(|_| !is_critical && !lends) {
                others.keep(&mut self.others, change, lease);
            }
        }
        Ok(all_allow)
    }
}
