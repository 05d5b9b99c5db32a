//! Authentication codes of what instances share in the cache: heads, manifests, statuses, votes, the claim of a database.

use crate::control::chain::digest_of;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fmt;
use subtle::ConstantTimeEq;

/// Signs texts with the secret of a fleet. Without a secret its codes are digests: they find damage, not forgery.
///
/// A code covers the scope (the prefix of the store's keys) and the name of the key, so a value is valid in its own place only. Cheap to
/// clone.
#[derive(Clone)]
pub struct Signer {
    secret: Option<Hmac<Sha256>>,
    scope: String,
}

impl Signer {
    /// A signer with the secret of the fleet, for the keys below one prefix.
    pub fn new(secret: Option<&[u8]>, scope: &str) -> Self {
        Self {
            // A key of any length is taken.
            secret: secret.and_then(|secret| Hmac::new_from_slice(secret).ok()),
            scope: scope.to_owned(),
        }
    }

    /// True if codes need the secret.
    pub const fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// The code of a text under a name, as hex.
    pub fn sign(&self, name: &str, text: &str) -> String {
        self.code(name, text).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// True if the code is that of the text under this name.
    pub fn verify(&self, name: &str, text: &str, code: &str) -> bool {
        self.sign(name, text).as_bytes().ct_eq(code.as_bytes()).into()
    }

    /// A text with its code after it.
    pub fn seal(&self, name: &str, text: &str) -> String {
        format!("{text} {}", self.sign(name, text))
    }

    /// The text of a sealed value; none if it is not one of this name and secret.
    pub fn open<'v>(&self, name: &str, value: &'v [u8]) -> Option<&'v str> {
        let (text, code) = std::str::from_utf8(value).ok()?.rsplit_once(' ')?;
        self.verify(name, text, code).then_some(text)
    }

    fn code(&self, name: &str, text: &str) -> [u8; 32] {
        let mut bytes = Vec::with_capacity(text.len() + name.len() + self.scope.len() + 24);
        for part in [&self.scope, name, text] {
            bytes.extend((part.len() as u64).to_be_bytes());
            bytes.extend(part.as_bytes());
        }
        match &self.secret {
            Some(secret) => secret.clone().chain_update(&bytes).finalize().into_bytes().into(),
            None => digest_of(&bytes).0,
        }
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("has_secret", &self.has_secret())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_opens_with_its_secret_name_and_scope_only() {
        let signer = Signer::new(Some(b"one secret"), "tg");
        let sealed = signer.seal("head", "a text with spaces");
        assert_eq!(signer.open("head", sealed.as_bytes()), Some("a text with spaces"));
        for (other, name) in [
            (Signer::new(Some(b"another"), "tg"), "head"),
            (Signer::new(Some(b"one secret"), "other"), "head"),
            (Signer::new(None, "tg"), "head"),
            (signer.clone(), "database"),
        ] {
            assert_eq!(other.open(name, sealed.as_bytes()), None);
        }
    }

    #[test]
    fn without_a_secret_damage_is_found() {
        let signer = Signer::new(None, "tg");
        let sealed = signer.seal("head", "text").into_bytes();
        assert_eq!(signer.open("head", &sealed), Some("text"));
        for index in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[index] ^= 1;
            assert_eq!(signer.open("head", &damaged), None, "byte {index}");
        }
        assert_eq!(signer.open("head", &sealed[..sealed.len() - 1]), None);
    }
}
