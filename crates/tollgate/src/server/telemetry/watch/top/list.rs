//! Lists of refused subjects: minutes of one instance, and those of several instances, added up with their bounds.

use super::sketch::NamedSketch;
use crate::server::telemetry::watch::series::RuleName;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// The question that a list answers.
#[derive(Clone, Debug)]
pub(crate) struct TopQuery {
    /// Domains; empty: all.
    pub(crate) domains: Vec<String>,
    /// The id of a rule; none: all rules.
    pub(crate) rule: Option<String>,
    /// Minutes, the one in progress included.
    pub(crate) minutes: u64,
    /// The most subjects.
    pub(crate) limit: usize,
}

/// Subjects that were refused most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TopList {
    /// Unix time in milliseconds.
    pub(crate) from_ms: u64,
    /// Unix time in milliseconds.
    pub(crate) to_ms: u64,
    /// Instances that were added up.
    pub(crate) instances: usize,
    /// The most refused first.
    pub(crate) items: Vec<TopItem>,
}

/// A subject and the bounds of its denials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopItem {
    /// Its rule.
    pub(crate) name: RuleName,
    /// A JSON object.
    pub(crate) subject: Arc<str>,
    /// It was refused as often at least.
    pub(crate) lower: u64,
    /// And at most.
    pub(crate) upper: u64,
    /// The part of all denials of its rule, in millionths.
    pub(crate) share_ppm: u64,
}

/// One rule in one minute of one instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RulePart {
    /// Unix time in minutes.
    pub(crate) minute: u64,
    /// The rule.
    pub(crate) name: RuleName,
    /// All its denials.
    pub(crate) total: u64,
    /// The most that a subject without a row can have.
    pub(crate) unlisted: u64,
    /// The most refused first.
    pub(crate) rows: Vec<PartRow>,
}

/// A subject of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartRow {
    /// A JSON object.
    pub(crate) subject: Arc<str>,
    /// It was refused as often at least.
    pub(crate) lower: u64,
    /// And at most.
    pub(crate) upper: u64,
}

/// The minutes that are over.
#[derive(Debug, Default)]
pub(super) struct FinishedMinutes(VecDeque<RulePart>);

impl RulePart {
    pub(super) fn of(minute: u64, sketch: &NamedSketch, rows_max: usize) -> Self {
        let (rows, unlisted) = sketch.rows(rows_max);
        let row = |row: super::sketch::SketchRow| PartRow {
            subject: row.subject.into(),
            lower: row.lower,
            upper: row.upper,
        };
        Self {
            minute,
            name: sketch.rule.clone(),
            total: sketch.total(),
            unlisted,
            rows: rows.into_iter().map(row).collect(),
        }
    }

    /// The same with fewer rows.
    fn cut(&self, rows_max: usize) -> Self {
        let gone = self.rows.iter().skip(rows_max).map(|row| row.upper).max();
        Self {
            unlisted: self.unlisted.max(gone.unwrap_or_default()),
            rows: self.rows.iter().take(rows_max).cloned().collect(),
            name: self.name.clone(),
            ..*self
        }
    }
}

impl FinishedMinutes {
    pub(super) fn add<'s>(&mut self, minute: u64, sketches: impl Iterator<Item = &'s NamedSketch>) {
        self.0
            .extend(sketches.map(|sketch| RulePart::of(minute, sketch, ROWS_MAX)));
    }

    pub(super) fn drop_before(&mut self, minute: u64) {
        self.0.retain(|part| part.minute >= minute);
    }

    pub(super) fn parts(&self, from_minute: u64, rows_max: usize) -> Vec<RulePart> {
        let wanted = self.0.iter().filter(|part| part.minute >= from_minute);
        wanted.map(|part| part.cut(rows_max)).collect()
    }
}

/// The sum of parts, one for each rule, with as many rows. A subject that a part does not list has there between nothing and what the
/// part says.
pub(crate) fn join<'p>(parts: impl IntoIterator<Item = &'p RulePart>, rows_max: usize) -> Vec<RulePart> {
    #[derive(Default)]
    struct Sum {
        minute: u64,
        total: u64,
        unlisted: u64,
        /// Bounds, and what the parts that list it say of others.
        rows: HashMap<Arc<str>, (u64, u64, u64)>,
    }
    let mut sums: BTreeMap<&RuleName, Sum> = BTreeMap::new();
    for part in parts {
        let sum = sums.entry(&part.name).or_default();
        sum.minute = sum.minute.max(part.minute);
        sum.total = sum.total.saturating_add(part.total);
        sum.unlisted = sum.unlisted.saturating_add(part.unlisted);
        for row in &part.rows {
            let (lower, upper, listed) = sum.rows.entry(Arc::clone(&row.subject)).or_default();
            *lower = lower.saturating_add(row.lower);
            *upper = upper.saturating_add(row.upper);
            *listed = listed.saturating_add(part.unlisted);
        }
    }
    let joined = sums.into_iter().map(|(name, sum)| {
        let row = |(subject, (lower, upper, listed))| PartRow {
            subject,
            lower,
            upper: u64::saturating_add(upper, sum.unlisted.saturating_sub(listed)),
        };
        let mut rows: Vec<PartRow> = sum.rows.into_iter().map(row).collect();
        // The bounds of a subject that is listed everywhere are narrow; of two with the same lower bound the other may have more.
        rows.sort_by(|one, other| {
            let key = |row: &PartRow| Reverse((row.lower, row.upper));
            (key(one), &one.subject).cmp(&(key(other), &other.subject))
        });
        let part = RulePart {
            minute: sum.minute,
            name: name.clone(),
            total: sum.total,
            unlisted: sum.unlisted,
            rows,
        };
        part.cut(rows_max)
    });
    joined.collect()
}

/// The list over the parts of instances.
pub(crate) fn combine(instances: &[Vec<RulePart>], query: &TopQuery, from_minute: u64, now_ms: u64) -> TopList {
    let is_wanted = |part: &&RulePart| {
        let is_domain = query.domains.is_empty() || query.domains.iter().any(|domain| **domain == *part.name.domain);
        part.minute >= from_minute && is_domain && query.rule.as_ref().is_none_or(|rule| **rule == *part.name.rule)
    };
    let mut items = Vec::new();
    for part in join(instances.iter().flatten().filter(is_wanted), query.limit) {
        for row in part.rows {
            let middle = row.lower + row.upper.saturating_sub(row.lower) / 2;
            items.push(TopItem {
                name: part.name.clone(),
                subject: row.subject,
                lower: row.lower,
                upper: row.upper,
                share_ppm: (middle.saturating_mul(1_000_000) / part.total.max(1)).min(1_000_000),
            });
        }
    }
    items.sort_by(|one, other| {
        let key = |item: &TopItem| Reverse((item.lower, item.upper));
        (key(one), &one.name, &one.subject).cmp(&(key(other), &other.name, &other.subject))
    });
    items.truncate(query.limit);
    TopList {
        from_ms: from_minute * 60_000,
        to_ms: now_ms,
        instances: instances.len(),
        items,
    }
}

/// Minutes that are kept, the one in progress included.
pub(crate) const MINUTES_MAX: u64 = 30;
/// Rows of a rule in a minute.
pub(super) const ROWS_MAX: usize = 20;
