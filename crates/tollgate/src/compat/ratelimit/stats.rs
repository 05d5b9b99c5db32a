//! What envoyproxy/ratelimit counts of descriptors, under the names it has there.
//!
//! Names of limits that are the same for all requests are found when rules are loaded. Where values that came stand in a
//! name there may be ever more of them, so these are bounded: what comes after counts for all others of its domain.

mod prometheus;

pub(crate) use self::prometheus::RatelimitCollector;

use crate::server::telemetry::{AtomicCount, rule_index};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tollgate_limiter::ItemVerdict;
use tollgate_limiter::core::rules::ratelimit::{HitStats, override_path};
use tollgate_limiter::core::rules::{Attempt, Mode, RuleSet, Ruling, Verdict};
use tollgate_limiter::core::{Decision, Source};

/// Everything since the start.
#[derive(Debug, Default)]
pub struct RatelimitStats {
    /// What came of calls.
    pub calls: CallCounts,
    stats: RwLock<StatTable>,
}

/// What came of calls of all front ends.
#[derive(Debug, Default)]
pub struct CallCounts {
    /// All of them.
    pub all: AtomicCount,
    /// Those that made no sense.
    pub invalid: AtomicCount,
    /// Those that nobody could judge, because the store was away.
    pub closed: AtomicCount,
    /// Those that passed only because nothing is refused.
    pub shadowed: AtomicCount,
}

impl CallCounts {
    /// Under the names that they have there.
    fn entries(&self) -> [(&'static str, &AtomicCount); 3] {
        [
            ("global_shadow_mode", &self.shadowed),
            ("call.should_rate_limit.redis_error", &self.closed),
            ("call.should_rate_limit.service_error", &self.invalid),
        ]
    }
}

/// The counters of one set of rules, found once when it is loaded.
#[derive(Debug)]
pub(crate) struct RatelimitCounts {
    /// For each rule, if its name is always the same.
    fixed: Box<[Option<Arc<StatCells>>]>,
    near_share: f32,
    has_domains: bool,
}

#[derive(Debug, Default)]
struct StatTable {
    /// By the whole name.
    by_name: HashMap<Box<str>, StatEntry>,
    /// How many of them came with requests.
    dynamic: usize,
    /// Descriptors of domains that neither a file nor a rule has.
    unknown_domains: BTreeMap<Box<str>, AtomicU64>,
}

#[derive(Debug)]
struct StatEntry {
    cells: Arc<StatCells>,
    /// The name begins with so many bytes of a domain.
    domain: usize,
    is_fixed: bool,
}

/// The figures of one name, in the order of [`STATS`].
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
    ("over_limit", "Hits beyond the limit of a descriptor."),
    ("near_limit", "Hits within the limit of a descriptor and near it."),
    (
        "over_limit_with_local_cache",
        "Hits that were refused without asking the store.",
    ),
    ("within_limit", "Hits within the limit of a descriptor."),
    ("shadow_mode", "Hits that passed beyond a limit because it is a shadow."),
    ("total_negative_hits", "Hits that were given back."),
];

impl RatelimitStats {
    /// The counters of these rules: names that were there before go on.
    pub(crate) fn counts(&self, rules: &RuleSet) -> RatelimitCounts {
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
        // Names that came with requests stay; they have a bound of their own.
        let dynamic = previous.into_iter().filter(|(_, entry)| !entry.is_fixed);
        for (name, entry) in dynamic {
            stats.by_name.entry(name).or_insert(entry);
        }
        stats.dynamic = stats.by_name.values().filter(|known| !known.is_fixed).count();
        RatelimitCounts {
            fixed: fixed.into(),
            near_share: rules.descriptors().options.near_share,
            has_domains: !rules.descriptors().is_empty(),
        }
    }

    /// Counts what one descriptor came to. `passes`: whether its request does.
    #[inline]
    pub(crate) fn add(
        &self,
        counts: &RatelimitCounts,
        rules: &RuleSet,
        attempt: &Attempt<'_>,
        verdict: &Verdict<'_>,
        allowed: bool,
    ) {
        if counts.has_domains {
            self.add_verdict(counts, rules, attempt, verdict, allowed);
        }
    }

