//! Edits of one rule: its lines are replaced in its file, and the whole set is compiled and published.

use super::rule_lines::{RuleLines, list_item};
use super::{PublishOptions, Published, publish};
use crate::control::chain::digest_of;
use crate::control::database::ItemKey;
use crate::control::layers::{ControlParts, layer_of};
use crate::control::model::{Author, Grammar, Precondition, SetFile};
use crate::control::plan::{ChangePlan, PlanLine, PlanOp};
use crate::control::state::{LiveState, RuleLayer, RuleText};
use crate::control::{ControlError, ControlResult, SetProblem};
use crate::rule_source::MANAGED_PREFIX;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::core::rules::{Attempt, Rule, RuleSet};

pub(in crate::control) async fn rule_text(parts: &Arc<ControlParts>, domain: &str, id: &str) -> Option<RuleText> {
    let rules = parts.gate.active_rules();
    let rule = find(&rules, domain, id)?;
    let (layer, location) = (layer_of(rule), rule.location());
    let name = &*location.origin.name;
    let yaml = match rule.descriptor() {
        Some(_) => None,
        None => RuleLines::find(&location.origin.text, location.line).map(|lines| lines.yaml(&location.origin.text)),
    };
    Some(RuleText {
        layer,
        path: name.strip_prefix(MANAGED_PREFIX).unwrap_or(name).to_owned(),
        line: location.line,
        yaml,
        revision: match layer {
            RuleLayer::Managed => rule_revision(parts, domain, id).await,
            RuleLayer::File | RuleLayer::Quickstart => 0,
        },
    })
}

/// The revision that last changed a rule: the last publish if none is recorded.
async fn rule_revision(parts: &Arc<ControlParts>, domain: &str, id: &str) -> u64 {
    let last_publish = parts.live.load().set_revision;
    let Some(database) = &parts.database else {
        return last_publish;
    };
    let history = database.rule_history(domain, id, 1).await.unwrap_or_default();
    history.first().map_or(last_publish, |entry| entry.revision)
}

pub(in crate::control) async fn put_rule(
    parts: &Arc<ControlParts>,
    domain: &str,
    id: &str,
    yaml: &str,
    options: &PublishOptions,
    author: Author,
) -> ControlResult<Published> {
    edit(parts, (domain, id), Some(yaml), options, author).await
}

pub(in crate::control) async fn delete_rule(
    parts: &Arc<ControlParts>,
    domain: &str,
    id: &str,
    options: &PublishOptions,
    author: Author,
) -> ControlResult<Published> {
    edit(parts, (domain, id), None, options, author).await
}

/// Replaces, adds or deletes a rule in the live set, and again where another rule was edited meanwhile.
async fn edit(
    parts: &Arc<ControlParts>,
    name: (&str, &str),
    yaml: Option<&str>,
    options: &PublishOptions,
    author: Author,
) -> ControlResult<Published> {
    publish::check_git(parts, options)?;
    let mut retries = EDIT_RETRIES;
    loop {
        let (live, rules) = live_rules(parts).await;
        let edited = edited_set(&live, &rules, name, yaml)?;
        let published = publish_edit(parts, &live, name, edited, options, author.clone()).await;
        match published {
            Err(ControlError::Stale(found))
                if retries > 0 && is_unchanged(parts, name, &options.precondition).await =>
            {
                retries -= 1;
                parts.wake.notify_one();
                parts.wait_applied(found.revision, APPLY_WAIT).await;
            }
            published => return published,
        }
    }
}

/// A set with one rule replaced, added or deleted.
struct EditedSet {
    files: Vec<SetFile>,
    /// The file of the new text, and its lines, from 1; none: the rule is deleted.
    span: Option<(String, Range<u32>)>,
}

impl EditedSet {
    /// An error with the problems in the new text apart from those elsewhere.
    fn divide(span: Option<&(String, Range<u32>)>, error: ControlError) -> ControlError {
        let ControlError::Invalid(problems) = error else {
            return error;
        };
        let is_own = |problem: &SetProblem| {
            let line = problem.line.unwrap_or_default();
            span.is_some_and(|(path, lines)| problem.file.as_ref() == Some(path) && lines.contains(&line))
        };
        let (own, others) = problems.into_iter().partition(is_own);
        ControlError::InvalidRule { own, others }
    }
}

