//! Preloading: the script of decisions is kept on every server, replicas included, so that no decision has to send it.

use super::calls::CallServers;
use super::{CALL_DEADLINE, CacheError, CacheState, ConfigCache};
use crate::store::redis::connection::endpoint::{ConnectOptions, Endpoint};
use crate::store::redis::connection::ensure_function;
use crate::store::redis::connection::handshake::{error_text, lacks_script, role_command};
use crate::store::redis::script::SCRIPT;
use crate::store::redis::topology::{Topology, replicas};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// The longest time for one server: others do not wait for it.
const SERVER_TIMEOUT: Duration = Duration::from_millis(700);

/// The most servers.
const SERVERS_MAX: usize = 1_024;

/// Connections to all servers, between two calls.
#[derive(Default)]
pub(super) struct Preload {
    servers: Mutex<HashMap<Option<Endpoint>, ServerScript>>,
}

/// A server that has had the script.
#[derive(Clone)]
struct ServerScript {
    connection: MultiplexedConnection,
    digest: String,
    /// False if the server does not answer `SCRIPT EXISTS`.
    can_ask: bool,
    /// False if the script is not called as a function there.
    has_functions: bool,
}

/// The result of preloading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreloadReport {
    /// The number of servers that have the script now.
    pub servers: usize,
    /// The servers that had lost it.
    pub reloaded: Vec<String>,
    /// The servers that could not be asked, and why.
    pub failed: Vec<(String, String)>,
}

impl ConfigCache {
    /// Loads the script of decisions wherever it is missing: on every primary and replica. One short question to each of
    /// them if it is there.
    ///
    /// # Errors
    /// No server is known.
    pub async fn preload(&self) -> Result<PreloadReport, CacheError> {
        // One at a time: the next would ask the same.
        let mut servers = self.shared.preload.servers.lock().await;
        let endpoints = endpoints(&self.shared).await?;
        servers.retain(|endpoint, _| endpoints.contains(endpoint));
        let (options, functions) = (
            self.shared.options.server_options(),
            self.shared.options.may_use_functions(),
        );
        let known = &*servers;
        let loads = endpoints.into_iter().map(|endpoint| async move {
            let known = known.get(&endpoint).cloned();
            let loaded = timeout(SERVER_TIMEOUT, load(options, endpoint.as_ref(), functions, known)).await;
            let loaded =
                loaded.unwrap_or_else(|_| Err((redis::ErrorKind::Io, "the server did not answer in time").into()));
            (endpoint, loaded)
        });
        let mut report = PreloadReport::default();
        for (endpoint, loaded) in join_all(loads).await {
            let name = endpoint
                .as_ref()
                .map_or_else(|| "socket".to_owned(), ToString::to_string);
            match loaded {
                Ok((server, was_lost)) => {
                    servers.insert(endpoint, server);
                    report.servers += 1;
                    if was_lost {
                        report.reloaded.push(name);
                    }
                }
                Err(error) => {
                    servers.remove(&endpoint);
                    report.failed.push((name, error_text(&error, options.password())));
                }
            }
        }
        Ok(report)
    }
}

/// All servers that are known. A single one on a Unix socket has no endpoint.
async fn endpoints(state: &CacheState) -> Result<Vec<Option<Endpoint>>, CacheError> {
    let deadline = Instant::now() + CALL_DEADLINE;
    let topology = &state.servers().topology;
    let mut endpoints = match &**topology {
        Topology::Cluster(cluster) => {
            cluster.wait_for_map(CALL_DEADLINE).await;
            let known: Vec<Option<Endpoint>> = cluster.known().into_iter().map(Some).collect();
            if known.is_empty() {
                let reason = topology
                    .error()
                    .unwrap_or_else(|| "no server of the cluster answers".to_owned());
                return Err(CacheError::Unavailable(reason));
            }
            known
        }
        Topology::Single(..) => {
            let mut connection = CallServers::of(state).primary(deadline).await?;
            let mut endpoints = vec![connection.endpoint().cloned()];
            // A user who may not ask has no replicas that are read.
            if let Ok(Ok(role)) = timeout(SERVER_TIMEOUT, connection.query(&role_command())).await {
                endpoints.extend(replicas::replicas_in_role(&role).into_iter().map(Some));
            }
            endpoints
        }
    };
    endpoints.truncate(SERVERS_MAX);
    Ok(endpoints)
}

/// Loads the script on one server if it is missing. True if it was there before and had been lost.
async fn load(
    options: &ConnectOptions,
    endpoint: Option<&Endpoint>,
    functions: bool,
    known: Option<ServerScript>,
) -> Result<(ServerScript, bool), RedisError> {
    let Some(mut server) = known else {
        let options = endpoint.map_or_else(|| options.clone(), |endpoint| options.to(endpoint));
        let mut connection = options.client()?.get_multiplexed_async_connection().await?;
        let digest = load_script(&mut connection).await?;
        let has_functions = functions && ensure_function(&mut connection).await.is_ok();
        let server = ServerScript {
            connection,
            digest,
            can_ask: true,
            has_functions,
        };
        return Ok((server, false));
    };
    let mut was_lost = false;
    let is_there = match server.can_ask {
        true => match script_exists(&mut server).await {
            // It may be loaded without asking, which costs the server a digest of it.
            Err(error) if lacks_script(&error) => {
                server.can_ask = false;
                None
            }
            asked => Some(asked?),
        },
        false => None,
    };
    if is_there != Some(true) {
        load_script(&mut server.connection).await?;
        was_lost = is_there.is_some();
    }
    if server.has_functions {
        match ensure_function(&mut server.connection).await {
            Ok(loaded) => was_lost |= loaded,
            // A replica gets it from its primary.
            Err(error) if error.code() == Some("READONLY") => {}
            Err(error) => return Err(error),
        }
    }
    Ok((server, was_lost))
}

async fn script_exists(server: &mut ServerScript) -> Result<bool, RedisError> {
    let mut exists = redis::cmd("SCRIPT");
    exists.arg("EXISTS").arg(&server.digest);
    let known: Vec<Value> = exists.query_async(&mut server.connection).await?;
    Ok(matches!(&*known, [Value::Int(1) | Value::Boolean(true)]))
}

async fn load_script(connection: &mut MultiplexedConnection) -> Result<String, RedisError> {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(SCRIPT);
    load.query_async(connection).await
}
