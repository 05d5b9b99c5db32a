//! The worked examples beside each algorithm, played; the reader that plays them; and the page that quotes them.

use tollgate_core::testing::vectors::{Action, START, check, parse};
use tollgate_core::{Cell, Concurrency, Cost, FixedWindow, Limit, LimitError, Micros, Rate, SlidingLog, TokenBucket};

/// Each algorithm's file, and how many cases it has at least, so that none can be emptied unseen.
const FILES: [(&str, &str, usize); 8] = [
    ("token_bucket", include_str!("../src/algorithm/token_bucket.txt"), 110),
    ("gcra", include_str!("../src/algorithm/gcra.txt"), 80),
    ("fixed_window", include_str!("../src/algorithm/fixed_window.txt"), 70),
    (
        "sliding_counter",
        include_str!("../src/algorithm/sliding_counter.txt"),
        80,
    ),
    ("sliding_log", include_str!("../src/algorithm/sliding_log.txt"), 105),
    ("leaky_bucket", include_str!("../src/algorithm/leaky_bucket.txt"), 65),
    ("concurrency", include_str!("../src/algorithm/concurrency.txt"), 100),
    ("cell", include_str!("../src/algorithm/cell.txt"), 75),
];

const PAGE: &str = include_str!("../../../docs/algorithms.md");

