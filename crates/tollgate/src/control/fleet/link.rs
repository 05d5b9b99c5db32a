//! The way instances see each other: sealed values in the shared store, or rows of a PostgreSQL database.

use super::{FleetInstance, PrepareRequest, Vote, own_status};
use crate::control::chain::digest_of;
use crate::control::database::{Database, DatabaseError, now_ms, with_shared_deadline};
use crate::control::layers::ControlParts;
use crate::server::telemetry::watch::series::RuleName;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tollgate_limiter::store::redis::{CacheError, CacheWrite, ConfigCache};

/// The reason why other instances cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::control) struct LinkError(String);

/// The statuses of all instances.
#[derive(Debug, Default)]
pub(in crate::control) struct Statuses {
    /// Those with a valid code, this one and those that have left included.
    pub(in crate::control) instances: Vec<FleetInstance>,
    /// The number of those without.
    pub(in crate::control) unverified: usize,
}

/// The way to the other instances.
enum Link<'p> {
    Cache(&'p ConfigCache),
    Database(&'p Database),
    Alone,
}

fn link(parts: &ControlParts) -> Link<'_> {
    match (&parts.cache, &parts.database) {
        (Some(cache), _) => Link::Cache(cache),
        (None, Some(database)) if database.kind() == "postgres" => Link::Database(database),
        _ => Link::Alone,
    }
}

/// True if there is no way to other instances: then there are none.
pub(in crate::control) fn is_alone(parts: &ControlParts) -> bool {
    matches!(link(parts), Link::Alone)
}

/// True if other instances are seen through the shared store.
pub(super) fn has_cache(parts: &ControlParts) -> bool {
    parts.cache.is_some()
}

/// Reports the status of this instance.
pub(super) async fn write_status(parts: &Arc<ControlParts>) -> Result<(), LinkError> {
    let _turn = parts.fleet.writing.lock().await;
    let mut status = own_status(parts);
    match link(parts) {
        Link::Alone => Ok(()),
        Link::Cache(cache) => {
            (status.preparing, status.vote) = (None, None);
            let name = status_name(&parts.instance);
            let sealed = parts.signer.seal(&name, &json(&status)?);
            if sealed.len() > STATUS_BYTES_MAX {
                return Err(LinkError(format!("its status has more than {STATUS_BYTES_MAX} bytes")));
            }
            let ttl = if status.left { LEFT_TTL } else { STATUS_TTL };
            let set = CacheWrite::Set {
                name: &name,
                value: sealed.as_bytes(),
                ttl,
            };
            let index = CacheWrite::Index {
                member: &parts.instance,
                seen_ms: status.at,
                ttl: INDEX_TTL,
            };
            cache.write(&[set, index]).await?;
            if status.left {
                parts.send_hint(&format!("left {}", parts.instance)).await;
            }
            Ok(())
        }
        Link::Database(database) => {
            let status = json(&status)?;
            // A publish waits for others meanwhile, with many such calls: each has the time of one.
            let report = database.report_instance(&parts.instance, &status);
            Ok(with_shared_deadline(report).await?)
        }
    }
}

/// The statuses of all instances; none if this one is alone.
///
/// # Errors
/// The shared store, or the database, does not answer.
pub(in crate::control) async fn statuses(parts: &ControlParts) -> Result<Statuses, LinkError> {
    let mut statuses = Statuses::default();
    match link(parts) {
        Link::Alone => {}
        Link::Cache(cache) => {
            let ids = cache.instances(now_ms().saturating_sub(INDEX_AGE_MS)).await?;
            for ids in ids.chunks(READ_MAX) {
                let names: Vec<String> = ids.iter().map(|id| status_name(id)).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let values = cache.read(&names).await?;
                for ((id, name), value) in ids.iter().zip(names).zip(values) {
                    // One that is gone is in the index for a moment.
                    let Some(value) = value else { continue };
                    let text = parts
                        .signer
                        .open(name, &value)
                        .filter(|text| text.len() <= STATUS_BYTES_MAX);
                    match text.and_then(|text| serde_json::from_str(text).ok()) {
                        Some(status) => statuses.instances.push(FleetInstance { id: id.clone(), status }),
                        None => statuses.unverified += 1,
                    }
                }
            }
        }
        Link::Database(database) => {
            for report in with_shared_deadline(database.instances(REPORT_AGE_MS)).await? {
                match serde_json::from_str(&report.status) {
                    Ok(status) => statuses.instances.push(FleetInstance { id: report.id, status }),
                    Err(_) => statuses.unverified += 1,
                }
            }
        }
    }
    Ok(statuses)
}

