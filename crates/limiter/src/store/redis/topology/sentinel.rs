//! Finds the primary that sentinels watch over, and follows it when they choose another.

use crate::store::redis::connection::connector::{Connector, error_text};
use crate::store::redis::connection::endpoint::{ConnectOptions, Endpoint};
use crate::store::redis::supervise::spawn_supervised;
use futures_util::StreamExt;
use redis::{ProtocolVersion, RedisError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// The sentinels of one primary.
#[derive(Debug)]
pub(crate) struct Sentinels {
    endpoints: Vec<Endpoint>,
    connect_options: ConnectOptions,
    name: String,
    primary: ConnectOptions,
    /// Where they named it to another before this one began: for as long as none of them says anything.
    last_known: Option<Endpoint>,
    /// Where the primary is, as the best informed has said.
    last: Mutex<Option<PrimaryReport>>,
    /// Where it is about to be, and until when that is believed.
    next: Mutex<Option<(PrimaryReport, Instant)>>,
}

/// Where a sentinel says that the primary is.
#[derive(Debug)]
struct PrimaryReport {
    endpoint: Endpoint,
    /// Grows whenever another server is made the primary: of two sentinels the one with the higher number is right.
    epoch: u64,
}

/// How long a sentinel may take to answer.
const TIMEOUT: Duration = Duration::from_millis(300);

/// How long nothing may be heard from a sentinel before it is asked again: it may have gone without a word.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The pause before a sentinel that is away is tried again.
const BACKOFF: Duration = Duration::from_millis(500);

/// What sentinels say when another server is the primary.
const SWITCH: &str = "+switch-master";

/// What the one that was elected to says when it has made another server the primary. The others, and itself, agree on that
/// only when it has looked at that server again, a second later.
const PROMOTION: &str = "+failover-state-wait-promotion";

/// How long that may take. If it never comes, the primary is where it was.
const PROMOTION_TTL: Duration = Duration::from_secs(5);

impl Sentinels {
    /// `kept`: what another with the same sentinels [has told](Self::named) before.
    pub(crate) fn new(
        endpoints: Vec<Endpoint>,
        connect_options: ConnectOptions,
        name: String,
        primary: ConnectOptions,
        last_known: Option<&str>,
    ) -> Self {
        let sentinels = Self {
            endpoints,
            // What they announce comes as messages either way, and old ones speak no other.
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

    /// The server that they named, as words to be kept for a start while none of them answers: whose primary it is, by name
    /// and sentinels, and its address.
    pub(crate) fn known_primary(&self) -> Option<String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let endpoint = last.as_ref().map(|last| &last.endpoint).or(self.last_known.as_ref())?;
        Some(format!("{}{endpoint}", self.identity()))
    }

    fn identity(&self) -> String {
        let endpoints: Vec<String> = self.endpoints.iter().map(Endpoint::to_string).collect();
        format!("{} {} ", self.name, endpoints.join(","))
    }

    /// How the primary is reached: as the best informed of the sentinels says that answer. If none does, where it last was.
    ///
    /// # Errors
    /// That nobody knows.
    pub(crate) async fn primary(&self) -> Result<ConnectOptions, String> {
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
                    // One that is away is told of by the system, and not by itself.
                    answered_with_error |= !error.is_io_error();
                }
                _ => {}
            }
        }
        match self.current_primary() {
            // Somebody must mend that before it is needed.
            Some(_) if answered_with_error && self.uses_last_known() => Err(last_error),
            Some(endpoint) => Ok(self.primary.to(&endpoint)),
            None => Err(last_error),
        }
    }

    /// Whether no sentinel has said anything to this one yet, and it goes by what was kept.
    pub(crate) fn uses_last_known(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_none() && self.last_known.is_some()
    }

    /// Takes what a sentinel says, unless another knew better: one that was cut off speaks of what was.
    fn record(&self, report: PrimaryReport) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|last| last.epoch <= report.epoch) {
            *last = Some(report);
        }
    }

    /// Takes what a sentinel announces: `slave NAME ADDRESS PORT @ PRIMARY …` is about to be the primary.
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

    /// Where the primary is: as the best informed has said, or was just announced.
    pub(crate) fn current_primary(&self) -> Option<Endpoint> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.as_ref();
        let is_newer = |next: &PrimaryReport| last.is_none_or(|last| next.epoch > last.epoch);
        match &*next {
            Some((next, until)) if is_newer(next) && Instant::now() < *until => Some(next.endpoint.clone()),
            _ => last.map(|last| &last.endpoint).or(self.last_known.as_ref()).cloned(),
        }
    }

    /// Listens to every sentinel for as long as there is a link, and has it leave a server that is the primary no more.
    pub(crate) fn subscribe_all(self: &Arc<Self>, connector: &Arc<Connector>, runtime: &Handle) {
        for endpoint in &self.endpoints {
            let (sentinels, weak) = (Arc::clone(self), Arc::downgrade(connector));
            let connect_options = self.connect_options.to(endpoint);
            let subscribe = move || {
                let (sentinels, connector, connect_options) =
                    (Arc::clone(&sentinels), Weak::clone(&weak), connect_options.clone());
                async move {
                    while connector.strong_count() > 0 {
                        // Whatever went wrong, it is asked again soon. When all are away, what is connected stays.
                        let _ = sentinels.subscribe(&connect_options, &connector).await;
                        sleep(BACKOFF).await;
                    }
                }
            };
            spawn_supervised(runtime, connector.metrics(), subscribe);
        }
    }

    /// Listens to one sentinel until it is silent.
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
            // First, whenever it announces something, and whenever it was silent: an announcement does not say how well
            // informed it is, and one may have been missed.
            self.record(
                timeout(TIMEOUT, query_sentinel(connect_options, &self.name))
                    .await
                    .map_err(timed_out)??,
            );
            let Some(connector) = connector.upgrade() else {
                return Ok(());
            };
            if let Some(endpoint) = self.current_primary() {
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

/// Where one sentinel says that the primary is.
async fn query_sentinel(connect_options: &ConnectOptions, name: &str) -> Result<PrimaryReport, RedisError> {
    let mut connection = connect_options.client()?.get_multiplexed_async_connection().await?;
    let mut queries = redis::pipe();
    queries.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    // Its address is that of the old primary until all replicas follow the new one; its epoch is not.
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
            "the sentinel does not say where the primary is",
        ))),
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
                .current_primary()
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
            assert!(last_known(useless).current_primary().is_none(), "{useless:?}");
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
        let port = || sentinels.current_primary().map(|endpoint| endpoint.port);
        assert_eq!(port(), None);
        sentinels.record(report(1, 7));
        for others in ["slave 10.0.0.1:2 10.0.0.1 2 @ other 10.0.0.1 1", "slave x", ""] {
            sentinels.record_promotion(others);
            assert_eq!(port(), Some(1), "{others}");
        }
        let payload = "slave 10.0.0.1:2 10.0.0.1 2 @ mymaster 10.0.0.1 1";
        sentinels.record_promotion(payload);
        assert_eq!(port(), Some(2));
        // Others have not heard of it yet.
        sentinels.record(report(1, 7));
        assert_eq!(port(), Some(2));
        tokio::time::advance(PROMOTION_TTL).await;
        assert_eq!(port(), Some(1));
        sentinels.record_promotion(payload);
        sentinels.record(report(3, 8));
        assert_eq!(port(), Some(3));
        // One that was cut off speaks of what was.
        sentinels.record(report(2, 7));
        assert_eq!(port(), Some(3));
    }
}
