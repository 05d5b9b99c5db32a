//! What can be read and is hardly meant.

use super::compile::can_be_told;
use super::tree::{Branch, Descriptors, Node};
use super::wildcard::Pattern;
use crate::problem::{Problem, Problems};
use crate::yaml::shown;

/// Warns of all of it.
pub(super) fn lint(descriptors: &Descriptors, problems: &mut Problems) {
    for branch in descriptors.domains.values() {
        level(branch, problems);
    }
}

fn level(branch: &Branch, problems: &mut Problems) {
    shadowed(branch, problems);
    mistaken(branch, problems);
    passed_by(branch, problems);
    untold(branch, problems);
    covered(branch, problems);
    for node in &branch.nodes {
        level(&node.below, problems);
    }
}

/// Patterns behind one that everything fits which fits them.
fn shadowed(branch: &Branch, problems: &mut Problems) {
    let patterns = || branch.nodes.iter().filter(|node| node.pattern.is_some());
    for (place, later) in patterns().enumerate().take(PATTERNS_COMPARED) {
        let covers = |earlier: &&Node| match (&earlier.pattern, &later.pattern) {
            (Some(earlier), Some(later)) => earlier.covers(later),
            _ => false,
        };
        if let Some(earlier) = patterns().take(place).find(covers) {
            let text = format!(
                "`{}` is never reached by a pattern: `{}` stands before it and fits all that it fits",
                shown(&later.name),
                shown(&earlier.name)
            );
            problems.push(Problem::warning(&later.place, text).hint("put the narrower pattern first"));
        }
    }
}

/// Nodes that stand for another key as well, because keys and values are joined by an underscore.
fn mistaken(branch: &Branch, problems: &mut Problems) {
    for node in &branch.nodes {
        // `a_b` with `c` is also what `a` with `b_c` comes to.
        let underscores = node.key.match_indices('_').map(|(at, _)| at);
        for at in underscores {
            let shorter = node.key.get(..at).and_then(|key| branch.by_name.get(key));
            if let Some(other) = shorter.and_then(|&place| branch.nodes.get(place))
                && !other.has_value
            {
                let value = node.name.get(at + 1..).unwrap_or_default();
                let text = format!(
                    "`{}` also takes requests whose key is `{}` and whose value is `{}`",
                    shown(&node.name),
                    shown(&other.key),
                    shown(value)
                );
                problems.push(
                    Problem::warning(&node.place, text).hint("keys and values are joined by `_`; choose another key"),
                );
            }
        }
    }
}

/// Nodes below a key alone that requests with a value of its own never come to: there is no way back.
fn passed_by(branch: &Branch, problems: &mut Problems) {
    for valued in branch.nodes.iter().filter(|node| node.has_value) {
        let any = branch
            .by_name
            .get(&valued.key)
            .and_then(|&place| branch.nodes.get(place));
        // One without anything is meant as an exception.
        let is_exception = valued.limit.is_none() && valued.below.nodes.is_empty();
        let Some(any) = any.filter(|_| !is_exception) else {
            continue;
        };
        let missed = any
            .below
            .nodes
            .iter()
            .find(|node| !valued.below.by_name.contains_key(&node.name));
        if let Some(missed) = missed {
            let text = format!(
                "requests of `{}` do not come to `{}` below `{}`: they are held to what stands here",
                shown(&valued.name),
                shown(&missed.name),
                shown(&any.name)
            );
            problems.push(Problem::warning(&valued.place, text).hint("repeat it here if it is meant for them too"));
        }
    }
}

/// Names of limits that answers leave out.
fn untold(branch: &Branch, problems: &mut Problems) {
    let limits = branch.nodes.iter().filter_map(|node| node.limit.as_ref());
    for limit in limits.filter(|limit| !can_be_told(&limit.name)) {
        let text = format!(
            "the name `{}` is not told in answers: Envoy would write it into a header as it is",
            shown(&limit.name)
        );
        problems.push(
            Problem::warning(&limit.place, text).hint("use letters, digits and spaces, without quotes and backslashes"),
        );
    }
}

/// Keys alone beside a pattern that every value of theirs fits.
fn covered(branch: &Branch, problems: &mut Problems) {
    let patterns = || {
        branch
            .nodes
            .iter()
            .filter_map(|node| Some((node, node.pattern.as_ref()?)))
    };
    let alone = branch
        .nodes
        .iter()
        .filter(|node| !node.has_value && node.pattern.is_none());
    for node in alone.take(PATTERNS_COMPARED) {
        let Some(every) = Pattern::of(&format!("{}_*", node.key)) else {
            continue;
        };
        let covering = patterns()
            .take(PATTERNS_COMPARED)
            .find(|(_, pattern)| pattern.covers(&every));
        if let Some((covering, _)) = covering {
            let text = format!(
                "`{}` is never reached: every value of this key fits `{}`",
                shown(&node.name),
                shown(&covering.name)
            );
            let hint = "take one of the two away; a pattern is tried before the key alone";
            problems.push(Problem::warning(&node.place, text).hint(hint));
        }
    }
}

/// So many patterns of one list are compared with each other: more would take time that grows with their square.
const PATTERNS_COMPARED: usize = 1_000;
