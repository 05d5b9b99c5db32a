//! Writes header values.

use super::dialects::{Dialect, Dialects};
use super::policy::{HeaderPolicy, PolicyQuota, seconds_ceil};
use http::header::HeaderName;
use std::array::IntoIter;
use std::iter::{Flatten, Take};
use std::ops::Range;
use tollgate_limiter::core::{Cost, Timestamp};

/// The input of the headers of one response.
#[derive(Clone, Copy, Debug)]
pub struct HeaderInput<'a, I> {
    /// Every enforced limit of the attempt.
    pub policies: I,
    /// The limit for dialects that hold only one.
    pub nearest: HeaderPolicy<'a>,
    /// The cost of the attempt.
    pub cost: Cost,
    /// The time of the decision, by the store's clock.
    pub now: Timestamp,
}

/// The headers that were written, with the ranges of their values in the buffer. All values of a response share one buffer,
/// so that it becomes a `Bytes` once.
#[derive(Debug, Default)]
pub struct HeaderRanges {
    fields: [Option<(&'static HeaderName, Range<usize>)>; FIELDS_MAX],
    count: usize,
}

/// A draft has at most four fields, and so have the older names.
const FIELDS_MAX: usize = 8;

impl HeaderRanges {
    #[inline]
    fn push(&mut self, name: &'static HeaderName, range: Range<usize>) {
        if let Some(field) = self.fields.get_mut(self.count) {
            *field = Some((name, range));
            self.count += 1;
        }
    }
}

impl IntoIterator for HeaderRanges {
    type Item = (&'static HeaderName, Range<usize>);
    type IntoIter = Flatten<Take<IntoIter<Option<Self::Item>, FIELDS_MAX>>>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.fields.into_iter().take(self.count).flatten()
    }
}

/// Writes the headers of all dialects in use to the end of `buffer`.
pub fn write<'a, I>(dialects: Dialects, input: &HeaderInput<'a, I>, buffer: &mut Vec<u8>, ranges: &mut HeaderRanges)
where
    I: Iterator<Item = HeaderPolicy<'a>> + Clone,
{
    let HeaderInput {
        nearest,
        policies,
        cost,
        now,
    } = input;
    let mut field = |name: &'static HeaderName, fill: &dyn Fn(&mut Value<'_>)| {
        let start = buffer.len();
        fill(&mut Value { buffer, start });
        // An empty value is not sent.
        if buffer.len() > start {
            ranges.push(name, start..buffer.len());
        }
    };
    let limit = |value: &mut Value<'_>| integer(value, nearest.quota.units());
    let remaining = |value: &mut Value<'_>| integer(value, nearest.standing.remaining);
    let reset = |value: &mut Value<'_>| {
        if let Some(wait) = nearest.effective_window() {
            integer(value, seconds_ceil(wait));
        }
    };
    // Windows without names, as drafts before 08 had them. They have no form for a limit without a window.
    let windows = |value: &mut Value<'_>, names: PolicyNames| {
        for policy in policies.clone() {
            if let PolicyQuota::Window { units, window_s } = policy.quota {
                separate(value);
                integer(value, units);
                parameter(value, b";w=", window_s);
                if let PolicyNames::Include = names {
                    value.extend_from_slice(b";name=\"");
                    value.extend_from_slice(policy.name.as_bytes());
                    value.push(b'"');
                }
            }
        }
    };
    for dialect in dialects.iter() {
        match dialect {
            Dialect::Ietf => {
                field(&RATELIMIT_POLICY, &|value| push_policies(value, policies.clone()));
                field(&RATELIMIT, &|value| {
                    for policy in policies.clone() {
                        push_name(value, policy.name);
                        parameter(value, b";r=", policy.standing.remaining);
                        if let Some(wait) = policy.effective_window() {
                            parameter(value, b";t=", seconds_ceil(wait));
                        }
                    }
                });
            }
            Dialect::IetfNext => {
                field(&RATELIMIT_POLICY, &|value| push_policies(value, policies.clone()));
                field(&RATELIMIT, &|value| {
                    for policy in policies.clone() {
                        push_name(value, policy.name);
                        parameter(value, b";a=", policy.standing.remaining);
                        if let Some(wait) = policy.effective_window() {
                            parameter(value, b";w=", seconds_ceil(wait));
                        }
                        parameter(value, b";c=", cost.get());
                    }
                });
            }
            Dialect::Draft07 => {
                field(&RATELIMIT_POLICY, &|value| windows(value, PolicyNames::Omit));
                field(&RATELIMIT, &|value| {
                    parameter(value, b"limit=", nearest.quota.units());
                    parameter(value, b", remaining=", nearest.standing.remaining);
                    if let Some(wait) = nearest.effective_window() {
                        parameter(value, b", reset=", seconds_ceil(wait));
                    }
                });
            }
            Dialect::Draft06 => {
                field(&RATELIMIT_LIMIT, &limit);
                field(&RATELIMIT_REMAINING, &remaining);
                field(&RATELIMIT_RESET, &reset);
                field(&RATELIMIT_POLICY, &|value| windows(value, PolicyNames::Omit));
            }
            Dialect::Draft03 => {
                field(&RATELIMIT_LIMIT, &|value| {
                    limit(value);
                    windows(value, PolicyNames::Omit);
                });
                field(&RATELIMIT_REMAINING, &remaining);
                field(&RATELIMIT_RESET, &reset);
            }
            Dialect::XEnvoy => {
                field(&X_RATELIMIT_LIMIT, &|value| {
                    limit(value);
                    windows(value, PolicyNames::Include);
                });
                field(&X_RATELIMIT_REMAINING, &remaining);
                field(&X_RATELIMIT_RESET, &reset);
            }
            Dialect::XDelta => {
                field(&X_RATELIMIT_LIMIT, &limit);
                field(&X_RATELIMIT_REMAINING, &remaining);
                field(&X_RATELIMIT_RESET, &reset);
            }
            Dialect::XUnix => {
                field(&X_RATELIMIT_LIMIT, &limit);
                field(&X_RATELIMIT_REMAINING, &remaining);
                field(&X_RATELIMIT_USED, &|value| {
                    integer(value, nearest.quota.units().saturating_sub(nearest.standing.remaining));
                });
                field(&X_RATELIMIT_RESET, &|value| {
                    if let Some(wait) = nearest.effective_window() {
                        integer(value, now.as_micros().saturating_add(wait.get()).div_ceil(1_000_000));
                    }
                });
            }
        }
    }
}

