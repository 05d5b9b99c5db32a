//! Traces: chooses the requests that get a span, and keeps the spans of their checks until they are sent.
//!
//! Off, a request pays one branch. A span says what was decided and by which rule, never for whom: attributes of a request may
//! identify a person, and traces are kept elsewhere.

mod traceparent;

use self::traceparent::TraceParent;
use super::AlignedCount;
use hyper::HeaderMap;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};
use std::sync::OnceLock;
use tokio::sync::mpsc;
use tollgate_limiter::core::quantity::Share;

/// The choice of requests that get a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSampling {
    /// The share of requests without a trace context. Of those with one, exactly the ones that their caller sampled get a span.
    pub share: Share,
}

/// The place of a span in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    pub(super) trace: NonZeroU128,
    /// The span of the caller.
    pub(super) parent: Option<NonZeroU64>,
    /// The flags of the trace, as W3C has them.
    pub(super) flags: u8,
}

/// The place of the span of one request; none for a request that is not sampled. Boxed, because futures are moved.
pub(crate) type RequestTrace = Option<Box<SpanContext>>;

/// One span: a check from planning to verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckSpan {
    pub(super) context: SpanContext,
    pub(super) id: NonZeroU64,
    /// In nanoseconds since the epoch.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) facts: CheckFacts,
}

/// The attributes of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckFacts {
    /// The domain of the first attempt. Long ones are cut.
    pub(crate) domain: String,
    /// The rule that the response reports.
    pub(crate) rule: Option<String>,
    /// True if the request is allowed.
    pub(crate) allowed: bool,
    /// The part of the system that decided.
    pub(crate) source: &'static str,
    /// The protocol it arrived over.
    pub(crate) protocol: &'static str,
    /// Attempts of the request.
    pub(crate) attempts: usize,
}

/// The traces of one server.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    sampler: OnceLock<Sampler>,
    /// Spans that a collector accepted.
    pub(super) exported: AlignedCount,
    /// Spans of exports that failed.
    pub(super) failed: AlignedCount,
    /// Spans that were not kept, because too many waited.
    dropped: AlignedCount,
}

#[derive(Debug)]
struct Sampler {
    sampling: TraceSampling,
    queue: mpsc::Sender<CheckSpan>,
}

/// Spans that wait to be sent. Each has at most about 700 bytes.
const WAITING_SPANS_MAX: usize = 8_192;

impl Traces {
    /// Samples requests from now on, and returns their spans. None: it samples already.
    pub(crate) fn start(&self, sampling: TraceSampling) -> Option<mpsc::Receiver<CheckSpan>> {
        let (queue, spans) = mpsc::channel(WAITING_SPANS_MAX);
        self.sampler.set(Sampler { sampling, queue }).ok().map(|()| spans)
    }

    /// Chooses whether a request with these headers gets a span.
    #[inline]
    pub(crate) fn sample(&self, headers: &HeaderMap) -> RequestTrace {
        let sampler = self.sampler.get()?;
        sampler.sampling.sample(headers)
    }

