//! A store and the core side by side: everything is done to both, and every answer is compared.

use super::samples::Shape;
use super::{Bench, run};
use crate::store::{Outcome, Settled, Store, StoreError};
use std::fmt::Debug;
use tollgate_core::{
    Charge, Cost, Counter, Decision, LeaseId, Limit, Mark, Micros, Now, OnStoreFailure, Policy, Receipt, Proposal,
    State, Timestamp, propose,
};

pub(super) struct Twin<'b, S: Store> {
    bench: &'b Bench<S>,
    shape: Shape,
    step: &'static str,
    /// What the core holds of each key.
    held: Vec<(S::Key, Held)>,
    /// The store's receipts, and where the core has those charges: apart only if it was written at another moment there.
    receipts: Vec<(S::Key, Receipt, Mark)>,
    leases: u64,
    answers: u64,
}

#[derive(Default)]
struct Held {
    state: Option<State>,
    /// Written at a moment that only the store knows: times may differ by a little from here on, units may not.
    coarse: bool,
}

/// How often the time is asked before a clock is taken to stand still.
const MOST_LOOKS: u32 = 10_000;

impl<'b, S: Store> Twin<'b, S> {
    pub(super) fn new(bench: &'b Bench<S>, shape: Shape) -> Self {
        Self {
            bench,
            shape,
            step: "",
            held: Vec::new(),
            receipts: Vec::new(),
            leases: crate::lease::fresh().0,
            answers: 0,
        }
    }

    pub(super) fn begin(&mut self, step: &'static str) {
        self.step = step;
        self.held.clear();
        self.receipts.clear();
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn bench(&self) -> &'b Bench<S> {
        self.bench
    }

    /// The key of a counter that only this step uses, and of a subject of its own: stores may keep subjects apart.
    pub(super) fn key(&self, rule: &str, limit: &Limit) -> S::Key {
        self.key_of(rule, "", limit, &[rule.as_bytes()])
    }

    pub(super) fn key_of(&self, rule: &str, variant: &str, limit: &Limit, per: &[&[u8]]) -> S::Key {
        let rule = format!("{}/{}/{rule}", self.shape.name(), self.step);
        let counter = Counter {
            domain: &self.bench.domain,
            rule: &rule,
            variant,
            limit,
            per: &[],
        };
        self.bench.store.key(&self.bench.store.subjects(&counter), per)
    }

    /// A lease nobody has had.
    pub(super) fn lease(&mut self) -> LeaseId {
        self.leases = self.leases.wrapping_add(1);
        LeaseId(self.leases)
    }

    pub(super) fn wrong(&self, what: &str, expected: impl Debug, got: impl Debug) -> String {
        format!(
            "{}: {}: {what}: expected {expected:?}, got {got:?}",
            self.shape.name(),
            self.step
        )
    }

    /// Complains unless both are equal.
    pub(super) fn same<T: PartialEq + Debug>(&mut self, what: &str, expected: T, got: T) -> Result<(), String> {
        self.answers += 1;
        if expected == got {
            Ok(())
        } else {
            Err(self.wrong(what, expected, got))
        }
    }

    pub(super) async fn settle(&mut self, charges: &[Charge<S::Key>]) -> Result<Settled, String> {
        let lease = self.lease();
        self.settle_under(charges, lease).await
    }

    pub(super) async fn settle_under(&mut self, charges: &[Charge<S::Key>], lease: LeaseId) -> Result<Settled, String> {
        let got = self.bench.store.settle(charges, lease).await;
        let expected = self.expected(charges, got.now);
        self.compare("settle", charges, &expected, &got, lease)?;
        let spread = self.is_spread(charges);
        for ((charge, outcome), got) in charges.iter().zip(expected.charges).zip(&got.outcomes) {
            if let Ok(got) = got {
                self.receipts.push((charge.key, got.receipt, outcome.mark));
            }
            let held = self.held_mut(charge.key);
            if let Some(change) = outcome.change {
                charge.limit.keep(&mut held.state, change, lease);
            }
            held.coarse |= spread;
        }
        Ok(got)
    }

    /// Settles one charge and says what became of it.
    pub(super) async fn take(&mut self, key: S::Key, limit: &Limit, cost: u64) -> Result<Taken, String> {
        let settled = self.settle(&[charge(key, limit, cost)?]).await?;
        self.first(&settled)
    }

    pub(super) async fn peek(&mut self, charges: &[Charge<S::Key>]) -> Result<Settled, String> {
        let got = self.bench.store.peek(charges).await;
        let expected = self.expected(charges, got.now);
        self.compare("peek", charges, &expected, &got, LeaseId::default())?;
        Ok(got)
    }

