//! The service behind a gateway: says what reached it.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

pub(crate) struct Service {
    pub(crate) port: u16,
    served: Arc<AtomicUsize>,
}

impl Service {
    pub(crate) fn start(runtime: &Runtime) -> Self {
        let listener = runtime
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .expect("there are free ports");
        let port = listener.local_addr().expect("it is bound").port();
        let served = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&served);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let count = Arc::clone(&count);
                let service = service_fn(move |request| respond(request, Arc::clone(&count)));
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(async move {
                    // A gateway that hangs up is its own affair.
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { port, served }
    }

    /// How many requests reached it.
    pub(crate) fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }
}

/// The method, the path, the body and the headers that came; 403 at `/forbidden`.
async fn respond(request: Request<Incoming>, served: Arc<AtomicUsize>) -> Result<Response<Full<Bytes>>, Infallible> {
    served.fetch_add(1, Ordering::SeqCst);
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut text = format!(
        "service: {} {} <{}>\n",
        head.method,
        head.uri.path(),
        String::from_utf8_lossy(&body)
    );
    for (name, value) in &head.headers {
        text += &format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
    }
    let mut response = Response::new(Full::from(text));
    if head.uri.path() == "/forbidden" {
        *response.status_mut() = StatusCode::FORBIDDEN;
    }
    Ok(response)
}
