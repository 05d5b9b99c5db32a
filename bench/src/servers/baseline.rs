//! A hyper endpoint that discards its input: the baseline of any HTTP server built on hyper.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;

/// The constant response.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum BaselineAnswer {
    /// A 200 without a body.
    Empty,
    /// A response of Tollgate to a check, byte for byte, prepared in advance: shows the cost of its size.
    Ready,
}

/// Responds to every request with 200, until it is killed.
pub(crate) fn serve(address: SocketAddr, answer: BaselineAnswer) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let Ok(runtime) = runtime else { return ExitCode::from(2) };
    let (headers, body) = match answer {
        BaselineAnswer::Empty => (HeaderMap::new(), Bytes::new()),
        BaselineAnswer::Ready => ready(),
    };
    runtime.block_on(async {
        let Ok(listener) = tokio::net::TcpListener::bind(address).await else {
            return ExitCode::from(2);
        };
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                continue;
            };
            let _ = stream.set_nodelay(true);
            let (headers, body) = (headers.clone(), body.clone());
            tokio::spawn(async move {
                let service = service_fn(|request: Request<Incoming>| async {
                    // Read the body, as a server that decides must.
                    let _ = request.into_body().collect().await;
                    let mut response = Response::new(Full::new(body.clone()));
                    *response.headers_mut() = headers.clone();
                    Ok::<_, Infallible>(response)
                });
                // As in Tollgate: one write is faster than a vector of two, and there is no timer per request.
                hyper::server::conn::http1::Builder::new()
                    .writev(false)
                    .header_read_timeout(None)
                    .serve_connection(TokioIo::new(stream), service)
                    .await
            });
        }
    })
}

fn ready() -> (HeaderMap, Bytes) {
    let fields = [
        ("ratelimit-policy", "\"api\";q=100;w=60"),
        ("ratelimit", "\"api\";r=99;t=1"),
        ("x-ratelimit-limit", "100"),
        ("x-ratelimit-remaining", "99"),
        ("x-ratelimit-reset", "1"),
        (CONTENT_TYPE.as_str(), "application/json"),
    ];
    let field = |(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
    let body = concat!(
        r#"{"allowed":true,"rule":"api","limit":100,"remaining":99,"reset_after_ms":600,"retry_after_ms":null,"#,
        r#""delay_ms":0,"source":"memory","lease":null,"limits":[{"rule":"api","allowed":true,"limit":100,"#,
        r#""remaining":99,"reset_after_ms":600,"retry_after_ms":null,"mode":"enforce","source":"memory"}]}"#,
    );
    (
        fields.map(field).into_iter().collect(),
        Bytes::from_static(body.as_bytes()),
    )
}
