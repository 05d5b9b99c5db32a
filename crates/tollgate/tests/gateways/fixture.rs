//! A gateway, a service behind it and a server that it asks, put together from an example.

use crate::client::{GatewayResponse, send};
use crate::process::{Process, free_port, gateway, read_log};
use crate::service::Service;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::runtime::Runtime;
use tollgate_test_kit::{TestFolder, one_thread_runtime};

/// What can be run of an example.
#[derive(PartialEq, Eq)]
pub(crate) struct Example {
    /// Its folder.
    pub(crate) name: &'static str,
    /// The gateway's program.
    pub(crate) program: &'static str,
    /// What it is started with, in a folder with the files of the example.
    pub(crate) arguments: &'static [&'static str],
    /// A file that is not shipped, if what is shipped is a part of a whole.
    pub(crate) wrapper: Option<(&'static str, &'static str)>,
    /// What its clients get while the server is away.
    pub(crate) unavailable_status: u16,
    /// What a client with 17 KiB of headers gets. 200: the gateway does not send them on.
    pub(crate) oversized_status: u16,
}

/// Whether the server asks for a token.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tokens {
    None,
    Required,
}

/// It all, running. Fields are dropped in this order.
pub(crate) struct GatewayFixture {
    gateway: Process,
    pub(crate) tollgate: Process,
    pub(crate) service: Service,
    runtime: Runtime,
    port: u16,
    folder: TestFolder,
}

impl GatewayFixture {
    /// Starts all three, and waits until a request comes through.
    pub(crate) fn start(example: &Example, tokens: Tokens) -> Self {
        Self::run(example, &example.files(), tokens)
    }

    /// The same with other files than those that are shipped.
    pub(crate) fn run(example: &Example, files: &[(String, String)], tokens: Tokens) -> Self {
        for (known, _) in PORTS {
            let is_there = files.iter().any(|(_, text)| text.contains(known));
            assert!(is_there, "{} has no port {known}", example.name);
        }
        let runtime = one_thread_runtime();
        let service = Service::start(&runtime);
        let folder = TestFolder::new();

        let (_, settings) = files
            .iter()
            .find(|(name, _)| name == SETTINGS)
            .expect("each has settings");
        folder.write(SETTINGS, &substitute(settings, [0; 3], tokens));
        let (tollgate, tollgate_port) = tollgate(&folder);
        let mut log = String::new();
        // A port can be taken between finding it free and using it.
        for _ in 0..ATTEMPTS {
            let port = free_port();
            for (name, text) in files.iter().filter(|(name, _)| name != SETTINGS) {
                folder.write(name, &substitute(text, [port, service.port, tollgate_port], tokens));
            }
            if let Some((name, text)) = example.wrapper {
                folder.write(name, text);
            }
            let mut command = Command::new(gateway(example.program));
            command.args(example.arguments);
            // Caddy writes to folders of its user, and listens for its own commands.
            for name in ["XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
                command.env(name, folder.path());
            }
            command.env("CADDY_ADMIN", format!("unix/{}", folder.path().join("admin").display()));
            let mut process = Process::spawn(command, &folder, LOG);
            if responds(&runtime, port, &mut process) {
                return Self {
                    gateway: process,
                    tollgate,
                    service,
                    runtime,
                    port,
                    folder,
                };
            }
            log = read_log(&folder, LOG);
        }
        panic!(
            "{} does not let a request through: {log}{}",
            example.name,
            read_log(&folder, "tollgate.log")
        )
    }

    /// One request of the client at 127.0.0.`from`.
    pub(crate) fn send(&self, from: u8, line: &str, headers: &str, body: &str) -> GatewayResponse {
        send(&self.runtime, from, self.port, line, headers, body)
            .unwrap_or_else(|| panic!("no answer to {line} {headers}: {}", self.logs()))
    }

