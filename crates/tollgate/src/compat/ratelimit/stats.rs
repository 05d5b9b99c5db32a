//! The statistics that envoyproxy/ratelimit keeps per descriptor, under its names. A verdict observer of the gate.
//!
//! Names that are the same for all requests are looked up when rules are installed. Names that contain request values are
//! bounded in number; further ones are counted together per domain.

mod prometheus;

pub(crate) use self::prometheus::RatelimitCollector;

use crate::server::observers::{ObservedVerdict, VerdictEvent, VerdictObserver};
use crate::server::telemetry::{AlignedCount, rule_index};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tollgate_limiter::Direction;
use tollgate_limiter::core::Source;
use tollgate_limiter::core::rules::ratelimit::{HitStats, override_path};
use tollgate_limiter::core::rules::{Attempt, Mode, RuleSet, Ruling, Verdict};

/// All statistics since the start.
#[derive(Debug, Default)]
pub struct RatelimitStats {
    /// Calls of the rls service, by outcome.
    pub calls: CallCounts,
    stats: RwLock<StatTable>,
}

/// Calls of the rls service over all protocols, by outcome.
#[derive(Debug, Default)]
pub struct CallCounts {
    /// All calls.
    pub all: AlignedCount,
    /// Calls rejected as invalid, or because there are no rules yet.
    pub invalid: AlignedCount,
    /// Calls that the store failed to answer, also if this instance or `on_store_failure: open` decided them.
    pub store_failed: AlignedCount,
    /// Calls allowed only by the global shadow mode.
    pub shadowed: AlignedCount,
}

/// The outcome of one call of the rls service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// It got a verdict.
    Decided,
    /// It got a verdict that the global shadow mode turned into an allow.
    Shadowed,
    /// It was rejected.
    Rejected,
    /// The store was unavailable.
    StoreUnavailable,
}

impl CallCounts {
    pub(crate) fn add(&self, outcome: CallOutcome) {
        self.all.add(1);
        match outcome {
            CallOutcome::Decided => {}
            CallOutcome::Shadowed => self.shadowed.add(1),
            CallOutcome::Rejected => self.invalid.add(1),
            CallOutcome::StoreUnavailable => self.store_failed.add(1),
        }
    }

    /// The counts that envoyproxy/ratelimit exports, under its names.
    fn entries(&self) -> [(&'static str, &AlignedCount); 3] {
        [
            ("global_shadow_mode", &self.shadowed),
            ("call.should_rate_limit.redis_error", &self.store_failed),
            ("call.should_rate_limit.service_error", &self.invalid),
        ]
    }
}

/// The counters of one rule set, looked up once when it is installed.
#[derive(Debug)]
pub(crate) struct RatelimitCounts {
    /// For each rule, if its name does not depend on the request.
    fixed: Box<[Option<Arc<StatCells>>]>,
    near_share: f32,
    has_domains: bool,
}

#[derive(Debug, Default)]
struct StatTable {
    /// By the whole name.
    by_name: HashMap<Box<str>, StatEntry>,
    /// The number of names that contain request values.
    dynamic: usize,
    /// Descriptors of domains that neither a file nor a rule has.
    unknown_domains: BTreeMap<Box<str>, AtomicU64>,
}

#[derive(Debug)]
struct StatEntry {
    cells: Arc<StatCells>,
    /// Length of the domain that the name starts with.
    domain: usize,
    is_fixed: bool,
}

/// The counters of one name, in the order of [`STATS`].
#[derive(Debug, Default)]
struct StatCells([AtomicU64; STATS.len()]);

#[derive(Clone, Copy)]
enum Stat {
    TotalHits,
    OverLimit,
    NearLimit,
    OverLimitWithLocalCache,
    WithinLimit,
    ShadowMode,
    TotalNegativeHits,
}

const STATS: [(&str, &str); 7] = [
    ("total_hits", "Hits of a descriptor."),
    ("over_limit", "Hits over the limit of a descriptor."),
    ("near_limit", "Hits within the limit of a descriptor and near it."),
    (
        "over_limit_with_local_cache",
        "Hits denied from the local cache, without a call to the store.",
    ),
    ("within_limit", "Hits within the limit of a descriptor."),
    ("shadow_mode", "Hits over a limit in shadow mode, which allows them."),
    ("total_negative_hits", "Hits refunded."),
];

impl VerdictObserver for RatelimitStats {
    type RuleState = RatelimitCounts;

