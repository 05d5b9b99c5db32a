//! Several attempts of one request, settled as one: all of them go on, or none does.

use super::{Counted, RuleBook, answers, is_leased};
use crate::store::{HitOp, Hit, Settled, Store};
use crate::{join, lease};
use tollgate_core::rules::envoy::{LimitOverride, CounterTarget};
use tollgate_core::rules::{ChargeResult, Attempt, WindowCount, Plan, Ruling, Verdict};
use tollgate_core::{Charge, Cost, Counter, Decision, LeaseId, Limit, OnStoreFailure, Policy, Source, Timestamp};

/// One attempt of a request that makes several.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// What is attempted.
    pub attempt: Attempt<'a>,
    /// What its cost is for.
    pub way: Way,
    /// What holds instead of the rules, if the caller brings a limit of his own.
    pub own: Option<OwnLimit>,
}

/// What a cost is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is taken.
    Take,
    /// It is given back, never above full. It never refuses.
    GiveBack,
}

/// A limit that a caller brings along. It has a counter of its own for each domain and list of attributes, or that of the
/// descriptor whose place it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnLimit {
    /// So much.
    Limited(Limit),
    /// Nothing passes.
    Banned,
    /// So much, in the place of a descriptor of envoyproxy/ratelimit.
    Descriptor(LimitOverride),
}

/// What the parts of a request came to.
#[derive(Debug)]
pub struct Together<'r> {
    /// Whether the request may go on: every part may, but for quotas, which refuse only all together. Otherwise nothing was
    /// taken and nothing given back, except of descriptors of envoyproxy/ratelimit that are not strict: they are counted each
    /// by itself.
    pub allowed: bool,
    /// For each part, in order, what its own limits say.
    pub parts: Vec<Judged<'r>>,
    /// How often a cost attribute was not a whole number, and the default was charged.
    pub odd_costs: u32,
    /// The store's time when it was settled. Nothing if nothing had to be.
    pub now: Option<Timestamp>,
}

/// What the limits of one part say.
#[derive(Debug)]
pub enum Judged<'r> {
    /// The rules do.
    Rules(Verdict<'r>),
    /// The limit it brought does. Nothing is decided if the store could not be asked, or another part was refused without
    /// asking for this one: then it passes, unless its source is [`Source::Closed`]. Last what its window holds with this
    /// part, where what is refused is counted too.
    Own(Option<Decision>, Source, Option<WindowCount>),
}

