//! Alerts of a running server, as a receiver of webhooks and a reader of the admin API see them.

use crate::test_server::{Response, TestServer, tollgate};
use hmac::{Hmac, Mac};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tollgate_limiter::testing::servers::{Server as Redis, ServerKind};
use tollgate_test_kit::{TestFolder, eventually};

const SECRET: &str = "0123456789abcdef0123";
const TOKEN: &str = "token-of-an-admin";

/// A message that arrived.
struct Message {
    head: String,
    body: String,
}

impl Message {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("a message is JSON")
    }

    /// True if it is signed with the secret.
    fn is_signed(&self) -> bool {
        let line = self
            .head
            .lines()
            .find_map(|line| line.strip_prefix("x-tollgate-signature: "));
        let (at, code) = line
            .and_then(|line| line.strip_prefix("t=")?.split_once(",v1="))
            .expect("it has a signature");
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(SECRET.as_bytes()).expect("any length is a key");
        mac.update(format!("{at}.{}", self.body).as_bytes());
        hex(&mac.finalize().into_bytes()) == code
    }
}

/// A receiver that answers with these statuses, then with 200. A status of 0 is no answer at all.
struct Webhook {
    address: String,
    messages: Receiver<Message>,
}

impl Webhook {
    fn start(statuses: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (sender, messages) = channel();
        let statuses = statuses.to_vec();
        std::thread::spawn(move || {
            let mut statuses = statuses.into_iter();
            for stream in listener.incoming().map_while(Result::ok) {
                if receive(stream, statuses.next().unwrap_or(200), &sender).is_none() {
                    return;
                }
            }
        });
        Self { address, messages }
    }

    fn next(&self) -> Message {
        self.messages
            .recv_timeout(Duration::from_secs(60))
            .expect("a message comes")
    }
}

/// Reads a message and answers it. None: nobody waits for messages any more.
fn receive(stream: TcpStream, status: u16, messages: &Sender<Message>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return Some(());
        }
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).expect("the body comes");
    let body = String::from_utf8(body).expect("it is UTF-8");
    messages.send(Message { head, body }).ok()?;
    let mut stream = reader.into_inner();
    if status == 0 {
        // Until the client gives up.
        let _ = stream.read(&mut [0]);
    } else {
        let _ = write!(
            stream,
            "HTTP/1.1 {status} X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
        );
    }
    Some(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A server with an admin API, a token for it, and webhooks.
fn start(folder: &TestFolder, webhooks: &[(&str, &str, bool)], more: &str) -> TestServer {
    let list: Vec<String> = webhooks
        .iter()
        .map(|(name, url, allow_private)| {
            format!("{{ name: {name}, url: '{url}', secret: {SECRET}, allow_private: {allow_private} }}")
        })
        .collect();
    let sha256 = hex(&Sha256::digest(TOKEN.as_bytes()));
    folder.write(
        "tollgate.yaml",
        &format!(
            "alerts: {{ group: 1s, webhooks: [{}] }}\nadmin: {{ tokens: [{{ name: ops, sha256: {sha256}, role: admin }}] }}\n{more}",
            list.join(", ")
        ),
    );
    let mut command = tollgate(folder, &["serve", "--set", "server.http=127.0.0.1:0"]);
    command.env("TOLLGATE_SERVER__ADMIN", "127.0.0.1:0");
    TestServer::spawn(command)
}

fn admin_address(server: &TestServer) -> &str {
    let line = server
        .banner
        .lines()
        .find_map(|line| line.strip_prefix("admin: http://"));
    let line = line.unwrap_or_else(|| panic!("no admin address in {}", server.banner));
    line.split('/').next().unwrap_or(line)
}

fn send(server: &TestServer, method: &str, path: &str, body: &str) -> TcpStream {
    let address = admin_address(server);
    let mut stream = TcpStream::connect(address).expect("the server is ready");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("it can wait");
    let content = match body.is_empty() {
        true => String::new(),
        false => format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()),
    };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n{content}\r\n{body}"
    )
    .expect("it reads");
    stream
}

