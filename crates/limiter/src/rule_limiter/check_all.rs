//! Several attempts of one request, settled as one: all of them pass, or none does.

use super::settle::RequestCharges;
use super::{RuleLimiter, takes_lease};
use crate::lease;
use crate::store::CounterStore;
use futures_util::future::join_all;
use tollgate_core::rules::ratelimit::{CounterTarget, LimitOverride};
use tollgate_core::rules::{Attempt, Plan, PlannedCharge, Undecided, Verdict, WindowCount};
use tollgate_core::{Charge, Cost, Counter, Decision, LeaseId, Limit, Policy, Source, Timestamp, undecided_source};

/// One attempt of a request with several.
#[derive(Clone, Copy, Debug)]
pub struct AttemptItem<'a> {
    /// The attempt.
    pub attempt: Attempt<'a>,
    /// The direction of its cost.
    pub direction: Direction,
    /// A limit that replaces the rules.
    pub inline_limit: Option<InlineLimit>,
}

/// The direction of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It is consumed.
    Consume,
    /// It is refunded, never above the capacity, and never denied.
    Refund,
}

/// A limit sent with the request. It has its own counter for each domain and list of attributes, or the counter of the
/// descriptor that it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineLimit {
    /// A limit.
    Limited(Limit),
    /// Denies everything.
    Banned,
    /// A limit that replaces that of a descriptor.
    Override(LimitOverride),
}

/// The result of all items of a request.
#[derive(Debug)]
pub struct CombinedVerdict<'r> {
    /// True if the request is allowed: every item is, except that quotas deny only together. Otherwise nothing was
    /// consumed and nothing refunded, except where all attempts are counted.
    pub allowed: bool,
    /// The verdict of each item by its own limits, in order.
    pub items: Vec<ItemVerdict<'r>>,
    /// Number of cost attributes that were not whole numbers; the default was charged.
    pub invalid_costs: u32,
    /// True if an attempt lacks a `per` attribute of rules in its domain: see
    /// [`RuleSet::missing_keys`](tollgate_core::rules::RuleSet::missing_keys).
    pub lacks_key: bool,
    /// The store's time of the settlement. None if nothing had to be settled.
    pub now: Option<Timestamp>,
}

/// The verdict of one item by its own limits.
#[derive(Debug)]
pub enum ItemVerdict<'r> {
    /// The verdict of the rules.
    Rules(Verdict<'r>),
    /// The decision of the inline limit, and the count of its window if all attempts are counted. No decision if the
    /// store failed, or if another item was denied before this one was sent: then it passes, unless its source is
    /// [`Source::Closed`].
    Inline(Option<Decision>, Source, Option<WindowCount>),
}

