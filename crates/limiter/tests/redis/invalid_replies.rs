//! A server that answers nonsense. The real ones do not, so this one is made up.

use crate::fixture::{charge, every_limit, lease};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_core::testing::random::Random;
use tollgate_core::{Limit, Micros};
use tollgate_limiter::store::redis::{Functions, Redis, RedisKey, RedisOptions};
use tollgate_limiter::store::{Store, StoreError};
use tollgate_limiter::testing::counters;

/// What is said to the next call of the script, and then to all that follow.
type CannedReply = Arc<Mutex<Vec<Vec<u8>>>>;

/// A made-up server. Takes connections until the test ends.
struct FakeServer {
    port: u16,
    canned_reply: CannedReply,
}

impl FakeServer {
    fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let canned_reply = CannedReply::default();
        let script = Arc::clone(&canned_reply);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let script = Arc::clone(&script);
                // A client that goes away is no fault of this one.
                std::thread::spawn(move || drop(serve(&stream, &script)));
            }
        });
        Self { port, canned_reply }
    }

    /// What calls of the script are answered with, one after the other; the last for ever.
    fn say(&self, answers: &[&[u8]]) {
        let mut canned_reply = self.canned_reply.lock().unwrap_or_else(PoisonError::into_inner);
        *canned_reply = answers.iter().rev().map(|answer| answer.to_vec()).collect();
    }

    fn options(&self) -> RedisOptions {
        let options = Redis::options(&format!("redis://127.0.0.1:{}/", self.port)).expect("a URL");
        options.functions(Functions::Off).deadline(Duration::from_millis(150))
    }
}

/// Answers what a client needs to hear before it calls the script, and then as it is told.
fn serve(stream: &TcpStream, canned_reply: &CannedReply) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let command = read_command(&mut reader)?;
        let answer: Vec<u8> = match command.first().map(Vec::as_slice) {
            Some(b"SCRIPT") => b"$40\r\n0123456789012345678901234567890123456789\r\n".to_vec(),
            Some(b"TIME") => b"*2\r\n$10\r\n1800000000\r\n$1\r\n0\r\n".to_vec(),
            Some(b"EVALSHA") => {
                let mut canned_reply = canned_reply.lock().unwrap_or_else(PoisonError::into_inner);
                if canned_reply.len() > 1 {
                    canned_reply.pop()
                } else {
                    canned_reply.last().cloned()
                }
                .unwrap_or_default()
            }
            _ => b"+OK\r\n".to_vec(),
        };
        writer.write_all(&answer)?;
    }
}

fn read_command(reader: &mut BufReader<&TcpStream>) -> std::io::Result<Vec<Vec<u8>>> {
    let count = read_length(reader)?;
    let mut fields = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; read_length(reader)? + 2];
        reader.read_exact(&mut word)?;
        word.truncate(word.len() - 2);
        fields.push(word);
    }
    Ok(fields)
}

fn read_length(reader: &mut BufReader<&TcpStream>) -> std::io::Result<usize> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim().get(1..).and_then(|number| number.parse().ok()).unwrap_or(0))
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    let mut answer = format!("${}\r\n", bytes.len()).into_bytes();
    answer.extend_from_slice(bytes);
    answer.extend_from_slice(b"\r\n");
    answer
}

/// Two times, and whether the call came too late; then the rest.
fn encode_reply(server_us: u64, deadline_passed: u8, rest: &[u8]) -> Vec<u8> {
    let time = &server_us.to_le_bytes()[..7];
    bulk(&[time, time, &[deadline_passed], rest].concat())
}

fn key(store: &Redis, limit: &Limit) -> RedisKey {
    counters::key(store, "rule", limit, &[])
}

/// Has the server speak sense, and waits until a store understands it.
async fn understood(fake: &FakeServer, store: &Redis, key: RedisKey, limit: &Limit, after: &str) {
    fake.say(&[&encode_reply(NOW, 0, b"\x01")]);
    let from = Instant::now();
    while store.forget(key, limit).await != Ok(true) {
        assert!(
            from.elapsed() < Duration::from_secs(5),
            "{after}: {:?}",
            store.status().connection_error
        );
    }
}

