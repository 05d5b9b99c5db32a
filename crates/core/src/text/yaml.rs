//! YAML 1.2 as a tree with locations: the form of configuration and rules.
//!
//! The text is untrusted: its size, depth and number of nodes are bounded. Features that make YAML dangerous or
//! surprising are rejected with their location: anchors and aliases, tags, several documents, duplicate keys. Files that
//! were written for another program may have anchors, and later documents, which are not read.

mod aliases;
mod node;
mod syntax;

pub use aliases::ALIASED_MAX;
pub use node::{Fields, MapKey, Node, NodeKind};

use self::aliases::{AliasError, Anchors};
use crate::text::problem::{Location, Origin, Problem, Problems};
use granit_parser::{Event, Marker, Parser, ScalarStyle, Span};
use std::collections::HashMap;
use std::sync::Arc;

/// Reads one document.
///
/// # Errors
/// All problems of the document as YAML, or the one at which parsing stopped.
pub fn parse(origin: &Arc<Origin>) -> Result<Node, Vec<Problem>> {
    build(origin, None)
}

/// Reads the first document of a text that was written for another program: anchors, aliases and merge keys are expanded,
/// at most [`ALIASED_MAX`] values, and later documents are not read.
///
/// # Errors
/// All problems of the document as YAML, or the one at which parsing stopped.
pub fn parse_first_document(origin: &Arc<Origin>) -> Result<Node, Vec<Problem>> {
    build(origin, Some(Anchors::default()))
}

/// The start of the second document of a text, if it holds something.
pub fn second_document(origin: &Arc<Origin>) -> Option<Location> {
    // Few texts have a line that starts one.
    if !origin.text.contains("\n---") && !origin.text.contains("\n...") || origin.text.len() > BYTES_MAX {
        return None;
    }
    let builder = TreeBuilder::new(origin, None);
    let mut documents = 0;
    let mut start = None;
    for event in Parser::new_from_str_with_options(&origin.text, parser_options()) {
        match event {
            Ok((Event::DocumentStart(..), span)) => {
                documents += 1;
                start = Some(builder.location(&span.start, None));
            }
            // The parser writes `~` for nothing.
            Ok((Event::Scalar(text, ScalarStyle::Plain, ..), _)) if documents > 1 && matches!(&*text, "" | "~") => {
                return None;
            }
            Ok((Event::DocumentEnd, _)) if documents > 1 => return None,
            Ok((Event::StreamEnd, _)) | Err(_) if documents <= 1 => return None,
            Ok(_) if documents <= 1 => {}
            Ok(_) | Err(_) => return start,
        }
    }
    None
}

fn build(origin: &Arc<Origin>, anchors: Option<Anchors>) -> Result<Node, Vec<Problem>> {
    let mut builder = TreeBuilder::new(origin, anchors);
    builder.run();
    if builder.problems.has_errors() {
        return Err(builder.problems.sorted());
    }
    Ok(builder.root.unwrap_or(Node {
        location: Location::start(origin),
        kind: NodeKind::Null,
    }))
}

/// The most bytes of one text.
pub const BYTES_MAX: usize = 16 << 20;
/// The most scalars, lists and maps of one text, keys included.
pub const NODES_MAX: usize = 2_000_000;
/// The deepest nesting of lists and maps.
pub const DEPTH_MAX: usize = 32;

/// Builds the tree from parser events. Open lists and maps are on an explicit stack, so nesting uses no call stack.
struct TreeBuilder<'o> {
    origin: &'o Arc<Origin>,
    open: Vec<OpenNode>,
    root: Option<Node>,
    documents: usize,
    nodes: usize,
    /// None where anchors are rejected.
    anchors: Option<Anchors>,
    problems: Problems,
}

/// A list or a map whose end was not parsed yet.
struct OpenNode {
    location: Location,
    anchor: usize,
    children: Children,
}

enum Children {
    List(Vec<Node>),
    Map {
        entries: Vec<(MapKey, Node)>,
        expecting: Expecting,
    },
}

/// The next part of a map.
enum Expecting {
    Key,
    Value(MapKey),
    /// The value of an invalid key.
    Ignored,
}