/// The charges of one item.
#[expect(
    clippy::large_enum_variant,
    reason = "a request has a few items, and a box would be an allocation for each"
)]
enum PlannedItem<'r, K> {
    Rules(Plan<'r, K>),
    Inline(InlineCharge<K>),
    /// Refunded after the others are settled. None for an inline limit.
    Refund(Option<Plan<'r, K>>),
}

/// The charge of an inline limit.
struct InlineCharge<K> {
    limit: InlineLimit,
    cost: Cost,
    /// None if it denies everything.
    charge: Option<PlannedCharge<K>>,
}

impl<S: CounterStore> RuleLimiter<S> {
    /// Checks several attempts as one. If all are allowed, every rule that one of them matches is charged; otherwise
    /// none is. Charges on one counter add up. Rules that count all attempts are charged in any case.
    ///
    /// Refunds are applied if the request is allowed, and in any case where all attempts are counted.
    pub async fn check_all(&self, items: &[AttemptItem<'_>]) -> CombinedVerdict<'_> {
        if let [
            AttemptItem {
                attempt,
                direction: Direction::Consume,
                inline_limit: None,
            },
        ] = items
        {
            let result = self.check(attempt).await;
            return CombinedVerdict {
                allowed: result.verdict.allowed,
                invalid_costs: result.invalid_costs,
                lacks_key: result.lacks_key,
                now: result.now,
                items: vec![ItemVerdict::Rules(result.verdict)],
            };
        }
        let mut planned: Vec<PlannedItem<'_, S::Key>> = items.iter().map(|item| self.plan_item(item)).collect();
        let replaced: Vec<&str> = planned.iter().flat_map(PlannedItem::replaced_limits).collect();
        if !replaced.is_empty() {
            let plans = planned.iter_mut().filter_map(PlannedItem::plan_mut);
            plans.for_each(|plan| plan.drop_replaced(&replaced));
        }
        let invalid_costs = planned.iter().map(PlannedItem::invalid_costs).sum();
        let lacks_key = planned.iter().any(PlannedItem::lacks_key);
        let takes_lease = planned.charges().any(|planned| takes_lease(&planned.charge));
        let lease = match takes_lease {
            true => lease::random_id(),
            false => LeaseId::default(),
        };
        let now = self.settle(&mut planned, lease).await;
        let allowed = planned.is_allowed();
        let has_refunds = items.iter().any(|item| item.direction == Direction::Refund);
        let items = match has_refunds {
            false => planned
                .into_iter()
                .filter_map(|planned| self.item_verdict(planned))
                .collect(),
            true => {
                // Concurrently, within one deadline.
                let each = items.iter().zip(planned);
                join_all(each.map(|(item, planned)| self.refund_or_verdict(item, planned, allowed))).await
            }
        };
        CombinedVerdict {
            allowed,
            items,
            invalid_costs,
            lacks_key,
            now,
        }
    }

    fn plan_item(&self, item: &AttemptItem<'_>) -> PlannedItem<'_, S::Key> {
        match (item.direction, item.inline_limit) {
            (Direction::Refund, Some(_)) => PlannedItem::Refund(None),
            (Direction::Refund, None) => PlannedItem::Refund(Some(self.plan(&item.attempt))),
            (Direction::Consume, Some(limit)) => {
                PlannedItem::Inline(self.plan_inline(&item.attempt, limit, item.attempt.cost))
            }
            (Direction::Consume, None) => PlannedItem::Rules(self.plan(&item.attempt)),
        }
    }

    /// The verdict of a settled item. None for a refund.
    fn item_verdict<'r>(&self, planned: PlannedItem<'r, S::Key>) -> Option<ItemVerdict<'r>> {
        match planned {
            PlannedItem::Rules(plan) => Some(ItemVerdict::Rules(plan.verdict(S::SOURCE))),
            PlannedItem::Inline(inline) => Some(inline.verdict(S::SOURCE)),
            PlannedItem::Refund(_) => None,
        }
    }

    /// Applies a refund and returns the standings after it; other items have their verdict already.
    async fn refund_or_verdict<'r>(
        &self,
        item: &AttemptItem<'_>,
        planned: PlannedItem<'r, S::Key>,
        allowed: bool,
    ) -> ItemVerdict<'r> {
        let is_applied = self.refund_applies(item, allowed);
        match planned {
            PlannedItem::Rules(plan) => ItemVerdict::Rules(plan.verdict(S::SOURCE)),
            PlannedItem::Inline(inline) => inline.verdict(S::SOURCE),
            PlannedItem::Refund(Some(mut plan)) => {
                if !is_applied {
                    let charges = plan.charges_mut().map(|planned| &mut planned.charge);
                    charges.for_each(|charge| *charge = charge.as_peek());
                }
                ItemVerdict::Rules(self.refund_plan(plan).await)
            }
            PlannedItem::Refund(None) => {
                let cost = if is_applied { item.attempt.cost } else { Cost::ZERO };
                self.refund_inline(item, cost).await
            }
        }
    }

    /// Refunds an inline limit and returns its standing.
    async fn refund_inline<'r>(&self, item: &AttemptItem<'_>, cost: Cost) -> ItemVerdict<'r> {
        let limit = item.inline_limit.unwrap_or(InlineLimit::Banned);
        let mut inline = self.plan_inline(&item.attempt, limit, cost);
        match &mut inline.charge {
            Some(planned) => planned.outcome = Some(self.refund_charge(planned).await),
            None => inline.cost = Cost::ZERO,
        }
        inline.verdict(S::SOURCE).into_peek()
    }

    /// True if a refund is applied: if the request is allowed, and in any case where all attempts are counted.
    fn refund_applies(&self, item: &AttemptItem<'_>, allowed: bool) -> bool {
        let descriptors = self.rules.descriptors();
        allowed || !descriptors.options.strict && descriptors.has_domain(item.attempt.domain)
    }

    /// The charge of an inline limit.
    fn plan_inline(&self, attempt: &Attempt<'_>, limit: InlineLimit, cost: Cost) -> InlineCharge<S::Key> {
        let (charged_limit, policy, shared_key) = match limit {
            InlineLimit::Banned => {
                return InlineCharge {
                    limit,
                    cost,
                    charge: None,
                };
            }
            InlineLimit::Limited(limit) => (limit, Policy::Enforce, None),
            InlineLimit::Override(limit) => {
                let key = |counter, per: &[&[u8]]| self.key(counter, per);
                let shared_key = self.rules.counter_for_override(attempt, limit.unit(), key);
                (limit.charged_limit(), limit.policy(), shared_key)
            }
        };
        let mut planned = PlannedCharge::new(Charge {
            key: shared_key.unwrap_or_else(|| self.inline_key(attempt, &charged_limit)),
            limit: charged_limit,
            cost,
            policy,
            on_failure: self.rules.on_store_failure(),
        });
        if let InlineLimit::Override(limit) = limit
            && policy == Policy::Count
            && self.store.counts_hits()
        {
            planned.target = Some(CounterTarget::for_override(attempt, limit.requests()));
        }
        InlineCharge {
            limit,
            cost,
            charge: Some(planned),
        }
    }

    /// The key of an inline limit's own counter.
    fn inline_key(&self, attempt: &Attempt<'_>, limit: &Limit) -> S::Key {
        let template = self.store.template(&Counter {
            domain: attempt.domain,
            rule: INLINE_RULE,
            variant: "",
            limit,
            per: &[],
        });
        let entries = attempt.attributes.iter();
        let per: Vec<&[u8]> = entries.flat_map(|entry| [entry.name.as_bytes(), entry.value]).collect();
        self.store.key(&template, &per)
    }
}

