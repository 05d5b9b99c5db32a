//! Sends the spans of checks, in batches.

use super::client::{OtlpClient, Signal};
use super::messages::KeyValue;
use super::span_messages::{HAS_ORIGIN, IS_REMOTE, ResourceSpans, SERVER, ScopeSpans, Span, SpanExportRequest};
use super::{OtlpSettings, resource, scope};
use crate::server::gate::Gate;
use crate::server::telemetry::traces::CheckSpan;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};
use tokio::time::sleep;

/// Sends spans without end.
#[derive(Debug)]
pub struct SpanExporter {
    gate: Arc<Gate>,
    client: OtlpClient,
    /// Identifies this process to the collector.
    instance: String,
    /// Locked by the task that runs; another starts after it.
    spans: Mutex<mpsc::Receiver<CheckSpan>>,
}

/// The most spans of one export: with 700 bytes each, less than half of what a collector takes over gRPC by default.
const BATCH_SPANS_MAX: usize = 2_048;
/// The longest time a span waits for others: so many steps of this length.
const WAIT_STEPS: u32 = 10;
const WAIT_STEP: Duration = Duration::from_millis(100);

impl SpanExporter {
    /// An exporter of the spans of a server, which has them from now on. None: traces are off, or have an exporter.
    pub fn new(gate: Arc<Gate>, settings: &OtlpSettings, instance: &str) -> Option<Self> {
        let spans = gate.traces().start(settings.traces?)?;
        Some(Self {
            gate,
            client: OtlpClient::new(&settings.endpoint, Signal::Traces),
            instance: instance.to_owned(),
            spans: Mutex::new(spans),
        })
    }

    /// Sends spans without end. Those of an export that fails are given up and counted.
    pub async fn run(&self) {
        let mut spans = self.spans.lock().await;
        loop {
            let Some(batch) = next_batch(&mut spans).await else {
                return;
            };
            let number = batch.len() as u64;
            let sent = self.client.send(&self.message(batch)).await;
            let traces = self.gate.traces();
            match sent {
                Ok(()) => traces.exported.add(number),
                Err(()) => traces.failed.add(number),
            }
        }
    }

    fn message(&self, batch: Vec<CheckSpan>) -> SpanExportRequest {
        SpanExportRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(resource(&self.instance)),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope()),
                    spans: batch.into_iter().map(Span::from).collect(),
                }],
            }],
        }
    }
}

/// Waits for a span, and then a second for others unless a batch is full.
async fn next_batch(spans: &mut mpsc::Receiver<CheckSpan>) -> Option<Vec<CheckSpan>> {
    let mut batch = vec![spans.recv().await?];
    for _ in 0..WAIT_STEPS {
        if batch.len() + spans.len() >= BATCH_SPANS_MAX {
            break;
        }
        sleep(WAIT_STEP).await;
    }
    while batch.len() < BATCH_SPANS_MAX
        && let Ok(span) = spans.try_recv()
    {
        batch.push(span);
    }
    Some(batch)
}

impl From<CheckSpan> for Span {
    fn from(span: CheckSpan) -> Self {
        let CheckSpan { context, facts, .. } = span;
        let result = if facts.allowed { "allow" } else { "deny" };
        let mut attributes = vec![
            KeyValue::text("tollgate.domain", &facts.domain),
            KeyValue::text("tollgate.result", result),
            KeyValue::text("tollgate.source", facts.source),
            KeyValue::text("tollgate.protocol", facts.protocol),
        ];
        attributes.extend(facts.rule.map(|rule| KeyValue::text("tollgate.rule", &rule)));
        if facts.attempts != 1 {
            attributes.push(KeyValue::number("tollgate.attempts", facts.attempts));
        }
        let is_remote = if context.parent.is_some() { IS_REMOTE } else { 0 };
        Self {
            trace_id: context.trace.get().to_be_bytes().to_vec(),
            span_id: span.id.get().to_be_bytes().to_vec(),
            parent_span_id: context
                .parent
                .map(|parent| parent.get().to_be_bytes().to_vec())
                .unwrap_or_default(),
            flags: u32::from(context.flags) | HAS_ORIGIN | is_remote,
            name: "check".to_owned(),
            kind: SERVER,
            start_time_unix_nano: span.start,
            end_time_unix_nano: span.end,
            attributes,
        }
    }
}
