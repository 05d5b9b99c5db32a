//! The other ways in than plain TCP, each from the program that listens to the program that asks.

use crate::test_server::{TestServer, run, tollgate};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use tollgate_test_kit::TestFolder;

const RULES: &str = "rules: [{ id: plan, per: user, limit: 1/h }]\n";

/// A server with a certificate for `localhost`, and in its folder that of the authority that signed it.
fn with_tls() -> (TestFolder, TestServer, String) {
    let folder = TestFolder::with(
        "tollgate.yaml",
        &format!("server: {{ tls: {{ cert: server.pem, key: server.key }} }}\n{RULES}"),
    );
    let mut params = CertificateParams::new(Vec::new()).expect("no names are fine");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pair = || KeyPair::generate().expect("there is chance");
    let authority = CertifiedIssuer::self_signed(params, pair()).expect("it signs itself");
    let key = pair();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("it is a name");
    let certificate = params.signed_by(&key, &authority).expect("an authority signs");
    folder.write("ca.pem", &authority.pem());
    folder.write("server.pem", &certificate.pem());
    folder.write("server.key", &key.serialize_pem());
    let server = TestServer::start(&folder, &[]);
    let line = server
        .banner
        .lines()
        .find_map(|line| line.strip_prefix("http: https://"));
    let (_, port) = line
        .and_then(|address| address.rsplit_once(':'))
        .expect("it says where it listens");
    let port = port.to_owned();
    (folder, server, port)
}

#[test]
fn a_server_with_a_certificate_is_asked_over_https() {
    let (folder, server, port) = with_tls();
    let url = format!("https://localhost:{port}");
    let cli = |args: &[&str]| run(&folder, &[args, &["--url", &url]].concat());
    let (code, stdout, stderr) = cli(&["check", "user=u", "--ca", "ca.pem"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.starts_with("allowed by plan: 0 of 1 remaining"), "{stdout}");
    let (code, stdout, _) = cli(&["check", "user=u", "--ca", "ca.pem"]);
    assert_eq!(code, Some(1), "{stdout}");
    let (code, stdout, _) = cli(&["forget", "user=u", "--ca", "ca.pem"]);
    assert_eq!((code, stdout.as_str()), (Some(0), "forgot 1 counter\n"));

    // Signed by nobody this machine trusts; a file that is no certificate; another name than the certificate's; no TLS.
    let other = format!("https://127.0.0.1:{port}");
    let plain = format!("http://localhost:{port}");
    for (args, expected) in [
        (&["check", "user=v", "--url", &url][..], "does --ca name the authority"),
        (
            &["check", "user=v", "--url", &url, "--ca", "tollgate.yaml"],
            "contains no certificate",
        ),
        (
            &["check", "user=v", "--url", &url, "--ca", "nowhere.pem"],
            "nowhere.pem",
        ),
        (&["check", "user=v", "--url", &other, "--ca", "ca.pem"], "TLS handshake"),
        (&["check", "user=v", "--url", &plain], "is this URL a tollgate server?"),
    ] {
        let (code, stdout, stderr) = run(&folder, args);
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
    let (code, stdout, _) = cli(&["check", "user=v", "--ca", "ca.pem"]);
    assert_eq!(code, Some(0), "nothing was taken before: {stdout}");
    assert!(server.stop().success());
}

#[test]
fn a_server_on_a_socket_in_the_file_system_is_asked_there() {
    let folder = TestFolder::new();
    let path = folder.path().join("gate.sock");
    folder.write(
        "tollgate.yaml",
        &format!("server: {{ http: \"unix:{}\" }}\n{RULES}", path.display()),
    );
    let server = TestServer::spawn(tollgate(&folder, &["serve"]));
    let lines: Vec<&str> = server.banner.lines().collect();
    assert!(
        lines[0].starts_with("http: unix:") && lines[0].ends_with("gate.sock"),
        "{lines:?}"
    );
    assert!(lines[1].contains("--unix-socket"), "{lines:?}");

    let mut stream = UnixStream::connect(&path).unwrap();
    let request = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");

    let url = format!("unix:{}", path.display());
    let cli = |args: &[&str]| run(&folder, &[args, &["--url", &url]].concat());
    let (code, stdout, stderr) = cli(&["check", "user=u"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert_eq!(cli(&["check", "user=u"]).0, Some(1));
    assert_eq!(cli(&["forget", "user=u"]).0, Some(0));
    assert_eq!(cli(&["check", "user=u"]).0, Some(0), "it was forgotten");

    // A second one at the same place ends at once, and the first goes on.
    let (code, _, stderr) = run(&folder, &["serve"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("gate.sock"), "{stderr}");
    assert_eq!(cli(&["check", "user=u"]).0, Some(1));

    assert!(server.stop().success());
    let (code, _, stderr) = cli(&["check", "user=u"]);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("is the server running"), "{stderr}");
    // What one left that was killed is no other server.
    drop(TestServer::spawn(tollgate(&folder, &["serve"])));
    assert!(path.exists(), "it was killed");
    let server = TestServer::spawn(tollgate(&folder, &["serve"]));
    assert_eq!(cli(&["check", "user=u"]).0, Some(0));
    assert!(server.stop().success());
}

#[test]
fn more_connections_are_served_than_the_shell_allows_open_files() {
    let folder = TestFolder::with("tollgate.yaml", RULES);
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -S -n 64; exec \"$0\" serve --set server.http=127.0.0.1:0"])
        .arg(env!("CARGO_BIN_EXE_tollgate"))
        .current_dir(folder.path());
    let server = TestServer::spawn(limited);
    let connections: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = server.connect();
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n")
                .unwrap();
            let mut status_line = [0; 12];
            stream.read_exact(&mut status_line).unwrap();
            assert_eq!(&status_line, b"HTTP/1.1 200");
            stream
        })
        .collect();
    assert_eq!(connections.len(), 100);
    drop(connections);
    assert!(server.stop().success());
}

#[test]
fn grpc_is_answered_on_a_unix_socket_that_goes_with_the_server() {
    let folder = TestFolder::with("tollgate.yaml", RULES);
    let mut command = tollgate(&folder, &["serve", "--set", "server.http=disabled"]);
    command.args(["--set", "server.grpc=unix:calls.sock"]);
    let server = TestServer::spawn(command);
    assert!(server.banner.starts_with("grpc: unix:"), "{}", server.banner);
    let path = folder.path().join("calls.sock");
    let mut stream = UnixStream::connect(&path).expect("it listens");
    // The preface of HTTP/2 and empty settings; the answer begins with the server's own.
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .expect("it reads");
    let mut head = [0; 9];
    stream.read_exact(&mut head).expect("it answers");
    assert_eq!(head[3], 4);
    assert!(server.stop().success());
    assert!(!path.exists());
}

#[test]
fn a_server_that_has_no_files_left_accepts_again_when_it_has() {
    let folder = TestFolder::with("tollgate.yaml", RULES);
    let program = tollgate(&folder, &[]);
    let mut limited = Command::new("sh");
    // Both limits, so that it cannot raise its own.
    limited.args(["-c", "ulimit -n 64; exec \"$0\" serve --set server.http=127.0.0.1:0"]);
    limited.arg(program.get_program()).current_dir(folder.path());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let server = TestServer::spawn(limited);
    assert_eq!(server.get("/healthz").status, 200);
    let many: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect(server.address()).expect("the system takes it"))
        .collect();
    server.wait_for("accepting connections failed; retrying", 1);
    drop(many);
    assert_eq!(server.get("/healthz").status, 200);
    assert!(server.stop().success());
}
