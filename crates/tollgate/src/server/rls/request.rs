//! Converts an rls request to attempts, or rejects it.

use super::rate_limit_descriptor::RateLimitOverride;
use super::{RateLimitDescriptor, RateLimitRequest, RateLimitUnit};
use std::borrow::Cow;
use std::fmt;
use std::str;
use tollgate_limiter::core::rules::ratelimit::{LimitOverride, Unit};
use tollgate_limiter::core::rules::{Attempt, Attribute, RuleSet};
use tollgate_limiter::core::{Cost, Micros, Rate, TokenBucket};
use tollgate_limiter::{AttemptItem, Direction, InlineLimit};

/// The most descriptors of one request: gateways send one for each of their matching rules.
pub const DESCRIPTORS_MAX: usize = 64;
/// The most entries of one descriptor.
pub const ENTRIES_MAX: usize = 64;
/// The longest key of an entry and the longest domain, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// The longest value of an entry, in bytes.
pub const VALUE_BYTES_MAX: usize = 8 * 1024;
/// The name of a key that is not UTF-8. Rules and files are text, so none of them names it.
const NO_NAME: &str = "\u{fffd}";

/// The attempts of a request: one item per descriptor, in order.
#[derive(Debug)]
pub struct RlsRequest<'a> {
    /// The attempts.
    pub items: Vec<AttemptItem<'a>>,
}

/// An invalid request. The caller can fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRequest(Cow<'static, str>);

/// Returns the entries of all descriptors as attributes, concatenated.
///
/// # Errors
/// A request that exceeds a bound.
pub fn attributes(request: &RateLimitRequest) -> Result<Vec<Attribute<'_>>, InvalidRequest> {
    if request.domain.is_empty() {
        return Err(InvalidRequest("rate limit domain must not be empty".into()));
    }
    if request.descriptors.is_empty() {
        return Err(InvalidRequest("rate limit descriptor list must not be empty".into()));
    }
    if request.domain.len() > NAME_BYTES_MAX {
        return Err(InvalidRequest(
            format!("the domain has more than {NAME_BYTES_MAX} bytes").into(),
        ));
    }
    if request.descriptors.len() > DESCRIPTORS_MAX {
        let count = request.descriptors.len();
        let text = format!("{count} descriptors; a request has at most {DESCRIPTORS_MAX}");
        return Err(InvalidRequest(text.into()));
    }
    let count = request.descriptors.iter().map(|descriptor| descriptor.entries.len());
    let mut attributes = Vec::with_capacity(count.sum());
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        check_descriptor(descriptor)
            .map_err(|what| InvalidRequest(format!("descriptor {index} (from 0) {what}").into()))?;
        attributes.extend(descriptor.entries.iter().map(|entry| Attribute {
            name: str::from_utf8(&entry.key).unwrap_or(NO_NAME),
            value: &entry.value,
        }));
    }
    Ok(attributes)
}

fn check_descriptor(descriptor: &RateLimitDescriptor) -> Result<(), String> {
    if descriptor.entries.len() > ENTRIES_MAX {
        let count = descriptor.entries.len();
        return Err(format!("has {count} entries; at most {ENTRIES_MAX} are allowed"));
    }
    for entry in &descriptor.entries {
        if entry.key.len() > NAME_BYTES_MAX {
            return Err(format!("has a key of more than {NAME_BYTES_MAX} bytes"));
        }
        if entry.value.len() > VALUE_BYTES_MAX {
            return Err(format!("has a value of more than {VALUE_BYTES_MAX} bytes"));
        }
    }
    Ok(())
}

impl<'a> RlsRequest<'a> {
    /// Converts a request with its [`attributes`]. Inline limits apply only in a domain that has rules.
    ///
    /// # Errors
    /// An inline limit without a known unit.
    pub fn read(
        request: &'a RateLimitRequest,
        attributes: &'a [Attribute<'a>],
        rules: &RuleSet,
    ) -> Result<Self, InvalidRequest> {
        let default_hits = u64::from(request.hits_addend.max(1));
        let cost = match rules.descriptors().has_domain(&request.domain) {
            true => Cost::from_hits,
            false => cost,
        };
        let mut items = Vec::with_capacity(request.descriptors.len());
        let mut rest = attributes;
        for descriptor in &request.descriptors {
            let inline_limit = match &descriptor.limit {
                None => None,
                Some(limit) if rules.descriptors().has_domain(&request.domain) => override_in_domain(limit, rules),
                // In a domain without rules nothing is limited, so the limit is not validated.
                Some(_) if !rules.has_domain(&request.domain) => None,
                Some(limit) => Some(inline_limit(limit)?),
            };
            let (entries, tail) = rest.split_at_checked(descriptor.entries.len()).unwrap_or((rest, &[]));
            rest = tail;
            items.push(AttemptItem {
                attempt: Attempt {
                    domain: &request.domain,
                    attributes: entries,
                    cost: cost(descriptor.hits_addend.unwrap_or(default_hits)),
                },
                direction: if descriptor.is_negative_hits {
                    Direction::Refund
                } else {
                    Direction::Consume
                },
                inline_limit,
            });
        }
        Ok(Self { items })
    }
}

/// True if the request refunds hits, which needs a right of its own.
pub fn is_refund(request: &RateLimitRequest) -> bool {
    request.descriptors.iter().any(|descriptor| descriptor.is_negative_hits)
}

/// Converts hits to a cost. More than the largest cost is more than any limit.
fn cost(hits: u64) -> Cost {
    Cost::new(hits).unwrap_or(Cost::MAX.plus(Cost::ONE))
}

/// The limit override of a descriptor in a domain of envoyproxy/ratelimit's files. Without a known unit it is ignored, and
/// the limit of the file applies.
fn override_in_domain(limit: &RateLimitOverride, rules: &RuleSet) -> Option<InlineLimit> {
    let unit = match limit.unit {
        1 => Unit::Second,
        2 => Unit::Minute,
        3 => Unit::Hour,
        4 => Unit::Day,
        5 => Unit::Month,
        6 => Unit::Year,
        7 => Unit::Week,
        _ => return None,
    };
    match (limit.requests_per_unit, rules.descriptors().options.strict) {
        (0, true) => Some(InlineLimit::Banned),
        (requests, strict) => Some(InlineLimit::Override(LimitOverride::new(requests, unit, strict))),
    }
}

/// The inline limit of a descriptor.
fn inline_limit(limit: &RateLimitOverride) -> Result<InlineLimit, InvalidRequest> {
    let unit = RateLimitUnit::try_from(limit.unit).ok().and_then(period);
    let Some(period) = unit else {
        let text = "the limit of a descriptor has no unit; send SECOND, MINUTE, HOUR, DAY, MONTH or YEAR";
        return Err(InvalidRequest(text.into()));
    };
    // Only zero is no rate.
    let rate = Rate::new(limit.requests_per_unit.into(), period);
    Ok(rate.map_or(InlineLimit::Banned, |rate| {
        InlineLimit::Limited(TokenBucket::new(rate).into())
    }))
}

const fn period(unit: RateLimitUnit) -> Option<Micros> {
    let seconds = match unit {
        RateLimitUnit::Unknown => return None,
        RateLimitUnit::Second => 1,
        RateLimitUnit::Minute => 60,
        RateLimitUnit::Hour => 3_600,
        RateLimitUnit::Day => 86_400,
        RateLimitUnit::Month => 30 * 86_400,
        RateLimitUnit::Year => 365 * 86_400,
    };
    Some(Micros::from_secs(seconds))
}

impl fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidRequest {}
