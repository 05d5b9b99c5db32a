//! What a request of several descriptors takes, and what callers may say about it.

use prost::Message;
use tollgate::server::rls::rate_limit_response::{Code, rate_limit::Unit};
use tollgate::server::rls::{
    RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitUnit, rate_limit_descriptor,
};
use tollgate_test_kit::assert_metrics;
use tollgate_test_kit::grpc::{GrpcServer, SHOULD_RATE_LIMIT, descriptor, hits, request_for};

const TENANTS: &str = "- { id: tenant, per: tenant, limit: 10/min }\n";

fn codes(response: &RateLimitResponse) -> (Code, Vec<(Code, u32)>) {
    let each = response.statuses.iter();
    (
        response.overall_code(),
        each.map(|status| (status.code(), status.limit_remaining)).collect(),
    )
}

fn tenant(name: &str) -> RateLimitDescriptor {
    descriptor(&[("tenant", name)])
}

#[test]
fn each_descriptor_has_its_status_in_order() {
    let server = GrpcServer::start(TENANTS);
    let response = server.connect().should_rate_limit(&request_for([
        hits(&[("tenant", "a")], 3),
        descriptor(&[("other", "x")]),
        tenant("b"),
    ]));
    assert_eq!(
        codes(&response),
        (Code::Ok, vec![(Code::Ok, 7), (Code::Ok, 0), (Code::Ok, 9)])
    );
}

#[test]
fn a_refused_request_takes_nothing_anywhere() {
    let server = GrpcServer::start(TENANTS);
    let mut client = server.connect();
    let refused = client.should_rate_limit(&request_for([tenant("a"), hits(&[("tenant", "b")], 11), tenant("c")]));
    // Those that would pass are told as they stand.
    let expected = vec![(Code::Ok, 10), (Code::OverLimit, 0), (Code::Ok, 10)];
    assert_eq!(codes(&refused), (Code::OverLimit, expected));
    let peek = client.should_rate_limit(&request_for(["a", "b", "c"].map(|name| hits(&[("tenant", name)], 0))));
    assert_eq!(codes(&peek), (Code::Ok, vec![(Code::Ok, 10); 3]));
}

#[test]
fn one_that_is_banned_keeps_the_others_from_being_charged() {
    let server = GrpcServer::start(&format!(
        "{TENANTS}- {{ id: ban, when: {{ tenant: bad }}, limit: 0/min }}\n"
    ));
    let mut client = server.connect();
    let refused = client.should_rate_limit(&request_for([tenant("a"), tenant("bad")]));
    assert_eq!(
        codes(&refused),
        (Code::OverLimit, vec![(Code::Ok, 10), (Code::OverLimit, 0)])
    );
    assert_eq!(
        codes(&client.should_rate_limit(&request_for([tenant("a")]))).1,
        [(Code::Ok, 9)]
    );
}

#[test]
fn the_same_counter_twice_adds_up() {
    let server = GrpcServer::start(TENANTS);
    let mut client = server.connect();
    let six = || hits(&[("tenant", "a")], 6);
    let refused = client.should_rate_limit(&request_for([six(), six()]));
    assert_eq!(refused.overall_code(), Code::OverLimit);
    assert_eq!(
        codes(&client.should_rate_limit(&request_for([six(), tenant("a")]))),
        (Code::Ok, vec![(Code::Ok, 4), (Code::Ok, 3)])
    );
}

#[test]
fn hits_of_a_request_hold_for_descriptors_without_their_own_and_zero_is_one() {
    let server = GrpcServer::start(TENANTS);
    let mut client = server.connect();
    let with = |hits_addend, descriptors: Vec<RateLimitDescriptor>| RateLimitRequest {
        hits_addend,
        ..request_for(descriptors)
    };
    let response = client.should_rate_limit(&with(
        4,
        vec![tenant("a"), hits(&[("tenant", "b")], 2), hits(&[("tenant", "c")], 0)],
    ));
    assert_eq!(
        codes(&response),
        (Code::Ok, vec![(Code::Ok, 6), (Code::Ok, 8), (Code::Ok, 10)])
    );
    assert_eq!(
        codes(&client.should_rate_limit(&with(0, vec![tenant("d")]))),
        (Code::Ok, vec![(Code::Ok, 9)])
    );
    // Looking at what is used up is no refusal.
    client.should_rate_limit(&with(10, vec![tenant("e")]));
    assert_eq!(
        codes(&client.should_rate_limit(&with(0, vec![hits(&[("tenant", "e")], 0)]))),
        (Code::Ok, vec![(Code::Ok, 0)])
    );
}

