//! Whether a request may do what it asks.

use super::problem_details::ProblemDetails;
use crate::server::auth::tokens::{Caller, Rights, Tokens, single_header};
use hyper::header::{HeaderName, WWW_AUTHENTICATE};
use hyper::{HeaderMap, StatusCode};

/// Lets a request pass whose token has the right it needs.
///
/// # Errors
/// 401 without a known token, 403 without the right.
pub(super) fn check_token(tokens: &Tokens, headers: &HeaderMap, needed: Rights) -> Result<(), ProblemDetails> {
    check_rights(
        tokens.caller_from_headers(headers),
        needed,
        "show a token that this server knows: Authorization: Bearer …",
    )
}

/// Lets a gateway pass whose own token may check. It stands in a header of its own: `Authorization` is the one that the
/// gateway's client sent, which is none of ours.
///
/// # Errors
/// 401 without a known token, 403 without the right.
pub(super) fn check_gateway_token(tokens: &Tokens, headers: &HeaderMap) -> Result<(), ProblemDetails> {
    let token = single_header(headers, &GATEWAY_TOKEN).map(|value| value.as_bytes().trim_ascii());
    check_rights(
        token.and_then(|token| tokens.caller(token)),
        Rights::CHECK,
        "the gateway must show a token that this server knows: X-Tollgate-Token: …",
    )
}

/// Lets a request pass where there are no tokens, if everybody may do what it asks.
///
/// # Errors
/// 403, and what the operator can do.
pub(super) fn check_anonymous(anonymous_rights: Rights, needed: Rights) -> Result<(), ProblemDetails> {
    if anonymous_rights.contains(needed) {
        return Ok(());
    }
    Err(ProblemDetails::new(
        StatusCode::FORBIDDEN,
        format!(
            "this needs the right `{needed}`, and this port is open to everybody, as envoyproxy/ratelimit's is, for no more \
             than `{anonymous_rights}`; whoever runs the server can give callers tokens (`auth`), or let it listen on 127.0.0.1"
        ),
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
