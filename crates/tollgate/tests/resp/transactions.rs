//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`.

use std::sync::Arc;
use std::time::Duration;
use tollgate::server::auth::tokens::{Keyring, Rights, TokenSecret, Tokens};
use tollgate::server::resp::RespSettings;
use tollgate_test_kit::resp::{Client, RespServer, command};

const TOO_LARGE: &str = "-ERR a transaction has at most 1024 commands of 131072 bytes in all";

#[test]
fn queued_calls_are_charged_by_exec_and_in_order() {
    for server in RespServer::both("- { id: plan, per: user, limit: 3/h }\n") {
        let mut client = server.connect();
        client.expect("MULTI", "+OK\r\n");
        for _ in 0..3 {
            client.expect("CL.THROTTLE k 1 1 60", "+QUEUED\r\n");
        }
        client.expect("TOLLGATE.CHECK default 1 user u", "+QUEUED\r\n");
        client.expect("CL.THROTTLE k 1 1 60 -2", "+QUEUED\r\n");
        client.expect("CL.THROTTLE k 1 1 60", "+QUEUED\r\n");
        // Nothing is charged yet.
        server
            .connect()
            .expect("CL.THROTTLE k 1 1 60 0", "*5\r\n:0\r\n:2\r\n:2\r\n:-1\r\n:0\r\n");
        client.send("EXEC\r\n");
        assert_eq!(client.line(), "*6");
        let replies: Vec<Vec<i64>> = (0..3).map(|_| client.integers()).collect();
        let limited: Vec<i64> = replies.iter().map(|reply| reply[0]).collect();
        assert_eq!(limited, [0, 0, 1], "{replies:?}");
        let verdict: Vec<String> = (0..8).map(|_| client.line()).collect();
        assert_eq!(
            (verdict[1].as_str(), verdict[7].as_str()),
            (":0", "plan"),
            "{verdict:?}"
        );
        // The refund is visible to the call behind it.
        assert_eq!(client.integers()[..3], [0, 2, 2]);
        assert_eq!(client.integers()[..3], [0, 2, 1]);
        client.expect("EXEC", "-ERR EXEC without MULTI\r\n");
    }
}

#[test]
fn a_transaction_in_one_write_is_answered_between_its_neighbours() {
    for server in RespServer::both("") {
        let mut client = server.connect();
        let call = command(&["CL.THROTTLE", "k", "9", "1", "60"]);
        let mut bytes = call.repeat(2);
        bytes.extend(command(&["MULTI"]));
        bytes.extend(call.repeat(2));
        bytes.extend(command(&["EXEC"]));
        bytes.extend(&call);
        bytes.extend(b"MULTI\r\nPING\r\nEXEC\r\nQUIT\r\n");
        client.send(bytes);
        let reply = |remaining: i64, reset: i64| format!("*5\r\n:0\r\n:10\r\n:{remaining}\r\n:-1\r\n:{reset}\r\n");
        let expected = [
            &reply(9, 60),
            &reply(8, 120),
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n",
            &reply(7, 180),
            &reply(6, 240),
            &reply(5, 300),
            "+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n+OK\r\n",
        ];
        assert_eq!(client.rest(), expected.concat());
    }
}

/// Conversations that hold for any server, each on a connection of its own.
const CONVERSATIONS: [&[&str]; 16] = [
    &["MULTI x", "EXEC", "DISCARD", "DISCARD x"],
    &["MULTI", "PING", "ECHO a", "PING b", "EXEC", "EXEC"],
    &["MULTI", "EXEC", "PING"],
    &["MULTI", "MULTI", "PING", "EXEC"],
    &["MULTI", "MULTI x", "PING", "EXEC", "PING"],
    &["MULTI", "PING", "DISCARD", "PING", "EXEC"],
    &["MULTI", "ECHO", "PING", "EXEC", "EXEC"],
    &["MULTI", "ECHO", "DISCARD", "MULTI", "PING", "EXEC"],
    &["MULTI", "DISCARD x", "PING", "EXEC"],
    &["MULTI", "EXEC x", "PING", "EXEC"],
    &["MULTI", "WATCH k", "PING", "EXEC"],
    &["WATCH", "WATCH a b", "UNWATCH x", "UNWATCH", "MULTI", "UNWATCH", "EXEC"],
    &["WATCH k", "MULTI", "PING", "EXEC"],
    &["MULTI", "SELECT 0", "HELLO 9", "EXEC"],
    &["MULTI", "RESET", "EXEC", "MULTI", "", "PING", "EXEC"],
    &["MULTI", "CLIENT", "EXEC", "MULTI", "PING", "QUIT"],
];

