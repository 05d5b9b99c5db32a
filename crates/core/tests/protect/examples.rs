//! Runs the worked examples next to the controllers.

use tollgate_core::Micros;
use tollgate_core::protect::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveLimit, LoadShedder, LoadSignals, PriorityClass, QueueEntry,
    QueuePosition, ResponseOutcome, ResponseSample, RetryDenial, RetrySpread, ShedderConfig, SlotDecision, SlotQueue,
    SlotQueueConfig, SlotUsage, WHOLE_PPM, WaiterId,
};

/// A line of a file: its number and its words without a comment.
struct Line<'a> {
    number: usize,
    words: Vec<&'a str>,
}

/// Runs a file: `start` makes the subject of a case from its numbers, `step` compares one line.
pub(crate) fn check<S>(
    text: &str,
    cases_min: usize,
    start: impl Fn(&[&str]) -> S,
    step: impl Fn(&mut S, &[&str]) -> (String, String),
) {
    let mut subject = None;
    let mut failures = Vec::new();
    let mut cases = 0;
    for line in lines(text) {
        if let ["case", numbers @ ..] = &*line.words {
            subject = Some(start(numbers));
            continue;
        }
        let subject = subject.as_mut().expect("a case comes first");
        let (expected, got) = step(subject, &line.words);
        cases += 1;
        if expected != got {
            failures.push(format!("line {}: expected {expected}, got {got}", line.number));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    assert!(cases >= cases_min, "{cases} cases, should have {cases_min}");
}

fn lines(text: &str) -> Vec<Line<'_>> {
    let words = |line: &'_ str| -> usize { line.find('#').unwrap_or(line.len()) };
    (1..)
        .zip(text.lines())
        .map(|(number, line)| Line {
            number,
            words: line[..words(line)].split_whitespace().collect(),
        })
        .filter(|line| !line.words.is_empty())
        .collect()
}

pub(crate) fn time(text: &str) -> Micros {
    let unit_at = text.find(|c: char| c.is_alphabetic()).expect("a unit");
    let number: u64 = text[..unit_at].parse().expect("a whole number");
    match &text[unit_at..] {
        "us" => Micros::new(number),
        "ms" => Micros::from_millis(number),
        "s" => Micros::from_secs(number),
        unit => panic!("unknown unit {unit}"),
    }
}

/// `51%` or `0.3333%` in ppm.
fn share(text: &str) -> u64 {
    let number = text.strip_suffix('%').expect("a share");
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    format!("{whole}{part:0<4}").parse().expect("at most four decimals")
}

fn percent(ppm: u64) -> String {
    let text = format!("{}.{:04}", ppm / 10_000, ppm % 10_000);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

fn class(text: &str) -> PriorityClass {
    PriorityClass::from_name(text).expect("a class")
}

#[test]
fn retry_spread_obeys_its_examples() {
    let text = include_str!("../../src/protect/retry_spread.txt");
    let start = |words: &[&str]| (RetrySpread::default(), time(words[1]));
    check(text, 29, start, |(spread, extra_max), words| {
        let [at, caller, wait, interval, expected] = words else {
            panic!("five columns: {words:?}")
        };
        let denial = RetryDenial {
            counter: 7,
            caller: u64::from(caller.as_bytes()[0]),
            wait: time(wait),
            interval: time(interval),
            extra_max: *extra_max,
            draw: 1 << 31,
        };
        let extra = spread.extra(time(at), &denial);
        (time(expected).to_string(), extra.to_string())
    });
}

#[test]
fn shedder_obeys_its_examples() {
    let text = include_str!("../../src/protect/shedder.txt");
    let start = |words: &[&str]| {
        let config = match words[0] {
            "default" => ShedderConfig::default(),
            "stripe" => ShedderConfig::stripe(),
            other => panic!("unknown numbers {other}"),
        };
        let start = Micros::from_secs(1);
        (LoadShedder::new(config, start).expect("in range"), start)
    };
    check(text, 14, start, |(shedder, now), words| {
        let [evaluations, arrivals, in_flight, wait, other, capacity, expected] = words else {
            panic!("seven columns: {words:?}")
        };
        let arrivals: u64 = arrivals.parse().expect("arrivals");
        for _ in 0..evaluations.parse().expect("a number") {
            for index in 0..arrivals / 10 {
                let at = Micros::new(now.get() + index * 1_000_000 / arrivals);
                shedder.sheds(at, PriorityClass::Normal, index, 0);
            }
            *now = Micros::new(now.get() + LoadShedder::TICK.get());
            assert!(shedder.is_due(*now));
            let usage = SlotUsage {
                in_flight_ppm: share(in_flight),
                wait_min: time(wait),
            };
            let signals = LoadSignals {
                usage,
                other_ppm: share(other),
                capacity_per_s: capacity.parse().ok(),
            };
            shedder.evaluate(*now, &signals);
        }
        (percent(share(expected)), percent(shedder.level_ppm()))
    });
}

#[test]
fn slot_queue_obeys_its_examples() {
    let text = include_str!("../../src/protect/slot_queue.txt");
    let start = |words: &[&str]| {
        let config = SlotQueueConfig {
            limit: words[1].parse().expect("slots"),
            reserve_ppm: share(words[3]),
            queue_max: words[5].parse().expect("a queue"),
            wait_max: time(words[7]),
        };
        // Its waiters by number.
        (SlotQueue::new(config, Micros::ZERO), Vec::new())
    };
    check(text, 40, start, |(queue, waiters), words| {
        let now = Micros::from_millis(words[0].parse().expect("milliseconds"));
        let action = words[1];
        let has_argument = action != "expire";
        let expected = words[if has_argument { 3 } else { 2 }..].join(" ");
        let argument = if has_argument { words[2] } else { "" };
        let number = |waiters: &[WaiterId], id: WaiterId| waiters.iter().position(|known| *known == id).expect("known");
        let got = match action {
            "enter" | "return" => {
                let position = if action == "enter" {
                    QueuePosition::Back
                } else {
                    QueuePosition::Front
                };
                let entry = QueueEntry {
                    class: class(argument),
                    position,
                };
                match queue.enter(now, entry) {
                    SlotDecision::Allow => "allow".to_owned(),
                    SlotDecision::Deny => "deny".to_owned(),
                    SlotDecision::Wait { waiter, displaced } => {
                        waiters.push(waiter);
                        let displaced = displaced.map(|id| format!(" displaces {}", number(waiters, id)));
                        format!("wait {}{}", number(waiters, waiter), displaced.unwrap_or_default())
                    }
                }
            }
            "leave" => {
                let id = waiters[argument.parse::<usize>().expect("a number")];
                if queue.leave(now, id) {
                    "left".to_owned()
                } else {
                    "-".to_owned()
                }
            }
            "expire" => {
                let expired: Vec<String> = std::iter::from_fn(|| queue.expire(now))
                    .map(|id| number(waiters, id).to_string())
                    .collect();
                if expired.is_empty() {
                    "-".to_owned()
                } else {
                    expired.join(" ")
                }
            }
            "release" | "limit" => {
                match action {
                    "release" => queue.release(now, class(argument)),
                    _ => queue.set_limit(now, argument.parse().expect("slots")),
                }
                let granted: Vec<String> = std::iter::from_fn(|| queue.grant(now))
                    .map(|grant| number(waiters, grant.waiter).to_string())
                    .collect();
                if granted.is_empty() {
                    "-".to_owned()
                } else {
                    format!("grant {}", granted.join(" "))
                }
            }
            other => panic!("unknown action {other}"),
        };
        (expected, got)
    });
}

#[test]
fn adaptive_limit_obeys_its_examples() {
    let text = include_str!("../../src/protect/adaptive_limit.txt");
    let start = |words: &[&str]| {
        let algorithm = match words[0] {
            "gradient" => AdaptiveAlgorithm::Gradient,
            "aimd" => AdaptiveAlgorithm::Aimd,
            other => panic!("unknown algorithm {other}"),
        };
        let (min, max) = words[1].split_once("..").expect("a range");
        let [min, max, start] = [min, max, words[3]].map(|number| number.parse().expect("a number"));
        let config = AdaptiveConfig { algorithm, min, max };
        (AdaptiveLimit::new(config, start, Micros::ZERO), Micros::ZERO)
    };
    check(text, 19, start, |(limit, now), words| {
        let [windows, responses, latency, in_flight, failed, expected] = words else {
            panic!("six columns: {words:?}")
        };
        let [windows, responses, in_flight, failed] =
            [windows, responses, in_flight, failed].map(|number| number.parse::<u64>().expect("a number"));
        for _ in 0..windows {
            let end = Micros::new(now.get() + 250_000);
            for index in 0..responses {
                let outcome = if index < failed {
                    ResponseOutcome::Failed
                } else {
                    ResponseOutcome::Answered
                };
                let at = if index + 1 == responses { end } else { *now };
                let sample = ResponseSample {
                    route: 1,
                    latency: time(latency),
                    outcome,
                    in_flight,
                };
                limit.record(at, &sample);
            }
            *now = end;
        }
        (expected.to_string(), limit.limit().to_string())
    });
}

#[test]
fn shares_are_read_and_written_alike() {
    for text in ["0%", "1%", "51%", "49.7333%", "100%"] {
        assert_eq!(percent(share(text)), text);
    }
    assert_eq!(share("100%"), WHOLE_PPM);
}
