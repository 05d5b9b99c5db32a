//! Several attempts of one request, settled as one: all of them go on, or none does.

use super::{HitCharge, RuleLimiter, charge_results, takes_lease};
use crate::store::{CounterStore, Hit, HitOp, Settlement};
use crate::{join, lease};
use tollgate_core::rules::ratelimit::{CounterTarget, LimitOverride};
use tollgate_core::rules::{Attempt, ChargeResult, Plan, Ruling, Verdict, WindowCount};
use tollgate_core::{Charge, Cost, Counter, Decision, LeaseId, Limit, OnStoreFailure, Policy, Source, Timestamp};

/// One attempt of a request that makes several.
#[derive(Clone, Copy, Debug)]
pub struct AttemptItem<'a> {
    /// What is attempted.
    pub attempt: Attempt<'a>,
    /// What its cost is for.
    pub direction: Direction,
    /// What holds instead of the rules, if the caller brings a limit of his own.
    pub inline_limit: Option<InlineLimit>,
}

/// What a cost is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It is taken.
    Consume,
    /// It is given back, never above full. It never refuses.
    Refund,
}

/// A limit that a caller brings along. It has a counter of its own for each domain and list of attributes, or that of the
/// descriptor whose place it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineLimit {
    /// So much.
    Limited(Limit),
    /// Nothing passes.
    Banned,
    /// So much, in the place of a descriptor of envoyproxy/ratelimit.
    Override(LimitOverride),
}

/// What the parts of a request came to.
#[derive(Debug)]
pub struct CombinedVerdict<'r> {
    /// Whether the request may go on: every part may, but for quotas, which refuse only all together. Otherwise nothing was
    /// taken and nothing given back, except of descriptors of envoyproxy/ratelimit that are not strict: they are counted each
    /// by itself.
    pub allowed: bool,
    /// For each part, in order, what its own limits say.
    pub items: Vec<ItemVerdict<'r>>,
    /// How often a cost attribute was not a whole number, and the default was charged.
    pub invalid_costs: u32,
    /// The store's time when it was settled. Nothing if nothing had to be.
    pub now: Option<Timestamp>,
}

/// What the limits of one part say.
#[derive(Debug)]
pub enum ItemVerdict<'r> {
    /// The rules do.
    Rules(Verdict<'r>),
    /// The limit it brought does. Nothing is decided if the store could not be asked, or another part was refused without
    /// asking for this one: then it passes, unless its source is [`Source::Closed`]. Last what its window holds with this
    /// part, where what is refused is counted too.
    Inline(Option<Decision>, Source, Option<WindowCount>),
}

