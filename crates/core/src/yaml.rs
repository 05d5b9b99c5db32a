//! YAML 1.2 as a tree with places: what configuration and rules are read from.
//!
//! A text is taken as data from outside: its size, depth and number of parts are bounded, and what makes YAML dangerous or
//! surprising is refused with its place: anchors and aliases, tags, several documents, a key given twice.

mod node;
mod syntax;

pub use node::{Fields, Key, Kind, Node};

use crate::problem::{Origin, Location, Problem, Problems};
use granit_parser::{Event, Marker, Parser, ScalarStyle, Span};
use std::collections::HashMap;
use std::sync::Arc;

/// Reads one document.
///
/// # Errors
/// Everything that is wrong with it as YAML, or the one thing that kept it from being read further.
pub fn parse(origin: &Arc<Origin>) -> Result<Node, Vec<Problem>> {
    let mut reading = Reading::new(origin);
    reading.run();
    if reading.problems.has_errors() {
        return Err(reading.problems.sorted());
    }
    Ok(reading.root.unwrap_or(Node {
        place: Location::start(origin),
        kind: Kind::Null,
    }))
}

/// The most bytes of one text.
pub const BYTES_MAX: usize = 16 << 20;
/// The most scalars, lists and maps of one text, keys included.
pub const NODES_MAX: usize = 2_000_000;
/// The most lists and maps within each other.
pub const DEPTH_MAX: usize = 32;

/// A document half read. Lists and maps that are still open are a stack of our own, so depth costs no stack.
struct Reading<'o> {
    origin: &'o Arc<Origin>,
    open: Vec<Open>,
    root: Option<Node>,
    documents: usize,
    nodes: usize,
    problems: Problems,
}

/// A list or a map whose end was not read yet.
struct Open {
    place: Location,
    parts: Parts,
}

enum Parts {
    List(Vec<Node>),
    Map { entries: Vec<(Key, Node)>, awaits: Awaits },
}

/// What a map takes next.
enum Awaits {
    Key,
    Value(Key),
    /// The value of a key that was refused.
    Nothing,
}

impl<'o> Reading<'o> {
    fn new(origin: &'o Arc<Origin>) -> Self {
        Self {
            origin,
            open: Vec::new(),
            root: None,
            documents: 0,
            nodes: 0,
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
        let options = granit_parser::options! {
            emit_comments: false,
            emit_unresolved_aliases: true,
            flow_nesting_limit: DEPTH_MAX,
            block_nesting_limit: DEPTH_MAX,
        };
        for event in Parser::new_from_str_with_options(&self.origin.text, options) {
            let going = match event {
                Ok((event, span)) => self.take(event, span),
                Err(refusal) => {
                    let place = self.place(refusal.marker(), None);
                    self.problems.push(syntax::problem(&place, &refusal));
                    false
                }
            };
            if !going {
                return;
            }
        }
    }

    /// Whether to go on.
    fn take(&mut self, event: Event<'_>, span: Span) -> bool {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let place = self.place(&span.start, None);
                    self.problems.error_with(
                        &place,
                        "a second document begins here",
                        "keep one document in a file: take out the `---`, or move what follows to a file of its own",
                    );
                    return false;
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_properties(&span, anchor, tag.is_some());
                let place = self.place(&span.start, Some(&span.end));
                let kind = if style == ScalarStyle::Plain {
                    Kind::of_plain(&text)
                } else {
                    Kind::Text(text.into())
                };
                return self.count(&place) && self.finish(Node { place, kind });
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.refuse_properties(&span, anchor, tag.is_some());
                return self.begin(&span, Parts::List(Vec::new()));
            }
            Event::MappingStart(_, anchor, tag) => {
                self.refuse_properties(&span, anchor, tag.is_some());
                let entries = Vec::new();
                let awaits = Awaits::Key;
                return self.begin(&span, Parts::Map { entries, awaits });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Open { place, parts }) = self.open.pop() else {
                    return true;
                };
                let kind = match parts {
                    Parts::List(items) => Kind::List(items),
                    Parts::Map { entries, .. } => {
                        self.refuse_twins(&entries);
                        Kind::Map(entries)
                    }
                };
                return self.finish(Node { place, kind });
            }
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                let place = self.place(&span.start, Some(&span.end));
                self.problems
                    .error_with(&place, "aliases are not read", "write the value out here");
                let kind = Kind::Null;
                return self.count(&place) && self.finish(Node { place, kind });
            }
            // Nothing of a document, or not asked for.
            _ => {}
        }
        true
    }

    fn begin(&mut self, span: &Span, parts: Parts) -> bool {
        let place = self.place(&span.start, None);
        if self.open.len() >= DEPTH_MAX {
            self.problems.push(syntax::too_deep(&place));
            return false;
        }
        let going = self.count(&place);
        self.open.push(Open { place, parts });
        going
    }

    /// Gives a part that is read to what it stands in.
    fn finish(&mut self, node: Node) -> bool {
        match self.open.last_mut().map(|open| &mut open.parts) {
            None => self.root = Some(node),
            Some(Parts::List(items)) => items.push(node),
            Some(Parts::Map { entries, awaits }) => match std::mem::replace(awaits, Awaits::Key) {
                Awaits::Value(key) => entries.push((key, node)),
                Awaits::Nothing => {}
                Awaits::Key => {
                    *awaits = match Key::of(node) {
                        Ok(key) => Awaits::Value(key),
                        Err(place) => {
                            self.problems.error_with(
                                &place,
                                "this cannot be a key",
                                "a key is one word or a text in quotes, followed by `: `",
                            );
                            Awaits::Nothing
                        }
                    };
                }
            },
        }
        true
    }

    fn count(&mut self, place: &Location) -> bool {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            self.problems.error_with(
                place,
                format!("the text has more than {NODES_MAX} values"),
                "split it into several files",
            );
            return false;
        }
        true
    }

    fn refuse_properties(&mut self, span: &Span, anchor: usize, tagged: bool) {
        if anchor != 0 {
            let place = self.place(&span.start, Some(&span.end));
            self.problems.error_with(
                &place,
                "this has an anchor, and anchors are not read",
                "take the `&name` away and write the value out where it is wanted",
            );
        }
        if tagged {
            let place = self.place(&span.tag_start().unwrap_or(span.start), None);
            self.problems.error_with(
                &place,
                "tags are not read",
                "take the `!tag` away; a text that looks like a number is put in quotes",
            );
        }
    }

    fn refuse_twins(&mut self, entries: &[(Key, Node)]) {
        let mut seen: HashMap<&str, &Location> = HashMap::with_capacity(entries.len());
        for (key, _) in entries {
            if let Some(first) = seen.get(&*key.text) {
                self.problems.error_with(
                    &key.place,
                    format!("`{}` stands here twice", shown(&key.text)),
                    format!("the first is at {first}; take one away"),
                );
            } else {
                seen.insert(&key.text, &key.place);
            }
        }
    }

    fn place(&self, start: &Marker, end: Option<&Marker>) -> Location {
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

/// A text from outside as a message repeats it: its beginning if it is long.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let mut shown = String::new();
    for letter in text.chars().take(MOST) {
        if letter.is_control() {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests;
