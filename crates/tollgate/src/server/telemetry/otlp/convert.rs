//! Metrics as OTLP, made from the text of `/metrics`: so both say the same, also of metrics that are added.
//!
//! The text is that of our own registry. A line that cannot be read is left out, and a test sees that all can.

use super::messages::{
    CUMULATIVE, Gauge, HistogramPoint, HistogramPoints, KeyValue, Metric, MetricData, Number, NumberPoint, Sum,
};

/// The times of all points, in nanoseconds since the epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct PointTimes {
    pub(super) start: u64,
    pub(super) now: u64,
}

/// One line of the text.
#[derive(Debug)]
struct Sample<'t> {
    name: &'t str,
    labels: Vec<(&'t str, String)>,
    value: &'t str,
}

/// Converts the OpenMetrics text of a registry. Returns the metrics and the number of lines that could not be read.
pub(super) fn convert(text: &str, times: PointTimes) -> (Vec<Metric>, usize) {
    let mut metrics: Vec<Metric> = Vec::new();
    let mut unread = 0;
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            describe(comment, &mut metrics);
            continue;
        }
        let taken = sample(line).and_then(|sample| {
            let metric = metrics
                .last_mut()
                .filter(|metric| sample.name.starts_with(&metric.name))?;
            take(metric, &sample, times)
        });
        if taken.is_none() {
            unread += 1;
        }
    }
    metrics.retain(|metric| !is_empty(metric));
    for metric in &mut metrics {
        finish(metric);
    }
    (metrics, unread)
}

/// Takes a line of a description: `HELP name text`, `TYPE name type` or `UNIT name unit`.
fn describe(comment: &str, metrics: &mut Vec<Metric>) {
    let mut parts = comment.splitn(3, ' ');
    let (Some(keyword), Some(name), Some(value)) = (parts.next(), parts.next(), parts.next()) else {
        return;
    };
    if metrics.last().is_none_or(|last| last.name != name) {
        metrics.push(Metric {
            name: name.to_owned(),
            ..Metric::default()
        });
    }
    let Some(metric) = metrics.last_mut() else { return };
    match (keyword, value) {
        ("HELP", text) => metric.description = unescape(text),
        ("UNIT", "seconds") => metric.unit = "s".to_owned(),
        ("UNIT", "bytes") => metric.unit = "By".to_owned(),
        ("TYPE", "counter") => {
            metric.data = Some(MetricData::Sum(Sum {
                data_points: Vec::new(),
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            }));
        }
        ("TYPE", "gauge") => metric.data = Some(MetricData::Gauge(Gauge::default())),
        ("TYPE", "histogram") => {
            metric.data = Some(MetricData::Histogram(HistogramPoints {
                data_points: Vec::new(),
                aggregation_temporality: CUMULATIVE,
            }));
        }
        _ => {}
    }
}

/// Reads `name{label="value",…} number`.
fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.strip_prefix(' ')?;
    Some(Sample { name, labels, value })
}

/// Reads labels up to the closing brace, and returns the rest of the line.
fn labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        rest = rest.strip_prefix(',').unwrap_or(rest);
        let (name, value) = rest.split_once("=\"")?;
        // The first quote that is not escaped ends the value.
        let mut is_escaped = false;
        let end = value.find(|character| {
            let ends = character == '"' && !is_escaped;
            is_escaped = character == '\\' && !is_escaped;
            ends
        })?;
        let (value, after) = value.split_at(end);
        labels.push((name, unescape(value)));
        rest = after.strip_prefix('"')?;
    }
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '\\' => match characters.next() {
                Some('n') => '\n',
                Some(escaped) => escaped,
                None => '\\',
            },
            other => other,
        });
    }
    plain
}

/// Adds a sample to its metric. None: it does not fit.
fn take(metric: &mut Metric, sample: &Sample<'_>, times: PointTimes) -> Option<()> {
    let suffix = sample.name.strip_prefix(&*metric.name)?;
    match (&mut metric.data, suffix) {
        (Some(MetricData::Sum(sum)), "_total") => sum.data_points.push(number_point(sample, times)?),
        (Some(MetricData::Gauge(gauge)), "") => gauge.data_points.push(number_point(sample, times)?),
        (Some(MetricData::Histogram(histogram)), suffix) => {
            let is_bound = |(name, _): &&(&str, String)| *name == "le";
            let bound = sample.labels.iter().find(is_bound);
            let attributes = attributes(sample.labels.iter().filter(|label| !is_bound(label)));
            let points = &mut histogram.data_points;
            if points.last().is_none_or(|last| last.attributes != attributes) {
                points.push(HistogramPoint {
                    attributes,
                    start_time_unix_nano: times.start,
                    time_unix_nano: times.now,
                    ..HistogramPoint::default()
                });
            }
            let point = points.last_mut()?;
            match (suffix, bound) {
                ("_sum", _) => point.sum = Some(sample.value.parse().ok()?),
                ("_count", _) => point.count = sample.value.parse().ok()?,
                ("_bucket", Some((_, bound))) => {
                    // Cumulative until all are there.
                    point.bucket_counts.push(sample.value.parse().ok()?);
                    if bound != "+Inf" {
                        point.explicit_bounds.push(bound.parse().ok()?);
                    }
                }
                _ => return None,
            }
        }
        _ => return None,
    }
    Some(())
}

