//! A principal that is made without a server: for `tollgate user add --offline`.

use super::access::secrets::{PasswordHashing, random_hex};
use super::endpoints::principals::{check_name, insert, new_token, new_user, principal_item};
use crate::control::model::{Principal, PrincipalKind, Role};
use serde_json::Value;

/// A new principal, and its secret if it was generated.
pub struct NewPrincipal {
    /// The principal.
    pub principal: Principal,
    secret: Option<(&'static str, String)>,
}

impl NewPrincipal {
    /// A principal with a generated secret, or a user with this password.
    ///
    /// # Errors
    /// A name or a password that the admin API would reject too.
    pub async fn new(kind: PrincipalKind, name: &str, role: Role, password: Option<String>) -> Result<Self, String> {
        check_name(name).map_err(|problem| format!("the name is invalid: {}", problem.detail()))?;
        if kind == PrincipalKind::Token {
            let (principal, token) = new_token(name, role);
            let secret = Some(("token", token));
            return Ok(Self { principal, secret });
        }
        let generated = password.is_none().then(|| random_hex(16));
        let secret = generated.clone().map(|password| ("password", password));
        let password = password.or(generated).unwrap_or_default();
        let principal = new_user(&PasswordHashing::new(), name, role, password).await;
        let principal = principal.map_err(|problem| problem.detail().to_owned())?;
        Ok(Self { principal, secret })
    }

    /// The JSON that the admin API gives for it, with the generated secret.
    pub fn json(&self) -> Value {
        let mut item = principal_item(&self.principal);
        if let Some((name, secret)) = &self.secret {
            insert(&mut item, name, secret.as_str());
        }
        item
    }
}
