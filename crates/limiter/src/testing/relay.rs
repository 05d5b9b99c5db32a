//! A TCP relay to a server that delays its replies.
#![expect(clippy::disallowed_methods, reason = "the delay of a network is real time")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// The most chunks of one connection that wait for their time.
const CHUNKS_MAX: usize = 1_024;

/// A relay to a server on this machine. It runs until the test ends.
#[derive(Debug)]
pub struct Relay {
    port: u16,
    delay_us: Arc<AtomicU64>,
}

impl Relay {
    /// Relays to a port, with this delay of every reply.
    ///
    /// # Panics
    /// There is no free port.
    pub fn start(server_port: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
        let port = listener.local_addr().expect("it is bound").port();
        let delay_us = Arc::new(AtomicU64::new(0));
        let relay = Self {
            port,
            delay_us: Arc::clone(&delay_us),
        };
        relay.set_delay(delay);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // Without a server the client sees the end of its connection.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)) {
                    connect(client, server, &delay_us);
                }
            }
        });
        relay
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the server behind it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Delays the replies that arrive from now on by so much.
    pub fn set_delay(&self, delay: Duration) {
        let us = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.delay_us.store(us, Ordering::Relaxed);
    }
}

fn connect(client: TcpStream, server: TcpStream, delay_us: &Arc<AtomicU64>) {
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a socket has options");
    }
    let clone = |stream: &TcpStream| stream.try_clone().expect("a socket can be shared");
    let (from_client, to_server) = (clone(&client), clone(&server));
    thread::spawn(move || copy(from_client, to_server));
    let (sender, receiver) = sync_channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
    let delay_us = Arc::clone(delay_us);
    thread::spawn(move || read_replies(server, &sender, &delay_us));
    let mut client = client;
    thread::spawn(move || {
        for (due, chunk) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if client.write_all(&chunk).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    });
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

fn read_replies(mut server: TcpStream, replies: &SyncSender<(Instant, Vec<u8>)>, delay_us: &AtomicU64) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read) = server.read(&mut buffer) {
        let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else {
            return;
        };
        let due = Instant::now() + Duration::from_micros(delay_us.load(Ordering::Relaxed));
        if replies.send((due, chunk.to_vec())).is_err() {
            return;
        }
    }
}
