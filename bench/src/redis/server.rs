//! The server under test and its statistics.

use redis::{Connection, FromRedisValue};
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// The CPU time of a server process, in seconds.
pub(crate) fn cpu_seconds(connection: &mut Connection) -> Result<f64, String> {
    let info: String = redis::cmd("INFO").arg("cpu").query(connection).map_err(error_text)?;
    let seconds = |name| field(&info, name).and_then(|value| value.parse::<f64>().ok());
    match (seconds("used_cpu_user"), seconds("used_cpu_sys")) {
        (Some(user), Some(system)) => Ok(user + system),
        _ => Err("the server does not report its CPU time".to_owned()),
    }
}

/// A server with a separate connection for its statistics.
pub(crate) struct WatchedServer {
    server: Server,
    connection: Connection,
}

impl WatchedServer {
    pub(crate) fn start(kind: ServerKind) -> Result<Self, String> {
        let server = Server::start(kind);
        let client = redis::Client::open(server.url()).map_err(error_text)?;
        let connection = client.get_connection().map_err(error_text)?;
        Ok(Self { server, connection })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.server.process_id()
    }

    pub(crate) fn query<T: FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T, String> {
        command.query(&mut self.connection).map_err(error_text)
    }

    /// Removes all keys.
    pub(crate) fn clear(&mut self) -> Result<(), String> {
        self.query(&redis::cmd("FLUSHALL"))
    }

    /// Its name and version.
    pub(crate) fn version(&mut self) -> Result<String, String> {
        let info: String = self.query(redis::cmd("INFO").arg("server"))?;
        let known = |name| field(&info, name).map(str::to_owned);
        Ok(match known("valkey_version") {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {}", known("redis_version").unwrap_or_default()),
        })
    }

    /// The CPU time of its process in seconds, from `INFO`.
    pub(crate) fn cpu_seconds(&mut self) -> Result<f64, String> {
        cpu_seconds(&mut self.connection)
    }

    /// The bytes of its data and buffers.
    pub(crate) fn used_memory(&mut self) -> Result<u64, String> {
        let info: String = self.query(redis::cmd("INFO").arg("memory"))?;
        let bytes = field(&info, "used_memory").and_then(|value| value.parse().ok());
        bytes.ok_or_else(|| "the server does not report its memory".to_owned())
    }

    /// The bytes of one random key.
    pub(crate) fn memory_of_a_key(&mut self) -> Result<u64, String> {
        let key: Vec<u8> = self.query(&redis::cmd("RANDOMKEY"))?;
        self.query(redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0))
    }

    /// The number of script and function calls.
    pub(crate) fn script_calls(&mut self) -> Result<u64, String> {
        let info: String = self.query(redis::cmd("INFO").arg("commandstats"))?;
        let calls = |name| {
            let line = field(&info, name)?;
            line.split(',')
                .find_map(|part| part.strip_prefix("calls="))?
                .parse::<u64>()
                .ok()
        };
        let all = ["cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall"];
        Ok(all.into_iter().filter_map(calls).sum::<u64>())
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

pub(crate) fn error_text(error: redis::RedisError) -> String {
    format!("the server: {error}")
}
