//! One trial of a row: a harness under load, an outage in it, and the audit afterwards.

use crate::audit::{Baseline, Except, audit_except};
use crate::harness::{Harness, LoadResult, Outage, Setup};
use crate::measurements::Measurements;
use crate::plan::Plan;
use std::ops::{Deref, DerefMut};
use std::time::Duration;
use tollgate_limiter::testing::servers::Server;

/// A harness that is under load since the control phase, and how it was then.
pub(super) struct Trial<'p> {
    plan: &'p Plan,
    harness: Harness,
    baseline: Baseline,
}

impl<'p> Trial<'p> {
    /// Loaded for the control phase.
    pub(super) fn start(plan: &'p Plan, setup: Setup) -> Self {
        Self::start_after(plan, setup, plan.seconds(1.5, 5.0))
    }

    /// With a control phase of this length.
    pub(super) fn start_after(plan: &'p Plan, setup: Setup, control: Duration) -> Self {
        let mut harness = setup.start(plan);
        harness.load();
        harness.pause(control);
        let baseline = Baseline::new(&harness);
        Self {
            plan,
            harness,
            baseline,
        }
    }

    /// The outage that started then and is over now.
    pub(super) fn outage_since(&self, from_us: u64) -> Outage {
        Outage {
            from_us,
            back_us: self.now_us(),
        }
    }

    /// Lets all settle, ends the load and audits.
    pub(super) fn settle(&mut self, server: &Server) -> (LoadResult, Measurements) {
        self.settle_over((&[server.port()], 0.0))
    }

    /// The same over several servers, or with keys that may live longer; see [`audit_except`].
    pub(super) fn settle_over(&mut self, servers: (&[u16], f64)) -> (LoadResult, Measurements) {
        let mut measurements = Measurements::default();
        let result = self.settle_into(&mut measurements, servers);
        (result, measurements)
    }

    /// The same for a row of several trials.
    pub(super) fn settle_into(&mut self, measurements: &mut Measurements, servers: (&[u16], f64)) -> LoadResult {
        let result = self.end_load_after(self.plan.seconds(2.5, 5.0));
        self.audit(measurements, &result, servers);
        result
    }

    pub(super) fn end_load_after(&mut self, time: Duration) -> LoadResult {
        self.pause(time);
        self.end_load()
    }

    /// Audits with the load over; see [`audit_except`].
    pub(super) fn audit(&mut self, measurements: &mut Measurements, result: &LoadResult, servers: (&[u16], f64)) {
        self.audit_except(Except::Nothing, measurements, result, servers);
    }

    pub(super) fn audit_except(
        &mut self,
        except: Except,
        measurements: &mut Measurements,
        result: &LoadResult,
        servers: (&[u16], f64),
    ) {
        audit_except(except, measurements, &mut self.harness, result, &self.baseline, servers);
    }
}

impl Deref for Trial<'_> {
    type Target = Harness;

    fn deref(&self) -> &Harness {
        &self.harness
    }
}

impl DerefMut for Trial<'_> {
    fn deref_mut(&mut self) -> &mut Harness {
        &mut self.harness
    }
}
