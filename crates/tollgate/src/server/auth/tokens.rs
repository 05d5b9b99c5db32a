//! Who may ask what: callers' tokens and their rights.

use arc_swap::{ArcSwap, Guard};
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::ops::BitOr;
use std::sync::Arc;

/// The tokens that callers may show.
///
/// Only their digests are kept, and a shown token is looked up by its digest: how long that takes tells nothing about the
/// tokens there are.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    by_digest: HashMap<[u8; 32], Caller>,
}

/// What is kept of a token that was shown, to see later whether it still holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

/// The tokens that hold now. They are taken anew when their file changes, all at once.
#[derive(Debug)]
pub struct Keyring(ArcSwap<Tokens>);

/// Whose token it is, and what it may be used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// As the operator named it: for the log.
    pub name: Box<str>,
    /// What it may do.
    pub rights: Rights,
}

/// A token as the operator gives it.
#[derive(Clone, Copy)]
pub enum TokenSecret<'a> {
    /// The token.
    Plain(&'a str),
    /// Its SHA-256, so that the file holds no secret.
    Sha256([u8; 32]),
}

/// What a token may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(u8);

impl Tokens {
    /// The shortest token: below that, guessing is not hopeless.
    pub const LENGTH_MIN: usize = 16;

    /// Adds a token.
    ///
    /// # Errors
    /// A token that is too short, holds what a header cannot, or is there already.
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

    /// Whose token this is.
    pub fn caller(&self, token: &[u8]) -> Option<&Caller> {
        self.caller_by_digest(&TokenDigest::new(token))
    }

    /// Whose token it is that was shown.
    pub fn caller_by_digest(&self, digest: &TokenDigest) -> Option<&Caller> {
        self.by_digest.get(&digest.0)
    }

    /// Whose token stands in the headers of a request, over HTTP and gRPC alike: `Authorization: Bearer …`, once.
    pub fn caller_from_headers(&self, headers: &HeaderMap) -> Option<&Caller> {
        self.caller(bearer(single_header(headers, &AUTHORIZATION)?)?)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    /// Whether there are none: then nobody may do anything.
    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }
}

/// The value of a header that stands there once.
pub(crate) fn single_header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// The token of `Bearer …`; the scheme is written in any case.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

impl TokenDigest {
    /// Of a token.
    pub fn new(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }
}

impl Keyring {
    /// These tokens, until others are taken.
    pub fn new(tokens: Tokens) -> Self {
        Self(ArcSwap::from_pointee(tokens))
    }

    /// Those that hold now.
    pub fn tokens(&self) -> Guard<Arc<Tokens>> {
        self.0.load()
    }

    /// Takes others. False if they are the same.
    pub fn replace(&self, tokens: Tokens) -> bool {
        let differ = **self.0.load() != tokens;
        if differ {
            self.0.store(Arc::new(tokens));
        }
        differ
    }
}

impl Rights {
    /// None at all.
    pub const NONE: Self = Self(0);
    /// Checks, one or a batch; releasing and renewing what a check gave.
    pub const CHECK: Self = Self(1);
    /// Giving cost back.
    pub const REFUND: Self = Self(1 << 1);
    /// Seeing why.
    pub const EXPLAIN: Self = Self(1 << 2);
    /// Clearing counters.
    pub const FORGET: Self = Self(1 << 3);
    /// Reading metrics.
    pub const METRICS: Self = Self(1 << 4);
    /// Every right there is.
    pub const ALL: Self = Self(0b1_1111);

    /// Each right under the name that operators write.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("check", Self::CHECK),
        ("refund", Self::REFUND),
        ("explain", Self::EXPLAIN),
        ("forget", Self::FORGET),
        ("metrics", Self::METRICS),
    ];

    /// The right of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        let (_, right) = Self::NAMES.iter().find(|(known, _)| *known == name)?;
        Some(*right)
    }

    /// Whether all of `needed` are among them.
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

/// Why a token cannot be used. The operator's to mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// It is shorter than [`Tokens::LENGTH_MIN`].
    Short,
    /// It holds white space, control characters or letters beyond ASCII.
    Unprintable,
    /// Another caller has the same.
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
            Self::Unprintable => f.write_str("a token is made of printable ASCII without spaces, as a header holds it"),
            Self::Duplicate(other) => write!(f, "this is the token of `{other}` too; give every caller its own"),
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
