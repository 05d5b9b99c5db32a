//! `TOLLGATE.CHECK domain cost k v [k v …]`: checks an attempt against the rules.

use super::reply_writer::{ErrorReply, Escaped, ReplyWriter, RespVersion};
use crate::server::admission::AdmissionError;
use tollgate_limiter::core::algorithm::cell::reply_seconds;
use tollgate_limiter::core::rules::{Attempt, Attribute, Verdict};
use tollgate_limiter::core::{Cost, Retry};

/// A parsed command.
#[derive(Debug)]
pub(super) struct Check<'a> {
    domain: &'a str,
    cost: Cost,
    attributes: Vec<Attribute<'a>>,
}

impl<'a> Check<'a> {
    /// Parses the arguments behind the name.
    pub(super) fn read(arguments: &[&'a [u8]]) -> Result<Self, ErrorReply> {
        let [domain, cost, pairs @ ..] = arguments else {
            return Err(USAGE.into());
        };
        let (pairs, []) = pairs.as_chunks::<2>() else {
            return Err(USAGE.into());
        };
        let domain = parse_name(domain, "a domain")?;
        let digits = std::str::from_utf8(cost).ok().and_then(|cost| cost.parse().ok());
        let cost = digits.and_then(|units| Cost::new(units).ok()).ok_or_else(|| {
            let max = Cost::MAX.get();
            format!("ERR invalid cost '{}': send a whole number up to {max}", Escaped(cost))
        })?;
        let mut attributes: Vec<Attribute<'a>> = Vec::with_capacity(pairs.len());
        for [key, value] in pairs {
            let key = parse_name(key, "the name of an attribute")?;
            if attributes.iter().any(|attribute| attribute.name == key) {
                return Err(format!("ERR duplicate attribute '{}'", Escaped(key.as_bytes())));
            }
            attributes.push(Attribute { name: key, value });
        }
        Ok(Self {
            domain,
            cost,
            attributes,
        })
    }

    pub(super) fn attempt(&self) -> Attempt<'_> {
        Attempt {
            domain: self.domain,
            attributes: &self.attributes,
            cost: self.cost,
        }
    }
}

fn parse_name<'a>(word: &'a [u8], what: &str) -> Result<&'a str, ErrorReply> {
    match std::str::from_utf8(word) {
        Ok(word) if (1..=NAME_BYTES_MAX).contains(&word.len()) => Ok(word),
        _ => Err(format!("ERR {what} is UTF-8 text of 1 to {NAME_BYTES_MAX} bytes")),
    }
}

/// Writes a verdict: limited, limit, remaining, retry_after, reset_after, rule.
pub(super) fn write_verdict(verdict: &Verdict<'_>, replies: &mut ReplyWriter<'_>, version: RespVersion) {
    if verdict.is_closed() {
        replies.error(&format!("ERR {}", AdmissionError::StoreUnavailable));
        return;
    }
    replies.array(6);
    replies.integer(u64::from(!verdict.allowed));
    let ruling = verdict.nearest();
    let Some((ruling, decision)) = ruling.and_then(|ruling| Some((ruling, ruling.decision?))) else {
        for _ in 0..4 {
            replies.integer_or_none(None);
        }
        replies.null(version);
        return;
    };
    let standing = decision.standing();
    replies.integer(standing.limit);
    replies.integer(standing.remaining);
    replies.integer_or_none(match decision.retry() {
        Some(Retry::After(wait)) => Some(reply_seconds(wait)),
        Some(Retry::Unknown | Retry::Never) | None => None,
    });
    replies.integer(reply_seconds(standing.reset_after));
    replies.bulk(ruling.name.as_bytes());
}

/// The longest name, as in every protocol.
const NAME_BYTES_MAX: usize = 256;
const USAGE: &str =
    "ERR wrong number of arguments for 'tollgate.check' command: TOLLGATE.CHECK domain cost [name value ...]";
