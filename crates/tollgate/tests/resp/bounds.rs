//! What no client may use up.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;
use tollgate::server::auth::tokens::{Keyring, Rights, TokenSecret, Tokens};
use tollgate::server::resp::RespSettings;
use tollgate_test_kit::resp::{Client, RespServer, command};

fn with(change: impl FnOnce(&mut RespSettings)) -> RespServer {
    let mut settings = RespSettings::default();
    change(&mut settings);
    RespServer::start_with("", settings)
}

#[test]
fn what_is_no_command_is_told_so_and_ends_the_connection() {
    for server in RespServer::both("") {
        let line = "a".repeat(8 * 1024 + 2);
        for (bytes, expected) in [
            ("*1000000000\r\n", "a command has at most 64 arguments"),
            ("*65\r\n", "a command has at most 64 arguments"),
            ("*1\r\n$-5\r\n", "an argument has from 0 to 8192 bytes"),
            ("*1\r\n$1000000000\r\n", "an argument has from 0 to 8192 bytes"),
            (
                "*1\r\n*1\r\n*1\r\n*1\r\n",
                "a command is an array of bulk strings, expected '$'",
            ),
            ("*99999999999999999999\r\n", "expected a number and a line's end"),
            (
                "*1\r\n$4\r\nPINGPING\r\n",
                "an argument does not end where its length says",
            ),
            (&line, "a line has at most 8192 bytes"),
        ] {
            let reply = server.exchange(format!("PING\r\n{bytes}"));
            assert_eq!(reply, format!("+PONG\r\n-ERR Protocol error: {expected}\r\n"));
        }
        server.connect().expect("PING", "+PONG\r\n");
    }
}

#[test]
fn a_command_of_as_much_as_is_allowed_is_answered() {
    for server in RespServer::both("") {
        let mut client = server.connect();
        let (name, value) = ("n".repeat(256), "v".repeat(8 * 1024));
        let names: Vec<String> = (0..30).map(|number| format!("{number:02}{}", &name[2..])).collect();
        let mut arguments = vec!["TOLLGATE.CHECK", "default", "1"];
        for name in &names {
            arguments.extend([name.as_str(), &value]);
        }
        client.send(command(&arguments));
        assert_eq!(client.line(), "*6");
    }
}

#[test]
fn a_client_that_reads_no_replies_is_cut_off() {
    for server in RespServer::both("") {
        let mut client = server.connect();
        client.stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        let block = command(&["ECHO", &"e".repeat(8_000)]).repeat(8);
        let sent = (0..10_000).find_map(|_| client.stream.write_all(&block).err());
        let error = sent.expect("it is cut off before it sends 640 MB");
        assert!(
            matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
            "{error}"
        );
        server.connect().expect("PING", "+PONG\r\n");
    }
}

#[test]
fn whoever_sends_half_a_command_has_some_time_and_no_more() {
    let server = with(|settings| settings.command_timeout = Duration::from_millis(200));
    let mut slow = server.connect();
    let mut idle = server.connect();
    slow.send("*1\r\n$4\r\nPI");
    assert_eq!(slow.rest(), "");
    // Whoever sends nothing at all may.
    idle.expect("PING", "+PONG\r\n");
}

#[test]
fn whoever_does_nothing_for_too_long_is_hung_up_on() {
    let server = with(|settings| settings.idle_timeout = Duration::from_millis(100));
    let mut client = server.connect();
    client.expect("PING", "+PONG\r\n");
    assert_eq!(client.rest(), "");
}

