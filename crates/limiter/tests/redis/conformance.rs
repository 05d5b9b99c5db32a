//! What every store must do, on every server, whichever way the script is called.

use crate::fixture::Fixture;
use tokio::runtime::Runtime;
use tollgate_limiter::conformance::{Harness, conformance};
use tollgate_limiter::store::redis::{Functions, Redis};
use tollgate_limiter::testing::servers::ServerKind;

fn conforms(kind: ServerKind, functions: Functions, near_cache: bool) {
    let fixture = Fixture::start(kind);
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store: Redis = fixture.options().functions(functions).near_cache(near_cache).open();
        let survey = store.diagnose().await.expect("a server");
        assert_eq!(survey.warnings, Vec::<String>::new());
        assert_eq!(
            survey.is_function,
            functions != Functions::Off && kind != ServerKind::Redis62
        );
        let harness = Harness::new(store).in_runtime();
        let report = conformance(&harness).await.expect("a store as it should be");
        assert!(report.answers > 1_000, "{report}");
    });
}

#[test]
fn redis_6_2_conforms() {
    conforms(ServerKind::Redis62, Functions::Auto, true);
}

#[test]
fn redis_7_0_conforms_by_functions() {
    conforms(ServerKind::Redis70, Functions::On, true);
}

#[test]
fn redis_7_0_conforms_by_scripts_without_a_near_cache() {
    conforms(ServerKind::Redis70, Functions::Off, false);
}

#[test]
fn valkey_conforms() {
    conforms(ServerKind::Valkey, Functions::Auto, true);
}
