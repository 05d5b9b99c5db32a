//! The examples of docs/redis-protocol.md, played from top to bottom.

use crate::clients::{folder, run};
use std::process::Command;
use tollgate_test_kit::resp::RespServer;

const PAGE: &str = include_str!("../../../../docs/redis-protocol.md");
const PROMPT: &str = "127.0.0.1:6380> ";

#[test]
fn what_the_page_shows_is_what_comes() {
    let (_, rules) = PAGE.split_once("```yaml\nrules:\n").unwrap();
    let (rules, _) = rules.split_once("```").unwrap();
    let server = RespServer::start_with(rules, Default::default());
    let consoles = PAGE.split("```console\n").skip(1);
    let mut played = 0;
    for console in consoles.map(|rest| rest.split_once("```").unwrap().0) {
        for exchange in console.split(PROMPT).skip(1) {
            let (arguments, expected) = exchange.split_once('\n').unwrap();
            let mut command = Command::new(folder().join("redis-cli"));
            command.args(["--no-raw", "-p", &server.address.port().to_string()]);
            command.args(arguments.split(' '));
            assert_eq!(run(&mut command).trim_end(), expected.trim_end(), "{arguments}");
            played += 1;
        }
    }
    assert_eq!(played, 7);
}