    /// Keeps the span of a check that ended now.
    pub(crate) fn record(&self, context: SpanContext, end: u64, elapsed_ns: u64, facts: impl FnOnce() -> CheckFacts) {
        let Some(sampler) = self.sampler.get() else { return };
        match sampler.queue.try_reserve() {
            Ok(place) => place.send(CheckSpan {
                context,
                id: NonZeroU64::new(fastrand::u64(..)).unwrap_or(NonZeroU64::MIN),
                start: end.saturating_sub(elapsed_ns),
                end,
                facts: facts(),
            }),
            Err(_) => self.dropped.add(1),
        }
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Spans of sampled requests, by what became of them; dropped: too many waited to be sent.";
        let mut spans = encoder.encode_descriptor("tollgate_spans", help, None, MetricType::Counter)?;
        for (result, count) in [
            ("exported", &self.exported),
            ("failed", &self.failed),
            ("dropped", &self.dropped),
        ] {
            let labels = [("result", result)];
            ConstCounter::new(count.get()).encode(spans.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl TraceSampling {
    #[cold]
    fn sample(self, headers: &HeaderMap) -> RequestTrace {
        match TraceParent::of_headers(headers) {
            Some(parent) => self.child(parent),
            None => self.root(|| fastrand::u128(..)),
        }
        .map(Box::new)
    }

    /// The span of a request with a trace context: its caller has chosen.
    fn child(self, parent: TraceParent) -> Option<SpanContext> {
        (parent.flags & SAMPLED != 0).then_some(SpanContext {
            trace: parent.trace,
            parent: Some(parent.span),
            flags: parent.flags,
        })
    }

    /// The first span of a new trace, if its number is below the share: so others that sample by the number choose the same traces.
    fn root(self, random: impl FnOnce() -> u128) -> Option<SpanContext> {
        let below = self.share.part_of(1 << RANDOM_BITS);
        if below == 0 {
            return None;
        }
        let trace = NonZeroU128::new(random())?;
        let number = trace.get() & ((1 << RANDOM_BITS) - 1);
        (number < u128::from(below)).then_some(SpanContext {
            trace,
            parent: None,
            flags: SAMPLED | RANDOM,
        })
    }
}

/// The bits of a trace id that W3C requires to be random: its last seven bytes.
const RANDOM_BITS: u32 = 56;
/// Flags of a trace.
const SAMPLED: u8 = 1;
const RANDOM: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::core::quantity::parse_share;

    fn sampling(share: &str) -> TraceSampling {
        TraceSampling {
            share: parse_share(share).unwrap(),
        }
    }

    fn headers(traceparent: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", traceparent.parse().unwrap());
        headers
    }

    fn facts() -> CheckFacts {
        CheckFacts {
            domain: "default".to_owned(),
            rule: None,
            allowed: true,
            source: "memory",
            protocol: "http",
            attempts: 1,
        }
    }

    #[test]
    fn nothing_is_sampled_before_the_start() {
        let traces = Traces::default();
        let sampled = headers("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        assert!(traces.sample(&sampled).is_none());
        let _spans = traces.start(sampling("0%")).unwrap();
        assert!(traces.sample(&sampled).is_some());
        assert!(traces.start(sampling("1%")).is_none());
    }

    #[test]
    fn the_caller_chooses_and_the_share_is_of_the_others() {
        let sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        for (share, header, expected) in [
            ("0%", Some(sampled), true),
            ("0%", Some(unsampled), false),
            ("0%", None, false),
            ("100%", Some(unsampled), false),
            ("100%", Some("00-no-context-01"), true),
            ("100%", None, true),
        ] {
            let headers = header.map(headers).unwrap_or_default();
            let trace = sampling(share).sample(&headers);
            assert_eq!(trace.is_some(), expected, "{share} {header:?}");
            if let (Some(trace), true) = (trace, header == Some(sampled)) {
                assert_eq!(trace.trace.get(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
                assert_eq!(trace.parent.map(NonZeroU64::get), Some(0x00f0_67aa_0ba9_02b7));
            }
        }
    }

    #[test]
    fn a_share_of_trace_numbers_is_sampled() {
        let tenth = sampling("10%");
        let end = (1_u128 << 56) / 10;
        for (number, expected) in [(1, true), (end - 1, true), (end + 1, false), (u128::MAX, false)] {
            assert_eq!(tenth.root(|| number).is_some(), expected, "{number}");
            assert_eq!(tenth.root(|| number | 1 << 64).is_some(), expected, "{number}");
        }
        assert_eq!(tenth.root(|| 0), None);
        assert_eq!(sampling("0%").root(|| panic!("no number is drawn")), None);
    }

    #[test]
    fn spans_wait_in_a_bounded_queue_and_the_others_are_counted() {
        let traces = Traces::default();
        let mut spans = traces.start(sampling("100%")).unwrap();
        let context = *traces.sample(&HeaderMap::new()).unwrap();
        for _ in 0..WAITING_SPANS_MAX {
            traces.record(context, 5_000, 2_000, facts);
        }
        traces.record(context, 5_000, 2_000, || panic!("no span is made that is not kept"));
        assert_eq!(traces.dropped.get(), 1);
        let span = spans.try_recv().unwrap();
        assert_eq!((span.start, span.end, span.context), (3_000, 5_000, context));
        traces.record(context, 5_000, 2_000, facts);
        assert_eq!((spans.len(), traces.dropped.get()), (WAITING_SPANS_MAX, 1));
    }
}