/// What a part is to be charged for.
enum PlannedItem<'r, K> {
    Rules(Plan<'r, K>),
    Inline(Cost, InlineLimit),
    /// Is done when the others are settled. Nothing is planned for a limit that it brought.
    Refund(Option<Plan<'r, K>>),
}

impl<S: CounterStore> RuleLimiter<S> {
    /// May all of these attempts go on? If so, every rule that one of them meets is charged; if not, none is. Attempts that
    /// meet the same counter add up. Descriptors of envoyproxy/ratelimit that are not strict are counted in any case.
    ///
    /// What is to be given back is given when the others have passed, or in any case where refusals are counted.
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
                now: result.now,
                items: vec![ItemVerdict::Rules(result.verdict)],
            };
        }
        let mut planned: Vec<PlannedItem<'_, S::Key>> = items.iter().map(|item| self.plan_item(item)).collect();
        let mut charges: Vec<Charge<S::Key>> = Vec::new();
        let mut hit_charges: Vec<HitCharge> = Vec::new();
        let replaced: Vec<&str> = planned.iter().flat_map(PlannedItem::replaced_limits).collect();
        for (planned_item, item) in planned.iter_mut().zip(items) {
            match planned_item {
                PlannedItem::Rules(plan) => {
                    if !replaced.is_empty() {
                        plan.drop_replaced(&replaced);
                    }
                    hit_charges.extend(self.hit_charge(&item.attempt, plan, charges.len()));
                    charges.append(&mut plan.charges);
                }
                PlannedItem::Inline(cost, inline_limit) => {
                    hit_charges.extend(self.inline_hit(&item.attempt, inline_limit, charges.len()));
                    charges.extend(self.inline_charge(&item.attempt, inline_limit, *cost));
                }
                PlannedItem::Refund(Some(plan)) => plan.drop_replaced(&replaced),
                PlannedItem::Refund(None) => {}
            }
        }
        let invalid_costs = planned.iter().map(PlannedItem::invalid_costs).sum();
        let is_banned = planned.iter().any(PlannedItem::is_banned);
        let mut settlement = self.settle_or_peek(&charges, &hit_charges, is_banned).await;
        let mut verdicts = self.item_verdicts(&planned, settlement.as_ref());
        if let Some(settlement) = &mut settlement
            && !is_banned
            && !is_allowed(&verdicts)
            && !settlement.is_denied(&charges)
        {
            // A rule is closed because its part of the store is away; another part has taken charges.
            self.store.compensate(&charges, settlement).await;
            verdicts = self.item_verdicts(&planned, Some(settlement));
        }
        let allowed = is_allowed(&verdicts);
        // All at once, within one deadline.
        let refunds = items
            .iter()
            .zip(planned)
            .zip(&verdicts)
            .filter(|(_, verdict)| verdict.is_none());
        let refunding = refunds.map(|((item, planned_item), _)| async move {
            match planned_item {
                PlannedItem::Refund(Some(plan)) => self.refund_item(item, plan, allowed).await,
                _ => self.refund_inline(item, allowed).await,
            }
        });
        let mut refunded = join::all(refunding).await.into_iter();
        CombinedVerdict {
            allowed,
            items: verdicts
                .into_iter()
                .filter_map(|verdict| verdict.or_else(|| refunded.next()))
                .collect(),
            invalid_costs,
            now: settlement.map(|settlement| settlement.now),
        }
    }

    fn plan_item(&self, item: &AttemptItem<'_>) -> PlannedItem<'_, S::Key> {
        match (item.direction, item.inline_limit) {
            (Direction::Refund, Some(_)) => PlannedItem::Refund(None),
            (Direction::Refund, None) => PlannedItem::Refund(Some(self.plan(&item.attempt))),
            (Direction::Consume, Some(inline_limit)) => PlannedItem::Inline(item.attempt.cost, inline_limit),
            (Direction::Consume, None) => PlannedItem::Rules(self.plan(&item.attempt)),
        }
    }

    /// Settles them, unless one of the attempts is banned, or there is nothing to settle.
    async fn settle_or_peek(
        &self,
        charges: &[Charge<S::Key>],
        hit_charges: &[HitCharge],
        is_banned: bool,
    ) -> Option<Settlement> {
        if charges.is_empty() {
            return None;
        }
        if is_banned {
            return Some(self.peek_attempt(charges, hit_charges, is_banned).await);
        }
        let lease = match charges.iter().any(takes_lease) {
            true => lease::random_id(),
            false => LeaseId::default(),
        };
        Some(self.settle(charges, hit_charges, lease).await)
    }

    /// Gives the cost of a part back if the request goes on, and tells how its limits stand.
    async fn refund_item<'r>(
        &self,
        item: &AttemptItem<'_>,
        mut plan: Plan<'r, S::Key>,
        allowed: bool,
    ) -> ItemVerdict<'r> {
        if !self.refund_applies(item, allowed) {
            for charge in &mut plan.charges {
                *charge = charge.as_peek();
            }
        }
        ItemVerdict::Rules(self.refund_plan(&item.attempt, &plan).await)
    }

    /// The same for a part that brought a limit.
    async fn refund_inline(&self, item: &AttemptItem<'_>, allowed: bool) -> ItemVerdict<'_> {
        let attempt = &item.attempt;
        let cost = match self.refund_applies(item, allowed) {
            true => attempt.cost,
            false => Cost::ZERO,
        };
        let inline_limit = item.inline_limit.as_ref();
        let Some((inline_limit, charge)) = inline_limit
            .and_then(|inline_limit| Some((inline_limit, self.inline_charge(attempt, inline_limit, cost)?)))
        else {
            return ItemVerdict::Inline(Some(Decision::banned(Cost::ZERO)), S::SOURCE, None);
        };
        let result = match self.inline_hit(attempt, inline_limit, 0) {
            Some((_, target)) => {
                let (charge, target) = (&charge, &target);
                let settlement = self
                    .store
                    .hit(
                        &[Hit {
                            charge,
                            counting: target,
                        }],
                        HitOp::Decrement,
                    )
                    .await;
                charge_results(&settlement).next().unwrap_or(ChargeResult::Failed)
            }
            None => {
                let standing = self.store.refund(&charge).await;
                standing.map_or(ChargeResult::Failed, |(decision, source)| {
                    ChargeResult::Decided(decision, source)
                })
            }
        };
        self.inline_verdict(inline_limit, result).as_peek()
    }

    /// Whether what a part gives back is given: if the request goes on, and where every descriptor is counted by itself in
    /// any case.
    fn refund_applies(&self, item: &AttemptItem<'_>, allowed: bool) -> bool {
        let descriptors = self.rules.descriptors();
        allowed || !descriptors.options.strict && descriptors.has_domain(item.attempt.domain)
    }

    /// What the limits of each part say, as far as they were asked. The answers stand in the order of the parts.
    fn item_verdicts<'r>(
        &self,
        planned: &[PlannedItem<'r, S::Key>],
        settlement: Option<&Settlement>,
    ) -> Vec<Option<ItemVerdict<'r>>> {
        let mut results = settlement.into_iter().flat_map(charge_results);
        let each = planned.iter().map(|planned_item| match planned_item {
            PlannedItem::Rules(plan) => Some(ItemVerdict::Rules(plan.verdict(S::SOURCE, &mut results))),
            PlannedItem::Inline(cost, InlineLimit::Banned) => {
                Some(ItemVerdict::Inline(Some(Decision::banned(*cost)), S::SOURCE, None))
            }
            PlannedItem::Inline(_, inline_limit) => {
                Some(self.inline_verdict(inline_limit, results.next().unwrap_or(ChargeResult::Failed)))
            }
            PlannedItem::Refund(_) => None,
        });
        each.collect()
    }

    /// What a limit says that a caller brings. Where this instance decides nothing on its own, none passes without the store.
    fn inline_verdict<'r>(&self, inline_limit: &InlineLimit, result: ChargeResult) -> ItemVerdict<'r> {
        match (result, inline_limit) {
            (
                ChargeResult::Decided(decision, source) | ChargeResult::Uncounted(decision, source),
                InlineLimit::Override(limit_override),
            ) => {
                let (decision, after) = limit_override.apply_limit(decision);
                let includes_attempt = matches!(result, ChargeResult::Decided(..));
                ItemVerdict::Inline(
                    Some(decision),
                    source,
                    after.map(|after| WindowCount {
                        after,
                        includes_attempt,
                    }),
                )
            }
            (ChargeResult::Decided(decision, source) | ChargeResult::Uncounted(decision, source), _) => {
                ItemVerdict::Inline(Some(decision), source, None)
            }
            (ChargeResult::Failed, _) => {
                let source = match self.rules.on_store_failure() {
                    OnStoreFailure::Closed => Source::Closed,
                    OnStoreFailure::Local | OnStoreFailure::Open { .. } => Source::Open,
                };
                ItemVerdict::Inline(None, source, None)
            }
            (ChargeResult::Skipped, _) => ItemVerdict::Inline(None, S::SOURCE, None),
        }
    }

    /// What a limit that a caller brings is charged for, unless it lets nothing pass.
    fn inline_charge(&self, attempt: &Attempt<'_>, inline_limit: &InlineLimit, cost: Cost) -> Option<Charge<S::Key>> {
        let (limit, policy, shared_key) = match inline_limit {
            InlineLimit::Banned => return None,
            InlineLimit::Limited(limit) => (*limit, Policy::Enforce, None),
            InlineLimit::Override(limit_override) => {
                let shared_key = self
                    .rules
                    .counter_for_override(attempt, limit_override.unit(), |counter, per| self.key(counter, per));
                (limit_override.counting_limit(), limit_override.policy(), shared_key)
            }
        };
        Some(Charge {
            key: shared_key.unwrap_or_else(|| self.inline_key(attempt, &limit)),
            limit,
            cost,
            policy,
            on_failure: self.rules.on_store_failure(),
        })
    }

    /// How the charge of a limit that a caller brings is counted, if it is: at this place among all.
    fn inline_hit(&self, attempt: &Attempt<'_>, inline_limit: &InlineLimit, index: usize) -> Option<HitCharge> {
        match inline_limit {
            InlineLimit::Override(limit_override)
                if self.store.counts_hits() && limit_override.policy() == Policy::Count =>
            {
                Some((index, CounterTarget::for_override(attempt, limit_override.requests())))
            }
            _ => None,
        }
    }

    /// The counter of a limit that a caller brings: no rule's, whatever its id.
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

