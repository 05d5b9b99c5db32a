//! gRPC calls over HTTP/2, several at a time on each connection.

use crate::servers::load::{Client, Requests, open};
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{self, SendRequest};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Request};
use std::io;
use std::net::SocketAddr;

pub(in crate::servers) const CONNECTIONS: u64 = 20;
pub(super) const STREAMS: usize = 10;

/// The method and its message.
#[derive(Clone, Copy)]
pub(in crate::servers) struct Calls {
    pub(super) path: &'static str,
    /// The message for a key.
    pub(super) message: fn(u64) -> Vec<u8>,
}

pub(in crate::servers) struct GrpcClient {
    sender: SendRequest<Bytes>,
    calls: Calls,
    head: Request<()>,
    message: Bytes,
}

impl Requests for Calls {
    type Client = GrpcClient;

    async fn connect(&self, address: SocketAddr) -> io::Result<Vec<GrpcClient>> {
        let handshake = client::handshake(open(address).await?).await;
        let (sender, connection) = handshake.map_err(io::Error::other)?;
        // Ends with the server.
        tokio::task::spawn_local(async { drop(connection.await) });
        let client = || GrpcClient {
            sender: sender.clone(),
            calls: *self,
            head: Request::new(()),
            message: Bytes::new(),
        };
        Ok(std::iter::repeat_with(client).take(STREAMS).collect())
    }
}

impl Client for GrpcClient {
    fn prepare(&mut self, keys: &mut impl Iterator<Item = u64>) -> Option<u64> {
        let message = (self.calls.message)(keys.next()?);
        let mut framed = BytesMut::with_capacity(5 + message.len());
        framed.put_u8(0);
        framed.put_u32(message.len() as u32);
        framed.put_slice(&message);
        self.message = framed.freeze();
        self.head = Request::new(());
        *self.head.method_mut() = hyper::Method::POST;
        *self.head.uri_mut() = format!("http://bench{}", self.calls.path).parse().unwrap_or_default();
        let headers = self.head.headers_mut();
        headers.insert("te", HeaderValue::from_static("trailers"));
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-timeout", HeaderValue::from_static("250m"));
        Some(1)
    }

    async fn exchange(&mut self) -> io::Result<bool> {
        self.call().await.map_err(io::Error::other)
    }
}

impl GrpcClient {
    async fn call(&mut self) -> Result<bool, h2::Error> {
        std::future::poll_fn(|context| self.sender.poll_ready(context)).await?;
        let head = std::mem::take(&mut self.head);
        let (response, mut stream) = self.sender.send_request(head, false)?;
        stream.send_data(std::mem::take(&mut self.message), true)?;
        let response = response.await?;
        let is_error = is_error(response.headers());
        let mut body = response.into_body();
        while let Some(data) = body.data().await {
            let _ = body.flow_control().release_capacity(data?.len());
        }
        let trailers = body.trailers().await?.unwrap_or_default();
        Ok(is_error || self::is_error(&trailers))
    }
}

/// True if the headers or trailers hold a status other than OK.
fn is_error(headers: &HeaderMap) -> bool {
    headers
        .get("grpc-status")
        .is_some_and(|status| status.as_bytes() != b"0")
}
