//! `CL.THROTTLE` with numbers of any size, against redis-cell's arithmetic in integers of any size.

use std::cmp::Ordering;
use std::time::Instant;
use tollgate_test_kit::resp::{Client, RespServer};

/// The numbers of the calls, in every position.
const NUMBERS: [i64; 6] = [0, 1, 9, 1 << 31, 1_000_000_000_000, i64::MAX];

/// Calls of the grid: every combination, on a fresh, a half-used and an exhausted key.
const CALLS: usize = 3 * NUMBERS.len().pow(4);

/// A natural number in digits below 10^9, the lowest first. Of nanoseconds, all digits but the first are seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Natural(Vec<u64>);

const BASE: u64 = 1_000_000_000;

impl Natural {
    fn new(mut number: u128) -> Self {
        let mut digits = Vec::new();
        while number > 0 {
            digits.push((number % u128::from(BASE)) as u64);
            number /= u128::from(BASE);
        }
        Self(digits)
    }

    fn digit(&self, index: usize) -> u64 {
        self.0.get(index).copied().unwrap_or(0)
    }

    fn normal(mut digits: Vec<u64>) -> Self {
        while digits.last() == Some(&0) {
            digits.pop();
        }
        Self(digits)
    }

    fn plus(&self, other: &Self) -> Self {
        let mut carry = 0;
        let digits = (0..=self.0.len().max(other.0.len())).map(|index| {
            let sum = self.digit(index) + other.digit(index) + carry;
            carry = sum / BASE;
            sum % BASE
        });
        Self::normal(digits.collect())
    }

    /// The difference to a number that is not larger.
    fn minus(&self, other: &Self) -> Self {
        let mut borrow = 0;
        let digits = (0..self.0.len()).map(|index| {
            let less = other.digit(index) + borrow;
            borrow = u64::from(self.digit(index) < less);
            self.digit(index) + borrow * BASE - less
        });
        Self::normal(digits.collect())
    }

    fn times(&self, other: &Self) -> Self {
        let mut sum = Self(Vec::new());
        for (index, digit) in self.0.iter().enumerate() {
            let mut product = vec![0; index];
            let mut carry = 0;
            for factor in other.0.iter().chain([&0, &0]) {
                let next = u128::from(*digit) * u128::from(*factor) + carry;
                product.push((next % u128::from(BASE)) as u64);
                carry = next / u128::from(BASE);
            }
            sum = sum.plus(&Self::normal(product));
        }
        sum
    }

    /// The largest 64-bit number whose product with `divisor` is not larger.
    fn over(&self, divisor: &Self) -> u64 {
        (0..64).rev().fold(0, |quotient, bit| {
            let more = quotient | 1 << bit;
            if divisor.times(&Self::new(more.into())) <= *self {
                more
            } else {
                quotient
            }
        })
    }

    /// In the seconds of a reply.
    fn seconds(&self) -> i64 {
        let whole = self.0.iter().skip(1).rev().try_fold(0_i64, |sum, digit| {
            sum.checked_mul(BASE as i64)?.checked_add(*digit as i64)
        });
        let extra = i64::from(self.digit(0) >= 1_000_000);
        whole.map_or(i64::MAX, |whole| whole.saturating_add(extra))
    }
}

impl Ord for Natural {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0
            .len()
            .cmp(&other.0.len())
            .then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

impl PartialOrd for Natural {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A key as redis-cell has it: the theoretical arrival time, in nanoseconds since the first call.
struct Model {
    tat: Natural,
}

type ThrottleReply = Result<[i64; 5], String>;

impl Model {
    fn new() -> Self {
        Self { tat: Natural::new(0) }
    }

