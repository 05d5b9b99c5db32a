//! Errors of the YAML parser as problems with hints.

use super::DEPTH_MAX;
use crate::text::problem::{Location, Problem};
use granit_parser::{ErrorKind, ScanError};

/// The problem for an error of the parser.
pub(super) fn problem(location: &Location, error: &ScanError) -> Problem {
    use ErrorKind as Is;
    match error.kind() {
        Is::RecursionLimitExceeded => too_deep(location),
        Is::TabNotAllowed | Is::TabInBlockIndentation | Is::TabInIndentation | Is::TabInPlainScalar => {
            Problem::error(location, "a tab where YAML requires spaces").with_hint("indent with spaces")
        }
        Is::MappingValueNotAllowed | Is::InvalidColonPlacement => Problem::error(location, "a `:` where no key can be")
            .with_hint("put a text with `: ` in it in quotes; otherwise check the indentation"),
        Is::UnclosedQuotedScalar | Is::DocumentIndicatorInQuotedScalar | Is::InvalidQuotedScalarIndent => {
            Problem::error(location, "a quote is not closed").with_hint("add the closing quote")
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
            Problem::error(location, "this is not aligned with the lines above it")
                .with_hint("keys of one map start in the same column, and so do the dashes of one list")
        }
        Is::UnexpectedCharacter { character } => {
            let shown = character.escape_debug();
            Problem::error(location, format!("a text cannot begin with `{shown}`")).with_hint("put it in quotes")
        }
        Is::UnknownQuotedScalarEscape => Problem::error(location, "unknown escape sequence")
            .with_hint("in single quotes a backslash is a backslash: '\\d+'"),
        _ => Problem::error(location, format!("this is not YAML: {}", error.info())),
    }
}

/// The problem of too deep nesting.
pub(super) fn too_deep(location: &Location) -> Problem {
    Problem::error(
        location,
        format!("lists and maps are nested more than {DEPTH_MAX} deep"),
    )
    .with_hint("look for an extra bracket")
}

const fn closing_bracket(open: char) -> char {
    if open == '[' { ']' } else { '}' }
}
