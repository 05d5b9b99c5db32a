//! The reference model: every operation runs on the store and on the core, and all results are compared.

use super::samples::Shape;
use super::{Harness, run};
use crate::store::{Outcome, SettleRequest, Settlement, Store, StoreError};
use std::fmt::Debug;
use tollgate_core::{
    Charge, Cost, Counter, Decision, LeaseId, Limit, Mark, Micros, Now, OnStoreFailure, Policy, Proposal, Receipt,
    State, Timestamp, propose,
};

pub(super) struct ReferenceModel<'b, S: Store> {
    harness: &'b Harness<S>,
    shape: Shape,
    step: &'static str,
    /// The core's state of each key.
    states: Vec<(S::Key, ReferenceState)>,
    /// The store's receipts, with the core's marks of those charges: they differ if the store's instant was another.
    receipts: Vec<(S::Key, Receipt, Mark)>,
    leases: u64,
    answers: u64,
}

#[derive(Default)]
struct ReferenceState {
    state: Option<State>,
    /// Written at an instant that only the store knows: from then on times may differ slightly, units may not.
    inexact: bool,
}

/// Polls of the time before a clock counts as stopped.
const POLLS_MAX: u32 = 10_000;

impl<'b, S: Store> ReferenceModel<'b, S> {
    pub(super) fn new(harness: &'b Harness<S>, shape: Shape) -> Self {
        Self {
            harness,
            shape,
            step: "",
            states: Vec::new(),
            receipts: Vec::new(),
            leases: crate::lease::random_id().0,
            answers: 0,
        }
    }

    pub(super) fn start_step(&mut self, step: &'static str) {
        self.step = step;
        self.states.clear();
        self.receipts.clear();
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn harness(&self) -> &'b Harness<S> {
        self.harness
    }

    /// The key of a counter of this step, for a subject of its own: stores may place subjects on different nodes.
    pub(super) fn key(&self, rule: &str, limit: &Limit) -> S::Key {
        self.key_of(rule, "", limit, &[rule.as_bytes()])
    }

    pub(super) fn key_of(&self, rule: &str, variant: &str, limit: &Limit, per: &[&[u8]]) -> S::Key {
        let rule = format!("{}/{}/{rule}", self.shape.name(), self.step);
        let counter = Counter {
            domain: &self.harness.domain,
            rule: &rule,
            variant,
            limit,
            per: &[],
        };
        self.harness.store.key(&self.harness.store.template(&counter), per)
    }

    /// A new lease id.
    pub(super) fn lease(&mut self) -> LeaseId {
        self.leases = self.leases.wrapping_add(1);
        LeaseId(self.leases)
    }

    pub(super) fn mismatch(&self, what: &str, expected: impl Debug, got: impl Debug) -> String {
        format!(
            "{}: {}: {what}: expected {expected:?}, got {got:?}",
            self.shape.name(),
            self.step
        )
    }

    /// Fails unless both are equal.
    pub(super) fn expect_equal<T: PartialEq + Debug>(&mut self, what: &str, expected: T, got: T) -> Result<(), String> {
        self.answers += 1;
        if expected == got {
            Ok(())
        } else {
            Err(self.mismatch(what, expected, got))
        }
    }

    pub(super) async fn settle(&mut self, charges: &[Charge<S::Key>]) -> Result<Settlement, String> {
        let lease = self.lease();
        self.settle_with_lease(charges, lease).await
    }

    pub(super) async fn settle_with_lease(
        &mut self,
        charges: &[Charge<S::Key>],
        lease: LeaseId,
    ) -> Result<Settlement, String> {
        let got = self.harness.store.settle(charges, lease).await;
        self.record(charges, &got, lease)?;
        Ok(got)
    }