#[test]
fn every_algorithm_obeys_its_worked_examples() {
    let mut failures = Vec::new();
    for (name, text, least) in FILES {
        match check(text) {
            Ok(cases) => {
                println!("{name}.txt: {cases} cases");
                if cases < least {
                    failures.push(format!("{name}.txt: has {cases} cases, should have {least}"));
                }
            }
            Err(differences) => failures.push(format!("{name}.txt:\n{differences}")),
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn every_algorithm_has_a_file_and_every_file_speaks_of_its_own_algorithm() {
    assert_eq!(FILES.map(|(name, ..)| name), Limit::ALGORITHMS);
    for (name, text, _) in FILES {
        for scenario in parse(text).expect("a file that can be read") {
            assert_eq!(scenario.limit.algorithm(), name, "line {}", scenario.line);
            assert!(
                !scenario.title.is_empty(),
                "{name}.txt: line {}: no comment",
                scenario.line
            );
        }
    }
}

#[test]
fn a_wrong_expectation_is_reported_with_its_line_and_what_came_instead() {
    // Each line is right but for one word; that word must be found.
    let right = "limit gcra 10/s burst 3\n0s 2 allow 1 - 200ms\n0s 2 deny 1 100ms 200ms\n0s refund 1 done\n";
    assert_eq!(check(right), Ok(3));
    for (from, to, line, expected, got) in [
        ("allow 1 -", "allow 2 -", 2, "remaining 2", "remaining 1"),
        ("- 200ms", "- 100ms", 2, "reset 100ms", "reset 200ms"),
        ("- 200ms", "- 200ms 1us", 2, "delay 1us", "delay 0us"),
        ("burst 3", "burst 4", 2, "remaining 1", "remaining 2"),
        ("deny 1 100ms", "deny 1 101ms", 3, "retry 101ms", "retry 100ms"),
        ("deny 1 100ms", "deny 1 never", 3, "retry never", "retry 100ms"),
        ("deny 1 100ms", "allow 1 -", 3, "allow", "deny"),
        ("done", "nothing", 4, "nothing", "done"),
    ] {
        let differences = check(&right.replace(from, to)).expect_err("a wrong expectation");
        let found = differences
            .lines()
            .find(|report| report.starts_with(&format!("line {line} ")))
            .unwrap_or_else(|| panic!("`{to}` is not reported in line {line}: {differences}"));
        let (expected_part, got_part) = found.split_once(", got ").expect("says what came");
        assert!(expected_part.contains(expected), "{found}");
        assert!(got_part.contains(got), "{found}");
    }
}

#[test]
fn every_difference_is_reported_not_only_the_first() {
    let differences = check("# Both wrong.\nlimit fixed_window 3/s\n0s 1 allow 3 - 1s\n0s 1 x2 allow 1 - 1s\n");
    assert_eq!(
        differences.expect_err("two wrong lines"),
        "line 3 (Both wrong.): expected allow (limit 3, remaining 3, reset 1s, delay 0us), \
         got allow (limit 3, remaining 2, reset 1s, delay 0us)\n\
         line 4 (Both wrong.): time 2 of 2: expected allow (limit 3, remaining 1, reset 1s, delay 0us), \
         got allow (limit 3, remaining 0, reset 1s, delay 0us)"
    );
}

#[test]
fn a_wrong_integer_of_a_reply_is_reported() {
    let right = "limit cell 0 1 2\n0s 1 0 1 0 -1 2\n0s 1 1 1 0 2 2\n";
    assert_eq!(check(right), Ok(2));
    assert_eq!(
        check(&right.replace("1 1 1 0 2 2", "1 1 1 0 2 3")).expect_err("a wrong reset"),
        "line 3 (): expected 1 1 0 2 3, got 1 1 0 2 2"
    );
}

#[test]
fn what_cannot_be_read_is_refused_with_its_line_and_a_reason() {
    for (text, expected) in [
        ("0s 1 allow 2 - 1s", "line 1: a `limit` has to come first"),
        ("limit", "line 1: which algorithm?"),
        ("limit gcra", "line 1: which numbers has this `gcra`?"),
        ("limit gcra 10", "line 1: a rate is written `10/s` or `3/366day`"),
        ("limit gcra 10/s depth 3", "line 1: `gcra 10/s depth 3` is no limit"),
        (
            "limit gcra 0/s",
            "line 1: a limit of 0 allows nothing: give 1 to 999999999999999 units (or ban the caller)",
        ),
        (
            "limit gcra 10/s\nlimit gcra 10/s",
            "line 2: a limit begins a scenario: leave a blank line before it, or write `edit`",
        ),
        (
            "limit gcra 10/s\n0s edit token_bucket 10/s",
            "line 2: another algorithm, or another period of a window, is another counter",
        ),
        (
            "limit fixed_window 10/s\n0s edit fixed_window 10/min",
            "line 2: another algorithm, or another period of a window, is another counter",
        ),
        (
            "limit gcra 10/s\n\n# A comment.\n0.5us 1 allow 9 - 100ms",
            "line 4: `0.5us` is not a whole number of microseconds",
        ),
        (
            "limit gcra 10/s\n5 1 allow 9 - 100ms",
            "line 2: `5` is not a time such as 5s, 99.999ms or 2min",
        ),
        ("limit gcra 10/s\n0s", "line 2: nothing happens in this line"),
        (
            "limit gcra 10/s\n0s one allow 9 - 100ms",
            "line 2: `one` is not a number",
        ),
        (
            "limit gcra 10/s\n0s 1 x0 allow 9 - 100ms",
            "line 2: `x0` would check nothing",
        ),
        (
            "limit gcra 10/s\n0s 1 x2 allow 9 - 100ms as a",
            "line 2: a line that repeats cannot be named",
        ),
        (
            "limit gcra 10/s\n0s 11 deny 10 never 0s as a",
            "line 2: only a charge that passes can be named",
        ),
        (
            "limit gcra 10/s\n0s undo a done",
            "line 2: no charge above is named `a`",
        ),
        (
            "limit gcra 10/s\n0s 1 allow 9 - 100ms as a\n0s release a done",
            "line 3: only a concurrency limit has leases",
        ),
        (
            "limit gcra 10/s\n0s refund 1 maybe",
            "line 2: `maybe` is neither `done` nor `nothing`",
        ),
        (
            "limit gcra 10/s\n0s refund 1",
            "line 2: say what is done and whether it is: `refund 2 done`, `undo a nothing`",
        ),
        (
            "limit gcra 10/s\n0s 1 0 10 9 -1 1",
            "line 2: expected `allow <remaining> - <reset> [<delay>]` or `deny <remaining> <retry> <reset>`",
        ),
        (
            "limit gcra 10/s\n0s 1000000000000000 deny 10 never 0s",
            "line 2: a cost of 1000000000000000 is more than one request may take: at most 999999999999999",
        ),
    ] {
        assert_eq!(parse(text).expect_err(text), expected);
    }
}

#[test]
fn times_count_from_the_start_or_from_the_line_above() {
    let text = "limit gcra 10/s\n1.5s 1 * \n".replace("1 * ", "0 allow * - *")
        + "+1ms 0 x3 allow * - *\n+1ms 0 allow * - *\n-2min 0 allow * - *\n99.999ms 0 allow * - *\n1us 0 allow * - *\n";
    let scenarios = parse(&text).expect("readable");
    let offsets: Vec<i128> = scenarios[0]
        .steps
        .iter()
        .map(|step| i128::from(step.at.as_micros()) - i128::from(START.as_micros()))
        .collect();
    assert_eq!(offsets, [1_500_000, 1_501_000, 1_504_000, -120_000_000, 99_999, 1]);
    assert_eq!(scenarios[0].steps[1].repeat, 3);
    assert_eq!(scenarios[0].steps[1].interval, Micros::from_millis(1));
    assert!(matches!(
        scenarios[0].steps[0].action,
        Action::Decide { cost: Cost::ZERO, .. }
    ));
}

#[test]
fn all_times_count_from_a_seam_of_every_usual_window() {
    for seconds in [1, 10, 60, 420, 3_600, 86_400, 7 * 86_400, 366 * 86_400] {
        assert!(START.as_micros().is_multiple_of(seconds * 1_000_000), "{seconds} s");
    }
}

#[test]
fn the_page_on_algorithms_quotes_only_lines_that_are_played() {
    let mut quoted = 0;
    let mut lines = PAGE.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("```text ") else {
            continue;
        };
        let (_, text, _) = FILES
            .iter()
            .find(|(file, ..)| name == format!("{file}.txt"))
            .unwrap_or_else(|| panic!("no such file: {name}"));
        for line in lines.by_ref().take_while(|line| *line != "```") {
            assert!(text.lines().any(|played| played == line), "not in {name}: {line}");
            quoted += 1;
        }
    }
    assert!(quoted >= 20, "{quoted} lines quoted");
}

#[test]
fn the_page_on_algorithms_gives_each_refusal_in_its_own_words() {
    let second = Micros::from_secs(1);
    let rate = |units, period| Rate::new(units, period);
    let error_text = |made: Result<Limit, LimitError>| made.expect_err("out of range").to_string();
    let bucket = |rate: Result<Rate, LimitError>, burst| rate.and_then(|rate| TokenBucket::new(rate).with_burst(burst));
    let year = Micros::from_secs(366 * 86_400);
    let log = |rate: Result<Rate, LimitError>| rate.and_then(SlidingLog::new);
    for text in [
        error_text(rate(0, second).map(FixedWindow::new).map(Limit::from)),
        error_text(log(rate(1_000_001, second)).map(Limit::from)),
        error_text(rate(1, Micros::new(999)).map(FixedWindow::new).map(Limit::from)),
        error_text(bucket(rate(1, second), 0).map(Limit::from)),
        error_text(bucket(rate(1, year), 143).map(Limit::from)),
        error_text(
            log(rate(1, second))
                .and_then(|log| log.with_min_interval(Micros::from_secs(2)))
                .map(Limit::from),
        ),
        error_text(Concurrency::new(1, Micros::ZERO).map(Limit::from)),
        error_text(Cell::new(0, 0, 1).map(Limit::from)),
        error_text(
            rate(1_000_000_000_001, Micros::from_millis(1))
                .map(FixedWindow::new)
                .map(Limit::from),
        ),
        Cost::new(1_000_000_000_000_000).expect_err("too large").to_string(),
    ] {
        assert!(PAGE.contains(&text), "not on the page: {text}");
    }
}
