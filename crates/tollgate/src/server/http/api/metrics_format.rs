//! The text format of `/metrics`: OpenMetrics if the scraper accepts it, otherwise that of Prometheus.

use hyper::HeaderMap;
use hyper::header::ACCEPT;

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricsFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, 0.0.4.
    Prometheus,
}

impl MetricsFormat {
    /// The format that `Accept` prefers. OpenMetrics must be named; `*/*` does not name it.
    pub(super) fn preferred_by(headers: &HeaderMap) -> Self {
        let lines = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let (mut open, mut plain) = (0, 0);
        for range in lines.flat_map(|line| line.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let quality = quality(parts);
            if name.eq_ignore_ascii_case("application/openmetrics-text") {
                open = open.max(quality);
            } else if ["text/plain", "text/*", "*/*"]
                .iter()
                .any(|known| name.eq_ignore_ascii_case(known))
            {
                plain = plain.max(quality);
            }
        }
        match open > 0 && open >= plain {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// Its media type.
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts from OpenMetrics. The samples are the same in both; Prometheus names a counter in its comments as its
    /// samples are named, has no units and no end mark.
    pub(super) fn convert(self, text: String) -> String {
        if self == Self::OpenMetrics {
            return text;
        }
        let mut converted = String::with_capacity(text.len());
        let mut help = None;
        for line in text.lines() {
            let comment = line.strip_prefix("# ").and_then(|comment| comment.split_once(' '));
            match comment {
                // Help comes before the type, which says the name.
                Some(("HELP", rest)) => help = rest.split_once(' '),
                Some(("TYPE", rest)) => {
                    let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
                    let (suffix, kind) = match kind {
                        "counter" => ("_total", kind),
                        "info" => ("_info", "gauge"),
                        "unknown" => ("", "untyped"),
                        kind => ("", kind),
                    };
                    if let Some((_, text)) = help.take().filter(|(helped, _)| *helped == name) {
                        converted.extend(["# HELP ", name, suffix, " ", text, "\n"]);
                    }
                    converted.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
                }
                _ if line.starts_with("# ") => {}
                _ => converted.extend([line, "\n"]),
            }
        }
        converted
    }
}

/// The quality of a media range in thousandths.
fn quality<'p>(mut parameters: impl Iterator<Item = &'p str>) -> u32 {
    let value = parameters.find_map(|parameter| parameter.strip_prefix("q=").or(parameter.strip_prefix("Q=")));
    let Some((whole, fraction)) = value.map(|value| value.split_once('.').unwrap_or((value, ""))) else {
        return 1_000;
    };
    if whole != "0" {
        return 1_000;
    }
    let digits = fraction.bytes().chain([b'0'; 3]).take(3);
    digits.fold(0, |number, digit| {
        number * 10 + u32::from(digit.saturating_sub(b'0').min(9))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_those_who_ask_for_it() {
        use MetricsFormat::{OpenMetrics, Prometheus};
        for (accept, expected) in [
            (None, Prometheus),
            (Some("*/*"), Prometheus),
            (Some("text/plain"), Prometheus),
            (Some("text/plain;version=0.0.4"), Prometheus),
            (Some("application/json"), Prometheus),
            (Some("application/openmetrics-text"), OpenMetrics),
            (
                Some("Application/OpenMetrics-Text; version=1.0.0, */*;q=0.1"),
                OpenMetrics,
            ),
            (Some("application/openmetrics-text;q=0"), Prometheus),
            (Some("application/openmetrics-text;q=0.2,text/plain;q=0.3"), Prometheus),
            // As Prometheus 3 asks.
            (
                Some(
                    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                     text/plain;version=1.0.0;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                ),
                OpenMetrics,
            ),
        ] {
            let mut headers = HeaderMap::new();
            headers.extend(accept.map(|accept| (ACCEPT, accept.parse().expect("a header"))));
            assert_eq!(MetricsFormat::preferred_by(&headers), expected, "{accept:?}");
        }
    }

    #[test]
    fn comments_of_prometheus_name_counters_as_their_samples() {
        let text = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total{x=\"# y\"} 1\n\
                    # HELP b Now.\n# TYPE b gauge\nb 2\n# TYPE c info\nc_info{v=\"1\"} 1\n# EOF\n";
        let expected = "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\na_seconds_total{x=\"# y\"} 1\n\
                        # HELP b Now.\n# TYPE b gauge\nb 2\n# TYPE c_info gauge\nc_info{v=\"1\"} 1\n";
        assert_eq!(MetricsFormat::Prometheus.convert(text.into()), expected);
        assert_eq!(MetricsFormat::OpenMetrics.convert(text.into()), text);
    }
}
