//! A rule with a reserve over every protocol: a denial by it is an ordinary one.

use crate::protocols::{PROTOCOLS, TestAttempt, forward};
use crate::server::TestServer;
use std::sync::Arc;
use tollgate_limiter::store::memory::Memory;

const RULES: &str = "
- { id: plan, per: protocol, limit: 10/day, reserve: { share: 40%, for: { tier: critical } } }
";

#[test]
fn others_are_denied_before_critical_attempts_everywhere() {
    let server = TestServer::start(RULES, || Arc::new(Memory::default()).into());
    let attempt = |tier: &str| TestAttempt {
        attributes: vec![("tier", tier.to_owned())],
        cost: 1,
    };
    let tiers = [["normal"; 8].as_slice(), &["critical"; 5], &["normal"; 1]].concat();
    let attempts: Vec<TestAttempt> = tiers.iter().copied().map(attempt).collect();
    let expected: Vec<bool> = [[true; 6].as_slice(), &[false; 2], &[true; 4], &[false; 2]].concat();
    let gateway = ("forward", "forward", forward as _);
    for (name, _, send) in PROTOCOLS.iter().chain([&gateway]) {
        let verdicts = send(&server, name, &attempts);
        let allowed: Vec<bool> = verdicts.iter().map(|verdict| verdict.allowed).collect();
        assert_eq!(allowed, expected, "{name}: {verdicts:?}");
        // The numbers are those of the counter that binds.
        assert_eq!(verdicts[0].remaining, Some(5), "{name}");
        assert_eq!(verdicts[8].remaining, Some(3), "{name}");
    }
}
