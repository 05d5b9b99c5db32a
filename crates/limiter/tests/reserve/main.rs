//! Rules with a reserve: their laws, their leases, and a load of ten times the limit, over every store.

mod cluster;
mod laws;
mod leases;
mod load;
mod memory;
mod redis;
mod rules;

use std::sync::Arc;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::rules::{Attempt, Attribute};
use tollgate_limiter::core::testing::rules::rule_set;
use tollgate_limiter::core::{Cost, Timestamp};
use tollgate_limiter::store::memory::Memory;

/// A whole minute, so that windows begin here.
const START_US: u64 = 1_770_854_400_000_000;

fn stopped_store() -> (Arc<Memory>, Clock) {
    let clock = Clock::manual(Timestamp::from_micros(START_US));
    (Arc::new(Memory::options().clock(clock.clone()).build()), clock)
}

fn limiter(text: &str) -> (RuleLimiter, Clock) {
    let (store, clock) = stopped_store();
    (RuleLimiter::new(rule_set(text), store), clock)
}

fn attempt<'a>(attributes: &'a [Attribute<'a>], cost: u64) -> Attempt<'a> {
    Attempt {
        domain: Attempt::DOMAIN,
        attributes,
        cost: Cost::new(cost).expect("in range"),
    }
}
