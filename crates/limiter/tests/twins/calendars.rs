//! Windows of calendars: the script, which gets a few boundaries, decides as the core does, which has all of them.

use redis::Connection;
use tollgate_core::testing::limits;
use tollgate_core::testing::random::Random;
use tollgate_core::{
    Calendar, CalendarUnit, Charge, Cost, FixedWindow, LeaseId, Limit, Micros, Now, Policy, Receipt, State, Timestamp,
};
use tollgate_limiter::store::redis::script::call::{Call, CallTiming, ChargeReply, ScriptOp};
use tollgate_limiter::testing::admin::connect;
use tollgate_limiter::testing::counters;
use tollgate_limiter::testing::servers::{Server, ServerKind};

const ZONES: &[&str] = limits::ZONES.split_at(6).0;
const HOUR: Micros = Micros::from_secs(3_600);
/// The last months of 2011, in which a day of Apia did not take place, to the end of 2029.
const FIRST: u64 = 1_317_000_000_000_000;
const LAST: u64 = 1_893_400_000_000_000;

fn limit(zone: &str, unit: CalendarUnit, units: u64) -> FixedWindow {
    let calendar = Calendar::new(zone, unit).expect("a zone");
    FixedWindow::of_calendar(units, calendar).expect("in range")
}

/// One key and what the core says it holds.
struct Life {
    unit: CalendarUnit,
    limit: FixedWindow,
    state: Option<State>,
    now: u64,
    last: Option<Receipt>,
}

impl Life {
    /// Moves the clock: on by any time, to a boundary, or back; and now and then changes the limit.
    fn advance(&mut self, random: &mut Random) {
        let calendar = self.limit.calendar().expect("a calendar");
        let far = 2 << random.below(43);
        self.now = match random.below(10) {
            0..4 => self.now + random.below(far),
            4..7 => {
                let boundary = calendar.boundary_from(Timestamp::from_micros(self.now + 1));
                boundary.as_micros() - 1 + random.below(3)
            }
            7 => self.now - random.below(far),
            _ => self.now,
        };
        if !(FIRST..LAST).contains(&self.now) {
            (self.now, self.state, self.last) = (FIRST + random.below(LAST - FIRST), None, None);
        }
        if random.one_in(30) {
            let zone = random.pick(ZONES);
            self.limit = limit(zone, self.unit, random.between(5, 15));
        }
    }
}

fn send(connection: &mut Connection, call: &Call, now: u64, random: &mut Random) -> Vec<ChargeReply> {
    // The server's clock is up to an hour behind what the caller believes, or up to twenty ahead.
    let now = Timestamp::from_micros(now);
    let around = match random.below(3) {
        0 => now + Micros::new(random.below(HOUR.get())),
        1 => now - Micros::new(random.below(20 * HOUR.get())),
        _ => now,
    };
    let timing = CallTiming {
        caller: Some((now, Micros::MAX)),
        slack: Now::SLACK,
        not_after: None,
        around,
    };
    let reply = crate::keys::send(connection, call, timing);
    reply.replies.expect("not too late")
}

/// One step of a life, in both languages.
fn step(connection: &mut Connection, key: &str, life: &mut Life, random: &mut Random) {
    let (now, whole) = (Now::new(Timestamp::from_micros(life.now)), Limit::from(life.limit));
    let case = format!("{key} {whole:?} at {now:?} with {:?}", life.state);
    let (expected, reply) = match (random.below(8), life.last) {
        (0, _) => {
            let receipt = Receipt::without_mark(Cost::new(random.between(1, 4)).expect("in range"), LeaseId(1));
            let change = whole.refund(life.state.as_ref(), receipt.cost, now);
            let mut call = Call::new(ScriptOp::Refund);
            call.modify(key.as_bytes(), &whole, &receipt);
            (change, send(connection, &call, life.now, random))
        }
        (1, Some(receipt)) => {
            let change = whole.undo(life.state.as_ref(), &receipt, now);
            let mut call = Call::new(ScriptOp::Undo);
            call.modify(key.as_bytes(), &whole, &receipt);
            (change, send(connection, &call, life.now, random))
        }
        _ => {
            let cost = Cost::new(random.below(8)).expect("in range");
            let charge: Charge<&str> = Charge {
                policy: Policy::Enforce,
                ..counters::charge(key, &whole, cost.get())
            };
            let mut call = Call::new(ScriptOp::Settle);
            call.request(&[charge], LeaseId(1));
            let reply = send(connection, &call, life.now, random);
            let decided = whole.decide(life.state.as_ref(), cost, now);
            let [ChargeReply::Charge { decision, receipt, .. }] = &*reply else {
                panic!("{reply:?} to {case}");
            };
            assert_eq!((*decision, receipt.mark), (decided.decision, decided.mark), "{case}");
            let change = match decision.is_allow() {
                true => {
                    life.last = Some(*receipt);
                    decided.next.or(decided.repair)
                }
                false => decided.repair,
            };
            (change, reply)
        }
    };
    if let Some(change) = expected {
        whole.keep(&mut life.state, change, LeaseId(1));
    }
    let [ChargeReply::Charge { state, .. }] = &*reply else {
        panic!("{reply:?} to {case}");
    };
    assert_eq!(*state, life.state, "{case}");
}

#[test]
fn a_few_boundaries_decide_as_the_whole_calendar_does() {
    for kind in [ServerKind::Redis70, ServerKind::Valkey] {
        let server = Server::start(kind);
        let mut connection = connect(&server);
        let mut random = Random::new(13);
        for round in 0..40 {
            for unit in [
                CalendarUnit::Day,
                CalendarUnit::Week,
                CalendarUnit::Month,
                CalendarUnit::Year,
            ] {
                let mut life = Life {
                    unit,
                    limit: limit(ZONES[round % ZONES.len()], unit, 10),
                    state: None,
                    now: FIRST + random.below(LAST - FIRST),
                    last: None,
                };
                let mut key = format!("{unit:?} {round}");
                for number in 0..250 {
                    life.advance(&mut random);
                    if life.state.is_none() {
                        key = format!("{unit:?} {round} {number}");
                    }
                    step(&mut connection, &key, &mut life, &mut random);
                }
            }
        }
    }
}
