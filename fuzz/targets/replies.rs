//! Any bytes as the answer of a shared store to a call: read or refused, and never more memory than twice
//! the answer and 64 KiB.
#![no_main]

mod counting;

use libfuzzer_sys::fuzz_target;
use tollgate_core::{
    Cell, Charge, Concurrency, Cost, Decision, FixedWindow, Gcra, LeakyBucket, LeaseId, Limit, Micros, OnStoreFailure,
    Policy, Rate, SlidingCounter, SlidingLog, TokenBucket,
};
use tollgate_limiter::store::redis::script::call::{Call, Mode, Told};

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
    let Some((&how, answer)) = input.split_first() else { return };
    let limits = limits();
    let mode = if how & 1 == 0 { Mode::Settle } else { Mode::Peek };
    let charges: Vec<Charge<Vec<u8>>> = (0..usize::from(how >> 4) + 1)
        .map(|place| Charge {
            key: vec![u8::try_from(place).unwrap_or_default()],
            limit: limits[(usize::from(how >> 1) + place) % limits.len()],
            cost: Cost::ONE,
            policy: Policy::Enforce,
            on_failure: OnStoreFailure::Local,
        })
        .collect();
    let mut call = Call::new(mode);
    call.request(&charges, LeaseId(1));
    let Some(read) = counting::bounded(answer, || call.read(answer)) else { return };
    let Some(told) = read.told else { return };
    assert_eq!(told.len(), charges.len());
    for (told, charge) in told.iter().zip(&charges) {
        if let Told::Charge { decision, state, .. } = told {
            assert_eq!(decision.standing().limit, charge.limit.capacity());
            assert!(matches!(decision, Decision::Allow { .. }) == decision.is_allow());
            // What a key holds is used again: whatever was read can be written.
            if let Some(state) = state {
                let _ = format!("{state:?}");
            }
        }
    }
});
