//! `auth`: callers' tokens with their rights, and the password of the Redis protocol.

use super::reader::{SettingsReader, read_secret_file};
use crate::server::auth::tokens::{Rights, TokenError, TokenSecret, Tokens};
use std::path::Path;
use tollgate_limiter::core::problem::{Problem, Problems, closest_match};
use tollgate_limiter::core::yaml::Node;

impl SettingsReader<'_> {
    /// The tokens of the file and of the settings themselves.
    pub(super) fn auth(&mut self, node: &Node) -> Option<Tokens> {
        let fields = node.fields("`auth`", &KEYS, &mut self.problems)?;
        let has = |key| fields.value(key).is_some();
        if !has("tokens_file") && !has("tokens") && (has("resp_password") || has("resp_password_file")) {
            return None;
        }
        let mut tokens = Tokens::default();
        let mut problems = Problems::new();
        if let Some((file, path)) = self.tokens_file(&fields, &mut problems) {
            let base_dir = path.parent().unwrap_or(Path::new(""));
            read_file(&file, base_dir, &mut tokens, &mut problems);
        }
        if let Some(list) = fields.value("tokens") {
            let base_dir = self.raw.base_dir_of(&list.location);
            read_tokens(list, &base_dir, &mut tokens, &mut problems);
        }
        if tokens.is_empty() && !problems.has_errors() {
            let problem = Problem::error(&node.location, "no tokens configured; every request would be rejected");
            problems.push(problem.with_hint("name a tokens file: `auth: { tokens_file: tokens.yaml }`"));
        }
        self.extend_without_snippets(problems);
        Some(tokens)
    }

    /// The password for `AUTH`.
    pub(super) fn resp_password(&mut self, node: &Node) -> Option<Tokens> {
        let mut ignored = Problems::new();
        let fields = node.fields("`auth`", &KEYS, &mut ignored)?;
        let (text, location) = self.secret_or_file(&fields, "resp_password", "a password")?;
        let mut tokens = Tokens::default();
        let rights = Rights::CHECK | Rights::REFUND;
        if let Err(error) = tokens.add("default", TokenSecret::Plain(&text), rights) {
            let found = format!("invalid password: {error}");
            self.problems.error(&location, found);
        }
        Some(tokens)
    }
}

/// The keys of one token.
const TOKEN_KEYS: [&str; 5] = ["name", "token", "token_file", "sha256", "rights"];
const KEYS: [&str; 4] = ["tokens_file", "tokens", "resp_password", "resp_password_file"];

fn read_file(file: &Node, base_dir: &Path, tokens: &mut Tokens, problems: &mut Problems) {
    let Some(fields) = file.fields("a tokens file", &["tokens"], problems) else {
        return;
    };
    if let Some(list) = fields.require(
        "a tokens file",
        "tokens",
        "tokens: [{ name: shop, token: …, rights: [check] }]",
        problems,
    ) {
        read_tokens(list, base_dir, tokens, problems);
    }
}

fn read_tokens(list: &Node, base_dir: &Path, tokens: &mut Tokens, problems: &mut Problems) {
    for node in list.list("a list of tokens", problems).unwrap_or_default() {
        read_token(node, base_dir, tokens, problems);
    }
}

