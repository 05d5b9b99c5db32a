//! Any bytes as Envoy's request, in protobuf and in JSON: rejected, or planned to the keys it is counted in. Parsing takes no
//! more memory than twice the input plus 64 KiB.
#![no_main]

mod counting;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use std::sync::{Arc, LazyLock};
use tollgate::server::rls::bounds::check_bounds;
use tollgate::server::rls::request::{DESCRIPTORS_MAX, RlsRequest, attributes};
use tollgate::server::rls::{RateLimitRequest, json};
use tollgate_core::problem::Origin;
use tollgate_core::rules::{ParserOptions, RulesParser};
use tollgate_core::yaml;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::store::memory::Memory;

/// Rules of every kind of condition and subject.
const RULES: &str = "\
domain: d
rules:
- { id: all, limit: 10/s }
- { id: each, per: [a, b], limit: [10/s, 100/min] }
- { id: address, per: ip, limit: 5/s }
- { id: some, when: { a: [x, 'y*'], b: { regex: '^[a-z]+$' } }, per: a, limit: 3/min }
- { id: near, when: { ip: { cidr: [10.0.0.0/8, 'fd00::/8'] } }, per: ip, limit: 3/h }
- { id: plans, per: a, limit: 1/s, by: { b: { x: unlimited, y: 0/s } }, overrides: [{ a: z, limit: 9/s }] }
- { id: priced, per: b, cost: { attribute: a, default: 2 }, limit: 50/min }
";

static LIMITER: LazyLock<RuleLimiter<Memory>> = LazyLock::new(|| {
    let node = yaml::parse(&Origin::new("rules.yaml", RULES)).expect("valid YAML");
    let mut parser = RulesParser::new(ParserOptions::default());
    parser.add_file(&node);
    let parsed = parser.finish().expect("valid rules");
    RuleLimiter::new(parsed.rules, Arc::new(Memory::options().max_memory(1 << 20).build()))
});

/// As the gRPC front end parses it.
fn from_protobuf(bytes: &[u8]) -> Option<RateLimitRequest> {
    check_bounds(bytes).ok()?;
    RateLimitRequest::decode(bytes).ok()
}

/// As the HTTP front end parses it.
fn from_json(bytes: &[u8]) -> Option<RateLimitRequest> {
    json::read(bytes).ok()
}

fuzz_target!(|bytes: &[u8]| {
    for parse in [from_protobuf, from_json] {
        let Some(message) = counting::bounded(bytes, || {
            let message = parse(bytes)?;
            attributes(&message).is_ok().then_some(message)
        }) else {
            continue;
        };
        let Ok(entries) = attributes(&message) else { continue };
        let Ok(request) = RlsRequest::read(&message, &entries, LIMITER.rules()) else { continue };
        assert_eq!(request.items.len(), message.descriptors.len());
        assert!(request.items.len() <= DESCRIPTORS_MAX);
        for (item, descriptor) in request.items.iter().zip(&message.descriptors) {
            assert_eq!(item.attempt.attributes.len(), descriptor.entries.len());
            // The same attempt is counted in the same keys.
            let keys = || LIMITER.plan(&item.attempt).charges().map(|planned| planned.charge.key.clone()).collect::<Vec<_>>();
            assert_eq!(keys(), keys());
        }
        let verdict = poll_once(LIMITER.check_all(&request.items));
        assert_eq!(verdict.items.len(), request.items.len());
    }
});

/// The output of a future that never waits: the memory store answers in one poll.
fn poll_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => unreachable!("the memory store never waits"),
    }
}