/// The set of a state with one rule replaced, added or deleted.
fn edited_set(
    live: &LiveState,
    rules: &RuleSet,
    (domain, id): (&str, &str),
    yaml: Option<&str>,
) -> ControlResult<EditedSet> {
    let mut files = live.files.to_vec();
    let span;
    match (find(rules, domain, id), yaml) {
        (Some(rule), yaml) => {
            let (file, lines) = managed_lines(rule, &mut files)?;
            span = yaml.map(|yaml| (file.path.clone(), lines.lines_of(yaml)));
            if yaml.is_none() && lines.is_only {
                let path = file.path.clone();
                files.retain(|file| file.path != path);
            } else {
                file.text = lines.replace(&file.text, yaml);
            }
        }
        (None, Some(yaml)) => {
            let file = new_file(domain, id, yaml);
            // Everything in it is new.
            span = Some((file.path.clone(), 0..u32::MAX));
            files.push(file);
        }
        (None, None) => {
            return Err(ControlError::NotFound(format!("rule `{id}` in the domain `{domain}`")));
        }
    }
    Ok(EditedSet { files, span })
}

/// True if a rule is still as a condition has it, whatever was published meanwhile.
async fn is_unchanged(parts: &Arc<ControlParts>, (domain, id): (&str, &str), precondition: &Precondition) -> bool {
    let Some(database) = &parts.database else { return false };
    let Ok(history) = database.rule_history(domain, id, 1).await else {
        return false;
    };
    let last = history.first().filter(|entry| entry.kind != "removed");
    match *precondition {
        Precondition::Any => true,
        Precondition::Absent => last.is_none(),
        Precondition::Unchanged { epoch, revision } => {
            epoch == parts.live.load().epoch() && last.is_some_and(|entry| entry.revision == revision)
        }
    }
}

/// The managed state and the active rules that were made of it: they change under the loader's lock only.
async fn live_rules(parts: &Arc<ControlParts>) -> (Arc<LiveState>, RuleSet) {
    let _loader = parts.loader.lock().await;
    (parts.live.load_full(), parts.gate.active_rules())
}

/// Publishes files of a state that differ in one rule. An edit that reaches further is refused.
async fn publish_edit(
    parts: &Arc<ControlParts>,
    state: &LiveState,
    (domain, id): (&str, &str),
    edited: EditedSet,
    options: &PublishOptions,
    author: Author,
) -> ControlResult<Published> {
    if state
        .head
        .as_ref()
        .is_some_and(|head| head.live_version != state.version)
    {
        let text = "the live version cannot be used on this instance; publish a whole set, or roll back";
        return Err(ControlError::PrepareRejected(vec![SetProblem::error(text)]));
    }
    let EditedSet { files, span } = edited;
    let set = publish::ready(parts, files).await;
    let set = set.map_err(|error| EditedSet::divide(span.as_ref(), error))?;
    let (now, live) = live_rules(parts).await;
    if (now.epoch(), now.set_revision) != (state.epoch(), state.set_revision) {
        // These files lack what was published meanwhile.
        return Err(ControlError::stale(now.epoch(), rule_revision(parts, domain, id).await));
    }
    let (next, _, _) = parts.tables.amended(set.rules());
    let is_quickstart = live.rules().iter().any(|rule| layer_of(rule) == RuleLayer::Quickstart);
    let plan = ChangePlan::between(&live, &next);
    // The first rule takes the place of those that are built in.
    let is_other = |line: &&PlanLine| line.domain != domain || line.rule != id;
    let mut others = plan.lines.iter().filter(is_other);
    let others = others.find(|line| !is_quickstart || line.op != PlanOp::Removed);
    if let Some(line) = others {
        // The caller may not know the names of other domains.
        let changed = match line.domain == domain {
            true => format!("`{}`", line.rule),
            false => "a rule of another domain".to_owned(),
        };
        return Err(ControlError::Malformed(format!(
            "this text is not one rule with the id `{id}` in the domain `{domain}`: it changes {changed}"
        )));
    }
    // Another way to write the same rule is no change.
    if plan.is_empty() && find(&live, domain, id).is_some() {
        return Ok(Published {
            version: state.version,
            revision: rule_revision(parts, domain, id).await,
            epoch: state.epoch(),
            changed: false,
            prepared: 1,
            applied: 1,
            ..Published::default()
        });
    }
    let item = ItemKey::Rule {
        domain: domain.to_owned(),
        rule: id.to_owned(),
    };
    publish::publish_set(parts, state, set, None, item, options, author).await
}

