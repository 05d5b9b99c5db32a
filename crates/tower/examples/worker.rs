//! A worker that keeps to somebody else's limit: eight tasks call a service that allows 20 requests a second.
//!
//! `cargo run -p tollgate-tower --features client --example worker -- http://127.0.0.1:8080/ 100`
//!
//! With `Limiter::redis(url)?` in place of `Limiter::in_memory()`, all workers keep to the limit as one.

#![expect(clippy::print_stdout, reason = "a program prints what it did")]

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::time::Duration;
use tollgate_limiter::Limiter;
use tollgate_limiter::limits::Gcra;
use tollgate_tower::client::PacerLayer;
use tower_layer::Layer;
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args().skip(1);
    let uri: Uri = arguments.next().ok_or("the first argument is a URL")?.parse()?;
    let jobs = arguments.next().map_or(Ok(100), |jobs| jobs.parse())?;
    let done = run(uri, jobs).await?;
    println!("{done} of {jobs} done");
    Ok(())
}

/// Sends this many requests, and returns the number that succeeded.
pub async fn run(uri: Uri, jobs: usize) -> Result<usize, BoxError> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let client = PacerLayer::new(Limiter::in_memory())
        .limit(Gcra::per_second(20).burst(5))?
        // Stricter limits that the service reports are obeyed as well.
        .learn()
        .max_wait(Duration::from_secs(30))
        .layer(client);

    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let (uri, mut client) = (uri.clone(), client.clone());
        tasks.push(tokio::spawn(async move {
            let mut done = 0;
            for _ in (task..jobs).step_by(TASKS) {
                let request = Request::get(uri.clone()).body(Full::default())?;
                let response = client.call(request).await?;
                done += usize::from(response.status().is_success());
            }
            Ok::<usize, BoxError>(done)
        }));
    }
    let mut done = 0;
    for task in tasks {
        done += task.await??;
    }
    Ok(done)
}

const TASKS: usize = 8;
