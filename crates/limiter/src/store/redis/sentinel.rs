//! Finds the primary that sentinels watch over, and follows it when they choose another.

use super::link::{Link, in_words};
use super::servers::{Access, Host};
use super::supervised;
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
pub(super) struct Sentinels {
    hosts: Vec<Host>,
    access: Access,
    name: String,
    primary: Access,
    /// Where they named it to another before this one began: for as long as none of them says anything.
    kept: Option<Host>,
    /// Where the primary is, as the best informed has said.
    last: Mutex<Option<Word>>,
    /// Where it is about to be, and until when that is believed.
    next: Mutex<Option<(Word, Instant)>>,
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

/// What the one that was elected to says when it has made another server the primary. The others, and itself, agree on that
/// only when it has looked at that server again, a second later.
const PROMOTION: &str = "+failover-state-wait-promotion";

/// How long that may take. If it never comes, the primary is where it was.
const PROMISED: Duration = Duration::from_secs(5);

impl Sentinels {
    /// `kept`: what another with the same sentinels [has told](Self::named) before.
    pub(super) fn new(hosts: Vec<Host>, access: Access, name: String, primary: Access, kept: Option<&str>) -> Self {
        let sentinels = Self {
            hosts,
            // What they announce comes as messages either way, and old ones speak no other.
            access: access.with_protocol(ProtocolVersion::RESP2),
            name,
            primary,
            kept: None,
            last: Mutex::default(),
            next: Mutex::default(),
        };
        let kept = kept.and_then(|kept| kept.trim().strip_prefix(&sentinels.whose()));
        Self {
            kept: kept.and_then(|host| Host::read(host, None)),
            ..sentinels
        }
    }

    /// The server that they named, as words to be kept for a start while none of them answers: whose primary it is, by name
    /// and sentinels, and its address.
    pub(super) fn named(&self) -> Option<String> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let host = last.as_ref().map(|last| &last.host).or(self.kept.as_ref())?;
        Some(format!("{}{host}", self.whose()))
    }

    fn whose(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        format!("{} {} ", self.name, hosts.join(","))
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
        let (mut complaint, mut is_told) = ("no sentinel answers".to_owned(), false);
        while let Some(answer) = asking.join_next().await {
            match answer {
                Ok(Some(Ok(word))) => self.heard(word),
                Ok(Some(Err(error))) => {
                    complaint = format!("a sentinel answers: {}", in_words(&error, self.access.password()));
                    // One that is away is told of by the system, and not by itself.
                    is_told |= !error.is_io_error();
                }
                _ => {}
            }
        }
        match self.believed() {
            // Somebody must mend that before it is needed.
            Some(_) if is_told && self.is_kept() => Err(complaint),
            Some(host) => Ok(self.primary.to(&host)),
            None => Err(complaint),
        }
    }

    /// Whether no sentinel has said anything to this one yet, and it goes by what was kept.
    pub(super) fn is_kept(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_none() && self.kept.is_some()
    }

    /// Takes what a sentinel says, unless another knew better: one that was cut off speaks of what was.
    fn heard(&self, word: Word) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|last| last.epoch <= word.epoch) {
            *last = Some(word);
        }
    }

    /// Takes what a sentinel announces: `slave NAME ADDRESS PORT @ PRIMARY …` is about to be the primary.
    fn promised(&self, announced: &str) {
        let words: Vec<&str> = announced.split(' ').collect();
        if let [_, _, name, port, "@", of, ..] = *words
            && of == self.name
            && let Some(host) = Host::read(&format!("{name}:{port}"), None)
        {
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let epoch = last.as_ref().map_or(0, |last| last.epoch) + 1;
            drop(last);
            let promise = (Word { host, epoch }, Instant::now() + PROMISED);
            *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(promise);
        }
    }

    /// Where the primary is: as the best informed has said, or was just announced.
    pub(super) fn believed(&self) -> Option<Host> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.as_ref();
        let is_news = |next: &Word| last.is_none_or(|last| next.epoch > last.epoch);
        match &*next {
            Some((next, until)) if is_news(next) && Instant::now() < *until => Some(next.host.clone()),
            _ => last.map(|last| &last.host).or(self.kept.as_ref()).cloned(),
        }
    }

    /// Listens to every sentinel for as long as there is a link, and has it leave a server that is the primary no more.
    pub(super) fn follow(self: &Arc<Self>, link: &Arc<Link>, runtime: &Handle) {
        for host in &self.hosts {
            let (sentinels, weak) = (Arc::clone(self), Arc::downgrade(link));
            let access = self.access.to(host);
            let listen = move || {
                let (sentinels, link, access) = (Arc::clone(&sentinels), Weak::clone(&weak), access.clone());
                async move {
                    while link.strong_count() > 0 {
                        // Whatever went wrong, it is asked again soon. When all are away, what is connected stays.
                        let _ = sentinels.listen(&access, &link).await;
                        sleep(PAUSE).await;
                    }
                }
            };
            supervised::begin(runtime, link.figures(), listen);
        }
    }

    /// Listens to one sentinel until it is silent.
    async fn listen(&self, access: &Access, link: &Weak<Link>) -> Result<(), RedisError> {
        let client = access.client()?;
        let quiet = |_| RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        let mut subscription = timeout(PATIENCE, client.get_async_pubsub()).await.map_err(quiet)??;
        for channel in [SWITCH, PROMOTION] {
            timeout(PATIENCE, subscription.subscribe(channel))
                .await
                .map_err(quiet)??;
        }
        let mut messages = subscription.into_on_message();
        loop {
            // First, whenever it announces something, and whenever it was silent: an announcement does not say how well
            // informed it is, and one may have been missed.
            self.heard(timeout(PATIENCE, ask(access, &self.name)).await.map_err(quiet)??);
            let Some(link) = link.upgrade() else { return Ok(()) };
            if let Some(host) = self.believed() {
                link.leave_unless(&host);
            }
            drop(link);
            match timeout(SILENCE, messages.next()).await {
                Ok(Some(message)) if message.get_channel_name() == PROMOTION => {
                    self.promised(&message.get_payload::<String>().unwrap_or_default());
                }
                Ok(Some(_)) | Err(_) => {}
                Ok(None) => return Ok(()),
            }
        }
    }
}

