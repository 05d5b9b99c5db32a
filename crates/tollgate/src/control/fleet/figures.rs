//! The figures of all instances: each reports its own, more often while a dashboard is open, which adds them up.

use super::link::{self, read_figures, read_watched, write_figures, write_watched};
use crate::control::Control;
use crate::control::database::now_ms;
use crate::control::feed::parts::inflate;
use crate::control::layers::ControlParts;
use crate::server::telemetry::watch::report::{FiguresReport, WATCHED_MAX};
use crate::server::telemetry::watch::series::RuleName;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

/// The figures of the others, as they were read last.
#[derive(Debug, Default)]
pub(in crate::control) struct FleetFigures {
    /// None: they could not be read.
    reports: Option<Arc<Vec<FiguresReport>>>,
    read_at: Option<Instant>,
    /// Rules that were asked for here, and when that was.
    watched: Vec<(RuleName, Instant)>,
}

/// Reports the figures of this instance without end.
pub(in crate::control) async fn report_figures(parts: &Arc<ControlParts>) {
    if !link::has_cache(parts) {
        return std::future::pending().await;
    }
    let mut next = Instant::now();
    loop {
        sleep(WATCHED_INTERVAL).await;
        // A store that does not answer is reported with the status.
        let watched = read_watched(parts).await.unwrap_or_default();
        if watched.is_none() && Instant::now() < next {
            continue;
        }
        next = Instant::now() + INTERVAL;
        let report = FiguresReport::of(parts.gate.watch(), &watched.unwrap_or_default(), now_ms());
        if let Some(bytes) = encode(report) {
            let _ = write_figures(parts, &bytes).await;
        }
    }
}

impl Control {
    /// The figures of the other instances, a few seconds old; none: there is no way to others. Instances report more often while this is
    /// called, and the series of `rule` too.
    pub(crate) async fn fleet_figures(&self, rule: Option<&RuleName>) -> Option<Arc<Vec<FiguresReport>>> {
        let parts = &self.parts;
        if !link::has_cache(parts) {
            return None;
        }
        let mut figures = parts.fleet.figures.lock().await;
        figures.watch(rule);
        if figures.is_recent() {
            return figures.reports.clone();
        }
        let watched: Vec<RuleName> = figures.watched.iter().map(|(name, _)| name.clone()).collect();
        let read = async {
            // Others read too: what they look at is kept.
            let others = read_watched(parts).await?.unwrap_or_default();
            let others = others.into_iter().filter(|name| !watched.contains(name));
            let all: Vec<RuleName> = watched.iter().cloned().chain(others).take(WATCHED_MAX).collect();
            write_watched(parts, &all).await?;
            read_figures(parts).await
        };
        figures.read_at = Some(Instant::now());
        // Otherwise this instance alone, until the store answers again.
        figures.reports = match timeout(READ_TIMEOUT, read).await {
            Ok(Ok(found)) => spawn_blocking(move || Arc::new(decode_all(&found))).await.ok(),
            Ok(Err(_)) | Err(_) => None,
        };
        figures.reports.clone()
    }
}

impl FleetFigures {
    /// True if they were read, or could not be read, a moment ago.
    fn is_recent(&self) -> bool {
        self.read_at.is_some_and(|at| at.elapsed() < READ_INTERVAL)
    }

    /// Adds a rule that is looked at. Others learn of it with the next reading.
    fn watch(&mut self, rule: Option<&RuleName>) {
        self.watched.retain(|(_, at)| at.elapsed() < WATCHED_TIME);
        let Some(rule) = rule else { return };
        match self.watched.iter_mut().find(|(known, _)| known == rule) {
            Some((_, at)) => *at = Instant::now(),
            None => {
                self.watched.insert(0, (rule.clone(), Instant::now()));
                self.watched.truncate(WATCHED_MAX);
            }
        }
    }
}

/// A report as it is sent, with less in it if it is too large.
fn encode(mut report: FiguresReport) -> Option<Vec<u8>> {
    for _ in 0..ROUNDS_MAX {
        let text = serde_json::to_vec(&report).ok()?;
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&text).ok()?;
        let deflated = encoder.finish().ok()?;
        if deflated.len() <= BYTES_MAX {
            return Some(deflated);
        }
        report = report.halved();
    }
    None
}

fn decode_all(found: &[Vec<u8>]) -> Vec<FiguresReport> {
    found.iter().filter_map(|bytes| decode(bytes)).collect()
}

fn decode(deflated: &[u8]) -> Option<FiguresReport> {
    let mut text = Vec::new();
    inflate(deflated, TEXT_BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The interval of reports while a dashboard is open, and while none is.
const WATCHED_INTERVAL: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_secs(10);
/// The time for which a rule is reported after it was asked for.
const WATCHED_TIME: Duration = Duration::from_secs(10);
/// Reports are not read more often.
const READ_INTERVAL: Duration = Duration::from_millis(1_500);
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Of a report and its code: 64 KiB.
const BYTES_MAX: usize = (64 << 10) - 128;
const TEXT_BYTES_MAX: u64 = 4 << 20;
const ROUNDS_MAX: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_sent_and_a_bomb_is_not_read() {
        let text = r#"{"at":7,"totals":[],"rules":[],"series":[],"top":[]}"#;
        let report: FiguresReport = serde_json::from_str(text).unwrap();
        let sent = encode(report.clone()).unwrap();
        assert_eq!(decode(&sent), Some(report));
        assert_eq!(decode(&sent[..sent.len() / 2]), None);
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        let spaces = vec![b' '; 1 << 20];
        for _ in 0..8 {
            encoder.write_all(&spaces).unwrap();
        }
        encoder.write_all(text.as_bytes()).unwrap();
        assert_eq!(decode(&encoder.finish().unwrap()), None);
    }
}
