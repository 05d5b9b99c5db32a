//! What every store must do, through sentinels.

use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tollgate_limiter::conformance::{Bench, conformance};
use tollgate_limiter::store::redis::Redis;
use tollgate_limiter::testing::sentinel::Watched;
use tollgate_limiter::testing::servers::Kind;

#[test]
fn a_store_conforms_through_sentinels() {
    let watched = Watched::start(Kind::Redis70);
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let options = Redis::options(&watched.url()).expect("a URL");
        let store = options.deadline(Duration::from_secs(5)).open();
        let survey = store.survey().await.expect("a primary");
        assert_eq!(survey.warnings, Vec::<String>::new());
        let handle = Handle::current();
        let bench = Bench::new(store).on_threads(move |work| {
            let _inside = handle.enter();
            work();
        });
        conformance(&bench).await.expect("a store as it should be");
    });
}