    /// Settles several requests in one call, each on its own and in order.
    pub(super) async fn settle_each(&mut self, requests: &[Vec<Charge<S::Key>>]) -> Result<Vec<Settlement>, String> {
        let requests: Vec<SettleRequest<'_, S::Key>> = requests
            .iter()
            .map(|charges| SettleRequest {
                charges,
                lease: self.lease(),
            })
            .collect();
        let got = self.harness.store.settle_each(&requests).await;
        self.expect_equal("number of settlements", requests.len(), got.len())?;
        for (request, got) in requests.iter().zip(&got) {
            self.record(request.charges, got, request.lease)?;
        }
        Ok(got)
    }

    /// Compares a settlement with the core's, and keeps the charges in the core's states.
    fn record(&mut self, charges: &[Charge<S::Key>], got: &Settlement, lease: LeaseId) -> Result<(), String> {
        let expected = self.expected(charges, got.now);
        self.compare("settle", charges, &expected, got, lease)?;
        let cross_slot = self.is_cross_slot(charges);
        for ((charge, outcome), got) in charges.iter().zip(expected.charges).zip(&got.outcomes) {
            if let Ok(got) = got {
                self.receipts.push((charge.key, got.receipt, outcome.mark));
            }
            let reference = self.reference_mut(charge.key);
            if let Some(change) = outcome.change {
                charge.limit.keep(&mut reference.state, change, lease);
            }
            reference.inexact |= cross_slot;
        }
        Ok(())
    }

    /// Settles one charge, and returns its outcome.
    pub(super) async fn settle_one(&mut self, key: S::Key, limit: &Limit, cost: u64) -> Result<ChargeOutcome, String> {
        let settlement = self.settle(&[charge(key, limit, cost)?]).await?;
        self.first(&settlement)
    }

    pub(super) async fn peek(&mut self, charges: &[Charge<S::Key>]) -> Result<Settlement, String> {
        let got = self.harness.store.peek(charges).await;
        let expected = self.expected(charges, got.now);
        self.compare("peek", charges, &expected, &got, LeaseId::default())?;
        Ok(got)
    }

    /// Peeks at a key.
    pub(super) async fn peek_one(&mut self, key: S::Key, limit: &Limit) -> Result<ChargeOutcome, String> {
        let settlement = self.peek(&[charge(key, limit, 0)?]).await?;
        self.first(&settlement)
    }

    /// Fails unless so many units remain.
    pub(super) async fn expect_remaining(&mut self, key: S::Key, limit: &Limit, units: u64) -> Result<(), String> {
        let outcome = self.peek_one(key, limit).await?;
        self.expect_equal("units remaining", units, outcome.decision.standing().remaining)
    }

    pub(super) async fn undo(&mut self, key: S::Key, limit: &Limit, receipt: &Receipt) -> Result<(), String> {
        let now = self.instant(key, limit).await?;
        let undone = self.harness.store.undo(key, limit, receipt).await;
        undone.map_err(|error| self.mismatch("undo", "no error", error))?;
        let known = |(of, known, _): &&(S::Key, Receipt, Mark)| *of == key && known == receipt;
        let mark = self
            .receipts
            .iter()
            .rfind(known)
            .map_or(receipt.mark, |(_, _, mark)| *mark);
        let ours = Receipt { mark, ..*receipt };
        self.modify(key, limit, receipt.lease, |state| limit.undo(state, &ours, now));
        Ok(())
    }

    pub(super) async fn refund(&mut self, key: S::Key, limit: &Limit, cost: Cost) -> Result<Decision, String> {
        let now = self.instant(key, limit).await?;
        let charge = Charge {
            key,
            limit: *limit,
            cost,
            policy: Policy::Enforce,
            on_failure: OnStoreFailure::Local,
        };
        let got = self.harness.store.refund(&charge).await;
        let (got, source) = got.map_err(|error| self.mismatch("refund", "no error", error))?;
        self.expect_equal("source of the refund", S::SOURCE, source)?;
        self.modify(key, limit, LeaseId::default(), |state| limit.refund(state, cost, now));
        let expected = limit.decide(self.state(key), Cost::ZERO, now).decision;
        self.compare_decisions("refund", expected, got, self.is_inexact(key))?;
        Ok(got)
    }

