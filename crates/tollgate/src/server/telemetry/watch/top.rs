//! The subjects that rules refuse most.
//!
//! A denial adds the fingerprint of its subject to a sketch of its rule: a table of fixed size that has every subject with more than
//! 0.7 % of the denials, each with a lower and an upper bound. Threads share four stripes of sketches, which are merged once a second.
//! Above [`FULL_RATE`] denials a second only every n-th is taken, with weight n, and the bounds are wider.

mod list;
mod sketch;

pub(crate) use self::list::{MINUTES_MAX, PartRow, RulePart, TopItem, TopList, TopQuery, join};

use self::list::{FinishedMinutes, combine};
use self::sketch::{NamedSketch, SketchRule};
use super::series::RuleName;
use crate::server::observers::VerdictEvent;
use crate::server::telemetry::rule_index;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tollgate_limiter::core::rules::{Dimension, Mode, Rule, RuleSet, Ruling, Verdict};

/// The refused subjects of the last minutes.
pub(crate) struct TopRefused {
    /// Keyed, so that a caller cannot choose subjects that share a fingerprint.
    fingerprints: RandomState,
    stripes: [Stripe; STRIPES],
    /// One of this many denials is taken.
    every: AtomicU32,
    numbers: Mutex<RuleNumbers>,
    minutes: Mutex<Minutes>,
}

/// The rules of one rule set, as sketches know them.
#[derive(Debug)]
pub(crate) struct TopRules(Box<[SketchRule]>);

/// The numbers of the rules of the newest rule set, by name and the attributes of their subjects.
#[derive(Debug, Default)]
struct RuleNumbers {
    by_rule: HashMap<(RuleName, Box<[Dimension]>), u64>,
    next: u64,
}

/// Sketches by the number of their rule.
type Sketches = HashMap<u64, Box<NamedSketch>, BuildHasherDefault<NumberHasher>>;

/// Sketches that some of the threads write to.
#[derive(Default)]
#[repr(align(64))]
struct Stripe(Mutex<Sketches>);

#[derive(Default)]
struct Minutes {
    /// The minute in progress.
    current: u64,
    sketches: Sketches,
    finished: FinishedMinutes,
}

/// The hash of a number that is random or unique: itself.
#[derive(Clone, Copy, Debug, Default)]
struct NumberHasher(u64);

impl Default for TopRefused {
    fn default() -> Self {
        Self {
            fingerprints: RandomState::new(),
            stripes: Default::default(),
            every: AtomicU32::new(1),
            numbers: Mutex::default(),
            minutes: Mutex::default(),
        }
    }
}

impl TopRefused {
    /// Prepares for the denials of a rule set. A rule that stays keeps its number, and with it its place among the sketches.
    pub(crate) fn rules(&self, rules: &RuleSet) -> TopRules {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = &mut *numbers;
        let known = std::mem::take(&mut numbers.by_rule);
        let rule = |rule: &Rule| {
            let name = RuleName::new(rule.domain(), rule.id());
            // Other subjects have other sketches: those of one rule are joined by its name.
            let key = (name.clone(), rule.per().into());
            let number = known.get(&key).copied().unwrap_or_else(|| {
                numbers.next += 1;
                numbers.next
            });
            numbers.by_rule.insert(key, number);
            SketchRule { number, name }
        };
        TopRules(rules.rules().iter().map(rule).collect())
    }

    /// Counts a denial for each rule that refused it.
    #[inline]
    pub(crate) fn record(&self, rules: &TopRules, event: &VerdictEvent<'_>, verdict: &Verdict<'_>) {
        let every = self.every.load(Ordering::Relaxed);
        if every > 1 && fastrand::u32(..every) != 0 {
            return;
        }
        for windows in verdict.rulings.chunk_by(|one, next| ptr::eq(one.rule, next.rule)) {
            let Some(first) = windows.first() else { continue };
            if first.mode != Mode::Enforce || windows.iter().all(Ruling::is_allow) {
                continue;
            }
            if let Some(rule) = rules.0.get(rule_index(event.rules, first.rule)) {
                self.add(rule, first.rule, event, every);
            }
        }
    }

    fn add(&self, rule: &SketchRule, terms: &Rule, event: &VerdictEvent<'_>, weight: u32) {
        let mut hasher = self.fingerprints.build_hasher();
        let is_whole = terms.visit_subject(event.attempt, |_, value| {
            hasher.write_usize(value.len());
            hasher.write(value);
        });
        if !is_whole {
            // Its subject has a derived attribute, which the attempt does not show.
            return;
        }
        self.add_subject(rule, hasher.finish(), weight, || subject_text(terms, event));
    }

