//! The Redis protocol, from the program that listens to a client that people use.

use crate::test_server::{TestServer, run, tollgate};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tollgate_test_kit::TestFolder;

const PASSWORD: &str = "correct-horse-battery";

/// Runs redis-cli with a call of `CL.THROTTLE`, and says what it said.
fn call(folder: &TestFolder, args: &[&str]) -> String {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients/redis-cli");
    let mut command = Command::new(program);
    command.current_dir(folder.path()).env_remove("REDISCLI_AUTH");
    command.args(args).args(["CL.THROTTLE", "k", "15", "30", "60", "0"]);
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{error}; scripts/clients installs it"));
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn port(server: &TestServer, scheme: &str) -> String {
    let line = server.banner.lines().find_map(|line| line.strip_prefix("resp: "));
    let address = line.unwrap_or_else(|| panic!("no address in {}", server.banner));
    let address = address.strip_prefix(scheme).unwrap_or_else(|| panic!("{address}"));
    let (_, port) = address.rsplit_once(':').expect("an address has a port");
    port.to_owned()
}

const FRESH: &str = "0\n16\n16\n-1\n0\n";

#[test]
fn a_server_says_where_it_listens_and_answers_there() {
    let folder = TestFolder::new();
    let server = TestServer::start(&folder, &["--set", "server.resp=127.0.0.1:0"]);
    assert_eq!(call(&folder, &["-p", &port(&server, "redis://")]), FRESH);
    let metrics = server.get("/metrics").body;
    let expected = "tollgate_checks_total{result=\"allow\",source=\"memory\",protocol=\"resp\"} 1\n";
    assert!(metrics.contains(expected), "{metrics}");
    assert!(server.stop().success());
}

#[test]
fn the_redis_protocol_is_enough_of_a_server_and_a_socket_enough_of_an_address() {
    let folder = TestFolder::new();
    let args = [
        "serve",
        "--set",
        "server.http=disabled",
        "--set",
        "server.resp=unix:gate.sock",
    ];
    let server = TestServer::spawn(tollgate(&folder, &args));
    assert_eq!(call(&folder, &["-s", "gate.sock"]), FRESH);
    assert!(server.stop().success());
    assert!(!folder.path().join("gate.sock").exists());
}

#[test]
fn other_machines_are_answered_only_if_they_show_a_password() {
    let folder = TestFolder::with("password", &format!("{PASSWORD}\n"));
    let outside = [
        "serve",
        "--set",
        "server.http=disabled",
        "--set",
        "server.resp=0.0.0.0:0",
    ];
    let (code, _, stderr) = run(&folder, &outside);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("auth: { resp_password"), "{stderr}");

    let from_file = ["--set", "auth.resp_password_file=password"];
    let mut by_environment = tollgate(&folder, &outside);
    by_environment.env("TOLLGATE_AUTH__RESP_PASSWORD", PASSWORD);
    for command in [tollgate(&folder, &[&outside[..], &from_file].concat()), by_environment] {
        let server = TestServer::spawn(command);
        let port = port(&server, "redis://");
        assert!(call(&folder, &["-p", &port]).starts_with("NOAUTH "));
        let output = call(&folder, &["-p", &port, "--no-auth-warning", "-a", PASSWORD]);
        assert_eq!(output, FRESH);
    }
}

#[test]
fn with_a_certificate_it_speaks_tls() {
    let mut params = CertificateParams::new(Vec::new()).expect("no names are fine");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pair = || KeyPair::generate().expect("there is chance");
    let authority = CertifiedIssuer::self_signed(params, pair()).expect("it signs itself");
    let key = pair();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("it is a name");
    // Or it would look like one that signs itself.
    params.distinguished_name.push(DnType::CommonName, "gate");
    let certificate = params.signed_by(&key, &authority).expect("an authority signs");
    let folder = TestFolder::with("ca.pem", &authority.pem());
    folder.write("server.pem", &certificate.pem());
    folder.write("server.key", &key.serialize_pem());
    let tls = "server.tls={ cert: server.pem, key: server.key }";
    let server = TestServer::spawn(tollgate(
        &folder,
        &[
            "serve",
            "--set",
            "server.http=disabled",
            "--set",
            "server.resp=127.0.0.1:0",
            "--set",
            tls,
        ],
    ));
    let port = port(&server, "rediss://");
    assert_eq!(
        call(
            &folder,
            &["-p", &port, "--tls", "--cacert", "ca.pem", "--sni", "localhost"]
        ),
        FRESH
    );
    assert_ne!(call(&folder, &["-p", &port]), FRESH);
}

/// A connection of the Redis protocol, by inline commands.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(port: &str) -> Self {
        let stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .expect("a timeout");
        Self(BufReader::new(stream))
    }

    /// The first line of the reply to a command.
    fn send(&mut self, command: &str) -> String {
        let stream = self.0.get_mut();
        stream.write_all(format!("{command}\r\n").as_bytes()).expect("it reads");
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a reply");
        line
    }
}

#[test]
fn a_changed_password_is_asked_of_new_connections_and_ends_no_session() {
    let (first, second) = ("correct-horse-battery", "staple-correct-horse");
    let inline = |password: &str| format!("auth: {{ resp_password: {password} }}\n");
    let in_file = |password: &str| format!("{password}\n");
    for (name, text) in [
        ("tollgate.yaml", &inline as &dyn Fn(&str) -> String),
        ("password", &in_file),
    ] {
        let folder = TestFolder::with("tollgate.yaml", "auth: { resp_password_file: password }\n");
        folder.write(name, &text(first));
        let server = TestServer::start(&folder, &["--set", "server.resp=127.0.0.1:0"]);
        let port = port(&server, "redis://");
        let mut session = Connection::open(&port);
        assert_eq!(session.send(&format!("AUTH {first}")), "+OK\r\n");
        assert_eq!(Connection::open(&port).send(&format!("AUTH {first}")), "+OK\r\n");

        folder.replace(name, &text(second));
        server.wait_for("auth.resp_password reloaded", 1);
        assert_eq!(session.send("CL.THROTTLE k 15 30 60"), "*5\r\n", "{name}");
        let mut other = Connection::open(&port);
        assert!(other.send("CL.THROTTLE k 15 30 60").starts_with("-NOAUTH "), "{name}");
        assert!(
            other.send(&format!("AUTH {first}")).starts_with("-WRONGPASS "),
            "{name}"
        );
        assert_eq!(other.send(&format!("AUTH {second}")), "+OK\r\n", "{name}");
        let log = server.log();
        assert!(!log.contains("only after a restart") && !log.contains(second), "{log}");
    }
}

#[test]
fn requiring_a_password_or_none_waits_for_a_restart() {
    let folder = TestFolder::with("tollgate.yaml", "drain: 1s\n");
    let server = TestServer::start(&folder, &["--set", "server.resp=127.0.0.1:0"]);
    folder.replace(
        "tollgate.yaml",
        &format!("drain: 1s\nauth: {{ resp_password: {PASSWORD} }}\n"),
    );
    server.wait_for("only after a restart", 1);
    assert!(server.log().contains("settings=\"auth\""), "{}", server.log());
    let reply = Connection::open(&port(&server, "redis://")).send("CL.THROTTLE k 15 30 60");
    assert_eq!(reply, "*5\r\n");
}