/// Asks all instances to compile a set, until [`end_request`]. False while another publish asks.
pub(super) async fn write_request(parts: &Arc<ControlParts>, request: &PrepareRequest) -> Result<bool, LinkError> {
    match link(parts) {
        Link::Alone => Ok(true),
        Link::Cache(cache) => {
            let sealed = parts.signer.seal(REQUEST, &json(request)?);
            let set = CacheWrite::SetAbsent {
                name: REQUEST,
                value: sealed.as_bytes(),
                ttl: REQUEST_TTL,
            };
            let is_set = cache.write(&[set]).await?.first() == Some(&true);
            if is_set {
                parts.send_hint(&format!("prepare {}", request.version)).await;
            }
            Ok(is_set)
        }
        Link::Database(_) => {
            parts.fleet.state().preparing = Some(request.clone());
            write_status(parts).await?;
            Ok(true)
        }
    }
}

/// Keeps a request while its votes are waited for.
pub(super) async fn renew_request(parts: &ControlParts) -> Result<(), LinkError> {
    if let Link::Cache(cache) = link(parts) {
        let touch = CacheWrite::Touch {
            name: REQUEST,
            ttl: REQUEST_TTL,
        };
        cache.write(&[touch]).await?;
    }
    Ok(())
}

/// Withdraws a request. That of another publish, which came after it, stays.
pub(super) async fn end_request(parts: &Arc<ControlParts>, request: &PrepareRequest) {
    parts.fleet.state().preparing = None;
    // Without an answer it expires.
    let _ = match link(parts) {
        Link::Alone => Ok(()),
        Link::Cache(cache) => delete_request(parts, cache, request).await,
        Link::Database(_) => write_status(parts).await,
    };
}

/// Deletes a request from the cache, if it is the one that is there: it is replaced by what names no set, and that is deleted.
async fn delete_request(parts: &ControlParts, cache: &ConfigCache, request: &PrepareRequest) -> Result<(), LinkError> {
    let sealed = parts.signer.seal(REQUEST, &json(request)?);
    let is_ours = cache
        .replace(REQUEST, Some(sealed.as_bytes()), ENDED, REQUEST_TTL)
        .await?;
    if is_ours {
        // Nobody sets it while it is there.
        cache.write(&[CacheWrite::Delete { name: REQUEST }]).await?;
    }
    Ok(())
}

/// The sets that instances are asked to compile now.
pub(super) async fn requests(parts: &ControlParts) -> Result<Vec<PrepareRequest>, LinkError> {
    match link(parts) {
        Link::Alone => Ok(Vec::new()),
        Link::Cache(cache) => {
            let value = cache.read(&[REQUEST]).await?.pop().flatten();
            let request = value.and_then(|value| serde_json::from_str(parts.signer.open(REQUEST, &value)?).ok());
            Ok(request.into_iter().collect())
        }
        Link::Database(_) => {
            let instances = statuses(parts).await?.instances;
            Ok(instances
                .into_iter()
                .filter_map(|instance| instance.status.preparing)
                .collect())
        }
    }
}

/// Votes for or against a set.
pub(super) async fn write_vote(parts: &Arc<ControlParts>, vote: Vote) -> Result<(), LinkError> {
    match link(parts) {
        Link::Alone => Ok(()),
        Link::Cache(cache) => {
            let name = vote_name(vote.epoch, &vote.digest.to_string(), &parts.instance);
            let sealed = parts.signer.seal(&name, &json(&vote)?);
            let set = CacheWrite::Set {
                name: &name,
                value: sealed.as_bytes(),
                ttl: VOTE_TTL,
            };
            cache.write(&[set]).await?;
            Ok(())
        }
        Link::Database(_) => {
            parts.fleet.state().vote = Some(vote);
            write_status(parts).await
        }
    }
}

/// The votes of instances for a request.
pub(super) async fn votes(
    parts: &ControlParts,
    request: &PrepareRequest,
    ids: &[String],
) -> Result<HashMap<String, Vote>, LinkError> {
    let is_for_it =
        |vote: &Vote| (&vote.request, vote.epoch, vote.digest) == (&request.id, request.epoch, request.digest);
    let mut votes = HashMap::new();
    match link(parts) {
        Link::Alone => {}
        Link::Cache(cache) => {
            let digest = request.digest.to_string();
            for ids in ids.chunks(READ_MAX) {
                let names: Vec<String> = ids.iter().map(|id| vote_name(request.epoch, &digest, id)).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let values = cache.read(&names).await?;
                for ((id, name), value) in ids.iter().zip(names).zip(values) {
                    let text = value.as_deref().and_then(|value| parts.signer.open(name, value));
                    let vote: Option<Vote> = text.and_then(|text| serde_json::from_str(text).ok());
                    votes.extend(vote.filter(is_for_it).map(|vote| (id.clone(), vote)));
                }
            }
        }
        Link::Database(_) => {
            for FleetInstance { id, status } in statuses(parts).await?.instances {
                votes.extend(status.vote.filter(is_for_it).map(|vote| (id, vote)));
            }
        }
    }
    Ok(votes)
}

