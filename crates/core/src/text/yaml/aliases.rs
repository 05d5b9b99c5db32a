//! Anchors, aliases and merge keys, for files that were written for another program. Expansion is bounded: a text of a few
//! lines can stand for millions of values.

use super::{DEPTH_MAX, MapKey, NODES_MAX, Node, NodeKind};
use std::collections::HashMap;

/// The most values that the aliases of one text stand for.
pub const ALIASED_MAX: usize = 100_000;

/// The anchored values of a text.
#[derive(Debug, Default)]
pub(super) struct Anchors {
    by_id: HashMap<usize, AnchoredNode>,
    /// Values that are kept for aliases. Those of an anchor beyond the bound are not: its aliases are unknown.
    kept: usize,
    /// Values that aliases have stood for.
    aliased: usize,
}

#[derive(Debug)]
struct AnchoredNode {
    node: Node,
    size: usize,
    depth: usize,
}

/// The reason an alias stands for nothing.
pub(super) enum AliasError {
    /// No value before it has this anchor, or the alias is a part of that value.
    Unknown,
    /// The aliases of the text stand for too many values.
    TooMany,
    /// The value would be nested too deeply.
    TooDeep,
}

impl Anchors {
    /// Keeps the value of an anchor; 0 stands for no anchor.
    pub(super) fn add(&mut self, anchor: usize, node: &Node) {
        if anchor != 0 {
            let (size, depth) = extent(node);
            self.kept = self.kept.saturating_add(size);
            if self.kept <= NODES_MAX {
                let node = node.clone();
                self.by_id.insert(anchor, AnchoredNode { node, size, depth });
            }
        }
    }

    /// Returns the value of an alias that is `open` lists and maps deep.
    pub(super) fn resolve(&mut self, anchor: usize, open: usize) -> Result<Node, AliasError> {
        let anchored = self.by_id.get(&anchor).ok_or(AliasError::Unknown)?;
        self.aliased = self.aliased.saturating_add(anchored.size);
        if self.aliased > ALIASED_MAX {
            return Err(AliasError::TooMany);
        }
        match open + anchored.depth > DEPTH_MAX {
            true => Err(AliasError::TooDeep),
            false => Ok(anchored.node.clone()),
        }
    }
}

/// The number of values in a node, and how deeply they are nested. A long text counts as several values, so that a bound on
/// values is one on memory. The parser bounds the depth.
fn extent(node: &Node) -> (usize, usize) {
    let add = |(size, depth): (usize, usize), child: &Node| {
        let (child_size, child_depth) = extent(child);
        (size + child_size, depth.max(child_depth + 1))
    };
    match &node.kind {
        NodeKind::List(items) => items.iter().fold((1, 1), add),
        NodeKind::Map(entries) => entries.iter().fold((1, 1), |sum, (key, value)| {
            let (size, depth) = add(sum, value);
            (size + key.text.len() / TEXT_UNIT, depth)
        }),
        NodeKind::Text(text) | NodeKind::Number(text) => (1 + text.len() / TEXT_UNIT, 0),
        _ => (1, 0),
    }
}

/// Replaces each `<<` by the entries of the maps it names. Of two equal keys the later one is kept if one of them was
/// merged; two that were both written stay, for the check of duplicate keys.
pub(super) fn merge(entries: Vec<(MapKey, Node)>) -> Vec<(MapKey, Node)> {
    if !entries.iter().any(|(key, _)| &*key.text == MERGE_KEY) {
        return entries;
    }
    let mut merged: Vec<MergedEntry> = Vec::with_capacity(entries.len());
    let mut index: HashMap<Box<str>, usize> = HashMap::new();
    let mut put = |key: MapKey, value: Node, is_written: bool| match index.get(&key.text) {
        Some(at) if merged.get(*at).is_some_and(|known| !(known.is_written && is_written)) => {
            if let Some(known) = merged.get_mut(*at) {
                *known = MergedEntry { key, value, is_written };
            }
        }
        _ => {
            index.insert(key.text.clone(), merged.len());
            merged.push(MergedEntry { key, value, is_written });
        }
    };
    for (key, value) in entries {
        if &*key.text != MERGE_KEY {
            put(key, value, true);
            continue;
        }
        let maps = match value.kind {
            NodeKind::List(maps) => maps,
            _ => vec![value],
        };
        // Of several maps the first has precedence.
        for map in maps.into_iter().rev() {
            if let NodeKind::Map(entries) = map.kind {
                entries.into_iter().for_each(|(key, value)| put(key, value, false));
            }
        }
    }
    merged.into_iter().map(|entry| (entry.key, entry.value)).collect()
}

struct MergedEntry {
    key: MapKey,
    value: Node,
    is_written: bool,
}

const MERGE_KEY: &str = "<<";
/// The bytes of a text that count as one value.
const TEXT_UNIT: usize = 64;