    /// How a key stands, without asking for anything.
    pub(super) async fn look(&mut self, key: S::Key, limit: &Limit) -> Result<Taken, String> {
        let settled = self.peek(&[charge(key, limit, 0)?]).await?;
        self.first(&settled)
    }

    /// Complains unless so many units are left.
    pub(super) async fn left(&mut self, key: S::Key, limit: &Limit, units: u64) -> Result<(), String> {
        let looked = self.look(key, limit).await?;
        self.same("units left", units, looked.decision.standing().remaining)
    }

    pub(super) async fn undo(&mut self, key: S::Key, limit: &Limit, receipt: &Receipt) -> Result<(), String> {
        let now = self.moment(key, limit).await?;
        let undone = self.bench.store.undo(key, limit, receipt).await;
        undone.map_err(|error| self.wrong("undo", "no error", error))?;
        let known = |(of, known, _): &&(S::Key, Receipt, Mark)| *of == key && known == receipt;
        let mark = self
            .receipts
            .iter()
            .rfind(known)
            .map_or(receipt.mark, |(_, _, mark)| *mark);
        let ours = Receipt { mark, ..*receipt };
        self.alter(key, limit, receipt.lease, |state| limit.undo(state, &ours, now));
        Ok(())
    }

    pub(super) async fn refund(&mut self, key: S::Key, limit: &Limit, cost: Cost) -> Result<Decision, String> {
        let now = self.moment(key, limit).await?;
        let charge = Charge {
            key,
            limit: *limit,
            cost,
            policy: Policy::Enforce,
            on_failure: OnStoreFailure::Local,
        };
        let got = self.bench.store.refund(&charge).await;
        let (got, source) = got.map_err(|error| self.wrong("refund", "no error", error))?;
        self.same("who refunds", S::SOURCE, source)?;
        self.alter(key, limit, LeaseId::default(), |state| limit.refund(state, cost, now));
        let expected = limit.decide(self.state(key), Cost::ZERO, now).decision;
        self.compare_decisions("refund", expected, got, self.is_coarse(key))?;
        Ok(got)
    }

    pub(super) async fn release(&mut self, key: S::Key, limit: &Limit, lease: LeaseId) -> Result<bool, String> {
        let now = self.moment(key, limit).await?;
        let got = self.bench.store.release(key, limit, lease).await;
        let got = got.map_err(|error| self.wrong("release", "no error", error))?;
        let released = self.alter(key, limit, lease, |state| match (limit, state) {
            (Limit::Concurrency(limit), Some(State::Concurrency(ring))) => {
                let edit = limit.release(ring, lease, now);
                edit.map(tollgate_core::Change::Concurrency)
            }
            _ => None,
        });
        self.same("release", released, got)?;
        Ok(got)
    }

    pub(super) async fn renew(&mut self, key: S::Key, limit: &Limit, lease: LeaseId) -> Result<bool, String> {
        let now = self.moment(key, limit).await?;
        let got = self.bench.store.renew(key, limit, lease).await;
        let got = got.map_err(|error| self.wrong("renew", "no error", error))?;
        let mut term = None;
        self.alter(key, limit, lease, |state| match (limit, state) {
            (Limit::Concurrency(limit), Some(State::Concurrency(ring))) => {
                let edit = limit.renew(ring, lease, now)?;
                term = Some(limit.lease_ttl());
                Some(tollgate_core::Change::Concurrency(edit))
            }
            _ => None,
        });
        self.same("renew", term, got)?;
        Ok(got.is_some())
    }

    pub(super) async fn forget(&mut self, key: S::Key, limit: &Limit) -> Result<bool, String> {
        let got = self.bench.store.forget(key, limit).await;
        let got = got.map_err(|error| self.wrong("forget", "no error", error))?;
        *self.held_mut(key) = Held::default();
        Ok(got)
    }

    /// Lets time pass on the store's clock: moved on, or waited for.
    pub(super) async fn pass(&mut self, key: S::Key, limit: &Limit, span: Micros) -> Result<(), String> {
        let before = self.now(key, limit).await?;
        if let Some(advance) = &self.bench.advance {
            advance(span);
            let after = self.now(key, limit).await?;
            return self.same("the clock after it was moved", before + span, after);
        }
        for _ in 0..MOST_LOOKS {
            let passed = self.now(key, limit).await?.since(before);
            if passed >= span {
                return Ok(());
            }
            run::pause(Micros::new(span.get() - passed.get()).into()).await;
        }
        Err(self.wrong("the clock", "that it runs", before))
    }