    /// Names that already existed keep their counters.
    fn rule_state(&self, rules: &RuleSet) -> RatelimitCounts {
        let mut stats = self.stats.write().unwrap_or_else(PoisonError::into_inner);
        let previous = std::mem::take(&mut stats.by_name);
        let mut fixed = Vec::with_capacity(rules.rules().len());
        for rule in rules.rules() {
            let name = rule.descriptor().and_then(|descriptor| descriptor.path.fixed());
            fixed.push(name.map(|name| {
                let entry = stats.by_name.entry(name.into()).or_insert_with(|| StatEntry {
                    cells: previous
                        .get(name)
                        .map_or_else(Arc::default, |entry| Arc::clone(&entry.cells)),
                    domain: rule.domain().len(),
                    is_fixed: true,
                });
                Arc::clone(&entry.cells)
            }));
        }
        // Names that contain request values stay; they have a bound of their own.
        let dynamic = previous.into_iter().filter(|(_, entry)| !entry.is_fixed);
        for (name, entry) in dynamic {
            stats.by_name.entry(name).or_insert(entry);
        }
        stats.dynamic = stats.by_name.values().filter(|entry| !entry.is_fixed).count();
        RatelimitCounts {
            fixed: fixed.into(),
            near_share: rules.descriptors().options.near_share,
            has_domains: !rules.descriptors().is_empty(),
        }
    }

    #[inline]
    fn record(&self, counts: &RatelimitCounts, event: &VerdictEvent<'_>) {
        if counts.has_domains {
            self.add(counts, event);
        }
    }
}

impl RatelimitStats {
    fn add(&self, counts: &RatelimitCounts, event: &VerdictEvent<'_>) {
        let descriptors = event.rules.descriptors();
        match (event.direction, event.verdict) {
            (Direction::Consume, ObservedVerdict::Rules(verdict)) => self.add_verdict(counts, event, verdict),
            // A denied request refunds nothing, unless each descriptor is counted by itself.
            (Direction::Refund, _) if !event.request_allowed && descriptors.options.strict => {}
            (Direction::Refund, ObservedVerdict::Rules(verdict)) => self.add_refund(counts, event, verdict),
            (_, ObservedVerdict::Inline { .. }) if descriptors.has_domain(event.attempt.domain) => {
                self.add_override(counts, event);
            }
            (_, ObservedVerdict::Inline { .. }) => {}
        }
    }

    /// Counts the hits of one descriptor.
    fn add_verdict(&self, counts: &RatelimitCounts, event: &VerdictEvent<'_>, verdict: &Verdict<'_>) {
        let hits = event.attempt.cost.get();
        // The windows of a limit are adjacent, and one limit here.
        for windows in verdict.rulings.chunk_by(|one, next| ptr::eq(one.rule, next.rule)) {
            let Some(first) = windows.first().filter(|ruling| counts_hits(ruling)) else {
                continue;
            };
            let window_stats = |ruling: &Ruling<'_>| {
                let decision = ruling.decision.as_ref()?;
                Some(HitStats::from_decision(
                    decision,
                    ruling.counted,
                    hits,
                    counts.near_share,
                    event.request_allowed,
                ))
            };
            let hit_stats = windows
                .iter()
                .filter_map(window_stats)
                .reduce(merge_windows)
                .unwrap_or_default();
            let is_cached = windows
                .iter()
                .any(|ruling| ruling.source == Source::Near && !ruling.is_allow());
            self.with_cells(counts, event, first, |cells| {
                cells.add(Stat::TotalHits, hits);
                cells.add_hit_stats(hit_stats, hits, is_cached);
                if first.mode == Mode::Shadow {
                    // The hits that were allowed only because of it.
                    cells.add(Stat::ShadowMode, if is_cached { hits } else { hit_stats.over });
                }
            });
        }
        if verdict.rulings.is_empty() {
            self.add_unknown_domain(event.rules, event.attempt.domain);
        }
    }

