//! A real Envoy in front of a real service, asking a real server over gRPC, from exactly the files that are shipped, with
//! other ports put in.

use crate::running::{Folder, Server, tollgate};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tollgate_limiter::testing::servers::{ServerKind, Server as Redis};

/// It all, running. The first to go is Envoy.
struct Site {
    envoy: Child,
    port: u16,
    server: Server,
    folder: Folder,
    example: &'static str,
}

/// What came back.
struct Answer {
    status: u16,
    head: String,
}

impl Site {
    /// What is shipped in a folder of examples: its Envoy, and a server with these files.
    fn start(of: &'static str, files: &[&str], words: &[&str]) -> Self {
        let folder = Folder::new();
        for file in files {
            folder.write(file, &example(of, file));
        }
        let mut command = tollgate(&folder, &["serve", "--set", "server.http=127.0.0.1:0"]);
        command.args(words).args(["--set", "server.grpc=127.0.0.1:0"]);
        let server = Server::spawn(command);
        let asked = server
            .said
            .lines()
            .find_map(|line| line.strip_prefix("grpc: 127.0.0.1:"));
        let asked: u16 = asked
            .and_then(|port| port.parse().ok())
            .expect("it says where it answers");
        let service = service();
        let (envoy, port) = run(&folder, of, service, asked);
        let mut site = Self {
            envoy,
            port,
            server,
            folder,
            example: of,
        };
        // A port can be taken between finding it free and using it.
        for _ in 0..3 {
            if site.is_up() {
                return site;
            }
            let _ = (site.envoy.kill(), site.envoy.wait());
            (site.envoy, site.port) = run(&site.folder, site.example, service, asked);
        }
        let log = fs::read_to_string(site.folder.path().join("envoy.log"));
        panic!("Envoy lets no request through: {}", log.unwrap_or_default())
    }

    /// Whether a request that no rule is about comes through in time.
    fn is_up(&mut self) -> bool {
        for _ in 0..600 {
            if self.try_ask("/", "").is_some_and(|answer| answer.status == 200) {
                return true;
            }
            if !matches!(self.envoy.try_wait(), Ok(None)) {
                return false;
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
        false
    }

    fn ask(&self, path: &str, headers: &str) -> Answer {
        self.try_ask(path, headers).expect("Envoy answers")
    }

    fn try_ask(&self, path: &str, headers: &str) -> Option<Answer> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n{headers}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let head = text.split("\r\n\r\n").next()?.to_ascii_lowercase();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Answer { status, head })
    }
}

/// Runs Envoy, at this port.
fn run(folder: &Folder, of: &str, service: u16, asked: u16) -> (Child, u16) {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.expect("there are free ports").port();
    let ports = [("8000", port), ("3000", service), ("8081", asked)];
    let text = ports.iter().fold(example(of, "envoy.yaml"), |text, (known, port)| {
        text.replace(&format!("port_value: {known} "), &format!("port_value: {port} "))
    });
    folder.write("envoy.yaml", &text);
    let said = fs::File::create(folder.path().join("envoy.log")).expect("there is room for a log");
    let envoy = Command::new(program())
        .args([
            "-c",
            "envoy.yaml",
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "-l",
            "warning",
        ])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(said)
        .spawn();
    (envoy.expect("Envoy can be run"), port)
}

impl Drop for Site {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.envoy.kill();
        let _ = self.envoy.wait();
    }
}

impl Answer {
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
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        seen.extend_from_slice(buffer.get(..read).unwrap_or_default());
        while let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") {
            seen.drain(..end + 4);
            if stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
                .is_err()
            {
                return;
            }
        }
    }
}

fn example(of: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples")
        .join(of)
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

/// What must hold over any store.
fn limits(words: &[&str]) {
    let site = Site::start("envoy", &["tollgate.yaml"], words);
    // A tenant's requests count down.
    let acme = "x-tenant: acme\r\n";
    for taken in 1..=2_u32 {
        let answer = site.ask("/orders", acme);
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.all("x-ratelimit-limit"),
            ["100, 100;w=60;name=\"tenant\""],
            "{}",
            answer.head
        );
        // On a busy machine a unit may have come back between two of them.
        let left = answer.all("x-ratelimit-remaining");
        let may = (100 - taken..=99).map(|left| left.to_string());
        assert!(may.into_iter().any(|may| left == [may]), "{}", answer.head);
        assert_eq!(answer.all("x-ratelimit-reset").len(), 1);
        assert_eq!(answer.all("ratelimit-policy"), ["\"tenant\";q=100;w=60"]);
        assert_eq!(answer.all("ratelimit").len(), 1);
    }
    assert_eq!(
        site.ask("/orders", "x-tenant: other\r\n").all("x-ratelimit-remaining"),
        ["99"]
    );

    // Of sixty at once exactly three pass.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..60).map(|_| scope.spawn(|| site.ask("/login", "").status)).collect();
        asked
            .into_iter()
            .map(|asked| asked.join().expect("no client panics"))
            .collect()
    });
    let count = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!((count(200), count(429)), (3, 57), "{statuses:?}");
    let refused = site.ask("/login", "");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.all("x-envoy-ratelimited"), ["true"]);
    assert_eq!(refused.all("x-ratelimit-limit"), ["3, 3;w=3600;name=\"logins\""]);
    assert_eq!(refused.all("x-ratelimit-remaining"), ["0"]);
    let after: Vec<u64> = refused
        .all("retry-after")
        .iter()
        .filter_map(|after| after.parse().ok())
        .collect();
    assert!(matches!(after[..], [1100..=1200]), "{}", refused.head);
    // Without a tenant nothing is asked.
    assert_eq!(site.ask("/orders", "").all("x-ratelimit-limit"), [""; 0]);
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
fn exports(site: &Site, tenant: &str) -> (usize, u16, String) {
    let tenant = format!("x-tenant: {tenant}\r\n");
    let passed = (0..10).filter(|_| site.ask("/export", &tenant).status == 200).count();
    let other = site.ask("/orders", &tenant);
    (passed, other.status, other.all("x-ratelimit-remaining").concat())
}

/// A file of envoyproxy/ratelimit counts what is refused; switched to strict while it runs, it does not any more.
fn switched(words: &[&str]) {
    let files = ["tollgate.yaml", "config/shop.yaml"];
    let site = Site::start("envoy-ratelimit", &files, words);
    assert_eq!(exports(&site, "acme"), (2, 429, "0".to_owned()));

    let settings = example("envoy-ratelimit", "tollgate.yaml");
    let strict = settings.replace("  strict: false", "  strict: true");
    assert_ne!(settings, strict);
    site.folder.replace("tollgate.yaml", &strict);
    site.server.wait_for("took the changed rules", 1);
    assert_eq!(exports(&site, "other"), (2, 200, "7".to_owned()));
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
