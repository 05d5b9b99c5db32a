//! `telemetry`: the collector that metrics and spans are sent to.

use super::reader::SettingsReader;
use crate::server::telemetry::otlp::{OtlpEndpoint, OtlpSettings};
use crate::server::telemetry::traces::TraceSampling;
use std::ops::RangeInclusive;
use std::time::Duration;
use tollgate_limiter::core::problem::ValueError;
use tollgate_limiter::core::quantity::{Share, parse_share};
use tollgate_limiter::core::yaml::Node;

impl SettingsReader<'_> {
    /// Reads the section. None: nothing is sent.
    pub(super) fn telemetry(&mut self, node: Option<&Node>) -> Option<OtlpSettings> {
        let fields = node?.fields("`telemetry`", &KEYS, &mut self.problems)?;
        let node = fields.value("otlp")?;
        let fields = node.fields("`otlp`", &OTLP_KEYS, &mut self.problems)?;
        let find = |key| fields.value(key);
        let interval = find("interval").and_then(|node| self.duration_within(node, &INTERVALS));
        let metrics = find("metrics").and_then(|node| node.flag(&mut self.problems));
        let traces_node = find("traces");
        let traces = traces_node.and_then(|node| node.read("a share or `parents`", sampling, &mut self.problems));
        // It may have a secret in it, so no message repeats it.
        let Some((text, location)) = self.secret_or_file(&fields, "endpoint", "a URL") else {
            if find("endpoint").is_none() && find("endpoint_file").is_none() {
                fields.require("`otlp`", "endpoint", EXAMPLE, &mut self.problems);
            }
            return None;
        };
        let endpoint = match OtlpEndpoint::parse(&text) {
            Ok(endpoint) => endpoint,
            Err(reason) => {
                let text = format!("not the URL of a collector: {reason}");
                self.problems.error_with(&location, text, format!("write `{EXAMPLE}`"));
                return None;
            }
        };
        let settings = OtlpSettings {
            endpoint,
            metrics_interval: metrics.unwrap_or(true).then(|| interval.unwrap_or(INTERVAL)),
            traces: traces.flatten(),
        };
        if settings.traces.is_some() && !settings.endpoint.takes_traces() {
            let text = "the path for traces does not follow from `endpoint`";
            let hint = "write a URL that ends with `/v1/metrics`, or one without a path for gRPC";
            self.problems.error_with(&location, text, hint);
        }
        if settings.metrics_interval.is_none() && settings.traces.is_none() {
            let text = "`otlp` sends nothing";
            let hint = "remove it, or one of `metrics: false` and `traces: 0%`";
            self.problems.error_with(&node.location, text, hint);
        }
        Some(settings)
    }
}

/// Parses `traces`. None: traces are off.
fn sampling(text: &str) -> Result<Option<TraceSampling>, ValueError> {
    if text == PARENTS {
        return Ok(Some(TraceSampling { share: Share::NONE }));
    }
    let share = parse_share(text)?;
    Ok((share != Share::NONE).then_some(TraceSampling { share }))
}

/// The keys of the section.
pub(super) const KEYS: [&str; 1] = ["otlp"];
/// The keys of the collector.
pub(super) const OTLP_KEYS: [&str; 5] = ["endpoint", "endpoint_file", "interval", "metrics", "traces"];
/// Only requests that their caller sampled get a span.
const PARENTS: &str = "parents";
const EXAMPLE: &str = "endpoint: http://127.0.0.1:4317";
const INTERVAL: Duration = Duration::from_secs(10);
const INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3_600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{accepted, read};

    #[test]
    fn a_collector_has_an_endpoint_and_an_interval() {
        assert_eq!(accepted("").otlp, None);
        assert_eq!(accepted("telemetry:").otlp, None);
        let otlp = accepted("telemetry: { otlp: { endpoint: 'http://127.0.0.1:4317' } }").otlp;
        let expected = OtlpSettings {
            endpoint: OtlpEndpoint::parse("http://127.0.0.1:4317").expect("a URL"),
            metrics_interval: Some(INTERVAL),
            traces: None,
        };
        assert_eq!(otlp, Some(expected));
        let otlp = accepted("telemetry: { otlp: { endpoint: 'https://otlp.example/v1/metrics', interval: 60s } }").otlp;
        assert_eq!(
            otlp.and_then(|otlp| otlp.metrics_interval),
            Some(Duration::from_secs(60))
        );
    }

    #[test]
    fn traces_are_off_unless_a_share_or_parents_are_named() {
        for (text, millionths) in [
            ("", None),
            (", traces: 0%", None),
            (", traces: ~", None),
            (", traces: parents", Some(0)),
            (", traces: 0.5%", Some(5_000)),
            (", metrics: false, traces: 100%", Some(1_000_000)),
        ] {
            let otlp = accepted(&format!(
                "telemetry: {{ otlp: {{ endpoint: 'http://127.0.0.1/v1/metrics'{text} }} }}"
            ))
            .otlp
            .expect("a collector");
            let traces = otlp.traces.map(|sampling| sampling.share.millionths());
            assert_eq!(traces, millionths, "{text}");
            assert_eq!(otlp.metrics_interval.is_none(), text.contains("false"), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_reported_without_secrets() {
        for (text, message) in [
            ("endpoint: 'hunter2.example:4317'", "not the URL of a collector"),
            ("endpoint: 'http://u:hunter2@h:4317'", "no user"),
            ("interval: 10s", "endpoint: http"),
            ("endpoint: 'http://h:4317', interval: 10ms", "out of range"),
            ("endpoint: 'http://h:4317', traces: 101%", "not a share"),
            ("endpoint: 'http://h:4317', traces: all", "not a share"),
            ("endpoint: 'http://h:4317', metrics: false", "sends nothing"),
            ("endpoint: 'http://h:4317', metrics: false, traces: 0%", "sends nothing"),
            ("endpoint: 'http://h/hunter2', traces: 1%", "the path for traces"),
        ] {
            let (config, messages) = read(&format!("telemetry: {{ otlp: {{ {text} }} }}"));
            assert!(config.is_none() && messages.contains(message), "{text}: {messages}");
            assert!(!messages.contains("hunter2"), "{text}: {messages}");
        }
    }
}