#[test]
fn at_the_cap_of_connections_the_next_waits_until_one_ends() {
    let server = with(|settings| settings.connections = 1);
    let mut first = server.connect();
    first.expect("PING", "+PONG\r\n");
    let mut second = server.connect();
    second.send("PING\r\n");
    second
        .stream
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let waits = std::io::Read::read(&mut second.stream, &mut [0]).unwrap_err();
    assert!(matches!(waits.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    drop(first);
    second.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(second.line(), "+PONG");
}

/// Half a command, of as many bytes as a command may have.
fn half() -> Vec<u8> {
    let argument = [b"$8192\r\n".as_slice(), &[b'a'; 8192], b"\r\n"].concat();
    [b"*64\r\n".as_slice(), &argument.repeat(63)].concat()
}

/// Clients that leave as much with the server as all together may.
fn fill(server: &RespServer) -> Vec<Client> {
    let half = half();
    (0..20)
        .map(|_| {
            let mut filler = server.connect();
            filler.send(&half);
            filler
        })
        .collect()
}

#[test]
fn who_behaves_is_served_while_others_leave_as_much_as_they_may() {
    for server in RespServer::both("") {
        let fillers = fill(&server);
        for _ in 0..20 {
            let mut client = server.connect();
            let calls = command(&["CL.THROTTLE", "k", "1000000", "1", "60"]).repeat(1_000);
            client.send([calls.as_slice(), b"QUIT\r\n"].concat());
            let replies = client.rest();
            assert_eq!(replies.matches("*5\r\n").count(), 1_000);
            assert!(replies.ends_with("+OK\r\n"));
        }
        drop(fillers);
    }
}

#[test]
fn who_finds_no_room_gets_it_when_others_are_done() {
    for server in RespServer::both("") {
        let mut fillers = fill(&server);
        for filler in &mut fillers {
            // The last argument. Those that were not read to here are waited for.
            filler.send("$1\r\na\r\n");
        }
        for mut filler in fillers {
            assert!(filler.line().starts_with("-ERR unknown command"));
        }
    }
}

#[test]
fn replies_that_were_not_sent_are_nobody_elses() {
    let server = RespServer::start();
    let mut other = server.connect();
    let whole = command(&["ECHO", "not yours"]);
    for _ in 0..100 {
        let mut client = server.connect();
        client.expect("PING", "+PONG\r\n");
        client.send(&whole);
        // The reply that is not read lets the system say that the client is gone, and the next ones cannot be sent.
        client.send(whole.repeat(100));
        drop(client);
        other.expect("PING", "+PONG\r\n");
    }
}

/// One on the embedded store and one on Redis, both with a password.
fn guarded(command_timeout: Duration) -> [RespServer; 2] {
    let mut tokens = Tokens::default();
    tokens
        .add("default", TokenSecret::Plain(PASSWORD), Rights::ALL)
        .unwrap();
    let settings = RespSettings {
        password: Some(Arc::new(Keyring::new(tokens))),
        command_timeout,
        ..RespSettings::default()
    };
    [
        RespServer::start_with("", settings.clone()),
        RespServer::start_shared_with("", settings, Duration::from_secs(5)),
    ]
}

#[test]
fn whoever_does_not_show_who_it_is_has_some_time_and_no_more() {
    for server in guarded(Duration::from_millis(300)) {
        let mut silent = server.connect();
        let mut talks = server.connect();
        let mut known = server.connect();
        known.expect(&format!("AUTH {PASSWORD}"), "+OK\r\n");
        // Saying something else does not help.
        let mut is_heard = || {
            let sent = talks.stream.write_all(b"PING\r\n");
            sent.is_ok() && talks.stream.read(&mut [0; 128]).is_ok_and(|bytes| bytes > 0)
        };
        while is_heard() {}
        assert_eq!(silent.rest(), "");
        known.expect("PING", "+PONG\r\n");
    }
}

#[test]
fn whoever_does_not_show_who_it_is_leaves_little_with_the_server() {
    for server in guarded(Duration::from_secs(60)) {
        let mut client = server.connect();
        let _ = client.stream.write_all(&half());
        assert_eq!(client.rest(), "");
        // Nor replies.
        let mut client = server.connect();
        let block = b"PING\r\n".repeat(10_000);
        let sent = (0..10_000).find_map(|_| client.stream.write_all(&block).err());
        assert!(sent.is_some(), "it is cut off before it sends 600 MB");
        // A pipeline that begins with the password is as good as any.
        let mut client = server.connect();
        let calls = command(&["CL.THROTTLE", "k", "1000000", "1", "60"]).repeat(1_000);
        client.send([format!("AUTH {PASSWORD}\r\n").as_bytes(), &calls, b"QUIT\r\n"].concat());
        assert_eq!(client.rest().matches("*5\r\n").count(), 1_000);
    }
}

const PASSWORD: &str = "correct-horse-battery";