    /// Counts the hits of a limit override, consumed or refunded; a refund only if the store took it.
    fn add_override(&self, counts: &RatelimitCounts, event: &VerdictEvent<'_>) {
        let ObservedVerdict::Inline {
            allowed,
            decision,
            source,
            count,
        } = event.verdict
        else {
            return;
        };
        let hits = event.attempt.cost.get();
        match event.direction {
            Direction::Consume => {
                let hit_stats = decision
                    .map(|decision| {
                        HitStats::from_decision(decision, count, hits, counts.near_share, event.request_allowed)
                    })
                    .unwrap_or_default();
                self.with_override_cells(event.attempt, |cells| {
                    cells.add(Stat::TotalHits, hits);
                    cells.add_hit_stats(hit_stats, hits, source == Source::Near && !allowed);
                });
            }
            Direction::Refund if decision.is_some() => {
                self.with_override_cells(event.attempt, |cells| cells.add(Stat::TotalNegativeHits, hits));
            }
            Direction::Refund => {}
        }
    }

    /// Counts the refunded hits of one descriptor, if the store took them.
    fn add_refund(&self, counts: &RatelimitCounts, event: &VerdictEvent<'_>, verdict: &Verdict<'_>) {
        let is_refunded = |ruling: &&Ruling<'_>| counts_hits(ruling) && ruling.decision.is_some();
        let Some(ruling) = verdict.rulings.first().filter(is_refunded) else {
            return;
        };
        self.with_cells(counts, event, ruling, |cells| {
            cells.add(Stat::TotalNegativeHits, event.attempt.cost.get());
        });
    }

