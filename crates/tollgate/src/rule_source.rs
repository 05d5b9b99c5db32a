//! Where rules come from. A source delivers whole rule sets, or the reason why it cannot; the reloader installs them.
//!
//! Files are a source. The follower of the control plane is another: it compiles its managed files with the same loader, and
//! holds the loader's lock until they are installed, as the reloader does for files.

mod file_pattern;
mod file_stamps;
mod files;
mod managed;
mod quarantine;
mod source_texts;

pub(crate) use file_pattern::{is_rule_file, path_problem};
pub use files::{ConfigLoader, FileSource, SharedLoader};
pub use managed::{MANAGED_PREFIX, ManagedFiles, RowLayer};
pub use source_texts::{ConfigSnapshot, QUICKSTART};

use std::fmt;
use tokio::sync::OwnedMutexGuard;
use tollgate_limiter::core::problem::Problem;
use tollgate_limiter::core::rules::RuleSet;

/// A place that rules come from.
pub trait RuleSource: Send {
    /// Waits for the next change and returns the rules after it.
    ///
    /// # Errors
    /// The rules changed and cannot be used, or they could not be read. The active rules stay; the next call waits for the
    /// next change.
    fn next(&mut self) -> impl Future<Output = Result<RulesUpdate, SourceError>> + Send;
}

/// A rule set that replaces the active one.
#[derive(Debug)]
pub struct RulesUpdate {
    /// The rules, all of them.
    pub rules: RuleSet,
    /// Problems that do not keep the rules from being used.
    pub warnings: Vec<Problem>,
    /// Problems of parts that were set aside: their last good version is among the rules, if there was one.
    pub quarantined: Vec<Problem>,
    /// The position of this update in the order of all updates of its source.
    pub revision: Revision,
    /// Held until the rules are installed, where several sources share a loader.
    pub lock: Option<OwnedMutexGuard<ConfigLoader>>,
}

/// The order of updates. A higher epoch is above any number of a lower one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision {
    /// Starts anew when the numbering does.
    pub epoch: u64,
    /// Counts updates within the epoch.
    pub number: u64,
}

/// The reason why a source has no new rules.
#[derive(Debug)]
pub enum SourceError {
    /// The rules as written cannot be used. For the operator to fix.
    Invalid(Vec<Problem>),
    /// The source itself failed, for a reason that has no place in a file.
    Failed(String),
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(problems) => write!(f, "{} problems in the rules", problems.len()),
            Self::Failed(error) => f.write_str(error),
        }
    }
}

impl std::error::Error for SourceError {}
