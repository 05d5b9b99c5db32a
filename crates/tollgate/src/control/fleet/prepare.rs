//! Prepare, then commit: a set is live nowhere before every live instance has compiled it.

use super::link::{end_request, has_cache, is_alone, renew_request, votes, write_request};
use super::{FleetInstance, LinkError, PrepareRequest, own, statuses};
use crate::control::layers::ControlParts;
use crate::control::model::{Digest, SetFile};
use crate::control::write::Published;
use crate::control::{ControlError, ControlResult, InstanceProblems};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A set that is to be published.
#[derive(Debug)]
pub(in crate::control) struct Candidate<'s> {
    pub(in crate::control) version: u64,
    pub(in crate::control) digest: Digest,
    pub(in crate::control) format: u32,
    pub(in crate::control) files: &'s [SetFile],
    /// True if a missing vote does not stop it, and is not waited for long.
    pub(in crate::control) is_rollback: bool,
}

/// The instances that do not read a format are named.
///
/// # Errors
/// There is one.
pub(in crate::control) async fn check_format(parts: &Arc<ControlParts>, format: u32) -> ControlResult<()> {
    // The request for votes shows that others cannot be seen.
    let found = statuses(parts).await.unwrap_or_default();
    let mut instances = others(parts, found.instances);
    instances.push(own(parts));
    instances.sort_by(|one, other| one.id.cmp(&other.id));
    let old = instances.into_iter();
    let old = old.filter(|instance| instance.status.formats < format);
    let old: Vec<InstanceProblems> = old
        .map(|instance| InstanceProblems {
            problems: vec![format!(
                "it reads rules up to format {}, and these have format {format}; upgrade it first",
                instance.status.formats
            )],
            instance: instance.id,
        })
        .collect();
    match old.is_empty() {
        true => Ok(()),
        false => Err(ControlError::FleetRejected(old)),
    }
}

/// Has every live instance compile a set. Returns the number of those that did, without this one.
///
/// # Errors
/// One cannot use it, or has not answered in time. Then nothing is live anywhere.
pub(in crate::control) async fn prepare(parts: &Arc<ControlParts>, candidate: &Candidate<'_>) -> ControlResult<u32> {
    if is_alone(parts) {
        return Ok(0);
    }
    let _turn = parts.fleet.preparing.lock().await;
    let request = PrepareRequest {
        id: format!("{:016x}", fastrand::u64(..)),
        from: parts.instance.clone(),
        epoch: parts.live.load().epoch(),
        version: candidate.version,
        digest: candidate.digest,
    };
    let wait = match candidate.is_rollback {
        true => ROLLBACK_WAIT,
        false => parts.options.prepare_timeout,
    };
    let result = collect(parts, candidate, &request, Instant::now() + wait).await;
    // Also when nobody was asked: it may have been written without an answer.
    end_request(parts, &request).await;
    match result {
        Ok(outcome) => judge(outcome, candidate.is_rollback),
        Err(_) if candidate.is_rollback => Ok(0),
        Err(error) => Err(ControlError::PrepareIncomplete {
            instances: Vec::new(),
            text: format!("instances cannot be asked: {error}; publish with prepare=skip if that must not wait"),
        }),
    }
}

/// The votes on a set.
#[derive(Debug, Default)]
struct Outcome {
    voters: BTreeSet<String>,
    /// The problems of each that has voted.
    votes: HashMap<String, Vec<String>>,
    /// The reason why none were asked for.
    busy: bool,
}

impl Outcome {
    fn missing(&self) -> Vec<String> {
        let missing = self.voters.iter().filter(|id| !self.votes.contains_key(*id));
        missing.cloned().collect()
    }

    fn has_rejection(&self) -> bool {
        self.votes.values().any(|problems| !problems.is_empty())
    }
}

/// Collects votes until all voters have one, one rejects, or the deadline has passed.
async fn collect(
    parts: &Arc<ControlParts>,
    candidate: &Candidate<'_>,
    request: &PrepareRequest,
    deadline: Instant,
) -> Result<Outcome, LinkError> {
    if has_cache(parts)
        && let Some(reader) = parts.reader()
    {
        let written = reader
            .write_set(candidate.files, candidate.format, parts.options.cache_ttl)
            .await;
        written.map_err(LinkError::from)?;
    }
    while !write_request(parts, request).await? {
        if Instant::now() >= deadline {
            return Ok(Outcome {
                busy: true,
                ..Outcome::default()
            });
        }
        sleep(BUSY_INTERVAL).await;
    }
    if !has_cache(parts) && parts.live.load().head.is_none() {
        // Nobody could report before the first write to the database: each does at its next interval.
        sleep(super::REPORT_INTERVAL + LIST_INTERVAL).await;
    }
    let mut outcome = Outcome::default();
    let mut listed = Instant::now();
    let mut left = list_voters(parts, &mut outcome).await?;
    loop {
        let ids: Vec<String> = outcome.voters.iter().cloned().collect();
        for (id, vote) in votes(parts, request, &ids).await? {
            if outcome.voters.contains(&id) {
                outcome.votes.insert(id, vote.problems);
            }
        }
        let is_complete = outcome.missing().is_empty();
        if is_complete || listed.elapsed() >= LIST_INTERVAL {
            // One that has joined must have voted too, and one that has left is not waited for.
            left = list_voters(parts, &mut outcome).await?;
            listed = Instant::now();
            renew_request(parts).await?;
        }
        outcome.voters.retain(|id| !left.contains(id));
        let is_complete = outcome.missing().is_empty();
        if is_complete || outcome.has_rejection() || Instant::now() >= deadline {
            return Ok(outcome);
        }
        sleep(VOTE_INTERVAL).await;
    }
}

