//! A collector of OTLP over gRPC or HTTP: hands on what it receives.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tollgate_test_kit::one_thread_runtime;

/// The protocol of a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Grpc,
    Http,
}

/// A running collector, on a thread of its own until the test ends.
pub(super) struct Collector {
    pub(super) address: SocketAddr,
    received: Receiver<Received>,
    is_refusing: Arc<AtomicBool>,
}

/// One export.
pub(super) struct Received {
    pub(super) path: String,
    /// The message, without the frame of gRPC.
    pub(super) message: Bytes,
}

type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

impl Collector {
    pub(super) fn start(wire: Wire) -> Self {
        let (sender, received) = channel();
        let (bound, address) = channel();
        let is_refusing = Arc::new(AtomicBool::new(false));
        let refuses = Arc::clone(&is_refusing);
        std::thread::spawn(move || {
            one_thread_runtime().block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
                let listener = listener.expect("a port is free");
                bound
                    .send(listener.local_addr().expect("it is bound"))
                    .expect("the test waits");
                loop {
                    let (stream, _) = listener.accept().await.expect("it listens");
                    tokio::spawn(serve(wire, TokioIo::new(stream), sender.clone(), Arc::clone(&refuses)));
                }
            });
        });
        Self {
            address: address.recv().expect("it starts"),
            received,
            is_refusing,
        }
    }

    /// Answers with an error from now on, or no longer.
    pub(super) fn refuse(&self, refuses: bool) {
        self.is_refusing.store(refuses, Ordering::SeqCst);
    }

    /// The next export.
    pub(super) fn next(&self) -> Received {
        self.received
            .recv_timeout(Duration::from_secs(30))
            .expect("exports come")
    }
}

async fn serve(wire: Wire, io: TokioIo<tokio::net::TcpStream>, sender: Sender<Received>, refuses: Arc<AtomicBool>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (sender, refuses) = (sender.clone(), Arc::clone(&refuses));
        async move {
            let received = read(wire, request).await;
            if refuses.load(Ordering::SeqCst) {
                return Ok::<_, Infallible>(refusal(wire));
            }
            let _ = sender.send(received);
            Ok(response(wire))
        }
    });
    let served = match wire {
        Wire::Grpc => {
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(io, service)
                .await
        }
        Wire::Http => {
            hyper::server::conn::http1::Builder::new()
                .serve_connection(io, service)
                .await
        }
    };
    served.expect("the exporter speaks the protocol");
}

async fn read(wire: Wire, request: Request<Incoming>) -> Received {
    let path = request.uri().path_and_query().expect("it has a path").to_string();
    let content_type = request.headers().get(CONTENT_TYPE).cloned();
    let body = request.into_body().collect().await.expect("the body comes").to_bytes();
    let content_type = content_type.expect("it has a type");
    let message = match wire {
        Wire::Grpc => {
            assert_eq!(content_type, "application/grpc");
            let length = body
                .get(1..5)
                .and_then(|bytes| bytes.try_into().ok())
                .map(u32::from_be_bytes);
            assert_eq!((body.first(), length), (Some(&0), u32::try_from(body.len() - 5).ok()));
            body.slice(5..)
        }
        Wire::Http => {
            assert_eq!(content_type, "application/x-protobuf");
            body
        }
    };
    Received { path, message }
}

fn response(wire: Wire) -> Response<Body> {
    match wire {
        Wire::Http => Response::new(Full::new(Bytes::new()).boxed()),
        Wire::Grpc => grpc_response("0"),
    }
}

fn refusal(wire: Wire) -> Response<Body> {
    match wire {
        Wire::Http => {
            let mut response = response(wire);
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            response
        }
        Wire::Grpc => grpc_response("14"),
    }
}

fn grpc_response(status: &'static str) -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.parse().expect("a header value"));
    let frames = [
        Ok(Frame::data(Bytes::from_static(&[0; 5]))),
        Ok(Frame::trailers(trailers)),
    ];
    let body = StreamBody::new(futures_util::stream::iter(frames));
    let mut response = Response::new(BodyExt::boxed(body));
    let kind = "application/grpc".parse().expect("a header value");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
