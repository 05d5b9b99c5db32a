//! The example of a worker.

use crate::upstream::Upstream;
use crate::worker;

#[tokio::test]
async fn the_worker_keeps_to_the_limit_of_a_service() {
    let upstream = Upstream::limited(20, 5).await;
    assert_eq!(worker::run(upstream.uri(), 30).await.unwrap(), 30);
    assert_eq!((upstream.passed(), upstream.denied()), (30, 0));
}