    pub(super) async fn release(&mut self, key: S::Key, limit: &Limit, lease: LeaseId) -> Result<bool, String> {
        let now = self.instant(key, limit).await?;
        let got = self.harness.store.release(key, limit, lease).await;
        let got = got.map_err(|error| self.mismatch("release", "no error", error))?;
        let released = self.modify(key, limit, lease, |state| match (limit, state) {
            (Limit::Concurrency(limit), Some(State::Concurrency(ring))) => {
                let edit = limit.release(ring, lease, now);
                edit.map(tollgate_core::Change::Concurrency)
            }
            _ => None,
        });
        self.expect_equal("release", released, got)?;
        Ok(got)
    }

    pub(super) async fn renew(&mut self, key: S::Key, limit: &Limit, lease: LeaseId) -> Result<bool, String> {
        let now = self.instant(key, limit).await?;
        let got = self.harness.store.renew(key, limit, lease).await;
        let got = got.map_err(|error| self.mismatch("renew", "no error", error))?;
        let mut term = None;
        self.modify(key, limit, lease, |state| match (limit, state) {
            (Limit::Concurrency(limit), Some(State::Concurrency(ring))) => {
                let edit = limit.renew(ring, lease, now)?;
                term = Some(limit.lease_ttl());
                Some(tollgate_core::Change::Concurrency(edit))
            }
            _ => None,
        });
        self.expect_equal("renew", term, got)?;
        Ok(got.is_some())
    }

    pub(super) async fn forget(&mut self, key: S::Key, limit: &Limit) -> Result<bool, String> {
        let got = self.harness.store.forget(key, limit).await;
        let got = got.map_err(|error| self.mismatch("forget", "no error", error))?;
        *self.reference_mut(key) = ReferenceState::default();
        Ok(got)
    }

    /// Lets time pass on the store's clock, by advancing it or by waiting.
    pub(super) async fn advance(&mut self, key: S::Key, limit: &Limit, span: Micros) -> Result<(), String> {
        let before = self.now(key, limit).await?;
        if let Some(advance) = &self.harness.advance {
            advance(span);
            let after = self.now(key, limit).await?;
            return self.expect_equal("the clock after it was advanced", before + span, after);
        }
        for _ in 0..POLLS_MAX {
            let passed = self.now(key, limit).await?.since(before);
            if passed >= span {
                return Ok(());
            }
            run::sleep(Micros::new(span.get() - passed.get()).into()).await;
        }
        Err(self.mismatch("the clock", "that it runs", before))
    }

    /// The time of the store.
    pub(super) async fn now(&mut self, key: S::Key, limit: &Limit) -> Result<Timestamp, String> {
        Ok(self.harness.store.peek(&[charge(key, limit, 0)?]).await.now)
    }

    /// True if the instant of every call is known exactly.
    pub(super) fn has_manual_clock(&self) -> bool {
        self.harness.advance.is_some()
    }

    async fn instant(&mut self, key: S::Key, limit: &Limit) -> Result<Now, String> {
        self.now(key, limit).await.map(Now::new)
    }

    fn modify(
        &mut self,
        key: S::Key,
        limit: &Limit,
        lease: LeaseId,
        change: impl FnOnce(Option<&State>) -> Option<tollgate_core::Change>,
    ) -> bool {
        let has_manual_clock = self.has_manual_clock();
        let reference = self.reference_mut(key);
        reference.inexact |= !has_manual_clock;
        let change = change(reference.state.as_ref());
        let modified = change.is_some();
        if let Some(change) = change {
            limit.keep(&mut reference.state, change, lease);
        }
        modified
    }

    /// The first of a settlement's outcomes.
    pub(super) fn first(&self, settlement: &Settlement) -> Result<ChargeOutcome, String> {
        match settlement.outcomes.first() {
            Some(Ok(outcome)) => Ok(ChargeOutcome {
                decision: outcome.decision,
                receipt: outcome.receipt,
            }),
            other => Err(self.mismatch("outcomes", "one that was decided", other)),
        }
    }

