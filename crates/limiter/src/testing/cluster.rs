//! Starts a cluster: three primaries with the slots between them, each with a replica.

use super::servers::{Kind, Server, free_port};
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
enum Spoken {
    Plain,
    Tls,
}

/// How many primaries, and how many slots there are.
const PRIMARIES: usize = 3;
const SLOTS: usize = 16_384;

/// How often a cluster is asked whether it is ready, and the pause between.
const LOOKS: usize = 1_500;
const PAUSE: Duration = Duration::from_millis(20);

impl Cluster {
    /// Starts a cluster whose servers take each other for dead after a second, and which goes on without those that are.
    ///
    /// # Panics
    /// If the servers are not installed or do not find together.
    pub fn start(kind: Kind) -> Self {
        Self::start_with(kind, &["--cluster-require-full-coverage", "no"])
    }

    /// The same with other settings.
    ///
    /// # Panics
    /// If the servers are not installed or do not find together.
    pub fn start_with(kind: Kind, settings: &[&str]) -> Self {
        Self::start_of(kind, PRIMARIES * 2, settings, Spoken::Plain)
    }

    /// One that speaks TLS, with certificates as these settings say.
    ///
    /// # Panics
    /// If the servers are not installed or do not find together.
    pub fn start_tls(kind: Kind, settings: &[&str]) -> Self {
        Self::start_of(kind, PRIMARIES * 2, settings, Spoken::Tls)
    }

    /// One of primaries that nobody follows.
    ///
    /// # Panics
    /// If the servers are not installed or do not find together.
    pub fn start_alone(kind: Kind) -> Self {
        let settings = ["--cluster-require-full-coverage", "no"];
        Self::start_of(kind, PRIMARIES, &settings, Spoken::Plain)
    }

    fn start_of(kind: Kind, servers: usize, settings: &[&str], spoken: Spoken) -> Self {
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
            if spoken == Spoken::Plain {
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
            is_tls: spoken == Spoken::Tls,
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
    pub fn ask(&self, server: usize, command: &str) -> Result<String, String> {
        let server = self.servers.get(server).ok_or("no such server")?;
        ask(server.port(), command).map_err(|error| error.to_string())?
    }

    /// The same for something that is answered with a list of words.
    ///
    /// # Panics
    /// If it is not.
    pub fn list(&self, server: usize, command: &str) -> Vec<String> {
        let said = self.ask(server, command).expect("a list");
        said.lines().map(str::to_owned).collect()
    }

    /// The name by which the others know a server.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn id(&self, server: usize) -> String {
        self.ask(server, "CLUSTER MYID").expect("its id")
    }

    /// Waits until something holds, asking again and again, for half a minute at most.
    ///
    /// # Panics
    /// If it does not.
    #[expect(
        clippy::disallowed_methods,
        reason = "servers tell nobody when they have agreed: they are asked until they have"
    )]
    pub fn wait_until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        for _ in 0..LOOKS {
            if holds(self) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        panic!("the cluster: not {what}");
    }

    /// Whether a server says something in one of its lines.
    pub fn says(&self, server: usize, command: &str, line: &str) -> bool {
        let said = self.ask(server, command).unwrap_or_default();
        said.lines().any(|said| said.trim_end() == line)
    }

    fn join(&self) {
        let must = |server, command: &str| self.ask(server, command).expect("a server that obeys");
        for server in 0..self.servers.len() {
            must(server, &format!("CLUSTER SET-CONFIG-EPOCH {}", server + 1));
        }
        for primary in 0..PRIMARIES {
            let slots: Vec<String> = (SLOTS * primary / PRIMARIES..SLOTS * (primary + 1) / PRIMARIES)
                .map(|slot| slot.to_string())
                .collect();
            must(primary, &format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
        }
        for port in self.ports.iter().skip(1) {
            must(0, &format!("CLUSTER MEET 127.0.0.1 {port}"));
        }
        let all = 0..self.servers.len();
        let known = format!("cluster_known_nodes:{}", self.servers.len());
        self.wait_until("that all know each other", |cluster| {
            all.clone().all(|server| {
                let nodes = cluster.ask(server, "CLUSTER NODES").unwrap_or_default();
                cluster.says(server, "CLUSTER INFO", &known) && !nodes.contains("handshake")
            })
        });
        for replica in PRIMARIES..self.servers.len() {
            must(replica, &format!("CLUSTER REPLICATE {}", self.id(replica - PRIMARIES)));
        }
        self.wait_until("well", |cluster| {
            all.clone()
                .all(|server| cluster.says(server, "CLUSTER INFO", "cluster_state:ok"))
                && (PRIMARIES..cluster.servers.len())
                    .all(|replica| cluster.says(replica, "INFO replication", "master_link_status:up"))
                && all.clone().all(|server| {
                    let nodes = cluster.ask(server, "CLUSTER NODES").unwrap_or_default();
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
    let ports = (0..LOOKS).filter_map(|_| free_port().ok());
    let mut low = ports.filter(|port| *port < 55_000);
    low.next().expect("there are free ports")
}

/// Sends one line and reads one answer: a word, a number, a text, a refusal, or a list of these as lines.
fn ask(port: u16, command: &str) -> std::io::Result<Result<String, String>> {
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
            let mut words = Vec::new();
            for _ in 0..rest.parse().unwrap_or(0) {
                words.push(read(reader)?.unwrap_or_else(|refusal| refusal));
            }
            Ok(words.join("\n"))
        }
        "-" => Err(rest.to_owned()),
        _ => Ok(rest.to_owned()),
    })
}
