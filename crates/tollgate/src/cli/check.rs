//! `tollgate check`: checks one attempt and prints the verdict.

use super::args::{CheckArgs, exit_code};
use super::client::{OutputFormat, ServerResponse};
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;

/// Arguments of `tollgate check`.
#[derive(clap::Args)]
pub(crate) struct Check {
    #[command(flatten)]
    args: CheckArgs,
    /// Cost of the attempt; 0 peeks and consumes nothing
    #[arg(long, default_value_t = 1, allow_negative_numbers = true, value_name = "N")]
    cost: u64,
}

impl Check {
    pub(crate) fn run(self) -> ExitCode {
        self.args
            .send("/v1/check", [("cost", json!(self.cost))], OutputFormat::Json, render)
    }
}

/// The verdict as text. `None` if the response has none.
fn render(response: &ServerResponse) -> Option<(String, ExitCode)> {
    let body = response.json()?;
    let allowed = body.get("allowed")?.as_bool()?;
    let mut text = String::new();
    let word = if allowed {
        "\u{1b}[1;32mallowed\u{1b}[0m"
    } else {
        "\u{1b}[1;31mdenied\u{1b}[0m"
    };
    text.push_str(word);
    match body.get("rule").and_then(Value::as_str) {
        Some(rule) => {
            let source = body.get("source").and_then(Value::as_str);
            if !allowed && source == Some("closed") {
                let _ = write!(text, " by {rule}: {CLOSED}");
                return Some((text, exit_code(allowed)));
            }
            let _ = write!(text, " by {rule}: {}", standing(&body, allowed));
            // Without a time to retry after, or with another reason than a limit that is used up, the server's text says
            // why: a ban, a cost above the limit, a held lease, a `min_interval`.
            let has_no_time = body.get("retry_after_ms").is_some_and(Value::is_null);
            if !allowed && is_reserved(&body) {
                text.push_str("; the rest is reserved");
            }
            if !allowed
                && (has_no_time || body.get("reason").is_some())
                && let Some(detail) = body.get("detail").and_then(Value::as_str)
            {
                let _ = write!(text, "; {detail}");
            }
        }
        None => match body.get("warning").and_then(Value::as_str) {
            Some(warning) => {
                let _ = write!(text, ": {warning}");
            }
            None => text.push_str(": no enforced rule matched"),
        },
    }
    if let Some(delay @ 1..) = body.get("delay_ms").and_then(Value::as_u64) {
        let _ = write!(text, "; proceed after {}", duration_text(delay));
    }
    if let Some(source) = body.get("source").and_then(Value::as_str)
        && !matches!(source, "memory" | "shared")
    {
        let _ = write!(text, " (source: {source})");
    }
    if let Some(lease) = body.get("lease").and_then(Value::as_str) {
        let _ = write!(text, "\nlease {lease}");
    }
    let limits = body
        .get("limits")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    if limits.len() > 1 || limits.iter().any(|limit| mode(limit) != "enforce") {
        let width = limits
            .iter()
            .map(|limit| name(limit).chars().count())
            .max()
            .unwrap_or(0);
        for limit in limits {
            let allows = limit.get("allowed").and_then(Value::as_bool).unwrap_or(true);
            let word = if allows { "allows" } else { "denies" };
            let _ = write!(text, "\n  {:width$}  {word}  {}", name(limit), standing(limit, allows));
            if mode(limit) != "enforce" {
                let _ = write!(text, " ({})", mode(limit));
            }
        }
    }
    Some((text, exit_code(allowed)))
}

/// The standing of a limit: the units remaining, and when it resets or a retry would pass.
fn standing(entry: &Value, allowed: bool) -> String {
    let number = |name| entry.get(name).and_then(Value::as_u64);
    let Some(limit) = number("limit") else {
        return "unlimited".into();
    };
    let mut text = format!("{} of {limit} remaining", number("remaining").unwrap_or(0));
    match (allowed, number("retry_after_ms"), number("reset_after_ms")) {
        (false, Some(wait), _) => text.push_str(&format!(", retry in {}", duration_text(wait))),
        (false, None, _) => {}
        (true, _, Some(reset @ 1..)) => text.push_str(&format!(", resets in {}", duration_text(reset))),
        (true, _, _) => {}
    }
    if entry.get("reserved").and_then(Value::as_bool) == Some(true) {
        text.push_str(", the rest is reserved");
    }
    text
}

/// True if only the reserve of the limit that speaks denies.
fn is_reserved(body: &Value) -> bool {
    let limits = body.get("limits").and_then(Value::as_array);
    limits.into_iter().flatten().any(|limit| {
        limit.get("rule") == body.get("rule") && limit.get("reserved").and_then(Value::as_bool) == Some(true)
    })
}

