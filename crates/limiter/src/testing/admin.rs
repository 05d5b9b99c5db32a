//! Connections to servers beside the store under test.

use super::servers::Server;
use redis::{Connection, FromRedisValue};

/// Connects to a server.
///
/// # Panics
/// If it is down.
pub fn connect(server: &Server) -> Connection {
    let client = redis::Client::open(server.url()).expect("a URL");
    client.get_connection().expect("a connection")
}

/// Sends one command over a connection.
///
/// # Panics
/// If the reply is an error, or of another type.
pub fn query<T: FromRedisValue>(connection: &mut Connection, command: &[&str]) -> T {
    let (name, arguments) = command.split_first().expect("a command");
    redis::cmd(name).arg(arguments).query(connection).expect("a reply")
}

/// The number of times a server has run these commands.
///
/// # Panics
/// If it is down.
pub fn calls(server: &Server, commands: &[&str]) -> u64 {
    let stats: String = query(&mut connect(server), &["INFO", "commandstats"]);
    let count = |command: &&str| {
        let start = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start))?;
        line.split(',').next()?.parse::<u64>().ok()
    };
    commands.iter().filter_map(count).sum()
}
