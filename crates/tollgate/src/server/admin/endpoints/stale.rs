//! The response to a write whose condition does not hold: the present item, who changed it, when, why, and how what was sent differs.

use crate::control::ControlError;
use crate::control::database::{AuditFilter, StaleItem};
use crate::control::model::{Author, Precondition};
use crate::server::admin::problem::AdminProblem;
use crate::server::admin::request::Call;
use serde_json::Value;
use similar::TextDiff;
use std::time::Duration;

/// The item as it is, and its text beside the text that was sent.
#[derive(Default)]
pub(super) struct PresentItem {
    /// As the API has it; null: it does not exist.
    pub(super) item: Value,
    pub(super) present: String,
    pub(super) sent: String,
    /// True if the reason of its change may be about any domain.
    pub(super) is_of_all_domains: bool,
}

/// Rejects a write whose condition does not hold for an item of this revision; 0: it does not exist. The commit checks it again.
pub(super) fn check(precondition: &Precondition, epoch: u64, revision: u64) -> Result<(), Box<StaleItem>> {
    match precondition.holds(epoch, revision) {
        true => Ok(()),
        false => Err(Box::new(StaleItem {
            epoch,
            revision,
            author: Author::default(),
            at: 0,
            item: String::new(),
        })),
    }
}

/// The problem of a write. `present` is asked for the item only if a condition does not hold.
pub(super) async fn problem(
    call: &Call,
    error: ControlError,
    present: impl AsyncFnOnce() -> PresentItem,
) -> AdminProblem {
    let mut found = match error {
        ControlError::Stale(found) => found,
        error => return error.into(),
    };
    let item = present().await;
    if found.at == 0 && found.revision > 0 {
        add_author(call, &mut found).await;
    }
    if item.is_of_all_domains {
        found.author.reason = call.show_reason(&found.author.reason).to_owned();
    }
    // A worst case of two large texts takes long, and has a deadline; this thread is the only one that serves requests.
    let (before, after) = (item.present, item.sent);
    let diff = tokio::task::spawn_blocking(move || diff(&before, &after, "current", "sent")).await;
    AdminProblem::from(ControlError::Stale(found))
        .with("current", item.item)
        .with("diff", diff.unwrap_or_default())
}

/// The author of a revision, from the audit log.
async fn add_author(call: &Call, found: &mut StaleItem) {
    let filter = AuditFilter {
        revision: Some(found.revision),
        ..AuditFilter::default()
    };
    let Ok(database) = call.database() else { return };
    let entries = database.audit(&filter, None, 1).await.unwrap_or_default();
    if let Some(entry) = entries.into_iter().next() {
        found.at = entry.at;
        found.author = Author {
            actor: entry.actor,
            via: entry.via,
            address: entry.address,
            request: entry.request,
            reason: entry.reason,
        };
    }
}

/// The differences between two texts, as a unified diff; empty if they are equal.
pub(super) fn diff(before: &str, after: &str, before_name: &str, after_name: &str) -> String {
    let diff = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(before, after);
    let mut unified = diff.unified_diff();
    unified.context_radius(3).header(before_name, after_name).to_string()
}

/// The members of an item, one to a line.
pub(super) fn lines<'m>(members: impl IntoIterator<Item = (&'m str, String)>) -> String {
    members
        .into_iter()
        .map(|(name, value)| format!("{name}: {value}\n"))
        .collect()
}

const DIFF_TIMEOUT: Duration = Duration::from_secs(1);
