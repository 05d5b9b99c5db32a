//! Many commands at once.

use std::io::Write;
use tollgate_test_kit::resp::{RespServer, command};

/// Seeded numbers, so that a failure can be run again.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[test]
fn a_thousand_calls_cut_anywhere_are_answered_in_order() {
    for (index, server) in RespServer::both("").into_iter().enumerate() {
        for seed in 0..3 {
            let mut random = Random(seed);
            let mut bytes = Vec::new();
            let mut expected = String::new();
            for number in 0..1_000 {
                // Each is known by its limit; among them the same key again and again, and what is no call.
                match random.below(10) {
                    0 => {
                        bytes.extend(command(&["ECHO", &number.to_string()]));
                        let text = number.to_string();
                        expected.push_str(&format!("${}\r\n{text}\r\n", text.len()));
                    }
                    1 => {
                        bytes.extend(format!("CL.THROTTLE k{seed}-{number} nonsense 1 1\r\n").bytes());
                        expected.push_str("-Cell error: Store error: Couldn't parse as integer: nonsense\r\n");
                    }
                    _ => {
                        let burst = number.to_string();
                        bytes.extend(command(&[
                            "CL.THROTTLE",
                            &format!("k{seed}-{number}"),
                            &burst,
                            "1",
                            "1",
                        ]));
                        expected.push_str(&format!("*5\r\n:0\r\n:{}\r\n:{number}\r\n:-1\r\n:1\r\n", number + 1));
                    }
                }
            }
            let mut client = server.connect();
            let mut sending = client.stream.try_clone().unwrap();
            let cuts = std::thread::spawn(move || {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let max = if random.below(4) == 0 { 2_000 } else { 40 };
                    let (part, behind) = rest.split_at(rest.len().min(1 + random.below(max) as usize));
                    sending.write_all(part).unwrap();
                    rest = behind;
                }
            });
            assert_eq!(client.read(expected.len()), expected, "store {index}, seed {seed}");
            cuts.join().unwrap();
        }
    }
}

#[test]
fn calls_on_one_key_in_one_pipeline_are_decided_one_after_the_other() {
    for server in RespServer::both("- { id: plan, per: user, limit: 3/h }\n") {
        let mut client = server.connect();
        client.send(command(&["CL.THROTTLE", "k", "4", "1", "60"]).repeat(6));
        let replies: Vec<Vec<i64>> = (0..6).map(|_| client.integers()).collect();
        for (index, reply) in replies.iter().take(5).enumerate() {
            assert_eq!(reply[..3], [0, 5, 4 - index as i64], "{replies:?}");
        }
        assert_eq!(replies[5][..3], [1, 5, 0], "{replies:?}");
        client.send(command(&["TOLLGATE.CHECK", "default", "1", "user", "u"]).repeat(4));
        let limited: Vec<String> = (0..4)
            .map(|_| {
                let lines: Vec<String> = (0..8).map(|_| client.line()).collect();
                lines[1].clone()
            })
            .collect();
        assert_eq!(limited, [":0", ":0", ":0", ":1"]);
    }
}

#[test]
fn the_protocol_changes_between_two_commands_of_one_pipeline() {
    for server in RespServer::both("") {
        let received = server.exchange("TOLLGATE.CHECK d 1\r\nHELLO 3\r\nTOLLGATE.CHECK d 1\r\nQUIT\r\n");
        let none = "*6\r\n:0\r\n:-1\r\n:-1\r\n:-1\r\n:-1\r\n";
        assert!(received.starts_with(&format!("{none}$-1\r\n%7\r\n")), "{received}");
        assert!(received.ends_with(&format!("*0\r\n{none}_\r\n+OK\r\n")), "{received}");
    }
}
