//! The body of a denial: problem details of RFC 9457, of the types that the rate limit drafts define.

use super::json::{integer, string};
use super::policy::PolicyQuota;
use http::StatusCode;
use tollgate_limiter::core::Retry;
use tollgate_limiter::core::rules::DenialReason;

/// The members of a problem that a denial has.
#[derive(Clone, Copy, Debug)]
pub struct DenialProblem<'a> {
    /// Its type.
    pub kind: ProblemKind,
    /// The status of the response.
    pub status: StatusCode,
    /// A sentence about it.
    pub detail: Option<&'a str>,
    /// The reason, if it is not that a limit is used up.
    pub reason: Option<&'a str>,
}

/// The type of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// A limit is used up.
    QuotaExceeded,
    /// The service can do less than usual.
    ReducedCapacity,
}

impl DenialProblem<'_> {
    /// Writes its members, the violated policies last, with commas between them.
    pub fn write_members<'v>(&self, out: &mut Vec<u8>, violated: impl IntoIterator<Item = &'v str>) {
        let (kind, title) = match self.kind {
            ProblemKind::ReducedCapacity => ("temporary-reduced-capacity", "Temporary Reduced Capacity"),
            ProblemKind::QuotaExceeded => ("quota-exceeded", "Quota Exceeded"),
        };
        out.extend_from_slice(b"\"type\":\"https://iana.org/assignments/http-problem-types#");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",\"title\":\"");
        out.extend_from_slice(title.as_bytes());
        out.extend_from_slice(b"\",\"status\":");
        integer(out, self.status.as_u16().into());
        if let Some(detail) = self.detail {
            out.extend_from_slice(b",\"detail\":");
            string(out, detail.as_bytes());
        }
        if let Some(reason) = self.reason {
            out.extend_from_slice(b",\"reason\":\"");
            out.extend_from_slice(reason.as_bytes());
            out.push(b'"');
        }
        out.extend_from_slice(b",\"violated-policies\":[");
        for (index, name) in violated.into_iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            string(out, name.as_bytes());
        }
        out.push(b']');
    }
}

/// The name of the reason of a denial, if it is not that the limit is used up.
pub const fn reason_name(reason: DenialReason) -> Option<&'static str> {
    match reason {
        DenialReason::Limit => None,
        DenialReason::MinInterval(_) => Some("min_interval"),
        DenialReason::NoMemory => Some("no_memory"),
    }
}

/// A sentence about the limit that denied. `reserved`: nothing but its reserve did.
pub fn denial_detail(name: &str, quota: PolicyQuota, retry: Retry, reason: DenialReason, reserved: bool) -> String {
    match reason {
        DenialReason::Limit => {}
        DenialReason::MinInterval(interval) => {
            return format!(
                "Policy \"{name}\" allows one request every {interval}: this one came too soon after the last."
            );
        }
        DenialReason::NoMemory => {
            return format!("Policy \"{name}\" has no memory for another key: the server's memory for keys is full.");
        }
    }
    let kept = if reserved {
        ", and keeps the rest for others"
    } else {
        ""
    };
    match quota {
        PolicyQuota::Banned => format!("Policy \"{name}\" allows no requests."),
        quota if retry == Retry::Never => {
            let units = quota.units();
            format!("Policy \"{name}\" can never allow this: it costs more than the {units} the policy holds.")
        }
        PolicyQuota::Window { units, window_s } => {
            let (requests, seconds) = (with_plural(units, "request"), with_plural(window_s, "second"));
            format!("Policy \"{name}\" allows {requests} per {seconds}{kept}.")
        }
        PolicyQuota::Concurrent { slots } => {
            format!(
                "Policy \"{name}\" allows {} at a time{kept}.",
                with_plural(slots, "request")
            )
        }
    }
}

fn with_plural(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}
