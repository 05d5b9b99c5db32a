//! Sentinels: they name the primary, and announce a failover on a subscription.

use crate::store::redis::connection::connector::{Connector, PrimaryLocator};
use crate::store::redis::connection::endpoint::{ConnectOptions, Endpoint};
use crate::store::redis::connection::handshake::error_text;
use crate::store::redis::context::StoreContext;
use crate::store::redis::supervise::spawn_supervised;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use redis::{ProtocolVersion, RedisError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// The sentinels of one primary.
#[derive(Debug)]
pub(crate) struct Sentinels {
    endpoints: Vec<Endpoint>,
    connect_options: ConnectOptions,
    name: String,
    primary: ConnectOptions,
    /// The primary they named before this process started, used until one of them reports.
    last_known: Option<Endpoint>,
    /// The report with the highest epoch.
    last: Mutex<Option<PrimaryReport>>,
    /// An announced promotion, and when it expires.
    next: Mutex<Option<(PrimaryReport, Instant)>>,
}

/// The primary as one sentinel reports it.
#[derive(Debug)]
struct PrimaryReport {
    endpoint: Endpoint,
    /// Grows with each failover: of two reports the one with the higher epoch is right.
    epoch: u64,
}

/// The timeout of a query to a sentinel.
const TIMEOUT: Duration = Duration::from_millis(300);

/// The longest silence of a subscription before the sentinel is queried again: its connection may be lost unnoticed.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The backoff before the next attempt to subscribe.
const BACKOFF: Duration = Duration::from_millis(500);

/// The channel of completed failovers.
const SWITCH: &str = "+switch-master";

/// The channel on which the elected sentinel announces the server it has promoted. The sentinels agree on it only when they
/// poll that server again, a second later.
const PROMOTION: &str = "+failover-state-wait-promotion";

/// The longest time until they agree. After it the primary is where it was.
const PROMOTION_TTL: Duration = Duration::from_secs(5);

impl Sentinels {
    /// `last_known` is what a store with the same sentinels [reported](Self::known_primary) before.
    pub(crate) fn new(
        endpoints: Vec<Endpoint>,
        connect_options: ConnectOptions,
        name: String,
        primary: ConnectOptions,
        last_known: Option<&str>,
    ) -> Self {
        let sentinels = Self {
            endpoints,
            // Announcements are messages in either version, and old sentinels have no other.
            connect_options: connect_options.with_protocol(ProtocolVersion::RESP2),
            name,
            primary,
            last_known: None,
            last: Mutex::default(),
            next: Mutex::default(),
        };
        let last_known = last_known.and_then(|last_known| last_known.trim().strip_prefix(&sentinels.identity()));
        Self {
            last_known: last_known.and_then(|endpoint| Endpoint::parse(endpoint, None)),
            ..sentinels
        }
    }

    /// The primary they named, as text for [`RedisOptions::last_primary`](crate::store::redis::RedisOptions::last_primary): the
    /// name, the sentinels and the endpoint.
    pub(crate) fn known_primary(&self) -> Option<String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let endpoint = last.as_ref().map(|last| &last.endpoint).or(self.last_known.as_ref())?;
        Some(format!("{}{endpoint}", self.identity()))
    }

    fn identity(&self) -> String {
        let endpoints: Vec<String> = self.endpoints.iter().map(Endpoint::to_string).collect();
        format!("{} {} ", self.name, endpoints.join(","))
    }

    /// Asks all sentinels for the primary: the report with the highest epoch counts. If none answers, the last known primary.
    ///
    /// # Errors
    /// No sentinel knows it, or one answered with an error while only the last known primary is left.
    async fn locate_primary(&self) -> Result<ConnectOptions, String> {
        let mut queries = JoinSet::new();
        for endpoint in &self.endpoints {
            let (connect_options, name) = (self.connect_options.to(endpoint), self.name.clone());
            queries.spawn(async move { timeout(TIMEOUT, query_sentinel(&connect_options, &name)).await.ok() });
        }
        let (mut last_error, mut answered_with_error) = ("no sentinel answers".to_owned(), false);
        while let Some(reply) = queries.join_next().await {
            match reply {
                Ok(Some(Ok(report))) => self.record(report),
                Ok(Some(Err(error))) => {
                    last_error = format!(
                        "a sentinel answers: {}",
                        error_text(&error, self.connect_options.password())
                    );
                    // An unreachable sentinel is an I/O error, not a reply.
                    answered_with_error |= !error.is_io_error();
                }
                _ => {}
            }
        }
        match self.latest_primary() {
            // An operator must fix that before a failover needs it.
            Some(_) if answered_with_error && self.uses_last_known() => Err(last_error),
            Some(endpoint) => Ok(self.primary.to(&endpoint)),
            None => Err(last_error),
        }
    }

    /// True if no sentinel has reported yet and the last known primary is used.
    pub(crate) fn uses_last_known(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_none() && self.last_known.is_some()
    }

    /// Records a report, unless another has a higher epoch: a sentinel that was cut off reports an old primary.
    fn record(&self, report: PrimaryReport) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|last| last.epoch <= report.epoch) {
            *last = Some(report);
        }
    }

    /// Records an announcement: `slave NAME ADDRESS PORT @ PRIMARY …` is being promoted.
    fn record_promotion(&self, payload: &str) {
        let fields: Vec<&str> = payload.split(' ').collect();
        if let [_, _, name, port, "@", primary_name, ..] = *fields
            && primary_name == self.name
            && let Some(endpoint) = Endpoint::parse(&format!("{name}:{port}"), None)
        {
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let epoch = last.as_ref().map_or(0, |last| last.epoch) + 1;
            drop(last);
            let promotion = (PrimaryReport { endpoint, epoch }, Instant::now() + PROMOTION_TTL);
            *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(promotion);
        }
    }

    /// The primary as announced or reported.
    fn latest_primary(&self) -> Option<Endpoint> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.as_ref();
        let is_newer = |next: &PrimaryReport| last.is_none_or(|last| next.epoch > last.epoch);
        match &*next {
            Some((next, until)) if is_newer(next) && Instant::now() < *until => Some(next.endpoint.clone()),
            _ => last.map(|last| &last.endpoint).or(self.last_known.as_ref()).cloned(),
        }
    }

    /// Subscribes to every sentinel until the connector is dropped, and has it switch to the primary that they name.
    pub(crate) fn subscribe_all(self: &Arc<Self>, connector: &Arc<Connector>, context: &StoreContext) {
        for endpoint in &self.endpoints {
            let (sentinels, weak) = (Arc::clone(self), Arc::downgrade(connector));
            let options = self.connect_options.to(endpoint);
            let subscribe = move || {
                let (sentinels, connector, options) = (Arc::clone(&sentinels), Weak::clone(&weak), options.clone());
                async move {
                    while connector.strong_count() > 0 {
                        // Any error is followed by another attempt. While all sentinels are down, the connection stays.
                        let _ = sentinels.subscribe(&options, &connector).await;
                        sleep(BACKOFF).await;
                    }
                }
            };
            spawn_supervised(&context.runtime, Arc::clone(&context.metrics), subscribe);
        }
    }

    /// Follows one sentinel until its connection is lost.
    async fn subscribe(&self, connect_options: &ConnectOptions, connector: &Weak<Connector>) -> Result<(), RedisError> {
        let client = connect_options.client()?;
        let timed_out = |_| RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let mut subscription = timeout(TIMEOUT, client.get_async_pubsub()).await.map_err(timed_out)??;
        for channel in [SWITCH, PROMOTION] {
            timeout(TIMEOUT, subscription.subscribe(channel))
                .await
                .map_err(timed_out)??;
        }
        let mut messages = subscription.into_on_message();
        loop {
            // At first, after each announcement, which carries no epoch, and after a silence, in which one may be missed.
            self.record(
                timeout(TIMEOUT, query_sentinel(connect_options, &self.name))
                    .await
                    .map_err(timed_out)??,
            );
            let Some(connector) = connector.upgrade() else {
                return Ok(());
            };
            if let Some(endpoint) = self.latest_primary() {
                connector.switch_to(&endpoint);
            }
            drop(connector);
            match timeout(SILENCE_MAX, messages.next()).await {
                Ok(Some(message)) if message.get_channel_name() == PROMOTION => {
                    self.record_promotion(&message.get_payload::<String>().unwrap_or_default());
                }
                Ok(Some(_)) | Err(_) => {}
                Ok(None) => return Ok(()),
            }
        }
    }
}

