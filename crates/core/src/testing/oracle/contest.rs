//! The contest: one key lives under a limit and under its referee, and every answer of the two is compared.

use super::draw::{self, Numbers};
use super::report::{Answer, Difference, Event, Report};
use super::{Referee, Ruling, Undo};
use crate::algorithm::{LeaseId, Mark, Receipt};
use crate::decision::{Cost, Decision, Retry};
use crate::limit::{Change, Limit, State};
use crate::testing::random::Random;
use crate::time::{Micros, Now, Timestamp};
use std::collections::VecDeque;

/// Leads both through random steps until there are enough or they differ.
pub(super) fn run<R: Referee>(
    algorithm: &'static str,
    steps: u64,
    seed: u64,
    mut watch: impl FnMut(&Report),
) -> Result<Report, Box<Difference>> {
    let mut random = Random::new(seed);
    let mut report = Report {
        algorithm,
        seed,
        ..Report::default()
    };
    while report.steps < steps {
        let end = steps.min(report.steps + random.between(200, 2_000));
        let mut life = Life::<R>::new(report, random.next());
        while life.report.steps < end && life.travel() {
            life.step()?;
        }
        report = life.report;
        watch(&report);
    }
    Ok(report)
}

/// One key from its first request on, on both sides.
struct Life<R: Referee> {
    report: Report,
    random: Random,
    numbers: Numbers,
    limit: Limit,
    state: Option<State>,
    referee: R,
    /// What the clock shows.
    now: u64,
    /// The clock is not set back before.
    floor: u64,
    slack: u64,
    /// Whether requests are mostly small, so that many are remembered.
    small: bool,
    /// What was left at the last answer.
    remaining: u64,
    /// Charges that can be taken back.
    charges: VecDeque<(Receipt, R::Ticket)>,
    /// Whether the clock was set back since the last of them.
    is_old_clock: bool,
    /// Leases that were taken at some time.
    leases: VecDeque<LeaseId>,
    events: VecDeque<(u64, Event)>,
}

/// When a decision is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Never,
    IfAllowed,
    Always,
}

/// The end of the world: the longest limit still fits between here and the last timestamp.
const LAST: u64 = 4_000_000_000_000_000;

impl<R: Referee> Life<R> {
    fn new(report: Report, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let numbers = draw::numbers(report.algorithm, &mut random);
        let limit = draw::limit(report.algorithm, numbers);
        let slack = random.pick(&[1_000_000, 1_000_000, 1_000_000, 0, 5_000, 10_000_000]);
        let early = 10 * numbers.period + 20_000_000;
        let start = if random.one_in(4) {
            early + random.below(1_000_000)
        } else {
            1_700_000_000_000_000 + random.below(1_000_000_000_000)
        };
        let mut life = Self {
            small: random.one_in(3),
            report,
            random,
            numbers,
            limit,
            state: None,
            referee: R::new(numbers),
            now: start,
            // An edit may make the period longer, and a log looks one period back.
            floor: (3 * numbers.period).min(start),
            slack,
            remaining: 1,
            charges: VecDeque::new(),
            is_old_clock: false,
            leases: VecDeque::new(),
            events: VecDeque::new(),
        };
        life.happens(Event::Begin(numbers));
        life
    }

    /// Moves the clock. False when it has come to the end of the world.
    fn travel(&mut self) -> bool {
        let Numbers {
            units, period, burst, ..
        } = self.numbers;
        let one = (period / units).max(1);
        let fill = u64::try_from(u128::from(burst) * u128::from(period) / u128::from(units)).unwrap_or(period);
        let random = &mut self.random;
        let written = self.referee.written().unwrap_or(self.now);
        let next = match random.below(20) {
            0 => self.now + 1,
            1 | 2 => self.now + random.below(4 * one + 2),
            3 => self.now + one * random.between(1, 3),
            4 | 5 => self.now + random.below(period / 8 + 2),
            6 => self.now + random.below(period + 1),
            7 if random.one_in(3) => self.now + random.below(3 * period),
            7 => self.now + draw::spread(random, period),
            8 if random.one_in(3) => self.now + random.below(fill + 2),
            // A seam, and a microsecond to either side.
            9 => (self.now / period + 1) * period - 1 + random.below(3),
            // As good as new, and a microsecond to either side.
            10 => match self.referee.fresh_at() {
                Some(fresh_at) if fresh_at > self.now => fresh_at - 1 + random.below(3),
                _ => self.now + 1,
            },
            11 => written.saturating_sub(random.below(self.slack + 1)),
            12 => written.saturating_sub(self.slack),
            13 if random.one_in(4) => written.saturating_sub(self.slack + 1),
            13 if random.one_in(4) => written.saturating_sub(self.slack + random.below(2 * period)),
            14 => self.now.saturating_sub(random.below(self.slack / 2 + 1)),
            _ => self.now,
        };
        self.now = next.max(self.floor);
        self.now <= LAST
    }

