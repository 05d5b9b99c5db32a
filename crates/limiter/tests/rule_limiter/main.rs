//! Rule limiters over the memory store, as front ends use them.

mod admitted;
mod batches;
mod descriptors;
mod edits;
mod leases;
mod model;
mod payments;
mod permits;
mod ratelimit;
mod rows;
mod rows_law;
mod subjects;

use std::sync::Arc;
use tollgate_limiter::RuleLimiter;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::conformance::block_on;
use tollgate_limiter::core::rules::{Attempt, Attribute, Verdict};
use tollgate_limiter::core::testing::rules::{attributes, rule_set as rules};
use tollgate_limiter::core::{Cost, Timestamp};
use tollgate_limiter::store::memory::Memory;

fn stopped_store() -> (Arc<Memory>, Clock) {
    // A whole minute, so that windows begin here.
    let clock = Clock::manual(Timestamp::from_micros(1_770_854_400_000_000));
    (Arc::new(Memory::options().clock(clock.clone()).build()), clock)
}

fn limiter(text: &str) -> (RuleLimiter, Clock) {
    let (store, clock) = stopped_store();
    (RuleLimiter::new(rules(text), store), clock)
}

fn attempt<'a>(attributes: &'a [Attribute<'a>], cost: u64) -> Attempt<'a> {
    Attempt {
        domain: Attempt::DOMAIN,
        attributes,
        cost: Cost::new(cost).expect("in range"),
    }
}

fn check(limiter: &RuleLimiter, pairs: &[&str], cost: u64) -> String {
    render(&limiter.check_now(&attempt(&attributes(pairs), cost)).verdict)
}

fn forget(limiter: &RuleLimiter, pairs: &[&str], rule: Option<&str>) -> u64 {
    block_on(limiter.forget(&attempt(&attributes(pairs), 1), rule)).expect("every rule is there")
}

/// The answer, the rule that speaks, and of each limit what remains; a refusal with its wait.
fn render(verdict: &Verdict<'_>) -> String {
    let answer = if verdict.allowed { "allowed" } else { "denied" };
    let nearest = verdict.nearest().map_or("-", |ruling| ruling.name);
    let mut text = format!("{answer} by {nearest}:");
    for ruling in &verdict.rulings {
        match ruling.decision {
            None => text.push_str(&format!(" {} free", ruling.name)),
            Some(decision) => {
                text.push_str(&format!(" {} {}", ruling.name, decision.standing().remaining));
                if let Some(retry) = decision.retry() {
                    text.push_str(&format!(" {retry:?}"));
                }
            }
        }
    }
    text
}
