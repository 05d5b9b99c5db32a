//! Random secrets, their digests, and comparison in constant time; passwords.

use crate::control::model::Digest;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

/// Hashes and verifies passwords, two at a time: each takes 19 MiB and tens of milliseconds.
#[derive(Clone, Debug)]
pub(in crate::server::admin) struct PasswordHashing {
    permits: Arc<Semaphore>,
}

/// The reason why a password could not be hashed or verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server::admin) struct HashingError;

impl PasswordHashing {
    pub(in crate::server::admin) fn new() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(CONCURRENT_MAX)),
        }
    }

    /// The hash of a password, as a PHC string.
    pub(in crate::server::admin) async fn hash(&self, password: String) -> Result<String, HashingError> {
        self.run(move || {
            let hash = argon2()?.hash_password(password.as_bytes()).map_err(|_| HashingError)?;
            Ok(hash.to_string())
        })
        .await
    }

    /// True if a password has this hash. Without a hash it takes as long, and is false: a caller cannot find out names.
    pub(in crate::server::admin) async fn verify(
        &self,
        password: String,
        hash: Option<String>,
    ) -> Result<bool, HashingError> {
        self.run(move || {
            let argon2 = argon2()?;
            match hash {
                Some(hash) => Ok(argon2.verify_password(password.as_bytes(), hash.as_str()).is_ok()),
                None => {
                    let _ = argon2.hash_password(password.as_bytes());
                    Ok(false)
                }
            }
        })
        .await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, HashingError> + Send + 'static,
    ) -> Result<T, HashingError> {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|_| HashingError)?;
        let hashed = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work()
        });
        hashed.await.map_err(|_| HashingError)?
    }
}

/// The parameters that OWASP recommends.
fn argon2() -> Result<Argon2<'static>, HashingError> {
    let params = Params::new(MEMORY_KIB, PASSES, 1, None).map_err(|_| HashingError)?;
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

/// `length` random bytes as hexadecimal digits.
pub(in crate::server::admin) fn random_hex(length: usize) -> String {
    let mut bytes = vec![0; length];
    fill(&mut bytes);
    hex(&bytes)
}

/// A code for people to copy: groups of four characters that cannot be confused.
pub(in crate::server::admin) fn random_code(groups: usize) -> String {
    let mut bytes = vec![0; 4 * groups];
    fill(&mut bytes);
    let letters: Vec<char> = bytes
        .iter()
        .filter_map(|byte| ALPHABET.get(usize::from(byte & 31)).map(|letter| char::from(*letter)))
        .collect();
    let groups: Vec<String> = letters.chunks(4).map(|group| group.iter().collect()).collect();
    groups.join("-")
}

/// The digest of a secret.
pub(in crate::server::admin) fn digest(secret: &[u8]) -> Digest {
    Digest(Sha256::digest(secret).into())
}

/// True if both are equal, in a time that depends on their lengths only.
pub(in crate::server::admin) fn equal(one: &[u8], other: &[u8]) -> bool {
    one.ct_eq(other).into()
}

/// Bytes as hexadecimal digits.
pub(in crate::server::admin) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of hexadecimal digits.
pub(in crate::server::admin) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let is_valid = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    is_valid
        .then(|| text.as_bytes().chunks(2).map(pair).collect())
        .flatten()
}

fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the system has random bytes");
}

const CONCURRENT_MAX: usize = 2;
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
/// Without 0, 1, I and O.
const ALPHABET: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_is_verified_by_its_hash_only() {
        let hashing = PasswordHashing::new();
        let hash = hashing.hash("correct horse".into()).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert_eq!(
            hashing.verify("correct horse".into(), Some(hash.clone())).await,
            Ok(true)
        );
        assert_eq!(hashing.verify("wrong horse".into(), Some(hash)).await, Ok(false));
        assert_eq!(hashing.verify("correct horse".into(), None).await, Ok(false));
    }

    #[test]
    fn codes_have_groups_and_hexadecimal_digits_are_read_back() {
        let code = random_code(3);
        assert_eq!(code.len(), 14);
        assert!(code.split('-').all(|group| group.len() == 4), "{code}");
        assert_eq!(from_hex(&hex(b"\x00\xffa")), Some(b"\x00\xffa".to_vec()));
        assert_eq!(from_hex("0"), None);
        assert_eq!(from_hex("zz"), None);
    }
}
