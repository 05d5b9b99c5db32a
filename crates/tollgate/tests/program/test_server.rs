//! A server that a test started, in a folder of its own, and what it says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tollgate_test_kit::TestFolder;

/// The program, to be run in a folder. Settings come from what the test says and from nowhere else.
pub(crate) fn tollgate(folder: &TestFolder, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(args).current_dir(folder.path()).stdin(Stdio::null());
    for name in ["TOLLGATE_URL", "TOLLGATE_TOKEN", "TOLLGATE_TOKEN_FILE"] {
        command.env_remove(name);
    }
    // Tests run side by side: what they do not ask for must not want the same port.
    for name in [
        "TOLLGATE_SERVER__GRPC",
        "TOLLGATE_SERVER__RESP",
        "TOLLGATE_SERVER__ADMIN",
        "TOLLGATE_SERVER__DEBUG",
    ] {
        command.env(name, "disabled");
    }
    command
}

/// Runs it to its end.
pub(crate) fn run(folder: &TestFolder, args: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = tollgate(folder, args).output().expect("the program can be run");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it speaks UTF-8");
    (status.code(), text(stdout), text(stderr))
}

/// A running server.
pub(crate) struct TestServer {
    child: Child,
    /// What it printed up to `ready`.
    pub(crate) banner: String,
    log: Arc<(Mutex<String>, Condvar)>,
}

/// What came back over HTTP.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl TestServer {
    /// `tollgate serve` on a free port, once it is ready.
    pub(crate) fn start(folder: &TestFolder, args: &[&str]) -> Self {
        let mut all = vec!["serve", "--set", "server.http=127.0.0.1:0"];
        all.extend(args);
        Self::spawn(tollgate(folder, &all))
    }

    /// The same with these settings, in a folder of its own.
    pub(crate) fn with_settings(settings: &str) -> (TestFolder, Self) {
        let folder = TestFolder::with("tollgate.yaml", settings);
        let server = Self::start(&folder, &[]);
        (folder, server)
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be run");
        let log = Arc::new((Mutex::new(String::new()), Condvar::new()));
        let stderr = child.stderr.take().expect("it is a pipe");
        let sink = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let (text, more) = &*sink;
                let mut text = text.lock().expect("no reader panics");
                text.push_str(&line);
                text.push('\n');
                more.notify_all();
            }
        });
        let mut banner = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("it is a pipe"));
        while !banner.ends_with("ready\n") {
            if stdout.read_line(&mut banner).expect("it speaks UTF-8") == 0 {
                let _ = child.wait();
                panic!(
                    "it ended before it was ready: {banner}{}",
                    log.0.lock().expect("no reader panics")
                );
            }
        }
        Self { child, banner, log }
    }

    /// Where it answers: 127.0.0.1:port.
    pub(crate) fn address(&self) -> &str {
        let line = self.banner.lines().find_map(|line| line.strip_prefix("http: http://"));
        line.unwrap_or_else(|| panic!("no address in {}", self.banner))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// A connection on which nothing was said yet.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).expect("the server is ready");
        stream.set_read_timeout(Some(TIMEOUT)).expect("it can wait");
        stream
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        let mut stream = self.connect();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").expect("it reads");
        Response::read(&mut stream)
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Response {
        self.post_with(path, body, "")
    }

    /// `more` are header fields, each with its line end.
    pub(crate) fn post_with(&self, path: &str, body: &str, extra_headers: &str) -> Response {
        let mut stream = self.connect();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n{extra_headers}\r\n"
        );
        stream.write_all((head + body).as_bytes()).expect("it reads");
        Response::read(&mut stream)
    }

    /// A check of these attributes, given as JSON.
    pub(crate) fn check(&self, attributes: &str) -> Response {
        self.post("/v1/check", &format!("{{\"attributes\":{attributes}}}"))
    }

    /// Waits until the log holds this text so many times.
    pub(crate) fn wait_for(&self, text: &str, times: usize) {
        let (log, more) = &*self.log;
        let contents = log.lock().expect("no reader panics");
        let (contents, waited) = more
            .wait_timeout_while(contents, TIMEOUT, |log| log.matches(text).count() < times)
            .expect("no reader panics");
        assert!(!waited.timed_out(), "`{text}` never came {times} times: {contents}");
    }

    pub(crate) fn log(&self) -> String {
        self.log.0.lock().expect("no reader panics").clone()
    }

    /// Sends it a signal, by its process id.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &self.child.id().to_string()])
            .status();
        assert!(sent.expect("there is a kill").success());
    }

    /// Tells it to stop and waits for the end.
    pub(crate) fn stop(self) -> ExitStatus {
        self.signal("TERM");
        self.end()
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> ExitStatus {
        let id = self.child.id().to_string();
        let (ended, waits) = std::sync::mpsc::channel::<()>();
        let watchdog = std::thread::spawn(move || {
            if waits.recv_timeout(TIMEOUT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-KILL", &id]).status();
            }
        });
        let status = self.child.wait().expect("it was started here");
        drop(ended);
        watchdog.join().expect("it only waits");
        status
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Response {
    /// All that comes until the other side closes.
    pub(crate) fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("an answer comes in time");
        let text = String::from_utf8(bytes).expect("it speaks UTF-8");
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no answer: {text:?}"));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let headers = lines.filter_map(|line| line.split_once(": "));
        Self {
            status: status
                .and_then(|status| status.parse().ok())
                .unwrap_or_else(|| panic!("no status: {head}")),
            headers: headers
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// How long anything may take before a test gives up.
const TIMEOUT: Duration = Duration::from_secs(30);