/// Where one sentinel says that the primary is.
async fn ask(access: &Access, name: &str) -> Result<Word, RedisError> {
    let mut connection = access.client()?.get_multiplexed_async_connection().await?;
    let mut asking = redis::pipe();
    asking.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    // Its address is that of the old primary until all replicas follow the new one; its epoch is not.
    asking.cmd("SENTINEL").arg("MASTER").arg(name);
    let (address, fields): (Option<(String, u16)>, HashMap<String, String>) =
        asking.query_async(&mut connection).await?;
    let epoch = fields.get("config-epoch").and_then(|text| text.parse().ok());
    match address {
        Some((name, port)) => Ok(Word {
            host: Host { name, port },
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
    use super::super::servers::Servers;
    use super::*;

    fn sentinels(kept: Option<&str>) -> Sentinels {
        let Some(Servers::Sentinel {
            sentinels,
            access,
            name,
            primary,
        }) = Servers::read("redis+sentinel://h:26379/mymaster")
        else {
            panic!("sentinels");
        };
        Sentinels::new(sentinels, access, name, primary, kept)
    }

    fn word(port: u16, epoch: u64) -> Word {
        let name = "10.0.0.1".to_owned();
        Word {
            host: Host { name, port },
            epoch,
        }
    }

    #[test]
    fn what_was_kept_is_believed_until_a_sentinel_speaks() {
        let kept = |kept: &str| sentinels(Some(kept));
        assert_eq!(
            kept("mymaster h:26379 10.0.0.1:4\n").believed().map(|host| host.port),
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
            assert!(kept(useless).believed().is_none(), "{useless:?}");
        }
        let sentinels = kept("mymaster h:26379 10.0.0.1:4");
        assert!(sentinels.is_kept());
        sentinels.heard(word(5, 0));
        assert!(!sentinels.is_kept());
        assert_eq!(sentinels.named().as_deref(), Some("mymaster h:26379 10.0.0.1:5"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_announced_counts_until_it_is_so_or_too_long_ago() {
        let sentinels = sentinels(None);
        let port = || sentinels.believed().map(|host| host.port);
        assert_eq!(port(), None);
        sentinels.heard(word(1, 7));
        for others in ["slave 10.0.0.1:2 10.0.0.1 2 @ other 10.0.0.1 1", "slave x", ""] {
            sentinels.promised(others);
            assert_eq!(port(), Some(1), "{others}");
        }
        let announced = "slave 10.0.0.1:2 10.0.0.1 2 @ mymaster 10.0.0.1 1";
        sentinels.promised(announced);
        assert_eq!(port(), Some(2));
        // Others have not heard of it yet.
        sentinels.heard(word(1, 7));
        assert_eq!(port(), Some(2));
        tokio::time::advance(PROMISED).await;
        assert_eq!(port(), Some(1));
        sentinels.promised(announced);
        sentinels.heard(word(3, 8));
        assert_eq!(port(), Some(3));
        // One that was cut off speaks of what was.
        sentinels.heard(word(2, 7));
        assert_eq!(port(), Some(3));
    }
}