/// Asks one sentinel for the primary.
async fn query_sentinel(connect_options: &ConnectOptions, name: &str) -> Result<PrimaryReport, RedisError> {
    let mut connection = connect_options.client()?.get_multiplexed_async_connection().await?;
    let mut queries = redis::pipe();
    queries.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    // Its address stays that of the old primary until all replicas follow the new one; its epoch changes at once.
    queries.cmd("SENTINEL").arg("MASTER").arg(name);
    let (address, fields): (Option<(String, u16)>, HashMap<String, String>) =
        queries.query_async(&mut connection).await?;
    let epoch = fields.get("config-epoch").and_then(|text| text.parse().ok());
    match address {
        Some((name, port)) => Ok(PrimaryReport {
            endpoint: Endpoint { name, port },
            epoch: epoch.unwrap_or_default(),
        }),
        _ => Err(RedisError::from((
            redis::ErrorKind::UnexpectedReturnType,
            "the sentinel does not know the primary",
        ))),
    }
}

impl PrimaryLocator for Sentinels {
    fn locate(&self) -> BoxFuture<'_, Result<ConnectOptions, String>> {
        Box::pin(self.locate_primary())
    }

    fn current_primary(&self) -> Option<Endpoint> {
        self.latest_primary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::connection::endpoint::StoreUrl;

    fn sentinels(last_known: Option<&str>) -> Sentinels {
        let Some(StoreUrl::Sentinel {
            sentinels,
            connect_options,
            name,
            primary,
        }) = StoreUrl::parse("redis+sentinel://h:26379/mymaster")
        else {
            panic!("sentinels");
        };
        Sentinels::new(sentinels, connect_options, name, primary, last_known)
    }

    fn report(port: u16, epoch: u64) -> PrimaryReport {
        let name = "10.0.0.1".to_owned();
        PrimaryReport {
            endpoint: Endpoint { name, port },
            epoch,
        }
    }

    #[test]
    fn what_was_kept_is_believed_until_a_sentinel_speaks() {
        let last_known = |last_known: &str| sentinels(Some(last_known));
        assert_eq!(
            last_known("mymaster h:26379 10.0.0.1:4\n")
                .latest_primary()
                .map(|endpoint| endpoint.port),
            Some(4)
        );
        for useless in [
            "",
            "mymaster",
            "mymaster h:26379",
            "mymaster h:26379 4",
            "mymaster h:26379 10.0.0.1:0",
            "mymaster h:26379 :4",
            "other h:26379 10.0.0.1:4",
            "mymaster other:26379 10.0.0.1:4",
        ] {
            assert!(last_known(useless).latest_primary().is_none(), "{useless:?}");
        }
        let sentinels = last_known("mymaster h:26379 10.0.0.1:4");
        assert!(sentinels.uses_last_known());
        sentinels.record(report(5, 0));
        assert!(!sentinels.uses_last_known());
        assert_eq!(
            sentinels.known_primary().as_deref(),
            Some("mymaster h:26379 10.0.0.1:5")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_announced_counts_until_it_is_so_or_too_long_ago() {
        let sentinels = sentinels(None);
        let port = || sentinels.latest_primary().map(|endpoint| endpoint.port);
        assert_eq!(port(), None);
        sentinels.record(report(1, 7));
        for others in ["slave 10.0.0.1:2 10.0.0.1 2 @ other 10.0.0.1 1", "slave x", ""] {
            sentinels.record_promotion(others);
            assert_eq!(port(), Some(1), "{others}");
        }
        let payload = "slave 10.0.0.1:2 10.0.0.1 2 @ mymaster 10.0.0.1 1";
        sentinels.record_promotion(payload);
        assert_eq!(port(), Some(2));
        // Other sentinels do not know it yet.
        sentinels.record(report(1, 7));
        assert_eq!(port(), Some(2));
        tokio::time::advance(PROMOTION_TTL).await;
        assert_eq!(port(), Some(1));
        sentinels.record_promotion(payload);
        sentinels.record(report(3, 8));
        assert_eq!(port(), Some(3));
        // A sentinel that was cut off reports an old primary.
        sentinels.record(report(2, 7));
        assert_eq!(port(), Some(3));
    }
}