    /// One thing that can happen to a key.
    fn step(&mut self) -> Result<(), Box<Difference>> {
        match self.random.below(100) {
            0..=9 => self.decide(0, Keep::Never).map(|_| ()),
            10..=15 => {
                let cost = self.cost();
                self.decide(cost, Keep::Always).map(|_| ())
            }
            16..=20 => {
                let cost = self.cost();
                self.give_back(Event::Refund(cost))
            }
            21..=26 => self.undo(),
            27..=30 => match self.some_lease() {
                Some(lease) => self.give_back(Event::Release(lease)),
                None => Ok(()),
            },
            31..=34 => match self.some_lease() {
                Some(lease) => self.give_back(Event::Renew(lease)),
                None => Ok(()),
            },
            35 | 36 => self.edit(),
            37 | 38 => self.forget(),
            39..=42 => {
                let cost = self.cost();
                self.decide(cost, Keep::Never).map(|_| ())
            }
            _ => {
                let cost = self.cost();
                let (ruling, now) = self.decide(cost, Keep::IfAllowed)?;
                match ruling.decision.retry() {
                    Some(Retry::After(wait)) if self.random.one_in(3) => self.promised(cost, now, wait),
                    _ => Ok(()),
                }
            }
        }
    }

    /// A cost of the kind that tells right from wrong: just what is left, one more, all there is, one more than that.
    fn cost(&mut self) -> u64 {
        let limit = if matches!(
            self.limit,
            Limit::FixedWindow(_) | Limit::SlidingCounter(_) | Limit::SlidingLog(_) | Limit::Concurrency(_)
        ) {
            self.numbers.units
        } else {
            self.numbers.burst
        };
        let random = &mut self.random;
        if self.small && !random.one_in(8) {
            return random.between(1, 3);
        }
        let cost = match random.below(12) {
            0..=3 => 1,
            4 => random.between(1, 5),
            5 => self.remaining,
            6 => self.remaining + 1,
            7 => self.remaining / 2,
            8 => random.below(limit + 2),
            9 => draw::spread(random, limit),
            10 => limit + random.below(2),
            _ => draw::spread(random, 1_000_000_000),
        };
        cost.clamp(1, 1_000_000_000)
    }

    /// Decides on both sides, and keeps on both what is to be kept. Says also when it was decided.
    fn decide(&mut self, cost: u64, keep: Keep) -> Result<(Ruling, u64), Box<Difference>> {
        self.happens(match keep {
            Keep::Never => Event::Look(cost),
            Keep::IfAllowed => Event::Enforce(cost),
            Keep::Always => Event::Count(cost),
        });
        let units = Cost::new(cost).expect("costs drawn here are in range");
        let step = self.limit.decide(self.state.as_ref(), units, self.moment());
        let mut here = self.referee.clone();
        let (now, stepped) = self.hear(&mut here);
        let ruling = here.judge(cost, now);
        let implementation = Answer::Step {
            decision: step.decision,
            fresh_at: step.fresh_at.as_micros(),
            takes: step.next.is_some(),
            repairs: step.repair.is_some(),
        };
        let referee = Answer::Step {
            decision: ruling.decision,
            fresh_at: ruling.fresh_at,
            takes: ruling.takes,
            repairs: stepped,
        };
        self.compare(implementation, referee)?;

        let allowed = ruling.decision.is_allow();
        self.report.steps += 1;
        self.report.allowed += u64::from(allowed && cost > 0);
        self.report.denied += u64::from(!allowed);
        self.report.clock_steps += u64::from(stepped);
        self.remaining = ruling.decision.standing().remaining;
        if stepped {
            self.clock_was_set_back();
        }
        let kept = ruling.takes && (keep == Keep::Always || (keep == Keep::IfAllowed && allowed));
        if kept {
            let lease = LeaseId(self.random.next());
            let ticket = here.take(cost, now, lease);
            if self.is_old_clock {
                self.turns_are_over();
            }
            // What a refused request took is not what it asked for, so there is no receipt for it.
            if allowed {
                let receipt = Receipt {
                    cost: units,
                    mark: step.mark,
                    lease,
                };
                remember(&mut self.charges, (receipt, ticket));
                remember(&mut self.leases, lease);
            } else {
                self.turns_are_over();
            }
            self.write(step.next, here, lease)?;
        } else if stepped {
            self.write(step.repair, here, LeaseId::default())?;
        }
        if keep == Keep::IfAllowed || cost == 0 {
            self.compare_reply(&step.decision, &step.mark, units)?;
        }
        Ok((ruling, now))
    }

