//! What every store must do, on every server, whichever way the script is called.

use crate::fixture::Fixture;
use tollgate_limiter::store::redis::Functions;
use tollgate_limiter::testing::conforms;
use tollgate_limiter::testing::servers::ServerKind;

fn server_conforms(kind: ServerKind, functions: Functions, near_cache: bool) {
    let fixture = Fixture::start(kind);
    let options = fixture.options().functions(functions).near_cache(near_cache);
    let is_function = functions != Functions::Off && kind != ServerKind::Redis62;
    conforms(
        options,
        |harness| harness,
        |survey, _| assert_eq!(survey.is_function, is_function),
    );
}

#[test]
fn redis_6_2_conforms() {
    server_conforms(ServerKind::Redis62, Functions::Auto, true);
}

#[test]
fn redis_7_0_conforms_by_functions() {
    server_conforms(ServerKind::Redis70, Functions::On, true);
}

#[test]
fn redis_7_0_conforms_by_scripts_without_a_near_cache() {
    server_conforms(ServerKind::Redis70, Functions::Off, false);
}

#[test]
fn valkey_conforms() {
    server_conforms(ServerKind::Valkey, Functions::Auto, true);
}
