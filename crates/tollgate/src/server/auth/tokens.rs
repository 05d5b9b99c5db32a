//! Callers' tokens and their rights.

use crate::names::names;
use arc_swap::{ArcSwap, Guard};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::ops::BitOr;
use std::sync::Arc;

/// The tokens that callers may present.
///
/// Only digests are kept, and a token is looked up by its digest, so the duration of a lookup leaks nothing about the tokens.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    by_digest: HashMap<[u8; 32], Caller>,
}

/// The digest of a presented token, to check later whether it is still valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

/// The valid tokens. They are replaced as a whole when their file changes.
#[derive(Debug)]
pub struct Keyring(ArcSwap<Tokens>);

/// The owner of a token, and its rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The name that the operator chose, for the log.
    pub name: Box<str>,
    /// The rights of the token.
    pub rights: Rights,
}

/// A token as the operator configures it.
#[derive(Clone, Copy)]
pub enum TokenSecret<'a> {
    /// The token.
    Plain(&'a str),
    /// Its SHA-256, so that the file contains no secret.
    Sha256([u8; 32]),
}

/// The actions that a token allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(u8);

impl Tokens {
    /// The minimum length of a token; shorter ones could be guessed.
    pub const LENGTH_MIN: usize = 16;

    /// Adds a token.
    ///
    /// # Errors
    /// A token that is too short, is no valid header value, or exists already.
    pub fn add(&mut self, name: &str, secret: TokenSecret<'_>, rights: Rights) -> Result<(), TokenError> {
        let digest = match secret {
            TokenSecret::Plain(token) if token.len() < Self::LENGTH_MIN => return Err(TokenError::Short),
            TokenSecret::Plain(token) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                return Err(TokenError::Unprintable);
            }
            TokenSecret::Plain(token) => Sha256::digest(token).into(),
            TokenSecret::Sha256(digest) => digest,
        };
        if let Some(other) = self.by_digest.get(&digest) {
            return Err(TokenError::Duplicate(other.name.clone()));
        }
        let name = name.into();
        self.by_digest.insert(digest, Caller { name, rights });
        Ok(())
    }

    /// Returns the owner of a token.
    pub fn caller(&self, token: &[u8]) -> Option<&Caller> {
        self.caller_by_digest(&TokenDigest::new(token))
    }

    /// Returns the owner of the token with this digest.
    pub fn caller_by_digest(&self, digest: &TokenDigest) -> Option<&Caller> {
        self.by_digest.get(&digest.0)
    }

    /// Returns the owner of the token in the headers of an HTTP or gRPC request: one `Authorization: Bearer …`.
    pub fn caller_from_headers(&self, headers: &HeaderMap) -> Option<&Caller> {
        self.caller(bearer(single_header(headers, &AUTHORIZATION)?)?)
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    /// True if there are none: then every request is rejected.
    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }
}

/// Returns the value of a header that occurs exactly once.
pub(crate) fn single_header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// Returns the token of `Bearer …`; the scheme is case-insensitive.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

impl TokenDigest {
    /// The digest of a token.
    pub fn new(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }
}

impl Keyring {
    /// A keyring of these tokens.
    pub fn new(tokens: Tokens) -> Self {
        Self(ArcSwap::from_pointee(tokens))
    }

    /// The valid tokens.
    pub fn tokens(&self) -> Guard<Arc<Tokens>> {
        self.0.load()
    }

    /// Replaces the tokens. False if they are the same.
    pub fn replace(&self, tokens: Tokens) -> bool {
        let differ = **self.0.load() != tokens;
        if differ {
            self.0.store(Arc::new(tokens));
        }
        differ
    }
}

impl Rights {
    /// No right.
    pub const NONE: Self = Self(0);
    /// Checks, single and in batches; releasing and renewing the leases of checks.
    pub const CHECK: Self = Self(1);
    /// Refunding cost.
    pub const REFUND: Self = Self(1 << 1);
    /// Explaining verdicts.
    pub const EXPLAIN: Self = Self(1 << 2);
    /// Clearing counters.
    pub const FORGET: Self = Self(1 << 3);
    /// Reading metrics.
    pub const METRICS: Self = Self(1 << 4);
    /// All rights.
    pub const ALL: Self = Self(0b1_1111);

    names! { "check" => CHECK, "refund" => REFUND, "explain" => EXPLAIN, "forget" => FORGET, "metrics" => METRICS }

    /// Returns the right of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        let (_, right) = Self::NAMES.iter().find(|(known, _)| *known == name)?;
        Some(*right)
    }

    /// True if it includes all of `needed`.
    pub const fn contains(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }
}

impl BitOr for Rights {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Self::NAMES
            .iter()
            .filter(|(_, right)| self.contains(*right))
            .map(|(name, _)| *name)
            .collect();
        f.write_str(&names.join(", "))
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.by_digest.values()).finish()
    }
}

/// An invalid token. The operator can fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// It is shorter than [`Tokens::LENGTH_MIN`].
    Short,
    /// It contains white space, control characters or non-ASCII characters.
    Unprintable,
    /// Another caller has the same token.
    Duplicate(Box<str>),
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => write!(
                f,
                "a token has at least {} characters; `openssl rand -hex 32` makes a good one",
                Tokens::LENGTH_MIN
            ),
            Self::Unprintable => f.write_str("a token must be printable ASCII without spaces, to fit into a header"),
            Self::Duplicate(other) => write!(f, "this token also belongs to `{other}`; give every caller its own"),
        }
    }
}

impl std::error::Error for TokenError {}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    #[test]
    fn a_token_is_known_by_itself_and_by_its_digest() {
        let digest: [u8; 32] = Sha256::digest(TOKEN).into();
        for secret in [TokenSecret::Plain(TOKEN), TokenSecret::Sha256(digest)] {
            let mut tokens = Tokens::default();
            tokens.add("shop", secret, Rights::CHECK).unwrap();
            assert_eq!(&*tokens.caller(TOKEN.as_bytes()).unwrap().name, "shop");
            assert_eq!(tokens.caller(b"0123456789abcdee"), None);
            assert_eq!(tokens.caller(b""), None);
            assert!(!format!("{tokens:?}").contains(TOKEN));
        }
    }

    #[test]
    fn tokens_that_are_easy_to_guess_or_cannot_be_sent_are_refused() {
        let mut tokens = Tokens::default();
        tokens.add("shop", TokenSecret::Plain(TOKEN), Rights::CHECK).unwrap();
        let mut add = |token| tokens.add("other", TokenSecret::Plain(token), Rights::CHECK);
        assert_eq!(add("0123456789abcde"), Err(TokenError::Short));
        assert_eq!(add("0123456789 abcdef"), Err(TokenError::Unprintable));
        assert_eq!(add("0123456789abcdéf"), Err(TokenError::Unprintable));
        assert_eq!(add(TOKEN), Err(TokenError::Duplicate("shop".into())));
    }

    #[test]
    fn every_right_has_a_name_and_covers_itself_only() {
        let mut all = Rights::NONE;
        for (name, right) in Rights::NAMES {
            assert_eq!(Rights::from_name(name), Some(right));
            for (other, needed) in Rights::NAMES {
                assert_eq!(right.contains(needed), name == other);
            }
            all = all | right;
        }
        assert_eq!(all, Rights::ALL);
        assert_eq!(all.to_string(), "check, refund, explain, forget, metrics");
    }
}
