//! A real Envoy in front of a real service, asking a real server over gRPC, from exactly the files that are shipped, with
//! other ports put in.

use crate::test_server::{TestServer, tollgate};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tollgate_limiter::testing::servers::{Server as Redis, ServerKind};
use tollgate_test_kit::ENVOY_ARGUMENTS;
use tollgate_test_kit::TestFolder;

/// It all, running. The first to go is Envoy.
struct EnvoySetup {
    envoy: Child,
    port: u16,
    server: TestServer,
    folder: TestFolder,
    example: EnvoyExample,
}

/// A folder of examples, and what becomes of its Envoy's file.
#[derive(Clone, Copy)]
struct EnvoyExample {
    name: &'static str,
    edit: fn(String) -> String,
}

/// What came back.
struct EnvoyResponse {
    status: u16,
    head: String,
}

impl EnvoySetup {
    /// What is shipped in a folder of examples: its Envoy, and a server with these files.
    fn start(example_dir: &'static str, files: &[&str], args: &[&str]) -> Self {
        let as_shipped = EnvoyExample {
            name: example_dir,
            edit: |text| text,
        };
        Self::start_edited(as_shipped, files, args)
    }

    fn start_edited(envoy_example: EnvoyExample, files: &[&str], args: &[&str]) -> Self {
        let folder = TestFolder::new();
        for file in files {
            folder.write(file, &example(envoy_example.name, file));
        }
        let mut command = tollgate(&folder, &["serve", "--set", "server.http=127.0.0.1:0"]);
        command.args(args).args(["--set", "server.grpc=127.0.0.1:0"]);
        let server = TestServer::spawn(command);
        let grpc_port = server
            .banner
            .lines()
            .find_map(|line| line.strip_prefix("grpc: 127.0.0.1:"));
        let grpc_port: u16 = grpc_port
            .and_then(|port| port.parse().ok())
            .expect("it says where it answers");
        let service = service();
        let (envoy, port) = run(&folder, envoy_example, service, grpc_port);
        let mut setup = Self {
            envoy,
            port,
            server,
            folder,
            example: envoy_example,
        };
        // A port can be taken between finding it free and using it.
        for _ in 0..3 {
            if setup.is_up() {
                return setup;
            }
            let _ = (setup.envoy.kill(), setup.envoy.wait());
            (setup.envoy, setup.port) = run(&setup.folder, setup.example, service, grpc_port);
        }
        let log = fs::read_to_string(setup.folder.path().join("envoy.log"));
        panic!("Envoy lets no request through: {}", log.unwrap_or_default())
    }

    /// Whether a request that no rule is about comes through in time.
    fn is_up(&mut self) -> bool {
        for _ in 0..600 {
            if self.try_get("/", "").is_some_and(|answer| answer.status == 200) {
                return true;
            }
            if !matches!(self.envoy.try_wait(), Ok(None)) {
                return false;
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        false
    }

    fn get(&self, path: &str, headers: &str) -> EnvoyResponse {
        self.try_get(path, headers).expect("Envoy answers")
    }

    fn try_get(&self, path: &str, headers: &str) -> Option<EnvoyResponse> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let head = text.split("\r\n\r\n").next()?.to_ascii_lowercase();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(EnvoyResponse { status, head })
    }
}

/// Runs Envoy, at this port.
fn run(folder: &TestFolder, envoy_example: EnvoyExample, service: u16, grpc_port: u16) -> (Child, u16) {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.expect("there are free ports").port();
    let ports = [("8000", port), ("3000", service), ("8081", grpc_port)];
    let text = ports
        .iter()
        .fold(example(envoy_example.name, "envoy.yaml"), |text, (known, port)| {
            text.replace(&format!("port_value: {known} "), &format!("port_value: {port} "))
        });
    folder.write("envoy.yaml", &(envoy_example.edit)(text));
    let log = fs::File::create(folder.path().join("envoy.log")).expect("there is room for a log");
    let envoy = Command::new(program())
        .args(ENVOY_ARGUMENTS)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    (envoy.expect("Envoy can be run"), port)
}

impl Drop for EnvoySetup {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.envoy.kill();
        let _ = self.envoy.wait();
    }
}

impl EnvoyResponse {
    /// The values of a header, each line of it.
    fn all(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(known, _)| *known == name)
            .map(|(_, value)| value)
            .collect()
    }
}

/// A service that answers everything, at this port.
fn service() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

fn serve(mut stream: TcpStream) {
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        received.extend_from_slice(buffer.get(..read).unwrap_or_default());
        while let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            received.drain(..end + 4);
            if stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
                .is_err()
            {
                return;
            }
        }
    }
}

