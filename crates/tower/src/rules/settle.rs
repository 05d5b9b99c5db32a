//! The settlement of a request by rules, as an admission.

use super::open_charge::RuleCharge;
use super::{ActiveRules, OwnedAttempt, RulesInner};
use crate::admission::answer::{Answer, DenialAnswer, HEADERS};
use crate::admission::denial::DenialKind;
use crate::admission::{Admission, Grant, OpenCharge};
use crate::headers::{HeaderPolicy, SpreadDenial};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tollgate_limiter::core::rules::{Attempt, DenialReason, Mode, Ruling, Verdict};
use tollgate_limiter::core::{Cost, Micros, Retry, Timestamp};
use tollgate_limiter::store::CounterStore;

impl<S: CounterStore + 'static> RulesInner<S> {
    /// Settles the rules that apply to a request.
    pub(super) async fn settle(self: Arc<Self>, owned: OwnedAttempt) -> Admission {
        let owned = at_least_one(owned, self.options.cost.as_deref());
        let active = self.active();
        let (admission, uncharged) = {
            let attributes = owned.attributes();
            let attempt = Attempt {
                domain: &self.options.domain,
                attributes: &attributes,
                cost: Cost::ONE,
            };
            let (result, permit) = active.limiter.acquire(&attempt).await;
            if result.lacks_key {
                self.missing_keys.fetch_add(1, Ordering::Relaxed);
            }
            let verdict = &result.verdict;
            let answer = answer(verdict, result.now);
            if !verdict.allowed {
                let denial = self.denial(&active, &attempt, verdict, &owned);
                return Admission::Deny(Box::new(answer.deny(&self.options.settings, denial)));
            }
            let rules = active.limiter.rules();
            self.queues.count_admitted(&active.queues, rules, &attempt, verdict);
            if let Some(permit) = &permit {
                self.renewer.keep(permit);
            }
            let grant = Grant {
                headers: answer.headers(self.options.settings.dialects, HEADERS),
                permit: permit.map(Into::into),
                charge: None,
            };
            let admission = match verdict.delay {
                Micros::ZERO => Admission::Admit(grant),
                delay => Admission::Delay(delay.into(), grant),
            };
            (admission, uncharged_rules(verdict))
        };
        let is_delayed = matches!(admission, Admission::Delay(..));
        let charge = (self.options.cost.is_some() || is_delayed)
            .then(|| Box::new(RuleCharge::new(Arc::clone(&self), active, owned, uncharged)) as Box<dyn OpenCharge>);
        match admission {
            Admission::Admit(grant) => Admission::Admit(Grant { charge, ..grant }),
            Admission::Delay(delay, grant) => Admission::Delay(delay, Grant { charge, ..grant }),
            denied @ Admission::Deny(_) => denied,
        }
    }

    fn denial<'r>(
        &self,
        active: &ActiveRules<S>,
        attempt: &Attempt<'_>,
        verdict: &'r Verdict<'_>,
        owned: &OwnedAttempt,
    ) -> DenialAnswer<'r> {
        let violated = || {
            let enforced = verdict.rulings.iter().filter(|ruling| ruling.mode == Mode::Enforce);
            enforced.filter(|ruling| !ruling.is_allow())
        };
        let waits = violated().filter_map(|ruling| Some((ruling, wait(ruling)?)));
        let order = |(_, retry): &(&Ruling<'_>, Retry)| match retry {
            // A limit without a known wait does not shorten that of another.
            Retry::Unknown => (0, Micros::ZERO),
            Retry::After(wait) => (1, *wait),
            Retry::Never => (2, Micros::ZERO),
        };
        let longest = waits.max_by_key(order);
        let (retry, extra) = match longest {
            Some((ruling, retry)) => (retry, self.extra(active, attempt, ruling, owned)),
            None => (Retry::Unknown, Micros::ZERO),
        };
        let reason = verdict.nearest().and_then(|ruling| {
            let reason: DenialReason = ruling.denial_reason()?;
            Some((HeaderPolicy::of_any_mode(ruling)?, reason))
        });
        // Nothing but reserves for others denies.
        let is_reserved = violated().next().is_some() && violated().all(|ruling| ruling.reserved);
        DenialAnswer {
            reason,
            retry,
            extra,
            kind: match verdict.is_closed() || is_reserved {
                true => DenialKind::Reduced,
                false => DenialKind::Limited,
            },
            reserved: is_reserved,
            policies: violated().map(|ruling| ruling.name.into()).collect(),
        }
    }

    /// The extra wait of a denied caller, where the rule spreads retries.
    fn extra(
        &self,
        active: &ActiveRules<S>,
        attempt: &Attempt<'_>,
        ruling: &Ruling<'_>,
        owned: &OwnedAttempt,
    ) -> Micros {
        let settings = self.options.settings.retry_after;
        if !ruling.rule.spreads_retries(settings.spread) {
            return Micros::ZERO;
        }
        let instances = u64::from(active.limiter.store().instance_count());
        let denial = SpreadDenial {
            ruling,
            caller: owned.caller,
            instances: NonZeroU64::new(instances).unwrap_or(NonZeroU64::MIN),
            extra_max: settings.spread_max,
        };
        self.queues
            .extra(&active.queues, active.limiter.rules(), attempt, &denial)
    }
}

/// Raises a predicted cost of zero to one: zero passes a limit that is used up, and often the caller writes what is predicted.
fn at_least_one(mut owned: OwnedAttempt, cost: Option<&str>) -> OwnedAttempt {
    for (name, value) in &mut owned.attributes {
        if Some(&**name) == cost && !value.is_empty() && value.iter().all(|digit| *digit == b'0') {
            *value = b"1".to_vec();
        }
    }
    owned
}

fn answer<'r>(verdict: &'r Verdict<'_>, now: Option<Timestamp>) -> Answer<'r> {
    Answer {
        policies: verdict.rulings.iter().filter_map(HeaderPolicy::from_ruling).collect(),
        nearest: verdict.nearest().and_then(HeaderPolicy::from_ruling),
        cost: Cost::ONE,
        now: now.unwrap_or(Timestamp::EPOCH),
    }
}

/// The time until a denied request would pass; unknown if the store could not decide.
fn wait(ruling: &Ruling<'_>) -> Option<Retry> {
    match &ruling.decision {
        Some(decision) => decision.retry(),
        None => Some(Retry::Unknown),
    }
}

/// The rules that did not charge an admitted request: shadows that would have denied it, and those the store could not
/// decide.
fn uncharged_rules(verdict: &Verdict<'_>) -> Vec<Box<str>> {
    let uncharged = verdict
        .rulings
        .iter()
        .filter(|ruling| ruling.window.is_some() && !ruling.decision.is_some_and(|decision| decision.is_allow()));
    uncharged.map(|ruling| ruling.rule.id().into()).collect()
}
