//! The script against core's `settle`: random batches of requests with several charges, on shared keys, under all policies.

use redis::Connection;
use std::collections::HashMap;
use tollgate_core::testing::random::Random;
use tollgate_core::testing::timeline::Timeline;
use tollgate_core::{
    Charge, Cost, LeaseId, Limit, Micros, Now, OnStoreFailure, Policy, Receipt, State, Timestamp, propose,
};
use tollgate_limiter::store::redis::script::call::{Call, CallTiming, ChargeReply, ScriptOp, ScriptReply};
use tollgate_limiter::store::redis::script::{FUNCTION, LIBRARY, SCRIPT};
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// Requests on each server.
const REQUESTS: u64 = 20_000;

/// The keys that requests share, of every algorithm a few.
const KEYS: u64 = 24;

#[derive(Clone, Copy)]
enum By {
    Script,
    Function,
}

#[test]
fn requests_are_settled_as_in_the_core_on_redis() {
    agree(ServerKind::Redis70, By::Script);
}

#[test]
fn requests_are_settled_as_in_the_core_on_redis_by_a_function() {
    agree(ServerKind::Redis70, By::Function);
}

#[test]
fn requests_are_settled_as_in_the_core_on_valkey() {
    agree(ServerKind::Valkey, By::Script);
}

#[test]
fn requests_are_settled_as_in_the_core_on_valkey_by_a_function() {
    agree(ServerKind::Valkey, By::Function);
}

#[test]
fn requests_are_settled_as_in_the_core_on_the_oldest_redis() {
    agree(ServerKind::Redis62, By::Script);
}

/// A server, and beside it what the core holds of each key.
struct Bench {
    connection: Connection,
    by: By,
    random: Random,
    now: u64,
    keys: Vec<Key>,
    receipts: Vec<(usize, Receipt)>,
    _server: Server,
}

struct Key {
    name: Vec<u8>,
    limit: Limit,
    policy: Policy,
    state: Option<State>,
}

fn agree(kind: ServerKind, by: By) {
    let mut bench = Bench::new(kind, by, 11);
    let mut requests = 0;
    while requests < REQUESTS {
        bench.travel();
        requests += match bench.random.below(12) {
            0 => bench.give_back(),
            1 => bench.forget(),
            2 => bench.settle(ScriptOp::Peek),
            _ => bench.settle(ScriptOp::Settle),
        };
    }
    bench.compare_keys();
}

impl Bench {
    fn new(kind: ServerKind, by: By, seed: u64) -> Self {
        let server = Server::start(kind);
        let client = redis::Client::open(server.url()).expect("an address");
        let mut connection = client.get_connection().expect("a server that answers");
        if matches!(by, By::Function) {
            let name: String = redis::cmd("FUNCTION")
                .arg("LOAD")
                .arg(LIBRARY)
                .query(&mut connection)
                .expect("a library that loads");
            assert_eq!(name, FUNCTION);
        }
        let mut random = Random::new(seed);
        let keys = (0..KEYS).map(|index| Key::draw(index, &mut random)).collect();
        Self {
            connection,
            by,
            random,
            now: 1_700_000_000_000_000,
            keys,
            receipts: Vec::new(),
            _server: server,
        }
    }

    /// Moves the clock, mostly on, sometimes back; and changes a limit now and then.
    fn travel(&mut self) {
        let random = &mut self.random;
        self.now = match random.below(40) {
            0 => self.now - random.below(1_000_000),
            1 => self.now - random.below(30_000_000),
            2..=20 => self.now + random.below(100_000),
            21..=24 => self.now + random.below(20_000_000),
            _ => self.now,
        };
        if random.one_in(20) {
            let index = random.below(KEYS);
            let changed = Key::draw(index, random);
            let key = &mut self.keys[index as usize];
            // Another period of a window is another counter.
            if key.limit.window() == changed.limit.window() {
                key.limit = changed.limit;
            }
        }
    }

    fn clock(&self) -> CallTiming {
        CallTiming {
            caller: Some((Timestamp::from_micros(self.now), Micros::MAX)),
            slack: Now::SLACK,
            not_after: None,
            around: Timestamp::from_micros(self.now),
        }
    }

