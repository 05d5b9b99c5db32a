//! What clients say before they ask.
use tollgate_test_kit::resp::{RespServer, command};

const HELLO_3: &str = "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n\
     $4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";

#[test]
fn hello_answers_in_the_protocol_that_it_asks_for() {
    for server in RespServer::both("") {
        let mut client = server.connect();
        let hello_2 = HELLO_3.replace("%7", "*14").replace(":3\r\n", ":2\r\n");
        client.expect("HELLO", &hello_2);
        client.expect("HELLO 2", &hello_2);
        client.expect("hello 3", HELLO_3);
        client.expect("HELLO", HELLO_3);
        client.expect("HELLO 3 SETNAME me", HELLO_3);
        client.expect("CLIENT GETNAME", "$2\r\nme\r\n");
        client.expect("HELLO 4", "-NOPROTO unsupported protocol version\r\n");
        client.expect("HELLO three", "-NOPROTO unsupported protocol version\r\n");
        client.expect("HELLO 2 SETNAME", "-ERR unknown option 'SETNAME' of HELLO\r\n");
        client.expect("CLIENT SETNAME ''", "+OK\r\n");
        client.expect("CLIENT GETNAME", "_\r\n");
        client.expect("RESET", "+RESET\r\n");
        client.expect("CLIENT GETNAME", "$-1\r\n");
    }
}

#[test]
fn what_clients_send_by_default_is_answered() {
    let server = RespServer::start();
    let mut client = server.connect();
    for (line, expected) in [
        ("PING", "+PONG\r\n"),
        ("ping hello", "$5\r\nhello\r\n"),
        ("ECHO hello", "$5\r\nhello\r\n"),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command\r\n"),
        ("SELECT 0", "+OK\r\n"),
        ("SELECT 1", "-ERR the only database is 0\r\n"),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK\r\n"),
        ("client setinfo lib-ver 8.1.0", "+OK\r\n"),
        ("CLIENT SETNAME worker-1", "+OK\r\n"),
        ("CLIENT GETNAME", "$8\r\nworker-1\r\n"),
        ("CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type none", "+OK\r\n"),
        ("CLIENT ID", ":1\r\n"),
        ("CLIENT REPLY ON", "+OK\r\n"),
        ("CLIENT REPLY OFF", "-ERR unknown subcommand 'REPLY' of CLIENT\r\n"),
        ("CLIENT TRACKING ON", "-ERR unknown subcommand 'TRACKING' of CLIENT\r\n"),
        ("COMMAND", "*0\r\n"),
        ("COMMAND DOCS", "*0\r\n"),
        ("RESET", "+RESET\r\n"),
        ("GET k", "-ERR unknown command 'GET'\r\n"),
        ("FLUSHALL", "-ERR unknown command 'FLUSHALL'\r\n"),
        (
            "AUTH secret",
            "-ERR AUTH was sent, but no password or token is configured\r\n",
        ),
    ] {
        client.expect(line, expected);
    }
    assert_eq!(server.connect().request("CLIENT ID"), ":2");
    client.send("info\r\n");
    let length: usize = client.line().strip_prefix('$').unwrap().parse().unwrap();
    let info = client.read(length + 2);
    assert!(
        info.contains("redis_version:7.0.0\r\n") && info.contains("loading:0\r\n"),
        "{info}"
    );
}

#[test]
fn empty_commands_are_passed_over() {
    let server = RespServer::start();
    let mut client = server.connect();
    client.send("\r\n\n*0\r\n*-1\r\n  \r\nPING\r\n");
    assert_eq!(client.line(), "+PONG");
}

#[test]
fn whoever_says_goodbye_is_answered_and_heard_no_more() {
    for server in RespServer::both("") {
        assert_eq!(
            server.exchange([command(&["PING"]), command(&["QUIT"]), command(&["PING"])].concat()),
            "+PONG\r\n+OK\r\n"
        );
    }
}

#[test]
fn a_page_in_a_browser_gets_no_answer() {
    let server = RespServer::start();
    for request in [
        "POST / HTTP/1.1\r\nHost: x\r\n\r\nPING\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n\r\nPING\r\n",
    ] {
        let mut client = server.connect();
        client.send(request);
        assert!(!client.rest().contains("PONG"));
    }
}