    #[inline]
    fn add_subject(&self, rule: &SketchRule, fingerprint: u64, weight: u32, name: impl FnOnce() -> Box<str>) {
        let mut sketches = self.stripe();
        let count = sketches.len();
        let sketch = match sketches.get_mut(&rule.number) {
            Some(sketch) => sketch,
            None if count >= RULES_MAX => return,
            None => sketches
                .entry(rule.number)
                .or_insert_with(|| Box::new(NamedSketch::new(rule))),
        };
        sketch.add(fingerprint, weight, name);
    }

    /// The stripe of this thread.
    fn stripe(&self) -> MutexGuard<'_, Sketches> {
        let index = STRIPE.with(|stripe| match stripe.get() {
            usize::MAX => {
                let index = NEXT_STRIPE.fetch_add(1, Ordering::Relaxed) % STRIPES;
                stripe.set(index);
                index
            }
            index => index,
        });
        let [first, second, third, fourth] = &self.stripes;
        let stripe = match index {
            0 => first,
            1 => second,
            2 => third,
            _ => fourth,
        };
        stripe.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn minutes(&self) -> MutexGuard<'_, Minutes> {
        self.minutes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects what the stripes have, ends a minute that is over, and takes fewer denials if there were many in the last second.
    pub(crate) fn collect(&self, now_ms: u64, denied_last_second: u64) {
        let every = denied_last_second.div_ceil(FULL_RATE).max(1);
        self.every
            .store(u32::try_from(every).unwrap_or(u32::MAX), Ordering::Relaxed);
        let mut minutes = self.minutes();
        minutes.end_at(now_ms / 60_000);
        for stripe in &self.stripes {
            let taken = std::mem::take(&mut *stripe.0.lock().unwrap_or_else(PoisonError::into_inner));
            for (number, sketch) in taken {
                minutes.merge(number, sketch);
            }
        }
    }

    /// The rows of each rule and minute, this one included: what other instances add up.
    pub(crate) fn parts(&self, from_minute: u64, rows_max: usize) -> Vec<RulePart> {
        let minutes = self.minutes();
        let mut parts = minutes.finished.parts(from_minute, rows_max);
        let current = minutes.current;
        let sketches = minutes.sketches.values();
        parts.extend(sketches.map(|sketch| RulePart::of(current, sketch, rows_max)));
        parts
    }

    /// The subjects that were refused most, here and by the parts of other instances.
    pub(crate) fn list(&self, others: Vec<Vec<RulePart>>, query: &TopQuery, now_ms: u64) -> TopList {
        let from = (now_ms / 60_000 + 1).saturating_sub(query.minutes);
        let mut instances = others;
        instances.push(self.parts(from, list::ROWS_MAX));
        combine(&instances, query, from, now_ms)
    }
}

impl Minutes {
    /// Ends the minute in progress if it is another one.
    fn end_at(&mut self, minute: u64) {
        if minute == self.current {
            return;
        }
        let sketches = std::mem::take(&mut self.sketches);
        self.finished
            .add(self.current, sketches.values().map(|sketch| &**sketch));
        self.current = minute;
        self.finished.drop_before(minute.saturating_sub(MINUTES_MAX));
    }

    fn merge(&mut self, number: u64, sketch: Box<NamedSketch>) {
        let count = self.sketches.len();
        match self.sketches.get_mut(&number) {
            Some(known) => known.merge(*sketch),
            None if count >= RULES_MAX => {}
            None => {
                self.sketches.insert(number, sketch);
            }
        }
    }
}

/// The values of a subject, as they are counted: `name`, `value` and so on, each behind its length.
fn subject_text(rule: &Rule, event: &VerdictEvent<'_>) -> Box<str> {
    let mut subject: Vec<(String, String)> = Vec::new();
    rule.visit_subject(event.attempt, |name, value| {
        let value = match value.get(..VALUE_BYTES_MAX) {
            Some(start) if value.len() > VALUE_BYTES_MAX => format!("{}…", String::from_utf8_lossy(start)),
            _ => String::from_utf8_lossy(value).into_owned(),
        };
        match subject.iter_mut().find(|(known, _)| known == name) {
            // An attribute with several values.
            Some((_, known)) => {
                known.push(',');
                known.push_str(&value);
            }
            None => subject.push((name.to_owned(), value)),
        }
    });
    let members = subject.into_iter().map(|(name, value)| (name, value.into()));
    let object: serde_json::Map<String, serde_json::Value> = members.collect();
    serde_json::Value::Object(object).to_string().into()
}

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Tables look at the upper bits too.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl fmt::Debug for TopRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the subjects.
        f.debug_struct("TopRefused").finish_non_exhaustive()
    }
}

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);
const STRIPES: usize = 4;
/// Rules that have a sketch at a time.
const RULES_MAX: usize = 100;
/// Denials a second that are all taken.
const FULL_RATE: u64 = 10_000;
/// Longer values of a subject are cut.
const VALUE_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests;