    /// What goes over the wire to a caller of `CL.THROTTLE`, when what was settled is in place.
    fn compare_reply(&self, decision: &Decision, mark: &Mark, cost: Cost) -> Result<(), Box<Difference>> {
        let Limit::Cell(cell) = &self.limit else {
            return Ok(());
        };
        let reply = cell.reply(decision, mark, cost);
        let implementation = Answer::Reply {
            limit: reply.limit,
            remaining: reply.remaining,
            rest: Some((reply.limited, reply.retry_after_s, reply.reset_after_s)),
        };
        let mut here = self.referee.clone();
        let (now, _) = self.hear(&mut here);
        let taken = decision.is_allow() && cost > Cost::ZERO;
        let referee = Answer::Reply {
            limit: self.numbers.burst,
            remaining: decision.standing().remaining,
            rest: here.reply(cost.get(), taken, now),
        };
        self.compare(implementation, referee)
    }

    /// Waits for a promised moment: denied until one microsecond before, allowed at it.
    fn promised(&mut self, cost: u64, now: u64, wait: Micros) -> Result<(), Box<Difference>> {
        let moment = now + wait.get();
        if moment > LAST {
            return Ok(());
        }
        for (at, promise) in [(moment - 1, false), (moment, true)] {
            self.now = at;
            let (ruling, _) = self.decide(cost, if promise { Keep::IfAllowed } else { Keep::Never })?;
            let kept = ruling.decision.is_allow();
            self.compare(Answer::Promised(kept), Answer::Promised(promise))?;
        }
        self.report.promises += 1;
        Ok(())
    }

    /// Takes one of the charges back that can be.
    fn undo(&mut self) -> Result<(), Box<Difference>> {
        let index = self.random.below(self.charges.len().max(1) as u64) as usize;
        match self.charges.remove(index) {
            Some((receipt, ticket)) => {
                // A receipt is of the clock it was made by: after a step it gives nothing back.
                let latest = receipt
                    .mark
                    .taken_at
                    .as_micros()
                    .max(self.referee.written().unwrap_or(0));
                let is_step = latest > self.now + self.slack;
                let ticket = (R::UNDO == Undo::Always || !is_step).then_some(ticket);
                let given = self.give(Event::Undo(receipt), ticket);
                self.turns_are_over();
                given
            }
            None => Ok(()),
        }
    }

    fn give_back(&mut self, event: Event) -> Result<(), Box<Difference>> {
        self.give(event, None)
    }

    /// Gives something back on both sides.
    fn give(&mut self, event: Event, ticket: Option<R::Ticket>) -> Result<(), Box<Difference>> {
        self.happens(event);
        let moment = self.moment();
        let mut here = self.referee.clone();
        let (now, stepped) = self.hear(&mut here);
        let state = self.state.as_ref();
        let (change, lease, given) = match event {
            Event::Refund(units) => {
                let cost = Cost::new(units).expect("costs drawn here are in range");
                let change = self.limit.refund(state, cost, moment);
                (change, LeaseId::default(), here.refund(units, now))
            }
            Event::Undo(receipt) => {
                let change = self.limit.undo(state, &receipt, moment);
                let given = ticket.is_some_and(|ticket| here.undo(ticket, now));
                (change, LeaseId::default(), given)
            }
            Event::Release(lease) => {
                let change = match (&self.limit, state) {
                    (Limit::Concurrency(limit), Some(State::Concurrency(ring))) => limit.release(ring, lease, moment),
                    _ => None,
                };
                (change.map(Change::Concurrency), lease, here.release(lease, now))
            }
            Event::Renew(lease) => {
                let change = match (&self.limit, state) {
                    (Limit::Concurrency(limit), Some(State::Concurrency(ring))) => limit.renew(ring, lease, moment),
                    _ => None,
                };
                (change.map(Change::Concurrency), lease, here.renew(lease, now))
            }
            _ => (None, LeaseId::default(), false),
        };
        // With nothing to give back, a key may still be moved to the time of a clock that was set back, or be left.
        let written = given || (stepped && change.is_some());
        self.compare(Answer::Written(change.is_some()), Answer::Written(written))?;
        self.report.steps += 1;
        self.report.returns += u64::from(given);
        if written {
            self.report.clock_steps += u64::from(stepped);
            if stepped {
                self.clock_was_set_back();
            }
            self.turns_are_over();
            self.write(change, here, lease)?;
        }
        Ok(())
    }