fn read_token(node: &Node, base_dir: &Path, tokens: &mut Tokens, problems: &mut Problems) -> Option<()> {
    let fields = node.fields("a token", &TOKEN_KEYS, problems)?;
    let name = fields
        .require("a token", "name", "name: shop", problems)
        .and_then(|node| node.text("the name of a token", problems));
    let rights = match fields.find("rights") {
        Some(node) => rights(node, problems),
        None => Some(Rights::CHECK),
    };
    let of_file;
    let (secret, location) = match (fields.find("token"), fields.find("token_file"), fields.find("sha256")) {
        (Some(node), None, None) => (TokenSecret::Plain(node.text("a token", problems)?), &node.location),
        (None, Some(node), None) => {
            of_file = read_secret_file(node, base_dir, "token_file", problems)?;
            (TokenSecret::Plain(&of_file), &node.location)
        }
        (None, None, Some(node)) => {
            let Some(digest) = digest(node.text("the SHA-256 of a token", problems)?) else {
                problems.error_with(
                    &node.location,
                    "not a SHA-256",
                    "write 64 hexadecimal digits, in quotes",
                );
                return None;
            };
            (TokenSecret::Sha256(digest), &node.location)
        }
        _ => {
            problems.error_with(
                &node.location,
                "a token needs either `token`, `token_file` or `sha256`",
                "name a file with the token, or write its SHA-256: `printf %s TOKEN | sha256sum`",
            );
            return None;
        }
    };
    match tokens.add(name?, secret, rights?) {
        Ok(()) => {}
        Err(error @ (TokenError::Short | TokenError::Unprintable | TokenError::Duplicate(_))) => {
            problems.error(location, error.to_string());
        }
    }
    Some(())
}

fn rights(node: &Node, problems: &mut Problems) -> Option<Rights> {
    if node.scalar() == Some("all") {
        return Some(Rights::ALL);
    }
    let mut all = Rights::NONE;
    let mut is_valid = true;
    for node in node.one_or_more() {
        // An unknown right may be a misplaced token, so it is not repeated.
        match Rights::NAMES.iter().find(|(name, _)| node.scalar() == Some(name)) {
            Some((_, right)) => all = all | *right,
            None => {
                let known: Vec<&str> = Rights::NAMES.iter().map(|(name, _)| *name).collect();
                let hint = match closest_match(node.scalar().unwrap_or_default(), known.iter().copied()) {
                    Some(right) => format!("did you mean `{right}`?"),
                    None => format!("write one of {}, or `all`", known.join(", ")),
                };
                problems.error_with(&node.location, "unknown right", hint);
                is_valid = false;
            }
        }
    }
    is_valid.then_some(all)
}

fn digest(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::core::problem::Origin;
    use tollgate_limiter::core::yaml;

    fn read(text: &str) -> (Tokens, String) {
        let mut tokens = Tokens::default();
        let mut problems = Problems::new();
        let node = yaml::parse(&Origin::new("tokens.yaml", text)).unwrap();
        read_file(&node, Path::new(""), &mut tokens, &mut problems);
        (tokens, problems.sorted().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_token_is_given_itself_or_by_its_digest_with_its_rights() {
        let (tokens, problems) = read(
            "tokens:\n\
             - { name: shop, token: 0123456789abcdef }\n\
             - { name: ops, token: fedcba9876543210, rights: [explain, forget] }\n\
             - { name: root, sha256: 0f3f7d8a0ad7e1c2b7d5a9a6c1f0e3d2b4c5a6978899aabbccddeeff00112233, rights: all }\n",
        );
        assert_eq!(problems, "");
        let rights = |token: &str| tokens.caller(token.as_bytes()).map(|caller| caller.rights);
        assert_eq!(rights("0123456789abcdef"), Some(Rights::CHECK));
        assert_eq!(rights("fedcba9876543210"), Some(Rights::EXPLAIN | Rights::FORGET));
        assert_eq!(tokens.len(), 3);
    }

    #[test]
    fn what_is_wrong_with_a_token_is_told() {
        for (text, expected) in [
            ("tokens: [{ name: a, token: short }]", "at least 16 characters"),
            ("tokens: [{ name: a }]", "either `token`, `token_file` or `sha256`"),
            ("tokens: [{ token: 0123456789abcdef }]", "has no `name`"),
            ("tokens: [{ name: a, sha256: abc }]", "not a SHA-256"),
            (
                "tokens: [{ name: a, token: 0123456789abcdef, rights: [chekc] }]",
                "did you mean `check`?",
            ),
            ("tokens: [{ name: a, tokn: 0123456789abcdef }]", "did you mean `token`?"),
            ("token: x", "did you mean `tokens`?"),
            ("{}", "has no `tokens`"),
        ] {
            let (tokens, problems) = read(text);
            assert!(problems.contains(expected), "{text}: {problems}");
            assert!(tokens.is_empty(), "{text}");
        }
    }
}
