//! Diagnostics of the servers at the start: findings that an operator should know before they matter.

use crate::store::redis::connection::connector::Connector;
use crate::store::redis::connection::endpoint::Endpoint;
use crate::store::redis::connection::value_text;
use crate::store::redis::node::Node;
use crate::store::redis::script::call::ScriptOp;
use crate::store::redis::topology::{Topology, replicas};
use crate::store::redis::{Redis, RedisKey};
use crate::store::{Keyspace, Store, StoreError};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate_core::{
    Charge, Cost, Counter, LeaseId, Limit, Micros, OnStoreFailure, Policy, Rate, SlidingLog, TokenBucket,
};

/// Findings about a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    /// Its name and version, such as `valkey 9.1.2`.
    pub server: String,
    /// True if the script is called as a function.
    pub is_function: bool,
    /// True if the server answered a call of the script, even if with an error.
    pub has_answered: bool,
    /// Problems, each with the next step.
    pub warnings: Vec<String>,
}

/// The timeout of each step.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The interval at which a replica is checked for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Requests that exercise every command on a log.
const LOG_REQUESTS: usize = 6;

/// The oldest supported version.
const VERSION_MIN: (u64, u64) = (6, 2);

impl Redis {
    /// Inspects the server: its version, its eviction policy, and its permissions for everything the script does, by
    /// counters that are cleared again. In a cluster every server with slots is inspected; and the server for windows of
    /// a second, if there is one.
    ///
    /// # Errors
    /// The reason why there is no connection.
    pub async fn diagnose(&self) -> Result<Diagnostics, String> {
        let mut diagnostics = match &*self.topology {
            Topology::Single(node, _) => self.inspect_node(node.connector()).await?,
            Topology::Cluster(cluster) => {
                cluster.wait_for_map(TIMEOUT).await;
                let mut combined: Option<Diagnostics> = None;
                let nodes = cluster.nodes();
                for (endpoint, node) in &nodes {
                    let mut diagnostics = self.inspect_node(node.connector()).await?;
                    for warning in &mut diagnostics.warnings {
                        *warning = format!("{endpoint}: {warning}");
                    }
                    match &mut combined {
                        Some(combined) => combined.warnings.append(&mut diagnostics.warnings),
                        None => combined = Some(diagnostics),
                    }
                }
                let mut combined = combined.ok_or_else(|| self.connection_error_text())?;
                combined.server = format!("a cluster of {} primaries, {}", nodes.len(), combined.server);
                combined
            }
        };
        for (endpoint, node) in self.primaries() {
            if let Some(reason) = replica_error(&node).await {
                let endpoint = endpoint.map_or_else(String::new, |endpoint| format!("{endpoint}: "));
                diagnostics.warnings.push(format!(
                    "{endpoint}no replica can answer peeks, so the primary does: {reason}; docs/redis.md lists what reading from replicas needs"
                ));
            }
        }
        if let Some(per_second) = self.counters.as_ref().and_then(|counters| counters.per_second_store()) {
            let found = Box::pin(per_second.diagnose()).await;
            let mut found = found.map_err(|error| format!("windows of a second: {error}"))?;
            diagnostics.has_answered &= found.has_answered;
            let warnings = found.warnings.drain(..);
            let warnings = warnings.map(|warning| format!("windows of a second: {warning}"));
            diagnostics.warnings.extend(warnings);
        }
        if let Err(error) = self.exercise_script().await {
            diagnostics.has_answered &= matches!(error, StoreError::Server(_));
            diagnostics.warnings.push(match error {
                StoreError::Server(crate::store::RedisErrorCode::NoPerm) => {
                    "the user lacks permissions that the script needs; docs/redis.md lists the commands".to_owned()
                }
                error => format!("a first call of the script failed: {error}"),
            });
        }
        *self.warnings.lock().unwrap_or_else(PoisonError::into_inner) = diagnostics.warnings.clone();
        diagnostics.warnings.extend(self.connector_warning());
        Ok(diagnostics)
    }

    fn connection_error_text(&self) -> String {
        self.connection_error()
            .unwrap_or_else(|| "the server did not answer".to_owned())
    }

    /// All primaries, in a cluster with their endpoints.
    fn primaries(&self) -> Vec<(Option<Endpoint>, Arc<Node>)> {
        match &*self.topology {
            Topology::Single(node, _) => vec![(None, Arc::clone(node))],
            Topology::Cluster(cluster) => {
                let nodes = cluster.nodes().into_iter();
                nodes.map(|(endpoint, node)| (Some(endpoint), node)).collect()
            }
        }
    }