    /// The limit gets other numbers, and both say at once what the key is worth under them.
    fn edit(&mut self) -> Result<(), Box<Difference>> {
        self.numbers = draw::edited(self.report.algorithm, self.numbers, &mut self.random);
        self.limit = draw::limit(self.report.algorithm, self.numbers);
        self.referee.edit(self.numbers);
        self.report.edits += 1;
        self.happens(Event::Edit(self.numbers));
        self.turns_are_over();
        self.decide(0, Keep::Never).map(|_| ())
    }

    /// A store may forget a key as good as new: it must then stand as one never seen.
    fn forget(&mut self) -> Result<(), Box<Difference>> {
        let Some(fresh_at) = self.state.as_ref().and_then(|state| self.limit.fresh_at(state)) else {
            return Ok(());
        };
        if fresh_at.as_micros() > self.now {
            return Ok(());
        }
        let cost = self.cost();
        let units = Cost::new(cost).expect("costs drawn here are in range");
        let (ruling, now) = self.decide(cost, Keep::Never)?;
        let fresh = R::new(self.numbers).judge(cost, now);
        let never_seen = self.limit.decide(None, units, Now::new(Timestamp::from_micros(now)));
        let answer = |decision, fresh_at| Answer::Step {
            decision,
            fresh_at,
            takes: true,
            repairs: false,
        };
        let remembered = answer(ruling.decision, ruling.fresh_at);
        self.compare(remembered, answer(fresh.decision, fresh.fresh_at))?;
        self.compare(answer(never_seen.decision, never_seen.fresh_at.as_micros()), remembered)?;
        self.happens(Event::Forget);
        self.state = None;
        self.referee = R::new(self.numbers);
        self.charges.clear();
        self.leases.clear();
        Ok(())
    }

    fn some_lease(&mut self) -> Option<LeaseId> {
        if !matches!(self.limit, Limit::Concurrency(_)) {
            return None;
        }
        let index = self.random.below(self.leases.len().max(1) as u64) as usize;
        self.leases.get(index).copied()
    }

    /// Writes on both sides; both must then agree on how long the key is worth keeping.
    fn write(&mut self, change: Option<Change>, here: R, lease: LeaseId) -> Result<(), Box<Difference>> {
        if let Some(change) = change {
            self.limit.keep(&mut self.state, change, lease);
        }
        self.referee = here;
        // A key that was as good as new before it was written is so since then at the latest.
        let written = self.referee.written().unwrap_or(0);
        let implementation = self.state.as_ref().and_then(|state| self.limit.fresh_at(state));
        let implementation = implementation.map(|fresh_at| fresh_at.as_micros().max(written));
        let referee = self.referee.fresh_at().map(|fresh_at| fresh_at.max(written));
        self.compare(Answer::FreshAt(implementation), Answer::FreshAt(referee))
    }

    /// Tells a referee the time: a little before its last write is the last write, further back is a step.
    fn hear(&self, referee: &mut R) -> (u64, bool) {
        match referee.written() {
            Some(written) if written > self.now + self.slack => {
                referee.set_back(written - self.now);
                (self.now, true)
            }
            Some(written) => (self.now.max(written), false),
            None => (self.now, false),
        }
    }

    /// Where charges are done in turn, none of those so far can be taken back any more.
    fn turns_are_over(&mut self) {
        self.is_old_clock = false;
        if R::UNDO == Undo::InTurn {
            self.charges.clear();
        }
    }

    fn clock_was_set_back(&mut self) {
        self.is_old_clock = true;
        match R::UNDO {
            Undo::InTurn | Undo::SameClock => self.charges.clear(),
            Undo::Always => (),
        }
    }

    fn moment(&self) -> Now {
        Now::new(Timestamp::from_micros(self.now)).with_slack(Micros::new(self.slack))
    }

    fn happens(&mut self, event: Event) {
        if self.events.len() == 16 {
            self.events.pop_front();
        }
        self.events.push_back((self.now, event));
    }

    fn compare(&self, implementation: Answer, referee: Answer) -> Result<(), Box<Difference>> {
        if implementation == referee {
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
            referee,
        }))
    }
}

/// Keeps the last few.
fn remember<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() == 12 {
        list.pop_front();
    }
    list.push_back(item);
}
