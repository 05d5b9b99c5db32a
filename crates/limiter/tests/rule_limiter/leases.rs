//! Leases of concurrency limits.

use super::{attempt, attributes, check, rules, stopped_store};
use std::sync::Arc;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::conformance::block_on;
use tollgate_limiter::core::Micros;

const SEARCHES: &str = r"
rules:
- { id: all, algorithm: concurrency, limit: 3, lease_ttl: 10s }
- { id: user, per: user, algorithm: concurrency, limit: 2, lease_ttl: 5s }
- { id: watched, per: user, algorithm: concurrency, limit: 1, mode: shadow }
- { id: rate, per: user, limit: 100/min }
";

fn acquire(limiter: &RuleLimiter, user: &str, cost: u64) -> Option<String> {
    let pair = format!("user={user}");
    limiter.check_now(&attempt(&attributes(&[&pair]), cost)).lease
}

#[test]
fn one_lease_holds_all_and_any_instance_gives_it_back() {
    let (store, _) = stopped_store();
    let here = RuleLimiter::new(rules(SEARCHES), Arc::clone(&store));
    let there = RuleLimiter::new(rules(SEARCHES), store);
    let first = acquire(&here, "a", 1).expect("a lease");
    let second = acquire(&here, "a", 1).expect("a lease");
    assert_ne!(first, second);
    assert!(
        first
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    );
    assert_eq!(acquire(&here, "a", 1), None, "a refused attempt holds nothing");
    assert_eq!(
        check(&here, &["user=a"], 1),
        "denied by user: all 1 user 0 Unknown watched 0 Unknown rate 98"
    );
    assert_eq!(block_on(there.release(&first)), Ok(true));
    assert_eq!(block_on(there.release(&first)), Ok(false), "once is all");
    assert_eq!(
        check(&here, &["user=b"], 0),
        "allowed by all: all 2 user 2 watched 1 rate 100"
    );
    // The shadow counted the first alone: it was full when the second came.
    assert_eq!(
        check(&here, &["user=a"], 0),
        "allowed by user: all 2 user 1 watched 1 rate 98"
    );
    assert_eq!(block_on(here.release(&second)), Ok(true));
    assert_eq!(
        check(&here, &["user=a"], 0),
        "allowed by user: all 3 user 2 watched 1 rate 98"
    );
    assert_eq!(acquire(&here, "a", 0), None, "looking holds nothing");
}

#[test]
fn a_lease_is_renewed_for_its_shortest_term() {
    let (store, clock) = stopped_store();
    let limiter = RuleLimiter::new(rules(SEARCHES), Arc::clone(&store));
    let lease = acquire(&limiter, "a", 2).expect("a lease");
    clock.advance(Micros::from_secs(4));
    assert_eq!(block_on(limiter.renew(&lease)), Ok(Some(Micros::from_secs(5))));
    clock.advance(Micros::from_secs(4));
    assert_eq!(
        check(&limiter, &["user=a"], 1).split(':').next(),
        Some("denied by user")
    );
    // A rule that is gone holds nothing; what is left of the lease goes on.
    let fewer = RuleLimiter::new(
        rules("rules:\n- { id: all, algorithm: concurrency, limit: 3, lease_ttl: 10s }\n"),
        store,
    );
    assert_eq!(block_on(fewer.renew(&lease)), Ok(Some(Micros::from_secs(10))));
    clock.advance(Micros::from_secs(10));
    assert_eq!(block_on(limiter.renew(&lease)), Ok(None));
    assert_eq!(block_on(limiter.release(&lease)), Ok(false));
}

#[test]
fn a_made_up_lease_releases_nothing() {
    let (store, _) = stopped_store();
    let limiter = RuleLimiter::new(rules(SEARCHES), store);
    let lease = acquire(&limiter, "a", 1).expect("a lease");
    acquire(&limiter, "b", 1).expect("a lease");
    let mut made_up = vec![
        String::new(),
        "AQ".to_owned(),
        "lease".to_owned(),
        "é".repeat(99),
        "A".repeat(1 << 20),
        lease[1..].to_owned(),
        lease[..lease.len() - 4].to_owned(),
        format!("{lease}AAAA"),
    ];
    // A changed key of one rule once released the slot of the other, and answered true.
    for index in 0..lease.len() {
        let mut changed = lease.clone().into_bytes();
        changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
        made_up.push(String::from_utf8(changed).expect("letters"));
    }
    for token in &made_up {
        assert_eq!(block_on(limiter.release(token)), Ok(false), "{token}");
        assert_eq!(block_on(limiter.renew(token)), Ok(None), "{token}");
    }
    assert_eq!(
        check(&limiter, &["user=a"], 0),
        "allowed by all: all 1 user 1 watched 0 rate 99"
    );
}
