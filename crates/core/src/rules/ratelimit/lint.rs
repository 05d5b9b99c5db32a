//! Lint warnings for descriptors that parse but are probably mistakes.

use super::compile::is_reportable;
use super::file::Pattern;
use super::tree::{DescriptorLevel, DescriptorNode, Descriptors};
use crate::problem::{Problem, Problems};
use crate::yaml::excerpt;

/// Warns of every probable mistake.
pub(super) fn lint(descriptors: &Descriptors, problems: &mut Problems) {
    for level in descriptors.domains.values() {
        lint_level(level, problems);
    }
}

fn lint_level(level: &DescriptorLevel, problems: &mut Problems) {
    warn_shadowed_patterns(level, problems);
    warn_ambiguous_keys(level, problems);
    warn_unreachable_children(level, problems);
    warn_unreportable_names(level, problems);
    warn_covered_keys(level, problems);
    for node in &level.nodes {
        lint_level(&node.children, problems);
    }
}

/// Warns of patterns after a pattern that covers them.
fn warn_shadowed_patterns(level: &DescriptorLevel, problems: &mut Problems) {
    let patterns = || level.nodes.iter().filter(|node| node.pattern.is_some());
    for (index, later) in patterns().enumerate().take(PATTERNS_COMPARED_MAX) {
        let covers = |earlier: &&DescriptorNode| match (&earlier.pattern, &later.pattern) {
            (Some(earlier), Some(later)) => earlier.covers(later),
            _ => false,
        };
        if let Some(earlier) = patterns().take(index).find(covers) {
            let text = format!(
                "`{}` is never reached by a pattern: `{}` comes first and covers it",
                excerpt(&later.name),
                excerpt(&earlier.name)
            );
            problems.push(Problem::warning(&later.location, text).with_hint("put the narrower pattern first"));
        }
    }
}

/// Warns of nodes that also match another key, because keys and values are joined by an underscore.
fn warn_ambiguous_keys(level: &DescriptorLevel, problems: &mut Problems) {
    for node in &level.nodes {
        // `a_b` with `c` has the same composite key as `a` with `b_c`.
        let underscores = node.key.match_indices('_').map(|(at, _)| at);
        for at in underscores {
            let shorter = node.key.get(..at).and_then(|key| level.by_name.get(key));
            if let Some(other) = shorter.and_then(|&index| level.nodes.get(index))
                && !other.has_value
            {
                let value = node.name.get(at + 1..).unwrap_or_default();
                let text = format!(
                    "`{}` also takes requests whose key is `{}` and whose value is `{}`",
                    excerpt(&node.name),
                    excerpt(&other.key),
                    excerpt(value)
                );
                problems.push(
                    Problem::warning(&node.location, text)
                        .with_hint("keys and values are joined by `_`; choose another key"),
                );
            }
        }
    }
}

/// Warns of nodes below a bare key that requests with a value of their own never reach: matching does not backtrack.
fn warn_unreachable_children(level: &DescriptorLevel, problems: &mut Problems) {
    for valued in level.nodes.iter().filter(|node| node.has_value) {
        let any = level.by_name.get(&valued.key).and_then(|&index| level.nodes.get(index));
        // A node without limit and children is meant as an exception.
        let is_exception = valued.limit.is_none() && valued.children.nodes.is_empty();
        let Some(any) = any.filter(|_| !is_exception) else {
            continue;
        };
        let unreached = any
            .children
            .nodes
            .iter()
            .find(|node| !valued.children.by_name.contains_key(&node.name));
        if let Some(unreached) = unreached {
            let text = format!(
                "requests of `{}` do not reach `{}` below `{}`: only the limits here apply to them",
                excerpt(&valued.name),
                excerpt(&unreached.name),
                excerpt(&any.name)
            );
            problems.push(
                Problem::warning(&valued.location, text).with_hint("repeat it here if it should apply to them too"),
            );
        }
    }
}

/// Warns of names that responses leave out.
fn warn_unreportable_names(level: &DescriptorLevel, problems: &mut Problems) {
    let limits = level.nodes.iter().filter_map(|node| node.limit.as_ref());
    for limit in limits.filter(|limit| !is_reportable(&limit.name)) {
        let text = format!(
            "the name `{}` is left out of responses: Envoy would copy it into a header unescaped",
            excerpt(&limit.name)
        );
        problems.push(
            Problem::warning(&limit.location, text)
                .with_hint("use letters, digits and spaces, without quotes and backslashes"),
        );
    }
}

/// Warns of bare keys next to a pattern that covers every value of theirs.
fn warn_covered_keys(level: &DescriptorLevel, problems: &mut Problems) {
    let patterns = || {
        level
            .nodes
            .iter()
            .filter_map(|node| Some((node, node.pattern.as_ref()?)))
    };
    let bare_keys = level
        .nodes
        .iter()
        .filter(|node| !node.has_value && node.pattern.is_none());
    for node in bare_keys.take(PATTERNS_COMPARED_MAX) {
        let Some(every) = Pattern::new(&format!("{}_*", node.key)) else {
            continue;
        };
        let covering = patterns()
            .take(PATTERNS_COMPARED_MAX)
            .find(|(_, pattern)| pattern.covers(&every));
        if let Some((covering, _)) = covering {
            let text = format!(
                "`{}` is never reached: every value of this key matches `{}`",
                excerpt(&node.name),
                excerpt(&covering.name)
            );
            let hint = "remove one of the two; a pattern is tried before the bare key";
            problems.push(Problem::warning(&node.location, text).with_hint(hint));
        }
    }
}

/// The maximum number of patterns per list that are compared: the time is quadratic.
const PATTERNS_COMPARED_MAX: usize = 1_000;
