//! What is wrong with a text as YAML, in words that say what to do.

use super::DEPTH_MAX;
use crate::text::problem::{Location, Problem};
use granit_parser::{ErrorKind, ScanError};

/// The problem behind a refusal of the parser.
pub(super) fn problem(location: &Location, error: &ScanError) -> Problem {
    use ErrorKind as Is;
    match error.kind() {
        Is::RecursionLimitExceeded => too_deep(location),
        Is::TabNotAllowed | Is::TabInBlockIndentation | Is::TabInIndentation | Is::TabInPlainScalar => {
            Problem::error(location, "a tab stands where YAML wants spaces").with_hint("indent with spaces")
        }
        Is::MappingValueNotAllowed | Is::InvalidColonPlacement => {
            Problem::error(location, "a `:` stands where no key can be")
                .with_hint("put a text with `: ` in it in quotes; otherwise look at the indentation")
        }
        Is::UnclosedQuotedScalar | Is::DocumentIndicatorInQuotedScalar | Is::InvalidQuotedScalarIndent => {
            Problem::error(location, "a quote is not closed").with_hint("every quote that opens a text needs its twin")
        }
        Is::UnclosedFlowCollection { open } => Problem::error(location, format!("a `{open}` is not closed"))
            .with_hint(format!("add the `{}` that is missing", closing_bracket(*open))),
        Is::UnexpectedEofFlowSequence | Is::ExpectedFlowSequenceSeparator => {
            Problem::error(location, "a `,` or a `]` is missing in a list").with_hint("a list is [one, two]")
        }
        Is::UnexpectedEofFlowMapping | Is::UnexpectedEofImplicitFlowMapping | Is::ExpectedFlowMappingSeparator => {
            Problem::error(location, "a `,` or a `}` is missing in a map")
                .with_hint("a map is { key: value, other: value }")
        }
        Is::MismatchedFlowCollectionEnd { open, close } => {
            Problem::error(location, format!("a `{open}` is closed by `{close}`"))
                .with_hint(format!("close it with `{}`", closing_bracket(*open)))
        }
        Is::SimpleKeyExpected | Is::InvalidSimpleKey => Problem::error(location, "a key without its `:`")
            .with_hint("write `key: value`, with a space after the colon"),
        Is::ExpectedBlockMappingKey | Is::InvalidIndentation | Is::ExpectedBlockSequenceEntry => {
            Problem::error(location, "this does not line up with what stands above it")
                .with_hint("keys of one map begin in the same column, and so do the dashes of one list")
        }
        Is::UnexpectedCharacter { character } => {
            let shown = character.escape_debug();
            Problem::error(location, format!("a text cannot begin with `{shown}`")).with_hint("put it in quotes")
        }
        Is::UnknownQuotedScalarEscape => Problem::error(location, "this escape is not known to YAML")
            .with_hint("in single quotes a backslash is a backslash: '\\d+'"),
        _ => Problem::error(location, format!("this is not YAML: {}", error.info())),
    }
}

/// The problem of a list or a map in too many others.
pub(super) fn too_deep(location: &Location) -> Problem {
    Problem::error(
        location,
        format!("lists and maps lie in each other more than {DEPTH_MAX} deep"),
    )
    .with_hint("nothing that is read here needs that; look for a bracket too many")
}

const fn closing_bracket(open: char) -> char {
    if open == '[' { ']' } else { '}' }
}
