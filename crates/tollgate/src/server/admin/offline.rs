//! Principals for a database whose server is stopped.

use super::access::now_ms;
use super::access::secrets::{PasswordHashing, digest, random_hex};
use crate::control::model::{Principal, PrincipalKind, Role};

/// A principal, and the secret to print once: its token, or its password unless one was given.
///
/// # Errors
/// A name or a password that is not accepted, with the reason.
pub async fn new_principal(
    kind: PrincipalKind,
    name: &str,
    role: Role,
    password: Option<String>,
) -> Result<(Principal, Option<String>), String> {
    let is_valid = |character: char| character.is_alphanumeric() || "._-@+".contains(character);
    let is_reserved = ["system", "anonymous", "view", "setup", "offline"].contains(&name);
    if !(1..=64).contains(&name.len()) || !name.chars().all(is_valid) || is_reserved {
        return Err("a name has 1 to 64 letters, digits and `._-@+`; `system` and the like are reserved".to_owned());
    }
    let id = random_hex(8);
    let (secret, printed) = match kind {
        PrincipalKind::Token => {
            let secret = random_hex(32);
            (
                digest(secret.as_bytes()).to_string(),
                Some(format!("tgt_{id}_{secret}")),
            )
        }
        PrincipalKind::User => {
            let is_given = password.is_some();
            let password = password.unwrap_or_else(|| random_hex(16));
            if password.chars().count() < PASSWORD_CHARACTERS_MIN {
                return Err(format!("a password has at least {PASSWORD_CHARACTERS_MIN} characters"));
            }
            let hash = PasswordHashing::new().hash(password.clone()).await;
            let hash = hash.map_err(|_| "the password cannot be hashed".to_owned())?;
            (hash, (!is_given).then_some(password))
        }
    };
    let principal = Principal {
        id,
        kind,
        name: name.to_owned(),
        role,
        domains: Vec::new(),
        secret,
        created_at: now_ms(),
        created_by: String::new(),
        expires_at: 0,
        seen_at: 0,
        disabled_at: 0,
    };
    Ok((principal, printed))
}

const PASSWORD_CHARACTERS_MIN: usize = 12;