/// The rule id in the counter of an inline limit: no rule's id has a space in it.
const INLINE_RULE: &str = "inline limit";

impl<K> InlineCharge<K> {
    /// Its verdict by the recorded outcome. `default` is the source of a verdict that needs no store.
    fn verdict<'r>(&self, default: Source) -> ItemVerdict<'r> {
        let Some(planned) = &self.charge else {
            return ItemVerdict::Inline(Some(Decision::banned(self.cost)), default, None);
        };
        match (planned.outcome, self.limit) {
            (Some(Ok(outcome)), InlineLimit::Override(limit)) => {
                let (decision, after) = limit.counting().decide(outcome.decision);
                let count = after.map(|after| WindowCount {
                    after,
                    includes_attempt: outcome.receipt.cost > Cost::ZERO,
                });
                ItemVerdict::Inline(Some(decision), outcome.source, count)
            }
            (Some(Ok(outcome)), _) => ItemVerdict::Inline(Some(outcome.decision), outcome.source, None),
            (Some(Err(Undecided::Skipped)), _) => ItemVerdict::Inline(None, default, None),
            (Some(Err(Undecided::Failed)) | None, _) => {
                ItemVerdict::Inline(None, undecided_source(&planned.charge), None)
            }
        }
    }
}

impl<'r, K> PlannedItem<'r, K> {
    fn plan(&self) -> Option<&Plan<'r, K>> {
        match self {
            Self::Rules(plan) => Some(plan),
            Self::Refund(plan) => plan.as_ref(),
            Self::Inline(_) => None,
        }
    }

    /// The plan of an item that is settled.
    const fn settled_plan(&self) -> Option<&Plan<'r, K>> {
        match self {
            Self::Rules(plan) => Some(plan),
            Self::Inline(_) | Self::Refund(_) => None,
        }
    }

    fn plan_mut(&mut self) -> Option<&mut Plan<'r, K>> {
        match self {
            Self::Rules(plan) => Some(plan),
            Self::Refund(plan) => plan.as_mut(),
            Self::Inline(_) => None,
        }
    }

    /// The names of the rules that it replaces.
    fn replaced_limits(&self) -> impl Iterator<Item = &'r str> {
        self.plan().into_iter().flat_map(Plan::replaced_limits)
    }

    fn invalid_costs(&self) -> u32 {
        match self {
            Self::Rules(plan) => plan.invalid_costs,
            Self::Inline(_) | Self::Refund(_) => 0,
        }
    }

    fn lacks_key(&self) -> bool {
        matches!(self, Self::Rules(plan) if plan.lacks_key)
    }
}

