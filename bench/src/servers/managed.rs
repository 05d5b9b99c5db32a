//! CP11: Tollgate with and without its control plane: the same rules from a file, and from a database with everything that
//! keeps them live in the background; and once more with override rows of the rule that the load meets.
//!
//! Both run on the first core at the same time, under the same load, so that whatever the machine does meets both alike; the
//! load, Redis and PostgreSQL have the second core. The result is the median of the ratios of each round.

use super::compare::{Alternation, start_redis};
use super::load::Requests;
use super::{FrontEnd, grpc, http, process, resp};
use crate::control::{Durability, Instance, InstanceSettings, Postgres, Rows};
use crate::measurement::{Measurement, Rounds};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The length of a run.
pub(crate) struct CostOptions {
    pub(crate) rounds: u64,
    pub(crate) seconds: u64,
}

/// The checks per CPU-second with and without something, and the median of their ratios.
pub(crate) struct CpuCost {
    with: f64,
    without: f64,
    pub(crate) ratio: f64,
}

/// The cost of the control plane under one load.
pub(crate) struct Cost {
    pub(crate) load: String,
    pub(crate) cpu: CpuCost,
}

/// Checks per CPU-second with the control plane, as a part of those without.
pub(crate) const GOAL: f64 = 0.98;

/// Override rows of the rule that the load meets.
const ROWS: u64 = 1_000;

impl Cost {
    pub(crate) fn is_met(&self) -> bool {
        self.cpu.ratio >= GOAL
    }
}

impl CpuCost {
    pub(crate) fn of(with: &Rounds, without: &Rounds) -> Self {
        Self {
            with: with.median(Measurement::per_cpu_second),
            without: without.median(Measurement::per_cpu_second),
            ratio: with.ratio(without, Measurement::per_cpu_second),
        }
    }
}

impl fmt::Display for CpuCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { with, without, ratio } = self;
        write!(f, "x {ratio:.3} ({with:.0} and {without:.0} per CPU-second)")
    }
}

/// The two servers of a comparison, without their addresses.
struct Pair<'a> {
    tollgate: &'a Path,
    /// The settings of both, with the rules of the first in a file, and without for the second.
    folder: PathBuf,
    options: &'a CostOptions,
}

pub(crate) fn measure(tollgate: &Path, options: &CostOptions) -> Result<Vec<Cost>, String> {
    // What is started from here on has the core of the load, except where it gets the other.
    process::pin_self(1)?;
    let mut costs = Vec::new();
    let postgres = Postgres::start_with(Durability::Disk);
    let settings = InstanceSettings {
        store: None,
        database: &postgres.create_database(),
    };
    let pair = Pair::prepare(tollgate, "memory", &settings, 0, options)?;
    let check = http::check();
    let name = |load: &str| format!("{load}: memory store, rules in PostgreSQL");
    costs.push(pair.measure(name("HTTP"), FrontEnd::Http, &check, 50)?);
    let calls = grpc::should_rate_limit();
    costs.push(pair.measure(name("gRPC"), FrontEnd::Grpc, &calls, grpc::CONNECTIONS)?);
    let commands = resp::throttle(PIPELINE);
    let load = format!("Redis protocol, pipeline {PIPELINE}");
    costs.push(pair.measure(name(&load), FrontEnd::Resp, &commands, 50)?);
    drop(pair);
    let settings = InstanceSettings {
        store: None,
        database: &postgres.create_database(),
    };
    let pair = Pair::prepare(tollgate, "rows", &settings, ROWS, options)?;
    let load = format!("{}, and {ROWS} override rows", name("HTTP"));
    costs.push(pair.measure(load, FrontEnd::Http, &check, 50)?);
    drop((pair, postgres));
    let (redis, address) = start_redis()?;
    let url = format!("redis://{address}/");
    let settings = InstanceSettings {
        store: Some(&url),
        database: "data_dir",
    };
    let pair = Pair::prepare(tollgate, "redis", &settings, 0, options)?;
    let load = "HTTP over Redis, 64 callers: rules in SQLite".to_owned();
    costs.push(pair.measure(load, FrontEnd::Http, &check, 64)?);
    drop((pair, redis));
    Ok(costs)
}

impl<'a> Pair<'a> {
    /// Writes the settings of both, publishes the rules of the second, and adds rows.
    fn prepare(
        tollgate: &'a Path,
        name: &str,
        settings: &InstanceSettings<'_>,
        rows: u64,
        options: &'a CostOptions,
    ) -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("tollgate-bench-cost-{}-{name}", std::process::id()));
        let managed = folder.join("managed");
        let rules = format!("{}{}", http::RULES, grpc::RULES);
        // In a database of its own, where no control plane writes.
        let store = settings
            .store
            .map(|url| format!("store: '{url}1'\ncontrol: {{ database: none }}\n"))
            .unwrap_or_default();
        let write = || {
            std::fs::create_dir_all(&managed)?;
            std::fs::write(folder.join("file.yaml"), format!("{store}{rules}"))?;
            std::fs::write(folder.join("managed.yaml"), settings.yaml_in(&managed.join("data")))
        };
        write().map_err(|error| format!("cannot write {}: {error}", folder.display()))?;
        let pair = Self {
            tollgate,
            folder,
            options,
        };
        let instance = Instance::start_in(tollgate, settings, managed)?;
        instance.fill(
            &rules,
            Rows {
                rule: "api",
                attribute: "key",
                // Another limit than that of the rule, so that each is applied.
                terms: "200/min burst 200",
                count: rows,
            },
        )?;
        instance.stop_and_keep()?;
        Ok(pair)
    }

    /// Measures both with one load, alternating.
    fn measure<R: Requests>(
        &self,
        load: String,
        front_end: FrontEnd,
        requests: &R,
        connections: u64,
    ) -> Result<Cost, String> {
        let alternation = Alternation {
            name: &load,
            requests,
            connections,
            rounds: self.options.rounds,
            seconds: self.options.seconds,
        };
        let without = |address| self.command("file.yaml", front_end, address, "disabled");
        let with = |address| self.command("managed.yaml", front_end, address, "127.0.0.1:0");
        let [without, with] = alternation.run_both([&without, &with])?;
        let errors = without.errors() + with.errors();
        if errors > 0 {
            return Err(format!("{load}: {errors} checks failed"));
        }
        Ok(Cost {
            cpu: CpuCost::of(&with, &without),
            load,
        })
    }

    fn command(&self, config: &str, front_end: FrontEnd, address: SocketAddr, admin: &str) -> Command {
        let mut command = super::serve(self.tollgate, &self.folder.join(config), front_end, address);
        command.arg("--set").arg(format!("server.admin={admin}"));
        command
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        // A leftover folder does no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Commands in one write.
const PIPELINE: usize = 16;
