//! The comparison: the same random actions on a limit and on its oracle, with every result compared.

use super::generate::{self, LimitNumbers, RandomClock};
use super::report::{Difference, OracleAnswer, OracleEvent, OracleReport};
use super::{Oracle, OracleDecision, UndoScope};
use crate::algorithm::{LeaseId, Mark, Receipt};
use crate::decision::{Cost, Decision, Retry};
use crate::limit::{Change, Limit, State};
use crate::testing::random::Random;
use crate::testing::timeline::KeepOrDrop;
use crate::units::time::{Micros, Now, Timestamp};
use std::collections::VecDeque;

/// Runs random steps on both until there are enough or they differ.
pub(super) fn run<R: Oracle>(
    algorithm: &'static str,
    steps: u64,
    seed: u64,
    mut progress: impl FnMut(&OracleReport),
) -> Result<OracleReport, Box<Difference>> {
    let mut random = Random::new(seed);
    let mut report = OracleReport {
        algorithm,
        seed,
        ..OracleReport::default()
    };
    while report.steps < steps {
        let end = steps.min(report.steps + random.between(200, 2_000));
        let mut oracle_run = OracleRun::<R>::new(report, random.next());
        while oracle_run.report.steps < end && oracle_run.advance_clock() {
            oracle_run.step()?;
        }
        report = oracle_run.report;
        progress(&report);
    }
    Ok(report)
}

/// One key from its first request on, on both sides.
struct OracleRun<R: Oracle> {
    report: OracleReport,
    random: Random,
    numbers: LimitNumbers,
    limit: Limit,
    state: Option<State>,
    oracle: R,
    /// The time of the clock.
    now: u64,
    /// The clock is not set back before.
    floor: u64,
    slack: u64,
    /// True if costs are mostly small, so that many requests are recorded.
    small_costs: bool,
    /// The remaining units of the last decision.
    remaining: u64,
    /// Charges that can be undone.
    charges: VecDeque<(Receipt, R::ChargeRef)>,
    /// True if the clock was set back since the last of them.
    clock_stepped: bool,
    /// Leases that were taken at some time.
    leases: VecDeque<LeaseId>,
    events: VecDeque<(u64, OracleEvent)>,
}

/// The end of a run: the longest limit still fits between here and the last timestamp.
const END: u64 = 4_000_000_000_000_000;

impl<R: Oracle> OracleRun<R> {
    fn new(report: OracleReport, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let numbers = generate::random_numbers(report.algorithm, &mut random);
        let limit = generate::build_limit(report.algorithm, numbers);
        let slack = random.pick(&[1_000_000, 1_000_000, 1_000_000, 0, 5_000, 10_000_000]);
        let early = 10 * numbers.period + 20_000_000;
        let start = if random.one_in(4) {
            early + random.below(1_000_000)
        } else {
            1_700_000_000_000_000 + random.below(1_000_000_000_000)
        };
        let mut oracle_run = Self {
            small_costs: random.one_in(3),
            report,
            random,
            numbers,
            limit,
            state: None,
            oracle: R::new(numbers),
            now: start,
            // An edit may make the period longer, and a log looks one period back.
            floor: (3 * numbers.period).min(start),
            slack,
            remaining: 1,
            charges: VecDeque::new(),
            clock_stepped: false,
            leases: VecDeque::new(),
            events: VecDeque::new(),
        };
        oracle_run.log_event(OracleEvent::Start(numbers));
        oracle_run
    }

    /// Moves the clock. False at the end of the run.
    fn advance_clock(&mut self) -> bool {
        let clock = RandomClock {
            now: self.now,
            written_at: self.oracle.written_at().unwrap_or(self.now),
            fresh_at: self.oracle.fresh_at(),
            slack: self.slack,
        };
        let next = clock.next(&mut self.random, self.numbers);
        self.now = next.max(self.floor);
        self.now <= END
    }

