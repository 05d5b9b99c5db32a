//! Replicas: who may be looked at in a primary's place.
//!
//! A replica is behind its primary, so nothing is decided there: it is asked for what keeps nothing, and only if whoever
//! opened the store wants that. One that does not answer well in half the time leaves the other half to the primary; while
//! there is no connection to it, or it does not hear its primary, it is not asked.

use super::line::text;
use super::link::{Finder, Link, is_linked, role_command};
use super::node::{Node, Span};
use super::servers::{Access, Host};
use super::supervised;
use super::work::{Deadline, Done, Manner, Work};
use super::{Functions, ReadFrom, call::Mode};
use futures_util::future::join_all;
use redis::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tollgate_core::Timestamp;

/// The replicas of one primary.
#[derive(Debug)]
pub(super) struct Replicas {
    access: Access,
    functions: Functions,
    nodes: RwLock<Vec<(Host, Arc<Node>)>>,
    /// Whose turn it is.
    next: AtomicUsize,
}

/// How often it is looked whether there are others, and whether each hears its primary; and how long that may take.
const EVERY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_millis(300);

/// The most that are connected to.
const MOST: usize = 16;

impl Replicas {
    /// None yet, if any are wanted.
    pub(super) fn wanted(read_from: ReadFrom, access: &Access, functions: Functions) -> Option<Self> {
        match read_from {
            ReadFrom::Primary => None,
            ReadFrom::Replica => Some(Self {
                access: access.clone(),
                functions,
                nodes: RwLock::default(),
                next: AtomicUsize::new(0),
            }),
        }
    }

    /// Looks after the replicas of a server, if they are wanted, for as long as anybody asks that.
    pub(super) fn watch(primary: &Arc<Node>) {
        if primary.replicas.is_none() {
            return;
        }
        let weak = Arc::downgrade(primary);
        let watch = move || {
            let weak = Weak::clone(&weak);
            async move {
                while let Some(primary) = weak.upgrade() {
                    if let Some(replicas) = &primary.replicas {
                        replicas.ask_for(&primary).await;
                        replicas.examine().await;
                    }
                    drop(primary);
                    sleep(EVERY).await;
                }
            }
        };
        supervised::begin(&primary.shared.runtime, Arc::clone(&primary.shared.figures), watch);
    }

    /// Asks the primary who follows it. In a cluster that is drawn on the map, by the names that certificates want.
    async fn ask_for(&self, primary: &Arc<Node>) {
        if primary.span == Span::OneTag {
            return;
        }
        if let Ok(mut line) = timeout(EVERY, primary.link.line()).await
            && let Ok(Ok(role)) = timeout(PATIENCE, line.ask(&role_command())).await
        {
            self.are(followers(&role), primary);
        }
    }

    /// Learns who they are. Those that stay keep their connections.
    pub(super) fn are(&self, mut hosts: Vec<Host>, primary: &Node) {
        hosts.truncate(MOST);
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|(host, _)| hosts.contains(host));
        for host in hosts {
            if !nodes.iter().any(|(known, _)| *known == host) {
                let shared = &primary.shared;
                let link = Link::new(
                    Finder::Replica(self.access.to(&host), primary.span),
                    self.functions,
                    shared.deadline,
                    shared.clock.clone(),
                    Arc::clone(&shared.figures),
                    shared.runtime.clone(),
                );
                nodes.push((host, Node::new(link, Arc::clone(shared), primary.span, None)));
            }
        }
    }

    /// Leaves those that do not hear their primary any more. They are dialled until they do.
    async fn examine(&self) {
        let examined = self.all().into_iter().map(|(_, node)| async move {
            let Some(mut line) = node.link.line_now() else { return };
            let role = timeout(PATIENCE, line.ask(&role_command())).await;
            let is_well = matches!(&role, Ok(Ok(role)) if is_linked(role).is_ok());
            if !is_well {
                node.link
                    .hang_up(line.number(), "the replica does not hear its primary");
            }
        });
        join_all(examined).await;
    }

    /// One that can be asked. They take turns.
    fn pick(&self, now: Timestamp) -> Option<Arc<Node>> {
        let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner);
        let first = self.next.fetch_add(1, Ordering::Relaxed) % nodes.len().max(1);
        let in_turn = nodes.iter().skip(first).chain(nodes.iter().take(first));
        let is_well = |node: &&Arc<Node>| node.link.is_up() && !node.breaker.is_shut(now);
        in_turn.map(|(_, node)| node).find(is_well).cloned()
    }

    /// Why none of them can be asked, if so.
    pub(super) fn fault(&self) -> Option<String> {
        let all = self.all();
        if all.iter().any(|(_, node)| node.link.is_up()) {
            return None;
        }
        let first = all.first().map(|(host, node)| {
            let why = node.link.fault().unwrap_or_default();
            format!("{host}: {why}")
        });
        Some(first.unwrap_or_else(|| "the primary tells of none".to_owned()))
    }

    fn all(&self) -> Vec<(Host, Arc<Node>)> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Node {
    /// Does works of one mode here, or looks at a replica, where that is enough and wanted.
    pub(super) async fn ask_or_look(self: &Arc<Self>, works: Vec<Work>, deadline: Deadline) -> Vec<Done> {
        let is_look = |work: &Work| work.mode == Mode::Peek && work.manner == Manner::Together;
        let replica = self.replicas.as_ref().filter(|_| works.iter().all(is_look));
        let Some(replica) = replica.and_then(|replicas| replicas.pick(self.shared.clock.now())) else {
            return self.ask(works, deadline).await;
        };
        let half = deadline.earlier_by(self.shared.deadline / 2);
        let mut done = replica.ask(works.clone(), half).await;
        let missed = works.into_iter().zip(&done).filter(|(_, done)| done.is_err());
        let missed: Vec<Work> = missed.map(|(work, _)| work).collect();
        let figures = &self.shared.figures;
        figures.replica_reads.add((done.len() - missed.len()) as u64);
        if !missed.is_empty() {
            figures.replica_misses.add(missed.len() as u64);
            let answers = self.ask(missed, deadline).await;
            for (done, answer) in done.iter_mut().filter(|done| done.is_err()).zip(answers) {
                *done = answer;
            }
        }
        done
    }
}

/// Who follows a primary, as its `ROLE` says: its name, how much it has written, and for each its address and port.
fn followers(role: &Value) -> Vec<Host> {
    let (name, followers) = match role {
        Value::Array(fields) => match &**fields {
            [name, _, Value::Array(followers)] => (text(name), &**followers),
            _ => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    let follower = |follower: &Value| match follower {
        Value::Array(fields) => match &**fields {
            [address, port, ..] => Host::read(&format!("{}:{}", text(address), text(port)), None),
            _ => None,
        },
        _ => None,
    };
    match name.as_str() {
        "master" => followers.iter().filter_map(follower).collect(),
        _ => Vec::new(),
    }
}
