//! A relay between an instance and its shared store that counts the bytes the instance receives.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// A relay, which lasts as long as the program.
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    received: Arc<AtomicU64>,
}

impl Relay {
    pub(super) fn start(store: SocketAddr) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| format!("no free port: {error}"))?;
        let address = listener
            .local_addr()
            .map_err(|error| format!("no free port: {error}"))?;
        let received = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&received);
        thread::spawn(move || {
            for instance in listener.incoming().flatten() {
                // An instance that cannot be relayed notices it, and the measurement fails.
                let _ = connect(instance, store, &counter);
            }
        });
        Ok(Self { address, received })
    }

    /// The bytes that the instance has received so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

fn connect(instance: TcpStream, store: SocketAddr, counter: &Arc<AtomicU64>) -> io::Result<()> {
    let store = TcpStream::connect(store)?;
    for stream in [&instance, &store] {
        stream.set_nodelay(true)?;
    }
    let (requests, replies) = (instance.try_clone()?, store.try_clone()?);
    thread::spawn(move || copy(requests, store, &AtomicU64::new(0)));
    let counter = Arc::clone(counter);
    thread::spawn(move || copy(replies, instance, &counter));
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream, counter: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let bytes = buffer.get(..count).unwrap_or_default();
        counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    // It may be closed already.
    let _ = to.shutdown(Shutdown::Both);
}