impl<K> RequestCharges<K> for Vec<PlannedItem<'_, K>> {
    fn charges<'p>(&'p self) -> impl Iterator<Item = &'p PlannedCharge<K>>
    where
        K: 'p,
    {
        self.iter().flat_map(|item| {
            let (plan, inline) = match item {
                PlannedItem::Rules(plan) => (Some(plan), None),
                PlannedItem::Inline(inline) => (None, inline.charge.as_ref()),
                PlannedItem::Refund(_) => (None, None),
            };
            plan.into_iter().flat_map(Plan::charges).chain(inline)
        })
    }

    fn charges_mut<'p>(&'p mut self) -> impl Iterator<Item = &'p mut PlannedCharge<K>>
    where
        K: 'p,
    {
        self.iter_mut().flat_map(|item| {
            let (plan, inline) = match item {
                PlannedItem::Rules(plan) => (Some(plan), None),
                PlannedItem::Inline(inline) => (None, inline.charge.as_mut()),
                PlannedItem::Refund(_) => (None, None),
            };
            plan.into_iter().flat_map(Plan::charges_mut).chain(inline)
        })
    }

    /// Every item passes, except that quotas deny only together.
    fn is_allowed(&self) -> bool {
        let (mut quotas, mut exceeded) = (0, 0);
        for item in self {
            let (is_quota, is_allowed) = match item {
                PlannedItem::Rules(plan) => (plan.is_quota(), plan.is_allowed()),
                PlannedItem::Inline(inline) => (false, inline.verdict(Source::Memory).is_allow()),
                PlannedItem::Refund(_) => continue,
            };
            match (is_quota, is_allowed) {
                (false, false) => return false,
                (false, true) => {}
                (true, is_allowed) => {
                    quotas += 1;
                    exceeded += u32::from(!is_allowed);
                }
            }
        }
        quotas == 0 || exceeded < quotas
    }

    fn has_shadow_reserve(&self) -> bool {
        let mut plans = self.iter().filter_map(PlannedItem::settled_plan);
        plans.any(Plan::has_shadow_reserve)
    }

    fn half_kept_mut<'p>(&'p mut self) -> Vec<&'p mut PlannedCharge<K>>
    where
        K: 'p,
    {
        let plans = self.iter_mut().filter_map(|item| match item {
            PlannedItem::Rules(plan) => Some(plan),
            PlannedItem::Inline(_) | PlannedItem::Refund(_) => None,
        });
        plans.flat_map(Plan::half_kept_mut).collect()
    }

    fn is_banned(&self) -> bool {
        self.iter().any(|item| match item {
            PlannedItem::Rules(plan) => plan.is_banned(),
            PlannedItem::Inline(inline) => inline.charge.is_none() && inline.cost > Cost::ZERO,
            PlannedItem::Refund(_) => false,
        })
    }
}

impl ItemVerdict<'_> {
    /// True if a quota applies to it.
    pub fn is_quota(&self) -> bool {
        matches!(self, Self::Rules(verdict) if verdict.rulings.iter().any(|ruling| ruling.rule.is_quota()))
    }

    /// True if its own limits allow the item.
    pub fn is_allow(&self) -> bool {
        match self {
            Self::Rules(verdict) => verdict.allowed,
            Self::Inline(Some(decision), ..) => decision.is_allow(),
            Self::Inline(None, source, _) => *source != Source::Closed,
        }
    }

    /// The verdict of an item that consumes nothing: it is always allowed.
    fn into_peek(self) -> Self {
        match self {
            Self::Inline(None, Source::Closed, counted) => Self::Inline(None, Source::Open, counted),
            Self::Inline(decision, source, counted) => Self::Inline(decision.map(Decision::as_peek), source, counted),
            rules @ Self::Rules(_) => rules,
        }
    }
}