/// What stands for the rule's id in the counter of a limit that a caller brings: no id has a space in it.
const INLINE_RULE: &str = "inline limit";

impl<'r, K> PlannedItem<'r, K> {
    /// The names of limits that do not hold because of it.
    fn replaced_limits(&self) -> impl Iterator<Item = &'r str> {
        let plan = match self {
            Self::Rules(plan) => Some(plan),
            Self::Refund(plan) => plan.as_ref(),
            Self::Inline(..) => None,
        };
        plan.into_iter().flat_map(Plan::replaced_limits)
    }

    fn invalid_costs(&self) -> u32 {
        match self {
            Self::Rules(plan) => plan.invalid_costs,
            Self::Inline(..) | Self::Refund(_) => 0,
        }
    }

    fn is_banned(&self) -> bool {
        match self {
            Self::Rules(plan) => plan.is_banned(),
            Self::Inline(cost, InlineLimit::Banned) => *cost > Cost::ZERO,
            Self::Inline(_, InlineLimit::Limited(_) | InlineLimit::Override(_)) | Self::Refund(_) => false,
        }
    }
}

/// Whether the request goes on: every part does, except that quotas refuse only all together.
fn is_allowed(verdicts: &[Option<ItemVerdict<'_>>]) -> bool {
    let (mut quotas, mut spent) = (0, 0);
    for verdict in verdicts.iter().flatten() {
        match (verdict.is_quota(), verdict.is_allow()) {
            (false, false) => return false,
            (false, true) => {}
            (true, is_allow) => {
                quotas += 1;
                spent += u32::from(!is_allow);
            }
        }
    }
    quotas == 0 || spent < quotas
}

impl ItemVerdict<'_> {
    /// Whether it is held to a quota.
    pub fn is_quota(&self) -> bool {
        let is_quota_ruling =
            |ruling: &Ruling<'_>| ruling.rule.descriptor().is_some_and(|descriptor| descriptor.is_quota);
        matches!(self, Self::Rules(verdict) if verdict.rulings.iter().any(is_quota_ruling))
    }

    /// Whether its own limits let the part pass.
    pub fn is_allow(&self) -> bool {
        match self {
            Self::Rules(verdict) => verdict.allowed,
            Self::Inline(Some(decision), ..) => decision.is_allow(),
            Self::Inline(None, source, _) => *source != Source::Closed,
        }
    }

    /// The same of a part that takes nothing: how a limit stands refuses nothing.
    fn as_peek(self) -> Self {
        match self {
            Self::Inline(None, Source::Closed, counted) => Self::Inline(None, Source::Open, counted),
            Self::Inline(decision, source, counted) => Self::Inline(decision.map(Decision::as_peek), source, counted),
            rules @ Self::Rules(_) => rules,
        }
    }
}
