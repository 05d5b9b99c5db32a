//! What is told of the store: asked when it is told, counted nowhere else.

use crate::server::store::AnyStore;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

/// A store's figures.
#[derive(Debug)]
pub(super) struct StoreMetrics(pub(super) AnyStore);

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name, help, number: u64| {
            let gauge = ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        let breaker = match &self.0 {
            AnyStore::Memory(_) => 0,
            AnyStore::Redis(store) => store.inner().breaker() as u64,
        };
        let help = "0 closed, 1 half-open, 2 open; with several servers the most restrictive state.";
        gauge("tollgate_breaker_state", help, breaker)?;
        match &self.0 {
            AnyStore::Memory(store) => {
                gauge("tollgate_keys", "Keys in the store.", store.usage().keys as u64)?;
                errors(&mut encoder, [("unavailable", 0)])
            }
            AnyStore::Redis(store) => {
                let fallback = store.metrics();
                let instances = store.instances().count();
                gauge(
                    "tollgate_instances",
                    "Instances that share the limits.",
                    instances.into(),
                )?;
                let store = store.inner();
                let connected = u64::from(store.connection_error().is_none());
                gauge(
                    "tollgate_store_connected",
                    "1 while the shared store is reachable.",
                    connected,
                )?;
                let metrics = store.metrics();
                let mut count = |name, help, number: u64| {
                    let counter = ConstCounter::new(number);
                    counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
                };
                count(
                    "tollgate_store_calls",
                    "Calls of the settlement script.",
                    metrics.calls.get(),
                )?;
                let help = "Charges settled by script calls; divided by calls, the batch size.";
                count("tollgate_store_charges", help, metrics.charges.get())?;
                let help = "Circuit breaker state changes.";
                count("tollgate_breaker_transitions", help, store.breaker_changes())?;
                let help = "Charges decided by this instance while the store was unavailable.";
                count("tollgate_fallback_charges", help, fallback.decided())?;
                let help = "Fallback counters seeded from the last shared state.";
                count("tollgate_fallback_seeded_counters", help, fallback.seeded_counters())?;
                let help = "Units allowed while the store was unavailable and charged to it afterwards.";
                count("tollgate_fallback_repaid_units", help, fallback.repaid_units())?;
                let help = "Script reloads after NOSCRIPT or a missing function.";
                count("tollgate_store_script_loads", help, metrics.script_loads.get())?;
                count(
                    "tollgate_store_connect_attempts",
                    "Attempts to connect to the store.",
                    metrics.connect_attempts.get(),
                )?;
                let help = "MOVED and ASK redirections of a cluster.";
                count("tollgate_store_redirects", help, metrics.redirects.get())?;
                let help = "Charges reversed because another part of their request was denied or failed.";
                count(
                    "tollgate_store_compensated_charges",
                    help,
                    metrics.compensated_charges.get(),
                )?;
                let help = "Charges whose compensation failed or is unknown.";
                count(
                    "tollgate_store_uncompensated_charges",
                    help,
                    metrics.uncompensated_charges.get(),
                )?;
                let help = "Peeks answered by a replica.";
                count("tollgate_store_replica_reads", help, metrics.replica_reads.get())?;
                let help = "Peeks that a replica did not answer and its primary did.";
                count("tollgate_store_replica_misses", help, metrics.replica_misses.get())?;
                let help = "Restarts of background store tasks.";
                count("tollgate_store_task_restarts", help, metrics.task_restarts.get())?;
                errors(&mut encoder, metrics.errors())
            }
        }
    }
}

fn errors(encoder: &mut DescriptorEncoder<'_>, errors: impl IntoIterator<Item = (&'static str, u64)>) -> fmt::Result {
    let help = "Requests that the store could not answer, by error code.";
    let mut family = encoder.encode_descriptor("tollgate_store_errors", help, None, MetricType::Counter)?;
    for (code, number) in errors {
        ConstCounter::new(number).encode(family.encode_family(&[("code", code)])?)?;
    }
    Ok(())
}
