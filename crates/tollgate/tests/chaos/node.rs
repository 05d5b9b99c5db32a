//! `tollgate serve` as a process, and what can be seen of it from outside.

use crate::namespace;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A running node. Ends when it is dropped.
pub(crate) struct Node {
    child: Child,
    port: u16,
    log: Arc<Mutex<String>>,
    folder: PathBuf,
    start: Start,
    /// The port of its admin API, if it has one.
    pub(crate) admin: Option<u16>,
}

/// Everything that a process of a node is started with beside its settings.
#[derive(Clone, Default)]
struct Start {
    environment: Vec<(&'static str, PathBuf)>,
    arguments: Vec<&'static str>,
}

impl Node {
    /// Starts one with a control plane. `control` and `admin` are among the settings.
    pub(crate) fn start_managed(settings: &str) -> Self {
        Self::start_with(settings, Start::default(), Some(namespace::port()))
    }

    /// The same, with an allocator that takes no memory before it is used: see [`Self::limit_memory`].
    pub(crate) fn start_frugal(settings: &str) -> Self {
        let options = ["MIMALLOC_ARENA_EAGER_COMMIT", "MIMALLOC_EAGER_COMMIT"];
        let start = Start {
            environment: options.map(|option| (option, PathBuf::from("0"))).to_vec(),
            ..Start::default()
        };
        Self::start_with(settings, start, Some(namespace::port()))
    }

    /// The same, as a program that knows an older format of rules.
    pub(crate) fn start_old(settings: &str) -> Self {
        let start = Start {
            arguments: vec!["--rules-format", "0"],
            ..Start::default()
        };
        Self::start_with(settings, start, Some(namespace::port()))
    }

    /// Stops an old one and starts the present program in its place.
    pub(crate) fn upgrade(&mut self) {
        self.stop();
        self.start.arguments.clear();
        self.restart();
    }

    /// Starts one with these settings, in YAML, beside where it listens.
    pub(crate) fn start(settings: &str) -> Self {
        Self::start_in(settings, Vec::new())
    }

    /// The same with something in its environment.
    pub(crate) fn start_in(settings: &str, environment: Vec<(&'static str, PathBuf)>) -> Self {
        let start = Start {
            environment,
            ..Start::default()
        };
        Self::start_with(settings, start, None)
    }

    /// Writes the settings of a node with a control plane; nothing runs yet. See [`Node::restart_timed`].
    pub(crate) fn prepare_managed(settings: &str) -> Self {
        // One that follows others is not ready before they have rules.
        let mut node = Self::start_managed(&settings.replace("database: 'none'", "database: 'data_dir'"));
        node.kill();
        let file = node.folder.join("tollgate.yaml");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("database: 'data_dir'", "database: 'none'")).unwrap();
        let _ = fs::remove_dir_all(node.folder.join("data"));
        node
    }

