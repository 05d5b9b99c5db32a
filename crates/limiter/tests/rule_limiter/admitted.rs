//! What a limit admits in a minute, as docs/rules.md says.

use super::{attempt, limiter};
use tollgate_limiter::core::Micros;

const PAGE: &str = include_str!("../../../../docs/rules.md");

/// The most that pass within any 60 seconds of three minutes, if a caller tries ten times a second until it is denied.
fn most_in_a_minute(rule: &str) -> usize {
    let (limiter, clock) = limiter(&format!("rules: [{{ id: r, {rule} }}]\n"));
    // Just before a boundary of fixed windows, after an idle time.
    clock.advance(Micros::from_millis(59_400));
    let mut passed = Vec::new();
    for tick in 0..1_800_u64 {
        while limiter.check_now(&attempt(&[], 1)).verdict.allowed {
            passed.push(tick);
        }
        clock.advance(Micros::from_millis(100));
    }
    let within = |start: &u64| {
        let minute = *start..*start + 600;
        passed.iter().filter(|tick| minute.contains(tick)).count()
    };
    passed.iter().map(within).max().unwrap_or(0)
}

#[test]
fn a_limit_admits_in_a_minute_what_the_page_says() {
    let (_, table) = PAGE
        .split_once("| rule | most in any 60 seconds |\n|---|---|\n")
        .expect("the page has the table");
    let mut rows = 0;
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').collect();
        let (rule, most) = (cells[1], cells[2].trim().trim_start_matches('*'));
        let keys: Vec<&str> = rule.split('`').skip(1).step_by(2).collect();
        let digits: String = most.chars().take_while(char::is_ascii_digit).collect();
        assert_eq!(most_in_a_minute(&keys.join(", ")).to_string(), digits, "{row}");
        rows += 1;
    }
    assert!(rows >= 5, "{rows} rows");
}
