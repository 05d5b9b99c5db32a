//! Publishes what the streams send: totals, sampled decisions, revisions, alerts.

use super::super::alerts::item;
use super::series::mark_kind;
use crate::control::database::AuditFilter;
use crate::server::admin::access::now_ms;
use crate::server::admin::service::AdminService;
use crate::server::telemetry::watch::events::{RevisionEvent, WatchEvent};
use crate::server::telemetry::watch::live;
use crate::server::telemetry::watch::report::sum;
use crate::server::telemetry::watch::series::{CLOCK_STEP_SECONDS, Resolution, StepCounts, StepWindow};
use serde_json::Value;
use std::future::pending;
use std::ops::RangeInclusive;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Publishes without end.
pub(in crate::server::admin) async fn publish_events(service: &AdminService) {
    tokio::join!(
        publish_totals(service),
        publish_decisions(service),
        publish_revisions(service),
        publish_alerts(service)
    );
}

async fn publish_totals(service: &AdminService) {
    let watch = service.gate.watch();
    let mut completed = watch.series().completed();
    let mut published = 0;
    while completed.changed().await.is_ok() {
        let newest = *completed.borrow_and_update();
        let fleet = match watch.stream_clients().get() {
            0 => None,
            _ => fleet_totals(service).await,
        };
        // Those of all instances come a few seconds later, and several at a time.
        let seconds = match &fleet {
            None => newest..=newest,
            Some(fleet) => late_seconds(published, fleet.start_ms / 1_000 + fleet.values.len() as u64),
        };
        for second in seconds {
            let mut totals = Box::new(watch.series().totals_at(second));
            if let Some(counts) = fleet.as_ref().and_then(|fleet| value_at(fleet, second)) {
                totals.counts = counts;
            }
            published = second;
            watch.events().publish(WatchEvent::Totals { second, totals });
        }
    }
}

/// The seconds before `end` that were not published: none that is too late, and after the clock was set back all others.
fn late_seconds(published: u64, end: u64) -> RangeInclusive<u64> {
    let is_set_back = published > end.saturating_add(CLOCK_STEP_SECONDS);
    let first = if is_set_back { 0 } else { published.saturating_add(1) };
    end.saturating_sub(SECONDS_MAX).max(first)..=end.saturating_sub(1)
}

/// The totals of all instances; none if there is no way to others.
async fn fleet_totals(service: &AdminService) -> Option<StepWindow<StepCounts>> {
    let reports = service.control.fleet_figures(None).await?;
    let own = service.gate.watch().series().totals(Resolution::Second);
    let mut windows = vec![own.counts()];
    windows.extend(reports.iter().filter_map(|report| report.totals(Resolution::Second)));
    Some(sum(&windows))
}

fn value_at(window: &StepWindow<StepCounts>, second: u64) -> Option<StepCounts> {
    let index = second.checked_sub(window.start_ms / 1_000)?;
    window.values.get(usize::try_from(index).ok()?).copied().flatten()
}

async fn publish_decisions(service: &AdminService) {
    let watch = service.gate.watch();
    let mut interval = interval(live::INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        if watch.live().is_open() {
            for decision in watch.live().take() {
                watch.events().publish(WatchEvent::Decision(Box::new(decision)));
            }
        }
    }
}

async fn publish_revisions(service: &AdminService) {
    let mut applied = service.control.applied();
    let mut version = service.control.live().version;
    while applied.changed().await.is_ok() {
        let (epoch, revision) = *applied.borrow_and_update();
        let live = service.control.live();
        let changed_version = std::mem::replace(&mut version, live.version) != live.version;
        let mut event = RevisionEvent {
            at: now_ms(),
            epoch,
            revision,
            version: live.version,
            kind: if changed_version { "publish" } else { "row" }.to_owned(),
            ..RevisionEvent::default()
        };
        describe(service, &mut event).await;
        service.gate.watch().events().publish(WatchEvent::Revision(event));
    }
    pending::<()>().await;
}

async fn publish_alerts(service: &AdminService) {
    let mut changes = service.options.alerts.changes();
    loop {
        match changes.recv().await {
            Ok(listed) => {
                let key = &listed.alert.key;
                service.gate.watch().events().publish(WatchEvent::Alert {
                    domain: key.rule.as_ref().map(|rule| (*rule.domain).to_owned()),
                    is_total: key.rule.is_none() && key.kind.is_anomaly(),
                    item: item(&listed, str::to_owned),
                });
            }
            // Streams that missed a change have it from the list.
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => break,
        }
    }
    pending::<()>().await;
}

/// Adds what the audit log says about a revision. Without a database that answers nothing more is known.
async fn describe(service: &AdminService, event: &mut RevisionEvent) {
    let Some(database) = service.control.database() else {
        return;
    };
    let filter = AuditFilter {
        revision: Some(event.revision),
        ..AuditFilter::default()
    };
    let Ok(Ok(entries)) = timeout(AUDIT_WAIT, database.audit(&filter, None, 1)).await else {
        return;
    };
    if let Some(entry) = entries.first()
        && let Some(kind) = mark_kind(entry)
    {
        event.at = entry.at;
        event.kind = kind.to_owned();
        event.actor.clone_from(&entry.actor);
        event.text.clone_from(&entry.reason);
        if kind == "row" {
            let row: Value = serde_json::from_str(&entry.after).unwrap_or_default();
            event.domain = row.get("domain").and_then(Value::as_str).map(str::to_owned);
        }
    }
}

/// Seconds that are published late.
const SECONDS_MAX: u64 = 10;
const AUDIT_WAIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_published_once_and_again_after_the_clock_was_set_back() {
        assert_eq!(late_seconds(0, 1_000), 990..=999);
        assert_eq!(late_seconds(997, 1_000), 998..=999);
        assert!(late_seconds(999, 1_000).is_empty());
        // The figures of others are a few seconds behind.
        assert!(late_seconds(1_005, 1_000).is_empty());
        assert_eq!(late_seconds(5_000, 1_000), 990..=999);
    }
}
