//! A PostgreSQL server for tests, as a child process on a free port with a new data directory.
//!
//! A missing server is a failure that says how to install it, never a skipped test.

use crate::run_to_end;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tollgate_limiter::testing::servers::free_port;

/// A running server. Stopped, and its data removed, when it is dropped.
pub struct Postgres {
    process: Child,
    port: u16,
    programs: PathBuf,
    data: PathBuf,
    durability: Durability,
}

/// The care that a server takes of what it has committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It survives a killed process.
    Process,
    /// It survives a power cut: commits wait for the disk. For measurements.
    Disk,
}

/// The time for a start; a crashed server replays its log first.
const START: Duration = Duration::from_secs(60);

impl Postgres {
    /// Starts a server of its own.
    pub fn start() -> Self {
        Self::start_with(Durability::Process)
    }

    /// Starts a server of its own, with this care of its commits.
    pub fn start_with(durability: Durability) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let data = std::env::temp_dir().join(format!("tollgate-postgres-{}-{number}", std::process::id()));
        let programs = programs();
        let mut initdb = as_postgres(&programs.join("initdb"));
        initdb.args(["--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8"]);
        initdb.args(["--locale=C.UTF-8", "--pgdata"]).arg(&data);
        run_to_end(&mut initdb, "initdb fails");
        let port = free_port().unwrap();
        let process = run(&programs, &data, port, durability);
        Self {
            process,
            port,
            programs,
            data,
            durability,
        }
    }

    /// A server that the tests of a process share while one of them uses it.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
        // A test that failed while it held the lock has left it as it was.
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start());
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// Creates an empty database and returns its URL.
    pub fn create_database(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let port = self.port.to_string();
        let mut createdb = Command::new(self.programs.join("createdb"));
        createdb.args(["--host=127.0.0.1", "--username=postgres", "--port", &port, &name]);
        run_to_end(&mut createdb, "createdb fails");
        format!("postgres://postgres@127.0.0.1:{port}/{name}")
    }

    /// Runs one statement in the database of a URL.
    pub fn run_sql(&self, url: &str, statement: &str) {
        let done = Command::new(self.programs.join("psql"))
            .args([
                "--quiet",
                "--no-psqlrc",
                "--set",
                "ON_ERROR_STOP=1",
                "--command",
                statement,
                url,
            ])
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{statement}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        // It may have exited already. Its children notice that they are orphans.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again on the same port with the same data.
    pub fn revive(&mut self) {
        self.kill();
        self.process = run(&self.programs, &self.data, self.port, self.durability);
    }

    /// Stops its processes: connections stay open, and nothing is answered.
    pub fn freeze(&self) {
        self.signal_all("-STOP");
    }

    /// Continues its processes.
    pub fn thaw(&self) {
        self.signal_all("-CONT");
    }

    /// Sends a signal to the server and its children, each by its id.
    fn signal_all(&self, signal: &str) {
        let server = self.process.id().to_string();
        let children = Command::new("ps")
            .args(["-o", "pid=", "--ppid", &server])
            .output()
            .unwrap();
        let children = String::from_utf8_lossy(&children.stdout).into_owned();
        for id in std::iter::once(server.as_str()).chain(children.split_whitespace()) {
            // A child may have ended.
            let _ = Command::new("kill").args([signal, id]).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.thaw();
        // Immediate shutdown, which also ends its children.
        let id = self.process.id().to_string();
        let _ = Command::new("kill").args(["-QUIT", &id]).stderr(Stdio::null()).status();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.data);
        let _ = fs::remove_file(log_of(&self.data));
    }
}

/// Starts the server and waits until it answers.
#[expect(clippy::disallowed_methods, reason = "waits for a real server")]
fn run(programs: &Path, data: &Path, port: u16, durability: Durability) -> Child {
    let started = Instant::now();
    let mut process = spawn(programs, data, port, durability);
    loop {
        let answers = Command::new(programs.join("pg_isready"))
            .args(["--quiet", "--host=127.0.0.1", "--port", &port.to_string()])
            .status()
            .unwrap();
        if answers.success() {
            return process;
        }
        let ended = process.try_wait().unwrap();
        let log = fs::read_to_string(log_of(data)).unwrap_or_default();
        // The children of a killed server still have its memory.
        let is_held = ended.is_some() && log.contains("is still in use");
        assert!(
            (ended.is_none() || is_held) && started.elapsed() < START,
            "PostgreSQL does not start: {log}"
        );
        std::thread::sleep(Duration::from_millis(50));
        if is_held {
            process = spawn(programs, data, port, durability);
        }
    }
}

fn spawn(programs: &Path, data: &Path, port: u16, durability: Durability) -> Child {
    let log = File::create(log_of(data)).unwrap();
    as_postgres(&programs.join("postgres"))
        .arg("-D")
        .arg(data)
        .args(["-p", &port.to_string(), "-h", "127.0.0.1"])
        .args([
            "-c",
            if durability == Durability::Disk {
                "fsync=on"
            } else {
                "fsync=off"
            },
        ])
        .args(["-c", "unix_socket_directories=", "-c", "shared_buffers=16MB"])
        .args(["-c", "max_connections=60"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

fn log_of(data: &Path) -> PathBuf {
    data.with_extension("log")
}

/// A command as a user that PostgreSQL accepts: it refuses to run as root.
fn as_postgres(program: &Path) -> Command {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if !is_root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"])
        .arg(program)
        .current_dir("/tmp");
    command
}

/// The folder of the newest installed programs.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let folders = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    let newest = folders.filter(|folder| folder.join("postgres").exists()).max();
    newest.expect("PostgreSQL is not installed: no /usr/lib/postgresql/*/bin/postgres; run scripts/servers once")
}
