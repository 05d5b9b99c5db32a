//! Over a store that many instances share, and when it is away.

use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use tollgate::server::rls::RateLimitResponse;
use tollgate::server::rls::rate_limit_response::Code;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::Timestamp;
use tollgate_limiter::store::fallback::Fallback;
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::servers::{Server as Process, ServerKind};
use tollgate_test_kit::grpc::{Answer, Client, GrpcServer, SHOULD_RATE_LIMIT, descriptor, hits, request_for, settings};
use tollgate_test_kit::rule_set;

const RULES: &str = "- { id: tenant, per: tenant, limit: 10/day }\n\
                     - { id: shut, per: shut, limit: 10/day, on_store_failure: closed }\n\
                     - { id: open, per: open, limit: 10/day, on_store_failure: open }\n\
                     - { id: banned, per: banned, limit: 0/min }\n\
                     - { id: bad, when: { user: bad }, limit: 0/min }\n\
                     - { id: users, per: user, limit: 10/day, on_store_failure: closed }\n";

/// A server over a process, which is waited for this long.
fn over(process: &Process, deadline: Duration) -> GrpcServer {
    let options = Redis::options(&process.url()).unwrap().deadline(deadline);
    let clock = Clock::manual(Timestamp::EPOCH);
    let store = || Arc::new(Fallback::new(Arc::new(options.open()), Default::default())).into();
    GrpcServer::over(store, &clock, rule_set(RULES), settings())
}

fn check(client: &mut Client<'_>, key: &str, fields: &[(&str, &str)]) -> Answer {
    let message = request_for([descriptor(&[(key, "a")])]).encode_to_vec();
    client.try_call(SHOULD_RATE_LIMIT, &message, fields).unwrap()
}

#[test]
fn all_descriptors_settle_together_there_too() {
    let process = Process::start(ServerKind::Redis70);
    let server = over(&process, Duration::from_secs(30));
    let mut client = server.connect();
    let tenant = |name, count| hits(&[("tenant", name)], count);
    let left = |response: &RateLimitResponse| -> Vec<u32> {
        response.statuses.iter().map(|status| status.limit_remaining).collect()
    };
    let refused = client.should_rate_limit(&request_for([tenant("a", 1), tenant("b", 6), tenant("b", 6)]));
    assert_eq!(refused.overall_code(), Code::OverLimit);
    assert_eq!(refused.statuses[0].code(), Code::Ok);
    let passed = client.should_rate_limit(&request_for([tenant("a", 0), tenant("b", 6), tenant("b", 3)]));
    assert_eq!((passed.overall_code(), left(&passed)), (Code::Ok, vec![10, 4, 1]));
}

#[test]
fn who_names_a_time_waits_no_longer_for_a_store_that_does_not_answer() {
    let process = Process::start(ServerKind::Redis70);
    let server = over(&process, Duration::from_secs(30));
    let mut client = server.connect();
    assert_eq!(check(&mut client, "tenant", &[]).status, Some(0));
    process.freeze();
    let late = check(&mut client, "tenant", &[("grpc-timeout", "50m")]);
    process.thaw();
    assert_eq!(late.status, Some(4), "{late:?}");
    assert_eq!(check(&mut client, "tenant", &[]).status, Some(0));
}

#[test]
fn what_nobody_can_judge_is_an_error_or_passes_as_the_rule_says() {
    let mut process = Process::start(ServerKind::Redis70);
    let server = over(&process, Duration::from_secs(2));
    let mut client = server.connect();
    assert_eq!(check(&mut client, "shut", &[]).status, Some(0));
    process.kill();
    let closed = check(&mut client, "shut", &[]);
    assert_eq!(closed.status, Some(14), "{closed:?}");
    let open = check(&mut client, "open", &[]);
    assert_eq!(open.status, Some(0), "{open:?}");
    let response = RateLimitResponse::decode(open.message).unwrap();
    assert_eq!(
        (response.overall_code(), &response.statuses[0].current_limit),
        (Code::Ok, &None)
    );
    // One that is closed refuses the whole request.
    let message = request_for([descriptor(&[("open", "a")]), descriptor(&[("shut", "a")])]).encode_to_vec();
    assert_eq!(client.call(SHOULD_RATE_LIMIT, &message).status, Some(14));
    // Beside what is refused for certain, of the same descriptor or of another, it is a refusal: an error many let pass.
    let [good, bad] = ["good", "bad"].map(|user| request_for([descriptor(&[("user", user)])]));
    assert_eq!(client.call(SHOULD_RATE_LIMIT, &good.encode_to_vec()).status, Some(14));
    assert_eq!(client.should_rate_limit(&bad).overall_code(), Code::OverLimit);
    let with_ban = client.should_rate_limit(&request_for([
        descriptor(&[("shut", "a")]),
        descriptor(&[("banned", "a")]),
    ]));
    assert_eq!(with_ban.overall_code(), Code::OverLimit);
}