/// Reports the figures of this instance, deflated. Only over the shared store.
pub(super) async fn write_figures(parts: &ControlParts, deflated: &[u8]) -> Result<(), LinkError> {
    let Some(cache) = &parts.cache else { return Ok(()) };
    let name = figures_name(&parts.instance);
    let code = parts.signer.sign(&name, &digest_of(deflated).to_string());
    let value = [code.as_bytes(), deflated].concat();
    let set = CacheWrite::Set {
        name: &name,
        value: &value,
        ttl: FIGURES_TTL,
    };
    cache.write(&[set]).await?;
    Ok(())
}

/// The figures of the other instances, deflated. Those without a valid code are left out.
pub(super) async fn read_figures(parts: &ControlParts) -> Result<Vec<Vec<u8>>, LinkError> {
    let Some(cache) = &parts.cache else {
        return Ok(Vec::new());
    };
    let mut ids = cache.instances(now_ms().saturating_sub(INDEX_AGE_MS)).await?;
    ids.retain(|id| *id != parts.instance);
    let mut found = Vec::new();
    for ids in ids.chunks(FIGURES_READ_MAX) {
        let names: Vec<String> = ids.iter().map(|id| figures_name(id)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let values = cache.read(&names).await?;
        for (name, value) in names.iter().zip(values) {
            let value = value.unwrap_or_default();
            let Some((code, deflated)) = value.split_at_checked(CODE_LENGTH) else {
                continue;
            };
            let digest = digest_of(deflated).to_string();
            let is_valid = |code: &str| parts.signer.verify(name, &digest, code);
            if std::str::from_utf8(code).is_ok_and(is_valid) {
                found.push(deflated.to_vec());
            }
        }
    }
    Ok(found)
}

/// The rules that dashboards show; none: no dashboard is open.
pub(super) async fn read_watched(parts: &ControlParts) -> Result<Option<Vec<RuleName>>, LinkError> {
    let Some(cache) = &parts.cache else { return Ok(None) };
    let value = cache.read(&[WATCHED]).await?.pop().flatten();
    let text = value.as_deref().and_then(|value| parts.signer.open(WATCHED, value));
    let rules: Option<Vec<(String, String)>> = text.and_then(|text| serde_json::from_str(text).ok());
    Ok(rules.map(|rules| rules.iter().map(|(domain, rule)| RuleName::new(domain, rule)).collect()))
}

/// Says for a moment that a dashboard shows these rules.
pub(super) async fn write_watched(parts: &ControlParts, rules: &[RuleName]) -> Result<(), LinkError> {
    let Some(cache) = &parts.cache else { return Ok(()) };
    let rules: Vec<(&str, &str)> = rules.iter().map(|name| (&*name.domain, &*name.rule)).collect();
    let sealed = parts.signer.seal(WATCHED, &json(&rules)?);
    let set = CacheWrite::Set {
        name: WATCHED,
        value: sealed.as_bytes(),
        ttl: WATCHED_TTL,
    };
    cache.write(&[set]).await?;
    Ok(())
}

/// Hints of the shared store; none without one.
pub(super) fn messages(parts: &ControlParts) -> Option<broadcast::Receiver<String>> {
    parts.cache.as_ref().map(ConfigCache::messages)
}

fn json(value: &impl serde::Serialize) -> Result<String, LinkError> {
    serde_json::to_string(value).map_err(|error| LinkError(error.to_string()))
}

fn status_name(id: &str) -> String {
    format!("i:{id}")
}

fn figures_name(id: &str) -> String {
    format!("f:{id}")
}

fn vote_name(epoch: u64, digest: &str, id: &str) -> String {
    format!("vote:{epoch}:{digest}:{id}")
}

impl From<CacheError> for LinkError {
    fn from(error: CacheError) -> Self {
        Self(format!("the shared store: {error}"))
    }
}

impl From<DatabaseError> for LinkError {
    fn from(error: DatabaseError) -> Self {
        Self(format!("the database: {error}"))
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of the set that is being prepared.
const REQUEST: &str = "prepare";
/// The value of a request that has ended, for a moment.
const ENDED: &[u8] = b"-";
/// Renewed while votes are waited for, so that one of a control service that has died expires soon.
const REQUEST_TTL: Duration = Duration::from_secs(5);
/// The name of what dashboards look at.
const WATCHED: &str = "watched";
const WATCHED_TTL: Duration = Duration::from_secs(10);
const FIGURES_TTL: Duration = Duration::from_secs(30);
/// Figures are up to 64 KiB each.
const FIGURES_READ_MAX: usize = 16;
/// Hexadecimal digits of a code.
const CODE_LENGTH: usize = 64;
const STATUS_TTL: Duration = Duration::from_secs(8);
const LEFT_TTL: Duration = Duration::from_secs(60);
const INDEX_TTL: Duration = Duration::from_secs(60);
const VOTE_TTL: Duration = Duration::from_secs(60);
/// Clocks of instances may differ by minutes.
const INDEX_AGE_MS: u64 = 300_000;
const REPORT_AGE_MS: u64 = 8_000;
const READ_MAX: usize = 200;
/// The most bytes of a status.
pub(super) const STATUS_BYTES_MAX: usize = 4_096;
