//! Any bytes as Envoy's request, in protobuf and in JSON: refused, or planned to the keys it is counted under. Reading takes no
//! more memory than twice the input and 64 KiB.
#![no_main]

mod counting;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use std::sync::{Arc, LazyLock};
use tollgate::server::envoy::bounds::is_bounded;
use tollgate::server::envoy::request::{Asked, DESCRIPTORS_MAX, attributes};
use tollgate::server::envoy::{RateLimitRequest, json};
use tollgate_core::problem::Origin;
use tollgate_core::rules::{Reader, Settings};
use tollgate_core::yaml;
use tollgate_limiter::RuleBook;
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

static BOOK: LazyLock<RuleBook<Memory>> = LazyLock::new(|| {
    let node = yaml::parse(&Origin::new("rules.yaml", RULES)).expect("it is YAML");
    let mut reader = Reader::new(Settings::default());
    reader.file(&node);
    let read = reader.finish().expect("the rules are sound");
    RuleBook::new(read.rules, Arc::new(Memory::options().max_memory(1 << 20).build()))
});

/// As the gRPC front end reads it.
fn of_protobuf(bytes: &[u8]) -> Option<RateLimitRequest> {
    is_bounded(bytes).ok()?;
    RateLimitRequest::decode(bytes).ok()
}

/// As the HTTP front end reads it.
fn of_json(bytes: &[u8]) -> Option<RateLimitRequest> {
    json::read(bytes).ok()
}

fuzz_target!(|bytes: &[u8]| {
    for read in [of_protobuf, of_json] {
        let Some(request) = counting::bounded(bytes, || {
            let request = read(bytes)?;
            attributes(&request).is_ok().then_some(request)
        }) else {
            continue;
        };
        let Ok(entries) = attributes(&request) else { continue };
        let Ok(asked) = Asked::read(&request, &entries, BOOK.rules()) else { continue };
        assert_eq!(asked.parts.len(), request.descriptors.len());
        assert!(asked.parts.len() <= DESCRIPTORS_MAX);
        for (part, descriptor) in asked.parts.iter().zip(&request.descriptors) {
            assert_eq!(part.attempt.attributes.len(), descriptor.entries.len());
            let plan = BOOK.plan(&part.attempt);
            let again = BOOK.plan(&part.attempt);
            // The same attempt is counted in the same places.
            assert!(plan.charges.iter().zip(&again.charges).all(|(one, other)| one.key == other.key));
        }
        let together = pollster(BOOK.check_together(&asked.parts));
        assert_eq!(together.parts.len(), asked.parts.len());
    }
});

/// What a future comes to that is never kept waiting: the embedded store answers at once.
fn pollster<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => unreachable!("the embedded store never waits"),
    }
}