    fn moment(&self) -> Now {
        Now::new(Timestamp::from_micros(self.now))
    }

    fn send(&mut self, call: &Call, clock: CallTiming) -> ScriptReply {
        let mut command = match self.by {
            By::Script => redis::cmd("EVAL"),
            By::Function => redis::cmd("FCALL"),
        };
        match self.by {
            By::Script => command.arg(SCRIPT),
            By::Function => command.arg(FUNCTION),
        };
        command.arg(call.keys().len());
        for key in call.keys() {
            command.arg(key);
        }
        for argument in call.arguments(clock) {
            command.arg(argument);
        }
        let bytes: Vec<u8> = command.query(&mut self.connection).expect("an answer");
        let answer = call.read(&bytes).expect("an answer that can be read");
        assert_eq!(answer.now, self.moment().at());
        answer
    }

    /// Settles or peeks at some requests, on both sides.
    fn settle(&mut self, mode: ScriptOp) -> u64 {
        let requests = self.random.between(1, 6);
        let mut call = Call::new(mode);
        let mut expected = Vec::new();
        for _ in 0..requests {
            let lease = LeaseId(self.random.next());
            let count = self.random.pick(&[1, 1, 1, 2, 2, 3, 4]);
            let indexes: Vec<usize> = (0..count).map(|_| self.random.below(KEYS) as usize).collect();
            let charges: Vec<Charge<usize>> = indexes.iter().map(|&index| self.draw_charge(index)).collect();
            let named: Vec<Charge<&[u8]>> = charges
                .iter()
                .map(|charge| Charge {
                    key: self.keys[charge.key].name.as_slice(),
                    limit: charge.limit,
                    cost: charge.cost,
                    policy: charge.policy,
                    on_failure: charge.on_failure,
                })
                .collect();
            call.request(&named, lease);
            let now = self.moment();
            let keys = &self.keys;
            let settlement = propose(&charges, |charge, cost| {
                charge.limit.decide(keys[charge.key].state.as_ref(), cost, now)
            });
            for (charge, outcome) in charges.iter().zip(settlement.charges) {
                if let (Some(change), ScriptOp::Settle) = (outcome.change, mode) {
                    charge.limit.keep(&mut self.keys[charge.key].state, change, lease);
                }
                let receipt = Receipt {
                    cost: charge.cost,
                    mark: outcome.mark,
                    lease,
                };
                expected.push((*charge, outcome.decision, receipt, settlement.allowed));
            }
        }
        let clock = self.clock();
        let reply = self.send(&call, clock).replies.expect("not too late");
        assert_eq!(reply.len(), expected.len());
        for (reply, (charge, decision, receipt, allowed)) in reply.into_iter().zip(expected) {
            let ChargeReply::Charge {
                decision: replied,
                receipt: given,
                kept,
                allowed: passed,
                ..
            } = reply
            else {
                panic!("{reply:?}: not a charge");
            };
            assert_eq!(
                (replied, given, passed),
                (decision, receipt, allowed),
                "{charge:?} at {}",
                self.now
            );
            let should_keep = match charge.policy {
                Policy::Enforce => allowed,
                Policy::Shadow => allowed && decision.is_allow(),
                Policy::Count => true,
            };
            assert_eq!(kept, should_keep, "{charge:?}");
            if kept && decision.is_allow() && mode == ScriptOp::Settle {
                self.receipts.push((charge.key, receipt));
            }
        }
        self.receipts.drain(..self.receipts.len().saturating_sub(40));
        requests
    }

    fn draw_charge(&mut self, index: usize) -> Charge<usize> {
        let Key {
            limit, policy, state, ..
        } = &self.keys[index];
        let remaining = limit
            .decide(state.as_ref(), Cost::ZERO, self.moment())
            .decision
            .standing()
            .remaining;
        let units = match self.random.below(8) {
            0 => 0,
            1 => remaining,
            2 => remaining + 1,
            3 => limit.capacity() + 1,
            _ => self.random.between(1, 3),
        };
        Charge {
            key: index,
            limit: *limit,
            cost: Cost::new(units.min(Cost::MAX.get())).expect("in range"),
            policy: *policy,
            on_failure: OnStoreFailure::Local,
        }
    }

