//! A primary with replicas and sentinels, as child processes.

use super::servers::{Server, ServerKind, folder, free_port};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// A primary, its replicas and their sentinels. All are killed when it is dropped.
#[derive(Debug)]
pub struct SentinelGroup {
    /// The primary and its replicas, in the order of the start: roles change.
    pub servers: Vec<Server>,
    /// The sentinels.
    pub sentinels: Vec<Sentinel>,
}

/// A running sentinel. Killed when it is dropped.
#[derive(Debug)]
pub struct Sentinel {
    process: Child,
    port: u16,
    folder: PathBuf,
}

/// The sentinels' name of the primary.
const NAME: &str = "mymaster";

/// The interval of polls, and their largest number.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const POLLS_MAX: usize = 600;

impl SentinelGroup {
    /// Starts one primary, two replicas and three sentinels, and waits until all know each other.
    ///
    /// # Panics
    /// If one of them does not start.
    pub fn start(kind: ServerKind) -> Self {
        let primary = Server::start(kind);
        let port = primary.port();
        let port_text = port.to_string();
        let settings = ["--replicaof", "127.0.0.1", &port_text];
        let mut servers = vec![primary];
        servers.extend((0..2).map(|_| Server::start_with(kind, &settings)));
        let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::start(kind, port)).collect();
        for sentinel in &sentinels {
            let is_complete = |reply: &str| {
                field(reply, "num-other-sentinels") == Some("2") && field(reply, "num-slaves") == Some("2")
            };
            sentinel.wait_for(is_complete, "all the others");
        }
        let group = Self { servers, sentinels };
        for replica in group.servers.iter().skip(1) {
            let follows =
                || request(replica.port(), "INFO replication").is_some_and(|reply| reply.contains("link_status:up"));
            assert!(poll_until(follows), "the replica at {} never followed", replica.port());
        }
        group
    }

    /// Its URL for clients.
    pub fn url(&self) -> String {
        let ports: Vec<String> = self
            .sentinels
            .iter()
            .map(|sentinel| format!("127.0.0.1:{}", sentinel.port))
            .collect();
        format!("redis+sentinel://{}/{NAME}", ports.join(","))
    }

    /// Subscribes to a channel of all sentinels.
    ///
    /// # Panics
    /// If one of them does not reply.
    pub fn subscribe(&self, channel: &str) -> Subscription {
        let subscribe = |sentinel: &Sentinel| {
            let mut stream = TcpStream::connect(("127.0.0.1", sentinel.port))?;
            stream.set_read_timeout(Some(Duration::from_secs(1)))?;
            stream.write_all(format!("SUBSCRIBE {channel}\r\n").as_bytes())?;
            // The confirmation.
            let mut reply = [0; 256];
            let count = stream.read(&mut reply)?;
            assert!(count > 0 && reply.starts_with(b"*3"), "a sentinel that lets us listen");
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let streams: std::io::Result<Vec<TcpStream>> = self.sentinels.iter().map(subscribe).collect();
        Subscription(streams.expect("sentinels that answer"))
    }

    /// The primary's port, by the first sentinel that replies.
    ///
    /// # Panics
    /// If none does.
    pub fn primary_port(&self) -> u16 {
        let reply = self.sentinels.iter().find_map(Sentinel::master);
        let reply = reply.expect("a sentinel answers");
        field(&reply, "port")
            .and_then(|port| port.parse().ok())
            .expect("it names a port")
    }
}

/// A subscription to a channel of all sentinels.
#[derive(Debug)]
pub struct Subscription(Vec<TcpStream>);

impl Subscription {
    /// True if a message has arrived since the last call.
    pub fn has_message(&mut self) -> bool {
        let mut bytes = [0; 4_096];
        let received = |stream: &mut TcpStream| stream.read(&mut bytes).is_ok_and(|count| count > 0);
        self.0
            .iter_mut()
            .map(received)
            .fold(false, |any, received| any | received)
    }
}

impl Sentinel {
    fn start(kind: ServerKind, primary: u16) -> Self {
        let port = free_port().expect("there are free ports");
        let folder = folder("sentinel");
        let settings = format!(
            "port {port}\nbind 127.0.0.1\nprotected-mode no\nsentinel monitor {NAME} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {NAME} 800\nsentinel failover-timeout {NAME} 3000\n"
        );
        let file = folder.join("sentinel.conf");
        fs::write(&file, settings).expect("there is room for a file");
        let process = Command::new(kind.program())
            .args([&file, Path::new("--sentinel")])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server is installed: run scripts/servers once");
        let sentinel = Self { process, port, folder };
        sentinel.wait_for(|reply| field(reply, "ip").is_some(), "a primary");
        sentinel
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn wait_for(&self, condition: impl Fn(&str) -> bool, what: &str) {
        let found = poll_until(|| self.master().is_some_and(|reply| condition(&reply)));
        assert!(found, "the sentinel at {} never knew {what}", self.port);
    }

    /// Its reply about the primary.
    fn master(&self) -> Option<String> {
        request(self.port, &format!("SENTINEL MASTER {NAME}"))
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Polls until a condition holds. False if it never does.
fn poll_until(mut condition: impl FnMut() -> bool) -> bool {
    (0..POLLS_MAX).any(|_| {
        let is_met = condition();
        if !is_met {
            thread::park_timeout(POLL_INTERVAL);
        }
        is_met
    })
}

/// Sends one command to a server or a sentinel.
fn request(port: u16, command: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
    // The server replies, and then reads the end of the stream.
    stream.shutdown(Shutdown::Write).ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    Some(reply)
}

/// A field of a reply that is a list of names and values, each after its length.
fn field<'s>(reply: &'s str, name: &str) -> Option<&'s str> {
    let mut lines = reply.lines();
    lines.find(|line| *line == name)?;
    lines.nth(1)
}