    /// What all of them said.
    pub(crate) fn logs(&self) -> String {
        format!(
            "{}{}",
            read_log(&self.folder, LOG),
            read_log(&self.folder, "tollgate.log")
        )
    }

    pub(crate) fn gateway_has_ended(&mut self) -> bool {
        self.gateway.has_ended()
    }
}

impl Example {
    /// The files in its folder with the lines that fail open in place of those that fail closed.
    pub(crate) fn open_variant(&self) -> Vec<(String, String)> {
        let files = self.files();
        assert!(files.iter().any(|(_, text)| text.contains(OPEN)), "{}", self.name);
        let open = |text: String| {
            let lines = text.lines().filter(|line| !line.ends_with("# fail closed"));
            lines.map(|line| line.replacen(OPEN, "", 1) + "\n").collect()
        };
        files.into_iter().map(|(name, text)| (name, open(text))).collect()
    }

    /// The files in its folder, as they are shipped.
    pub(crate) fn files(&self) -> Vec<(String, String)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../examples")
            .join(self.name);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let files = entries.map(|entry| {
            let path = entry.expect("a file").path();
            let name = path
                .file_name()
                .expect("a file has a name")
                .to_string_lossy()
                .into_owned();
            (name, fs::read_to_string(&path).expect("examples are text"))
        });
        files.collect()
    }
}

/// A file with the ports of gateway, service and server put in, and the token where one is asked for.
fn substitute(text: &str, ports: [u16; 3], tokens: Tokens) -> String {
    let mut text = text.to_owned();
    // First what stands for a port, so that no port is taken for another.
    for (known, placeholder) in PORTS {
        text = text.replace(known, placeholder);
    }
    for ((_, placeholder), port) in PORTS.iter().zip(ports) {
        text = text.replace(placeholder, &port.to_string());
    }
    if tokens == Tokens::Required {
        text = text.replace("#: ", "").replace(" TOKEN", &format!(" {TOKEN}"));
    }
    text
}

/// Runs the server, and says at which port.
fn tollgate(folder: &TestFolder) -> (Process, u16) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--config", SETTINGS]);
    // Tests run side by side: what they do not ask for must not want the same port.
    for name in [
        "TOLLGATE_SERVER__GRPC",
        "TOLLGATE_SERVER__RESP",
        "TOLLGATE_SERVER__ADMIN",
    ] {
        command.env(name, "disabled");
    }
    let mut process = Process::spawn(command, folder, "tollgate.log");
    for _ in 0..POLLS {
        let log = read_log(folder, "tollgate.log");
        let address = log
            .lines()
            .find_map(|line| line.strip_prefix("http: http://127.0.0.1:"));
        if let Some(port) = address.filter(|_| log.contains("ready\n")) {
            return (process, port.parse().expect("a port"));
        }
        assert!(!process.has_ended(), "the server does not start: {log}");
        std::thread::park_timeout(POLL_INTERVAL);
    }
    panic!("the server is not ready: {}", read_log(folder, "tollgate.log"))
}

/// Whether a request comes through in time, from a client that no test is about.
fn responds(runtime: &Runtime, port: u16, process: &mut Process) -> bool {
    for _ in 0..POLLS {
        let response = send(runtime, 9, port, "GET /ready", "", "");
        if response.is_some_and(|response| response.status == 200 && response.body.starts_with("service:")) {
            return true;
        }
        if process.has_ended() {
            return false;
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
    false
}

/// The ports that examples are written with, and what stands for them while they are exchanged.
const PORTS: [(&str, &str); 3] = [
    ("8000", "\u{1}gateway"),
    ("3000", "\u{1}service"),
    ("8080", "\u{1}tollgate"),
];
/// What a line that lets requests pass unchecked begins with.
pub(crate) const OPEN: &str = "#open: ";
const SETTINGS: &str = "tollgate.yaml";
const LOG: &str = "gateway.log";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const ATTEMPTS: usize = 3;
/// How often and how long it is looked whether something is there.
const POLLS: usize = 600;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