    /// Runs one random action.
    fn step(&mut self) -> Result<(), Box<Difference>> {
        match self.random.below(100) {
            0..=9 => self.decide(0, KeepOrDrop::Never).map(|_| ()),
            10..=15 => {
                let cost = self.cost();
                self.decide(cost, KeepOrDrop::Always).map(|_| ())
            }
            16..=20 => {
                let cost = self.cost();
                self.return_units(OracleEvent::Refund(cost))
            }
            21..=26 => self.undo(),
            27..=30 => match self.random_lease() {
                Some(lease) => self.return_units(OracleEvent::Release(lease)),
                None => Ok(()),
            },
            31..=34 => match self.random_lease() {
                Some(lease) => self.return_units(OracleEvent::Renew(lease)),
                None => Ok(()),
            },
            35 | 36 => self.edit(),
            37 | 38 => self.forget(),
            39..=42 => {
                let cost = self.cost();
                self.decide(cost, KeepOrDrop::Never).map(|_| ())
            }
            _ => {
                let cost = self.cost();
                let (expected, now) = self.decide(cost, KeepOrDrop::IfAllowed)?;
                match expected.decision.retry() {
                    Some(Retry::After(wait)) if self.random.one_in(3) => self.check_promise(cost, now, wait),
                    _ => Ok(()),
                }
            }
        }
    }

    fn cost(&mut self) -> u64 {
        generate::random_cost(
            &mut self.random,
            self.small_costs,
            self.limit.capacity(),
            self.remaining,
        )
    }

    /// Decides on both sides, and keeps the result on both. Also returns the time of the decision.
    fn decide(&mut self, cost: u64, keep: KeepOrDrop) -> Result<(OracleDecision, u64), Box<Difference>> {
        self.log_event(match keep {
            KeepOrDrop::Never => OracleEvent::Peek(cost),
            KeepOrDrop::IfAllowed => OracleEvent::Enforce(cost),
            KeepOrDrop::Always => OracleEvent::Count(cost),
        });
        let units = Cost::new(cost).expect("generated costs are in range");
        let step = self.limit.decide(self.state.as_ref(), units, self.moment());
        let mut oracle = self.oracle.clone();
        let (now, stepped) = self.reconcile(&mut oracle);
        let expected = oracle.decide(cost, now);
        let implementation = OracleAnswer::Step {
            decision: step.decision,
            fresh_at: step.fresh_at.as_micros(),
            takes: step.next.is_some(),
            repairs: step.repair.is_some(),
        };
        let expected_answer = OracleAnswer::Step {
            decision: expected.decision,
            fresh_at: expected.fresh_at,
            takes: expected.takes,
            repairs: stepped,
        };
        self.compare(implementation, expected_answer)?;

        let allowed = expected.decision.is_allow();
        self.report.steps += 1;
        self.report.allowed += u64::from(allowed && cost > 0);
        self.report.denied += u64::from(!allowed);
        self.report.clock_steps += u64::from(stepped);
        self.remaining = expected.decision.standing().remaining;
        if stepped {
            self.on_clock_step();
        }
        let kept = expected.takes && (keep == KeepOrDrop::Always || (keep == KeepOrDrop::IfAllowed && allowed));
        if kept {
            let lease = LeaseId(self.random.next());
            let charge_ref = oracle.take(cost, now, lease);
            if self.clock_stepped {
                self.clear_ordered_charges();
            }
            // A denied request that is kept takes less than its cost, so there is no receipt for it.
            if allowed {
                let receipt = Receipt {
                    cost: units,
                    mark: step.mark,
                    lease,
                };
                push_bounded(&mut self.charges, (receipt, charge_ref));
                push_bounded(&mut self.leases, lease);
            } else {
                self.clear_ordered_charges();
            }
            self.write(step.next, oracle, lease)?;
        } else if stepped {
            self.write(step.repair, oracle, LeaseId::default())?;
        }
        if keep == KeepOrDrop::IfAllowed || cost == 0 {
            self.compare_reply(&step.decision, &step.mark, units)?;
        }
        Ok((expected, now))
    }

    /// Compares the `CL.THROTTLE` reply after the cost was settled.
    fn compare_reply(&self, decision: &Decision, mark: &Mark, cost: Cost) -> Result<(), Box<Difference>> {
        let Limit::Cell(cell) = &self.limit else {
            return Ok(());
        };
        let reply = cell.reply(decision, mark, cost);
        let implementation = OracleAnswer::Reply {
            limit: reply.limit,
            remaining: reply.remaining,
            rest: Some((reply.limited, reply.retry_after_s, reply.reset_after_s)),
        };
        let mut oracle = self.oracle.clone();
        let (now, _) = self.reconcile(&mut oracle);
        let taken = decision.is_allow() && cost > Cost::ZERO;
        let expected_answer = OracleAnswer::Reply {
            limit: self.numbers.burst,
            remaining: decision.standing().remaining,
            rest: oracle.reply(cost.get(), taken, now),
        };
        self.compare(implementation, expected_answer)
    }

