//! While the store is well, a store with a local limiter behind it is a store as any other.

use crate::fixture::START;
use std::sync::Arc;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::conformance::{Harness, conformance};
use tollgate_limiter::store::fallback::{Fallback, FallbackOptions};
use tollgate_limiter::store::memory::Memory;

#[tokio::test]
async fn over_the_embedded_store_it_conforms() {
    let clock = Clock::manual(START);
    let memory = Memory::options().clock(clock.clone());
    let store = Fallback::with_memory(Arc::new(memory.clone().build()), FallbackOptions::default(), memory);
    let harness = Harness::new(store)
        .with_clock(move |span| clock.advance(span))
        .threads(4, 50);
    let report = conformance(&harness).await.expect("a store as it should be");
    assert!(report.answers > 1_000, "{report}");
    assert_eq!(harness.store().metrics().decided(), 0);
}