    /// Undo, refund, release or renew, on both sides.
    fn give_back(&mut self) -> u64 {
        let Some(&(index, receipt)) = self
            .receipts
            .get(self.random.below(self.receipts.len().max(1) as u64) as usize)
        else {
            return 0;
        };
        let mode = self
            .random
            .pick(&[ScriptOp::Undo, ScriptOp::Refund, ScriptOp::Release, ScriptOp::Renew]);
        let now = self.moment();
        let Key { name, limit, state, .. } = &mut self.keys[index];
        let mut call = Call::new(mode);
        call.modify(name, limit, &receipt);
        let change = match (mode, &limit, state.as_ref()) {
            (ScriptOp::Undo, limit, state) => limit.undo(state, &receipt, now),
            (ScriptOp::Refund, limit, state) => limit.refund(state, receipt.cost, now),
            (ScriptOp::Release, Limit::Concurrency(limit), Some(State::Concurrency(ring))) => limit
                .release(ring, receipt.lease, now)
                .map(tollgate_core::Change::Concurrency),
            (ScriptOp::Renew, Limit::Concurrency(limit), Some(State::Concurrency(ring))) => limit
                .renew(ring, receipt.lease, now)
                .map(tollgate_core::Change::Concurrency),
            _ => None,
        };
        let gives = change.is_some();
        if let Some(change) = change {
            limit.keep(state, change, receipt.lease);
        }
        let stands = limit.decide(state.as_ref(), Cost::ZERO, now).decision;
        let limit = *limit;
        let clock = self.clock();
        let reply = self.send(&call, clock).replies.expect("not too late");
        let [ChargeReply::Charge { decision, kept, .. }] = reply.as_slice() else {
            panic!("{reply:?}: not one charge");
        };
        assert_eq!(
            (*kept, *decision),
            (gives, stands),
            "{mode:?} of {receipt:?} under {limit:?} at {}",
            self.now
        );
        1
    }

    fn forget(&mut self) -> u64 {
        let index = self.random.below(KEYS) as usize;
        let mut call = Call::new(ScriptOp::Forget);
        call.forget(&self.keys[index].name);
        let held = self.keys[index].state.take().is_some();
        let clock = self.clock();
        assert_eq!(self.send(&call, clock).replies, Some(vec![ChargeReply::Cleared(held)]));
        1
    }

    /// What the server holds is what the core holds, and each key has its time to live.
    fn compare_keys(&mut self) {
        let mut live = HashMap::new();
        for key in &self.keys {
            let value: Option<Vec<u8>> = redis::cmd("GET")
                .arg(&key.name)
                .query(&mut self.connection)
                .expect("a value");
            let mut expected = None;
            if let Some(state) = &key.state {
                state.write_packed(expected.insert(Vec::new()));
            }
            assert_eq!(value, expected, "{:?}", key.limit);
            if value.is_some() {
                let ttl: i64 = redis::cmd("PTTL")
                    .arg(&key.name)
                    .query(&mut self.connection)
                    .expect("a time");
                assert!(ttl > 0, "{:?} has no time to live", key.limit);
                *live.entry(key.limit.algorithm()).or_insert(0) += 1;
            }
        }
        assert_eq!(
            live.len(),
            Limit::ALGORITHMS.len(),
            "keys of every algorithm are live: {live:?}"
        );
    }
}

impl Key {
    fn draw(index: u64, random: &mut Random) -> Self {
        let algorithm = Limit::ALGORITHMS[(index % 8) as usize];
        let limit = loop {
            let mut life = Timeline::new(algorithm, random.next());
            let limit = life.step().expect("a life has a first step").limit;
            // Small ones, so that charges meet; and windows of one length, so that they can change.
            if limit.capacity() < 5_000 && limit.window().is_none_or(|window| window == Micros::from_secs(10)) {
                break limit;
            }
        };
        Self {
            name: format!("tollgate:{{one}}:{index:032}").into_bytes(),
            limit,
            policy: random.pick(&[Policy::Enforce, Policy::Enforce, Policy::Shadow, Policy::Count]),
            state: None,
        }
    }
}