/// The file and the lines of a managed rule.
fn managed_lines<'f>(rule: &Rule, files: &'f mut [SetFile]) -> ControlResult<(&'f mut SetFile, RuleLines)> {
    let location = rule.location();
    let Some(path) = location.origin.name.strip_prefix(MANAGED_PREFIX) else {
        return Err(ControlError::FileLayer(location.to_string()));
    };
    let edit_file = || {
        ControlError::Malformed(format!(
            "the rule shares its lines in {path} with others, or is a descriptor; edit the file and push it"
        ))
    };
    let file = files.iter_mut().find(|file| file.path == path).ok_or_else(edit_file)?;
    if file.grammar != Grammar::Own {
        return Err(edit_file());
    }
    let lines = RuleLines::find(&file.text, location.line).ok_or_else(edit_file)?;
    Ok((file, lines))
}

/// A file with one rule.
fn new_file(domain: &str, id: &str, yaml: &str) -> SetFile {
    let mut text = String::new();
    if domain != Attempt::DOMAIN {
        // A JSON text is a YAML text.
        let quoted = serde_json::Value::from(domain);
        let _ = writeln!(text, "domain: {quoted}");
    }
    text.push_str("rules:\n");
    text.push_str(&list_item(yaml, 2));
    SetFile {
        path: format!("managed/{}/{}.yaml", path_part(domain), path_part(id)),
        grammar: Grammar::Own,
        text,
    }
}

/// A name as a part of a path: other characters than letters, digits, `-`, `_` and `.` as `%` and two hexadecimal digits. A long one
/// ends with a part of its digest, so that names that begin alike stay apart.
fn path_part(name: &str) -> String {
    let mut part = String::new();
    for (index, byte) in name.bytes().take(PART_MAX).enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || (byte == b'.' && index > 0);
        if is_plain {
            part.push(char::from(byte));
        } else {
            let _ = write!(part, "%{byte:02x}");
        }
    }
    if name.len() > PART_MAX {
        let digest = digest_of(name.as_bytes()).to_string();
        part.push('-');
        part.extend(digest.chars().take(DIGEST_DIGITS));
    }
    part
}

fn find<'r>(rules: &'r RuleSet, domain: &str, id: &str) -> Option<&'r Rule> {
    rules
        .rules()
        .iter()
        .find(|rule| rule.id() == id && rule.domain() == domain)
}

/// The bytes of a name that a path has, three characters each at most: a path has up to 512.
const PART_MAX: usize = 60;
const DIGEST_DIGITS: usize = 16;
/// Further attempts to edit a rule while others are edited.
const EDIT_RETRIES: u32 = 8;
/// The wait for what was published meanwhile.
const APPLY_WAIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_paths_of_their_own() {
        let path = |id: &str| new_file("default", id, "limit: 1/s").path;
        assert_eq!(path("search"), "managed/default/search.yaml");
        assert_eq!(path("../a b"), "managed/default/%2e.%2fa%20b.yaml");
        // Ids that agree in their first bytes had one path, and the second could not be added.
        let long = "x".repeat(80);
        let paths = [path(&long), path(&format!("{long}1")), path(&format!("{long}2"))];
        assert!(
            paths[0] != paths[1] && paths[1] != paths[2] && paths[0] != paths[2],
            "{paths:?}"
        );
        // A name that looks like a shortened one is shortened itself.
        let shortened = paths[0]
            .trim_start_matches("managed/default/")
            .trim_end_matches(".yaml");
        assert_ne!(path(shortened), paths[0]);
        let longest = new_file(&"ü".repeat(128), &"/".repeat(256), "limit: 1/s").path;
        assert!(longest.len() <= 512, "{}", longest.len());
    }
}
