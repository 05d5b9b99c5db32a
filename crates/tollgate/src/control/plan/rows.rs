//! The override rows that a plan concerns: above a lowered limit, invalid under the new rule, or without a rule.

use super::{ChangePlan, EffectKind, PlanOp};
use crate::control::model::OverrideRow;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tollgate_limiter::core::Limit;
use tollgate_limiter::core::quantity::{Quota, parse_quota};
use tollgate_limiter::core::rules::{RuleSet, Terms, Window};

/// Override rows of one rule that a plan concerns in one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowNote {
    /// The way in which they are concerned.
    pub concern: RowConcern,
    /// The domain of the rule.
    pub domain: String,
    /// The id of the rule.
    pub rule: String,
    /// Number of rows.
    pub count: usize,
    /// The first of them.
    pub sample: Vec<RowSample>,
}

/// The way in which a plan concerns a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowConcern {
    /// It allows more than the limit that the rule will have, after the plan lowers it.
    Above,
    /// The new rule cannot have its terms, such as a burst in a fixed window.
    Invalid,
    /// Its rule is removed. It applies again when the rule returns.
    Orphaned,
}

/// One row of a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSample {
    /// Its subject: `merchant=m_42`.
    pub subject: String,
    /// Its terms.
    pub terms: String,
}

impl ChangePlan {
    /// Adds the notes about override rows. `next` is the rule set of the plan; `is_invalid` tells for the index of a row
    /// that `next` cannot have it.
    #[must_use]
    pub fn with_rows<'r>(
        mut self,
        next: &RuleSet,
        rows: impl IntoIterator<Item = &'r OverrideRow>,
        is_invalid: impl Fn(usize) -> bool,
    ) -> Self {
        let mut concerned: HashMap<(&str, &str), RowConcern> = HashMap::new();
        for line in &self.lines {
            let key = (&*line.domain, &*line.rule);
            match (line.op, line.effect_kind) {
                (PlanOp::Removed, _) => concerned.insert(key, RowConcern::Orphaned),
                (_, EffectKind::Stricter | EffectKind::Restart) if is_about_limit(&line.what) => {
                    concerned.insert(key, RowConcern::Above)
                }
                _ => None,
            };
        }
        let limits: HashMap<(&str, &str), &Terms> = next
            .rules()
            .iter()
            .map(|rule| ((rule.domain(), rule.id()), rule.limit_selector().limit()))
            .collect();
        let mut notes: Vec<RowNote> = Vec::new();
        let mut positions: HashMap<(&str, &str, RowConcern), usize> = HashMap::new();
        for (index, row) in rows.into_iter().enumerate() {
            let key = (&*row.domain, &*row.rule);
            let concern = match concerned.get(&key) {
                _ if is_invalid(index) => RowConcern::Invalid,
                Some(RowConcern::Orphaned) => RowConcern::Orphaned,
                Some(RowConcern::Above) if limits.get(&key).is_some_and(|limit| is_above(&row.terms, limit)) => {
                    RowConcern::Above
                }
                _ => continue,
            };
            let at = *positions.entry((key.0, key.1, concern)).or_insert_with(|| {
                notes.push(RowNote {
                    concern,
                    domain: row.domain.clone(),
                    rule: row.rule.clone(),
                    count: 0,
                    sample: Vec::new(),
                });
                notes.len() - 1
            });
            let Some(note) = notes.get_mut(at) else { continue };
            note.count += 1;
            if note.sample.len() < SAMPLE_MAX {
                let values = row.subject.iter().map(|(name, value)| format!("{name}={value}"));
                note.sample.push(RowSample {
                    subject: values.collect::<Vec<_>>().join(","),
                    terms: row.terms.clone(),
                });
            }
        }
        notes.sort_by(|one, other| {
            let key = |note: &RowNote| (note.domain.clone(), note.rule.clone(), note.concern);
            key(one).cmp(&key(other))
        });
        self.rows = notes;
        self
    }
}

/// True if a difference is one of the limit that subjects without an exception have, or of the algorithm.
fn is_about_limit(what: &str) -> bool {
    let first = what.split(' ').next().unwrap_or_default();
    first == "limit" || Limit::ALGORITHMS.contains(&first)
}

/// True if the terms of a row allow more than a limit: all windows of the row allow more than some window of the limit.
fn is_above(row: &str, limit: &Terms) -> bool {
    let windows = match limit {
        Terms::Unlimited => return false,
        Terms::Banned(_) => return !row.starts_with("0/") && row.trim() != "0",
        Terms::Limited(windows) => windows.as_slice(),
    };
    let parts = row.trim().trim_start_matches('[').trim_end_matches(']').split(',');
    let quotas: Vec<Quota> = parts.filter_map(|part| parse_quota(part).ok()).collect();
    let exceeds = |window: &Window| quotas.iter().all(|quota| is_more(*quota, window.limit()));
    !quotas.is_empty() && windows.iter().any(exceeds)
}

/// True if a quota allows more than one window.
fn is_more(quota: Quota, limit: &Limit) -> bool {
    match (quota, limit) {
        (Quota::Unlimited, _) => true,
        (Quota::Slots(slots), Limit::Concurrency(limit)) => slots > limit.slots(),
        (Quota::Flow { units, period, .. }, limit) => match (limit.rate(), limit.counter_period()) {
            (Some(rate), Some(same)) if same == period => units > rate.units(),
            (Some(rate), _) => period.exact().is_some_and(|period| {
                let (one, other) = (u128::from(units), u128::from(rate.units()));
                one * u128::from(rate.period().get()) > other * u128::from(period.get())
            }),
            (None, _) => false,
        },
        (Quota::Slots(_), _) => false,
    }
}

/// The most rows that a note lists.
const SAMPLE_MAX: usize = 100;