/// Adds all live instances to the voters, and returns those that have left.
async fn list_voters(parts: &Arc<ControlParts>, outcome: &mut Outcome) -> Result<Vec<String>, LinkError> {
    let (left, live): (Vec<_>, Vec<_>) = statuses(parts)
        .await?
        .instances
        .into_iter()
        .filter(|instance| instance.id != parts.instance)
        .partition(|instance| instance.status.left);
    outcome.voters.extend(live.into_iter().map(|instance| instance.id));
    Ok(left.into_iter().map(|instance| instance.id).collect())
}

fn judge(outcome: Outcome, is_rollback: bool) -> ControlResult<u32> {
    if outcome.has_rejection() {
        let rejections = outcome.votes.into_iter().filter(|(_, problems)| !problems.is_empty());
        let rejections = rejections.map(|(instance, problems)| InstanceProblems { instance, problems });
        let mut rejections: Vec<InstanceProblems> = rejections.collect();
        rejections.sort_by(|one, other| one.instance.cmp(&other.instance));
        return Err(ControlError::FleetRejected(rejections));
    }
    let missing = outcome.missing();
    match is_rollback || (missing.is_empty() && !outcome.busy) {
        true => Ok(count(outcome.votes.len())),
        false => Err(ControlError::PrepareIncomplete {
            text: match outcome.busy {
                true => "another publish is being prepared; try again".to_owned(),
                false => format!("{} instances have not compiled the rules in time", missing.len()),
            },
            instances: missing,
        }),
    }
}

/// Waits until this instance and all others have applied a publish, and counts them.
pub(in crate::control) async fn wait_applied(parts: &Arc<ControlParts>, published: &mut Published, wait: Duration) {
    let deadline = Instant::now() + wait;
    let is_applied = parts.wait_applied(published.revision, wait).await;
    let is_used = parts.live.load().version == published.version;
    let own = match (is_applied, is_used) {
        (true, true) => (1, 0, 0),
        (true, false) => (0, 1, 0),
        (false, _) => (0, 0, 1),
    };
    (published.applied, published.rejected, published.silent) = own;
    if is_alone(parts) {
        return;
    }
    loop {
        let Ok(found) = statuses(parts).await else { return };
        let (mut applied, mut rejected, mut silent) = own;
        for instance in others(parts, found.instances) {
            let status = &instance.status;
            match (status.epoch, status.revision) >= (published.epoch, published.revision) {
                true if status.version == published.version => applied += 1,
                true => rejected += 1,
                false => silent += 1,
            }
        }
        (published.applied, published.rejected, published.silent) = (applied, rejected, silent);
        if silent == own.2 || Instant::now() >= deadline {
            return;
        }
        sleep(VOTE_INTERVAL).await;
    }
}

/// The live instances other than this one.
fn others(parts: &ControlParts, instances: Vec<FleetInstance>) -> Vec<FleetInstance> {
    let is_other = |instance: &FleetInstance| instance.id != parts.instance && !instance.status.left;
    instances.into_iter().filter(is_other).collect()
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

const ROLLBACK_WAIT: Duration = Duration::from_secs(2);
const VOTE_INTERVAL: Duration = Duration::from_millis(50);
const LIST_INTERVAL: Duration = Duration::from_secs(1);
const BUSY_INTERVAL: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(voters: &[&str], votes: &[(&str, &[&str])]) -> Outcome {
        let problems = |problems: &[&str]| problems.iter().map(|text| (*text).to_owned()).collect();
        Outcome {
            voters: voters.iter().map(|id| (*id).to_owned()).collect(),
            votes: votes
                .iter()
                .map(|(id, texts)| ((*id).to_owned(), problems(texts)))
                .collect(),
            busy: false,
        }
    }

    #[test]
    fn all_must_consent_and_silence_is_none() {
        assert_eq!(judge(outcome(&[], &[]), false).unwrap(), 0);
        assert_eq!(
            judge(outcome(&["a", "b"], &[("a", &[]), ("b", &[])]), false).unwrap(),
            2
        );
        match judge(outcome(&["a", "b", "c"], &[("b", &[])]), false) {
            Err(ControlError::PrepareIncomplete { instances, .. }) => assert_eq!(instances, ["a", "c"]),
            other => panic!("{other:?}"),
        }
        match judge(outcome(&["a", "b"], &[("b", &["no"])]), false) {
            Err(ControlError::FleetRejected(rejections)) => {
                assert_eq!((rejections[0].instance.as_str(), rejections.len()), ("b", 1));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_rollback_is_stopped_by_a_rejection_only() {
        assert_eq!(judge(outcome(&["a", "b"], &[("b", &[])]), true).unwrap(), 1);
        assert!(judge(outcome(&["a", "b"], &[("b", &["no"])]), true).is_err());
    }
}