fn name(limit: &Value) -> &str {
    limit.get("rule").and_then(Value::as_str).unwrap_or("?")
}

fn mode(limit: &Value) -> &str {
    limit.get("mode").and_then(Value::as_str).unwrap_or("enforce")
}

/// A duration in at most two units, rounded up.
fn duration_text(ms: u64) -> String {
    let seconds = ms.div_ceil(1_000);
    let minutes = seconds.div_ceil(60);
    let hours = minutes.div_ceil(60);
    let two = |a: u64, unit: &str, b: u64, smaller: &str| match b {
        0 => format!("{a} {unit}"),
        b => format!("{a} {unit} {b} {smaller}"),
    };
    match ms {
        0..1_000 => format!("{ms} ms"),
        // Tenths matter to a person who waits.
        1_000..10_000 => {
            let tenths = ms.div_ceil(100);
            decimal_seconds(tenths)
        }
        10_000..60_000 => format!("{seconds} s"),
        60_000..3_600_000 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600_000..86_400_000 => two(minutes / 60, "h", minutes % 60, "min"),
        _ => two(hours / 24, "days", hours % 24, "h"),
    }
}

fn decimal_seconds(tenths: u64) -> String {
    match tenths % 10 {
        0 => format!("{} s", tenths / 10),
        tenth => format!("{}.{tenth} s", tenths / 10),
    }
}

/// The verdict of a rule that needs the store while it is unavailable.
const CLOSED: &str = "store unavailable, and a matching rule has on_store_failure: closed";

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::StatusCode;
    use hyper::body::Bytes;

    fn rendered(body: &Value) -> String {
        let response = ServerResponse {
            status: StatusCode::OK,
            headers: hyper::HeaderMap::new(),
            body: Bytes::from(body.to_string()),
        };
        render(&response).expect("the body has a verdict").0
    }

    #[test]
    fn times_are_rounded_up_and_short() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1 s"),
            (1_001, "1.1 s"),
            (9_950, "10 s"),
            (10_001, "11 s"),
            (59_999, "60 s"),
            (60_001, "1 min 1 s"),
            (3_600_000, "1 h"),
            (5_400_000, "1 h 30 min"),
            (90_000_000, "1 days 1 h"),
        ] {
            assert_eq!(duration_text(ms), text);
        }
    }

    #[test]
    fn a_verdict_says_what_is_left_and_when_to_ask_again() {
        let limit = |allowed: bool, mode: &str, wait: Value| {
            json!({"rule": "plan", "allowed": allowed, "limit": 5, "remaining": 4, "reset_after_ms": 600,
                   "retry_after_ms": wait, "mode": mode})
        };
        let verdict = |allowed: bool, rule: Value, limits: Value, wait: Value| {
            json!({"allowed": allowed, "rule": rule, "limit": 5, "remaining": 4, "reset_after_ms": 600,
                   "retry_after_ms": wait, "delay_ms": 0, "source": "memory", "lease": null, "limits": limits})
        };
        for (body, expected) in [
            (
                verdict(
                    true,
                    json!("plan"),
                    json!([limit(true, "enforce", Value::Null)]),
                    Value::Null,
                ),
                "allowed by plan: 4 of 5 remaining, resets in 600 ms",
            ),
            (
                verdict(
                    false,
                    json!("plan"),
                    json!([limit(false, "enforce", json!(12_000))]),
                    json!(12_000),
                ),
                "denied by plan: 4 of 5 remaining, retry in 12 s",
            ),
            (
                json!({"allowed": false, "rule": "plan", "limit": 5, "remaining": null, "source": "closed"}),
                "denied by plan: store unavailable, and a matching rule has on_store_failure: closed",
            ),
            (
                verdict(false, json!("plan"), json!([]), Value::Null),
                "denied by plan: 4 of 5 remaining",
            ),
            (
                verdict(true, Value::Null, json!([]), Value::Null),
                "allowed: no enforced rule matched",
            ),
            (
                verdict(
                    true,
                    Value::Null,
                    json!([limit(false, "shadow", json!(7))]),
                    Value::Null,
                ),
                "allowed: no enforced rule matched\n  plan  denies  4 of 5 remaining, retry in 7 ms (shadow)",
            ),
        ] {
            assert_eq!(anstream::adapter::strip_str(&rendered(&body)).to_string(), expected);
        }
    }

    #[test]
    fn what_is_no_verdict_is_not_shown_as_one() {
        for body in ["", "[]", "{}", "{\"allowed\":\"yes\"}", "<html>"] {
            let response = ServerResponse {
                status: StatusCode::OK,
                headers: hyper::HeaderMap::new(),
                body: Bytes::from(body),
            };
            assert!(render(&response).is_none(), "{body}");
        }
    }
}