/// A microsecond of the made-up clock.
const NOW: u64 = 1_800_000_000_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_is_an_error_and_not_the_end() {
    let deep = b"*1\r\n".repeat(10_000);
    let answers: [&[u8]; 22] = [
        b"+OK\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"_\r\n",
        b"*0\r\n",
        b"%1\r\n+a\r\n+b\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"(123456789012345678901234567890\r\n",
        b"$0\r\n\r\n",
        b"$5\r\nhello\r\n",
        b"-\r\n",
        b"-ERR\r\n",
        b"-WHAT is this\r\n",
        b"!5\r\nhello\r\n",
        b"$9223372036854775807\r\n",
        b"$-5\r\n",
        b"*-5\r\n",
        b"hello\r\n",
        b"\xff\xfe\xfd\xfc\r\n\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        &deep,
    ];
    let fake = FakeServer::start();
    let limit = every_limit(5, Micros::from_secs(60))[0];
    for answer in answers {
        let fields = String::from_utf8_lossy(&answer[..answer.len().min(40)]);
        let store = fake.options().open();
        let key = key(&store, &limit);
        fake.say(&[answer]);
        for _ in 0..2 {
            let from = Instant::now();
            let settlement = store.settle(&[charge(key, &limit, 1)], lease()).await;
            assert!(
                settlement.outcomes[0].is_err() && !settlement.allowed,
                "{fields}: {settlement:?}"
            );
            assert!(
                from.elapsed() < Duration::from_secs(2),
                "{fields}: {:?}",
                from.elapsed()
            );
        }
        // From when it speaks sense, it is understood.
        understood(&fake, &store, key, &limit, &fields).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_another_length_is_none_and_bytes_at_random_harm_nobody() {
    let fake = FakeServer::start();
    let mut random = Random::new(7);
    for limit in every_limit(5, Micros::from_secs(60)) {
        let store = fake.options().open();
        let key = key(&store, &limit);
        for turn in 0..400 {
            let length = 30 + random.below(60) as usize;
            let fill = random.below(3);
            let mut bytes: Vec<u8> = (0..length)
                .map(|_| match fill {
                    0 => 0xff,
                    1 => random.below(256) as u8,
                    _ => random.below(2) as u8,
                })
                .collect();
            // Mostly of the length that is right without a state, and with one.
            if turn % 64 > 0 {
                let state = if turn % 2 > 0 {
                    limit.packed_bytes().unwrap_or(0)
                } else {
                    0
                };
                bytes.resize(37 + state, 0xff);
                bytes[0] = if state > 0 { 8 } else { 0 } + random.below(8) as u8;
            }
            let clock = if fill == 0 { u64::MAX } else { NOW + turn };
            fake.say(&[&encode_reply(clock, 0, &bytes)]);
            // It may be well formed by chance. Then it is believed, and the next request is judged by it too.
            for cost in [1, 5] {
                drop(store.settle(&[charge(key, &limit, cost)], lease()).await);
            }
        }
        understood(&fake, &store, key, &limit, "bytes at random").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_was_too_late_only_by_a_clock_that_was_set_is_made_again() {
    let fake = FakeServer::start();
    let store = fake.options().deadline(Duration::from_secs(5)).open();
    let limit = every_limit(5, Micros::from_secs(60))[0];
    let key = key(&store, &limit);
    fake.say(&[&encode_reply(NOW, 0, b"\x01")]);
    assert_eq!(store.forget(key, &limit).await, Ok(true));
    // Its clock jumps by an hour, and so every call under way is too late. It did nothing.
    const LATER: u64 = NOW + 3_600_000_000;
    fake.say(&[&encode_reply(LATER, 1, b""), &encode_reply(LATER, 0, b"\x01")]);
    let calls = store.metrics().calls.get();
    assert_eq!(store.forget(key, &limit).await, Ok(true));
    assert_eq!(store.metrics().calls.get(), calls + 2);
    // One that says so again and again is not asked again and again.
    fake.say(&[&encode_reply(LATER, 1, b"")]);
    assert_eq!(store.forget(key, &limit).await, Err(StoreError::DeadlinePassed));
    assert_eq!(store.metrics().calls.get(), calls + 4);
}