    fn call(&mut self, [burst, count, period, quantity]: [i64; 4], now_ns: u128) -> ThrottleReply {
        let zero = || "-Cell error: Store error: Zero rates are not supported".to_owned();
        let nanos = (period as u128 * u128::from(BASE)).checked_div(count as u128);
        let interval = nanos.filter(|nanos| *nanos > 0).map(Natural::new).ok_or_else(zero)?;
        let limit = burst as u128 + 1;
        let now = Natural::new(now_ns);
        let tolerance = interval.times(&Natural::new(limit));
        let start = self.tat.clone().max(now.clone());
        let increment = interval.times(&Natural::new(quantity as u128));
        let new = start.plus(&increment);
        let ceiling = now.plus(&tolerance);
        let limited = new > ceiling;
        let ttl = if limited { &start } else { &new }.minus(&now);
        let retry = if limited && increment <= tolerance {
            new.minus(&ceiling).seconds()
        } else {
            -1
        };
        if !limited && quantity > 0 {
            self.tat = new;
        }
        let integer = |number: u128| i64::try_from(number).unwrap_or(i64::MAX);
        let remaining = tolerance.minus(&ttl).over(&interval);
        Ok([
            limited.into(),
            integer(limit),
            integer(remaining.into()),
            retry,
            ttl.seconds(),
        ])
    }
}

fn call(client: &mut Client, key: &str, arguments: [i64; 4]) -> ThrottleReply {
    let arguments = arguments.map(|number| number.to_string()).join(" ");
    client.send(format!("CL.THROTTLE {key} {arguments}\r\n"));
    let head = client.line();
    if head != "*5" {
        return Err(head);
    }
    let integer = |line: String| line.strip_prefix(':').and_then(|number| number.parse().ok());
    Ok([(); 5].map(|()| integer(client.line()).unwrap()))
}

/// True if each integer is between those of the same call at the first and at the last moment it can have been decided.
fn is_between(reply: &ThrottleReply, first: &ThrottleReply, last: &ThrottleReply) -> bool {
    match (reply, first, last) {
        (Ok(reply), Ok(first), Ok(last)) => reply.iter().zip(first.iter().zip(last)).all(|(number, (first, last))| {
            let (low, high) = (first.min(last), first.max(last));
            low <= number && number <= high
        }),
        _ => reply == first && reply == last,
    }
}

/// Makes all calls, each on a key of its own, and returns their number. `is_still` says that the server's clock is.
#[expect(
    clippy::disallowed_methods,
    reason = "the clock of a shared store moves, and this bounds by how much"
)]
fn compare(server: &RespServer, is_still: bool) -> usize {
    let mut client = server.connect();
    let mut calls = 0;
    for index in 0..NUMBERS.len().pow(4) {
        let number = |position: u32| {
            let digit = index / NUMBERS.len().pow(position) % NUMBERS.len();
            NUMBERS.get(digit).copied().unwrap()
        };
        let [burst, count, period, quantity] = [3, 2, 1, 0].map(number);
        let limit = burst as u128 + 1;
        for used in [0, limit / 2, limit] {
            let (key, started) = (format!("grid-{calls}"), Instant::now());
            let [mut first, mut last] = [Model::new(), Model::new()];
            let mut expect = |quantity, client: &mut Client, is_first: bool| {
                let arguments = [burst, count, period, quantity];
                let reply = call(client, &key, arguments);
                // Between no time and all of it may have passed since the first call.
                let is_still = is_still || is_first;
                let elapsed = if is_still { 0 } else { started.elapsed().as_nanos() };
                let (first, last) = (first.call(arguments, 0), last.call(arguments, elapsed));
                let agrees = is_between(&reply, &first, &last);
                assert!(agrees, "{arguments:?} on {key}: {reply:?}, not {first:?} to {last:?}");
            };
            if used > 0 {
                expect(i64::try_from(used).unwrap_or(i64::MAX), &mut client, true);
            }
            expect(quantity, &mut client, used == 0);
            calls += 1;
        }
    }
    calls
}

#[test]
fn numbers_of_any_size_are_answered_exactly() {
    assert_eq!(compare(&RespServer::start(), true), CALLS);
}

#[test]
fn numbers_of_any_size_are_answered_exactly_over_a_shared_store() {
    assert_eq!(compare(&RespServer::start_shared(""), false), CALLS);
}

#[test]
fn a_byte_quota_of_ten_gigabytes_a_day_can_be_used_up() {
    for server in RespServer::both("") {
        let mut client = server.connect();
        let mut take = |quantity: i64| {
            let reply = call(&mut client, "bytes", [9_999_999_999, 10_000_000_000, 86_400, quantity]);
            let [limited, limit, remaining, ..] = reply.expect("a valid call");
            (limited, limit, remaining)
        };
        assert_eq!(take(900_000_000), (0, 10_000_000_000, 9_100_000_000));
        // Under a hundred thousand a second come back.
        let (limited, _, remaining) = take(9_000_000_000);
        assert_eq!(limited, 0);
        assert!((100_000_000..101_000_000).contains(&remaining), "{remaining}");
        assert_eq!(take(1_000_000_000).0, 1);
    }
}

#[test]
fn other_numbers_on_a_live_key_keep_the_moment_however_far_it_is() {
    for server in RespServer::both("") {
        let mut client = server.connect();
        let mut take = |arguments| call(&mut client, "k", arguments).expect("a valid call");
        let century = 3_155_760_000;
        assert_eq!(take([999, 1, century, 1_000]), [0, 1_000, 0, -1, 1_000 * century]);
        // A small limit on a key that is busy for a hundred thousand years.
        let [limited, limit, remaining, retry, reset] = take([0, 1, 1, 1]);
        assert_eq!((limited, limit, remaining), (1, 1, 0));
        assert!((1_000 * century - 100..=1_000 * century).contains(&retry), "{retry}");
        assert!((1_000 * century - 100..=1_000 * century).contains(&reset), "{reset}");
        // Given back, and under the small limit again.
        assert_eq!(take([999, 1, century, -400])[2], 400);
        assert_eq!(take([999, 1, century, i64::MIN]), [0, 1_000, 1_000, -1, 0]);
        assert_eq!(take([0, 1, 1, 1]), [0, 1, 0, -1, 1]);
    }
}
