//! The conformance suite on a Redis store.

use crate::conformance::{Harness, conformance};
use crate::store::redis::{Diagnostics, Redis, RedisOptions};

/// Runs the suite on a new store, whose servers must give no warning, and then `check`.
///
/// # Panics
/// If the store does not conform.
pub fn conforms(
    options: RedisOptions,
    prepare: fn(Harness<Redis>) -> Harness<Redis>,
    check: impl FnOnce(&Diagnostics, &Redis),
) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = options.open();
        let diagnostics = store.diagnose().await.expect("a server that answers");
        assert_eq!(diagnostics.warnings, Vec::<String>::new());
        let harness = prepare(Harness::new(store)).in_runtime();
        let report = conformance(&harness).await.expect("a store that conforms");
        assert!(report.answers > 1_000, "{report}");
        check(&diagnostics, harness.store());
    });
}
