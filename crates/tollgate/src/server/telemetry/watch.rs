//! Observation of a running server: time series, sampled decisions, refused subjects, and the events of open streams.
//!
//! Telemetry counts verdicts; the series are sampled from its counters once a second, so they cost a decision nothing. Nothing here
//! knows a protocol: the admin API turns it into JSON.

pub(crate) mod events;
pub(crate) mod latency;
pub(crate) mod live;
pub(crate) mod report;
pub(crate) mod sampler;
pub(crate) mod series;
pub(crate) mod top;

use self::events::EventLog;
use self::live::LiveDecisions;
use self::series::SeriesStore;
use self::top::{TopRefused, TopRules};
use super::AlignedCount;
use crate::server::observers::{ObservedVerdict, VerdictEvent, VerdictObserver};
use tollgate_limiter::Direction;
use tollgate_limiter::core::rules::RuleSet;

/// The observation of one server.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    series: SeriesStore,
    live: LiveDecisions,
    top: TopRefused,
    events: EventLog,
    stream_clients: AlignedCount,
}

impl Watch {
    /// The time series.
    pub(crate) fn series(&self) -> &SeriesStore {
        &self.series
    }

    /// The sampled decisions.
    pub(crate) fn live(&self) -> &LiveDecisions {
        &self.live
    }

    /// The subjects that are refused most.
    pub(crate) fn top(&self) -> &TopRefused {
        &self.top
    }

    /// The events of streams.
    pub(crate) fn events(&self) -> &EventLog {
        &self.events
    }

    /// The number of open streams.
    pub(crate) fn stream_clients(&self) -> &AlignedCount {
        &self.stream_clients
    }
}

impl VerdictObserver for Watch {
    type RuleState = TopRules;

    fn rule_state(&self, rules: &RuleSet) -> TopRules {
        self.top.rules(rules)
    }

    #[inline]
    fn record(&self, rules: &TopRules, event: &VerdictEvent<'_>) {
        if self.live.is_open() {
            self.live.record(event);
        }
        if let (Direction::Consume, ObservedVerdict::Rules(verdict)) = (event.direction, event.verdict)
            && !verdict.allowed
        {
            self.top.record(rules, event, verdict);
        }
    }
}
