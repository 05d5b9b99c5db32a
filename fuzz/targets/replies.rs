//! Any bytes as the reply of a shared store to a call: parsed or rejected, with no more memory than twice the reply plus 64 KiB.
#![no_main]

mod counting;

use libfuzzer_sys::fuzz_target;
use tollgate_core::{
    Cell, Charge, Concurrency, Cost, Decision, FixedWindow, Gcra, LeakyBucket, LeaseId, Limit, Micros, OnStoreFailure,
    Policy, Rate, SlidingCounter, SlidingLog, TokenBucket,
};
use tollgate_limiter::store::redis::script::call::{Call, ChargeReply, ScriptOp};

/// One of each algorithm.
fn limits() -> [Limit; 8] {
    let rate = Rate::new(7, Micros::from_secs(3)).expect("in range");
    [
        TokenBucket::new(rate).into(),
        Gcra::new(rate).into(),
        FixedWindow::new(rate).into(),
        SlidingCounter::new(rate).into(),
        SlidingLog::new(rate).expect("in range").into(),
        LeakyBucket::new(rate).into(),
        Concurrency::new(9, Micros::from_secs(5)).expect("in range").into(),
        Cell::new(4, 1, 10).expect("in range").into(),
    ]
}

fuzz_target!(|input: &[u8]| {
    let Some((&selector, reply)) = input.split_first() else { return };
    let limits = limits();
    let op = if selector & 1 == 0 { ScriptOp::Settle } else { ScriptOp::Peek };
    let charges: Vec<Charge<Vec<u8>>> = (0..usize::from(selector >> 4) + 1)
        .map(|index| Charge {
            key: vec![u8::try_from(index).unwrap_or_default()],
            limit: limits[(usize::from(selector >> 1) + index) % limits.len()],
            cost: Cost::ONE,
            policy: Policy::Enforce,
            on_failure: OnStoreFailure::Local,
        })
        .collect();
    let mut call = Call::new(op);
    call.request(&charges, LeaseId(1));
    let Some(read) = counting::bounded(reply, || call.read(reply)) else { return };
    let Some(replies) = read.replies else { return };
    assert_eq!(replies.len(), charges.len());
    for (reply, charge) in replies.iter().zip(&charges) {
        if let ChargeReply::Charge { decision, state, .. } = reply {
            assert_eq!(decision.standing().limit, charge.limit.capacity());
            assert!(matches!(decision, Decision::Allow { .. }) == decision.is_allow());
            // A state from a reply is cached and used again, so it must be printable.
            if let Some(state) = state {
                let _ = format!("{state:?}");
            }
        }
    }
});
