//! `TOLLGATE.CHECK`.
use tollgate_test_kit::assert_metrics;
use tollgate_test_kit::resp::{RespServer, command};

const RULES: &str = "\
- { id: plan, per: user, limit: 2/h }
- { id: ban, when: { user: bad }, limit: 0/h }
- { id: vip, when: { user: vip }, limit: unlimited }
- { id: elsewhere, domain: shop, per: user, limit: 5/h }
";

#[test]
fn a_verdict_is_six_elements() {
    for server in RespServer::both(RULES) {
        let mut client = server.connect();
        for (arguments, expected) in [
            (
                "default 1 user a",
                "*6\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1800\r\n$4\r\nplan\r\n",
            ),
            (
                "default 0 user a",
                "*6\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1800\r\n$4\r\nplan\r\n",
            ),
            (
                "default 2 user a",
                "*6\r\n:1\r\n:2\r\n:1\r\n:1800\r\n:1800\r\n$4\r\nplan\r\n",
            ),
            (
                "default 3 user a",
                "*6\r\n:1\r\n:2\r\n:1\r\n:-1\r\n:1800\r\n$4\r\nplan\r\n",
            ),
            (
                "default 1 user bad",
                "*6\r\n:1\r\n:0\r\n:0\r\n:-1\r\n:0\r\n$3\r\nban\r\n",
            ),
            (
                "shop 1 user a",
                "*6\r\n:0\r\n:5\r\n:4\r\n:-1\r\n:720\r\n$9\r\nelsewhere\r\n",
            ),
            ("nowhere 1 user a", "*6\r\n:0\r\n:-1\r\n:-1\r\n:-1\r\n:-1\r\n$-1\r\n"),
            ("default 1", "*6\r\n:0\r\n:-1\r\n:-1\r\n:-1\r\n:-1\r\n$-1\r\n"),
        ] {
            client.expect(&format!("TOLLGATE.CHECK {arguments}"), expected);
        }
        client.send("HELLO 3\r\n");
        while client.line() != "*0" {}
        let none = "*6\r\n:0\r\n:-1\r\n:-1\r\n:-1\r\n:-1\r\n_\r\n";
        client.expect("TOLLGATE.CHECK nowhere 1 user a", none);
    }
}

#[test]
fn what_cannot_be_asked_is_refused_and_charges_nothing() {
    let server = RespServer::start_with(RULES, Default::default());
    let mut client = server.connect();
    let long = "n".repeat(257);
    for (arguments, expected) in [
        (&[][..], "-ERR wrong number of arguments"),
        (&["default"], "-ERR wrong number of arguments"),
        (&["default", "1", "user"], "-ERR wrong number of arguments"),
        (&["default", "-1", "user", "a"], "-ERR invalid cost '-1'"),
        (&["default", "1.5", "user", "a"], "-ERR invalid cost '1.5'"),
        (
            &["default", "1000000000000000", "user", "a"],
            "-ERR invalid cost '1000000000000000'",
        ),
        (
            &["default", "1", "user", "a", "user", "b"],
            "-ERR duplicate attribute 'user'",
        ),
        (&["default", "1", "", "a"], "-ERR the name of an attribute"),
        (&["default", "1", &long, "a"], "-ERR the name of an attribute"),
        (&["", "1", "user", "a"], "-ERR a domain is"),
    ] {
        client.send(command(&[&["TOLLGATE.CHECK"], arguments].concat()));
        let reply = client.line();
        assert!(reply.starts_with(expected), "{arguments:?}: {reply}");
    }
    client.send("TOLLGATE.CHECK default 0 user a\r\n");
    assert_eq!(
        [client.line(), client.line(), client.line(), client.line()],
        ["*6", ":0", ":2", ":2"]
    );
}

#[test]
fn checks_are_counted_by_door() {
    let server = RespServer::start_with(RULES, Default::default());
    server
        .connect()
        .expect("TOLLGATE.CHECK default 1 user a", "*6\r\n:0\r\n");
    let metrics = server.gate.metrics_text();
    let wanted = "tollgate_decisions_total{rule=\"plan\",result=\"allow\",source=\"memory\",protocol=\"resp\"} 1\n";
    assert!(metrics.contains(wanted), "{metrics}");
}

#[test]
fn a_check_in_a_domain_without_rules_is_counted() {
    let server = RespServer::start_with(RULES, Default::default());
    let mut client = server.connect();
    let unlimited = "*6\r\n:0\r\n:-1\r\n:-1\r\n:-1\r\n:-1\r\n$-1\r\n";
    client.expect("TOLLGATE.CHECK shopp 1 user a", unlimited);
    client.expect("TOLLGATE.CHECK shop 1 planet mars", unlimited);
    assert_metrics(
        &server.gate,
        &[
            "tollgate_unmatched_total{protocol=\"resp\",reason=\"unknown_domain\"} 1\n",
            "tollgate_unmatched_total{protocol=\"resp\",reason=\"no_rule\"} 1\n",
            "tollgate_missing_keys_total{rule=\"elsewhere\",domain=\"shop\"} 1\n",
        ],
    );
}
