//! What must be true after every row, whatever happened in it.

use crate::bench::{Bench, Seen, wait_until};
use crate::figures::Figures;
use crate::load::CONNECTIONS;
use crate::node::Node;
use crate::resp::Asking;

/// How a bench was before the fault.
pub(crate) struct Baseline {
    /// Without the connections of the load.
    files: Vec<usize>,
    resident: Vec<f64>,
}

impl Baseline {
    /// To be taken when the load has run for a moment.
    pub(crate) fn of(bench: &Bench) -> Self {
        Self {
            files: bench
                .nodes
                .iter()
                .map(|node| node.open_files().saturating_sub(CONNECTIONS))
                .collect(),
            resident: bench.nodes.iter().map(Node::resident).collect(),
        }
    }
}

/// What cannot be asked of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Except {
    Nothing,
    /// A server stays away, and its breaker open.
    Breakers,
    /// Nodes were started again, and began to count anew.
    Counts,
}

/// Audits I1 to I8, with the load over. `servers` are those that have keys, `long` is how many keys may live longer than
/// a minute and two windows.
pub(crate) fn audit(all: &mut Figures, bench: &mut Bench, seen: &Seen, baseline: &Baseline, servers: (&[u16], f64)) {
    audit_except(Except::Nothing, all, bench, seen, baseline, servers);
}

/// The same without one of them.
pub(crate) fn audit_except(
    except: Except,
    all: &mut Figures,
    bench: &mut Bench,
    seen: &Seen,
    baseline: &Baseline,
    (servers, long): (&[u16], f64),
) {
    let mut figures = Figures::default();
    let lives: Vec<(String, i64)> = servers.iter().flat_map(|&port| lives_ms(port)).collect();
    let eternal = lives.iter().filter(|(_, life)| *life < 0).count();
    figures.none("I1 keys that never go", eternal as f64);
    let old = lives.iter().filter(|(_, life)| is_too_long(*life)).count();
    figures.at_most("I2 keys that live longer than 2 windows and a minute", old as f64, long);
    let rules: Vec<f64> = bench
        .nodes
        .iter()
        .map(|node| node.metric("tollgate_rules_loaded", ""))
        .collect();
    figures.holds(
        "I3 the same rules on all nodes",
        rules.windows(2).all(|two| two[0] == two[1]),
    );
    figures.none("I5 panics and dead nodes", bench.nodes.iter_mut().map(broken).sum());
    for (node, (files, resident)) in bench.nodes.iter().zip(baseline.files.iter().zip(&baseline.resident)) {
        figures.at_most("I6 open files", node.open_files() as f64, (files + FILES_MORE) as f64);
        let bound = resident * 1.1 + RESIDENT_MORE;
        figures.at_most("I6 MiB of memory", node.resident() / MIB, bound / MIB);
    }
    let is_closed = |bench: &Bench| bench.metric("tollgate_breaker_state", "") == 0.0;
    if except != Except::Breakers {
        wait_until("breakers settle", || is_closed(bench));
        figures.holds("I7 all breakers closed", is_closed(bench));
    }
    let answered = seen.samples.iter().filter(|sample| sample.answer.is_some()).count() as f64;
    if except != Except::Counts {
        let counted = bench.metric("tollgate_checks_total", "");
        figures.none(
            "I8 verdicts counted and not seen, or seen and not counted",
            counted - answered,
        );
    }
    // What is as it should be is one line.
    let what = match except {
        Except::Nothing => "audits I1 to I8",
        Except::Breakers => "audits I1 to I8, without I7",
        Except::Counts => "audits I1 to I7",
    };
    all.holds(what, figures.counts_hold());
    all.0.extend(figures.0.into_iter().filter(|figure| !figure.passed));
}

/// How often a node has panicked, and once more if it is dead.
pub(crate) fn broken(node: &mut Node) -> f64 {
    let panics = node.log().matches("panicked").count();
    (panics + usize::from(!node.is_alive())) as f64
}

/// Whether a key that lives on for so many milliseconds does so for longer than a minute and two windows.
pub(crate) const fn is_too_long(life_ms: i64) -> bool {
    life_ms > LIFE_MOST_MS
}

/// How long each of the product's keys on a server lives on, in milliseconds; -1 is for ever.
pub(crate) fn lives_ms(port: u16) -> Vec<(String, i64)> {
    let mut asking = Asking::connect(port).unwrap();
    let mut lives = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        asking.send(&format!("SCAN {cursor} MATCH tg:* COUNT 1000")).unwrap();
        let mut said = asking.answer().unwrap().unwrap().into_iter();
        cursor = said.next().unwrap();
        let keys: Vec<String> = said.collect();
        for key in &keys {
            asking.send_words(&["PTTL", key]).unwrap();
        }
        for key in keys {
            let life: i64 = asking.answer().unwrap().unwrap()[0].parse().unwrap();
            // -2 is gone since.
            lives.extend(Some((key, life)).filter(|(_, life)| *life != -2));
        }
        if cursor == "0" {
            return lives;
        }
    }
}

const LIFE_MOST_MS: i64 = 62_000;
const FILES_MORE: usize = 8;
const MIB: f64 = 1_048_576.0;
/// What an allocator takes more when it is busier than before.
const RESIDENT_MORE: f64 = 8.0 * MIB;