fn get(server: &TestServer, path: &str) -> Value {
    let response = Response::read(&mut send(server, "GET", path, ""));
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

fn test(server: &TestServer, name: &str) -> Value {
    let body = format!("{{\"name\":\"{name}\"}}");
    let response = Response::read(&mut send(server, "POST", "/v1/webhooks/test", &body));
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

#[test]
fn a_lost_store_is_told_to_a_webhook_once_in_a_signed_message_that_is_tried_again() {
    let webhook = Webhook::start(&[500]);
    let redis = Redis::start(ServerKind::Redis70);
    let folder = TestFolder::new();
    let store = format!(
        "store: '{}'\nrules: [{{ id: plan, per: user, limit: 5/min }}]\n",
        redis.url()
    );
    let url = format!("http://{}/hook", webhook.address);
    let server = start(&folder, &[("ops", &url, true)], &store);
    let stream = send(&server, "GET", "/v1/stream", "");
    drop(redis);
    let first = webhook.next();
    assert!(first.head.starts_with("POST /hook HTTP/1.1\r\n"), "{}", first.head);
    assert!(first.is_signed(), "{} {}", first.head, first.body);
    let again = webhook.next();
    assert_eq!(again.body, first.body, "it is the same message");
    let body = again.json();
    assert_eq!((&body["version"], &body["status"]), (&"4".into(), &"firing".into()));
    assert_eq!(body["receiver"], "ops");
    assert_eq!(body["alerts"].as_array().expect("a list").len(), 1);
    let labels = &body["alerts"][0]["labels"];
    assert_eq!(
        (&labels["alertname"], &labels["severity"]),
        (&"store_unavailable".into(), &"critical".into())
    );
    eventually("the delivery is counted", || {
        let metrics = server.get("/metrics").body;
        metrics.contains("tollgate_webhook_deliveries_total{result=\"delivered\"} 1")
            && metrics.contains("tollgate_webhook_deliveries_total{result=\"failed\"} 1")
            && metrics.contains("tollgate_alerts_firing 1")
    });
    let listed = get(&server, "/v1/alerts?state=firing");
    assert_eq!(listed["items"][0]["kind"], "store_unavailable");
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(SECRET.as_bytes()).expect("any length is a key");
    mac.update(b"fingerprint:[\"store_unavailable\"]");
    let code = hex(&mac.finalize().into_bytes());
    assert_eq!(body["alerts"][0]["fingerprint"], code[..16]);
    assert_eq!(listed["webhooks"][0]["last_error"], Value::Null);
    // An open stream had the alert when its state changed.
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut states = Vec::new();
    while states.last().map(String::as_str) != Some("firing") {
        lines.find(|line| line == "event: alert").expect("the stream goes on");
        let data = lines
            .next()
            .and_then(|line| line.strip_prefix("data: ").map(str::to_owned));
        let item: Value = serde_json::from_str(&data.expect("an event has data")).expect("it is JSON");
        assert_eq!(item["kind"], "store_unavailable");
        states.push(item["state"].as_str().expect("a state").to_owned());
    }
    assert_eq!(states, ["pending", "firing"]);
}

#[test]
fn a_webhook_is_tested_on_request_and_neither_follows_redirects_nor_reaches_private_addresses() {
    let webhook = Webhook::start(&[204, 302, 0]);
    let url = format!("http://{}/", webhook.address);
    let webhooks = [
        ("ops", &*url, true),
        ("inside", "https://127.0.0.1:9/", false),
        ("mapped", "https://[::ffff:10.0.0.1]:9/", false),
        ("closed", "http://127.0.0.1:1/", true),
    ];
    let folder = TestFolder::new();
    let server = start(&folder, &webhooks, "");
    let delivered = test(&server, "ops");
    assert_eq!(
        (&delivered["delivered"], &delivered["status"]),
        (&true.into(), &204.into())
    );
    let message = webhook.next();
    assert!(message.is_signed());
    let body = message.json();
    assert_eq!(
        (&body["tollgate"]["test"], &body["alerts"]),
        (&true.into(), &Value::Array(Vec::new()))
    );
    let error = |name: &str| {
        let result = test(&server, name);
        assert_eq!(result["delivered"], false, "{result}");
        result["error"].as_str().expect("a reason").to_owned()
    };
    assert!(error("ops").contains("redirects are not followed"));
    assert!(error("ops").contains("no response within 5 s"), "it hangs");
    assert!(error("inside").contains("not public"));
    assert!(error("mapped").contains("not public"));
    assert!(error("closed").contains("cannot connect"));
    let missing = Response::read(&mut send(&server, "POST", "/v1/webhooks/test", "{\"name\":\"nobody\"}"));
    assert_eq!(missing.status, 404);
    let everything = format!("{}{}{}", server.log(), server.banner, get(&server, "/v1/alerts"));
    assert!(!everything.contains(SECRET), "{everything}");
}