/// What a part is to be charged for.
enum Planned<'r, K> {
    Rules(Plan<'r, K>),
    Own(Cost, OwnLimit),
    /// Is done when the others are settled. Nothing is planned for a limit that it brought.
    GiveBack(Option<Plan<'r, K>>),
}

impl<S: Store> RuleBook<S> {
    /// May all of these attempts go on? If so, every rule that one of them meets is charged; if not, none is. Attempts that
    /// meet the same counter add up. Descriptors of envoyproxy/ratelimit that are not strict are counted in any case.
    ///
    /// What is to be given back is given when the others have passed, or in any case where refusals are counted.
    pub async fn check_together(&self, parts: &[Part<'_>]) -> Together<'_> {
        if let [
            Part {
                attempt,
                way: Way::Take,
                own: None,
            },
        ] = parts
        {
            let checked = self.check(attempt).await;
            return Together {
                allowed: checked.verdict.allowed,
                odd_costs: checked.odd_costs,
                now: checked.now,
                parts: vec![Judged::Rules(checked.verdict)],
            };
        }
        let mut planned: Vec<Planned<'_, S::Key>> = parts.iter().map(|part| self.planned(part)).collect();
        let mut charges: Vec<Charge<S::Key>> = Vec::new();
        let mut counted: Vec<Counted> = Vec::new();
        let replaced: Vec<&str> = planned.iter().flat_map(Planned::replaces).collect();
        for (planned, part) in planned.iter_mut().zip(parts) {
            match planned {
                Planned::Rules(plan) => {
                    if !replaced.is_empty() {
                        plan.drop_replaced(&replaced);
                    }
                    counted.extend(self.counted(&part.attempt, plan, charges.len()));
                    charges.append(&mut plan.charges);
                }
                Planned::Own(cost, own) => {
                    counted.extend(self.own_counted(&part.attempt, own, charges.len()));
                    charges.extend(self.own_charge(&part.attempt, own, *cost));
                }
                Planned::GiveBack(Some(plan)) => plan.drop_replaced(&replaced),
                Planned::GiveBack(None) => {}
            }
        }
        let odd_costs = planned.iter().map(Planned::odd_costs).sum();
        let is_banned = planned.iter().any(Planned::is_banned);
        let mut settled = self.settle_or_look(&charges, &counted, is_banned).await;
        let mut judged = self.judge(&planned, settled.as_ref());
        if let Some(settled) = &mut settled
            && !is_banned
            && !is_allowed(&judged)
            && !settled.is_refused(&charges)
        {
            // A rule is closed because its part of the store is away; another part has taken charges.
            self.store.take_back(&charges, settled).await;
            judged = self.judge(&planned, Some(settled));
        }
        let allowed = is_allowed(&judged);
        // All at once, within one deadline.
        let back = parts
            .iter()
            .zip(planned)
            .zip(&judged)
            .filter(|(_, judged)| judged.is_none());
        let given = back.map(|((part, planned), _)| async move {
            match planned {
                Planned::GiveBack(Some(plan)) => self.give_back(part, plan, allowed).await,
                _ => self.give_back_own(part, allowed).await,
            }
        });
        let mut given = join::all(given).await.into_iter();
        Together {
            allowed,
            parts: judged
                .into_iter()
                .filter_map(|judged| judged.or_else(|| given.next()))
                .collect(),
            odd_costs,
            now: settled.map(|settled| settled.now),
        }
    }

    fn planned(&self, part: &Part<'_>) -> Planned<'_, S::Key> {
        match (part.way, part.own) {
            (Way::GiveBack, Some(_)) => Planned::GiveBack(None),
            (Way::GiveBack, None) => Planned::GiveBack(Some(self.plan(&part.attempt))),
            (Way::Take, Some(own)) => Planned::Own(part.attempt.cost, own),
            (Way::Take, None) => Planned::Rules(self.plan(&part.attempt)),
        }
    }

    /// Settles them, unless one of the attempts is banned, or there is nothing to settle.
    async fn settle_or_look(
        &self,
        charges: &[Charge<S::Key>],
        counted: &[Counted],
        is_banned: bool,
    ) -> Option<Settled> {
        if charges.is_empty() {
            return None;
        }
        if is_banned {
            return Some(self.look(charges, counted, is_banned).await);
        }
        let lease = match charges.iter().any(is_leased) {
            true => lease::random_id(),
            false => LeaseId::default(),
        };
        Some(self.settle(charges, counted, lease).await)
    }

    /// Gives the cost of a part back if the request goes on, and tells how its limits stand.
    async fn give_back<'r>(&self, part: &Part<'_>, mut plan: Plan<'r, S::Key>, allowed: bool) -> Judged<'r> {
        if !self.is_given(part, allowed) {
            for charge in &mut plan.charges {
                *charge = charge.as_peek();
            }
        }
        Judged::Rules(self.refund_planned(&part.attempt, &plan).await)
    }

    /// The same for a part that brought a limit.
    async fn give_back_own(&self, part: &Part<'_>, allowed: bool) -> Judged<'_> {
        let attempt = &part.attempt;
        let cost = match self.is_given(part, allowed) {
            true => attempt.cost,
            false => Cost::ZERO,
        };
        let own = part.own.as_ref();
        let Some((own, charge)) = own.and_then(|own| Some((own, self.own_charge(attempt, own, cost)?))) else {
            return Judged::Own(Some(Decision::banned(Cost::ZERO)), S::SOURCE, None);
        };
        let answer = match self.own_counted(attempt, own, 0) {
            Some((_, counting)) => {
                let (charge, counting) = (&charge, &counting);
                let given = self.store.hit(&[Hit { charge, counting }], HitOp::Decrement).await;
                answers(&given).next().unwrap_or(ChargeResult::Failed)
            }
            None => {
                let standing = self.store.refund(&charge).await;
                standing.map_or(ChargeResult::Failed, |(decision, source)| ChargeResult::Decided(decision, source))
            }
        };
        self.judge_own(own, answer).looked_at()
    }

    /// Whether what a part gives back is given: if the request goes on, and where every descriptor is counted by itself in
    /// any case.
    fn is_given(&self, part: &Part<'_>, allowed: bool) -> bool {
        let descriptors = self.rules.descriptors();
        allowed || !descriptors.options.strict && descriptors.has_domain(part.attempt.domain)
    }

    /// What the limits of each part say, as far as they were asked. The answers stand in the order of the parts.
    fn judge<'r>(&self, planned: &[Planned<'r, S::Key>], settled: Option<&Settled>) -> Vec<Option<Judged<'r>>> {
        let mut answers = settled.into_iter().flat_map(answers);
        let each = planned.iter().map(|planned| match planned {
            Planned::Rules(plan) => Some(Judged::Rules(plan.verdict(S::SOURCE, &mut answers))),
            Planned::Own(cost, OwnLimit::Banned) => Some(Judged::Own(Some(Decision::banned(*cost)), S::SOURCE, None)),
            Planned::Own(_, own) => Some(self.judge_own(own, answers.next().unwrap_or(ChargeResult::Failed))),
            Planned::GiveBack(_) => None,
        });
        each.collect()
    }

    /// What a limit says that a caller brings. Where this instance decides nothing on its own, none passes without the store.
    fn judge_own<'r>(&self, own: &OwnLimit, answer: ChargeResult) -> Judged<'r> {
        match (answer, own) {
            (
                ChargeResult::Decided(decision, source) | ChargeResult::Uncounted(decision, source),
                OwnLimit::Descriptor(brought),
            ) => {
                let (decision, after) = brought.apply_limit(decision);
                let has_attempt = matches!(answer, ChargeResult::Decided(..));
                Judged::Own(Some(decision), source, after.map(|after| WindowCount { after, includes_attempt: has_attempt }))
            }
            (ChargeResult::Decided(decision, source) | ChargeResult::Uncounted(decision, source), _) => {
                Judged::Own(Some(decision), source, None)
            }
            (ChargeResult::Failed, _) => {
                let source = match self.rules.on_store_failure() {
                    OnStoreFailure::Closed => Source::Closed,
                    OnStoreFailure::Local | OnStoreFailure::Open { .. } => Source::Open,
                };
                Judged::Own(None, source, None)
            }
            (ChargeResult::Skipped, _) => Judged::Own(None, S::SOURCE, None),
        }
    }

    /// What a limit that a caller brings is charged for, unless it lets nothing pass.
    fn own_charge(&self, attempt: &Attempt<'_>, own: &OwnLimit, cost: Cost) -> Option<Charge<S::Key>> {
        let (limit, policy, beside) = match own {
            OwnLimit::Banned => return None,
            OwnLimit::Limited(limit) => (*limit, Policy::Enforce, None),
            OwnLimit::Descriptor(brought) => {
                let beside = self
                    .rules
                    .counter_for_override(attempt, brought.unit(), |counter, per| self.key(counter, per));
                (brought.counting_limit(), brought.policy(), beside)
            }
        };
        Some(Charge {
            key: beside.unwrap_or_else(|| self.own_key(attempt, &limit)),
            limit,
            cost,
            policy,
            on_failure: self.rules.on_store_failure(),
        })
    }

    /// How the charge of a limit that a caller brings is counted, if it is: at this place among all.
    fn own_counted(&self, attempt: &Attempt<'_>, own: &OwnLimit, place: usize) -> Option<Counted> {
        match own {
            OwnLimit::Descriptor(brought) if self.store.takes_hits() && brought.policy() == Policy::Count => {
                Some((place, CounterTarget::for_override(attempt, brought.requests())))
            }
            _ => None,
        }
    }

    /// The counter of a limit that a caller brings: no rule's, whatever its id.
    fn own_key(&self, attempt: &Attempt<'_>, limit: &Limit) -> S::Key {
        let subjects = self.store.subjects(&Counter {
            domain: attempt.domain,
            rule: OWN,
            variant: "",
            limit,
            per: &[],
        });
        let entries = attempt.attributes.iter();
        let per: Vec<&[u8]> = entries.flat_map(|entry| [entry.name.as_bytes(), entry.value]).collect();
        self.store.key(&subjects, &per)
    }
}

/// What stands for the rule's id in the counter of a limit that a caller brings: no id has a space in it.
const OWN: &str = "brought along";

impl<'r, K> Planned<'r, K> {
    /// The names of limits that do not hold because of it.
    fn replaces(&self) -> impl Iterator<Item = &'r str> {
        let plan = match self {
            Self::Rules(plan) => Some(plan),
            Self::GiveBack(plan) => plan.as_ref(),
            Self::Own(..) => None,
        };
        plan.into_iter().flat_map(Plan::replaced_limits)
    }

    fn odd_costs(&self) -> u32 {
        match self {
            Self::Rules(plan) => plan.invalid_costs,
            Self::Own(..) | Self::GiveBack(_) => 0,
        }
    }

    fn is_banned(&self) -> bool {
        match self {
            Self::Rules(plan) => plan.is_banned(),
            Self::Own(cost, OwnLimit::Banned) => *cost > Cost::ZERO,
            Self::Own(_, OwnLimit::Limited(_) | OwnLimit::Descriptor(_)) | Self::GiveBack(_) => false,
        }
    }
}

/// Whether the request goes on: every part does, except that quotas refuse only all together.
fn is_allowed(judged: &[Option<Judged<'_>>]) -> bool {
    let (mut quotas, mut spent) = (0, 0);
    for judged in judged.iter().flatten() {
        match (judged.is_quota(), judged.is_allow()) {
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

impl Judged<'_> {
    /// Whether it is held to a quota.
    pub fn is_quota(&self) -> bool {
        let of_rule = |ruling: &Ruling<'_>| ruling.rule.descriptor().is_some_and(|descriptor| descriptor.is_quota);
        matches!(self, Self::Rules(verdict) if verdict.rulings.iter().any(of_rule))
    }

    /// Whether its own limits let the part pass.
    pub fn is_allow(&self) -> bool {
        match self {
            Self::Rules(verdict) => verdict.allowed,
            Self::Own(Some(decision), ..) => decision.is_allow(),
            Self::Own(None, source, _) => *source != Source::Closed,
        }
    }

    /// The same of a part that takes nothing: how a limit stands refuses nothing.
    fn looked_at(self) -> Self {
        match self {
            Self::Own(None, Source::Closed, counted) => Self::Own(None, Source::Open, counted),
            Self::Own(decision, source, counted) => Self::Own(decision.map(Decision::as_peek), source, counted),
            rules @ Self::Rules(_) => rules,
        }
    }
}
