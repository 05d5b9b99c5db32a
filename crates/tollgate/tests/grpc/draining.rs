//! How a server ends.

use crate::resets::{PREFACE, frame};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;
use tollgate::server::grpc::GrpcSettings;
use tollgate_test_kit::grpc::{GrpcServer, descriptor, request_for, settings};
use tollgate_test_kit::one_thread_runtime;

#[test]
fn a_draining_server_says_goaway_and_takes_no_more() {
    let mut server = GrpcServer::start("- { id: x, limit: 10/min }\n");
    let runtime = one_thread_runtime();
    let mut client = tollgate_test_kit::grpc::Client::connect(&runtime, server.address);
    client.should_rate_limit(&request_for([descriptor(&[])]));
    server.stop();
    // The server closes the connection in good order: the client sees no error.
    runtime.block_on(client.connection).unwrap().unwrap();
    server.wait();
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn clients_that_never_speak_or_never_answer_are_not_waited_for() {
    let drain = Duration::from_secs(60);
    let mut server = GrpcServer::start_with("- { id: x, limit: 10/min }\n", GrpcSettings { drain, ..settings() });
    server.connect().should_rate_limit(&request_for([descriptor(&[])]));
    let greeting = [PREFACE, &frame(4, 0, 0, &[])].concat();
    // The last one does not answer the ping by which a server finds out what was sent before it stopped.
    let silent = [&b""[..], PREFACE, &greeting].map(|bytes| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    });
    server.stop();
    server.wait_within(drain / 2);
    drop(silent);
}
