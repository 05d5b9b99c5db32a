//! The storms: who calls, how often, and against which limit.

use tollgate_core::{Limit, Micros, Rate, TokenBucket};

/// A storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StormCase {
    /// 10,000 callers at once against 1000/s.
    Storm,
    /// The same with clients that add up to a second of their own.
    StormJitter,
    /// 10,000 callers at once against 1000/s burst 100.
    Burst,
    /// The same with clients that add up to a second of their own.
    BurstJitter,
    /// 10,000 callers at once against 1000/min.
    Minute,
    /// The same with an extra wait of at most ten minutes.
    MinuteLong,
    /// The storm over four instances that share the limit.
    Instances,
    /// The same with 85 % of the callers at one of them.
    UnevenInstances,
    /// 1,000 honest callers within ten seconds, and one address with a hundred times the rate for twenty.
    OneAddress,
    /// The same, and a thousand addresses with twice the rate.
    ManyAddresses,
    /// Twice the rate for thirty seconds, and half of the callers never return.
    Quitters,
    /// One caller that polls a limit of 10/min every second.
    Poller,
}

/// The callers of a storm and their limit.
#[derive(Clone, Debug)]
pub(super) struct Population {
    pub(super) limit: Limit,
    pub(super) rate: Rate,
    pub(super) honest: Honest,
    pub(super) attack: Option<Attack>,
    /// Clients add a random time up to this one.
    pub(super) client_jitter: Micros,
    pub(super) extra_max: Micros,
    /// Of callers, in percent.
    pub(super) instance_weights: &'static [u64],
    /// Set if callers ask again after this time, whatever the header says.
    pub(super) polls_every: Option<Micros>,
    is_storm: bool,
}

/// Callers that return when the header says so.
#[derive(Clone, Copy, Debug)]
pub(super) struct Honest {
    pub(super) callers: usize,
    pub(super) within: Micros,
    pub(super) quitters_percent: u64,
}

/// Callers that do not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attack {
    pub(super) addresses: u64,
    pub(super) per_second: u64,
    pub(super) lasts: Micros,
}

impl StormCase {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Storm,
        Self::StormJitter,
        Self::Burst,
        Self::BurstJitter,
        Self::Minute,
        Self::MinuteLong,
        Self::Instances,
        Self::UnevenInstances,
        Self::OneAddress,
        Self::ManyAddresses,
        Self::Quitters,
        Self::Poller,
    ];

    /// Its name in reports and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Storm => "storm",
            Self::StormJitter => "storm+jitter",
            Self::Burst => "burst",
            Self::BurstJitter => "burst+jitter",
            Self::Minute => "minute",
            Self::MinuteLong => "minute-long",
            Self::Instances => "instances",
            Self::UnevenInstances => "uneven",
            Self::OneAddress => "one-address",
            Self::ManyAddresses => "many-addresses",
            Self::Quitters => "quitters",
            Self::Poller => "poller",
        }
    }

    /// The case of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|case| case.name() == name)
    }

    pub(super) fn population(self) -> Population {
        let second = Micros::from_secs(1);
        let storm = Population::new(1_000, second, 1_000);
        let honest = |callers, seconds| Honest {
            callers,
            within: Micros::from_secs(seconds),
            quitters_percent: 0,
        };
        let attack = |addresses, per_second| Attack {
            addresses,
            per_second,
            lasts: Micros::from_secs(20),
        };
        let per_minute = Population::new(1_000, Micros::from_secs(60), 1_000);
        match self {
            Self::Storm => storm,
            Self::StormJitter => Population {
                client_jitter: second,
                ..storm
            },
            Self::Burst => Population::new(1_000, second, 100),
            Self::BurstJitter => Population {
                client_jitter: second,
                ..Population::new(1_000, second, 100)
            },
            Self::Minute => per_minute,
            Self::MinuteLong => Population {
                extra_max: Micros::from_secs(600),
                ..per_minute
            },
            Self::Instances => Population {
                instance_weights: &[25, 25, 25, 25],
                ..storm
            },
            Self::UnevenInstances => Population {
                instance_weights: &[85, 5, 5, 5],
                ..storm
            },
            Self::OneAddress => Population {
                honest: honest(1_000, 10),
                attack: Some(attack(1, 100_000)),
                is_storm: false,
                ..storm
            },
            Self::ManyAddresses => Population {
                honest: honest(1_000, 10),
                attack: Some(attack(1_000, 2_000)),
                is_storm: false,
                ..storm
            },
            Self::Quitters => Population {
                honest: Honest {
                    quitters_percent: 50,
                    ..honest(60_000, 30)
                },
                is_storm: false,
                ..storm
            },
            Self::Poller => Population {
                honest: honest(1, 0),
                polls_every: Some(second),
                is_storm: false,
                ..Population::new(10, Micros::from_secs(60), 10)
            },
        }
    }
}

impl Population {
    /// 10,000 callers at once, on one instance.
    fn new(units: u64, period: Micros, burst: u64) -> Self {
        let rate = Rate::new(units, period).expect("a rate in range");
        let bucket = TokenBucket::new(rate).with_burst(burst).expect("a burst in range");
        Self {
            limit: bucket.into(),
            rate,
            honest: Honest {
                callers: 10_000,
                within: Micros::from_millis(50),
                quitters_percent: 0,
            },
            attack: None,
            client_jitter: Micros::ZERO,
            extra_max: Micros::from_secs(60),
            instance_weights: &[100],
            polls_every: None,
            is_storm: true,
        }
    }

    /// The requests of a storm if each caller were denied once at most.
    pub(super) fn ideal_requests(&self) -> Option<u64> {
        let callers = self.honest.callers as u64;
        let denied = callers.saturating_sub(self.limit.capacity());
        self.is_storm.then_some(callers + denied)
    }
}
