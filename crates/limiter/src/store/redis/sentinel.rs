//! Finds the primary that sentinels watch over, and follows it when they choose another.

use super::link::{Link, in_words};
use super::servers::{Access, Host};
use futures_util::StreamExt;
use redis::{ProtocolVersion, RedisError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The sentinels of one primary.
#[derive(Debug)]
pub(super) struct Sentinels {
    hosts: Vec<Host>,
    access: Access,
    name: String,
    primary: Access,
    /// Where the primary is, as the best informed has said.
    last: Mutex<Option<Word>>,
}

/// Where a sentinel says that the primary is.
#[derive(Debug)]
struct Word {
    host: Host,
    /// Grows whenever another server is made the primary: of two sentinels the one with the higher number is right.
    epoch: u64,
}

/// How long a sentinel may take to answer.
const PATIENCE: Duration = Duration::from_millis(300);

/// How long nothing may be heard from a sentinel before it is asked again: it may have gone without a word.
const SILENCE: Duration = Duration::from_secs(5);

/// The pause before a sentinel that is away is tried again.
const PAUSE: Duration = Duration::from_millis(500);

/// What sentinels say when another server is the primary.
const SWITCH: &str = "+switch-master";

impl Sentinels {
    pub(super) fn new(hosts: Vec<Host>, access: Access, name: String, primary: Access) -> Self {
        Self {
            hosts,
            // What they announce comes as messages either way, and old ones speak no other.
            access: access.with_protocol(ProtocolVersion::RESP2),
            name,
            primary,
            last: Mutex::default(),
        }
    }

    /// How the primary is reached: as the best informed of the sentinels says that answer. If none does, where it last was.
    ///
    /// # Errors
    /// That nobody knows.
    pub(super) async fn primary(&self) -> Result<Access, String> {
        let mut asking = JoinSet::new();
        for host in &self.hosts {
            let (access, name) = (self.access.to(host), self.name.clone());
            asking.spawn(async move { timeout(PATIENCE, ask(&access, &name)).await.ok() });
        }
        let mut complaint = "no sentinel answers".to_owned();
        while let Some(answer) = asking.join_next().await {
            match answer {
                Ok(Some(Ok(word))) => drop(self.heard(word)),
                Ok(Some(Err(error))) => {
                    complaint = format!("a sentinel answers: {}", in_words(&error, self.access.password()));
                }
                _ => {}
            }
        }
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|word| self.primary.to(&word.host)).ok_or(complaint)
    }

    /// Takes what a sentinel says, unless another knew better: one that was cut off speaks of what was. Says where the
    /// primary then is.
    fn heard(&self, word: Word) -> Host {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(last) if last.epoch > word.epoch => last.host.clone(),
            _ => last.insert(word).host.clone(),
        }
    }

    /// Listens to every sentinel for as long as there is a link, and has it leave a server that is the primary no more.
    pub(super) fn follow(self: &Arc<Self>, link: &Arc<Link>, runtime: &Handle) {
        for host in &self.hosts {
            let (sentinels, link) = (Arc::clone(self), Arc::downgrade(link));
            let access = self.access.to(host);
            runtime.spawn(async move {
                while link.strong_count() > 0 {
                    // Whatever went wrong, it is asked again soon. When all are away, what is connected stays.
                    let _ = sentinels.listen(&access, &link).await;
                    sleep(PAUSE).await;
                }
            });
        }
    }

    /// Listens to one sentinel until it is silent.
    async fn listen(&self, access: &Access, link: &Weak<Link>) -> Result<(), RedisError> {
        let client = access.client()?;
        let quiet = |_| RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let mut subscription = timeout(PATIENCE, client.get_async_pubsub()).await.map_err(quiet)??;
        timeout(PATIENCE, subscription.subscribe(SWITCH))
            .await
            .map_err(quiet)??;
        let mut messages = subscription.into_on_message();
        loop {
            // First, whenever it announces something, and whenever it was silent: an announcement does not say how well
            // informed it is, and one may have been missed.
            let word = timeout(PATIENCE, ask(access, &self.name)).await.map_err(quiet)??;
            let Some(link) = link.upgrade() else { return Ok(()) };
            link.leave_unless(&self.heard(word));
            drop(link);
            if let Ok(None) = timeout(SILENCE, messages.next()).await {
                return Ok(());
            }
        }
    }
}

/// Where one sentinel says that the primary is.
async fn ask(access: &Access, name: &str) -> Result<Word, RedisError> {
    let mut connection = access.client()?.get_multiplexed_async_connection().await?;
    let mut command = redis::cmd("SENTINEL");
    let fields: HashMap<String, String> = command.arg("MASTER").arg(name).query_async(&mut connection).await?;
    let number = |key: &str| fields.get(key).and_then(|text| text.parse::<u64>().ok());
    let host = fields.get("ip").cloned();
    let port = number("port").and_then(|port| u16::try_from(port).ok());
    match (host, port) {
        (Some(name), Some(port)) => Ok(Word {
            host: Host { name, port },
            epoch: number("config-epoch").unwrap_or_default(),
        }),
        _ => Err(RedisError::from((
            redis::ErrorKind::UnexpectedReturnType,
            "the sentinel does not say where the primary is",
        ))),
    }
}