fn example(example_dir: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(example_dir)
        .join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Envoy as `scripts/gateways` left it.
fn program() -> std::path::PathBuf {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/gateways/envoy");
    assert!(
        program.exists(),
        "Envoy is not installed: no {}; run scripts/gateways once",
        program.display()
    );
    program
}

#[test]
fn without_a_server_requests_are_denied_as_shipped_and_pass_without_the_marked_line() {
    for (name, file) in [("envoy", "tollgate.yaml"), ("envoy-ratelimit", "config/shop.yaml")] {
        let files: Vec<&str> = match name {
            "envoy" => vec![file],
            _ => vec!["tollgate.yaml", file],
        };
        let open = EnvoyExample {
            name,
            edit: |text| {
                let lines: Vec<&str> = text.lines().filter(|line| !line.ends_with("# fail closed")).collect();
                assert_eq!(lines.len() + 1, text.lines().count(), "one line is marked");
                lines.join("\n")
            },
        };
        let closed = EnvoyExample {
            edit: |text| text,
            ..open
        };
        for (example, status) in [(closed, 503), (open, 200)] {
            let setup = EnvoySetup::start_edited(example, &files, &[]);
            let acme = "x-tenant: acme\r\n";
            assert_eq!(setup.get("/orders", acme).status, 200);
            setup.server.signal("KILL");
            // A call that is already on its way may still be answered.
            let mut last = 0;
            for _ in 0..20 {
                last = setup.get("/orders", acme).status;
                std::thread::park_timeout(Duration::from_millis(20));
            }
            assert_eq!(last, status, "{name}");
        }
    }
}

/// What must hold over any store.
fn limits(args: &[&str]) {
    let setup = EnvoySetup::start("envoy", &["tollgate.yaml"], args);
    if args.contains(&"--store") {
        // Until then it decides by its own share.
        setup.server.wait_for("connected to the store", 1);
    }
    // A tenant's requests count down.
    let acme = "x-tenant: acme\r\n";
    for consumed in 1..=2_u32 {
        let answer = setup.get("/orders", acme);
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.all("x-ratelimit-limit"),
            ["100, 100;w=60;name=\"tenant\""],
            "{}",
            answer.head
        );
        // On a busy machine a unit may have come back between two of them.
        let left = answer.all("x-ratelimit-remaining");
        let may = (100 - consumed..=99).map(|left| left.to_string());
        assert!(may.into_iter().any(|may| left == [may]), "{}", answer.head);
        assert_eq!(answer.all("x-ratelimit-reset").len(), 1);
        assert_eq!(answer.all("ratelimit-policy"), ["\"tenant\";q=100;w=60"]);
        assert_eq!(answer.all("ratelimit").len(), 1);
    }
    assert_eq!(
        setup.get("/orders", "x-tenant: other\r\n").all("x-ratelimit-remaining"),
        ["99"]
    );

    // Of sixty at once exactly three pass.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..60)
            .map(|_| scope.spawn(|| setup.get("/login", "").status))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("no client panics"))
            .collect()
    });
    let count = |expected| statuses.iter().filter(|status| **status == expected).count();
    assert_eq!((count(200), count(429)), (3, 57), "{statuses:?}");
    let denied = setup.get("/login", "");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.all("x-envoy-ratelimited"), ["true"]);
    assert_eq!(denied.all("x-ratelimit-limit"), ["3, 3;w=3600;name=\"logins\""]);
    assert_eq!(denied.all("x-ratelimit-remaining"), ["0"]);
    let after: Vec<u64> = denied
        .all("retry-after")
        .iter()
        .filter_map(|after| after.parse().ok())
        .collect();
    assert!(matches!(after[..], [1100..=1200]), "{}", denied.head);
    // Without a tenant nothing is asked.
    assert_eq!(setup.get("/orders", "").all("x-ratelimit-limit"), [""; 0]);
}

#[test]
fn envoy_lets_through_and_refuses_with_counters_in_memory() {
    limits(&[]);
}

#[test]
fn envoy_lets_through_and_refuses_with_counters_on_redis() {
    let redis = Redis::start(ServerKind::Redis70);
    limits(&["--store", &redis.url()]);
}

/// What comes of ten exports and then another request of one tenant: how many exports passed, the last status, and what
/// was left then.
fn exports(setup: &EnvoySetup, tenant: &str) -> (usize, u16, String) {
    let tenant = format!("x-tenant: {tenant}\r\n");
    let passed = (0..10).filter(|_| setup.get("/export", &tenant).status == 200).count();
    let other = setup.get("/orders", &tenant);
    (passed, other.status, other.all("x-ratelimit-remaining").concat())
}

/// A file of envoyproxy/ratelimit counts what is refused; switched to strict while it runs, it does not any more.
fn switched(args: &[&str]) {
    let files = ["tollgate.yaml", "config/shop.yaml"];
    let setup = EnvoySetup::start("envoy-ratelimit", &files, args);
    assert_eq!(exports(&setup, "acme"), (2, 429, "0".to_owned()));

    let settings = example("envoy-ratelimit", "tollgate.yaml");
    let strict = settings.replace("  strict: false", "  strict: true");
    assert_ne!(settings, strict);
    setup.folder.replace("tollgate.yaml", &strict);
    setup.server.wait_for("rules reloaded", 1);
    assert_eq!(exports(&setup, "other"), (2, 200, "7".to_owned()));
}

#[test]
fn envoy_sees_refused_requests_counted_until_it_is_switched_to_strict() {
    switched(&[]);
}

#[test]
fn envoy_sees_the_same_with_counters_on_redis() {
    let redis = Redis::start(ServerKind::Redis70);
    switched(&["--store", &redis.url()]);
}