#[test]
fn negative_hits_are_given_back_up_to_full_and_only_if_the_request_passes() {
    let server = GrpcServer::start(TENANTS);
    let mut client = server.connect();
    let back = |name, count| RateLimitDescriptor {
        is_negative_hits: true,
        ..hits(&[("tenant", name)], count)
    };
    client.should_rate_limit(&request_for([hits(&[("tenant", "a")], 8)]));
    assert_eq!(
        codes(&client.should_rate_limit(&request_for([back("a", 3)]))),
        (Code::Ok, vec![(Code::Ok, 5)])
    );
    assert_eq!(
        codes(&client.should_rate_limit(&request_for([back("a", 100)]))),
        (Code::Ok, vec![(Code::Ok, 10)])
    );
    assert_eq!(
        codes(&client.should_rate_limit(&request_for([back("a", u64::MAX)]))),
        (Code::Ok, vec![(Code::Ok, 10)])
    );
    client.should_rate_limit(&request_for([hits(&[("tenant", "a")], 8)]));
    let refused = client.should_rate_limit(&request_for([back("a", 3), hits(&[("tenant", "b")], 11)]));
    assert_eq!(
        codes(&refused),
        (Code::OverLimit, vec![(Code::Ok, 2), (Code::OverLimit, 0)])
    );
    let passed = client.should_rate_limit(&request_for([back("a", 3), tenant("b")]));
    assert_eq!(codes(&passed), (Code::Ok, vec![(Code::Ok, 5), (Code::Ok, 9)]));
}

#[test]
fn entries_are_found_by_name_in_any_order_and_a_repeated_key_keeps_all_its_values() {
    let server = GrpcServer::start(
        "- { id: pair, per: [a, b], limit: 10/min }\n- { id: admins, when: { role: admin }, per: [role], limit: 5/min }\n",
    );
    let mut client = server.connect();
    let mut left =
        |entries: &[(&str, &str)]| codes(&client.should_rate_limit(&request_for([descriptor(entries)]))).1[0].1;
    assert_eq!(left(&[("a", "1"), ("b", "2")]), 9);
    assert_eq!(left(&[("b", "2"), ("more", "x"), ("a", "1")]), 8);
    assert_eq!(left(&[("b", "1"), ("a", "2")]), 9);
    // All values, in order, are the subject; one that fits is enough for a condition.
    assert_eq!(left(&[("a", "1"), ("a", "3"), ("b", "2")]), 9);
    assert_eq!(left(&[("a", "3"), ("a", "1"), ("b", "2")]), 9);
    assert_eq!(left(&[("a", "1"), ("a", "3"), ("b", "2")]), 8);
    assert_eq!(left(&[("role", "guest"), ("role", "admin")]), 4);
    assert_eq!(left(&[("role", "admin")]), 4);
    assert_eq!(left(&[("role", "guest"), ("role", "admin")]), 3);
}

