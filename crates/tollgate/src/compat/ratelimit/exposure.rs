//! Ports that are open without tokens, because those of envoyproxy/ratelimit are: and the messages about them.

use crate::server::auth::tokens::Rights;
use crate::server::net::listen::Address;

/// The warning about an open listener, and its hint.
pub(crate) fn warning(listener: &str, address: &Address) -> (String, String) {
    let text = format!("ANYONE can call {address}, as with envoyproxy/ratelimit: no authentication is configured");
    let hint = format!(
        "endpoints that envoyproxy/ratelimit does not have are rejected there; restrict it with `server.{listener}` \
         (TOLLGATE_SERVER__{}=127.0.0.1:{}), or configure tokens (`auth`)",
        listener.to_uppercase(),
        address.port().unwrap_or_default()
    );
    (text, hint)
}

/// The detail for a caller whose request needs a right that anonymous callers do not have.
pub(crate) fn missing_right(needed: Rights, anonymous_rights: Rights) -> String {
    format!(
        "this needs the right `{needed}`; without tokens this port allows only `{anonymous_rights}`, as \
         envoyproxy/ratelimit's does; configure tokens (`auth`), or listen on 127.0.0.1"
    )
}
