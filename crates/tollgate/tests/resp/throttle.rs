//! `CL.THROTTLE`, reply for reply.

use tollgate_limiter::core::Micros;
use tollgate_test_kit::resp::{Client, RespServer, command};
use tollgate_test_kit::table::assert_contains;

/// Calls on keys never seen: what is asked behind the name and the key, and the reply.
const CALLS: [&[(&str, &str)]; 26] = [
    &[("15 30 60", "0 16 15 -1 2")],
    &[("15 30 60 3", "0 16 13 -1 6")],
    &[("0 1 2", "0 1 0 -1 2"), ("0 1 2", "1 1 0 2 2")],
    &[
        ("4 5 1", "0 5 4 -1 1"),
        ("4 5 1", "0 5 3 -1 1"),
        ("4 5 1", "0 5 2 -1 1"),
        ("4 5 1", "0 5 1 -1 1"),
        ("4 5 1", "0 5 0 -1 1"),
        ("4 5 1", "1 5 0 1 1"),
    ],
    &[("0 3 10", "0 1 0 -1 4"), ("0 3 10", "1 1 0 4 4")],
    &[("4 1 1 0", "0 5 5 -1 0")],
    &[("4 1 10 2", "0 5 3 -1 20"), ("4 1 10 0", "0 5 3 -1 20")],
    &[("0 1 10", "0 1 0 -1 10"), ("0 1 10 0", "0 1 0 -1 10")],
    &[("4 1 1 6", "1 5 5 -1 0"), ("4 1 1 5", "0 5 0 -1 5")],
    &[
        ("4 1 10 2", "0 5 3 -1 20"),
        ("4 1 10 6", "1 5 3 -1 20"),
        ("4 1 10 5", "1 5 3 20 20"),
        ("4 1 10 3", "0 5 0 -1 50"),
    ],
    &[("4 1 10 3", "0 5 2 -1 30"), ("4 1 10 -2", "0 5 4 -1 10")],
    // A refund stops at full, also of a key that is not there.
    &[
        ("4 1 10 -1", "0 5 5 -1 0"),
        ("4 1 10", "0 5 4 -1 10"),
        ("4 1 10 -9223372036854775808", "0 5 5 -1 0"),
    ],
    &[
        ("9 1 10 10", "0 10 0 -1 100"),
        ("0 1 1", "1 1 0 100 100"),
        ("0 1 1 0", "1 1 0 99 100"),
    ],
    &[("+1 +1 +10", "0 2 1 -1 10")],
    &[("10 2000000 1", "0 11 10 -1 0")],
    // Half a microsecond below a millisecond is still less than one.
    &[("0 2001 2", "0 1 0 -1 0")],
    // Any number can be used up, and is reported up to the largest integer.
    &[(
        "9223372036854775806 1 1",
        "0 9223372036854775807 9223372036854775806 -1 1",
    )],
    &[(
        "9223372036854775807 1 1",
        "0 9223372036854775807 9223372036854775807 -1 1",
    )],
    &[("5000000000 1 1 3", "0 5000000001 4999999998 -1 3")],
    &[
        (
            "9223372036854775806 1 1 9223372036854775807",
            "0 9223372036854775807 0 -1 9223372036854775807",
        ),
        (
            "9223372036854775806 1 1 1000000000",
            "1 9223372036854775807 0 1000000000 9223372036854775807",
        ),
    ],
    &[("0 1 9223372036854775807", "0 1 0 -1 9223372036854775807")],
    &[("4 1 1 9223372036854775807", "1 5 5 -1 0")],
    &[("0 1 4503599627", "0 1 0 -1 4503599627")],
    &[("00 01 002 0", "0 1 1 -1 0")],
    &[("15 30 60 1", "0 16 15 -1 2")],
    &[("999999999 1000000000 1 1000000000", "0 1000000000 0 -1 1")],
];

const REFUSED: [(&str, &str); 19] = [
    ("k 1 0 1", "Zero rates are not supported"),
    ("k 1 1 0", "Zero rates are not supported"),
    ("k 1 0 0", "Zero rates are not supported"),
    ("k 1 1000000001 1", "Zero rates are not supported"),
    ("k -1 1 1", "Invalid rate"),
    ("k -5 1 1", "Invalid rate"),
    ("k 1 -1 1", "Invalid rate"),
    ("k 1 1 -10", "Invalid rate"),
    ("", USAGE),
    ("k", USAGE),
    ("k 1 1", USAGE),
    ("k 1 1 1 1 1", USAGE),
    ("k abc 1 1", "Couldn't parse as integer: abc"),
    ("k 1 1.5 1", "Couldn't parse as integer: 1.5"),
    ("k 1 1 ' 1'", "Couldn't parse as integer:  1"),
    (
        "k 1 1 1 9223372036854775808",
        "Couldn't parse as integer: 9223372036854775808",
    ),
    ("k 1 1 1 ''", "Couldn't parse as integer: "),
    ("k - 1 1", "Couldn't parse as integer: -"),
    ("k a b c", "Couldn't parse as integer: a"),
];

const USAGE: &str = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";

fn reply(integers: &str) -> String {
    let lines: String = integers.split(' ').map(|integer| format!(":{integer}\r\n")).collect();
    format!("*5\r\n{lines}")
}

