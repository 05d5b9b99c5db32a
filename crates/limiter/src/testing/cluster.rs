//! Starts a cluster: three primaries with the slots between them, each with a replica.

use super::servers::{Server, ServerKind, free_port};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A running cluster. Its servers end when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    /// The first three have the slots at the start; each of the others follows one of them, in the same order.
    pub servers: Vec<Server>,
    /// At which ports they know each other: those for TLS, if they speak it.
    ports: Vec<u16>,
    is_tls: bool,
    folder: PathBuf,
}

/// What the servers speak with each other and with clients. Tests ask them in plain words all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Plain,
    Tls,
}

/// How many primaries, and how many slots there are.
const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;

/// How often a cluster is asked whether it is ready, and the pause between.
const POLLS_MAX: usize = 1_500;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Cluster {
    /// Starts a cluster whose servers take each other for dead after a second, and which goes on without those that are.
    ///
    /// # Panics
    /// If the servers are not installed or do not find together.
    pub fn start(kind: ServerKind) -> Self {
        Self::start_with(kind, &["--cluster-require-full-coverage", "no"])
    }

    /// The same with other settings.
    ///
    /// # Panics
    /// If the servers are not installed or do not find together.
    pub fn start_with(kind: ServerKind, settings: &[&str]) -> Self {
        Self::start_servers(kind, PRIMARIES * 2, settings, Transport::Plain)
    }

    /// One that speaks TLS, with certificates as these settings say.
    ///
    /// # Panics
    /// If the servers are not installed or do not find together.
    pub fn start_tls(kind: ServerKind, settings: &[&str]) -> Self {
        Self::start_servers(kind, PRIMARIES * 2, settings, Transport::Tls)
    }

    /// One of primaries that nobody follows.
    ///
    /// # Panics
    /// If the servers are not installed or do not find together.
    pub fn start_without_replicas(kind: ServerKind) -> Self {
        let settings = ["--cluster-require-full-coverage", "no"];
        Self::start_servers(kind, PRIMARIES, &settings, Transport::Plain)
    }

    fn start_servers(kind: ServerKind, servers: usize, settings: &[&str], transport: Transport) -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-cluster-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let start = |number: usize| {
            let file = format!("nodes-{number}.conf");
            let folder = folder.to_string_lossy();
            let mut all = vec!["--cluster-enabled", "yes", "--dir", &folder];
            all.extend(["--cluster-config-file", &file, "--cluster-node-timeout", "1000"]);
            all.extend(["--cluster-replica-validity-factor", "0"]);
            all.extend(settings);
            if transport == Transport::Plain {
                let server = Server::start_with(kind, &all);
                let port = server.port();
                return (server, port);
            }
            let port = tls_port();
            let text = port.to_string();
            all.extend(["--tls-port", &text, "--tls-cluster", "yes", "--tls-replication", "yes"]);
            (Server::start_with(kind, &all), port)
        };
        let (servers, ports) = (0..servers).map(start).unzip();
        let cluster = Self {
            servers,
            ports,
            is_tls: transport == Transport::Tls,
            folder: folder.clone(),
        };
        cluster.join();
        cluster
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let scheme = if self.is_tls { "rediss" } else { "redis" };
        format!("{scheme}+cluster://{}", hosts.join(","))
    }

    /// Asks one of its servers something, and says what it answers, or how it refuses.
    ///
    /// # Errors
    /// What the server says, or that it is not there.
    pub fn command(&self, server: usize, command: &str) -> Result<String, String> {
        let server = self.servers.get(server).ok_or("no such server")?;
        send_command(server.port(), command).map_err(|error| error.to_string())?
    }

    /// The same for something that is answered with a list of words.
    ///
    /// # Panics
    /// If it is not.
    pub fn list(&self, server: usize, command: &str) -> Vec<String> {
        let reply = self.command(server, command).expect("a list");
        reply.lines().map(str::to_owned).collect()
    }

    /// The name by which the others know a server.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn id(&self, server: usize) -> String {
        self.command(server, "CLUSTER MYID").expect("its id")
    }

    /// Waits until something holds, asking again and again, for half a minute at most.
    ///
    /// # Panics
    /// If it does not.
    #[expect(
        clippy::disallowed_methods,
        reason = "servers tell nobody when they have agreed: they are asked until they have"
    )]
    pub fn wait_until(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        for _ in 0..POLLS_MAX {
            if condition(self) {
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        panic!("the cluster: not {what}");
    }

    /// Whether a server says something in one of its lines.
    pub fn has_line(&self, server: usize, command: &str, line: &str) -> bool {
        let reply = self.command(server, command).unwrap_or_default();
        reply.lines().any(|reply| reply.trim_end() == line)
    }

    fn join(&self) {
        let run = |server, command: &str| self.command(server, command).expect("a server that obeys");
        for server in 0..self.servers.len() {
            run(server, &format!("CLUSTER SET-CONFIG-EPOCH {}", server + 1));
        }
        for primary in 0..PRIMARIES {
            let slots: Vec<String> = (SLOTS * primary / PRIMARIES..SLOTS * (primary + 1) / PRIMARIES)
                .map(|slot| slot.to_string())
                .collect();
            run(primary, &format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
        }
        for port in self.ports.iter().skip(1) {
            run(0, &format!("CLUSTER MEET 127.0.0.1 {port}"));
        }
        let all = 0..self.servers.len();
        let known = format!("cluster_known_nodes:{}", self.servers.len());
        self.wait_until("that all know each other", |cluster| {
            all.clone().all(|server| {
                let nodes = cluster.command(server, "CLUSTER NODES").unwrap_or_default();
                cluster.has_line(server, "CLUSTER INFO", &known) && !nodes.contains("handshake")
            })
        });
        for replica in PRIMARIES..self.servers.len() {
            run(replica, &format!("CLUSTER REPLICATE {}", self.id(replica - PRIMARIES)));
        }
        self.wait_until("well", |cluster| {
            all.clone()
                .all(|server| cluster.has_line(server, "CLUSTER INFO", "cluster_state:ok"))
                && (PRIMARIES..cluster.servers.len())
                    .all(|replica| cluster.has_line(replica, "INFO replication", "master_link_status:up"))
                && all.clone().all(|server| {
                    let nodes = cluster.command(server, "CLUSTER NODES").unwrap_or_default();
                    nodes.matches("slave").count() == cluster.servers.len() - PRIMARIES
                })
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.servers.clear();
        // Only the servers' notes of each other are in it.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A port that is free, and low enough: servers talk with each other ten thousand above it.
fn tls_port() -> u16 {
    let ports = (0..POLLS_MAX).filter_map(|_| free_port().ok());
    let mut low = ports.filter(|port| *port < 55_000);
    low.next().expect("there are free ports")
}

/// Sends one line and reads one answer: a word, a number, a text, a refusal, or a list of these as lines.
fn send_command(port: u16, command: &str) -> std::io::Result<Result<String, String>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    read(&mut BufReader::new(stream))
}

fn read(reader: &mut BufReader<TcpStream>) -> std::io::Result<Result<String, String>> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let line = line.trim_end();
    let (kind, rest) = line.split_at(line.len().min(1));
    Ok(match kind {
        "$" => {
            let mut text = vec![0; rest.parse().unwrap_or_default()];
            reader.read_exact(&mut text)?;
            reader.read_line(&mut String::new())?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
        "*" => {
            let mut items = Vec::new();
            for _ in 0..rest.parse().unwrap_or(0) {
                items.push(read(reader)?.unwrap_or_else(|error| error));
            }
            Ok(items.join("\n"))
        }
        "-" => Err(rest.to_owned()),
        _ => Ok(rest.to_owned()),
    })
}
