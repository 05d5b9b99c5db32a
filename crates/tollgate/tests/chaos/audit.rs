//! What must be true after every row, whatever happened in it.

use crate::harness::{Harness, LoadResult, wait_until};
use crate::load::CONNECTIONS;
use crate::measurements::Measurements;
use crate::node::Node;
use crate::resp::RespClient;

/// How a bench was before the fault.
pub(crate) struct Baseline {
    /// Without the connections of the load.
    files: Vec<usize>,
    resident: Vec<f64>,
}

impl Baseline {
    /// To be taken when the load has run for a moment.
    pub(crate) fn new(harness: &Harness) -> Self {
        Self {
            files: harness
                .nodes
                .iter()
                .map(|node| node.open_files().saturating_sub(CONNECTIONS))
                .collect(),
            resident: harness.nodes.iter().map(Node::resident).collect(),
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
pub(crate) fn audit(
    all: &mut Measurements,
    harness: &mut Harness,
    result: &LoadResult,
    baseline: &Baseline,
    servers: (&[u16], f64),
) {
    audit_except(Except::Nothing, all, harness, result, baseline, servers);
}

/// The same without one of them.
pub(crate) fn audit_except(
    except: Except,
    all: &mut Measurements,
    harness: &mut Harness,
    result: &LoadResult,
    baseline: &Baseline,
    (servers, long): (&[u16], f64),
) {
    let mut measurements = Measurements::default();
    let lives: Vec<(String, i64)> = servers.iter().flat_map(|&port| ttls_ms(port)).collect();
    let eternal = lives.iter().filter(|(_, life)| *life < 0).count();
    measurements.none("I1 keys that never go", eternal as f64);
    let old = lives.iter().filter(|(_, life)| is_too_long(*life)).count();
    measurements.at_most("I2 keys that live longer than 2 windows and a minute", old as f64, long);
    let rules: Vec<f64> = harness
        .nodes
        .iter()
        .map(|node| node.metric("tollgate_rules_loaded", ""))
        .collect();
    measurements.holds(
        "I3 the same rules on all nodes",
        rules.windows(2).all(|two| two[0] == two[1]),
    );
    measurements.none("I5 panics and dead nodes", harness.nodes.iter_mut().map(broken).sum());
    for (node, (files, resident)) in harness.nodes.iter().zip(baseline.files.iter().zip(&baseline.resident)) {
        measurements.at_most("I6 open files", node.open_files() as f64, (files + FILES_MORE) as f64);
        let bound = resident * 1.1 + RESIDENT_MORE;
        measurements.at_most("I6 MiB of memory", node.resident() / MIB, bound / MIB);
    }
    let is_closed = |harness: &Harness| harness.metric("tollgate_breaker_state", "") == 0.0;
    if except != Except::Breakers {
        wait_until("breakers settle", || is_closed(harness));
        measurements.holds("I7 all breakers closed", is_closed(harness));
    }
    let answered = result.samples.iter().filter(|sample| sample.response.is_some()).count() as f64;
    if except != Except::Counts {
        let counted = harness.metric("tollgate_checks_total", "");
        measurements.none(
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
    all.holds(what, measurements.counts_hold());
    all.0
        .extend(measurements.0.into_iter().filter(|measurement| !measurement.passed));
}

/// How often a node has panicked, and once more if it is dead.
pub(crate) fn broken(node: &mut Node) -> f64 {
    let panics = node.log().matches("panicked").count();
    (panics + usize::from(!node.is_alive())) as f64
}

/// The measurements of a row that all these nodes have to survive.
pub(crate) fn survived<'n>(
    mut measurements: Measurements,
    nodes: impl IntoIterator<Item = &'n mut Node>,
) -> Measurements {
    measurements.none("panics and dead nodes", nodes.into_iter().map(broken).sum());
    measurements
}

/// Whether a key that lives on for so many milliseconds does so for longer than a minute and two windows.
pub(crate) const fn is_too_long(life_ms: i64) -> bool {
    life_ms > TTL_MAX_MS
}

/// How long each of the product's keys on a server lives on, in milliseconds; -1 is for ever.
pub(crate) fn ttls_ms(port: u16) -> Vec<(String, i64)> {
    let mut client = RespClient::connect(port).unwrap();
    let mut lives = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        client.send(&format!("SCAN {cursor} MATCH tg:* COUNT 1000")).unwrap();
        let mut reply = client.read_reply().unwrap().unwrap().into_iter();
        cursor = reply.next().unwrap();
        let keys: Vec<String> = reply.collect();
        for key in &keys {
            client.send_arguments(&["PTTL", key]).unwrap();
        }
        for key in keys {
            let life: i64 = client.read_reply().unwrap().unwrap()[0].parse().unwrap();
            // -2 is gone since.
            lives.extend(Some((key, life)).filter(|(_, life)| *life != -2));
        }
        if cursor == "0" {
            return lives;
        }
    }
}

const TTL_MAX_MS: i64 = 62_000;
const FILES_MORE: usize = 8;
const MIB: f64 = 1_048_576.0;
/// What an allocator takes more when it is busier than before.
const RESIDENT_MORE: f64 = 8.0 * MIB;
