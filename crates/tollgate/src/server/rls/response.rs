//! Verdicts as rls responses.

use super::rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit};
use super::{HeaderValue, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use crate::server::headers::{self, Dialects, HeaderInput, HeaderPolicy, seconds_ceil};
use prost_types::Duration;
use std::str;
use tollgate_limiter::core::rules::{Mode, Ruling, Verdict};
use tollgate_limiter::core::{Cost, Decision, Limit, Micros, Rate, Retry, Source, Timestamp};
use tollgate_limiter::{AttemptItem, CombinedVerdict, InlineLimit, ItemVerdict};

/// True if the request is denied only because the store was unavailable and a rule has `on_store_failure: closed`. If another
/// limit denies too, of any descriptor, the response is a denial: many proxies are configured to fail open on errors.
pub(super) fn is_closed(combined: &CombinedVerdict<'_>) -> bool {
    let is_over =
        |ruling: &Ruling<'_>| ruling.mode == Mode::Enforce && ruling.source != Source::Closed && !ruling.is_allow();
    let is_closed_item = |item: &ItemVerdict<'_>| match item {
        ItemVerdict::Rules(verdict) => verdict.is_closed() && !verdict.rulings.iter().any(is_over),
        ItemVerdict::Inline(..) => false,
    };
    let mut denied = combined.items.iter().filter(|item| !item.is_allow()).peekable();
    !combined.allowed && denied.peek().is_some() && denied.all(is_closed_item)
}

/// True if a limit was decided without the store, because it did not answer.
pub(super) fn has_store_failure(combined: &CombinedVerdict<'_>) -> bool {
    let is_failure = |source: Source| matches!(source, Source::Local | Source::Open | Source::Closed);
    combined.items.iter().any(|item| match item {
        ItemVerdict::Rules(verdict) => verdict.rulings.iter().any(|ruling| is_failure(ruling.source)),
        ItemVerdict::Inline(_, source, _) => is_failure(*source),
    })
}

