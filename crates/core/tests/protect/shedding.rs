//! Laws of the load shedder.

use proptest::prelude::*;
use tollgate_core::Micros;
use tollgate_core::protect::{
    HoldTimes, LoadShedder, LoadSignals, PriorityClass, QueueEntry, ShedSelection, ShedderConfig, ShedderConfigError,
    SlotDecision, SlotQueue, SlotQueueConfig, SlotUsage, WHOLE_PPM, signal_ppm, work_ppm,
};

fn signals() -> impl Strategy<Value = LoadSignals> {
    let capacity = prop::option::of(0..100_000_u64);
    (0..2_000_000_u64, 0..100_000_u64, 0..2_000_000_u64, capacity).prop_map(
        |(in_flight_ppm, wait_us, other_ppm, capacity_per_s)| LoadSignals {
            usage: SlotUsage {
                in_flight_ppm,
                wait_min: Micros::new(wait_us),
            },
            other_ppm,
            capacity_per_s,
        },
    )
}

fn shedder(config: ShedderConfig) -> LoadShedder {
    LoadShedder::new(config, Micros::ZERO).expect("in range")
}

const TICK: u64 = LoadShedder::TICK.get();
const OVERLOAD: LoadSignals = LoadSignals {
    usage: SlotUsage {
        in_flight_ppm: WHOLE_PPM,
        wait_min: Micros::from_millis(50),
    },
    other_ppm: 0,
    capacity_per_s: None,
};
const IDLE: LoadSignals = LoadSignals {
    usage: SlotUsage {
        in_flight_ppm: 0,
        wait_min: Micros::ZERO,
    },
    other_ppm: 0,
    capacity_per_s: Some(2_000),
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_level_is_a_share_and_moves_at_most_five_percent_a_tick(
        steps in prop::collection::vec((signals(), 0..50_u64), 1..60),
    ) {
        let mut shedder = shedder(ShedderConfig::default());
        let mut before = 0;
        for (number, (signals, arrivals)) in (1..).zip(steps) {
            let now = number * TICK;
            for caller in 0..arrivals {
                shedder.sheds(Micros::new(now - 1), PriorityClass::Normal, caller, 0);
            }
            shedder.evaluate(Micros::new(now), &signals);
            let level = shedder.level_ppm();
            prop_assert!(level <= WHOLE_PPM);
            prop_assert!(level.abs_diff(before) <= 50_000, "{} to {}", before, level);
            before = level;
        }
    }

    #[test]
    fn a_critical_request_is_never_shed(
        steps in prop::collection::vec(signals(), 1..40), caller: u64, draw: u32, by_request: bool,
    ) {
        let select = if by_request { ShedSelection::Request } else { ShedSelection::Caller };
        let mut shedder = shedder(ShedderConfig { select, floor_ppm: 0, ..ShedderConfig::default() });
        for (number, mut signals) in (1..).zip(steps) {
            signals.capacity_per_s = None;
            let now = Micros::new(number * TICK * 20);
            prop_assert!(!shedder.sheds(now, PriorityClass::Critical, caller, draw));
            shedder.evaluate(now, &signals);
        }
    }

    #[test]
    fn a_class_is_shed_only_when_all_worse_classes_are(level_ticks in 4..100_u64, callers in 1..2_000_u64) {
        let mut shedder = shedder(ShedderConfig { floor_ppm: 0, ..ShedderConfig::default() });
        for number in 1..=level_ticks {
            for caller in 0..callers {
                let class = PriorityClass::ALL[(caller % 4) as usize];
                shedder.sheds(Micros::new(number * TICK - 1), class, caller / 4, 0);
            }
            shedder.evaluate(Micros::new(number * TICK), &OVERLOAD);
        }
        let now = Micros::new(level_ticks * TICK);
        let mut shed_of = |class| (0..128).filter(|caller| shedder.sheds(now, class, *caller, 0)).count();
        let shed = [PriorityClass::High, PriorityClass::Normal, PriorityClass::Low].map(&mut shed_of);
        prop_assert!(shed[0] == 0 || shed[1] == 128, "{:?}", shed);
        prop_assert!(shed[1] == 0 || shed[2] == 128, "{:?}", shed);
    }

    #[test]
    fn cohorts_are_cut_by_their_share_of_requests(
        loads in prop::collection::vec(1..100_u64, 128), ticks in 10..90_u64,
    ) {
        let mut shedder = shedder(ShedderConfig { floor_ppm: 0, ..ShedderConfig::default() });
        for number in 1..=ticks {
            for (caller, load) in (0..).zip(&loads) {
                for _ in 0..*load {
                    shedder.sheds(Micros::new(number * TICK - 1), PriorityClass::Normal, caller, 0);
                }
            }
            shedder.evaluate(Micros::new(number * TICK), &OVERLOAD);
        }
        let now = Micros::new(ticks * TICK);
        let total: u64 = loads.iter().sum();
        let shed: u64 = (0..).zip(&loads)
            .filter(|(caller, _)| shedder.sheds(now, PriorityClass::Normal, *caller, 0))
            .map(|(_, load)| load)
            .sum();
        // At most half of the largest cohort off.
        let error = (shed * WHOLE_PPM / total).abs_diff(shedder.level_ppm());
        prop_assert!(error <= 50 * WHOLE_PPM / total + 1_000, "{} of {}, level {}", shed, total, shedder.level_ppm());
    }

    #[test]
    fn draws_shed_the_share_of_the_level(ticks in 10..90_u64) {
        let config = ShedderConfig { select: ShedSelection::Request, floor_ppm: 0, ..ShedderConfig::default() };
        let mut shedder = shedder(config);
        for number in 1..=ticks {
            for _ in 0..20 {
                shedder.sheds(Micros::new(number * TICK - 1), PriorityClass::Normal, 1, 0);
            }
            shedder.evaluate(Micros::new(number * TICK), &OVERLOAD);
        }
        let now = Micros::new(ticks * TICK);
        let count = (0..1_000_u64).filter(|draw| {
            let draw = u32::try_from((*draw << 32) / 1_000).expect("below 2^32");
            shedder.sheds(now, PriorityClass::Normal, 1, draw)
        });
        let shed = count.count() as u64 * 1_000;
        // The counts are whole requests.
        prop_assert!(shed.abs_diff(shedder.level_ppm()) <= WHOLE_PPM / 200 + 1_000, "{} at {}", shed, shedder.level_ppm());
    }
}