fn number_point(sample: &Sample<'_>, times: PointTimes) -> Option<NumberPoint> {
    let value = match sample.value.parse() {
        Ok(whole) => Number::Int(whole),
        Err(_) => Number::Double(sample.value.parse().ok()?),
    };
    Some(NumberPoint {
        attributes: attributes(sample.labels.iter()),
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        value: Some(value),
    })
}

fn attributes<'s>(labels: impl Iterator<Item = &'s (&'s str, String)>) -> Vec<KeyValue> {
    labels.map(|(name, value)| KeyValue::text(name, value)).collect()
}

fn is_empty(metric: &Metric) -> bool {
    match &metric.data {
        None => true,
        Some(MetricData::Sum(sum)) => sum.data_points.is_empty(),
        Some(MetricData::Gauge(gauge)) => gauge.data_points.is_empty(),
        Some(MetricData::Histogram(histogram)) => histogram.data_points.is_empty(),
    }
}

/// Makes the counts of buckets those of each bucket alone.
fn finish(metric: &mut Metric) {
    let Some(MetricData::Histogram(histogram)) = &mut metric.data else {
        return;
    };
    for point in &mut histogram.data_points {
        let mut below = 0;
        for count in &mut point.bucket_counts {
            let up_to = *count;
            *count = up_to.saturating_sub(below);
            below = up_to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: PointTimes = PointTimes { start: 5, now: 9 };

    #[test]
    fn each_type_of_metric_is_converted() {
        let text = "\
# HELP tollgate_checks Verdicts by \\\"result\\\".
# TYPE tollgate_checks counter
tollgate_checks_total{result=\"allow\",rule=\"a \\\"b\\\\\"} 7
# HELP tollgate_keys Keys.
# TYPE tollgate_keys gauge
tollgate_keys 3
# HELP tollgate_round_seconds Time.
# TYPE tollgate_round_seconds gauge
# UNIT tollgate_round_seconds seconds
tollgate_round_seconds 0.0025
# HELP tollgate_none None.
# TYPE tollgate_none counter
# HELP tollgate_decision_seconds Time.
# TYPE tollgate_decision_seconds histogram
# UNIT tollgate_decision_seconds seconds
tollgate_decision_seconds_sum 0.5
tollgate_decision_seconds_count 6
tollgate_decision_seconds_bucket{le=\"0.1\"} 1
tollgate_decision_seconds_bucket{le=\"0.2\"} 4
tollgate_decision_seconds_bucket{le=\"+Inf\"} 6
# EOF
";
        let (metrics, unread) = convert(text, TIMES);
        assert_eq!(unread, 0);
        let names: Vec<(&str, &str)> = metrics
            .iter()
            .map(|metric| (metric.name.as_str(), metric.unit.as_str()))
            .collect();
        assert_eq!(
            names,
            [
                ("tollgate_checks", ""),
                ("tollgate_keys", ""),
                ("tollgate_round_seconds", "s"),
                ("tollgate_decision_seconds", "s")
            ]
        );
        let point = |attributes, value| NumberPoint {
            attributes,
            start_time_unix_nano: 5,
            time_unix_nano: 9,
            value: Some(value),
        };
        let labels = vec![KeyValue::text("result", "allow"), KeyValue::text("rule", "a \"b\\")];
        let expected = Sum {
            data_points: vec![point(labels, Number::Int(7))],
            aggregation_temporality: CUMULATIVE,
            is_monotonic: true,
        };
        assert_eq!(metrics[0].data, Some(MetricData::Sum(expected)));
        assert_eq!(metrics[0].description, "Verdicts by \"result\".");
        let data_points = vec![point(Vec::new(), Number::Double(0.0025))];
        assert_eq!(metrics[2].data, Some(MetricData::Gauge(Gauge { data_points })));
        let Some(MetricData::Histogram(histogram)) = &metrics[3].data else {
            panic!("{:?}", metrics[3])
        };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum), (6, Some(0.5)));
        assert_eq!(point.bucket_counts, [1, 3, 2]);
        assert_eq!(point.explicit_bounds, [0.1, 0.2]);
    }

    #[test]
    fn what_cannot_be_read_is_counted() {
        let text = "# TYPE a counter\na_total{x=\"1} 7\na_total x\nb_total 7\na_total 7\na 7\n";
        let (metrics, unread) = convert(text, TIMES);
        assert_eq!((metrics.len(), unread), (1, 4));
    }
}
