//! A cluster: the owner of each slot, as its servers report it, and one [`Node`] for each owner of a slot in use. It
//! follows MOVED and ASK.

use super::cluster_nodes::{AddressBy, ClusterNodes};
use super::replicas;
use super::slots::slot;
use crate::store::redis::connection::connector::{Connector, EndpointSource};
use crate::store::redis::connection::endpoint::{ConnectOptions, Endpoint};
use crate::store::redis::connection::handshake::{error_text, is_auth_error};
use crate::store::redis::connection::{Failure, value_text};
use crate::store::redis::context::{Deadline, StoreContext};
use crate::store::redis::node::Node;
use crate::store::redis::node::call_group::KeyScope;
use crate::store::redis::node::request::{NodeReply, NodeRequest, NodeResult, Routing};
use crate::store::redis::supervise::spawn_supervised;
use crate::store::{RedisErrorCode, StoreError};
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
pub(crate) struct Cluster {
    seeds: Vec<Endpoint>,
    connect_options: ConnectOptions,
    context: Arc<StoreContext>,
    /// The slot of each tag.
    slots: Box<[u16]>,
    map: RwLock<Map>,
    /// The state of `map`.
    map_state: watch::Sender<MapState>,
    /// The latest time at which requests wait for the first map.
    first_map_deadline: Instant,
    /// Requests a refresh of the map.
    refresh_requested: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapState {
    /// The first refresh is running.
    Unknown,
    /// No server has answered yet.
    Unreachable,
    /// There is a map.
    Known,
}

#[derive(Default)]
struct Map {
    /// The owner of each tag's slot.
    owners: Vec<Option<Arc<Node>>>,
    nodes: HashMap<Endpoint, Member>,
    /// The servers' reports of all slots, and redirects since then.
    views: Vec<ClusterNodes>,
    redirected: HashMap<u16, Endpoint>,
    /// All servers in those reports.
    known: Vec<Endpoint>,
    /// The state changes of circuit breakers of servers that have left.
    retired_transitions: u64,
    /// The reason why there is no map.
    error: String,
}

struct Member {
    node: Arc<Node>,
    /// True if a redirect led there since the last refresh.
    in_use: bool,
}

/// The reason why a server did not report the topology.
struct TopologyError {
    text: String,
    /// True if it rejects our credentials.
    auth_rejected: bool,
}

impl TopologyError {
    fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            auth_rejected: false,
        }
    }
}

/// The timeout of a report, and the time that the other servers have after the first.
const TIMEOUT: Duration = Duration::from_millis(300);
const STRAGGLER_GRACE: Duration = Duration::from_millis(50);

/// The shortest interval between refreshes while the map may be stale, and the longest in any case.
const REFRESH_MIN: Duration = Duration::from_millis(200);
const REFRESH_MAX: Duration = Duration::from_secs(5);

/// The shortest interval if servers reject our credentials: they may lock out a client that tries too often.
const AUTH_REFRESH: Duration = Duration::from_secs(1);

/// The most servers that are asked; with fewer connections than the second, also servers without one.
const VIEWS_MAX: usize = 8;
const CONNECTED_MIN: usize = 3;

impl Cluster {
    /// Starts the first refresh at once.
    pub(crate) fn new(seeds: Vec<Endpoint>, connect_options: ConnectOptions, context: Arc<StoreContext>) -> Arc<Self> {
        let slots = context.keyspace.tag_slots(slot);
        let map = Map {
            owners: vec![None; slots.len()],
            error: "not connected yet".to_owned(),
            ..Map::default()
        };
        let cluster = Arc::new(Self {
            seeds,
            connect_options,
            slots,
            map: RwLock::new(map),
            map_state: watch::Sender::new(MapState::Unknown),
            first_map_deadline: Instant::now() + context.deadline,
            refresh_requested: Arc::default(),
            context,
        });
        let weak = Arc::downgrade(&cluster);
        let run_refresh = move || run_refresh(Weak::clone(&weak));
        spawn_supervised(
            &cluster.context.runtime,
            Arc::clone(&cluster.context.metrics),
            run_refresh,
        );
        cluster
    }

    pub(crate) const fn context(&self) -> &Arc<StoreContext> {
        &self.context
    }