#[test]
fn idleness_of_two_seconds_ends_shedding() {
    let mut shedder = shedder(ShedderConfig {
        floor_ppm: 0,
        ..ShedderConfig::default()
    });
    for number in 1..=200 {
        shedder.evaluate(Micros::new(number * TICK), &OVERLOAD);
    }
    assert_eq!(shedder.level_ppm(), WHOLE_PPM);
    // No request came meanwhile: the first one evaluates.
    shedder.evaluate(Micros::new(200 * TICK + 3_600_000_000), &IDLE);
    assert_eq!(shedder.level_ppm(), 0);
}

#[test]
fn numbers_out_of_range_are_an_error() {
    let new = |config| LoadShedder::new(config, Micros::ZERO).map(|_| ());
    let fine = ShedderConfig::default();
    assert_eq!(new(fine), Ok(()));
    assert_eq!(new(ShedderConfig::stripe()), Ok(()));
    let thresholds = Err(ShedderConfigError::Thresholds);
    assert_eq!(new(ShedderConfig { low_ppm: 0, ..fine }), thresholds);
    assert_eq!(
        new(ShedderConfig {
            low_ppm: 900_000,
            ..fine
        }),
        thresholds
    );
    assert_eq!(
        new(ShedderConfig {
            high_ppm: WHOLE_PPM,
            ..fine
        }),
        thresholds
    );
    assert_eq!(
        new(ShedderConfig {
            up: Micros::ZERO,
            ..fine
        }),
        Err(ShedderConfigError::Ramp)
    );
    assert_eq!(
        new(ShedderConfig {
            down: Micros::ZERO,
            ..fine
        }),
        Err(ShedderConfigError::Ramp)
    );
    assert_eq!(
        new(ShedderConfig {
            floor_ppm: WHOLE_PPM + 1,
            ..fine
        }),
        Err(ShedderConfigError::Floor)
    );
}

#[test]
fn a_signal_is_three_quarters_at_ok_and_everything_at_full() {
    for (value, expected) in [
        (0, 0),
        (5, 375_000),
        (10, 750_000),
        (55, 875_000),
        (100, 1_000_000),
        (900, 1_000_000),
    ] {
        assert_eq!(signal_ppm(value, 10, 100), expected, "{value}");
    }
    for (in_flight_ppm, wait_ms, expected) in [(0, 0, 0), (1_000_000, 0, 800_000), (1_000_000, 10, 900_000)] {
        let usage = SlotUsage {
            in_flight_ppm,
            wait_min: Micros::from_millis(wait_ms),
        };
        assert_eq!(work_ppm(usage), expected);
    }
}

/// The level after five seconds of ordinary requests, as many more than their slots can serve as `percent` says.
/// Each holds its slot for 100 ms.
fn level_under_load(reserve_ppm: u64, percent: u64) -> u64 {
    let config = SlotQueueConfig {
        limit: 200,
        reserve_ppm,
        queue_max: 100,
        wait_max: Micros::from_millis(50),
    };
    let mut queue = SlotQueue::new(config, Micros::ZERO);
    let mut shedder = shedder(ShedderConfig::default());
    let mut hold_times = HoldTimes::default();
    let mut ends = std::collections::VecDeque::new();
    let (hold, arrivals) = (100, queue.ordinary_limit() * percent / 100);
    let mut arrived = 0;
    for millis in 0..5_000 {
        let now = Micros::from_millis(millis);
        while ends.front() == Some(&millis) {
            ends.pop_front();
            queue.release(now, PriorityClass::Normal);
            hold_times.record(now, Micros::from_millis(hold));
        }
        while queue.expire(now).is_some() {}
        while queue.grant(now).is_some() {
            ends.push_back(millis + hold);
        }
        while arrived < arrivals * millis / hold {
            arrived += 1;
            if shedder.is_due(now) {
                let signals = LoadSignals {
                    usage: queue.read_usage(now),
                    other_ppm: 0,
                    capacity_per_s: hold_times.capacity_per_s(now, queue.usable()),
                };
                shedder.evaluate(now, &signals);
            }
            let is_shed = shedder.sheds(now, PriorityClass::Normal, arrived, 0);
            if !is_shed && queue.enter(now, QueueEntry::default()) == SlotDecision::Allow {
                ends.push_back(millis + hold);
            }
        }
    }
    shedder.level_ppm()
}

#[test]
fn a_reserve_does_not_hide_the_overload_of_ordinary_requests() {
    for reserve_ppm in [0, 200_000, 500_000] {
        let level = level_under_load(reserve_ppm, 200);
        assert!((100_000..600_000).contains(&level), "{level} with {reserve_ppm}");
        let level = level_under_load(reserve_ppm, 120);
        assert!((50_000..250_000).contains(&level), "{level} with {reserve_ppm}");
        assert_eq!(level_under_load(reserve_ppm, 70), 0, "with {reserve_ppm}");
    }
}