/// Encodes a response.
pub(super) fn encode_response(
    request: &RateLimitRequest,
    items: &[AttemptItem<'_>],
    combined: &CombinedVerdict<'_>,
    dialects: Dialects,
) -> RateLimitResponse {
    let each = request.descriptors.iter().zip(items).zip(&combined.items);
    let status = |((descriptor, item), verdict): ((_, _), &ItemVerdict<'_>)| match verdict {
        ItemVerdict::Rules(verdict) => rules_status(verdict, combined.now),
        ItemVerdict::Inline(..) => inline_status(descriptor, item, verdict, combined.now),
    };
    RateLimitResponse {
        overall_code: code(combined.allowed).into(),
        statuses: each.map(status).collect(),
        response_headers_to_add: response_headers(items, combined, dialects.without_x_names()),
        dynamic_metadata: None,
    }
}

const fn code(allowed: bool) -> Code {
    if allowed { Code::Ok } else { Code::OverLimit }
}

fn inline_status(
    descriptor: &RateLimitDescriptor,
    item: &AttemptItem<'_>,
    verdict: &ItemVerdict<'_>,
    now: Option<Timestamp>,
) -> DescriptorStatus {
    let ItemVerdict::Inline(decision, ..) = verdict else {
        return DescriptorStatus::default();
    };
    let current_limit = descriptor.limit.map(|limit| RateLimit {
        requests_per_unit: limit.requests_per_unit,
        // The two enums have the same numbers, as far as a unit is known.
        unit: limit.unit,
        name: String::new(),
    });
    let until = decision.as_ref().and_then(|decision| match decision.retry() {
        None => match (item.inline_limit, decision.standing().reset_after) {
            (Some(InlineLimit::Override(limit)), Micros::ZERO) => Some(until_window_end(limit.unit().period(), now)),
            (_, reset_after) => Some(reset_after),
        },
        Some(retry) => wait(retry),
    });
    descriptor_status(verdict.is_allow(), current_limit, decision.as_ref(), until)
}

fn rules_status(verdict: &Verdict<'_>, now: Option<Timestamp>) -> DescriptorStatus {
    // A descriptor that peeks reports the standing of its limit as well.
    let is_peek = |ruling: &&Ruling<'_>| ruling.rule.descriptor().is_some() && ruling.decision.is_some();
    let Some(nearest) = verdict.nearest().or_else(|| verdict.rulings.iter().find(is_peek)) else {
        let is_unlimited =
            |ruling: &Ruling<'_>| ruling.mode == Mode::Enforce && ruling.decision.is_none() && ruling.window.is_none();
        return DescriptorStatus {
            code: code(verdict.allowed).into(),
            limit_remaining: if verdict.rulings.iter().any(is_unlimited) {
                u32::MAX
            } else {
                0
            },
            ..DescriptorStatus::default()
        };
    };
    let until = match nearest.decision.as_ref().and_then(Decision::retry) {
        None => {
            let effective = HeaderPolicy::of_any_mode(nearest).and_then(|policy| policy.effective_window());
            let in_use = effective.filter(|until| *until > Micros::ZERO);
            let unused = || descriptor_window(nearest).map(|period| until_window_end(period, now));
            in_use.or_else(unused).or(effective)
        }
        Some(retry) => wait(retry),
    };
    descriptor_status(
        verdict.allowed,
        Some(configured_limit(nearest)),
        nearest.decision.as_ref(),
        until,
    )
}

fn descriptor_status(
    allowed: bool,
    current_limit: Option<RateLimit>,
    decision: Option<&Decision>,
    until: Option<Micros>,
) -> DescriptorStatus {
    let remaining = decision
        .filter(|_| allowed)
        .map_or(0, |decision| decision.standing().remaining);
    DescriptorStatus {
        code: code(allowed).into(),
        current_limit,
        limit_remaining: to_u32(remaining),
        duration_until_reset: until.map(|span| Duration {
            // Rounded up to whole seconds: Envoy truncates the rest.
            seconds: i64::try_from(seconds_ceil(span)).unwrap_or(i64::MAX),
            nanos: 0,
        }),
    }
}

/// The length of the windows of a descriptor's limit, in any mode: its response has the end of the window, also of one
/// in which nothing was counted.
fn descriptor_window(ruling: &Ruling<'_>) -> Option<Micros> {
    ruling.rule.descriptor()?;
    match ruling.window.map(|window| window.limit()) {
        Some(Limit::FixedWindow(window)) => Some(window.rate().period()),
        Some(_) => None,
        None => ruling.ban_period,
    }
}

/// The time until the window ends that `now` lies in; at most the whole window.
fn until_window_end(period: Micros, now: Option<Timestamp>) -> Micros {
    let elapsed = now.and_then(|now| now.as_micros().checked_rem(period.get()));
    Micros::new(period.get() - elapsed.unwrap_or(0))
}

/// The wait after a denial. A held slot may be released at any time, so its wait is a second.
const fn wait(retry: Retry) -> Option<Micros> {
    match retry {
        Retry::After(wait) => Some(wait),
        Retry::Unknown => Some(Micros::from_secs(1)),
        Retry::Never => None,
    }
}

/// The limit as configured in the rules.
fn configured_limit(ruling: &Ruling<'_>) -> RateLimit {
    let limit = ruling.window.map(|window| window.limit());
    let rate = limit.and_then(Limit::rate);
    let period = rate.map(Rate::period).or(ruling.ban_period);
    RateLimit {
        requests_per_unit: to_u32(rate.map_or(limit.map_or(0, Limit::capacity), |rate| rate.units())),
        unit: period.map_or(Unit::Unknown, unit).into(),
        // A descriptor has the name its file gives it, or none.
        name: match ruling.rule.descriptor() {
            Some(descriptor) => descriptor.name.to_string(),
            None => ruling.name.to_owned(),
        },
    }
}

/// The unit of a period, if it is one.
const fn unit(period: Micros) -> Unit {
    match period.get() {
        1_000_000 => Unit::Second,
        60_000_000 => Unit::Minute,
        3_600_000_000 => Unit::Hour,
        86_400_000_000 => Unit::Day,
        604_800_000_000 => Unit::Week,
        2_592_000_000_000 => Unit::Month,
        31_536_000_000_000 => Unit::Year,
        _ => Unit::Unknown,
    }
}

fn to_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The headers of all limits that matched.
fn response_headers(items: &[AttemptItem<'_>], combined: &CombinedVerdict<'_>, dialects: Dialects) -> Vec<HeaderValue> {
    if dialects == Dialects::NONE {
        return Vec::new();
    }
    let Some((nearest, cost)) = nearest(items, combined) else {
        return Vec::new();
    };
    let mut policies: Vec<HeaderPolicy<'_>> = Vec::with_capacity(combined.items.len());
    for verdict in combined.items.iter().filter_map(rules) {
        for policy in verdict.rulings.iter().filter_map(HeaderPolicy::from_ruling) {
            // Several descriptors may match one rule: its policy is listed once, with its lowest standing.
            match policies.iter_mut().find(|known| known.name == policy.name) {
                None => policies.push(policy),
                Some(known) if nearness(&policy) < nearness(known) => *known = policy,
                Some(_) => {}
            }
        }
    }
    let input = HeaderInput {
        policies: policies.iter().copied(),
        nearest,
        cost,
        now: combined.now.unwrap_or(Timestamp::EPOCH),
    };
    let mut buffer = Vec::with_capacity(HEADER_BYTES);
    let mut ranges = headers::HeaderRanges::default();
    headers::write(dialects, &input, &mut buffer, &mut ranges);
    let field = |(name, range): (&hyper::header::HeaderName, _)| {
        Some(HeaderValue {
            key: name.as_str().to_owned(),
            value: str::from_utf8(buffer.get::<std::ops::Range<usize>>(range)?)
                .ok()?
                .to_owned(),
        })
    };
    ranges.into_iter().filter_map(field).collect()
}

fn rules<'a, 'r>(item: &'a ItemVerdict<'r>) -> Option<&'a Verdict<'r>> {
    match item {
        ItemVerdict::Rules(verdict) => Some(verdict),
        ItemVerdict::Inline(..) => None,
    }
}

/// The limit that represents the request, as `nearest` does for a verdict, and the cost of its attempt.
fn nearest<'r>(items: &[AttemptItem<'_>], combined: &CombinedVerdict<'r>) -> Option<(HeaderPolicy<'r>, Cost)> {
    let item_policy = |(item, item_verdict): (&AttemptItem<'_>, &ItemVerdict<'r>)| {
        let verdict = rules(item_verdict).filter(|verdict| verdict.allowed == combined.allowed)?;
        Some((HeaderPolicy::from_ruling(verdict.nearest()?)?, item.attempt.cost))
    };
    let each = items.iter().zip(&combined.items).filter_map(item_policy);
    each.min_by_key(|(policy, _)| nearness(policy))
}

/// Orders policies: the longer denial first, then the lower remaining.
fn nearness(policy: &HeaderPolicy<'_>) -> (std::cmp::Reverse<Option<Retry>>, u64) {
    (std::cmp::Reverse(policy.retry), policy.standing.remaining)
}

/// Capacity for the usual headers.
const HEADER_BYTES: usize = 128;
