//! A client that knows of gRPC what its calls look like on HTTP/2, and no more.

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tollgate::server::rls::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse, rate_limit_descriptor};

pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

pub struct Client<'r> {
    runtime: &'r Runtime,
    pub sender: SendRequest<Full<Bytes>>,
    pub connection: JoinHandle<hyper::Result<()>>,
}

/// What came back for a call.
#[derive(Debug)]
pub struct Answer {
    /// Of HTTP.
    pub http: u16,
    /// `grpc-status`; none if there is no such thing.
    pub status: Option<u32>,
    /// `grpc-message`, as it is written.
    pub error_text: String,
    /// The message, without what stands before it.
    pub message: Bytes,
}

impl<'r> Client<'r> {
    pub fn connect(runtime: &'r Runtime, address: SocketAddr) -> Self {
        let stream = runtime.block_on(TcpStream::connect(address)).unwrap();
        Self::over(runtime, stream)
    }

    pub fn over(runtime: &'r Runtime, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let (sender, connection) = runtime
            .block_on(http2::handshake(TokioExecutor::new(), TokioIo::new(stream)))
            .unwrap();
        Self {
            runtime,
            sender,
            connection: runtime.spawn(connection),
        }
    }

    /// A call with these header fields beside the usual ones.
    pub fn try_call(&mut self, path: &str, message: &[u8], fields: &[(&str, &str)]) -> hyper::Result<Answer> {
        self.send(path, framed(message), fields)
    }

    /// A request with any body.
    pub fn send(&mut self, path: &str, body: Bytes, fields: &[(&str, &str)]) -> hyper::Result<Answer> {
        let sending = self.sender.send_request(request(path, body, fields));
        self.runtime.block_on(async {
            let (head, body) = sending.await?.into_parts();
            let body = body.collect().await?;
            let trailers = body.trailers().cloned().unwrap_or_default();
            let bytes = body.to_bytes();
            Ok(Answer {
                http: head.status.as_u16(),
                status: status(&trailers).or_else(|| status(&head.headers)),
                error_text: error_text(&trailers)
                    .or_else(|| error_text(&head.headers))
                    .unwrap_or_default(),
                message: if bytes.len() > 5 {
                    bytes.slice(5..)
                } else {
                    Bytes::new()
                },
            })
        })
    }

    /// A call whose answer is read bit by bit.
    pub fn start_call(
        &mut self,
        path: &str,
        message: &[u8],
    ) -> impl Future<Output = hyper::Result<Response<Incoming>>> + use<> {
        self.sender.send_request(request(path, framed(message), &[]))
    }

    pub fn call(&mut self, path: &str, message: &[u8]) -> Answer {
        self.try_call(path, message, &[]).unwrap()
    }

    /// The answer to a request that makes sense.
    pub fn should_rate_limit(&mut self, request: &RateLimitRequest) -> RateLimitResponse {
        let answer = self.call(SHOULD_RATE_LIMIT, &request.encode_to_vec());
        assert_eq!((answer.http, answer.status), (200, Some(0)), "{answer:?}");
        RateLimitResponse::decode(answer.message).unwrap()
    }

    /// What is said to a request that makes none.
    pub fn rejected(&mut self, request: &RateLimitRequest) -> (u32, String) {
        let answer = self.call(SHOULD_RATE_LIMIT, &request.encode_to_vec());
        (answer.status.unwrap(), answer.error_text.replace("%20", " "))
    }
}

fn request(path: &str, body: Bytes, fields: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::post(format!("http://test{path}")).header("te", "trailers");
    if !fields.iter().any(|(name, _)| *name == "content-type") {
        request = request.header("content-type", "application/grpc");
    }
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body)).unwrap()
}

/// A message behind its five bytes.
pub fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(message.len().try_into().unwrap());
    bytes.put_slice(message);
    bytes.freeze()
}

fn status(headers: &HeaderMap) -> Option<u32> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

fn error_text(headers: &HeaderMap) -> Option<String> {
    Some(headers.get("grpc-message")?.to_str().ok()?.to_owned())
}

/// A request of the usual domain.
pub fn request_for(descriptors: impl IntoIterator<Item = RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: "default".to_owned(),
        descriptors: descriptors.into_iter().collect(),
        hits_addend: 0,
    }
}

/// A descriptor of these entries.
pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| rate_limit_descriptor::Entry {
        key: (*key).to_owned().into(),
        value: (*value).to_owned().into(),
    };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

/// The same with hits of its own.
pub fn hits(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor {
        hits_addend: Some(hits),
        ..descriptor(entries)
    }
}
