//! The processes of one measurement: a control service and an instance that follows the shared store.

use super::client::{Client, TOKEN_SHA256};
use super::relay::Relay;
use crate::servers::process::free_address;
use serde_json::Value;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tollgate_limiter::testing::servers::Server;

/// A control service and an instance. They end, and their folder goes, when it is dropped.
pub(super) struct Fleet {
    processes: Vec<Child>,
    folder: PathBuf,
    /// Of the control service.
    pub(super) http: SocketAddr,
    pub(super) admin: SocketAddr,
    follower: SocketAddr,
    /// Between the instance and the store.
    pub(super) relay: Relay,
}

impl Fleet {
    pub(super) fn start(program: &Path, database: &str, store: &Server) -> Result<Self, String> {
        let url = store.url();
        let authority = url.trim_start_matches("redis://").split('/').next().unwrap_or_default();
        let address = authority.to_socket_addrs().ok().and_then(|mut found| found.next());
        let relay = Relay::start(address.ok_or_else(|| format!("{url} has no address"))?)?;
        let folder = std::env::temp_dir().join(format!("tollgate-control-rows-{}", std::process::id()));
        // What another run has left.
        let _ = std::fs::remove_dir_all(&folder);
        let mut fleet = Self {
            processes: Vec::new(),
            folder,
            http: free_address()?,
            admin: free_address()?,
            follower: free_address()?,
            relay,
        };
        fleet.spawn(program, "service", database, (fleet.http, Some(fleet.admin)), &url)?;
        let relayed = format!("redis://{}", fleet.relay.address);
        fleet.spawn(program, "follower", "none", (fleet.follower, None), &relayed)?;
        // The instance waits for rules until the first change.
        wait("control service", || Ok(Client::connect(fleet.admin).is_ok()))?;
        Ok(fleet)
    }

    fn spawn(
        &mut self,
        program: &Path,
        name: &str,
        database: &str,
        (http, admin): (SocketAddr, Option<SocketAddr>),
        store: &str,
    ) -> Result<(), String> {
        let folder = self.folder.join(name);
        let admin = admin.map_or("disabled".to_owned(), |admin| admin.to_string());
        let settings = format!(
            "server: {{ http: \"{http}\", grpc: disabled, resp: disabled, admin: \"{admin}\" }}\n\
             store: {store}\n\
             data_dir: data\n\
             control: {{ database: \"{database}\", secret: a secret of more than 32 characters }}\n\
             admin: {{ tokens: [{{ name: bench, sha256: \"{TOKEN_SHA256}\", role: admin }}] }}\n\
             rules: [{{ id: plan, per: merchant, limit: 100000/min }}]\n"
        );
        let file = folder.join("tollgate.yaml");
        let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, settings));
        written.map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command.spawn();
        self.processes
            .push(child.map_err(|error| format!("cannot start {command:?}: {error}"))?);
        Ok(())
    }

    /// Waits until the instance has applied what the control service has, and both are at rest.
    pub(super) fn settle(&self) -> Result<(), String> {
        let mut since = Instant::now();
        let mut revision = None;
        wait("equal revision of all", || {
            let revisions = [self.http, self.follower].map(readiness);
            let [Ok(service), Ok(follower)] = revisions else {
                return Ok(false);
            };
            if service != follower || revision != Some(service) {
                (since, revision) = (Instant::now(), Some(service));
            }
            Ok(since.elapsed() >= REST)
        })
    }

    /// The resident bytes of the control service and of the instance.
    pub(super) fn resident(&self) -> Result<[u64; 2], String> {
        let [service, follower] = self.processes.as_slice() else {
            return Err("a process is missing".to_owned());
        };
        Ok([resident(service)?, resident(follower)?])
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // It may have exited already.
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The revision that a server has applied, once it is ready.
fn readiness(address: SocketAddr) -> Result<u64, String> {
    let status = Client::connect(address)?.expect("GET", "/readyz", "", b"")?;
    let revision = status.pointer("/rules/revision");
    Ok(revision.and_then(Value::as_u64).unwrap_or_default())
}

fn resident(process: &Child) -> Result<u64, String> {
    let path = format!("/proc/{}/status", process.id());
    let status = std::fs::read_to_string(&path).map_err(|error| format!("the server is gone: {path}: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| format!("cannot read {path}"))
}

fn wait(event: &str, mut is_there: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let started = Instant::now();
    while !is_there()? {
        if started.elapsed() >= WAIT_MAX {
            return Err(format!("no {event} within {WAIT_MAX:?}"));
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

const WAIT_MAX: Duration = Duration::from_secs(60);
/// Longer than the interval at which the cache is written and a status is reported.
const REST: Duration = Duration::from_secs(3);
