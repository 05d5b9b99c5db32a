//! A cluster of child processes: three primaries, each with a third of the slots and a replica.

use super::servers::{Server, ServerKind, free_port};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A running cluster. Its servers are killed when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    /// The first three are the primaries at the start; the others are their replicas, in the same order.
    pub servers: Vec<Server>,
    /// The ports by which they know each other: the TLS ports, if they use TLS.
    ports: Vec<u16>,
    is_tls: bool,
    folder: PathBuf,
}

/// The transport between the servers and to clients. Tests use plain connections all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Plain,
    Tls,
}

/// The number of primaries and of slots.
const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;

/// The polls of a cluster's readiness, and the interval between them.
const POLLS_MAX: usize = 1_500;
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl Cluster {
    /// Starts a cluster with a node timeout of one second, which serves the other slots while a node is down.
    ///
    /// # Panics
    /// If the servers are not installed or do not form a cluster.
    pub fn start(kind: ServerKind) -> Self {
        Self::start_with(kind, &["--cluster-require-full-coverage", "no"])
    }

    /// Starts a cluster with other settings.
    ///
    /// # Panics
    /// If the servers are not installed or do not form a cluster.
    pub fn start_with(kind: ServerKind, settings: &[&str]) -> Self {
        Self::start_servers(kind, PRIMARIES * 2, settings, Transport::Plain)
    }

    /// Starts a cluster that uses TLS, with the certificates of these settings.
    ///
    /// # Panics
    /// If the servers are not installed or do not form a cluster.
    pub fn start_tls(kind: ServerKind, settings: &[&str]) -> Self {
        Self::start_servers(kind, PRIMARIES * 2, settings, Transport::Tls)
    }

    /// Starts a cluster of primaries without replicas.
    ///
    /// # Panics
    /// If the servers are not installed or do not form a cluster.
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

    /// Its URL for clients.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let scheme = if self.is_tls { "rediss" } else { "redis" };
        format!("{scheme}+cluster://{}", hosts.join(","))
    }

    /// Sends a command to one of its servers, and returns the reply.
    ///
    /// # Errors
    /// The server's error, or that it is down.
    pub fn command(&self, server: usize, command: &str) -> Result<String, String> {
        let server = self.servers.get(server).ok_or("no such server")?;
        send_command(server.port(), command).map_err(|error| error.to_string())?
    }

    /// Sends a command whose reply is a list.
    ///
    /// # Panics
    /// If the reply is not a list.
    pub fn list(&self, server: usize, command: &str) -> Vec<String> {
        let reply = self.command(server, command).expect("a list");
        reply.lines().map(str::to_owned).collect()
    }

    /// The node id of a server.
    ///
    /// # Panics
    /// If it does not reply.
    pub fn id(&self, server: usize) -> String {
        self.command(server, "CLUSTER MYID").expect("a node id")
    }

    /// Polls until a condition holds, for half a minute at most.
    ///
    /// # Panics
    /// If it does not.
    #[expect(
        clippy::disallowed_methods,
        reason = "servers send no event when they agree, so they are polled"
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

    /// True if the reply of a server contains a line.
    pub fn has_line(&self, server: usize, command: &str, line: &str) -> bool {
        let reply = self.command(server, command).unwrap_or_default();
        reply.lines().any(|reply| reply.trim_end() == line)
    }

    fn join(&self) {
        let run = |server, command: &str| self.command(server, command).expect("a reply");
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
        self.wait_until("connected", |cluster| {
            all.clone().all(|server| {
                let nodes = cluster.command(server, "CLUSTER NODES").unwrap_or_default();
                cluster.has_line(server, "CLUSTER INFO", &known) && !nodes.contains("handshake")
            })
        });
        for replica in PRIMARIES..self.servers.len() {
            run(replica, &format!("CLUSTER REPLICATE {}", self.id(replica - PRIMARIES)));
        }
        self.wait_until("ready", |cluster| {
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
        // It holds only the servers' node files.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A free port, low enough for the cluster bus, which is ten thousand above it.
fn tls_port() -> u16 {
    let ports = (0..POLLS_MAX).filter_map(|_| free_port().ok());
    let mut low = ports.filter(|port| *port < 55_000);
    low.next().expect("there are free ports")
}

/// Sends one command and reads one reply; a list becomes lines.
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
