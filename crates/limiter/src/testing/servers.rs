//! The supported servers, each as a child process on a free port, killed by its id.
//!
//! A missing server is a failure that says how to install it, never a skipped test.

use super::skew::Skew;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A kind of server, by name and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// The oldest Redis that is supported.
    Redis62,
    /// Debian's Redis.
    Redis70,
    /// Valkey.
    Valkey,
}

/// A running server. Killed when it is dropped.
#[derive(Debug)]
pub struct Server {
    process: Child,
    port: u16,
    program: PathBuf,
    settings: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    /// Its working folder, for files such as a replica's first dump.
    folder: PathBuf,
}

/// Attempts with other ports, since a free one may be taken before it is used.
const ATTEMPTS: usize = 8;

impl ServerKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Redis62, Self::Redis70, Self::Valkey];

    /// The path of its program, linked by `scripts/servers`.
    pub(super) fn program(self) -> PathBuf {
        let name = match self {
            Self::Redis62 => "redis-6.2",
            Self::Redis70 => "redis-7.0",
            Self::Valkey => "valkey",
        };
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../target/servers")
            .join(name)
    }
}

impl Server {
    /// Starts a server without persistence, and waits until it accepts connections.
    ///
    /// # Panics
    /// If the server is not installed or does not start.
    pub fn start(kind: ServerKind) -> Self {
        Self::start_with(kind, &[])
    }

    /// Starts a server with further command line settings.
    ///
    /// # Panics
    /// If the server is not installed or does not start.
    pub fn start_with(kind: ServerKind, settings: &[&str]) -> Self {
        Self::start_in(kind, settings, Vec::new())
    }

    /// Starts a server with a skewed clock.
    ///
    /// # Panics
    /// If the server is not installed or does not start.
    pub fn start_skewed(kind: ServerKind, skew: &Skew) -> Self {
        Self::start_in(kind, &[], skew.environment().to_vec())
    }

    fn start_in(kind: ServerKind, settings: &[&str], environment: Vec<(&'static str, PathBuf)>) -> Self {
        let program = kind.program();
        assert!(
            program.exists(),
            "{kind:?} is not installed: no {}; run scripts/servers once",
            program.display()
        );
        let mut log = String::new();
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        let folder = folder("server");
        for _ in 0..ATTEMPTS {
            let started = free_port().and_then(|port| {
                let process = run(&program, &settings, &environment, &folder, port)?;
                Ok((process, port))
            });
            match started {
                Ok((process, port)) => {
                    return Self {
                        process,
                        port,
                        program,
                        settings,
                        environment,
                        folder,
                    };
                }
                Err(line) => log = line,
            }
        }
        panic!("{kind:?} does not start: {log}")
    }

    /// The port it listens on, at the loopback address.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its URL for clients.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The id of its process.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again on the same port, empty.
    ///
    /// # Panics
    /// If it does not start.
    pub fn revive(&mut self) {
        self.kill();
        let mut log = String::new();
        for _ in 0..ATTEMPTS {
            match run(
                &self.program,
                &self.settings,
                &self.environment,
                &self.folder,
                self.port,
            ) {
                Ok(process) => {
                    self.process = process;
                    return;
                }
                Err(line) => log = line,
            }
        }
        panic!("{} does not start again: {log}", self.program.display())
    }

    /// Stops its process: connections stay open, and nothing is read.
    ///
    /// # Panics
    /// If it has exited.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Continues its process.
    ///
    /// # Panics
    /// If it has exited.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.process_id().to_string()])
            .status();
        assert!(status.is_ok_and(|status| status.success()), "the server takes {signal}");
    }
}

/// A new temporary folder.
pub(super) fn folder(purpose: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("tollgate-{purpose}-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("there is room for a folder");
    folder
}

/// A free port.
///
/// # Errors
/// If no port is free.
pub fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    listener.map(|at| at.port()).map_err(|error| error.to_string())
}

/// Runs a server, and waits until it accepts connections.
fn run(
    program: &Path,
    settings: &[String],
    environment: &[(&'static str, PathBuf)],
    folder: &Path,
    port: u16,
) -> Result<Child, String> {
    let mut process = Command::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
        // A replica receives its first data as a file; a name of its own keeps servers of one folder from mixing them up.
        .args(["--dbfilename", &format!("{port}.rdb")])
        .args(["--repl-diskless-sync-delay", "0"])
        .args(settings)
        .envs(environment.iter().map(|(name, path)| (name, path)))
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut log = String::new();
    if let Some(out) = process.stdout.take() {
        let mut lines = BufReader::new(out).lines().map_while(Result::ok);
        for line in lines.by_ref() {
            if line.contains("Ready to accept connections") {
                // Its log must be read, or it would block when the pipe is full.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(process);
            }
            log = line;
        }
    }
    let _ = process.kill();
    let _ = process.wait();
    Err(log)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        // A leftover folder does no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