    async fn inspect_node(&self, connector: &Arc<Connector>) -> Result<Diagnostics, String> {
        let mut connection = timeout(TIMEOUT, connector.connection())
            .await
            .map_err(|_| self.connection_error_text())?;
        let mut warnings = Vec::new();
        let mut server = "a server of unknown version".to_owned();
        match timeout(TIMEOUT, connection.query(&redis::cmd("INFO"))).await {
            Ok(Ok(info)) => {
                let info = Info(value_text(&info));
                server = info.server();
                info.collect_warnings(&mut warnings);
            }
            Ok(Err(error)) => warnings.push(format!(
                "INFO is rejected ({}): version and memory settings are unknown; allow it with +info",
                error.name()
            )),
            Err(_) => return Err(self.connection_error_text()),
        }
        if let Topology::Cluster(_) = &*self.topology {
            let mut command = redis::cmd("CONFIG");
            command.arg("GET").arg("cluster-require-full-coverage");
            // Without the permission there is no warning; docs/redis.md has it too.
            if let Ok(Ok(reply)) = timeout(TIMEOUT, connection.query(&command)).await
                && redis::from_redis_value::<HashMap<String, String>>(reply)
                    .is_ok_and(|settings| settings.values().any(|value| value == "yes"))
            {
                warnings.push(
                    "cluster-require-full-coverage is yes: when one server is down, all others reject requests too; set it to no"
                        .to_owned(),
                );
            }
        }
        Ok(Diagnostics {
            server,
            is_function: connection.is_function(),
            has_answered: true,
            warnings,
        })
    }

    /// Settles, returns and clears counters of its own, so that every command of the script runs.
    async fn exercise_script(&self) -> Result<(), StoreError> {
        let rate = Rate::new(LOG_REQUESTS as u64, Micros::from_secs(1)).map_err(|_| StoreError::InvalidReply)?;
        let bucket = Limit::from(TokenBucket::new(rate));
        let log = Limit::from(SlidingLog::new(rate).map_err(|_| StoreError::InvalidReply)?);
        let key = |rule, limit| {
            let counter = Counter {
                domain: "",
                rule,
                variant: "diagnostics",
                limit,
                per: &[],
            };
            self.key(
                &self.template(&counter),
                &[b"diagnostics", &crate::lease::random_id().0.to_le_bytes()],
            )
        };
        let charge = |key: RedisKey, limit: Limit| Charge {
            key,
            limit,
            cost: Cost::ONE,
            policy: Policy::Enforce,
            on_failure: OnStoreFailure::Local,
        };
        let buckets = [charge(key("one", &bucket), bucket), charge(key("two", &bucket), bucket)];
        let log = [charge(key("log", &log), log)];
        // A log is written in parts once its capacity exceeds its length.
        let requests = [buckets.get(..1).unwrap_or_default(), &buckets];
        for charges in requests.into_iter().chain([&log[..]; LOG_REQUESTS]) {
            let settlement = self.settle_as(ScriptOp::Settle, charges, LeaseId::default()).await;
            for outcome in settlement.outcomes {
                outcome?;
            }
        }
        for charge in buckets.iter().chain(&log) {
            self.forget(charge.key, &charge.limit).await?;
        }
        Ok(())
    }
}

/// The reason why no replica can answer, if one should and none can after a while.
async fn replica_error(primary: &Node) -> Option<String> {
    let replicas = primary.replicas()?;
    let reachable = async {
        while replicas::error(replicas).is_some() {
            sleep(POLL_INTERVAL).await;
        }
    };
    // The state after it counts.
    let _ = timeout(TIMEOUT, reachable).await;
    replicas::error(replicas)
}

/// The `INFO` of a server.
struct Info(String);

impl Info {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    }

    fn server(&self) -> String {
        match self.field("valkey_version") {
            Some(version) => format!("valkey {version}"),
            None => format!("redis {}", self.field("redis_version").unwrap_or("of unknown version")),
        }
    }

    fn collect_warnings(&self, warnings: &mut Vec<String>) {
        let version = self.field("redis_version").unwrap_or_default();
        let mut parts = version.split('.').map_while(|part| part.parse::<u64>().ok());
        if let (Some(major), Some(minor)) = (parts.next(), parts.next())
            && (major, minor) < VERSION_MIN
        {
            warnings.push(format!(
                "version {version} is older than 6.2, the oldest that is supported; upgrade it"
            ));
        }
        let policy = self.field("maxmemory_policy").unwrap_or("noeviction");
        if policy != "noeviction" && self.field("maxmemory").is_some_and(|value| value != "0") {
            warnings.push(format!(
                "maxmemory-policy is {policy}: when memory is short the server evicts counters, and their limits \
                 start over; set it to noeviction"
            ));
        }
        if self.field("role") == Some("slave") {
            warnings.push("the server is a replica and rejects writes; use the URL of its primary".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_of_itself_is_read() {
        let warnings = |info: &str| {
            let mut warnings = Vec::new();
            Info(info.to_owned()).collect_warnings(&mut warnings);
            warnings
        };
        let healthy = "redis_version:7.0.15\r\nrole:master\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n";
        assert_eq!(warnings(healthy), Vec::<String>::new());
        assert_eq!(Info(healthy.to_owned()).server(), "redis 7.0.15");
        let unhealthy = "redis_version:5.0.1\r\nrole:slave\r\nmaxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n";
        let found = warnings(unhealthy);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("5.0.1") && found[1].contains("allkeys-lru") && found[2].contains("replica"));
        let valkey = "redis_version:7.2.4\r\nvalkey_version:9.1.2\r\n";
        assert_eq!(Info(valkey.to_owned()).server(), "valkey 9.1.2");
    }
}