#[test]
fn a_limit_that_is_brought_along_holds_instead_of_the_rules_on_its_own_counter() {
    let server = GrpcServer::start(TENANTS);
    let mut client = server.connect();
    let with = |name, count, (requests_per_unit, unit): (u32, RateLimitUnit)| RateLimitDescriptor {
        limit: Some(rate_limit_descriptor::RateLimitOverride {
            requests_per_unit,
            unit: unit.into(),
        }),
        ..hits(&[("tenant", name)], count)
    };
    let hour = |units| (units, RateLimitUnit::Hour);
    let response = client.should_rate_limit(&request_for([with("a", 15, hour(20))]));
    assert_eq!(codes(&response), (Code::Ok, vec![(Code::Ok, 5)]));
    let limit = response.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!(
        (limit.requests_per_unit, limit.unit(), &*limit.name),
        (20, Unit::Hour, "")
    );
    assert_eq!(response.statuses[0].duration_until_reset.unwrap().seconds, 2_700);
    // The rule's counter, and another subject's, are apart.
    assert_eq!(
        codes(&client.should_rate_limit(&request_for([tenant("a")]))).1,
        [(Code::Ok, 9)]
    );
    assert_eq!(
        codes(&client.should_rate_limit(&request_for([with("b", 1, hour(20))]))).1,
        [(Code::Ok, 19)]
    );
    let refused = client.should_rate_limit(&request_for([with("a", 6, hour(20)), tenant("a")]));
    assert_eq!(
        codes(&refused),
        (Code::OverLimit, vec![(Code::OverLimit, 0), (Code::Ok, 9)])
    );
    assert_eq!(refused.statuses[0].duration_until_reset.unwrap().seconds, 180);
    // Giving back.
    let back = RateLimitDescriptor {
        is_negative_hits: true,
        ..with("a", 4, hour(20))
    };
    assert_eq!(
        codes(&client.should_rate_limit(&request_for([back]))).1,
        [(Code::Ok, 9)]
    );
    // Nothing at all, and more than any limit has.
    assert_eq!(
        codes(&client.should_rate_limit(&request_for([with("a", 1, hour(0))]))).1,
        [(Code::OverLimit, 0)]
    );
    assert_eq!(
        codes(&client.should_rate_limit(&request_for([with("a", 0, hour(0))]))).1,
        [(Code::Ok, 0)]
    );
    // All that a limit can be is counted.
    for (name, unit) in [("c", RateLimitUnit::Second), ("d", RateLimitUnit::Year)] {
        let largest = |count| request_for([with(name, count, (u32::MAX, unit))]);
        let response = client.should_rate_limit(&largest(1));
        assert_eq!(codes(&response).1, [(Code::Ok, 4_294_967_294)]);
        let limit = response.statuses[0].current_limit.as_ref().unwrap();
        assert_eq!(limit.requests_per_unit, u32::MAX);
        let rest = client.should_rate_limit(&largest(4_294_967_294));
        assert_eq!(codes(&rest).1, [(Code::Ok, 0)]);
        let more = client.should_rate_limit(&largest(4_294_967_295));
        assert_eq!(codes(&more).0, Code::OverLimit);
    }
    // Only where there are rules.
    let elsewhere = RateLimitRequest {
        domain: "elsewhere".to_owned(),
        ..request_for([with("a", 1, hour(0))])
    };
    assert_eq!(
        codes(&client.should_rate_limit(&elsewhere)),
        (Code::Ok, vec![(Code::Ok, 0)])
    );
    // Without a unit it is none.
    let (status, text) = client.rejected(&request_for([with("a", 1, (1, RateLimitUnit::Unknown))]));
    assert_eq!(status, 3, "{text}");
}

#[test]
fn what_makes_no_sense_is_refused_in_the_words_that_migrators_know() {
    let server = GrpcServer::start(TENANTS);
    let mut client = server.connect();
    let nowhere = RateLimitRequest {
        domain: String::new(),
        ..request_for([tenant("a")])
    };
    assert_eq!(
        client.rejected(&nowhere),
        (3, "rate limit domain must not be empty".to_owned())
    );
    let nothing = client.rejected(&request_for([]));
    assert_eq!(nothing, (3, "rate limit descriptor list must not be empty".to_owned()));
    let garbage = client.call(SHOULD_RATE_LIMIT, b"\xff\xff\xff");
    assert_ne!(garbage.status, Some(0));
}

#[test]
fn each_descriptor_counts_as_an_attempt_through_its_door_and_what_is_given_back_does_not() {
    let server = GrpcServer::start(TENANTS);
    let mut client = server.connect();
    client.should_rate_limit(&request_for([tenant("a"), tenant("b"), hits(&[("tenant", "c")], 11)]));
    client.should_rate_limit(&request_for([RateLimitDescriptor {
        is_negative_hits: true,
        ..tenant("a")
    }]));
    assert_metrics(
        &server.gate,
        &[
            "tollgate_checks_total{result=\"allow\",source=\"memory\",protocol=\"grpc\"} 2\n",
            "tollgate_checks_total{result=\"deny\",source=\"memory\",protocol=\"grpc\"} 1\n",
            "tollgate_decisions_total{rule=\"tenant\",result=\"deny\",source=\"memory\",protocol=\"grpc\"} 1\n",
        ],
    );
}

#[test]
fn unknown_fields_are_passed_over() {
    let server = GrpcServer::start(TENANTS);
    let mut bytes = request_for([tenant("a")]).encode_to_vec();
    // Field 1000, a varint.
    bytes.extend_from_slice(&[0xc0, 0x3e, 0x01]);
    let answer = server.connect().call(SHOULD_RATE_LIMIT, &bytes);
    assert_eq!(answer.status, Some(0), "{answer:?}");
}
