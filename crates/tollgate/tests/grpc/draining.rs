//! How a server ends.

use crate::client::{asks, of};
use crate::server::Server;
use std::net::TcpStream;

#[test]
fn a_draining_server_says_goaway_and_takes_no_more() {
    let mut server = Server::start("- { id: x, limit: 10/min }\n");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let mut client = crate::client::Client::connect(&runtime, server.address);
    client.ask(&asks([of(&[])]));
    server.stop();
    // The server closes the connection in good order: the client sees no error.
    runtime.block_on(client.connection).unwrap().unwrap();
    server.wait();
    assert!(TcpStream::connect(server.address).is_err());
}
