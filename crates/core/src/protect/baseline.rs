//! The latency of each route without load, which the adaptive limit compares with.

use crate::protect::WHOLE_PPM;
use crate::units::time::Micros;

/// The baselines of all routes.
#[derive(Clone, Debug)]
pub(super) struct Baselines {
    routes: Vec<RouteBaseline>,
    period_started_at: Micros,
    load: LoadSums,
}

#[derive(Clone, Debug)]
struct RouteBaseline {
    route: u64,
    /// None until the first window with this route.
    latency: Option<Micros>,
    /// The lowest window median of the current period.
    period_min: Option<Micros>,
}

/// Sums over the windows of a period: does throughput grow with the number in flight?
#[derive(Clone, Copy, Debug, Default)]
struct LoadSums {
    windows: i128,
    in_flight: i128,
    throughput: i128,
    squares: i128,
    products: i128,
}

impl Baselines {
    pub(super) fn new(now: Micros) -> Self {
        Self {
            routes: Vec::new(),
            period_started_at: now,
            load: LoadSums::default(),
        }
    }

    /// The index of a route. All beyond the first [`ROUTES_MAX`] share the last one.
    pub(super) fn route_index(&mut self, route: u64) -> usize {
        if let Some(index) = self.routes.iter().position(|known| known.route == route) {
            return index;
        }
        if self.routes.len() < ROUTES_MAX {
            self.routes.push(RouteBaseline {
                route,
                latency: None,
                period_min: None,
            });
        }
        self.routes.len() - 1
    }

    /// Records the load of a window.
    pub(super) fn note_load(&mut self, in_flight: u64, throughput: u64) {
        let (in_flight, throughput) = (i128::from(in_flight), i128::from(throughput));
        let load = &mut self.load;
        load.windows += 1;
        load.in_flight += in_flight;
        load.throughput += throughput;
        load.squares += in_flight * in_flight;
        load.products += in_flight * throughput;
    }

    /// The median of the latencies of a window over the baselines of their routes, in ppm; none without samples. Then
    /// moves the baselines.
    pub(super) fn compare(&mut self, now: Micros, samples: &[(usize, Micros)]) -> Option<u64> {
        for index in 0..self.routes.len() {
            let of_route = samples.iter().filter(|(route, _)| *route == index);
            let mut latencies: Vec<u64> = of_route.map(|(_, latency)| latency.get()).collect();
            if latencies.len() < SAMPLES_MIN {
                continue;
            }
            let median = median(&mut latencies).map(Micros::new);
            if let (Some(baseline), Some(median)) = (self.routes.get_mut(index), median) {
                baseline.period_min = Some(baseline.period_min.map_or(median, |least| least.min(median)));
                baseline.latency = Some(baseline.latency.map_or(median, |least| least.min(median)));
            }
        }
        let ratio = |(route, latency): &(usize, Micros)| {
            let baseline = self.routes.get(*route)?.latency?.get().max(1);
            Some(latency.get().saturating_mul(WHOLE_PPM) / baseline)
        };
        let mut ratios: Vec<u64> = samples.iter().filter_map(ratio).collect();
        let compared = median(&mut ratios);
        if now.get().saturating_sub(self.period_started_at.get()) >= PERIOD.get() {
            self.end_period(now);
        }
        compared
    }

    /// Raises baselines towards the lowest median of the period, by 5 % at most, and only if throughput grew with the
    /// number in flight: if it did not, the service was saturated, and its latency says nothing about an idle one.
    fn end_period(&mut self, now: Micros) {
        let may_rise = self.load.throughput_grew();
        for route in &mut self.routes {
            if let (Some(latency), Some(least)) = (route.latency, route.period_min)
                && may_rise
                && least > latency
            {
                route.latency = Some(least.min(Micros::new(latency.get() + latency.get() / 20)));
            }
            route.period_min = None;
        }
        self.period_started_at = now;
        self.load = LoadSums::default();
    }
}

impl LoadSums {
    /// True if throughput grew at least half as fast as the number in flight, both relative to their means.
    const fn throughput_grew(self) -> bool {
        let Self {
            windows,
            in_flight,
            throughput,
            squares,
            products,
        } = self;
        let variance = windows * squares - in_flight * in_flight;
        let covariance = windows * products - in_flight * throughput;
        variance > 0 && covariance.saturating_mul(in_flight).saturating_mul(2) >= variance.saturating_mul(throughput)
    }
}

/// The lower median.
fn median(values: &mut [u64]) -> Option<u64> {
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable(middle).1)
}

/// The routes with a baseline of their own.
const ROUTES_MAX: usize = 64;
/// The fewest responses of a route from which its median counts.
const SAMPLES_MIN: usize = 8;
const PERIOD: Micros = Micros::from_secs(300);
