//! A hyper endpoint that does nothing with what it reads: the floor of any HTTP server built on it.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;

/// Answers everything with an empty 200, until it is killed.
pub(crate) fn serve(address: SocketAddr) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let Ok(runtime) = runtime else { return ExitCode::from(2) };
    runtime.block_on(async {
        let Ok(listener) = tokio::net::TcpListener::bind(address).await else {
            return ExitCode::from(2);
        };
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                continue;
            };
            let _ = stream.set_nodelay(true);
            tokio::spawn(async move {
                let service = service_fn(|request: Request<Incoming>| async {
                    // Read, because whoever decides something must.
                    let _ = request.into_body().collect().await;
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
                });
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await
            });
        }
    })
}