    fn start_with(settings: &str, start: Start, admin: Option<u16>) -> Self {
        let port = namespace::port();
        let folder = std::env::temp_dir().join(format!("tollgate-chaos-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let server = format!("server: {{ http: '127.0.0.1:{port}' }}\n");
        fs::write(folder.join("tollgate.yaml"), server + settings).unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let child = spawn(&folder, &start, admin, &log);
        Self {
            child,
            port,
            log,
            folder,
            start,
            admin,
        }
    }

    /// Starts it again where it was, with the same settings. It must have ended.
    pub(crate) fn restart(&mut self) {
        let _ = self.child.wait();
        self.child = spawn(&self.folder, &self.start, self.admin, &self.log);
    }

    /// The same, and how long it took until it was ready for traffic; none: it was not within the time.
    pub(crate) fn restart_timed(&mut self, within: Duration) -> Option<Duration> {
        let started = Instant::now();
        let _ = self.child.wait();
        self.child = spawn_unready(&self.folder, &self.start, self.admin, &self.log).0;
        while started.elapsed() < within {
            if self.get("/readyz").is_some_and(|(status, _)| status == 200) {
                return Some(started.elapsed());
            }
            crate::harness::pause(Duration::from_millis(10));
        }
        None
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// The folder it runs in.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to stop and waits until it has. False if it does not end well.
    pub(crate) fn stop(&mut self) -> bool {
        namespace::run_program("kill", &["-TERM", &self.child.id().to_string()]);
        self.child.wait().is_ok_and(|status| status.success())
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        self.request(&format!(
            "GET {path} HTTP/1.1\r\nhost: chaos\r\nconnection: close\r\n\r\n"
        ))
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Option<(u16, String)> {
        let length = body.len();
        self.request(&format!(
            "POST {path} HTTP/1.1\r\nhost: chaos\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
    }

    pub(crate) fn json(&self, path: &str) -> serde_json::Value {
        let body = self.get(path).map(|(_, body)| body).unwrap_or_default();
        serde_json::from_str(&body).unwrap_or_default()
    }

    fn request(&self, text: &str) -> Option<(u16, String)> {
        exchange(self.address(), text)
    }

    /// The sum of the series of a metric whose labels hold this text.
    pub(crate) fn metric(&self, name: &str, labels: &str) -> f64 {
        let (_, text) = self.get("/metrics").unwrap_or_default();
        let series = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let is_it = rest.starts_with(['{', ' ']) && rest.contains(labels);
            is_it.then(|| rest.rsplit(' ').next()?.parse::<f64>().ok()).flatten()
        });
        series.sum()
    }

    /// A connection on which one thing is asked after the other.
    pub(crate) fn connect(&self) -> NodeConnection {
        let stream = TcpStream::connect_timeout(&self.address(), TIMEOUT).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        NodeConnection(BufReader::new(stream))
    }

    pub(crate) fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(0, Iterator::count)
    }

    /// For how long it has had a processor.
    pub(crate) fn processing(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // Behind its name, which may hold anything, the 12th and the 13th: hundredths of a second in it and in the kernel.
        let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(2);
        let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Lets it have so many bytes of memory more than it has. An allocation that it is not given ends it, unless its allocator took
    /// a gibibyte at its start: use [`Self::start_frugal`].
    pub(crate) fn limit_memory(&self, more: u64) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
        let kib: u64 = line.split_whitespace().next().unwrap().parse().unwrap();
        let (id, limit) = (self.child.id().to_string(), kib * 1024 + more);
        namespace::run_program("prlimit", &["--pid", &id, &format!("--data={limit}")]);
    }

    /// The signal that has ended it; none while it runs, or if it exited.
    pub(crate) fn ended_by_signal(&mut self) -> Option<i32> {
        let status = self.child.try_wait().ok()??;
        status.signal()
    }

    /// Bytes of memory that are really there.
    pub(crate) fn resident(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or(0.0) * 1024.0
    }
}

/// A connection to a node.
pub(crate) struct NodeConnection(BufReader<TcpStream>);

impl NodeConnection {
    /// The status of what is answered, if anything is.
    pub(crate) fn check(&mut self, body: &str) -> Option<u16> {
        let length = body.len();
        let request = format!("POST /v1/check HTTP/1.1\r\nhost: chaos\r\ncontent-length: {length}\r\n\r\n{body}");
        self.0.get_mut().write_all(request.as_bytes()).ok()?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.0.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
        self.0.read_exact(&mut vec![0; length.parse().ok()?]).ok()?;
        head.split(' ').nth(1)?.parse().ok()
    }

    /// How long it takes to be answered; very long if nothing is.
    pub(crate) fn time(&mut self, body: &str) -> Duration {
        let started = Instant::now();
        self.check(body).map_or(TIMEOUT, |_| started.elapsed())
    }
}

/// Sends a request and reads the response until the server closes the connection; none if it does not answer.
pub(crate) fn exchange(address: SocketAddr, request: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(folder: &Path, start: &Start, admin: Option<u16>, log: &Arc<Mutex<String>>) -> Child {
    let (mut child, stdout) = spawn_unready(folder, start, admin, log);
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    if !lines.any(|line| line == "ready") {
        let _ = child.wait();
        panic!(
            "a node does not start: {}",
            log.lock().unwrap_or_else(PoisonError::into_inner)
        );
    }
    child
}

/// Starts it without waiting for it to be ready.
fn spawn_unready(folder: &Path, start: &Start, admin: Option<u16>, log: &Arc<Mutex<String>>) -> (Child, ChildStdout) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command
        .arg("serve")
        .args(&start.arguments)
        .current_dir(folder)
        .envs(start.environment.iter().map(|(name, path)| (name, path)));
    for front_end in ["GRPC", "RESP", "DEBUG"] {
        command.env(format!("TOLLGATE_SERVER__{front_end}"), "disabled");
    }
    let admin = admin.map_or_else(|| "disabled".to_owned(), |port| format!("127.0.0.1:{port}"));
    command.env("TOLLGATE_SERVER__ADMIN", admin);
    let piped = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let (stderr, stderr_log) = (child.stderr.take().unwrap(), Arc::clone(log));
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut log = stderr_log.lock().unwrap_or_else(PoisonError::into_inner);
            log.push_str(&line);
            log.push('\n');
        }
    });
    let stdout = child.stdout.take().unwrap();
    (child, stdout)
}

const TIMEOUT: Duration = Duration::from_secs(10);
