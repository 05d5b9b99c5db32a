//! The managed layer: rule files of the live version of the control plane, and the rows that change limits of single subjects.

use super::file_pattern::{RuleFile, RulesFormat};
use crate::control::model::{Grammar, SetFile};
use std::fmt;
use std::sync::Arc;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::RuleSet;

/// The files of the live version. None: no version was ever published. An empty set is a layer too.
pub type ManagedFiles = Option<Arc<[SetFile]>>;

/// Rows and attributes, which are added to every rule set that is compiled.
pub trait RowLayer: fmt::Debug + Send + Sync {
    /// The set with all rows and attributes. It is installed next. `files` is the digest of the files it was compiled from, managed ones
    /// excepted.
    fn amend(&self, rules: RuleSet, files: [u8; 32]) -> RuleSet;
}

/// The start of the name of a managed file in messages.
pub const MANAGED_PREFIX: &str = "managed:";

/// The files as the parser reads them.
pub(super) fn rule_files(files: &[SetFile]) -> impl Iterator<Item = RuleFile> {
    files.iter().map(|file| {
        let format = match file.grammar {
            Grammar::Own => RulesFormat::Native,
            Grammar::Envoy => RulesFormat::Ratelimit,
        };
        let name = format!("{MANAGED_PREFIX}{}", file.path);
        (format, Ok(Origin::new(name, file.text.clone())))
    })
}