    fn add_verdict(
        &self,
        counts: &RatelimitCounts,
        rules: &RuleSet,
        attempt: &Attempt<'_>,
        verdict: &Verdict<'_>,
        allowed: bool,
    ) {
        let hits = attempt.cost.get();
        // The windows of a limit stand side by side, and are one limit here.
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
                    allowed,
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
            self.with_cells(counts, rules, attempt, first, |cells| {
                cells.add(Stat::TotalHits, hits);
                cells.add_hit_stats(hit_stats, hits, is_cached);
                if first.mode == Mode::Shadow && windows.iter().any(|ruling| !ruling.is_allow()) {
                    cells.add(Stat::ShadowMode, hits);
                }
            });
        }
        if verdict.rulings.is_empty() {
            self.add_unknown_domain(rules, attempt.domain);
        }
    }

    /// Counts what a limit came to that a descriptor brought along.
    pub(crate) fn add_override(
        &self,
        counts: &RatelimitCounts,
        attempt: &Attempt<'_>,
        item_verdict: &ItemVerdict<'_>,
        allowed: bool,
    ) {
        let ItemVerdict::Inline(decision, source, window_count) = item_verdict else {
            return;
        };
        let hits = attempt.cost.get();
        let hit_stats = decision
            .as_ref()
            .map(|decision| HitStats::from_decision(decision, *window_count, hits, counts.near_share, allowed))
            .unwrap_or_default();
        self.with_override_cells(attempt, |cells| {
            cells.add(Stat::TotalHits, hits);
            cells.add_hit_stats(hit_stats, hits, *source == Source::Near && !item_verdict.is_allow());
        });
    }

    /// Counts what a descriptor gave back to a limit that it brought along, if the store took it.
    pub(crate) fn add_override_refund(&self, attempt: &Attempt<'_>, decision: Option<&Decision>) {
        if decision.is_none() {
            return;
        }
        self.with_override_cells(attempt, |cells| cells.add(Stat::TotalNegativeHits, attempt.cost.get()));
    }

    /// Counts what one descriptor gave back, if the store took it.
    pub(crate) fn add_refund(
        &self,
        counts: &RatelimitCounts,
        rules: &RuleSet,
        attempt: &Attempt<'_>,
        verdict: &Verdict<'_>,
    ) {
        let is_refunded = |ruling: &&Ruling<'_>| counts_hits(ruling) && ruling.decision.is_some();
        let Some(ruling) = verdict.rulings.first().filter(is_refunded) else {
            return;
        };
        self.with_cells(counts, rules, attempt, ruling, |cells| {
            cells.add(Stat::TotalNegativeHits, attempt.cost.get());
        });
    }

    /// Notes a descriptor of a domain that neither a file nor a rule has.
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

    /// Finds the figures of a ruling.
    fn with_cells(
        &self,
        counts: &RatelimitCounts,
        rules: &RuleSet,
        attempt: &Attempt<'_>,
        ruling: &Ruling<'_>,
        add: impl FnOnce(&StatCells),
    ) {
        let fixed = counts.fixed.get(rule_index(rules, ruling.rule));
        if let Some(cells) = fixed.and_then(Option::as_deref) {
            return add(cells);
        }
        let Some(descriptor) = ruling.rule.descriptor() else {
            return;
        };
        NAME.with_borrow_mut(|name| {
            descriptor.path.write(attempt.domain, attempt.attributes, name);
            self.with_named_cells(name, attempt.domain, add);
        });
    }

    /// Finds the figures of a limit that a descriptor brought along.
    fn with_override_cells(&self, attempt: &Attempt<'_>, add: impl FnOnce(&StatCells)) {
        NAME.with_borrow_mut(|name| {
            override_path(attempt.domain, attempt.attributes, name);
            self.with_named_cells(name, attempt.domain, add);
        });
    }

    /// Finds the figures of a name that came with a request, or those of all others.
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

    /// All of it, one figure a line and sorted: `ratelimit.service.rate_limit.<domain>.<path>.<stat>: <number>`, and of calls.
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
            // A name is one line, whatever came.
            let name = name.replace(char::is_control, "_");
            let _ = writeln!(text, "ratelimit.service.{name}: {count}");
        }
        text
    }

    /// The same as series, where there are such descriptors.
    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.stats.read().unwrap_or_else(PoisonError::into_inner);
        if stats.by_name.is_empty() && stats.unknown_domains.is_empty() {
            return Ok(());
        }
        for (name, count) in self.calls.entries() {
            let name = format!("tollgate_ratelimit_{}", name.rsplit('.').next().unwrap_or(name));
            let help = "Calls, as envoyproxy/ratelimit counts them.";
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
            "Descriptors of domains that neither a file nor a rule has.",
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
            // Nobody has counted them.
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

/// Whether hits of a limit are counted: those of one that limits nothing are not.
fn counts_hits(ruling: &Ruling<'_>) -> bool {
    let is_limited = ruling.window.is_some() || ruling.decision.is_some();
    ruling.rule.descriptor().is_some() && is_limited
}

/// What two windows of one limit come to: what one refuses is refused.
fn merge_windows(one: HitStats, other: HitStats) -> HitStats {
    HitStats {
        over: one.over.max(other.over),
        near: one.near.max(other.near),
        within: one.within.min(other.within),
    }
}

thread_local! {
    /// The name that is being looked up, so that one that is known costs no memory.
    static NAME: RefCell<String> = const { RefCell::new(String::new()) };
}

const COUNTER: MetricType = MetricType::Counter;
/// So many names may come with requests, each so long. What is beyond counts under [`OTHER`].
const PATHS_MAX: usize = 10_000;
const NAME_BYTES_MAX: usize = 512;
/// So many domains that are not there are told apart.
const DOMAINS_MAX: usize = 100;
/// Stands for all names for which there is no room.
const OTHER: &str = "__other__";

#[cfg(test)]
mod tests;