    /// Counts a descriptor of a domain that neither a file nor a rule has.
    fn add_unknown_domain(&self, rules: &RuleSet, domain: &str) {
        if rules.has_domain(domain) || rules.descriptors().has_domain(domain) {
            return;
        }
        {
            let stats = self.stats.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = stats.unknown_domains.get(domain) {
                count.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        let mut stats = self.stats.write().unwrap_or_else(PoisonError::into_inner);
        let has_capacity = stats.unknown_domains.len() < DOMAINS_MAX && domain.len() <= NAME_BYTES_MAX;
        let name = if has_capacity { domain } else { OTHER };
        let count = stats.unknown_domains.entry(name.into()).or_default();
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls `add` with the counters of a ruling.
    fn with_cells(
        &self,
        counts: &RatelimitCounts,
        event: &VerdictEvent<'_>,
        ruling: &Ruling<'_>,
        add: impl FnOnce(&StatCells),
    ) {
        let fixed = counts.fixed.get(rule_index(event.rules, ruling.rule));
        if let Some(cells) = fixed.and_then(Option::as_deref) {
            return add(cells);
        }
        let Some(descriptor) = ruling.rule.descriptor() else {
            return;
        };
        let attempt = event.attempt;
        NAME.with_borrow_mut(|name| {
            descriptor.path.write(attempt.domain, attempt.attributes, name);
            self.with_named_cells(name, attempt.domain, add);
        });
    }

    /// Calls `add` with the counters of a limit override.
    fn with_override_cells(&self, attempt: &Attempt<'_>, add: impl FnOnce(&StatCells)) {
        NAME.with_borrow_mut(|name| {
            override_path(attempt.domain, attempt.attributes, name);
            self.with_named_cells(name, attempt.domain, add);
        });
    }

    /// Calls `add` with the counters of a name that contains request values, or of all others.
    fn with_named_cells(&self, name: &str, domain: &str, add: impl FnOnce(&StatCells)) {
        {
            let stats = self.stats.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(entry) = stats.by_name.get(name) {
                return add(&entry.cells);
            }
        }
        let mut stats = self.stats.write().unwrap_or_else(PoisonError::into_inner);
        let has_capacity = stats.dynamic < PATHS_MAX && name.len() <= NAME_BYTES_MAX;
        let name: Box<str> = match has_capacity {
            true => name.into(),
            false => format!("{domain}.{OTHER}").into(),
        };
        if !stats.by_name.contains_key(&name) {
            stats.dynamic += usize::from(has_capacity);
        }
        let new_entry = || StatEntry {
            cells: Arc::default(),
            domain: domain.len(),
            is_fixed: false,
        };
        add(&stats.by_name.entry(name).or_insert_with(new_entry).cells);
    }

    /// Renders all statistics, sorted, one per line: `ratelimit.service.rate_limit.<domain>.<path>.<stat>: <number>`, and calls.
    pub fn text(&self) -> String {
        let mut lines: Vec<(String, u64)> = Vec::new();
        let calls = self.calls.entries();
        lines.extend(calls.map(|(name, count)| (name.to_owned(), count.get())));
        let stats = self.stats.read().unwrap_or_else(PoisonError::into_inner);
        for (path, entry) in &stats.by_name {
            for ((stat, _), cell) in STATS.iter().zip(&entry.cells.0) {
                lines.push((format!("rate_limit.{path}.{stat}"), cell.load(Ordering::Relaxed)));
            }
        }
        for (domain, count) in &stats.unknown_domains {
            lines.push((
                format!("rate_limit.{domain}.domain_not_found"),
                count.load(Ordering::Relaxed),
            ));
        }
        drop(stats);
        lines.sort_unstable();
        let mut text = String::new();
        for (name, count) in lines {
            // Request values must not break the line.
            let name = name.replace(char::is_control, "_");
            let _ = writeln!(text, "ratelimit.service.{name}: {count}");
        }
        text
    }

    /// Encodes the same as metrics, if there are descriptors.
    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.stats.read().unwrap_or_else(PoisonError::into_inner);
        if stats.by_name.is_empty() && stats.unknown_domains.is_empty() {
            return Ok(());
        }
        for (name, count) in self.calls.entries() {
            let name = format!("tollgate_ratelimit_{}", name.rsplit('.').next().unwrap_or(name));
            let help = "Calls of the rate limit service, as envoyproxy/ratelimit counts them.";
            ConstCounter::new(count.get()).encode(encoder.encode_descriptor(&name, help, None, COUNTER)?)?;
        }
        let mut entries: Vec<(&Box<str>, &StatEntry)> = stats.by_name.iter().collect();
        entries.sort_unstable_by_key(|(name, _)| *name);
        for (stat, (name, help)) in STATS.iter().enumerate() {
            let name = format!("tollgate_ratelimit_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, COUNTER)?;
            for (name, entry) in &entries {
                let (domain, path) = name.split_at_checked(entry.domain).unwrap_or((name, ""));
                let labels = [("domain", domain), ("path", path.strip_prefix('.').unwrap_or(path))];
                let count = entry.cells.0.get(stat).map_or(0, |cell| cell.load(Ordering::Relaxed));
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        let mut family = encoder.encode_descriptor(
            "tollgate_ratelimit_domain_not_found",
            "Descriptors of domains without a file or a rule.",
            None,
            COUNTER,
        )?;
        for (domain, count) in &stats.unknown_domains {
            let count = ConstCounter::new(count.load(Ordering::Relaxed));
            count.encode(family.encode_family(&[("domain", &**domain)])?)?;
        }
        Ok(())
    }
}

impl StatCells {
    fn add(&self, stat: Stat, hits: u64) {
        if let Some(cell) = self.0.get(stat as usize).filter(|_| hits > 0) {
            cell.fetch_add(hits, Ordering::Relaxed);
        }
    }

    fn add_hit_stats(&self, hit_stats: HitStats, hits: u64, is_cached: bool) {
        let hit_stats = match is_cached {
            // They were not counted in the store.
            true => HitStats {
                over: hits,
                ..HitStats::default()
            },
            false => hit_stats,
        };
        self.add(Stat::OverLimit, hit_stats.over);
        self.add(Stat::NearLimit, hit_stats.near);
        self.add(Stat::WithinLimit, hit_stats.within);
        if is_cached {
            self.add(Stat::OverLimitWithLocalCache, hits);
        }
    }
}

/// True if hits of this limit are counted: not those of an unlimited descriptor.
fn counts_hits(ruling: &Ruling<'_>) -> bool {
    let is_limited = ruling.window.is_some() || ruling.decision.is_some();
    ruling.rule.descriptor().is_some() && is_limited
}

/// Merges the statistics of two windows of one limit: a hit that one of them denies is over the limit.
fn merge_windows(one: HitStats, other: HitStats) -> HitStats {
    HitStats {
        over: one.over.max(other.over),
        near: one.near.max(other.near),
        within: one.within.min(other.within),
    }
}

thread_local! {
    /// A buffer for the name being looked up, so that a known name allocates nothing.
    static NAME: RefCell<String> = const { RefCell::new(String::new()) };
}

const COUNTER: MetricType = MetricType::Counter;
/// Bounds on names that contain request values and on their length. Further ones are counted under [`OTHER`].
const PATHS_MAX: usize = 10_000;
const NAME_BYTES_MAX: usize = 512;
/// Bound on unknown domains that are counted separately.
const DOMAINS_MAX: usize = 100;
/// The name for everything beyond the bounds.
const OTHER: &str = "__other__";

#[cfg(test)]
mod tests;
