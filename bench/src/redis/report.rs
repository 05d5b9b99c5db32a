//! The report with its goals, as tables and as JSON.

use super::memory::{Bytes, GCRA, INTEGER, LOG, TOKEN_BUCKET};
use super::{ARTICLES_16, ARTICLES_UNPIPELINED, Args, RedisResults, TOLLGATE_1, TOLLGATE_64, TOLLGATE_512};
use crate::measurement::Measurement;
use serde_json::{Value, json};

/// A value and its bound.
struct Goal {
    name: &'static str,
    value: f64,
    bound: Bound,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// Prints the report. Returns true if all goals are met.
pub(crate) fn print(args: &Args, found: &RedisResults) -> bool {
    let goals = goals(found);
    if args.json {
        println!("{:#}", as_json(found, &goals));
    } else {
        println!("On {}.\n", found.server);
        print_speed(args, found);
        print_bytes(&found.bytes);
        print_goals(&goals);
    }
    goals.iter().all(Goal::is_met)
}

fn goals(found: &RedisResults) -> Vec<Goal> {
    let mut goals = Vec::new();
    let mut goal = |name, figure, bound| {
        goals.push(Goal {
            name,
            value: figure,
            bound,
        });
    };
    if !found.contestants.is_empty() {
        let per_cpu = |contestant| found.ratio(contestant, ARTICLES_16, Measurement::per_cpu_second);
        let p50 = found.ratio(TOLLGATE_1, ARTICLES_UNPIPELINED, |measured| measured.p50_us);
        goal(
            "512 callers, x the articles' script at pipeline 16",
            per_cpu(TOLLGATE_512),
            Bound::AtLeast(1.4),
        );
        goal("64 callers, x the same", per_cpu(TOLLGATE_64), Bound::AtLeast(1.2));
        goal("one caller, p50 x a bare script call", p50, Bound::AtMost(1.3));
    }
    let bytes = |kind| found.bytes.iter().find(|bytes| bytes.kind == kind);
    if let (Some(integer), Some(bucket), Some(gcra), Some(log)) =
        (bytes(INTEGER), bytes(TOKEN_BUCKET), bytes(GCRA), bytes(LOG))
    {
        goal(
            "token bucket, bytes beyond a plain integer",
            bucket.used - integer.used,
            Bound::AtMost(48.0),
        );
        goal(
            "GCRA, bytes beyond a plain integer",
            gcra.used - integer.used,
            Bound::AtMost(48.0),
        );
        goal("sliding log, bytes per request", log.per_request(), Bound::AtMost(9.0));
    }
    if let Some(hammered) = &found.hot_key {
        goal(
            "script calls per second on a hot key, four processes",
            hammered.calls_per_second,
            Bound::AtMost(120.0),
        );
        goal(
            "units not admitted that were due",
            hammered.exactness.missed() as f64,
            Bound::AtMost(0.0),
        );
        goal(
            "units admitted beyond the limit",
            hammered.exactness.beyond as f64,
            Bound::AtMost(0.0),
        );
    }
    goals
}

fn print_speed(args: &Args, found: &RedisResults) {
    if found.contestants.is_empty() {
        return;
    }
    println!(
        "{} random keys, no denials; medians of {} rounds of {} ms.",
        args.keys, args.rounds, args.turn_ms
    );
    println!(
        "CPU time is that of the server, user and system, from its INFO. Latencies are those of a whole pipeline.\n"
    );
    println!(
        "| caller | decisions per CPU-second | decisions/s | core busy | articles, pipeline 16 | p50 µs | p99 µs |\n|---|---:|---:|---:|---:|---:|---:|"
    );
    for contestant in &found.contestants {
        println!(
            "| {} | {} | {:.2}x | {} |",
            contestant.name,
            contestant.rounds.rate_cells(),
            found.ratio(contestant.name, ARTICLES_16, Measurement::per_cpu_second),
            contestant.rounds.latency_cells(),
        );
    }
    println!();
}

fn print_bytes(bytes: &[Bytes]) {
    if bytes.is_empty() {
        return;
    }
    println!("| key with a TTL | used_memory | MEMORY USAGE | per request |\n|---|---:|---:|---:|");
    for row in bytes {
        let per_request = match row.requests {
            1 => String::new(),
            _ => format!("{:.2}", row.per_request()),
        };
        println!("| {} | {:.1} | {} | {per_request} |", row.kind, row.used, row.reported);
    }
    println!();
}

fn print_goals(goals: &[Goal]) {
    println!("| goal | result | bound | |\n|---|---:|---:|---|");
    for goal in goals {
        let expected = match goal.bound {
            Bound::AtLeast(least) => format!("at least {least}"),
            Bound::AtMost(most) => format!("at most {most}"),
        };
        let verdict = if goal.is_met() { "met" } else { "missed" };
        println!("| {} | {:.2} | {expected} | {verdict} |", goal.name, goal.value);
    }
    println!();
}

fn as_json(found: &RedisResults, goals: &[Goal]) -> Value {
    let speed: Vec<Value> = found
        .contestants
        .iter()
        .map(|contestant| {
            let ratio = found.ratio(contestant.name, ARTICLES_16, Measurement::per_cpu_second);
            contestant.rounds.as_json([
                ("who", contestant.name.into()),
                ("x_articles_pipeline_16", ratio.into()),
            ])
        })
        .collect();
    let bytes: Vec<Value> = found
        .bytes
        .iter()
        .map(|row| {
            json!({
                "key": row.kind,
                "requests": row.requests,
                "used_memory": row.used,
                "memory_usage": row.reported,
            })
        })
        .collect();
    let goals: Vec<Value> = goals
        .iter()
        .map(|goal| {
            let (way, bound) = match goal.bound {
                Bound::AtLeast(bound) => ("at_least", bound),
                Bound::AtMost(bound) => ("at_most", bound),
            };
            json!({ "goal": goal.name, "value": goal.value, way: bound, "met": goal.is_met() })
        })
        .collect();
    let hammered = found.hot_key.as_ref().map(|hammered| {
        json!({
            "script_calls_per_second": hammered.calls_per_second,
            "admitted": hammered.exactness.admitted,
            "due": hammered.exactness.due,
        })
    });
    json!({ "server": found.server, "speed": speed, "bytes_per_key": bytes, "hot_key": hammered, "goals": goals })
}

impl Goal {
    fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(least) => self.value >= least,
            Bound::AtMost(most) => self.value <= most,
        }
    }
}

impl Bytes {
    fn per_request(&self) -> f64 {
        self.used / self.requests as f64
    }
}
