//! HTTP/2 on the same port, without being asked for before.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tollgate::server::http::{HttpLimits, HttpSettings};
use tollgate_test_kit::http::{HttpServer, settings};

const RULES: &str = "- { id: plan, limit: 100/min }\n";

async fn connect(server: &HttpServer) -> (SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>) {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    (sender, tokio::spawn(connection))
}

fn check(cost: u64) -> Request<Full<Bytes>> {
    Request::post("http://test/v1/check")
        .body(Full::from(format!(r#"{{"attributes":{{}},"cost":{cost}}}"#)))
        .unwrap()
}

#[test]
fn requests_share_a_connection() {
    let server = HttpServer::start(RULES);
    server.runtime.block_on(async {
        let (mut sender, _connection) = connect(&server).await;
        let answers: Vec<_> = (0..50).map(|_| sender.send_request(check(1))).collect();
        let mut remaining = Vec::new();
        for answer in answers {
            let answer = answer.await.unwrap();
            assert_eq!((answer.version(), answer.status().as_u16()), (Version::HTTP_2, 200));
            assert_eq!(answer.headers()["ratelimit-policy"], "\"plan\";q=100;w=60");
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            remaining.push(body["remaining"].as_u64().unwrap());
        }
        remaining.sort_unstable();
        assert_eq!(remaining, (50..100).collect::<Vec<_>>());
        let denied = sender.send_request(check(51)).await.unwrap();
        assert_eq!(denied.status(), 429);
        assert_eq!(denied.headers()["retry-after"], "1");
    });
}

#[test]
fn a_draining_server_says_goaway_and_answers_what_is_in_flight() {
    let mut server = HttpServer::start(RULES);
    let ended = server.runtime.block_on(async {
        let (mut sender, connection) = connect(&server).await;
        assert_eq!(sender.send_request(check(1)).await.unwrap().status(), 200);
        (sender, connection)
    });
    server.stop();
    let (sender, connection) = ended;
    // The server closes the connection in good order: the client sees no error.
    server.runtime.block_on(connection).unwrap().unwrap();
    assert!(sender.is_closed());
    server.wait();
}

#[test]
fn an_idle_connection_is_cut_off() {
    let settings = HttpSettings {
        limits: HttpLimits {
            header_timeout: Duration::from_secs(3_600),
            idle_timeout: Duration::from_millis(40),
            ..HttpLimits::default()
        },
        ..settings()
    };
    let server = HttpServer::start_with(RULES, settings);
    server.runtime.block_on(async {
        let (mut sender, connection) = connect(&server).await;
        assert_eq!(sender.send_request(check(1)).await.unwrap().status(), 200);
        // However it ends.
        let _ = connection.await.unwrap();
        assert!(sender.is_closed());
    });
}
