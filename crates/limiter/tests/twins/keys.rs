//! What the script does to keys: foreign ones are left alone, late calls touch nothing, every key ends, none is large.

use redis::Connection;
use tollgate_core::{Charge, FixedWindow, Gcra, LeaseId, Limit, Micros, Now, Rate, SlidingLog, Timestamp, TokenBucket};
use tollgate_limiter::store::redis::script::SCRIPT;
use tollgate_limiter::store::redis::script::call::{Call, CallTiming, ChargeReply, ScriptOp, ScriptReply};
use tollgate_limiter::testing::admin::{connect, query as call};
use tollgate_limiter::testing::counters;
use tollgate_limiter::testing::servers::{Server, ServerKind};

pub(crate) fn send(connection: &mut Connection, call: &Call, clock: CallTiming) -> ScriptReply {
    let mut command = redis::cmd("EVAL");
    command.arg(SCRIPT).arg(call.keys().len()).arg(call.keys());
    let bytes: Vec<u8> = command
        .arg(&call.arguments(clock))
        .query(connection)
        .expect("an answer");
    call.read(&bytes).expect("an answer that can be read")
}

fn rate(units: u64, seconds: u64) -> Rate {
    Rate::new(units, Micros::from_secs(seconds)).expect("in range")
}

fn charge(key: &str, limit: Limit, units: u64) -> Charge<&str> {
    counters::charge(key, &limit, units)
}

/// A call with one request of one unit of 5 a minute.
fn one_unit(op: ScriptOp) -> Call {
    let mut call = Call::new(op);
    call.request(
        &[charge("key", TokenBucket::new(rate(5, 60)).into(), 1)],
        LeaseId::default(),
    );
    call
}

fn clock() -> CallTiming {
    CallTiming {
        slack: Now::SLACK,
        ..CallTiming::default()
    }
}

/// Settles one request and says what came of each of its charges.
fn settle(connection: &mut Connection, charges: &[Charge<&str>]) -> Vec<ChargeReply> {
    let mut call = Call::new(ScriptOp::Settle);
    call.request(charges, LeaseId(7));
    send(connection, &call, clock()).replies.expect("not too late")
}

fn is_allow(reply: &ChargeReply) -> bool {
    matches!(reply, ChargeReply::Charge { decision, .. } if decision.is_allow())
}

#[test]
fn a_key_of_another_type_is_an_outcome_and_stays_as_it_is() {
    for kind in ServerKind::ALL {
        let server = Server::start(kind);
        let mut connection = connect(&server);
        let limits: [Limit; 3] = [
            TokenBucket::new(rate(5, 60)).into(),
            FixedWindow::new(rate(5, 60)).into(),
            SlidingLog::new(rate(5, 60)).expect("in range").into(),
        ];
        let _: u64 = call(&mut connection, &["RPUSH", "list", "one"]);
        let _: u64 = call(&mut connection, &["SADD", "set", "one"]);
        let _: String = call(&mut connection, &["SET", "word", "hello"]);
        let _: String = call(&mut connection, &["SET", "count", "17"]);
        for limit in limits {
            for foreign in ["list", "set", "word", "count"] {
                // Alone, beside others read at once, and beside a log, which has keys read one by one.
                assert_eq!(
                    settle(&mut connection, &[charge(foreign, limit, 1)]),
                    [ChargeReply::ForeignValue],
                    "{kind:?}"
                );
                let caller = format!("own of {foreign} {}", limit.algorithm());
                for more in [limits[0], limits[2]] {
                    let caller = format!("{caller} {}", more.algorithm());
                    let reply = settle(&mut connection, &[charge(&caller, more, 1), charge(foreign, limit, 1)]);
                    assert!(is_allow(&reply[0]), "{reply:?}");
                    assert_eq!(reply[1], ChargeReply::ForeignValue);
                }
            }
        }
        assert_eq!(
            call::<Vec<String>>(&mut connection, &["LRANGE", "list", "0", "-1"]),
            ["one"]
        );
        assert_eq!(call::<String>(&mut connection, &["GET", "word"]), "hello");
        assert_eq!(call::<String>(&mut connection, &["GET", "count"]), "17");
        let mut call = Call::new(ScriptOp::Forget);
        call.forget(b"list");
        assert_eq!(
            send(&mut connection, &call, clock()).replies,
            Some(vec![ChargeReply::Cleared(true)])
        );
        assert!(is_allow(&settle(&mut connection, &[charge("list", limits[0], 1)])[0]));
    }
}

#[test]
fn a_call_that_begins_too_late_takes_nothing_and_says_the_time() {
    let server = Server::start(ServerKind::Redis70);
    let mut connection = connect(&server);
    let call = one_unit(ScriptOp::Settle);
    let early = send(&mut connection, &call, clock());
    let deadline_passed = CallTiming {
        not_after: Some(early.server_now - Micros::ONE),
        ..clock()
    };
    let answer = send(&mut connection, &call, deadline_passed);
    assert_eq!(answer.replies, None);
    assert!(answer.server_now >= early.server_now);
    let in_time = CallTiming {
        not_after: Some(answer.server_now + Micros::from_secs(60)),
        ..clock()
    };
    let reply = send(&mut connection, &call, in_time).replies.expect("in time");
    let ChargeReply::Charge { decision, .. } = &reply[0] else {
        panic!("{reply:?}")
    };
    assert_eq!(decision.standing().remaining, 3, "the late call took nothing");
}

