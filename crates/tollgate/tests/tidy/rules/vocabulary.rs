//! The rules about words: which may name something, which may be read by users, and how doc comments open.
//!
//! A word is banned because it says nothing an engineer would search for, or because the glossary has another one for the idea.

use super::{extension, file_name};
use crate::exceptions;
use crate::repository::File;
use crate::source::{Kind, Token, tokens, without_tests};

/// Types, functions, fields, constants, modules and files have no banned word in their names.
pub(crate) fn names(files: &[File]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files
        .iter()
        .filter(|file| is_source(&file.path) || extension(&file.path) == "lua")
    {
        let mut found = |line: Option<usize>, name: &str| {
            for word in words(name).filter(|word| BANNED_IN_NAMES.contains(&word.as_str())) {
                let line = line.map(|line| format!(":{line}")).unwrap_or_default();
                violations.push(format!("{}{line}: `{name}`: `{word}` is banned in names", file.path));
            }
        };
        for part in file.path.split('/').flat_map(|part| part.split('.')) {
            found(None, part);
        }
        if extension(&file.path) == "lua" {
            for (number, line) in (1..).zip(file.text.lines()) {
                let code = line.split("--").next().unwrap_or_default();
                for name in code.split(|c: char| !c.is_alphanumeric() && c != '_') {
                    found(Some(number), name);
                }
            }
        } else {
            for (line, name) in definitions(&live_tokens(file)) {
                found(Some(line), &name);
            }
        }
    }
    violations
}

/// What a user or a reader of the documentation sees has none of the banned words and phrases.
pub(crate) fn texts(files: &[File]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files {
        let mut found = |line: usize, text: &str| {
            for (offset, phrase) in banned_phrases(text) {
                let line = line + text[..offset].matches('\n').count();
                violations.push(format!("{}:{line}: `{phrase}` is banned in text for users", file.path));
            }
        };
        if is_source(&file.path) {
            for token in live_tokens(file) {
                if let Kind::Literal(text) | Kind::Doc(text) = &token.kind {
                    found(token.line, text);
                }
            }
        } else if is_page(&file.path) {
            found(1, &file.text);
        }
    }
    violations
}

/// A public type has a name no other public type has, whatever the crate.
pub(crate) fn public_types(files: &[File]) -> Vec<String> {
    let mut named: Vec<(String, String)> = Vec::new();
    for file in files.iter().filter(|file| is_source(&file.path)) {
        for [visibility, keyword, name] in live_tokens(file).array_windows() {
            if visibility.name() == Some("pub")
                && keyword.name().is_some_and(|keyword| TYPE_KEYWORDS.contains(&keyword))
                && let Some(name) = name.name()
                && !exceptions::is_shared_type_name(&file.path, name)
            {
                named.push((name.into(), file.path.clone()));
            }
        }
    }
    named.sort();
    named
        .chunk_by(|(one, _), (other, _)| one == other)
        .filter(|types| types.len() > 1)
        .map(|types| {
            let paths: Vec<&str> = types.iter().map(|(_, path)| path.as_str()).collect();
            format!(
                "{}: `{}` is the name of several public types",
                paths.join(", "),
                types.first().map_or("", |(name, _)| name.as_str())
            )
        })
        .collect()
}

/// A doc comment opens with a noun phrase or a verb, never with a question word.
pub(crate) fn doc_openings(files: &[File]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| is_source(&file.path)) {
        for token in tokens(&file.text) {
            if let Kind::Doc(text) = &token.kind
                && let Some(word) = text.split(|c: char| !c.is_alphanumeric()).next()
                && QUESTION_WORDS.contains(&word)
            {
                let line = token.line;
                violations.push(format!("{}:{line}: a doc comment opens with `{word}`", file.path));
            }
        }
    }
    violations
}

/// The names a file defines, with their lines: items, fields and variants; not locals and parameters.
fn definitions(tokens: &[Token]) -> Vec<(usize, String)> {
    let code: Vec<&Token> = tokens
        .iter()
        .filter(|token| matches!(token.kind, Kind::Name(_) | Kind::Mark(_)))
        .collect();
    let mut found = Vec::new();
    for (index, [keyword, token]) in code.array_windows().enumerate() {
        let (Some(keyword), Some(name)) = (keyword.name(), token.name()) else {
            continue;
        };
        if !ITEM_KEYWORDS.contains(&keyword) || ITEM_KEYWORDS.contains(&name) || name == "unsafe" || name == "async" {
            continue;
        }
        found.push((token.line, name.into()));
        if keyword == "struct" || keyword == "enum" {
            found.extend(members(code.get(index..).unwrap_or_default(), keyword == "enum"));
        }
    }
    found
}

