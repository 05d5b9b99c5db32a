//! The voter: compiles a set that a control service is about to publish, and says whether it can be used here.

use super::link::{self, messages, requests, write_vote};
use super::{LastVote, PrepareRequest, Vote};
use crate::control::database::{DatabaseError, now_ms};
use crate::control::feed::reader::FetchError;
use crate::control::layers::ControlParts;
use crate::control::model::{Digest, SetFile};
use crate::control::write::publish;
use crate::control::{ControlError, SetProblem, chain};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep, timeout};

/// Votes on every set that is being prepared, without end.
pub(in crate::control) async fn vote(parts: &Arc<ControlParts>) {
    if link::is_alone(parts) {
        return std::future::pending().await;
    }
    let mut messages = messages(parts);
    let mut handled: VecDeque<String> = VecDeque::new();
    loop {
        // A store or database that does not answer is reported by the follower.
        for request in requests(parts).await.unwrap_or_default() {
            if request.from == parts.instance || handled.contains(&request.id) {
                continue;
            }
            handled.push_back(request.id.clone());
            if handled.len() > HANDLED_MAX {
                handled.pop_front();
            }
            answer(parts, &request).await;
        }
        // Hints may be lost.
        let _ = timeout(parts.options.poll, prepare_hint(&mut messages)).await;
    }
}

/// Waits for the hint that a set is being prepared.
async fn prepare_hint(messages: &mut Option<Receiver<String>>) {
    let Some(messages) = messages else {
        return std::future::pending().await;
    };
    loop {
        match messages.recv().await {
            Ok(message) if message.starts_with("prepare ") => return,
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => return std::future::pending().await,
        }
    }
}

async fn answer(parts: &Arc<ControlParts>, request: &PrepareRequest) {
    let problems = match compile(parts, request).await {
        Ok(()) => Vec::new(),
        Err(problems) => problems,
    };
    let (version, is_usable) = (request.version, problems.is_empty());
    match problems.first() {
        None => tracing::info!(version, "rules compiled before they are published"),
        Some(reason) => tracing::warn!(version, reason, "rules that are to be published cannot be used here"),
    }
    if is_usable {
        let until = Instant::now() + parts.options.prepare_timeout + KEPT_LONGER;
        parts.fleet.state().keep_until = Some((request.digest, until));
    }
    parts.fleet.state().last_vote = Some(LastVote {
        digest: request.digest,
        ok: is_usable,
        at: now_ms(),
    });
    let vote = Vote {
        request: request.id.clone(),
        epoch: request.epoch,
        digest: request.digest,
        problems,
    };
    for _ in 0..VOTE_ATTEMPTS {
        match write_vote(parts, vote.clone()).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(version, %error, "the vote on rules cannot be sent; trying again"),
        }
        sleep(VOTE_RETRY).await;
    }
}

/// Compiles a set with the file layer and the rows of this instance, and keeps it.
///
/// # Errors
/// The reasons why it cannot be used.
async fn compile(parts: &Arc<ControlParts>, request: &PrepareRequest) -> Result<(), Vec<String>> {
    let files = fetch(parts, request).await.map_err(|error| vec![error])?;
    let prepared = publish::prepare_here(parts, files).await.map_err(problems)?;
    *parts.prepared() = Some(prepared);
    Ok(())
}

/// The files of a set, from the shared store or the database.
async fn fetch(parts: &ControlParts, request: &PrepareRequest) -> Result<Vec<SetFile>, String> {
    if let Some(reader) = parts.reader() {
        let files = reader.set(&request.digest, parts.options.format).await;
        return files.map_err(|error| error.to_string());
    }
    let Some(database) = &parts.database else {
        return Err("there is neither a shared store nor a database to read it from".to_owned());
    };
    let unread = |error: DatabaseError| error.to_string();
    if let Some(meta) = database.version(request.version).await.map_err(unread)?
        && meta.format > parts.options.format
    {
        return Err(FetchError::NewerFormat(meta.format).to_string());
    }
    let files = database.version_files(request.version).await.map_err(unread)?;
    check_digest(&files, &request.digest)?;
    Ok(files)
}

fn check_digest(files: &[SetFile], digest: &Digest) -> Result<(), String> {
    match chain::set_digest(files) == *digest {
        true => Ok(()),
        false => Err("its files have another digest".to_owned()),
    }
}

/// The reasons in an error, as text that fits a vote.
fn problems(error: ControlError) -> Vec<String> {
    let text = |problem: &SetProblem| {
        let place = match (&problem.file, problem.line) {
            (Some(file), Some(line)) => format!("{file}:{line}: "),
            (Some(file), None) => format!("{file}: "),
            _ => String::new(),
        };
        format!("{place}{}", problem.text)
    };
    let problems: Vec<String> = match &error {
        ControlError::Invalid(problems) | ControlError::PrepareRejected(problems) => {
            let errors = problems.iter().filter(|problem| problem.severity == "error");
            errors.take(PROBLEMS_MAX).map(text).collect()
        }
        error => vec![error.to_string()],
    };
    let cut = |problem: String| problem.chars().take(PROBLEM_CHARACTERS_MAX).collect();
    match problems.is_empty() {
        true => vec![error.to_string()],
        false => problems.into_iter().map(cut).collect(),
    }
}

const HANDLED_MAX: usize = 64;
const PROBLEMS_MAX: usize = 5;
const PROBLEM_CHARACTERS_MAX: usize = 300;
/// A compiled set is kept so much longer than votes are waited for.
const KEPT_LONGER: Duration = Duration::from_secs(30);
const VOTE_ATTEMPTS: usize = 5;
const VOTE_RETRY: Duration = Duration::from_millis(500);
