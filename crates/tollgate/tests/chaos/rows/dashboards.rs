//! The admin API under a crowd, and a receiver of alerts that never answers.

use crate::admin::{self, TOKEN, call, get, publish};
use crate::audit::survived;
use crate::harness::{Harness, hot_and_many, pause, wait_until};
use crate::measurements::Measurements;
use crate::node::{Node, exchange};
use crate::plan::Plan;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_limiter::testing::servers::{Server, ServerKind};

const MIB: f64 = 1_048_576.0;
/// Streams that are asked for, most of them by readers that do not read.
const STREAMS: u32 = 500;
const REQUESTS_PER_SECOND: u32 = 200;
const LOGINS_PER_SECOND: u32 = 1_000;
/// Threads that guess.
const GUESSERS: u32 = 8;

/// More streams, requests and guesses than the admin API takes.
pub(super) fn crowded(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let settings = admin::settings("data_dir");
    let node = Node::start_managed(&format!("store: memory\n{settings}{}", hot_and_many("local")));
    let published = publish(&node, "rules:\n- { id: managed, per: user, limit: 100000/s }\n");
    assert!(published.is_done(), "{published:?}");
    let user = json!({ "name": "ada", "role": "viewer", "password": "correct horse battery staple" });
    let made = call(&node, "POST", "/v1/users", "", Some(&user));
    assert!(made.is_done(), "{made:?}");
    let mut harness = Harness::over(vec![node], plan);
    harness.load_now();
    let from_us = harness.pause(plan.seconds(2.0, 10.0));
    let before = harness.nodes[0].resident() / MIB;
    let port = harness.nodes[0].admin.expect("it has an admin API");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let time = plan.seconds(4.0, 30.0);
    let is_over = Arc::new(AtomicBool::new(false));
    let (guessed, reached, answered) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let streams: Vec<TcpStream> = (0..STREAMS).filter_map(|_| open_stream(address)).collect();
    std::thread::scope(|scope| {
        for _ in 0..GUESSERS {
            scope.spawn(|| guess(address, &is_over, &guessed, &reached));
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let status = get(&harness.nodes[0], "/v1/series?range=24h").status;
                answered.fetch_add(u32::from(status == 200), Ordering::Relaxed);
                pause(Duration::from_secs(1) / REQUESTS_PER_SECOND);
            }
        });
        pause(time);
        is_over.store(true, Ordering::Relaxed);
    });
    let to_us = harness.now_us();
    let more = harness.nodes[0].resident() / MIB - before;
    drop(streams);
    wait_until("the admin API answers again", || {
        get(&harness.nodes[0], "/v1/status").status == 200
    });
    let result = harness.end_load();
    let names = ("checks that failed", "p99 of checks, against 2 x before");
    result.undisturbed(&mut measurements, names, (from_us, to_us), |before| {
        (before * 2).max(Duration::from_millis(2))
    });
    measurements.at_most("MiB more than before", more, 64.0);
    let reached = f64::from(reached.load(Ordering::Relaxed));
    measurements.at_most("guesses whose password was hashed", reached, 5.0);
    let per_second = f64::from(guessed.load(Ordering::Relaxed)) / time.as_secs_f64();
    measurements.note("guesses a second that were answered", per_second);
    measurements.note("reads answered meanwhile", f64::from(answered.load(Ordering::Relaxed)));
    survived(measurements, [&mut harness.nodes[0]])
}

/// A stream whose reader does not read; none if it is refused a connection.
fn open_stream(address: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
    let request =
        format!("GET /v1/stream?decisions=1 HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {TOKEN}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    Some(stream)
}

/// Guesses the password of one user, until it is over.
fn guess(address: SocketAddr, is_over: &AtomicBool, guessed: &AtomicU32, reached: &AtomicU32) {
    let body = json!({ "name": "ada", "password": "a wrong guess" }).to_string();
    let length = body.len();
    let request = format!(
        "POST /v1/session HTTP/1.1\r\nhost: {address}\r\norigin: http://{address}\r\nx-tollgate: 1\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    while !is_over.load(Ordering::Relaxed) {
        if let Some((status, _)) = exchange(address, &request) {
            guessed.fetch_add(1, Ordering::Relaxed);
            reached.fetch_add(u32::from(status == 401), Ordering::Relaxed);
        }
        pause(Duration::from_secs(1) * GUESSERS / LOGINS_PER_SECOND);
    }
}

/// The store comes and goes, and the webhook accepts connections and never answers.
pub(super) fn silent_receiver(plan: &Plan) -> Measurements {
    let mut measurements = Measurements::default();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let hook = listener.local_addr().expect("it is bound");
    let arrived = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&arrived);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
        }
    });
    let server = Server::start(ServerKind::Redis70);
    let node = Node::start(&format!(
        "store: {{ url: '{}', deadline: 50ms }}\n\
         alerts: {{ group: 1s, webhooks: [{{ name: ops, url: 'http://{hook}/', secret: 0123456789abcdef, allow_private: true }}] }}\n{}",
        server.url(),
        hot_and_many("local")
    ));
    let mut harness = Harness::over(vec![node], plan);
    harness.load();
    let before = harness.nodes[0].resident() / MIB;
    let started = Instant::now();
    while started.elapsed() < plan.seconds(40.0, 600.0) {
        server.freeze();
        pause(Duration::from_secs(12));
        server.thaw();
        pause(Duration::from_secs(8));
    }
    let failed = harness.metric("tollgate_webhook_deliveries_total", "result=\"failed\"");
    let more = harness.nodes[0].resident() / MIB - before;
    let result = harness.end_load();
    measurements.none("checks that failed", result.failed());
    measurements.at_most("MiB more than before", more, 64.0);
    measurements.at_least(
        "deliveries that were tried",
        f64::from(arrived.load(Ordering::Relaxed)),
        1.0,
    );
    measurements.at_least("deliveries that failed", failed, 1.0);
    // One message, which is tried again with growing waits.
    measurements.at_most(
        "deliveries that were tried, at most",
        f64::from(arrived.load(Ordering::Relaxed)),
        plan.pick(8.0, 12.0),
    );
    let dropped = harness.metric("tollgate_webhook_deliveries_total", "result=\"dropped\"");
    measurements.none("messages that were dropped", dropped);
    survived(measurements, [&mut harness.nodes[0]])
}
