//! Checks the rights of a request.

use super::problem_details::ProblemDetails;
use crate::compat::ratelimit::exposure;
use crate::server::auth::tokens::{Caller, Rights, Tokens, single_header};
use hyper::header::{HeaderName, WWW_AUTHENTICATE};
use hyper::{HeaderMap, StatusCode};

/// Accepts a request whose token has the needed right.
///
/// # Errors
/// 401 without a known token, 403 without the right.
pub(super) fn check_token(tokens: &Tokens, headers: &HeaderMap, needed: Rights) -> Result<(), ProblemDetails> {
    check_rights(
        tokens.caller_from_headers(headers),
        needed,
        "missing or unknown token; send Authorization: Bearer …",
    )
}

/// Accepts a gateway whose token has the right to check. The token has a header of its own: `Authorization` belongs to the
/// gateway's client.
///
/// # Errors
/// 401 without a known token, 403 without the right.
pub(super) fn check_gateway_token(tokens: &Tokens, headers: &HeaderMap) -> Result<(), ProblemDetails> {
    let token = single_header(headers, &GATEWAY_TOKEN).map(|value| value.as_bytes().trim_ascii());
    check_rights(
        token.and_then(|token| tokens.caller(token)),
        Rights::CHECK,
        "missing or unknown token of the gateway; send X-Tollgate-Token: …",
    )
}

/// Accepts a request where no tokens are configured, if anonymous callers have the needed right.
///
/// # Errors
/// 403, with the remedy for the operator.
pub(super) fn check_anonymous(anonymous_rights: Rights, needed: Rights) -> Result<(), ProblemDetails> {
    if anonymous_rights.contains(needed) {
        return Ok(());
    }
    Err(ProblemDetails::new(
        StatusCode::FORBIDDEN,
        exposure::missing_right(needed, anonymous_rights),
    ))
}

fn check_rights(caller: Option<&Caller>, needed: Rights, hint: &'static str) -> Result<(), ProblemDetails> {
    match caller {
        None => Err(ProblemDetails::new(StatusCode::UNAUTHORIZED, hint).with_header(WWW_AUTHENTICATE, CHALLENGE)),
        Some(caller) if caller.rights.contains(needed) => Ok(()),
        Some(_) => Err(ProblemDetails::new(
            StatusCode::FORBIDDEN,
            format!("this needs the right `{needed}`, which the token does not have"),
        )),
    }
}

const CHALLENGE: &str = "Bearer realm=\"tollgate\"";
static GATEWAY_TOKEN: HeaderName = HeaderName::from_static("x-tollgate-token");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::auth::tokens::TokenSecret;
    use hyper::header::{AUTHORIZATION, HeaderValue};

    const TOKEN: &str = "0123456789abcdef";

    #[test]
    fn a_known_token_with_the_right_passes_and_nothing_else() {
        let mut tokens = Tokens::default();
        tokens.add("shop", TokenSecret::Plain(TOKEN), Rights::CHECK).unwrap();
        let known = format!("Bearer {TOKEN}");
        let (lower, spaced, basic) = (
            format!("bearer {TOKEN}"),
            format!("Bearer   {TOKEN}"),
            format!("Basic {TOKEN}"),
        );
        for (values, needed, refused) in [
            (&[known.as_str()][..], Rights::CHECK, None),
            (&[&lower], Rights::CHECK, None),
            (&[&spaced], Rights::CHECK, None),
            (&[&known], Rights::FORGET, Some(403)),
            (&[], Rights::CHECK, Some(401)),
            (&[TOKEN], Rights::CHECK, Some(401)),
            (&[&basic], Rights::CHECK, Some(401)),
            (&["Bearer"], Rights::CHECK, Some(401)),
            (&["Bearer "], Rights::CHECK, Some(401)),
            (&["Bearer 0123456789abcdee"], Rights::CHECK, Some(401)),
            (&[&known, &known], Rights::CHECK, Some(401)),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            let answer = check_token(&tokens, &headers, needed);
            assert_eq!(
                answer.err().map(|problem| problem.status.as_u16()),
                refused,
                "{values:?}"
            );
        }
    }
}
