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
        let help = "0 closed, 1 half open, 2 open; of several servers the one that lets least through.";
        gauge("tollgate_breaker_state", help, breaker)?;
        match &self.0 {
            AnyStore::Memory(store) => {
                gauge("tollgate_keys", "Keys in the store.", store.usage().keys as u64)?;
                errors(&mut encoder, [("unavailable", 0)])
            }
            AnyStore::Redis(store) => {
                let fallback = store.metrics();
                let (instances, _) = store.instances();
                gauge(
                    "tollgate_instances",
                    "How many instances share the limits.",
                    instances.into(),
                )?;
                let store = store.inner();
                let connected = u64::from(store.connection_error().is_none());
                gauge("tollgate_store_connected", "1 while the store is asked.", connected)?;
                let metrics = store.metrics();
                let mut count = |name, help, number: u64| {
                    let counter = ConstCounter::new(number);
                    counter.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
                };
                count(
                    "tollgate_store_calls",
                    "Calls of the store's script.",
                    metrics.calls.get(),
                )?;
                let help = "Charges that those calls settled; over calls, how many went together.";
                count("tollgate_store_charges", help, metrics.charges.get())?;
                let help = "Times that a server was left alone or asked again.";
                count("tollgate_breaker_transitions", help, store.breaker_changes())?;
                let help = "Charges that this instance decided while the store was away.";
                count("tollgate_local_charges", help, fallback.decided())?;
                let help = "Counters of this instance that were brought to what the store had shown.";
                count("tollgate_local_seeds", help, fallback.seeded_counters())?;
                let help = "Units that this instance let pass while the store was away, and then charged to it.";
                count("tollgate_local_charged_back_units", help, fallback.repaid_units())?;
                let help = "Times the store had forgotten the script.";
                count("tollgate_store_script_loads", help, metrics.script_loads.get())?;
                count(
                    "tollgate_store_dials",
                    "Attempts to connect to the store.",
                    metrics.connect_attempts.get(),
                )?;
                let help = "Times a server of a cluster named another one to be asked.";
                count("tollgate_store_redirects", help, metrics.redirects.get())?;
                let help = "Charges taken back because another part of their request refused or could not be asked.";
                count("tollgate_store_undone", help, metrics.compensated_charges.get())?;
                let help = "Charges that should have been taken back, and as far as is known were not.";
                count("tollgate_store_stranded", help, metrics.uncompensated_charges.get())?;
                let help = "Looks that a replica answered.";
                count("tollgate_store_replica_reads", help, metrics.replica_reads.get())?;
                let help = "Looks that a replica was asked for and did not answer, so that its primary was asked.";
                count("tollgate_store_replica_misses", help, metrics.replica_misses.get())?;
                let help = "Times a task that looks after the store failed and was begun again.";
                count("tollgate_store_restarts", help, metrics.task_restarts.get())?;
                errors(&mut encoder, metrics.errors())
            }
        }
    }
}

fn errors(encoder: &mut DescriptorEncoder<'_>, errors: impl IntoIterator<Item = (&'static str, u64)>) -> fmt::Result {
    let help = "Requests the store could not answer.";
    let mut family = encoder.encode_descriptor("tollgate_store_errors", help, None, MetricType::Counter)?;
    for (code, number) in errors {
        ConstCounter::new(number).encode(family.encode_family(&[("code", code)])?)?;
    }
    Ok(())
}