    /// Checks a promised time: denied one microsecond before, allowed at it.
    fn check_promise(&mut self, cost: u64, now: u64, wait: Micros) -> Result<(), Box<Difference>> {
        let moment = now + wait.get();
        if moment > END {
            return Ok(());
        }
        for (at, promise) in [(moment - 1, false), (moment, true)] {
            self.now = at;
            let (expected, _) = self.decide(
                cost,
                if promise {
                    KeepOrDrop::IfAllowed
                } else {
                    KeepOrDrop::Never
                },
            )?;
            let kept = expected.decision.is_allow();
            self.compare(OracleAnswer::PromiseKept(kept), OracleAnswer::PromiseKept(promise))?;
        }
        self.report.promises += 1;
        Ok(())
    }

    /// Undoes one of the charges that can be undone.
    fn undo(&mut self) -> Result<(), Box<Difference>> {
        let index = self.random.below(self.charges.len().max(1) as u64) as usize;
        match self.charges.remove(index) {
            Some((receipt, charge_ref)) => {
                // A receipt belongs to the clock it was made by: after a step it undoes nothing.
                let latest = receipt
                    .mark
                    .taken_at
                    .as_micros()
                    .max(self.oracle.written_at().unwrap_or(0));
                let is_step = latest > self.now + self.slack;
                let charge_ref = (R::UNDO == UndoScope::Always || !is_step).then_some(charge_ref);
                let result = self.return_units_of(OracleEvent::Undo(receipt), charge_ref);
                self.clear_ordered_charges();
                result
            }
            None => Ok(()),
        }
    }

    fn return_units(&mut self, event: OracleEvent) -> Result<(), Box<Difference>> {
        self.return_units_of(event, None)
    }

    /// Refunds, undoes, releases or renews on both sides.
    fn return_units_of(&mut self, event: OracleEvent, charge_ref: Option<R::ChargeRef>) -> Result<(), Box<Difference>> {
        self.log_event(event);
        let moment = self.moment();
        let mut oracle = self.oracle.clone();
        let (now, stepped) = self.reconcile(&mut oracle);
        let state = self.state.as_ref();
        let (change, lease, returned) = match event {
            OracleEvent::Refund(units) => {
                let cost = Cost::new(units).expect("generated costs are in range");
                let change = self.limit.refund(state, cost, moment);
                (change, LeaseId::default(), oracle.refund(units, now))
            }
            OracleEvent::Undo(receipt) => {
                let change = self.limit.undo(state, &receipt, moment);
                let returned = charge_ref.is_some_and(|charge_ref| oracle.undo(charge_ref, now));
                (change, LeaseId::default(), returned)
            }
            OracleEvent::Release(lease) => {
                let change = match (&self.limit, state) {
                    (Limit::Concurrency(limit), Some(State::Concurrency(ring))) => limit.release(ring, lease, moment),
                    _ => None,
                };
                (change.map(Change::Concurrency), lease, oracle.release(lease, now))
            }
            OracleEvent::Renew(lease) => {
                let change = match (&self.limit, state) {
                    (Limit::Concurrency(limit), Some(State::Concurrency(ring))) => limit.renew(ring, lease, moment),
                    _ => None,
                };
                (change.map(Change::Concurrency), lease, oracle.renew(lease, now))
            }
            _ => (None, LeaseId::default(), false),
        };
        // With nothing to return, a key may still be moved to a clock that was set back, or left as it is.
        let is_written = returned || (stepped && change.is_some());
        self.compare(
            OracleAnswer::Written(change.is_some()),
            OracleAnswer::Written(is_written),
        )?;
        self.report.steps += 1;
        self.report.returns += u64::from(returned);
        if is_written {
            self.report.clock_steps += u64::from(stepped);
            if stepped {
                self.on_clock_step();
            }
            self.clear_ordered_charges();
            self.write(change, oracle, lease)?;
        }
        Ok(())
    }

    /// Changes the numbers of the limit, and compares the standing under them.
    fn edit(&mut self) -> Result<(), Box<Difference>> {
        self.numbers = generate::edit_numbers(self.report.algorithm, self.numbers, &mut self.random);
        self.limit = generate::build_limit(self.report.algorithm, self.numbers);
        self.oracle.edit(self.numbers);
        self.report.edits += 1;
        self.log_event(OracleEvent::Edit(self.numbers));
        self.clear_ordered_charges();
        self.decide(0, KeepOrDrop::Never).map(|_| ())
    }

