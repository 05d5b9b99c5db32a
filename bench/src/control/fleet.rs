//! Instances: processes of `tollgate serve`, each with a folder of its own, and the servers between them.

use super::client::{Connection, TOKEN_SHA256};
use super::{Durability, Postgres};
use crate::servers::process;
use serde_json::{Value, json};
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tollgate_limiter::testing::servers::{Server, ServerKind};

/// A running instance. It ends, and its folder goes, when it is dropped.
pub(crate) struct Instance {
    child: Child,
    folder: PathBuf,
    is_folder_kept: bool,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
}

/// The parts in which instances differ.
#[derive(Clone, Copy)]
pub(crate) struct InstanceSettings<'a> {
    /// The URL of the shared store; none: it counts in its memory.
    pub(crate) store: Option<&'a str>,
    /// `control.database`.
    pub(crate) database: &'a str,
}

/// Override rows that a rule has.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) rule: &'a str,
    pub(crate) attribute: &'a str,
    pub(crate) terms: &'a str,
    pub(crate) count: u64,
}

/// Several instances of one control plane, and the servers they need. The first is a control service.
pub(super) struct Fleet {
    pub(super) instances: Vec<Instance>,
    pub(super) store: Option<Server>,
    _postgres: Option<Postgres>,
}

/// The ways in which a change reaches an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A message of Redis.
    Messages,
    /// Reads of Redis at an interval: no instance may subscribe.
    Polls,
    /// A notification of PostgreSQL; there is no Redis.
    Notifications,
    /// Reads of PostgreSQL at an interval: no instance may notify.
    DatabasePolls,
}

/// The time an instance has until it is ready.
const START: Duration = Duration::from_secs(60);

/// The size of a fleet.
pub(super) const INSTANCES: usize = 8;

const SECRET: &str = "a secret of the bench, 32 characters or more";

impl InstanceSettings<'_> {
    /// Its settings as YAML, without addresses, with this `data_dir`.
    pub(crate) fn yaml_in(&self, data_dir: &Path) -> String {
        let store = self.store.map(|url| format!("store: '{url}'\n")).unwrap_or_default();
        format!(
            "{store}data_dir: '{}'\ncontrol: {{ database: '{}', secret: '{SECRET}', prepare_timeout: 50s }}\n\
             admin: {{ tokens: [{{ name: bench, sha256: {TOKEN_SHA256}, role: admin }}] }}\n",
            data_dir.display(),
            self.database
        )
    }
}

impl Instance {
    /// Starts one and waits until it is ready.
    pub(crate) fn start(tollgate: &Path, settings: &InstanceSettings<'_>) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tollgate-bench-{}-{number}", std::process::id()));
        Self::start_in(tollgate, settings, folder)
    }

    /// The same in this folder, which goes with it.
    pub(crate) fn start_in(tollgate: &Path, settings: &InstanceSettings<'_>, folder: PathBuf) -> Result<Self, String> {
        let (http, admin) = (process::free_address()?, process::free_address()?);
        let addresses = format!("server: {{ http: '{http}', admin: '{admin}', grpc: disabled, resp: disabled }}\n");
        let prepare = || {
            std::fs::create_dir_all(&folder)?;
            std::fs::write(
                folder.join("tollgate.yaml"),
                addresses + &settings.yaml_in(&folder.join("data")),
            )?;
            File::create(folder.join("log"))
        };
        let log = prepare().map_err(|error| format!("cannot write {}: {error}", folder.display()))?;
        let child = Command::new(tollgate)
            .arg("serve")
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", tollgate.display()))?;
        let mut instance = Self {
            child,
            folder,
            is_folder_kept: false,
            http,
            admin,
        };
        instance.wait_ready()?;
        Ok(instance)
    }

