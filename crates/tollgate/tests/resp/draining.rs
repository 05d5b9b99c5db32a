//! The end of a server.

use crate::server::Server;

#[test]
fn what_has_arrived_is_answered_and_connections_end() {
    for mut server in Server::both("") {
        let mut client = server.connect();
        let mut half = server.connect();
        half.send("*1\r\n$4\r\nPI");
        client.expect("CL.THROTTLE k 15 30 60", "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n");
        server.stop();
        assert_eq!((client.rest(), half.rest()), (String::new(), String::new()));
        server.wait();
    }
}