    /// Drops the state of a fresh key: the decision must then equal that for a key without a state.
    fn forget(&mut self) -> Result<(), Box<Difference>> {
        let Some(fresh_at) = self.state.as_ref().and_then(|state| self.limit.fresh_at(state)) else {
            return Ok(());
        };
        if fresh_at.as_micros() > self.now {
            return Ok(());
        }
        let cost = self.cost();
        let units = Cost::new(cost).expect("generated costs are in range");
        let (remembered_decision, now) = self.decide(cost, KeepOrDrop::Never)?;
        let fresh = R::new(self.numbers).decide(cost, now);
        let unseen = self.limit.decide(None, units, Now::new(Timestamp::from_micros(now)));
        let answer = |decision, fresh_at| OracleAnswer::Step {
            decision,
            fresh_at,
            takes: true,
            repairs: false,
        };
        let remembered = answer(remembered_decision.decision, remembered_decision.fresh_at);
        self.compare(remembered, answer(fresh.decision, fresh.fresh_at))?;
        self.compare(answer(unseen.decision, unseen.fresh_at.as_micros()), remembered)?;
        self.log_event(OracleEvent::Forget);
        self.state = None;
        self.oracle = R::new(self.numbers);
        self.charges.clear();
        self.leases.clear();
        Ok(())
    }

    fn random_lease(&mut self) -> Option<LeaseId> {
        if !matches!(self.limit, Limit::Concurrency(_)) {
            return None;
        }
        let index = self.random.below(self.leases.len().max(1) as u64) as usize;
        self.leases.get(index).copied()
    }

    /// Writes on both sides; both must then agree on the time at which the key is fresh.
    fn write(&mut self, change: Option<Change>, oracle: R, lease: LeaseId) -> Result<(), Box<Difference>> {
        if let Some(change) = change {
            self.limit.keep(&mut self.state, change, lease);
        }
        self.oracle = oracle;
        // A key that was fresh before it was written is fresh since then at the latest.
        let written_at = self.oracle.written_at().unwrap_or(0);
        let implementation = self.state.as_ref().and_then(|state| self.limit.fresh_at(state));
        let implementation = implementation.map(|fresh_at| fresh_at.as_micros().max(written_at));
        let expected = self.oracle.fresh_at().map(|fresh_at| fresh_at.max(written_at));
        self.compare(OracleAnswer::FreshAt(implementation), OracleAnswer::FreshAt(expected))
    }

    /// Reconciles the oracle with the clock: within the slack of its last write that is the time, further back is a step.
    fn reconcile(&self, oracle: &mut R) -> (u64, bool) {
        match oracle.written_at() {
            Some(written) if written > self.now + self.slack => {
                oracle.step_back(written - self.now);
                (self.now, true)
            }
            Some(written) => (self.now.max(written), false),
            None => (self.now, false),
        }
    }

    /// Where charges are done in order, none of those so far can be undone any more.
    fn clear_ordered_charges(&mut self) {
        self.clock_stepped = false;
        if R::UNDO == UndoScope::InTurn {
            self.charges.clear();
        }
    }

    fn on_clock_step(&mut self) {
        self.clock_stepped = true;
        match R::UNDO {
            UndoScope::InTurn | UndoScope::SameClock => self.charges.clear(),
            UndoScope::Always => (),
        }
    }

    fn moment(&self) -> Now {
        Now::new(Timestamp::from_micros(self.now)).with_slack(Micros::new(self.slack))
    }

    fn log_event(&mut self, event: OracleEvent) {
        if self.events.len() == 16 {
            self.events.pop_front();
        }
        self.events.push_back((self.now, event));
    }

    fn compare(&self, implementation: OracleAnswer, expected: OracleAnswer) -> Result<(), Box<Difference>> {
        if implementation == expected {
            return Ok(());
        }
        Err(Box::new(Difference {
            algorithm: self.report.algorithm,
            seed: self.report.seed,
            step: self.report.steps,
            numbers: self.numbers,
            slack: self.slack,
            events: self.events.iter().copied().collect(),
            implementation,
            oracle: expected,
        }))
    }
}

/// Appends to a list of the last few.
fn push_bounded<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() == 12 {
        list.pop_front();
    }
    list.push_back(item);
}
