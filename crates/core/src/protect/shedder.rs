//! The load shedder: drops the least important requests while the service is overloaded.
//!
//! The slow loop around the slot queue. It is evaluated by the first request after each tick, with the time since the
//! last evaluation: no task, and idleness lowers the level. It integrates how far utilization is above a threshold, and
//! never sheds below a share of what the service is able to do, so that it does not overshoot.

use crate::protect::arrivals::{Arrivals, COHORTS, Cut};
use crate::protect::slot_queue::SlotUsage;
use crate::protect::{PriorityClass, WHOLE_PPM};
use crate::units::time::Micros;
use std::cmp::Ordering;
use std::fmt;

/// The numbers of a load shedder. Shares are in ppm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShedderConfig {
    /// Below this utilization the level falls.
    pub low_ppm: u64,
    /// Above it the level rises.
    pub high_ppm: u64,
    /// The delay before a full overload sheds anything.
    pub hold_off: Micros,
    /// The time in which a full overload raises the level from nothing to everything.
    pub up: Micros,
    /// The time in which idleness lowers it back.
    pub down: Micros,
    /// The share of the capacity that is never shed below; 0 for no floor.
    pub floor_ppm: u64,
    /// The way requests are selected.
    pub select: ShedSelection,
}

/// The way the load shedder selects requests within a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShedSelection {
    /// By caller: one is served or shed as a whole, so that retrying gains nothing.
    #[default]
    Caller,
    /// By a draw for each request.
    Request,
}

/// The reason the numbers of a load shedder are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShedderConfigError {
    /// Not `0 < low ≤ high < 100 %`.
    Thresholds,
    /// A ramp of no time.
    Ramp,
    /// A floor above 100 %.
    Floor,
}

/// The input of one evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSignals {
    /// The use of the slots since the last evaluation.
    pub usage: SlotUsage,
    /// The largest of the other signals in ppm, such as event loop lag; see [`signal_ppm`]. 0 without one.
    pub other_ppm: u64,
    /// The requests a second that the service is able to finish: slots over the mean time a slot is held.
    /// None while it is unknown; there is no floor then.
    pub capacity_per_s: Option<u64>,
}

/// The load shedder of one upstream.
#[derive(Clone, Debug)]
pub struct LoadShedder {
    config: ShedderConfig,
    evaluated_at: Micros,
    utilization_ppm: u64,
    integral_ppm: i64,
    level_ppm: u64,
    cut: Cut,
    arrivals: Arrivals,
}

impl Default for ShedderConfig {
    fn default() -> Self {
        Self {
            low_ppm: 750_000,
            high_ppm: 850_000,
            hold_off: Micros::from_millis(300),
            up: Micros::from_secs(10),
            down: Micros::from_secs(2),
            floor_ppm: 980_000,
            select: ShedSelection::Caller,
        }
    }
}

impl ShedderConfig {
    /// Stripe's published ramp: 28 s without an effect, then two minutes to everything; back in two minutes.
    pub const fn stripe() -> Self {
        Self {
            low_ppm: 700_000,
            high_ppm: 800_000,
            hold_off: Micros::from_secs(28),
            up: Micros::from_secs(120),
            down: Micros::from_secs(120),
            floor_ppm: 0,
            select: ShedSelection::Request,
        }
    }

    const fn checked(self) -> Result<Self, ShedderConfigError> {
        if self.low_ppm == 0 || self.low_ppm > self.high_ppm || self.high_ppm >= WHOLE_PPM {
            return Err(ShedderConfigError::Thresholds);
        }
        if self.up.get() == 0 || self.down.get() == 0 {
            return Err(ShedderConfigError::Ramp);
        }
        if self.floor_ppm > WHOLE_PPM {
            return Err(ShedderConfigError::Floor);
        }
        Ok(self)
    }
}

impl LoadShedder {
    /// The time between two evaluations.
    pub const TICK: Micros = Micros::from_millis(100);
    /// The number of cohorts that callers are divided into: a keyed hash of caller and hour, modulo this.
    pub const COHORTS: u64 = COHORTS as u64;

    /// A shedder that sheds nothing. `now` is the time on the monotonic clock of this instance.
    ///
    /// # Errors
    /// Thresholds, ramps or a floor out of range.
    pub fn new(config: ShedderConfig, now: Micros) -> Result<Self, ShedderConfigError> {
        let config = config.checked()?;
        Ok(Self {
            config,
            evaluated_at: now,
            utilization_ppm: 0,
            // As after idleness: the hold-off comes first.
            integral_ppm: -i64::try_from(hold_off_ppm(&config)).unwrap_or(0),
            level_ppm: 0,
            cut: Cut::default(),
            arrivals: Arrivals::default(),
        })
    }

    /// Records a request, and returns true if it is shed. `caller` is a keyed hash of caller and hour, `draw` a random
    /// number. Before it comes [`LoadShedder::evaluate`], if that is due.
    pub fn sheds(&mut self, now: Micros, class: PriorityClass, caller: u64, draw: u32) -> bool {
        let cohort = caller % Self::COHORTS;
        self.arrivals.count(now, class, cohort);
        if self.level_ppm == 0 || class == PriorityClass::Critical {
            return false;
        }
        match class.rank().cmp(&self.cut.rank) {
            Ordering::Greater => true,
            Ordering::Less => false,
            Ordering::Equal => match self.config.select {
                ShedSelection::Caller => cohort < self.cut.cohorts,
                ShedSelection::Request => (u64::from(draw) * WHOLE_PPM) >> 32 < self.cut.share_ppm,
            },
        }
    }

