//! Measures of one run.

use super::{OverloadCell, Pattern, SERVICE_MEAN, WORKERS};
use tollgate_core::protect::PriorityClass;

/// The result of one cell. Shares are in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellResult {
    /// The pattern; none before the run.
    pub pattern: Option<Pattern>,
    /// The load in percent.
    pub load_percent: u64,
    /// Responses in time during the overload, over what the workers could have served of it.
    pub goodput_permille: u64,
    /// Critical requests with a response in time, of all that arrived during the overload.
    pub critical_permille: u64,
    /// The same of each class, most important first.
    pub served_permille: [u64; 4],
    /// Requests of the overload that the load shedder shed.
    pub shed_permille: u64,
    /// Requests of the overload that were denied in another way: no slot, a full queue, a wait that was too long.
    pub denied_permille: u64,
    /// The 99th percentile of the time to a response in time, in milliseconds.
    pub p99_ms: u64,
    /// The time after the overload until 99 % of requests are served again for a second; none if never.
    pub normal_after_ms: Option<u64>,
    /// The largest change of the level in a tick of 100 ms, in thousandths.
    pub level_step_permille: u64,
    /// The standard deviation of the level in the last five seconds of the overload, in thousandths.
    pub level_sd_permille: u64,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// In time.
    Served,
    /// After its client had left.
    Late,
    /// Turned away.
    Denied,
    /// Turned away by the load shedder.
    Shed,
}

/// Sums during a run.
pub(super) struct Measure {
    pattern: Pattern,
    load_percent: u64,
    served: [u64; 4],
    arrived: [u64; 4],
    /// Served during the overload, whenever they arrived.
    good: u64,
    shed: u64,
    denied: u64,
    latencies_us: Vec<u64>,
    /// After the overload, in slices: arrived, and served of them.
    after: Vec<(u64, u64)>,
    /// By tick.
    levels_ppm: Vec<u64>,
}

impl Measure {
    pub(super) fn new(cell: &OverloadCell) -> Self {
        Self {
            pattern: cell.pattern,
            load_percent: cell.load_percent,
            served: [0; 4],
            arrived: [0; 4],
            good: 0,
            shed: 0,
            denied: 0,
            latencies_us: Vec::new(),
            after: Vec::new(),
            levels_ppm: Vec::new(),
        }
    }

    pub(super) fn level(&mut self, now: u64, level_ppm: u64) {
        let tick = usize::try_from(now / 100_000).unwrap_or(0);
        if self.levels_ppm.len() <= tick {
            let last = self.levels_ppm.last().copied().unwrap_or(0);
            self.levels_ppm.resize(tick + 1, last);
        }
        if let Some(level) = self.levels_ppm.get_mut(tick) {
            *level = level_ppm;
        }
    }

    pub(super) fn end(&mut self, now: u64, class: PriorityClass, arrived: u64, end: End) {
        let (start, stop) = self.pattern.overload_us();
        if end == End::Served && (start..stop).contains(&now) {
            self.good += 1;
        }
        if (start..stop).contains(&arrived) {
            if let Some(count) = self.arrived.get_mut(class.rank()) {
                *count += 1;
            }
            match end {
                End::Served => {
                    if let Some(count) = self.served.get_mut(class.rank()) {
                        *count += 1;
                    }
                    self.latencies_us.push(now - arrived);
                }
                End::Late => {}
                End::Denied => self.denied += 1,
                End::Shed => self.shed += 1,
            }
        } else if arrived >= stop {
            let slice = usize::try_from((arrived - stop) / SLICE_US).unwrap_or(0);
            if self.after.len() <= slice {
                self.after.resize(slice + 1, (0, 0));
            }
            if let Some((arrived, served)) = self.after.get_mut(slice) {
                *arrived += 1;
                *served += u64::from(end == End::Served);
            }
        }
    }

    pub(super) fn finish(mut self) -> CellResult {
        let arrived: u64 = self.arrived.iter().sum();
        let mut served_permille = [0; 4];
        for ((permille, served), arrived) in served_permille.iter_mut().zip(self.served).zip(self.arrived) {
            *permille = permille_of(served, arrived);
        }
        CellResult {
            pattern: Some(self.pattern),
            load_percent: self.load_percent,
            goodput_permille: permille_of(self.good, self.servable()),
            critical_permille: served_permille.first().copied().unwrap_or(0),
            served_permille,
            shed_permille: permille_of(self.shed, arrived),
            denied_permille: permille_of(self.denied, arrived),
            p99_ms: percentile(&mut self.latencies_us, 99).div_ceil(1_000),
            normal_after_ms: self.normal_after_ms(),
            level_step_permille: self.level_step_permille(),
            level_sd_permille: self.level_sd_permille(),
        }
    }

    /// The requests of the overload that the workers could have served.
    fn servable(&self) -> u64 {
        let (start, stop) = self.pattern.overload_us();
        let per_slice = |at: u64| {
            let workers = self.pattern.workers(at);
            let offered = self.pattern.load_percent(at, self.load_percent) * WORKERS;
            SLICE_US * (workers * 100).min(offered) / 100
        };
        let slices = (start..stop).step_by(usize::try_from(SLICE_US).unwrap_or(1));
        slices.map(per_slice).sum::<u64>() / SERVICE_MEAN.get()
    }

    fn normal_after_ms(&self) -> Option<u64> {
        let is_normal = |slices: &[(u64, u64)]| {
            let arrived: u64 = slices.iter().map(|slice| slice.0).sum();
            let served: u64 = slices.iter().map(|slice| slice.1).sum();
            served * 100 >= arrived * 99
        };
        let first = self.after.windows(SECOND_SLICES).position(is_normal)?;
        Some(first as u64 * SLICE_US / 1_000)
    }

    fn level_step_permille(&self) -> u64 {
        let steps = self.levels_ppm.array_windows().map(|[one, next]| one.abs_diff(*next));
        steps.max().unwrap_or(0).div_ceil(1_000)
    }

    fn level_sd_permille(&self) -> u64 {
        let (_, stop) = self.pattern.overload_us();
        let stop = usize::try_from(stop / 100_000).unwrap_or(0);
        let last = self.levels_ppm.get(stop.saturating_sub(50)..stop).unwrap_or_default();
        let count = (last.len() as u64).max(1);
        let mean = last.iter().sum::<u64>() / count;
        let squares: u64 = last.iter().map(|level| level.abs_diff(mean).pow(2)).sum();
        (squares / count).isqrt().div_ceil(1_000)
    }
}

fn permille_of(part: u64, whole: u64) -> u64 {
    (part * 1_000 + whole / 2).checked_div(whole).unwrap_or(0)
}

/// A percentile, or zero of none.
pub(in crate::scenario) fn percentile(values: &mut [u64], percent: usize) -> u64 {
    let Some(last) = values.len().checked_sub(1) else {
        return 0;
    };
    *values.select_nth_unstable(last * percent / 100).1
}

const SLICE_US: u64 = 100_000;
/// The slices of one second.
const SECOND_SLICES: usize = 10;
