//! Clients that people use, with their default settings. `scripts/clients` gets them.

use std::path::{Path, PathBuf};
use std::process::Command;
use tollgate_test_kit::resp::RespServer;

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients")
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/resp/clients")
        .join(name)
}

/// Runs a client to its end, and says what it said.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/clients installs it"));
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{command:?}: {stdout}{stderr}");
    stdout.into_owned()
}

#[track_caller]
fn runs_client(program: &str, name: &str) {
    for server in RespServer::both("") {
        let mut command = Command::new(program);
        command.arg(script(name)).arg(server.address.port().to_string());
        command.env("NODE_PATH", folder().join("node_modules"));
        assert_eq!(run(&mut command), "done\n");
    }
}

#[test]
fn redis_py_connects_and_calls() {
    runs_client(folder().join("python/bin/python").to_str().unwrap(), "redis_py.py");
}

#[test]
fn node_redis_connects_and_calls() {
    runs_client("node", "node_redis.js");
}

#[test]
fn ioredis_connects_and_calls() {
    runs_client("node", "ioredis.js");
}

#[test]
fn redis_rs_connects_and_calls() {
    for server in RespServer::both("") {
        for protocol in ["resp2", "resp3"] {
            let url = format!("redis://{}/?protocol={protocol}", server.address);
            let mut client = redis::Client::open(url).unwrap().get_connection().unwrap();
            let call = |key: &str| {
                let mut call = redis::cmd("CL.THROTTLE");
                call.arg(key).arg(1).arg(30).arg(60);
                call
            };
            let one: Vec<i64> = call(protocol).query(&mut client).unwrap();
            assert_eq!(one, [0, 2, 1, -1, 2]);
            let mut pipeline = redis::pipe();
            for _ in 0..3 {
                pipeline.add_command(call(&format!("{protocol}-pipeline")));
            }
            let all: Vec<Vec<i64>> = pipeline.query(&mut client).unwrap();
            assert_eq!(all.iter().map(|reply| reply[0]).collect::<Vec<_>>(), [0, 0, 1]);
            let transaction: Vec<Vec<i64>> = redis::pipe()
                .atomic()
                .add_command(call(&format!("{protocol}-transaction")))
                .add_command(call(&format!("{protocol}-transaction")))
                .query(&mut client)
                .unwrap();
            assert_eq!(transaction, [[0, 2, 1, -1, 2], [0, 2, 0, -1, 4]]);
            let nonsense: redis::RedisResult<Vec<i64>> = redis::cmd("CL.THROTTLE").arg("k").query(&mut client);
            assert!(nonsense.unwrap_err().to_string().contains("Usage: cl.throttle"));
        }
    }
}

#[test]
fn redis_cli_connects_and_calls() {
    let server = RespServer::start();
    for protocol in ["-2", "-3"] {
        let mut command = Command::new(folder().join("redis-cli"));
        command.args([protocol, "-p", &server.address.port().to_string()]);
        command.args(["CL.THROTTLE", protocol, "15", "30", "60"]);
        assert_eq!(run(&mut command), "0\n16\n15\n-1\n2\n");
    }
}
