//! A cluster: who has which slot, as its servers tell, and one [`Node`] for each that has any of ours.

use super::line::{Failure, text};
use super::link::{Finder, Link, in_words, is_refused_entry};
use super::node::{Node, Span};
use super::replicas::Replicas;
use super::servers::{Access, Host};
use super::supervised;
use super::view::{Called, View};
use super::work::{Deadline, Done, Manner, Reply, Shared, Work};
use super::{Functions, ReadFrom};
use crate::store::{Refusal, StoreError};
use futures_util::future::join_all;
use redis::{RedisError, Value};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tollgate_core::Timestamp;

/// The servers of a cluster.
pub(super) struct Cluster {
    seeds: Vec<Host>,
    access: Access,
    functions: Functions,
    read_from: ReadFrom,
    shared: Arc<Shared>,
    /// The slot of each tag.
    slots: Box<[u16]>,
    map: RwLock<Map>,
    /// Whether the map was ever drawn.
    drawn: watch::Sender<Drawn>,
    /// Until when it is waited for at the start.
    begun_by: Instant,
    /// That the map may be wrong.
    doubt: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drawn {
    /// Servers are being asked for the first time.
    NotYet,
    /// Nobody has answered yet.
    InVain,
    /// It was.
    Once,
}

#[derive(Default)]
struct Map {
    /// Who has the slot of each tag.
    owners: Vec<Option<Arc<Node>>>,
    nodes: HashMap<Host, Member>,
    /// What servers told of all slots, and where others were since.
    views: Vec<View>,
    elsewhere: HashMap<u16, Host>,
    /// All servers anybody told of.
    known: Vec<Host>,
    /// How often the breakers of servers that have left have opened or closed.
    left_changes: u64,
    /// Why it is not drawn.
    complaint: String,
}

struct Member {
    node: Arc<Node>,
    /// Whether somebody was sent there since the map was last drawn.
    is_wanted: bool,
}

/// Why a server did not say what it knows.
struct Complaint {
    words: String,
    /// Whether it did not let us in.
    is_outside: bool,
}

impl Complaint {
    fn of(words: &str) -> Self {
        Self {
            words: words.to_owned(),
            is_outside: false,
        }
    }
}

/// How long a server may take to say what it knows, and how long the others then still may.
const PATIENCE: Duration = Duration::from_millis(300);
const AFTER_THE_FIRST: Duration = Duration::from_millis(50);

/// How often the map is drawn: at most, while there is doubt, and at least.
const AT_MOST_EVERY: Duration = Duration::from_millis(200);
const AT_LEAST_EVERY: Duration = Duration::from_secs(5);

/// The same where servers do not let us in: they may lock out who tries too often.
const OUTSIDE_EVERY: Duration = Duration::from_secs(1);

/// How many servers are asked, and with fewer connections than this also ones that there is no connection to.
const ASKED_MOST: usize = 8;
const CONNECTED_ENOUGH: usize = 3;

impl Cluster {
    /// Begins to look for its servers at once.
    pub(super) fn new(
        seeds: Vec<Host>,
        access: Access,
        functions: Functions,
        read_from: ReadFrom,
        shared: Arc<Shared>,
    ) -> Arc<Self> {
        let slots = shared.keys.slots();
        let map = Map {
            owners: vec![None; slots.len()],
            complaint: "not connected yet".to_owned(),
            ..Map::default()
        };
        let cluster = Arc::new(Self {
            seeds,
            access,
            functions,
            read_from,
            slots,
            map: RwLock::new(map),
            drawn: watch::Sender::new(Drawn::NotYet),
            begun_by: Instant::now() + shared.deadline,
            doubt: Arc::default(),
            shared,
        });
        let weak = Arc::downgrade(&cluster);
        let keep = move || keep(Weak::clone(&weak));
        supervised::begin(&cluster.shared.runtime, Arc::clone(&cluster.shared.figures), keep);
        cluster
    }