#[test]
fn transactions_are_answered_as_redis_answers_them() {
    let [memory, shared] = RespServer::both("");
    let url = shared.redis.as_ref().unwrap().url();
    let port: u16 = url.rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap();
    for conversation in CONVERSATIONS {
        let redis = Client::connect(([127, 0, 0, 1], port).into());
        let [expected, memory, shared] = [redis, memory.connect(), shared.connect()].map(|mut client| {
            let lines: Vec<String> = conversation.iter().map(|line| format!("{line}\r\n")).collect();
            client.send(lines.concat() + "QUIT\r\n");
            client.rest()
        });
        assert_eq!(memory, expected, "{conversation:?}");
        assert_eq!(shared, expected, "{conversation:?}");
    }
}

#[test]
fn a_command_that_cannot_be_queued_aborts_and_nothing_is_charged() {
    for server in RespServer::both("") {
        for (line, error) in [
            ("GET k", "-ERR unknown command 'GET'"),
            ("TOLLGATE.CHECK default", "-ERR wrong number of arguments"),
            ("TOLLGATE.CHECK default 1 user", "-ERR wrong number of arguments"),
            ("CLIENT LEVITATE", "-ERR unknown subcommand"),
        ] {
            let mut client = server.connect();
            client.expect("MULTI", "+OK\r\n");
            client.expect("CL.THROTTLE aborted 1 1 60", "+QUEUED\r\n");
            let reply = client.request(line);
            assert!(reply.starts_with(error), "{line}: {reply}");
            client.expect("CL.THROTTLE aborted 1 1 60", "+QUEUED\r\n");
            client.expect(
                "EXEC",
                "-EXECABORT Transaction discarded because of previous errors.\r\n",
            );
            client.expect("CL.THROTTLE aborted 1 1 60 0", "*5\r\n:0\r\n:2\r\n:2\r\n:-1\r\n:0\r\n");
        }
    }
}

#[test]
fn an_invalid_argument_is_an_error_among_the_replies() {
    for server in RespServer::both("") {
        let replies = server.exchange(
            "MULTI\r\nCL.THROTTLE k x 1 60\r\nCL.THROTTLE k\r\nTOLLGATE.CHECK d x\r\nPING\r\nEXEC\r\nQUIT\r\n",
        );
        let (_, replies) = replies.split_once("*4\r\n").unwrap();
        let lines: Vec<&str> = replies.lines().collect();
        assert_eq!(lines[0], "-Cell error: Store error: Couldn't parse as integer: x");
        assert!(lines[1].contains("Usage: cl.throttle"), "{lines:?}");
        assert!(lines[2].starts_with("-ERR invalid cost 'x'"), "{lines:?}");
        assert_eq!(lines[3..], ["+PONG", "+OK"]);
    }
}

#[test]
fn the_protocol_may_change_within_a_transaction() {
    for server in RespServer::both("") {
        let replies =
            server.exchange("MULTI\r\nTOLLGATE.CHECK d 1\r\nHELLO 3\r\nTOLLGATE.CHECK d 1\r\nEXEC\r\nQUIT\r\n");
        let none = "*6\r\n:0\r\n:-1\r\n:-1\r\n:-1\r\n:-1\r\n";
        assert!(replies.contains(&format!("*3\r\n{none}$-1\r\n%7\r\n")), "{replies}");
        assert!(replies.ends_with(&format!("*0\r\n{none}_\r\n+OK\r\n")), "{replies}");
    }
}

