//! Calls that panic in the middle of a decision, on every front end, next to calls that do not.

use super::{PANIC_COST, PANIC_DOMAIN};
use crate::server::gate::{Gate, Phase};
use crate::server::net::listen::{Address, Listener};
use crate::server::rls::{RateLimitDescriptor, RateLimitRequest, SHOULD_RATE_LIMIT_PATH, rate_limit_descriptor};
use crate::server::telemetry::Protocol;
use crate::server::{grpc, http, resp};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::future::{Pending, pending};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_limiter::core::testing::rules::rule_set;
use tollgate_limiter::store::memory::Memory;

/// A front end with its default settings, and the address it listens on.
async fn start<S: Default, F: Future<Output = ()> + Send + 'static>(
    serve: impl FnOnce(Listener, Arc<Gate>, S, Pending<()>) -> F,
) -> (Arc<Gate>, SocketAddr) {
    let rules = rule_set("rules: [{ id: plan, limit: 100/min }]");
    let gate = Arc::new(Gate::new(rules, Arc::new(Memory::options().build())));
    gate.advance_phase(Phase::Ready);
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let Ok(Address::Tcp(address)) = listener.address() else {
        panic!("a TCP listener has a TCP address")
    };
    tokio::spawn(serve(listener, Arc::clone(&gate), S::default(), pending()));
    (gate, address)
}

async fn connect(address: SocketAddr) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

fn grpc_call(domain: &str) -> Request<Full<Bytes>> {
    let message = RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![rate_limit_descriptor::Entry {
                key: "user".into(),
                value: "u".into(),
            }],
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 0,
    };
    let mut body = vec![0];
    body.extend(u32::try_from(message.encoded_len()).unwrap().to_be_bytes());
    body.extend(message.encode_to_vec());
    Request::post(format!("http://test{SHOULD_RATE_LIMIT_PATH}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::from(body))
        .unwrap()
}

async fn grpc_status(response: Response<Incoming>) -> String {
    let in_head = response.headers().get("grpc-status").cloned();
    let body = response.into_body().collect().await.unwrap();
    let status = in_head.or_else(|| body.trailers()?.get("grpc-status").cloned());
    status.unwrap().to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_panic_in_a_grpc_call_is_its_error_and_leaves_the_others_on_its_connection() {
    let (gate, address) = start(grpc::serve).await;
    let mut sender = connect(address).await;
    // All are in flight on one connection.
    let calls: Vec<_> = ["default", PANIC_DOMAIN, "default"]
        .map(|domain| sender.send_request(grpc_call(domain)))
        .into();
    let mut statuses = Vec::new();
    for call in calls {
        statuses.push(grpc_status(call.await.unwrap()).await);
    }
    assert_eq!(statuses, ["0", "13", "0"]);
    let later = sender.send_request(grpc_call("default")).await.unwrap();
    assert_eq!(grpc_status(later).await, "0");
    assert_eq!(gate.metrics().faults.panics(Protocol::Grpc), 1);
    let metrics = gate.metrics_text();
    for line in [
        "tollgate_panics_total{protocol=\"grpc\"} 1\n",
        "tollgate_rejected_total{protocol=\"grpc\",code=\"internal\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[tokio::test]
async fn a_panic_in_an_http_request_is_a_500_and_leaves_the_others_on_its_connection() {
    let (gate, address) = start(http::serve).await;
    let check = |domain: &str| {
        let body = format!(r#"{{"domain":"{domain}","attributes":{{}}}}"#);
        Request::post("http://test/v1/check").body(Full::from(body)).unwrap()
    };
    let mut sender = connect(address).await;
    let mut statuses = Vec::new();
    for call in ["default", PANIC_DOMAIN, "default"].map(|domain| sender.send_request(check(domain))) {
        statuses.push(call.await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 500, 200]);
    // HTTP/1: the connection is kept, and the next request on it is answered.
    let mut stream = TcpStream::connect(address).await.unwrap();
    for (domain, status) in [(PANIC_DOMAIN, "HTTP/1.1 500 "), ("default", "HTTP/1.1 200 ")] {
        let body = format!(r#"{{"domain":"{domain}","attributes":{{}}}}"#);
        let head = format!(
            "POST /v1/check HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let length = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]);
        assert!(answer.starts_with(status), "{answer}");
    }
    assert_eq!(gate.metrics().faults.panics(Protocol::Http), 2);
}

#[tokio::test]
async fn a_panic_in_a_command_is_its_error_and_leaves_the_others_of_its_pipeline() {
    let (gate, address) = start(resp::serve).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let pipeline = [
        "PING".to_owned(),
        format!("TOLLGATE.CHECK {PANIC_DOMAIN} 1 user u"),
        "TOLLGATE.CHECK default 1 user u".to_owned(),
        format!("CL.THROTTLE k 999999 1 1 {PANIC_COST}"),
        "PING".to_owned(),
        "CL.THROTTLE k 9 1 1 1".to_owned(),
    ];
    stream
        .write_all(format!("{}\r\n", pipeline.join("\r\n")).as_bytes())
        .await
        .unwrap();
    let error = "-ERR internal error; the server's log has the cause\r\n";
    let expected = format!(
        "+PONG\r\n{error}*6\r\n:0\r\n:100\r\n:99\r\n:-1\r\n:1\r\n$4\r\nplan\r\n{error}+PONG\r\n*5\r\n:0\r\n:10\r\n:9\r\n:-1\r\n:1\r\n"
    );
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), expected);
    assert_eq!(gate.metrics().faults.panics(Protocol::Resp), 2);
}