impl<'o> TreeBuilder<'o> {
    fn new(origin: &'o Arc<Origin>, anchors: Option<Anchors>) -> Self {
        Self {
            origin,
            open: Vec::new(),
            root: None,
            documents: 0,
            nodes: 0,
            anchors,
            problems: Problems::new(),
        }
    }

    fn run(&mut self) {
        let start = Location::start(self.origin);
        if self.origin.text.len() > BYTES_MAX {
            let size = self.origin.text.len();
            self.problems.error_with(
                &start,
                format!("the text has {size} bytes, more than the {BYTES_MAX} that are read"),
                "split it into several files",
            );
            return;
        }
        for event in Parser::new_from_str_with_options(&self.origin.text, parser_options()) {
            let proceed = match event {
                Ok((event, span)) => self.handle_event(event, span),
                Err(error) => {
                    let location = self.location(error.marker(), None);
                    self.problems.push(syntax::problem(&location, &error));
                    false
                }
            };
            if !proceed {
                return;
            }
        }
    }

    /// Adds an event to the tree. True if parsing continues.
    fn handle_event(&mut self, event: Event<'_>, span: Span) -> bool {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 && self.anchors.is_some() {
                    return false;
                }
                if self.documents > 1 {
                    let location = self.location(&span.start, None);
                    self.problems.error_with(
                        &location,
                        "a second document starts here",
                        "keep one document per file: remove the `---`, or move the second document to its own file",
                    );
                    return false;
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.reject_anchors_and_tags(&span, anchor, tag.is_some());
                let location = self.location(&span.start, Some(&span.end));
                let kind = if style == ScalarStyle::Plain {
                    NodeKind::from_plain(&text)
                } else {
                    NodeKind::Text(text.into())
                };
                let node = Node { location, kind };
                self.keep_anchor(anchor, &node);
                return self.count_node(&node.location) && self.attach(node);
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.reject_anchors_and_tags(&span, anchor, tag.is_some());
                return self.open_node(&span, anchor, Children::List(Vec::new()));
            }
            Event::MappingStart(_, anchor, tag) => {
                self.reject_anchors_and_tags(&span, anchor, tag.is_some());
                let entries = Vec::new();
                let expecting = Expecting::Key;
                return self.open_node(&span, anchor, Children::Map { entries, expecting });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(OpenNode {
                    location,
                    anchor,
                    children,
                }) = self.open.pop()
                else {
                    return true;
                };
                let kind = match children {
                    Children::List(items) => NodeKind::List(items),
                    Children::Map { mut entries, .. } => {
                        if self.anchors.is_some() {
                            entries = aliases::merge(entries);
                        }
                        self.reject_duplicate_keys(&entries);
                        NodeKind::Map(entries)
                    }
                };
                let node = Node { location, kind };
                self.keep_anchor(anchor, &node);
                return self.attach(node);
            }
            Event::Alias(anchor) => return self.attach_alias(&span, Some(anchor)),
            Event::UnresolvedAlias(_) => return self.attach_alias(&span, None),
            // Not part of a document, or not enabled.
            _ => {}
        }
        true
    }

    /// Adds the value of an alias, or reports an unknown one. True if parsing continues.
    fn attach_alias(&mut self, span: &Span, anchor: Option<usize>) -> bool {
        let location = self.location(&span.start, Some(&span.end));
        let resolved = match (&mut self.anchors, anchor) {
            (Some(anchors), Some(anchor)) => anchors.resolve(anchor, self.open.len()),
            (Some(_), None) => Err(AliasError::Unknown),
            (None, _) => {
                self.problems
                    .error_with(&location, "aliases are not supported", "repeat the value here");
                let kind = NodeKind::Null;
                return self.count_node(&location) && self.attach(Node { location, kind });
            }
        };
        match resolved {
            Ok(node) => self.count_node(&location) && self.attach(node),
            Err(AliasError::Unknown) => {
                let hint = "write `&name` before the value, further up";
                self.problems.error_with(&location, "no value has this anchor", hint);
                false
            }
            Err(AliasError::TooMany) => {
                let text = format!("the aliases stand for more than {ALIASED_MAX} values");
                self.problems
                    .error_with(&location, text, "use fewer, or split the file");
                false
            }
            Err(AliasError::TooDeep) => {
                self.problems.push(syntax::too_deep(&location));
                false
            }
        }
    }

    fn keep_anchor(&mut self, anchor: usize, node: &Node) {
        if let Some(anchors) = &mut self.anchors {
            anchors.add(anchor, node);
        }
    }

    fn open_node(&mut self, span: &Span, anchor: usize, children: Children) -> bool {
        let location = self.location(&span.start, None);
        if self.open.len() >= DEPTH_MAX {
            self.problems.push(syntax::too_deep(&location));
            return false;
        }
        let proceed = self.count_node(&location);
        self.open.push(OpenNode {
            location,
            anchor,
            children,
        });
        proceed
    }

    /// Adds a finished node to its parent.
    fn attach(&mut self, node: Node) -> bool {
        match self.open.last_mut().map(|open| &mut open.children) {
            None => self.root = Some(node),
            Some(Children::List(items)) => items.push(node),
            Some(Children::Map { entries, expecting }) => match std::mem::replace(expecting, Expecting::Key) {
                Expecting::Value(key) => entries.push((key, node)),
                Expecting::Ignored => {}
                Expecting::Key => {
                    *expecting = match MapKey::from_node(node) {
                        Ok(key) => Expecting::Value(key),
                        Err(location) => {
                            self.problems.error_with(
                                &location,
                                "this cannot be a key",
                                "a key is one word or a text in quotes, followed by `: `",
                            );
                            Expecting::Ignored
                        }
                    };
                }
            },
        }
        true
    }

    fn count_node(&mut self, location: &Location) -> bool {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            self.problems.error_with(
                location,
                format!("the text has more than {NODES_MAX} values"),
                "split it into several files",
            );
            return false;
        }
        true
    }

    fn reject_anchors_and_tags(&mut self, span: &Span, anchor: usize, tagged: bool) {
        if anchor != 0 && self.anchors.is_none() {
            let location = self.location(&span.start, Some(&span.end));
            self.problems.error_with(
                &location,
                "anchors are not supported",
                "remove the `&name` and repeat the value where it is needed",
            );
        }
        if tagged {
            let location = self.location(&span.tag_start().unwrap_or(span.start), None);
            self.problems.error_with(
                &location,
                "tags are not supported",
                "remove the `!tag`; put a text that looks like a number in quotes",
            );
        }
    }

    fn reject_duplicate_keys(&mut self, entries: &[(MapKey, Node)]) {
        let mut seen: HashMap<&str, &Location> = HashMap::with_capacity(entries.len());
        for (key, _) in entries {
            if let Some(first) = seen.get(&*key.text) {
                self.problems.error_with(
                    &key.location,
                    format!("duplicate key `{}`", excerpt(&key.text)),
                    format!("the first is at {first}; remove one"),
                );
            } else {
                seen.insert(&key.text, &key.location);
            }
        }
    }

    fn location(&self, start: &Marker, end: Option<&Marker>) -> Location {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let width = match end {
            Some(end) if end.line() == start.line() => end.col().saturating_sub(start.col()).max(1),
            // To the end of the line.
            Some(_) => usize::MAX,
            None => 1,
        };
        Location {
            origin: Arc::clone(self.origin),
            line: number(start.line()),
            column: number(start.col().saturating_add(1)),
            width: number(width),
        }
    }
}

fn parser_options() -> granit_parser::Options {
    granit_parser::options! {
        emit_comments: false,
        emit_unresolved_aliases: true,
        flow_nesting_limit: DEPTH_MAX,
        block_nesting_limit: DEPTH_MAX,
    }
}

/// The beginning of a text from outside, for messages.
pub(crate) fn excerpt(text: &str) -> String {
    const EXCERPT_MAX: usize = 60;
    let mut excerpt = String::new();
    for letter in text.chars().take(EXCERPT_MAX) {
        if letter.is_control() {
            excerpt.extend(letter.escape_default());
        } else {
            excerpt.push(letter);
        }
    }
    if text.chars().nth(EXCERPT_MAX).is_some() {
        excerpt.push('…');
    }
    excerpt
}

#[cfg(test)]
mod tests;
