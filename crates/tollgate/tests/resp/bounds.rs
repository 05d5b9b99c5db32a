//! What no client may use up.

use crate::client::command;
use crate::server::Server;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;
use tollgate::server::resp::RespSettings;

#[test]
fn what_is_no_command_is_told_so_and_ends_the_connection() {
    for server in Server::both("") {
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
            let mut client = server.connect();
            client.send(format!("PING\r\n{bytes}"));
            let said = client.rest();
            assert_eq!(said, format!("+PONG\r\n-ERR Protocol error: {expected}\r\n"));
        }
        server.connect().expect("PING", "+PONG\r\n");
    }
}

#[test]
fn a_command_of_as_much_as_is_allowed_is_answered() {
    for server in Server::both("") {
        let mut client = server.connect();
        let (name, value) = ("n".repeat(256), "v".repeat(8 * 1024));
        let names: Vec<String> = (0..30).map(|number| format!("{number:02}{}", &name[2..])).collect();
        let mut words = vec!["TOLLGATE.CHECK", "default", "1"];
        for name in &names {
            words.extend([name.as_str(), &value]);
        }
        client.send(command(&words));
        assert_eq!(client.line(), "*6");
    }
}

#[test]
fn a_client_that_reads_no_replies_is_cut_off() {
    for server in Server::both("") {
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
    let settings = RespSettings {
        command_timeout: Duration::from_millis(200),
        ..RespSettings::default()
    };
    let server = Server::start_with("", settings);
    let mut slow = server.connect();
    let mut idle = server.connect();
    slow.send("*1\r\n$4\r\nPI");
    assert_eq!(slow.rest(), "");
    // Whoever sends nothing at all may.
    idle.expect("PING", "+PONG\r\n");
}

#[test]
fn whoever_does_nothing_for_too_long_is_hung_up_on() {
    let settings = RespSettings {
        idle_timeout: Duration::from_millis(100),
        ..RespSettings::default()
    };
    let server = Server::start_with("", settings);
    let mut client = server.connect();
    client.expect("PING", "+PONG\r\n");
    assert_eq!(client.rest(), "");
}

#[test]
fn at_the_cap_of_connections_the_next_waits_until_one_ends() {
    let settings = RespSettings {
        connections: 1,
        ..RespSettings::default()
    };
    let server = Server::start_with("", settings);
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

#[test]
fn replies_that_were_not_sent_are_nobody_elses() {
    let server = Server::start();
    let mut stranger = server.connect();
    stranger.expect("PING", "+PONG\r\n");
    // As much as all clients together may leave with the server: 512 KiB each.
    let argument = [b"$8192\r\n".as_slice(), &[b'a'; 8192], b"\r\n"].concat();
    let half = [b"*64\r\n".as_slice(), &argument.repeat(63)].concat();
    let _fillers: Vec<_> = (0..20)
        .map(|_| {
            let mut filler = server.connect();
            // The last ones find no room and are cut off.
            let _ = filler.stream.write_all(&half);
            filler
        })
        .collect();
    let (mut cut, mut others) = (0, Vec::new());
    for _ in 0..300 {
        let mut client = server.connect();
        let whole = command(&["ECHO", "not yours"]);
        client.send([whole.as_slice(), b"*64\r\n", &argument[..8000]].concat());
        // Whoever finds room is told what it said, all others nothing.
        cut += u32::from(client.stream.read(&mut [0; 64]).unwrap_or(0) == 0);
        stranger.expect("PING", "+PONG\r\n");
        others.push(client);
        if cut > 3 {
            break;
        }
    }
    assert!(cut > 3, "there was always room");
}