    fn expected(&self, charges: &[Charge<S::Key>], now: Timestamp) -> Proposal {
        propose(charges, |charge, cost| {
            charge.limit.decide(self.state(charge.key), cost, Now::new(now))
        })
    }

    fn compare(
        &mut self,
        call: &str,
        charges: &[Charge<S::Key>],
        expected: &Proposal,
        got: &Settlement,
        lease: LeaseId,
    ) -> Result<(), String> {
        self.expect_equal(&format!("{call}: whether it is allowed"), expected.allowed, got.allowed)?;
        self.expect_equal(
            &format!("{call}: number of outcomes"),
            charges.len(),
            got.outcomes.len(),
        )?;
        let denies = |outcome: &Result<Outcome, StoreError>| outcome.is_ok_and(|outcome| !outcome.decision.is_allow());
        let is_denied = !expected.allowed && got.outcomes.iter().any(denies);
        let cross_slot = self.is_cross_slot(charges);
        for ((charge, expected), got) in charges.iter().zip(&expected.charges).zip(&got.outcomes) {
            let (decision, receipt) = match got {
                Ok(Outcome { decision, receipt, .. }) => (decision, receipt),
                // A denial may contain only the limits that deny.
                Err(StoreError::Skipped) if is_denied => continue,
                Err(_) => return Err(self.mismatch(call, expected.decision, got)),
            };
            let inexact = cross_slot || self.is_inexact(charge.key);
            self.compare_decisions(call, expected.decision, *decision, inexact)?;
            let is_charged = call == "settle" && charge.cost > Cost::ZERO && expected.change.is_some();
            if is_charged && !inexact {
                let expected_receipt = Receipt {
                    cost: charge.cost,
                    mark: expected.mark,
                    lease,
                };
                self.expect_equal("settle: the receipt", expected_receipt, *receipt)?;
            }
        }
        Ok(())
    }

    fn compare_decisions(
        &mut self,
        call: &str,
        expected: Decision,
        got: Decision,
        inexact: bool,
    ) -> Result<(), String> {
        let units = |decision: Decision| {
            let standing = decision.standing();
            (decision.is_allow(), standing.limit, standing.remaining)
        };
        self.answers += 1;
        if expected == got || (inexact && units(expected) == units(got)) {
            return Ok(());
        }
        Err(self.mismatch(call, expected, got))
    }

    /// True if the charges have several keys that the store does not settle at one instant.
    fn is_cross_slot(&self, charges: &[Charge<S::Key>]) -> bool {
        let several = charges.windows(2).any(|pair| match pair {
            [one, other] => one.key != other.key,
            _ => false,
        });
        several && self.harness.is_compensated()
    }

    fn is_inexact(&self, key: S::Key) -> bool {
        self.states
            .iter()
            .any(|(known, reference)| *known == key && reference.inexact)
    }

    fn state(&self, key: S::Key) -> Option<&State> {
        let (_, reference) = self.states.iter().find(|(known, _)| *known == key)?;
        reference.state.as_ref()
    }

    fn reference_mut(&mut self, key: S::Key) -> &mut ReferenceState {
        let known = self.states.iter().position(|(known, _)| *known == key);
        let index = known.unwrap_or_else(|| {
            self.states.push((key, ReferenceState::default()));
            self.states.len() - 1
        });
        let (_, reference) = self.states.get_mut(index).expect("an index that was just found");
        reference
    }
}

/// The outcome of one charge.
pub(super) struct ChargeOutcome {
    pub(super) decision: Decision,
    pub(super) receipt: Receipt,
}

pub(super) fn charge<K>(key: K, limit: &Limit, cost: u64) -> Result<Charge<K>, String> {
    charge_as(key, limit, cost, Policy::Enforce)
}

pub(super) fn charge_as<K>(key: K, limit: &Limit, cost: u64, policy: Policy) -> Result<Charge<K>, String> {
    let cost = Cost::new(cost).map_err(|error| error.to_string())?;
    Ok(Charge {
        key,
        limit: *limit,
        cost,
        policy,
        on_failure: OnStoreFailure::Local,
    })
}