    /// Sends requests of one operation, each to the owner of its slot.
    pub(crate) async fn send(
        &self,
        requests: Vec<NodeRequest>,
        deadline: Deadline,
    ) -> Vec<Result<NodeReply, StoreError>> {
        let groups = self.by_owner(&requests, deadline).await;
        let sent = groups.iter().map(|(node, indexes)| {
            let requests = indexes.iter().filter_map(|&index| requests.get(index).cloned());
            node.read(requests.collect(), deadline)
        });
        let results = join_all(sent).await;
        self.merge(&requests, &groups, results, deadline).await
    }

    /// Sends requests of one operation in order, as one pipeline to each owner of their slots.
    pub(crate) async fn send_pipeline(&self, requests: &[NodeRequest]) -> Vec<Result<NodeReply, StoreError>> {
        let groups = self.by_owner(requests, self.context.deadline()).await;
        let sent = groups.iter().map(|(node, indexes)| async move {
            let requests = indexes.iter().filter_map(|&index| requests.get(index).cloned());
            node.send_pipeline(requests.collect()).await
        });
        let results = join_all(sent).await;
        // A redirect is followed by one call of its own.
        self.merge(requests, &groups, results, self.context.deadline()).await
    }

    /// The owners of the requests' slots, with the indexes of their requests.
    async fn by_owner(&self, requests: &[NodeRequest], deadline: Deadline) -> Vec<(Arc<Node>, Vec<usize>)> {
        let mut groups: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            let Some(node) = self.owner(request.tag(), deadline).await else {
                continue;
            };
            match groups.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &node)) {
                Some((_, indexes)) => indexes.push(index),
                None => groups.push((node, vec![index])),
            }
        }
        groups
    }

    /// Brings results into the order of their requests, and follows redirects.
    async fn merge(
        &self,
        requests: &[NodeRequest],
        groups: &[(Arc<Node>, Vec<usize>)],
        replies: Vec<Vec<NodeResult>>,
        deadline: Deadline,
    ) -> Vec<Result<NodeReply, StoreError>> {
        let mut results: Vec<NodeResult> = requests.iter().map(|_| Err(StoreError::Unavailable.into())).collect();
        for ((_, indexes), replies) in groups.iter().zip(replies) {
            for (&index, reply) in indexes.iter().zip(replies) {
                if let Some(result) = results.get_mut(index) {
                    *result = reply;
                }
            }
        }
        let redirected = requests
            .iter()
            .zip(results)
            .map(|(request, result)| self.follow_redirects(request, result, deadline));
        join_all(redirected).await
    }

    /// Follows redirects, each kind once: a server that redirects has done nothing.
    async fn follow_redirects(
        &self,
        request: &NodeRequest,
        mut result: NodeResult,
        deadline: Deadline,
    ) -> Result<NodeReply, StoreError> {
        let (mut moved_followed, mut ask_followed, mut retried_solo) = (false, false, false);
        loop {
            let Failure { error, redirect } = match result {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let (node, routing) = match (error, redirect) {
                (StoreError::Server(RedisErrorCode::Moved), Some(endpoint)) if !moved_followed => {
                    moved_followed = true;
                    (Some(self.record_moved(request.tag(), &endpoint)), Routing::Batched)
                }
                (StoreError::Server(RedisErrorCode::Ask), Some(endpoint)) if !ask_followed => {
                    ask_followed = true;
                    (Some(self.node_for_endpoint(&endpoint)), Routing::Asking)
                }
                (StoreError::Server(RedisErrorCode::TryAgain), _) if !retried_solo && !ask_followed => {
                    retried_solo = true;
                    (self.known_owner(request.tag()), Routing::Solo)
                }
                _ => (None, Routing::Batched),
            };
            let Some(node) = node else {
                self.invalidate_on(error);
                self.context.count_error(error);
                return Err(error);
            };
            self.context.metrics.redirects.add(1);
            let again = NodeRequest {
                routing,
                ..request.clone()
            };
            result = node
                .send(vec![again], deadline)
                .await
                .pop()
                .unwrap_or_else(|| Err(StoreError::InvalidReply.into()));
        }
    }

    /// The owner of a tag's slot, after the first refresh. `None` if the slot has none.
    async fn owner(&self, tag: u16, deadline: Deadline) -> Option<Arc<Node>> {
        if let Some(node) = self.known_owner(tag) {
            return Some(node);
        }
        self.wait_for_first_map(deadline).await;
        self.known_owner(tag)
    }

    /// Waits for the first refresh, at most until one deadline after the start: a cluster that is unreachable then may
    /// stay so for long.
    async fn wait_for_first_map(&self, deadline: Deadline) {
        if *self.map_state.borrow() == MapState::Unknown {
            let mut map_state = self.map_state.subscribe();
            let until = deadline.instant.min(self.first_map_deadline);
            let _ = timeout_at(until, map_state.wait_for(|map_state| *map_state != MapState::Unknown)).await;
        }
    }

    fn known_owner(&self, tag: u16) -> Option<Arc<Node>> {
        self.read().owners.get(usize::from(tag))?.clone()
    }

    /// Records a MOVED redirect of a tag's slot.
    fn record_moved(&self, tag: u16, endpoint: &Endpoint) -> Arc<Node> {
        let mut map = self.write();
        let node = self.get_or_connect(&mut map, endpoint);
        let slot = self.slots.get(usize::from(tag));
        for (other, owner) in self.slots.iter().zip(&mut map.owners) {
            if Some(other) == slot {
                *owner = Some(Arc::clone(&node));
            }
        }
        drop(map);
        self.refresh_requested.notify_one();
        node
    }

    /// The owner of any slot, after the first refresh. `None` if it has none.
    pub(crate) async fn slot_owner(&self, slot: u16, deadline: Deadline) -> Option<Arc<Node>> {
        self.wait_for_first_map(deadline).await;
        let map = self.read();
        let endpoint = map
            .redirected
            .get(&slot)
            .or_else(|| ClusterNodes::owner(&map.views, slot))?;
        match map.nodes.get(endpoint) {
            Some(member) if member.in_use => Some(Arc::clone(&member.node)),
            _ => {
                let endpoint = endpoint.clone();
                drop(map);
                Some(self.node_for_endpoint(&endpoint))
            }
        }
    }

    /// The owner of any slot that is known and connected to, without waiting.
    pub(crate) fn known_slot_owner(&self, slot: u16) -> Option<Arc<Node>> {
        let map = self.read();
        let redirected = map.redirected.get(&slot);
        let endpoint = redirected.or_else(|| ClusterNodes::owner(&map.views, slot))?;
        Some(Arc::clone(&map.nodes.get(endpoint)?.node))
    }

    /// All servers as last reported, replicas included.
    pub(crate) fn known(&self) -> Vec<Endpoint> {
        self.read().known.clone()
    }

    /// Records a MOVED redirect of any slot.
    pub(crate) fn record_slot_moved(&self, slot: u16, endpoint: &Endpoint) -> Arc<Node> {
        let mut map = self.write();
        map.redirected.insert(slot, endpoint.clone());
        let node = self.get_or_connect(&mut map, endpoint);
        drop(map);
        self.refresh_requested.notify_one();
        node
    }

    pub(crate) fn node_for_endpoint(&self, endpoint: &Endpoint) -> Arc<Node> {
        self.get_or_connect(&mut self.write(), endpoint)
    }

    /// Requests a refresh if an error suggests that the map is stale.
    pub(crate) fn invalidate_on(&self, error: StoreError) {
        if suggests_stale_map(error) {
            self.refresh_requested.notify_one();
        }
    }

    fn get_or_connect(&self, map: &mut Map, endpoint: &Endpoint) -> Arc<Node> {
        let member = map.nodes.entry(endpoint.clone()).or_insert_with(|| {
            let source = EndpointSource::Fixed(self.connect_options.to(endpoint));
            let node = Node::new(
                Connector::new(source, &self.context),
                Arc::clone(&self.context),
                KeyScope::OneTag,
            );
            replicas::watch(&node, &self.connect_options);
            Member { node, in_use: true }
        });
        member.in_use = true;
        Arc::clone(&member.node)
    }

    /// The owners of slots in use, ordered by endpoint.
    pub(crate) fn nodes(&self) -> Vec<(Endpoint, Arc<Node>)> {
        let map = self.read();
        let nodes = map
            .nodes
            .iter()
            .map(|(endpoint, member)| (endpoint.clone(), Arc::clone(&member.node)));
        let mut nodes: Vec<(Endpoint, Arc<Node>)> = nodes.collect();
        nodes.sort_by_key(|(endpoint, _)| endpoint.to_string());
        nodes
    }

    /// The state changes of circuit breakers of servers that have left.
    pub(crate) fn retired_transitions(&self) -> u64 {
        self.read().retired_transitions
    }

    /// True if the circuit breakers of the owners of all these tags are open.
    pub(crate) fn is_unavailable(&self, mut tags: impl Iterator<Item = u16>, now: Timestamp) -> bool {
        if *self.map_state.borrow() == MapState::Unreachable {
            // There is no owner. The map is refreshed until there is.
            return true;
        }
        let map = self.read();
        let owner = |tag: u16| map.owners.get(usize::from(tag)).and_then(Option::as_ref);
        let is_unavailable = tags.all(|tag| owner(tag).is_some_and(|node| node.breaker().is_open(now)));
        if is_unavailable {
            // The slots may have another owner by now.
            self.refresh_requested.notify_one();
        }
        is_unavailable
    }

    /// Waits until there is a map.
    pub(crate) async fn wait_for_map(&self, wait_max: Duration) {
        let mut map_state = self.map_state.subscribe();
        let _ = timeout(wait_max, map_state.wait_for(|map_state| *map_state == MapState::Known)).await;
    }

    /// The reason why a server is unreachable, if one is.
    pub(crate) fn error(&self) -> Option<String> {
        if *self.map_state.borrow() != MapState::Known {
            return Some(self.read().error.clone());
        }
        let map = self.read();
        let unowned = map.owners.iter().position(Option::is_none);
        let slot = unowned.and_then(|tag| self.slots.get(tag));
        if let Some(slot) = slot {
            return Some(format!("no server of the cluster has slot {slot}"));
        }
        drop(map);
        let mut nodes = self.nodes().into_iter();
        nodes.find_map(|(endpoint, node)| Some(format!("{endpoint}: {}", node.error()?)))
    }

    /// Reads the map anew. Returns the shortest time until the next refresh.
    async fn refresh(&self) -> Duration {
        let views = match self.fetch_views().await {
            Ok(views) => views,
            Err(TopologyError { text, auth_rejected }) => {
                self.write().error = text;
                self.map_state.send_if_modified(|map_state| {
                    let is_first = *map_state == MapState::Unknown;
                    if is_first {
                        *map_state = MapState::Unreachable;
                    }
                    is_first
                });
                self.refresh_requested.notify_one();
                return if auth_rejected { AUTH_REFRESH } else { REFRESH_MIN };
            }
        };
        let mut map = self.write();
        let owners = self.slots.iter().map(|slot| ClusterNodes::owner(&views, *slot));
        let owners = owners.map(|endpoint| endpoint.map(|endpoint| self.get_or_connect(&mut map, endpoint)));
        let owners: Vec<Option<Arc<Node>>> = owners.collect();
        let mut retired_transitions = 0;
        map.nodes.retain(|_, member| {
            let owns_any = owners.iter().flatten().any(|owner| Arc::ptr_eq(owner, &member.node));
            let stays = std::mem::replace(&mut member.in_use, false) || owns_any;
            if !stays {
                retired_transitions += member.node.breaker().changes();
            }
            stays
        });
        map.retired_transitions += retired_transitions;
        for (endpoint, member) in &map.nodes {
            let endpoints = ClusterNodes::replicas(&views, endpoint);
            replicas::set(&member.node, &self.connect_options, endpoints);
        }
        map.owners = owners;
        map.known = views.iter().flat_map(|view| view.endpoints.iter().cloned()).collect();
        map.known.sort_by_key(ToString::to_string);
        map.known.dedup();
        map.views = views;
        map.redirected.clear();
        drop(map);
        self.map_state.send_replace(MapState::Known);
        REFRESH_MIN
    }

    /// Asks servers for the topology: those with a connection, and if these are few also others.
    async fn fetch_views(&self) -> Result<Vec<ClusterNodes>, TopologyError> {
        let address_by = match self.connect_options.is_tls() {
            true => AddressBy::Hostname,
            false => AddressBy::Address,
        };
        let mut tasks = JoinSet::new();
        let mut sent: Vec<Endpoint> = Vec::new();
        for (endpoint, node) in self.nodes() {
            if let Some(mut connection) = node.connector().current()
                && sent.len() < VIEWS_MAX
            {
                sent.push(endpoint.clone());
                tasks.spawn(async move {
                    let reply = timeout(TIMEOUT, connection.query(&nodes_command())).await;
                    let reply = reply.map_err(|_| TopologyError::new("did not answer in time"))?;
                    let reply = reply.map_err(|error| TopologyError::new(&error.to_string()))?;
                    Ok((endpoint, reply))
                });
            }
        }
        if sent.len() < CONNECTED_MIN {
            let known = self.read().known.clone();
            for endpoint in self.seeds.iter().chain(&known) {
                if sent.contains(endpoint) || sent.len() >= VIEWS_MAX {
                    continue;
                }
                sent.push(endpoint.clone());
                let (endpoint, connect_options) = (endpoint.clone(), self.connect_options.to(endpoint));
                tasks.spawn(async move {
                    let reply = timeout(TIMEOUT, fetch_view(&connect_options)).await;
                    let reply = reply.map_err(|_| TopologyError::new("did not answer in time"))?;
                    let reply = reply.map_err(|error| TopologyError {
                        text: error_text(&error, connect_options.password()),
                        auth_rejected: is_auth_error(&error),
                    })?;
                    Ok((endpoint, reply))
                });
            }
        }
        let mut views = Vec::new();
        let mut last_error = TopologyError::new("no server of the cluster answers");
        let mut wait_max = TIMEOUT;
        while let Ok(Some(fetched)) = timeout(wait_max, tasks.join_next()).await {
            let fetched: Result<(Endpoint, Value), TopologyError> =
                fetched.unwrap_or_else(|_| Err(TopologyError::new("the query was cancelled")));
            match fetched.map(|(endpoint, reply)| ClusterNodes::read(&value_text(&reply), &endpoint, address_by)) {
                Ok(view) if !view.claims.is_empty() => {
                    views.push(view);
                    wait_max = STRAGGLER_GRACE;
                }
                Ok(_) => last_error = TopologyError::new("a server of the cluster reports no slots"),
                Err(reason) => {
                    let text = format!("no server of the cluster answers: {}", reason.text);
                    last_error = TopologyError { text, ..reason };
                }
            }
        }
        if views.is_empty() { Err(last_error) } else { Ok(views) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refreshes the map at the start, on request, and at the longest interval, until the cluster is dropped.
async fn run_refresh(cluster: Weak<Cluster>) {
    loop {
        let Some(upgraded) = cluster.upgrade() else { return };
        let delay = upgraded.refresh().await;
        let refresh_requested = Arc::clone(&upgraded.refresh_requested);
        drop(upgraded);
        sleep(delay).await;
        let _ = timeout(REFRESH_MAX, refresh_requested.notified()).await;
    }
}

/// True if the error may mean that the slot has another owner by now.
const fn suggests_stale_map(error: StoreError) -> bool {
    matches!(
        error,
        StoreError::Unavailable
            | StoreError::Timeout
            | StoreError::ConnectionLost
            | StoreError::BreakerOpen
            | StoreError::Server(
                RedisErrorCode::ReadOnly
                    | RedisErrorCode::ClusterDown
                    | RedisErrorCode::MasterDown
                    | RedisErrorCode::Moved
                    | RedisErrorCode::Ask
            )
    )
}

fn nodes_command() -> redis::Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("NODES");
    command
}

/// Asks a server without a connection.
async fn fetch_view(connect_options: &ConnectOptions) -> Result<Value, RedisError> {
    let mut connection = connect_options.client()?.get_multiplexed_async_connection().await?;
    nodes_command().query_async(&mut connection).await
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("seeds", &self.seeds)
            .field("error", &self.error())
            .finish_non_exhaustive()
    }
}
