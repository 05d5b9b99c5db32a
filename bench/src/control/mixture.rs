//! CP2: publishes that flip two rules at once, under checks whose answers show both limits.

use super::Context;
use super::client::{Connection, Response};
use super::fleet::{Fleet, Way};
use super::report::Report;
use serde_json::json;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The answers of one client.
#[derive(Default)]
struct Answers {
    count: u64,
    errors: u64,
    mixed: u64,
    /// The first answer of each kind that must not be.
    example: Option<String>,
    /// The versions that were seen, by their limits.
    versions: HashSet<u64>,
}

const INSTANCES: usize = 2;
const CLIENTS: usize = 4;
const CHECKS_PER_SECOND: u64 = 2_000;
/// The limits of versions begin here: no check is denied.
const LIMIT: u64 = 10_000_000;

pub(super) fn measure(context: &Context, report: &mut Report) -> Result<(), String> {
    let publishes = context.pick(1_000, 20);
    let fleet = Fleet::start(&context.tollgate, Way::Messages, INSTANCES, &rules(LIMIT))?;
    let mut admin = fleet.admin()?;
    let is_over = AtomicBool::new(false);
    let addresses: Vec<SocketAddr> = fleet.instances.iter().map(|instance| instance.http).collect();
    eprintln!("{publishes} publishes under {CHECKS_PER_SECOND} checks a second");
    let started = Instant::now();
    let (published, answers) = std::thread::scope(|scope| {
        let clients = addresses.iter().copied().cycle().take(CLIENTS);
        let until = &is_over;
        let clients: Vec<_> = clients
            .map(|address| scope.spawn(move || check_until(address, until)))
            .collect();
        let published = (1..=publishes).try_for_each(|version| admin.publish(&rules(LIMIT + version), "").map(drop));
        is_over.store(true, Ordering::Relaxed);
        let answers: Vec<Result<Answers, String>> = clients
            .into_iter()
            .map(|client| client.join().unwrap_or_else(|_| Err("a client panicked".to_owned())))
            .collect();
        (published, answers)
    });
    published?;
    let seconds = started.elapsed().as_secs_f64();
    let mut all = Answers::default();
    for answers in answers {
        all.add(answers?);
    }
    if let Some(example) = &all.example {
        eprintln!("{example}");
    }
    let measured = format!(
        "{publishes} publishes of two rules, {} checks at {INSTANCES} instances: errors",
        all.count
    );
    report.bounded("CP2", &measured, all.errors, "0", all.errors == 0);
    let measured = "answers with one old and one new limit";
    report.bounded("CP2", measured, all.mixed, "0", all.mixed == 0);
    report.note("CP2", "checks per second", format!("{:.0}", all.count as f64 / seconds));
    report.note(
        "CP2",
        "publishes per second",
        format!("{:.1}", publishes as f64 / seconds),
    );
    report.note("CP2", "versions that answers showed", all.versions.len());
    Ok(())
}

/// Two rules that every check meets, with one limit.
fn rules(limit: u64) -> String {
    let rule = |id| format!("- {{ id: {id}, when: {{ kind: flip }}, limit: {limit}/min }}\n");
    format!("rules:\n{}{}", rule("one"), rule("two"))
}

/// Checks at a fixed rate.
fn check_until(address: SocketAddr, is_over: &AtomicBool) -> Result<Answers, String> {
    let mut connection = Connection::open(address)?;
    let attributes = json!({ "kind": "flip" });
    let interval = Duration::from_micros(1_000_000 * CLIENTS as u64 / CHECKS_PER_SECOND);
    let mut answers = Answers::default();
    let mut next = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        // A client that is late sends more until it has the rate again.
        next += interval;
        answers.record(&connection.check(&attributes)?);
    }
    Ok(answers)
}

impl Answers {
    fn record(&mut self, response: &Response) {
        self.count += 1;
        let limits = ["one", "two"].map(|rule| response.limit_of(rule));
        match (response.status, limits) {
            (200, [Some(one), Some(two)]) if one == two => {
                self.versions.insert(one);
                return;
            }
            (200, [Some(_), Some(_)]) => self.mixed += 1,
            _ => self.errors += 1,
        }
        let text = || format!("{}: {}", response.status, response.body);
        self.example.get_or_insert_with(text);
    }

    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.errors += other.errors;
        self.mixed += other.mixed;
        self.example = self.example.take().or(other.example);
        self.versions.extend(other.versions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_with_two_versions_or_without_a_limit_is_noticed() {
        let response = |status, one: u64, two: u64| Response {
            status,
            body: json!({ "limits": [{ "rule": "one", "limit": one }, { "rule": "two", "limit": two }] }),
        };
        let mut answers = Answers::default();
        answers.record(&response(200, 5, 5));
        assert_eq!((answers.errors, answers.mixed, answers.versions.len()), (0, 0, 1));
        answers.record(&response(200, 5, 6));
        answers.record(&response(503, 5, 5));
        let body = json!({ "limits": [{ "rule": "one", "limit": 5 }] });
        answers.record(&Response { status: 200, body });
        assert_eq!((answers.count, answers.errors, answers.mixed), (4, 2, 1));
    }
}
