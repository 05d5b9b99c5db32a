//! `telemetry`: the collector that metrics are sent to.

use super::reader::SettingsReader;
use crate::server::telemetry::otlp::{OtlpEndpoint, OtlpSettings};
use std::ops::RangeInclusive;
use std::time::Duration;
use tollgate_limiter::core::yaml::Node;

impl SettingsReader<'_> {
    /// Reads the section. None: metrics are sent nowhere.
    pub(super) fn telemetry(&mut self, node: Option<&Node>) -> Option<OtlpSettings> {
        let fields = node?.fields("`telemetry`", &KEYS, &mut self.problems)?;
        let node = fields.value("otlp")?;
        let fields = node.fields("`otlp`", &OTLP_KEYS, &mut self.problems)?;
        let find = |key| fields.value(key);
        let interval = find("interval").and_then(|node| self.duration_within(node, &INTERVALS));
        // It may have a secret in it, so no message repeats it.
        let Some((text, location)) = self.secret_or_file(&fields, "endpoint", "a URL") else {
            if find("endpoint").is_none() && find("endpoint_file").is_none() {
                fields.require("`otlp`", "endpoint", EXAMPLE, &mut self.problems);
            }
            return None;
        };
        match OtlpEndpoint::parse(&text) {
            Ok(endpoint) => Some(OtlpSettings {
                endpoint,
                interval: interval.unwrap_or(INTERVAL),
            }),
            Err(reason) => {
                let text = format!("not the URL of a collector: {reason}");
                self.problems.error_with(&location, text, format!("write `{EXAMPLE}`"));
                None
            }
        }
    }
}

/// The keys of the section.
pub(super) const KEYS: [&str; 1] = ["otlp"];
/// The keys of the collector.
pub(super) const OTLP_KEYS: [&str; 3] = ["endpoint", "endpoint_file", "interval"];
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
            interval: INTERVAL,
        };
        assert_eq!(otlp, Some(expected));
        let otlp = accepted("telemetry: { otlp: { endpoint: 'https://otlp.example/v1/metrics', interval: 60s } }").otlp;
        assert_eq!(otlp.map(|otlp| otlp.interval), Some(Duration::from_secs(60)));
    }

    #[test]
    fn what_is_wrong_is_reported_without_secrets() {
        for (text, message) in [
            ("endpoint: 'hunter2.example:4317'", "not the URL of a collector"),
            ("endpoint: 'http://u:hunter2@h:4317'", "no user"),
            ("interval: 10s", "endpoint: http"),
            ("endpoint: 'http://h:4317', interval: 10ms", "out of range"),
            ("endpoint: 'http://h:4317', traces: 1%", "traces"),
        ] {
            let (config, messages) = read(&format!("telemetry: {{ otlp: {{ {text} }} }}"));
            assert!(config.is_none() && messages.contains(message), "{text}: {messages}");
            assert!(!messages.contains("hunter2"), "{text}: {messages}");
        }
    }
}
