//! The rows: one fault each. Numbers are those of the table in docs/reliability.md.

mod clocks;
mod cluster;
mod dashboards;
mod database;
mod errors;
mod instance;
mod network;
mod process;
mod propagation;
mod publish;
mod refusals;
mod scripts;
mod sentinel;
mod trial;

use crate::measurements::Measurements;
use crate::plan::Plan;

pub(crate) struct Row {
    pub(crate) number: u8,
    pub(crate) what: &'static str,
    pub(crate) run: fn(&Plan) -> Measurements,
}

impl Row {
    pub(crate) fn title(&self) -> String {
        format!("row {}: {}", self.number, self.what)
    }

    pub(crate) fn is_fast(&self) -> bool {
        FAST.contains(&self.number)
    }
}

const fn row(number: u8, what: &'static str, run: fn(&Plan) -> Measurements) -> Row {
    Row { number, what, run }
}

/// Those that every change must pass.
const FAST: [u8; 14] = [1, 2, 4, 8, 13, 17, 20, 24, 27, 32, 33, 43, 44, 46];

pub(crate) const ALL: &[Row] = &[
    row(1, "the server is killed and returns empty", process::killed),
    row(2, "the server is frozen", process::frozen),
    row(3, "the server restarts with its data", process::restarted),
    row(4, "all keys are wiped", process::wiped),
    row(5, "the server loads for long", process::loading),
    row(6, "the server's loop stalls", process::stalled),
    row(7, "clients are paused", process::paused),
    row(8, "the scripts are flushed again and again", scripts::flushed),
    row(
        9,
        "the functions are flushed again and again",
        scripts::functions_flushed,
    ),
    row(10, "the server is full", refusals::full),
    row(11, "keys are evicted", refusals::evicted),
    row(12, "the server's disk is full", refusals::disk_full),
    row(13, "the server becomes a replica", refusals::read_only),
    row(14, "too few replicas", refusals::no_replicas),
    row(15, "the password changes", refusals::password),
    row(16, "the server takes no more clients", refusals::crowded),
    row(17, "sentinels put a replica in the primary's place", sentinel::failover),
    row(18, "the old primary comes back", sentinel::zombie),
    row(19, "all sentinels are gone", sentinel::without_sentinels),
    row(20, "a primary of a cluster is killed", cluster::killed),
    row(21, "a replica takes over by command", cluster::failover),
    row(22, "slots move", cluster::resharded),
    row(23, "a shard is lost for good", cluster::lost),
    row(24, "limits in several slots", cluster::several_slots),
    row(25, "the last charges are lost with the primary", sentinel::lagging),
    row(26, "connections are reset", network::reset),
    row(27, "packets are swallowed", network::swallowed),
    row(28, "the network is slow", network::slow),
    row(29, "packets are lost, and the line is thin", network::lossy),
    row(30, "replies are spoiled", network::spoiled),
    row(31, "one node is cut off", network::partitioned),
    row(32, "the link comes and goes", network::flapping),
    row(33, "the server's clock is set", clocks::server),
    row(34, "the nodes' clocks differ", clocks::nodes),
    row(35, "the database of rules is away", database::away),
    row(36, "rules in the cache are spoiled", propagation::poisoned),
    row(
        37,
        "notices of changes are lost, and changes are many",
        propagation::storm,
    ),
    row(38, "the disk of the data directory is full", database::disk_full),
    row(39, "a flood of new keys", instance::flood),
    row(40, "nodes stop and start", instance::rolling),
    row(41, "every error code, on some calls and on all", errors::every_code),
    row(
        42,
        "latency while the breaker is open, beside memory",
        instance::against_memory,
    ),
    row(43, "an instance dies of a set of rules", publish::deadly),
    row(44, "an instance is too old for a set of rules", publish::too_old),
    row(
        45,
        "the control service is killed while it publishes",
        publish::interrupted,
    ),
    row(
        46,
        "the database of rules is restored from a backup",
        database::restored,
    ),
    row(47, "two databases of rules on one store", propagation::two_databases),
    row(
        48,
        "an instance starts without the control service",
        propagation::orphaned,
    ),
    row(49, "too many dashboards, readers and logins", dashboards::crowded),
    row(
        50,
        "the store comes and goes, and the receiver of alerts hangs",
        dashboards::silent_receiver,
    ),
];