#[test]
fn every_call_is_answered_as_redis_cell_answers_it() {
    for server in RespServer::both("") {
        let mut client = server.connect();
        for (key, calls) in CALLS.iter().enumerate() {
            for (arguments, expected) in *calls {
                client.expect(&format!("CL.THROTTLE key-{key} {arguments}"), &reply(expected));
            }
        }
    }
}

#[test]
fn calls_that_make_no_sense_are_refused_in_its_words_and_charge_nothing() {
    for server in RespServer::both("") {
        let mut client = server.connect();
        for (arguments, expected) in REFUSED {
            client.expect(
                &format!("CL.THROTTLE {arguments}"),
                &format!("-Cell error: Store error: {expected}\r\n"),
            );
        }
        client.expect("CL.THROTTLE k 1 1 1 0", &reply("0 2 2 -1 0"));
    }
}

#[test]
fn keys_are_bytes_and_names_are_in_any_case() {
    let server = RespServer::start();
    let mut client = server.connect();
    let long = "k".repeat(8 * 1024);
    for key in ["", "ключ", "a\r\nb", "a b", "%s", &long] {
        for (name, expected) in [("CL.THROTTLE", "0 1 0 -1 10"), ("cl.throttle", "1 1 0 10 10")] {
            client.send(command(&[name, key, "0", "1", "10"]));
            let expected = reply(expected);
            assert_eq!(client.read(expected.len()), expected, "{key}");
        }
    }
    client.send(b"*5\r\n$11\r\ncL.tHROTTLE\r\n$2\r\n\xff\x00\r\n$1\r\n0\r\n$1\r\n1\r\n$2\r\n10\r\n");
    assert_eq!(client.integers(), [0, 1, 0, -1, 10]);
}

#[test]
fn a_line_break_in_what_is_repeated_ends_no_line() {
    let server = RespServer::start();
    let mut client = server.connect();
    client.send(command(&["CL.THROTTLE", "k", "1\r\n+OK", "1", "1"]));
    assert_eq!(
        client.line(),
        "-Cell error: Store error: Couldn't parse as integer: 1  +OK"
    );
    client.send(command(&["NO\r\nTHING"]));
    assert_eq!(client.line(), "-ERR unknown command 'NO  THING'");
    client.expect("PING", "+PONG\r\n");
}

#[test]
fn time_gives_back_to_the_microsecond() {
    let server = RespServer::start();
    let mut client = server.connect();
    let call = |client: &mut Client| {
        client.send("CL.THROTTLE k 0 3 10\r\n");
        client.integers()
    };
    assert_eq!(call(&mut client), [0, 1, 0, -1, 4]);
    server.clock.advance(Micros::new(3_332_333));
    assert_eq!(call(&mut client), [1, 1, 0, 1, 1]);
    server.clock.advance(Micros::new(1));
    assert_eq!(call(&mut client), [1, 1, 0, 0, 0]);
    server.clock.advance(Micros::new(1_000));
    assert_eq!(call(&mut client), [0, 1, 0, -1, 4]);
}

#[test]
fn a_rule_and_a_call_never_share_a_counter() {
    for server in
        RespServer::both("- { id: CL.THROTTLE, domain: CL.THROTTLE, per: key, algorithm: gcra, limit: 2/h }\n")
    {
        let mut client = server.connect();
        client.expect("CL.THROTTLE k 1 2 3600 2", &reply("0 2 0 -1 3600"));
        client.send("TOLLGATE.CHECK CL.THROTTLE 1 key k\r\n");
        assert_eq!(client.line(), "*6");
        assert_eq!([client.line(), client.line(), client.line()], [":0", ":2", ":1"]);
    }
}

#[test]
fn while_the_store_is_away_calls_are_held_to_a_share_and_closed_rules_say_so() {
    let mut server = RespServer::start_shared("- { id: shut, per: key, limit: 2/h, on_store_failure: closed }\n");
    let mut client = server.connect();
    client.expect("CL.THROTTLE k 0 1 10", &reply("0 1 0 -1 10"));
    server.redis.as_mut().unwrap().kill();
    // 0.8 of one in ten seconds, and never less than one at once.
    client.expect("CL.THROTTLE other 0 1 10", &reply("0 1 0 -1 13"));
    client.send("CL.THROTTLE other 0 1 10\r\n");
    assert_eq!(client.integers()[0], 1, "it is refused");
    let reply = client.request("TOLLGATE.CHECK default 1 key k");
    assert!(reply.starts_with("-ERR store unavailable"), "{reply}");
    client.expect("PING", "+PONG\r\n");
}

#[test]
fn calls_are_counted_by_door_and_result() {
    let server = RespServer::start();
    let mut client = server.connect();
    for line in [
        "CL.THROTTLE k 0 1 10",
        "CL.THROTTLE k 0 1 10",
        "CL.THROTTLE k 0 1 10 2000000000",
    ] {
        client.send(format!("{line}\r\n"));
        client.integers();
    }
    client.request("CL.THROTTLE k");
    let metrics = server.gate.metrics_text();
    assert_contains(
        &metrics,
        &[
            "tollgate_checks_total{result=\"allow\",source=\"memory\",protocol=\"resp\"} 1\n",
            "tollgate_checks_total{result=\"deny\",source=\"memory\",protocol=\"resp\"} 2\n",
            "tollgate_decisions_total{rule=\"(CL.THROTTLE)\",result=\"deny\",source=\"memory\",protocol=\"resp\"} 2\n",
            "tollgate_decision_seconds_count 3\n",
        ],
    );
}