#[test]
fn rights_are_checked_when_a_call_is_queued_and_when_it_is_executed() {
    let mut tokens = Tokens::default();
    let token = "token-of-the-shop-0001";
    tokens.add("shop", TokenSecret::Plain(token), Rights::CHECK).unwrap();
    let keyring = Arc::new(Keyring::new(tokens));
    let settings = RespSettings {
        tokens: Some(Arc::clone(&keyring)),
        ..RespSettings::default()
    };
    let server = RespServer::start_with("", settings);
    let mut client = server.connect();
    for line in ["MULTI", "EXEC", "DISCARD", "WATCH k"] {
        let reply = client.request(line);
        assert!(reply.starts_with("-NOAUTH "), "{line}: {reply}");
    }
    client.expect(&format!("AUTH {token}"), "+OK\r\n");
    client.expect("MULTI", "+OK\r\n");
    client.expect("CL.THROTTLE k 1 1 60 -1", "+QUEUED\r\n");
    client.send("EXEC\r\n");
    assert_eq!(client.line(), "*1");
    assert!(client.line().starts_with("-NOPERM "));
    // A token that is revoked takes the queue with it.
    client.expect("MULTI", "+OK\r\n");
    client.expect("CL.THROTTLE k 1 1 60", "+QUEUED\r\n");
    let mut other = Tokens::default();
    other
        .add("other", TokenSecret::Plain("token-of-another-0001"), Rights::CHECK)
        .unwrap();
    assert!(keyring.replace(other));
    assert!(client.request("EXEC").starts_with("-NOAUTH "));
    client.expect("AUTH token-of-another-0001", "+OK\r\n");
    client.expect("EXEC", "-ERR EXEC without MULTI\r\n");
    client.expect("CL.THROTTLE k 1 1 60 0", "*5\r\n:0\r\n:2\r\n:2\r\n:-1\r\n:0\r\n");
}

#[test]
fn a_transaction_has_a_bounded_number_of_commands_and_bytes() {
    for server in RespServer::both("") {
        for (queued, calls) in [
            (command(&["CL.THROTTLE", "large", "9", "1", "60", "0"]), 1_024),
            (command(&["ECHO", &"e".repeat(8_000)]), 16),
        ] {
            let most = server.exchange([&*command(&["MULTI"]), &*queued.repeat(calls), b"EXEC\r\nQUIT\r\n"].concat());
            assert_eq!(most.matches("+QUEUED").count(), calls);
            assert!(most.contains(&format!("+QUEUED\r\n*{calls}\r\n")), "{most}");
            let replies =
                server.exchange([&*command(&["MULTI"]), &*queued.repeat(calls + 1), b"EXEC\r\nQUIT\r\n"].concat());
            assert_eq!(replies.matches("+QUEUED").count(), calls);
            assert!(replies.contains(TOO_LARGE), "{replies}");
            assert!(
                replies.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n+OK\r\n"),
                "{replies}"
            );
        }
    }
}

#[test]
fn a_large_transaction_that_is_not_ended_has_some_time_and_no_more() {
    let settings = RespSettings {
        command_timeout: Duration::from_millis(200),
        ..RespSettings::default()
    };
    let server = RespServer::start_with("", settings);
    let mut large = server.connect();
    large.send([command(&["MULTI"]), command(&["ECHO", &"e".repeat(8_000)])].concat());
    let mut small = server.connect();
    small.expect("MULTI", "+OK\r\n");
    small.expect("PING", "+QUEUED\r\n");
    // Cut off before the idle time of an hour. A small one takes no memory from others, and may wait.
    assert_eq!(large.rest(), "+OK\r\n+QUEUED\r\n");
    small.expect("EXEC", "*1\r\n+PONG\r\n");
}

#[test]
fn queues_are_part_of_what_all_clients_may_leave_and_the_others_are_served() {
    for server in RespServer::both("") {
        let queue = [command(&["MULTI"]), command(&["ECHO", &"e".repeat(8_000)]).repeat(16)].concat();
        // More than the memory budget.
        let mut fillers: Vec<Client> = (0..80)
            .map(|_| {
                let mut filler = server.connect();
                filler.send(&queue);
                filler
            })
            .collect();
        let mut client = server.connect();
        client.send(
            [
                command(&["CL.THROTTLE", "k", "1000000", "1", "60"]).repeat(100),
                b"QUIT\r\n".into(),
            ]
            .concat(),
        );
        assert_eq!(client.rest().matches("*5\r\n").count(), 100);
        // Each gets its turn.
        for filler in &mut fillers {
            filler.send("DISCARD\r\nQUIT\r\n");
        }
        for mut filler in fillers {
            let replies = filler.rest();
            assert_eq!(replies.matches("+QUEUED").count(), 16, "{replies}");
            assert!(replies.ends_with("+OK\r\n+OK\r\n"), "{replies}");
        }
    }
}
