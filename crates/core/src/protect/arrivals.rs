//! Arrivals by class and cohort over the last two seconds, and the cut that sheds a share of them.

use crate::protect::{PriorityClass, WHOLE_PPM};
use crate::units::time::Micros;

/// Counts in slices of 100 ms. A slice that was last written in an earlier round of the ring counts as empty.
#[derive(Clone, Debug)]
pub(super) struct Arrivals {
    slices: Box<[Slice]>,
}

/// The part of the requests that is shed: worse classes as a whole, and a part of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The rank of the class that is shed in part. All worse ones are shed.
    pub(super) rank: usize,
    /// The cohorts of that class that are shed: those below.
    pub(super) cohorts: u64,
    /// The share of that class, in ppm.
    pub(super) share_ppm: u64,
}

#[derive(Clone, Debug)]
struct Slice {
    /// Its number since the start of the clock.
    number: u64,
    total: u64,
    /// By class and cohort.
    counts: [[u32; COHORTS]; CLASSES],
}

impl Default for Cut {
    fn default() -> Self {
        Self {
            rank: CLASSES,
            cohorts: 0,
            share_ppm: 0,
        }
    }
}

impl Default for Arrivals {
    fn default() -> Self {
        Self {
            slices: vec![Slice::EMPTY; SLICES].into(),
        }
    }
}

impl Arrivals {
    pub(super) fn count(&mut self, now: Micros, class: PriorityClass, cohort: u64) {
        let number = slice_number(now);
        let index = usize::try_from(number % SLICES as u64).unwrap_or(0);
        let Some(slice) = self.slices.get_mut(index) else {
            return;
        };
        if slice.number != number {
            *slice = Slice { number, ..Slice::EMPTY };
        }
        slice.total += 1;
        let counts = slice.counts.get_mut(class.rank());
        if let Some(count) = counts.and_then(|counts| counts.get_mut(usize::try_from(cohort).ok()?)) {
            *count = count.saturating_add(1);
        }
    }

    /// Arrivals a second over the five full slices before the current one.
    pub(super) fn per_second(&self, now: Micros) -> u64 {
        let current = slice_number(now);
        let full = current.saturating_sub(RECENT_SLICES)..current;
        let recent = self.slices.iter().filter(|slice| full.contains(&slice.number));
        recent.map(|slice| slice.total).sum::<u64>() * 1_000_000 / (RECENT_SLICES * SLICE.get())
    }

    /// The cut that sheds this share of all requests: whole classes from `low` up, then cohorts of the next one, by their
    /// share of its requests. `critical` is never cut.
    pub(super) fn cut(&self, now: Micros, level_ppm: u64) -> Cut {
        if level_ppm == 0 {
            return Cut::default();
        }
        let current = slice_number(now);
        let oldest = (current + 1).saturating_sub(SLICES as u64);
        let live: Vec<&Slice> = self
            .slices
            .iter()
            .filter(|slice| (oldest..=current).contains(&slice.number))
            .collect();
        let total: u64 = live.iter().map(|slice| slice.total).sum();
        // Nothing to shed: a cut by counts of zero would be one of every class.
        if total == 0 {
            return Cut::default();
        }
        let mut to_shed = total * level_ppm.min(WHOLE_PPM) / WHOLE_PPM;
        for class in PriorityClass::ALL.into_iter().rev() {
            let rank = class.rank();
            let cohorts: [u64; COHORTS] = std::array::from_fn(|cohort| {
                let counts = live.iter().filter_map(|slice| slice.counts.get(rank)?.get(cohort));
                counts.copied().map(u64::from).sum()
            });
            let in_class: u64 = cohorts.iter().sum();
            if class == PriorityClass::Critical {
                break;
            }
            if in_class <= to_shed {
                to_shed -= in_class;
                continue;
            }
            return Cut {
                rank,
                cohorts: cohorts_within(&cohorts, to_shed),
                share_ppm: to_shed * WHOLE_PPM / in_class,
            };
        }
        // Everything but `critical`.
        Cut {
            rank: PriorityClass::Critical.rank(),
            ..Cut::default()
        }
    }
}

/// The number of cohorts, from the first, whose requests are nearest to `to_shed`.
fn cohorts_within(cohorts: &[u64; COHORTS], to_shed: u64) -> u64 {
    let mut sum = 0;
    let mut count = 0;
    for cohort in cohorts {
        if sum + cohort / 2 >= to_shed {
            break;
        }
        sum += cohort;
        count += 1;
    }
    count
}

impl Slice {
    const EMPTY: Self = Self {
        number: u64::MAX,
        total: 0,
        counts: [[0; COHORTS]; CLASSES],
    };
}

const fn slice_number(now: Micros) -> u64 {
    now.get() / SLICE.get()
}

pub(super) const COHORTS: usize = 128;
const CLASSES: usize = 4;
const SLICE: Micros = Micros::from_millis(100);
/// Two seconds.
const SLICES: usize = 20;
/// Half a second.
const RECENT_SLICES: u64 = 5;