    pub(super) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Does works of one mode, each where its slot is.
    pub(super) async fn ask(&self, works: &[Work], deadline: Deadline) -> Vec<Result<Reply, StoreError>> {
        let mut groups: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
        let mut done: Vec<Done> = works.iter().map(|_| Err(StoreError::Unavailable.into())).collect();
        for (place, work) in works.iter().enumerate() {
            let Some(node) = self.owner(work.tag(), deadline).await else {
                continue;
            };
            match groups.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &node)) {
                Some((_, places)) => places.push(place),
                None => groups.push((node, vec![place])),
            }
        }
        let asked = groups.iter().map(|(node, places)| {
            let works = places.iter().filter_map(|&place| works.get(place).cloned());
            node.ask_or_look(works.collect(), deadline)
        });
        for ((_, places), replies) in groups.iter().zip(join_all(asked).await) {
            for (&place, reply) in places.iter().zip(replies) {
                if let Some(done) = done.get_mut(place) {
                    *done = reply;
                }
            }
        }
        let followed = works
            .iter()
            .zip(done)
            .map(|(work, done)| self.follow(work, done, deadline));
        join_all(followed).await
    }

    /// Goes where a server says that it is to be asked: each such word is heeded once. None of them has done anything.
    async fn follow(&self, work: &Work, mut done: Done, deadline: Deadline) -> Result<Reply, StoreError> {
        let (mut moved, mut asked, mut alone) = (false, false, false);
        loop {
            let Failure { error, elsewhere } = match done {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let (node, manner) = match (error, elsewhere) {
                (StoreError::Refused(Refusal::Moved), Some(host)) if !moved => {
                    moved = true;
                    (Some(self.moved(work.tag(), &host)), Manner::Together)
                }
                (StoreError::Refused(Refusal::Ask), Some(host)) if !asked => {
                    asked = true;
                    (Some(self.server_at(&host)), Manner::Asking)
                }
                (StoreError::Refused(Refusal::TryAgain), _) if !alone && !asked => {
                    alone = true;
                    (self.owner_now(work.tag()), Manner::Alone)
                }
                _ => (None, Manner::Together),
            };
            let Some(node) = node else {
                self.doubt_if(error);
                self.shared.count(error);
                return Err(error);
            };
            self.shared.figures.redirects.add(1);
            let again = Work { manner, ..work.clone() };
            done = node
                .ask(vec![again], deadline)
                .await
                .pop()
                .unwrap_or_else(|| Err(StoreError::Nonsense.into()));
        }
    }

    /// Who has the slot of a tag, as soon as anybody has told. Nothing if nobody has it.
    async fn owner(&self, tag: u16, deadline: Deadline) -> Option<Arc<Node>> {
        if let Some(node) = self.owner_now(tag) {
            return Some(node);
        }
        self.begun(deadline).await;
        self.owner_now(tag)
    }

    /// Waits until it is known whether there is a map. Later than one deadline after the start nobody does: a cluster that
    /// is away then may be so for long.
    async fn begun(&self, deadline: Deadline) {
        if *self.drawn.borrow() == Drawn::NotYet {
            let mut drawn = self.drawn.subscribe();
            let until = deadline.until.min(self.begun_by);
            let _ = timeout_at(until, drawn.wait_for(|drawn| *drawn != Drawn::NotYet)).await;
        }
    }

    fn owner_now(&self, tag: u16) -> Option<Arc<Node>> {
        self.read().owners.get(usize::from(tag))?.clone()
    }

    /// Learns that a tag's slot is elsewhere.
    fn moved(&self, tag: u16, host: &Host) -> Arc<Node> {
        let mut map = self.write();
        let node = self.node_at(&mut map, host);
        let slot = self.slots.get(usize::from(tag));
        for (other, owner) in self.slots.iter().zip(&mut map.owners) {
            if Some(other) == slot {
                *owner = Some(Arc::clone(&node));
            }
        }
        drop(map);
        self.doubt.notify_one();
        node
    }

    /// Who has a slot, of a tag of ours or not, as soon as anybody has told. Nothing if nobody has it.
    pub(super) async fn owner_of(&self, slot: u16, deadline: Deadline) -> Option<Arc<Node>> {
        self.begun(deadline).await;
        let map = self.read();
        let host = map.elsewhere.get(&slot).or_else(|| View::owner(&map.views, slot))?;
        match map.nodes.get(host) {
            Some(member) if member.is_wanted => Some(Arc::clone(&member.node)),
            _ => {
                let host = host.clone();
                drop(map);
                Some(self.server_at(&host))
            }
        }
    }

    /// Learns that a slot is elsewhere.
    pub(super) fn slot_moved(&self, slot: u16, host: &Host) -> Arc<Node> {
        let mut map = self.write();
        map.elsewhere.insert(slot, host.clone());
        let node = self.node_at(&mut map, host);
        drop(map);
        self.doubt.notify_one();
        node
    }

    pub(super) fn server_at(&self, host: &Host) -> Arc<Node> {
        self.node_at(&mut self.write(), host)
    }

    /// Draws the map anew if an error may mean that it is wrong.
    pub(super) fn doubt_if(&self, error: StoreError) {
        if is_doubtful(error) {
            self.doubt.notify_one();
        }
    }

    fn node_at(&self, map: &mut Map, host: &Host) -> Arc<Node> {
        let member = map.nodes.entry(host.clone()).or_insert_with(|| {
            let link = Link::new(
                Finder::Fixed(self.access.to(host)),
                self.functions,
                self.shared.deadline,
                self.shared.clock.clone(),
                Arc::clone(&self.shared.figures),
                self.shared.runtime.clone(),
            );
            let replicas = Replicas::wanted(self.read_from, &self.access, self.functions);
            Member {
                node: Node::new(link, Arc::clone(&self.shared), Span::OneTag, replicas),
                is_wanted: true,
            }
        });
        member.is_wanted = true;
        Arc::clone(&member.node)
    }

    /// The servers that have slots of ours, in the order of their addresses.
    pub(super) fn nodes(&self) -> Vec<(Host, Arc<Node>)> {
        let map = self.read();
        let nodes = map
            .nodes
            .iter()
            .map(|(host, member)| (host.clone(), Arc::clone(&member.node)));
        let mut nodes: Vec<(Host, Arc<Node>)> = nodes.collect();
        nodes.sort_by_key(|(host, _)| host.to_string());
        nodes
    }

    /// How often the breakers of servers that are no members any more have opened or closed.
    pub(super) fn left_changes(&self) -> u64 {
        self.read().left_changes
    }

    /// Whether the servers of all these tags are left alone just now.
    pub(super) fn is_shut(&self, mut tags: impl Iterator<Item = u16>, now: Timestamp) -> bool {
        if *self.drawn.borrow() == Drawn::InVain {
            // There is nobody to ask. It is drawn again and again until there is.
            return true;
        }
        let map = self.read();
        let owner = |tag: u16| map.owners.get(usize::from(tag)).and_then(Option::as_ref);
        let is_shut = tags.all(|tag| owner(tag).is_some_and(|node| node.breaker.is_shut(now)));
        if is_shut {
            // Another may have its slots by now.
            self.doubt.notify_one();
        }
        is_shut
    }

    /// Waits until the map is drawn, for so long at most.
    pub(super) async fn drawn(&self, patience: Duration) {
        let mut drawn = self.drawn.subscribe();
        let _ = timeout(patience, drawn.wait_for(|drawn| *drawn == Drawn::Once)).await;
    }

    /// Which of them cannot be reached, and why.
    pub(super) fn fault(&self) -> Option<String> {
        if *self.drawn.borrow() != Drawn::Once {
            return Some(self.read().complaint.clone());
        }
        let map = self.read();
        let nobody = map.owners.iter().position(Option::is_none);
        let slot = nobody.and_then(|tag| self.slots.get(tag));
        if let Some(slot) = slot {
            return Some(format!("no server of the cluster has slot {slot}"));
        }
        drop(map);
        let mut nodes = self.nodes().into_iter();
        nodes.find_map(|(host, node)| Some(format!("{host}: {}", node.fault()?)))
    }

    /// Draws the map from what servers tell. Says how long to wait at least before it is drawn again.
    async fn draw(&self) -> Duration {
        let views = match self.ask_around().await {
            Ok(views) => views,
            Err(Complaint { words, is_outside }) => {
                self.write().complaint = words;
                self.drawn.send_if_modified(|drawn| {
                    let is_first = *drawn == Drawn::NotYet;
                    if is_first {
                        *drawn = Drawn::InVain;
                    }
                    is_first
                });
                self.doubt.notify_one();
                return if is_outside { OUTSIDE_EVERY } else { AT_MOST_EVERY };
            }
        };
        let mut map = self.write();
        let owners = self.slots.iter().map(|slot| View::owner(&views, *slot));
        let owners = owners.map(|host| host.map(|host| self.node_at(&mut map, host)));
        let owners: Vec<Option<Arc<Node>>> = owners.collect();
        let mut left_changes = 0;
        map.nodes.retain(|_, member| {
            let has_any = owners.iter().flatten().any(|owner| Arc::ptr_eq(owner, &member.node));
            let stays = std::mem::replace(&mut member.is_wanted, false) || has_any;
            if !stays {
                left_changes += member.node.breaker.changes();
            }
            stays
        });
        map.left_changes += left_changes;
        for (host, member) in &map.nodes {
            if let Some(replicas) = &member.node.replicas {
                replicas.are(View::replicas(&views, host), &member.node);
            }
        }
        map.owners = owners;
        map.known = views.iter().flat_map(|view| view.hosts.iter().cloned()).collect();
        map.known.sort_by_key(ToString::to_string);
        map.known.dedup();
        map.views = views;
        map.elsewhere.clear();
        drop(map);
        self.drawn.send_replace(Drawn::Once);
        AT_MOST_EVERY
    }

    /// What servers know of the cluster: those there are connections to, and if these are few also others.
    async fn ask_around(&self) -> Result<Vec<View>, Complaint> {
        let called = match self.access.is_tls() {
            true => Called::ByName,
            false => Called::ByAddress,
        };
        let mut asking = JoinSet::new();
        let mut asked: Vec<Host> = Vec::new();
        for (host, node) in self.nodes() {
            if let Some(mut line) = node.link.line_now()
                && asked.len() < ASKED_MOST
            {
                asked.push(host.clone());
                asking.spawn(async move {
                    let told = timeout(PATIENCE, line.ask(&nodes_command())).await;
                    let told = told.map_err(|_| Complaint::of("did not answer in time"))?;
                    let told = told.map_err(|error| Complaint::of(&error.to_string()))?;
                    Ok((host, told))
                });
            }
        }
        if asked.len() < CONNECTED_ENOUGH {
            let known = self.read().known.clone();
            for host in self.seeds.iter().chain(&known) {
                if asked.contains(host) || asked.len() >= ASKED_MOST {
                    continue;
                }
                asked.push(host.clone());
                let (host, access) = (host.clone(), self.access.to(host));
                asking.spawn(async move {
                    let told = timeout(PATIENCE, ask_anew(&access)).await;
                    let told = told.map_err(|_| Complaint::of("did not answer in time"))?;
                    let told = told.map_err(|error| Complaint {
                        words: in_words(&error, access.password()),
                        is_outside: is_refused_entry(&error),
                    })?;
                    Ok((host, told))
                });
            }
        }
        let mut views = Vec::new();
        let mut complaint = Complaint::of("no server of the cluster answers");
        let mut patience = PATIENCE;
        while let Ok(Some(answer)) = timeout(patience, asking.join_next()).await {
            let answer: Result<(Host, Value), Complaint> =
                answer.unwrap_or_else(|_| Err(Complaint::of("was not asked")));
            match answer.map(|(host, told)| View::read(&text(&told), &host, called)) {
                Ok(view) if !view.claims.is_empty() => {
                    views.push(view);
                    patience = AFTER_THE_FIRST;
                }
                Ok(_) => complaint = Complaint::of("a server of the cluster knows of no slots"),
                Err(why) => {
                    let words = format!("no server of the cluster answers: {}", why.words);
                    complaint = Complaint { words, ..why };
                }
            }
        }
        if views.is_empty() { Err(complaint) } else { Ok(views) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Draws the map at the start, whenever there is doubt, and now and then, for as long as there is a cluster.
async fn keep(cluster: Weak<Cluster>) {
    loop {
        let Some(cluster_now) = cluster.upgrade() else { return };
        let pause = cluster_now.draw().await;
        let doubt = Arc::clone(&cluster_now.doubt);
        drop(cluster_now);
        sleep(pause).await;
        let _ = timeout(AT_LEAST_EVERY, doubt.notified()).await;
    }
}

/// Whether an error may mean that another server has the slot by now.
const fn is_doubtful(error: StoreError) -> bool {
    matches!(
        error,
        StoreError::Unavailable
            | StoreError::Timeout
            | StoreError::Lost
            | StoreError::BreakerOpen
            | StoreError::Refused(
                Refusal::ReadOnly | Refusal::ClusterDown | Refusal::MasterDown | Refusal::Moved | Refusal::Ask
            )
    )
}

fn nodes_command() -> redis::Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("NODES");
    command
}

/// Asks a server that there is no connection to.
async fn ask_anew(access: &Access) -> Result<Value, RedisError> {
    let mut connection = access.client()?.get_multiplexed_async_connection().await?;
    nodes_command().query_async(&mut connection).await
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("seeds", &self.seeds)
            .field("fault", &self.fault())
            .finish_non_exhaustive()
    }
}