/// One value in the buffer, and its start.
struct Value<'b> {
    buffer: &'b mut Vec<u8>,
    start: usize,
}

impl Value<'_> {
    #[inline]
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    #[inline]
    fn push(&mut self, byte: u8) {
        self.buffer.push(byte);
    }
}

#[derive(Clone, Copy)]
enum PolicyNames {
    Include,
    Omit,
}

/// `"api";q=100;w=60, "inflight";q=20;qu="concurrent-requests"`.
#[inline]
fn push_policies<'a>(value: &mut Value<'_>, policies: impl Iterator<Item = HeaderPolicy<'a>>) {
    for policy in policies {
        push_name(value, policy.name);
        parameter(value, b";q=", policy.quota.units());
        match policy.quota {
            PolicyQuota::Window { window_s, .. } => parameter(value, b";w=", window_s),
            PolicyQuota::Concurrent { .. } => value.extend_from_slice(b";qu=\"concurrent-requests\""),
            PolicyQuota::Banned => {}
        }
    }
}

/// Writes the next item of a list of names.
#[inline]
fn push_name(value: &mut Value<'_>, name: &str) {
    separate(value);
    value.push(b'"');
    value.extend_from_slice(name.as_bytes());
    value.push(b'"');
}

#[inline]
fn separate(value: &mut Value<'_>) {
    if value.buffer.len() > value.start {
        value.extend_from_slice(b", ");
    }
}

#[inline]
fn parameter(value: &mut Value<'_>, name: &[u8], number: u64) {
    value.extend_from_slice(name);
    integer(value, number);
}

/// An integer as structured fields can hold it: 15 digits at most.
#[inline]
fn integer(value: &mut Value<'_>, number: u64) {
    const MAX: u64 = 999_999_999_999_999;
    value.extend_from_slice(itoa::Buffer::new().format(number.min(MAX)).as_bytes());
}

static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
static RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
static RATELIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
static X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
static X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
static X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
static X_RATELIMIT_USED: HeaderName = HeaderName::from_static("x-ratelimit-used");