    fn wait_ready(&mut self) -> Result<(), String> {
        let started = Instant::now();
        let is_ready = |address| {
            let response = Connection::open(address).and_then(|mut to| to.send("GET", "/readyz", "", None));
            response.is_ok_and(|response| response.status == 200)
        };
        while !is_ready(self.http) {
            let has_ended = !matches!(self.child.try_wait(), Ok(None));
            if has_ended || started.elapsed() > START {
                let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                return Err(format!("an instance is not ready: {log}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Its CPU time so far, by nanoseconds of its threads.
    pub(super) fn cpu(&self) -> Result<Duration, String> {
        let tasks = format!("/proc/{}/task", self.child.id());
        let tasks = std::fs::read_dir(&tasks).map_err(|error| format!("an instance is gone: {tasks}: {error}"))?;
        let nanoseconds = tasks.filter_map(|task| {
            // A thread may end meanwhile.
            let times = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            times.split_whitespace().next()?.parse::<u64>().ok()
        });
        Ok(Duration::from_nanos(nanoseconds.sum()))
    }

    /// Its id in the fleet.
    pub(super) fn id(&self) -> Result<String, String> {
        let mut admin = Connection::open(self.admin)?;
        let items = fleet_of(&mut admin)?;
        let own = items.iter().find(|item| item.get("self") == Some(&Value::Bool(true)));
        let id = own.and_then(|own| own.get("id")?.as_str());
        id.map(str::to_owned)
            .ok_or_else(|| "an instance does not see itself".to_owned())
    }

    /// Stops it and leaves its folder to others.
    pub(crate) fn stop_and_keep(mut self) -> Result<(), String> {
        self.is_folder_kept = true;
        let mut ask = Command::new("kill");
        process::finish(
            ask.args(["-TERM", &self.child.id().to_string()]),
            "an instance cannot be stopped",
        )?;
        let ended = self.child.wait();
        ended
            .map(drop)
            .map_err(|error| format!("an instance cannot be stopped: {error}"))
    }

    /// Publishes rules and imports rows, once.
    pub(crate) fn fill(&self, rules: &str, rows: Rows<'_>) -> Result<(), String> {
        let mut admin = Connection::open(self.admin)?;
        admin.publish(rules, "?wait=2s")?;
        for from in (0..rows.count).step_by(ROWS_PER_IMPORT) {
            let lines = (from..rows.count).take(ROWS_PER_IMPORT).map(|number| {
                let subject = json!({ rows.attribute: format!("user:{number:016}") });
                json!({ "rule": rows.rule, "subject": subject, "terms": rows.terms }).to_string()
            });
            let lines: Vec<String> = lines.collect();
            admin.import(&lines.join("\n"))?;
        }
        Ok(())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !self.is_folder_kept {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

impl Fleet {
    /// Starts instances that see each other, and publishes rules.
    pub(super) fn start(tollgate: &Path, way: Way, count: usize, rules: &str) -> Result<Self, String> {
        eprintln!("starting {count} instances");
        let fleet = match way {
            Way::Messages | Way::Polls => Self::over_redis(tollgate, way, count, rules)?,
            Way::Notifications | Way::DatabasePolls => Self::over_postgres(tollgate, way, count)?,
        };
        fleet.wait_complete()?;
        if way == Way::Notifications || way == Way::DatabasePolls {
            fleet.admin()?.publish(rules, "?wait=2s")?;
        }
        Ok(fleet)
    }

    /// A control service, and instances without a database.
    fn over_redis(tollgate: &Path, way: Way, count: usize, rules: &str) -> Result<Self, String> {
        let server = Server::start(ServerKind::Redis70);
        let url = match way {
            Way::Polls => without_subscriptions(&server)?,
            _ => server.url(),
        };
        let settings = |database| InstanceSettings {
            store: Some(&url),
            database,
        };
        let mut instances = vec![Instance::start(tollgate, &settings("data_dir"))?];
        // Those without a database are ready when they have rules.
        if let Some(service) = instances.first() {
            Connection::open(service.admin)?.publish(rules, "")?;
        }
        for _ in 1..count {
            instances.push(Instance::start(tollgate, &settings("none"))?);
        }
        Ok(Self {
            instances,
            store: Some(server),
            _postgres: None,
        })
    }

    /// Control services of one database.
    fn over_postgres(tollgate: &Path, way: Way, count: usize) -> Result<Self, String> {
        let postgres = Postgres::start_with(Durability::Disk);
        let mut url = postgres.create_database();
        if way == Way::DatabasePolls {
            // No user of the database may notify, and this one is no superuser.
            postgres.run_sql(&url, "REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC");
            postgres.run_sql(&url, "CREATE ROLE quiet LOGIN");
            postgres.run_sql(&url, "GRANT ALL ON SCHEMA public TO quiet");
            url = url.replace("postgres@", "quiet@");
        }
        let settings = InstanceSettings {
            store: None,
            database: &url,
        };
        let instances: Result<Vec<Instance>, String> =
            (0..count).map(|_| Instance::start(tollgate, &settings)).collect();
        Ok(Self {
            instances: instances?,
            store: None,
            _postgres: Some(postgres),
        })
    }

    /// Waits until the control service sees all others. Before the first write to a database there is no place for reports.
    fn wait_complete(&self) -> Result<(), String> {
        if self.store.is_none() {
            return Ok(());
        }
        let mut admin = self.admin()?;
        let started = Instant::now();
        while fleet_of(&mut admin)?.len() < self.instances.len() {
            if started.elapsed() > START {
                return Err("instances do not see each other".to_owned());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// A connection to the admin API of the control service.
    pub(super) fn admin(&self) -> Result<Connection, String> {
        let service = self.instances.first().ok_or("a fleet has a control service")?;
        Connection::open(service.admin)
    }
}

/// The instances that one of them sees.
fn fleet_of(admin: &mut Connection) -> Result<Vec<Value>, String> {
    let response = admin.send("GET", "/v1/instances", "", None)?;
    let items = response.body.get("items").and_then(Value::as_array);
    items
        .cloned()
        .ok_or_else(|| format!("no instances: {}: {}", response.status, response.body))
}

/// The URL of a user of Redis that may do everything except subscribe.
fn without_subscriptions(server: &Server) -> Result<String, String> {
    let text = |error: redis::RedisError| error.to_string();
    let client = redis::Client::open(server.url()).map_err(text)?;
    let mut connection = client.get_connection().map_err(text)?;
    let words = "SETUSER quiet on >password ~* &* +@all -subscribe -psubscribe -ssubscribe";
    redis::cmd("ACL")
        .arg(words.split(' ').collect::<Vec<_>>())
        .query::<()>(&mut connection)
        .map_err(text)?;
    Ok(server.url().replace("://", "://quiet:password@"))
}

const ROWS_PER_IMPORT: usize = 1_000;