/// The fields of a struct, or the variants of an enum and their fields; `code` starts at the keyword.
fn members(code: &[&Token], is_enum: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let Some(open) = code
        .iter()
        .position(|token| token.is('{') || token.is(';') || token.is('('))
    else {
        return found;
    };
    let mut depth = 0;
    for [before, token, after] in code.get(open..).unwrap_or_default().array_windows() {
        // The first brace is `before`, and everything is `token` once after it.
        if depth == 0 {
            if !before.is('{') {
                return found;
            }
            depth = 1;
        }
        match token.kind {
            Kind::Mark('{' | '(' | '[') => depth += 1,
            Kind::Mark('}' | ')' | ']') => {
                depth -= 1;
                if depth == 0 {
                    return found;
                }
            }
            Kind::Name(ref name) => {
                let starts = before.is('{') || before.is(',') || before.is(']');
                let is_field = after.is(':') && (starts || before.is(')') || before.name() == Some("pub"));
                if is_field || (is_enum && depth == 1 && starts) {
                    found.push((token.line, name.clone()));
                }
            }
            _ => {}
        }
    }
    found
}

fn live_tokens(file: &File) -> Vec<Token> {
    if is_test(&file.path) {
        return Vec::new();
    }
    without_tests(tokens(&file.text))
}

/// The words of a name in lower case, split at `_` and where a capital letter starts one.
fn words(name: &str) -> impl Iterator<Item = String> {
    let mut words = vec![String::new()];
    let mut was_capital = true;
    for c in name.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && !was_capital) {
            words.push(String::new());
        }
        was_capital = c.is_uppercase() || !c.is_alphanumeric();
        if let Some(word) = words.last_mut()
            && c.is_alphanumeric()
        {
            word.extend(c.to_lowercase());
        }
    }
    words.into_iter()
}

/// Where which banned phrase stands, a line break in it counting as a space.
fn banned_phrases(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut is_start = true;
    for (offset, c) in text.char_indices() {
        if is_start && c.is_alphanumeric() {
            let here = &text[offset..];
            found.extend(
                BANNED_IN_TEXT
                    .into_iter()
                    .filter(|phrase| has_phrase(here, phrase))
                    .map(|phrase| (offset, phrase)),
            );
        }
        is_start = !c.is_alphanumeric() && c != '_';
    }
    found
}

/// True if the text starts with the phrase, in any case, and a word ends there.
fn has_phrase(text: &str, phrase: &str) -> bool {
    let mut rest = text;
    for word in phrase.split(' ') {
        rest = rest.trim_start();
        let Some((start, after)) = rest.split_at_checked(word.len()) else {
            return false;
        };
        if !start.eq_ignore_ascii_case(word) || after.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
            return false;
        }
        rest = after;
    }
    true
}

/// Code of a crate or of the benches.
fn is_source(path: &str) -> bool {
    let mut parts = path.split('/');
    let is_below = match parts.next() {
        Some("crates") => parts.next().is_some() && parts.next() == Some("src"),
        Some("bench") => parts.next() == Some("src"),
        _ => false,
    };
    is_below && extension(path) == "rs"
}

/// Tests that stand in a file of their own below `src`.
pub(super) fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

/// What users read besides the program's own output.
fn is_page(path: &str) -> bool {
    path == "README.md"
        || path.starts_with("docs/")
        || file_name(path) == "openapi.json"
        || path.ends_with(".schema.json")
}

const ITEM_KEYWORDS: [&str; 8] = ["struct", "enum", "trait", "type", "fn", "const", "static", "mod"];
const TYPE_KEYWORDS: [&str; 4] = ["struct", "enum", "trait", "type"];
const QUESTION_WORDS: [&str; 7] = ["What", "How", "Whether", "Who", "Whom", "Whose", "Why"];

#[rustfmt::skip]
pub(crate) const BANNED_IN_NAMES: [&str; 30] = [
    "told", "tell", "heard", "hear", "heed", "knock", "mend", "brought", "came", "went", "awaited", "spoken", "weighed",
    "gathered", "drawn", "judged", "entered", "sitting", "stranger", "papers", "beside", "apart", "together", "afterwards",
    "whoever", "nobody", "somebody", "odd", "nonsense", "place",
];

#[rustfmt::skip]
pub(crate) const BANNED_IN_TEXT: [&str; 13] = [
    "told", "mend", "whoever", "nobody", "somebody", "as good as new", "goes on holding", "left alone", "brought along",
    "begun", "under way", "stands twice", "is none",
];