    /// The time of the store.
    pub(super) async fn now(&mut self, key: S::Key, limit: &Limit) -> Result<Timestamp, String> {
        Ok(self.bench.store.peek(&[charge(key, limit, 0)?]).await.now)
    }

    /// Whether the moment of every call is known exactly.
    pub(super) fn is_still(&self) -> bool {
        self.bench.advance.is_some()
    }

    async fn moment(&mut self, key: S::Key, limit: &Limit) -> Result<Now, String> {
        self.now(key, limit).await.map(Now::new)
    }

    fn alter(
        &mut self,
        key: S::Key,
        limit: &Limit,
        lease: LeaseId,
        change: impl FnOnce(Option<&State>) -> Option<tollgate_core::Change>,
    ) -> bool {
        let is_still = self.is_still();
        let held = self.held_mut(key);
        held.coarse |= !is_still;
        let change = change(held.state.as_ref());
        let altered = change.is_some();
        if let Some(change) = change {
            limit.keep(&mut held.state, change, lease);
        }
        altered
    }

    /// The first of a settlement's outcomes.
    pub(super) fn first(&self, settled: &Settled) -> Result<Taken, String> {
        match settled.outcomes.first() {
            Some(Ok(outcome)) => Ok(Taken {
                decision: outcome.decision,
                receipt: outcome.receipt,
            }),
            other => Err(self.wrong("outcomes", "one that was decided", other)),
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
        got: &Settled,
        lease: LeaseId,
    ) -> Result<(), String> {
        self.same(&format!("{call}: whether it passes"), expected.allowed, got.passes)?;
        self.same(
            &format!("{call}: number of outcomes"),
            charges.len(),
            got.outcomes.len(),
        )?;
        let denies = |outcome: &Result<Outcome, StoreError>| outcome.is_ok_and(|outcome| !outcome.decision.is_allow());
        let is_refused = !expected.allowed && got.outcomes.iter().any(denies);
        let spread = self.is_spread(charges);
        for ((charge, expected), got) in charges.iter().zip(&expected.charges).zip(&got.outcomes) {
            let (decision, receipt) = match got {
                Ok(Outcome { decision, receipt, .. }) => (decision, receipt),
                // A refusal may tell only of the limits that refuse.
                Err(StoreError::Unasked) if is_refused => continue,
                Err(_) => return Err(self.wrong(call, expected.decision, got)),
            };
            let coarse = spread || self.is_coarse(charge.key);
            self.compare_decisions(call, expected.decision, *decision, coarse)?;
            let is_taken = call == "settle" && charge.cost > Cost::ZERO && expected.change.is_some();
            if is_taken && !coarse {
                let wanted = Receipt {
                    cost: charge.cost,
                    mark: expected.mark,
                    lease,
                };
                self.same("settle: the receipt", wanted, *receipt)?;
            }
        }
        Ok(())
    }

    fn compare_decisions(&mut self, call: &str, expected: Decision, got: Decision, coarse: bool) -> Result<(), String> {
        let units = |decision: Decision| {
            let standing = decision.standing();
            (decision.is_allow(), standing.limit, standing.remaining)
        };
        self.answers += 1;
        if expected == got || (coarse && units(expected) == units(got)) {
            return Ok(());
        }
        Err(self.wrong(call, expected, got))
    }

    /// Whether charges lie on several keys of a store that does not settle these at one moment.
    fn is_spread(&self, charges: &[Charge<S::Key>]) -> bool {
        let several = charges.windows(2).any(|pair| match pair {
            [one, other] => one.key != other.key,
            _ => false,
        });
        several && self.bench.is_compensated()
    }

    fn is_coarse(&self, key: S::Key) -> bool {
        self.held.iter().any(|(known, held)| *known == key && held.coarse)
    }

    fn state(&self, key: S::Key) -> Option<&State> {
        let (_, held) = self.held.iter().find(|(known, _)| *known == key)?;
        held.state.as_ref()
    }

    fn held_mut(&mut self, key: S::Key) -> &mut Held {
        let known = self.held.iter().position(|(known, _)| *known == key);
        let index = known.unwrap_or_else(|| {
            self.held.push((key, Held::default()));
            self.held.len() - 1
        });
        let (_, held) = self.held.get_mut(index).expect("an index that was just found");
        held
    }
}

/// What became of one charge.
pub(super) struct Taken {
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