    /// True if a tick has passed since the last evaluation.
    pub const fn is_due(&self, now: Micros) -> bool {
        now.get().saturating_sub(self.evaluated_at.get()) >= Self::TICK.get()
    }

    /// Computes the level anew.
    pub fn evaluate(&mut self, now: Micros, signals: &LoadSignals) {
        let elapsed = now.get().saturating_sub(self.evaluated_at.get()).min(ELAPSED_MAX.get());
        self.evaluated_at = now;
        let work = work_ppm(signals.usage);
        let utilization = work.max(signals.other_ppm).min(WHOLE_PPM);
        self.utilization_ppm = utilization;

        let error = error_ppm(&self.config, utilization);
        let ramp = if error > 0 { self.config.up } else { self.config.down };
        let step = i128::from(error) * i128::from(elapsed) / i128::from(ramp.get());
        let hold_off = hold_off_ppm(&self.config);
        let cap = self.cap_ppm(now, signals);
        self.integral_ppm = (i128::from(self.integral_ppm) + step)
            .clamp(-i128::from(hold_off), i128::from(cap))
            .try_into()
            .unwrap_or(0);
        let falling = self
            .level_ppm
            .saturating_sub(ratio_ppm(elapsed, self.config.down.get()));
        self.level_ppm = u64::try_from(self.integral_ppm).unwrap_or(0).max(falling);
        self.cut = self.arrivals.cut(now, self.level_ppm);
    }

    /// The share of all requests to shed, in ppm.
    pub const fn level_ppm(&self) -> u64 {
        self.level_ppm
    }

    /// The utilization of the last evaluation, in ppm.
    pub const fn utilization_ppm(&self) -> u64 {
        self.utilization_ppm
    }

    /// The highest level: never below the floor of the capacity. Another signal than work raises it to at most one half,
    /// because a stuck gauge must not close an idle service.
    fn cap_ppm(&self, now: Micros, signals: &LoadSignals) -> u64 {
        let arrivals_per_s = self.arrivals.per_second(now);
        let kept = match signals.capacity_per_s {
            Some(capacity) if self.config.floor_ppm > 0 => {
                ratio_ppm(capacity, arrivals_per_s.max(1)).saturating_mul(self.config.floor_ppm) / WHOLE_PPM
            }
            _ => 0,
        };
        let by_floor = WHOLE_PPM.saturating_sub(kept);
        let by_signal = if signals.other_ppm > self.config.high_ppm {
            OTHER_LEVEL_MAX_PPM
        } else {
            0
        };
        by_floor.max(by_signal)
    }
}

/// The utilization by requests: 0.8 at slots that are exactly full, and the rest by waiting.
pub fn work_ppm(usage: SlotUsage) -> u64 {
    let full = usage.in_flight_ppm.min(WHOLE_PPM) * 8 / 10;
    full + ratio_ppm(usage.wait_min.get(), WAIT_FULL.get()).min(WHOLE_PPM) * 2 / 10
}

/// A signal in ppm: 0 to `ok` is 0 to 75 %, `ok` to `full` is 75 % to 100 %.
pub fn signal_ppm(value: u64, ok: u64, full: u64) -> u64 {
    if value <= ok {
        return ratio_ppm(value, ok.max(1)).min(WHOLE_PPM) * 3 / 4;
    }
    let above = ratio_ppm(value - ok, full.saturating_sub(ok).max(1)).min(WHOLE_PPM);
    WHOLE_PPM * 3 / 4 + above / 4
}

/// The distance of the utilization from the thresholds, from −100 % to 100 %.
fn error_ppm(config: &ShedderConfig, utilization: u64) -> i64 {
    let error = if utilization > config.high_ppm {
        ratio_ppm(utilization - config.high_ppm, WHOLE_PPM - config.high_ppm)
    } else if utilization < config.low_ppm {
        return i64::try_from(ratio_ppm(config.low_ppm - utilization, config.low_ppm)).map_or(0, |error| -error);
    } else {
        0
    };
    i64::try_from(error).unwrap_or(0)
}

/// The depth below zero from which a full overload takes the hold-off to come back.
fn hold_off_ppm(config: &ShedderConfig) -> u64 {
    ratio_ppm(config.hold_off.get(), config.up.get())
}

fn ratio_ppm(part: u64, whole: u64) -> u64 {
    let ratio = u128::from(part) * u128::from(WHOLE_PPM) / u128::from(whole.max(1));
    u64::try_from(ratio).unwrap_or(u64::MAX)
}

impl fmt::Display for ShedderConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thresholds => "`low` must be above 0 and at most `high`, and `high` below 100%",
            Self::Ramp => "`up` and `down` of the ramp must be longer than 0",
            Self::Floor => "`floor` must be at most 100%",
        })
    }
}

impl std::error::Error for ShedderConfigError {}

/// An evaluation after a pause counts as one after this.
const ELAPSED_MAX: Micros = Micros::from_secs(2);
/// A wait of this length is full utilization.
const WAIT_FULL: Micros = Micros::from_millis(20);
/// The highest level that signals other than work can cause.
const OTHER_LEVEL_MAX_PPM: u64 = WHOLE_PPM / 2;
