//! Checks of a new connection, and the words of its errors.

use super::value_text;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use std::future::Future;
use std::time::Duration;
use tokio::time::timeout;

/// One step of connecting, with its timeout.
pub(crate) async fn with_timeout<T>(
    time: Duration,
    step: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let timed_out = (redis::ErrorKind::Io, "the server did not answer in time");
    timeout(time, step).await.unwrap_or_else(|_| Err(timed_out.into()))
}

/// True if the server rejects our user, password or permissions.
pub(crate) fn is_auth_error(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
}

/// True if the server, or a proxy in front of it, does not allow the script to be loaded.
pub(crate) fn lacks_script(error: &RedisError) -> bool {
    let is_unknown = || error.detail().unwrap_or_default().contains("unknown command");
    error.code() == Some("NOPERM") || is_unknown()
}

/// The next step then. Counters of `ratelimit` need no script, but health checks and heartbeats do.
pub(crate) const SCRIPT_NEEDED: &str = "nothing is counted there without the script, ratelimit counters neither: allow what docs/redis.md lists under \
     least privilege, such as +script|load +evalsha +eval";

/// The text of an error for logs, never with a password: a server that does not know a command repeats its arguments.
pub(crate) fn error_text(error: &RedisError, password: Option<&str>) -> String {
    let message = error.to_string();
    let message = message.split(", with args").next().unwrap_or_default();
    match password {
        Some(password) if !password.is_empty() => message.replace(password, "..."),
        _ => message.to_owned(),
    }
}

/// Checks that a server is a primary: sentinels may name one that is not yet, or no more.
pub(crate) async fn check_primary(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    let role: Vec<Value> = role_command().query_async(connection).await?;
    match role.first().map(value_text).as_deref() {
        Some("master") => Ok(()),
        _ => Err(RedisError::from((
            redis::ErrorKind::Client,
            "the server that the sentinels name is not the primary",
        ))),
    }
}

/// Checks by a replica's `ROLE` that its link to the primary is up. Without it, it may be far behind.
///
/// # Errors
/// The link is down, or the server is no replica.
pub(crate) fn check_replica_link(role: &Value) -> Result<(), RedisError> {
    let fields: Vec<String> = match role {
        Value::Array(fields) => fields.iter().map(value_text).collect(),
        _ => Vec::new(),
    };
    match &*fields {
        [role, _, _, state, ..] if role == "slave" && state == "connected" => Ok(()),
        _ => Err((
            redis::ErrorKind::Client,
            "the server is not a replica that is connected to its primary",
        )
            .into()),
    }
}

pub(crate) fn role_command() -> redis::Cmd {
    redis::cmd("ROLE")
}