#[test]
fn the_callers_clock_is_believed_only_within_the_tolerance() {
    let server = Server::start(ServerKind::Redis70);
    let mut connection = connect(&server);
    let call = one_unit(ScriptOp::Peek);
    let server_now = send(&mut connection, &call, clock()).server_now;
    let ahead = server_now + Micros::from_secs(600);
    for (tolerance, uses_callers_clock) in [(Micros::from_secs(1_200), true), (Micros::from_secs(300), false)] {
        for caller in [ahead, server_now - Micros::from_secs(600)] {
            let answer = send(
                &mut connection,
                &call,
                CallTiming {
                    caller: Some((caller, tolerance)),
                    ..clock()
                },
            );
            assert_eq!(answer.now == caller, uses_callers_clock);
            assert!(uses_callers_clock || answer.now == answer.server_now);
        }
    }
}

#[test]
fn every_key_lives_until_it_is_as_good_as_new_and_at_most_twice_that_and_a_minute() {
    let server = Server::start(ServerKind::Redis70);
    let mut connection = connect(&server);
    for (seconds, units) in [
        (1, 1),
        (10, 7),
        (60, 100),
        (61, 10),
        (3_600, 999),
        (86_400, 3),
        (31_000_000, 3),
    ] {
        let rate = rate(units, seconds);
        let limits: [Limit; 4] = [
            TokenBucket::new(rate).into(),
            Gcra::new(rate).into(),
            FixedWindow::new(rate).into(),
            SlidingLog::new(rate).expect("in range").into(),
        ];
        for limit in limits {
            let key = format!("{} {units} {seconds}", limit.algorithm());
            for cost in [1, units, units] {
                let reply = settle(&mut connection, &[charge(&key, limit, cost)]);
                let ChargeReply::Charge { decision, .. } = &reply[0] else {
                    panic!("{reply:?}")
                };
                let fresh_ms = decision.standing().reset_after.as_millis_ceil() as i64;
                let ttl: i64 = call(&mut connection, &["PTTL", &key]);
                // Time passes between the two questions.
                assert!(ttl >= fresh_ms - 2_000, "{key}: {ttl} ms, fresh in {fresh_ms} ms");
                assert!(ttl <= 2 * fresh_ms + 60_001, "{key}: {ttl} ms, fresh in {fresh_ms} ms");
            }
        }
    }
    let keys: Vec<String> = call(&mut connection, &["KEYS", "*"]);
    for key in keys {
        assert!(call::<i64>(&mut connection, &["TTL", &key]) > 0, "{key} never ends");
    }
}

#[test]
fn nothing_is_written_when_nothing_changes() {
    let server = Server::start(ServerKind::Redis70);
    let mut connection = connect(&server);
    let limit = TokenBucket::new(rate(5, 60)).into();
    settle(&mut connection, &[charge("key", limit, 5)]);
    let writes = |connection: &mut Connection| {
        let stats: String = call(connection, &["INFO", "commandstats"]);
        stats
            .lines()
            .find(|line| line.starts_with("cmdstat_set:"))
            .expect("counted")
            .to_owned()
    };
    let before = writes(&mut connection);
    for cost in [0, 1, 9] {
        settle(&mut connection, &[charge("key", limit, cost)]);
    }
    assert_eq!(writes(&mut connection), before);
}

#[test]
fn states_are_small() {
    let server = Server::start(ServerKind::Redis70);
    let mut connection = connect(&server);
    let name = |index: u64| format!("tollgate:{{0123456789abcdef}}:{index:032}");
    let _: String = call(&mut connection, &["SET", &name(1), "123456", "EX", "600"]);
    let plain: u64 = call(&mut connection, &["MEMORY", "USAGE", &name(1)]);
    for (index, limit) in [
        (2, TokenBucket::new(rate(7, 60)).into()),
        (3, Gcra::new(rate(7, 60)).into()),
    ] {
        settle(&mut connection, &[charge(&name(index), limit, 1)]);
        let usage: u64 = call(&mut connection, &["MEMORY", "USAGE", &name(index)]);
        assert!(usage <= plain + 48, "{limit:?}: {usage} bytes beside {plain}");
    }
    // A full log of a thousand requests, each at a moment of its own.
    let limit: Limit = SlidingLog::new(rate(1_000, 3_600)).expect("in range").into();
    let start = 1_700_000_000_000_000;
    for request in 0..1_200 {
        let mut call = Call::new(ScriptOp::Settle);
        call.request(&[charge(&name(4), limit, 1)], LeaseId::default());
        let caller = Some((Timestamp::from_micros(start + 5_000 * request), Micros::MAX));
        let reply = send(&mut connection, &call, CallTiming { caller, ..clock() })
            .replies
            .expect("not too late");
        assert_eq!(is_allow(&reply[0]), request < 1_000);
    }
    let usage: u64 = call(&mut connection, &["MEMORY", "USAGE", &name(4)]);
    assert!(usage <= 9 * 1_000, "{usage} bytes for 1000 requests");
    println!("plain {plain} bytes, log of 1000 {usage} bytes");
}
