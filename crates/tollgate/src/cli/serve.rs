//! `tollgate serve`: loads settings and rules, opens the store, starts the front ends, and drains them on a stop signal.

mod banner;
mod control_plane;
mod front_ends;
mod log;
mod memory_store;
mod open_files;
mod primary_file;
mod shared_store;
mod signals;
mod store;

use self::control_plane::ControlStart;
use self::front_ends::FrontEnds;
use self::signals::Signals;
use super::{EXIT_OK, fail};
use crate::config::{Config, Sources, variables};
use crate::control::Control;
use crate::control::plan::FORMAT;
use crate::reload::{LiveSettings, Reloader, error_lines, one_line, report_quarantined};
use crate::rule_source::{ConfigLoader, ConfigSnapshot, FileSource};
use crate::server::auth::tokens::Keyring;
use crate::server::gate::{Gate, Phase};
use crate::server::grpc::{self, GrpcSettings};
use crate::server::http::{self, HttpSettings};
use crate::server::net::tls::Tls;
use crate::server::resp::{self, RespSettings};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinHandle;
use tollgate_limiter::core::problem::Problem;

/// Arguments of `tollgate serve`.
#[derive(clap::Args)]
pub(crate) struct Serve {
    /// Settings file; default: ./tollgate.yaml if it exists, else built-in defaults and quickstart rules
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Store for the counters, over the settings: memory, redis://… Other users see a password in it with `ps`: leave it out,
    /// and add --set store.password_file=FILE
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Overrides one setting: server.http=127.0.0.1:9000; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Writes rules of this format, and reads none that is newer, as an older program does: for tests of upgrades
    #[arg(long, hide = true, value_name = "N", default_value_t = FORMAT, value_parser = clap::value_parser!(u32).range(0..=i64::from(FORMAT)))]
    rules_format: u32,
}

impl Serve {
    pub(crate) fn run(self) -> ExitCode {
        let mut loader = ConfigLoader::new(Sources {
            file: self.config,
            variables: variables(),
            store: self.store,
            set: self.set,
        });
        let snapshot = match loader.load() {
            Ok(snapshot) => snapshot,
            Err(problems) => {
                let errors: usize = problems.iter().map(Problem::error_count).sum();
                let list: String = problems.iter().map(|problem| format!("\n{problem}")).collect();
                let noun = if errors == 1 { "error" } else { "errors" };
                return fail(&format!("cannot start: {errors} configuration {noun}:\n{list}"));
            }
        };
        log::init(snapshot.config.log, snapshot.config.log_format);
        if !snapshot.raw.ratelimit_origins.is_empty() {
            tracing::info!("RUNTIME_ROOT is set; reading settings from the environment of envoyproxy/ratelimit");
        }
        for warning in snapshot.raw.notes.iter().chain(&snapshot.warnings) {
            tracing::warn!("{}", one_line(warning));
        }
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(&format!("cannot start threads: {error}")),
        };
        let control_runtime = match control_plane::runtime() {
            Ok(runtime) => runtime,
            Err(error) => return fail(&format!("cannot start threads: {error}")),
        };
        let control_start = ControlStart {
            runtime: control_runtime.handle(),
            format: self.rules_format,
        };
        let served = runtime.block_on(serve(loader, snapshot, control_start));
        // A change that is being committed may end.
        control_runtime.shutdown_timeout(CONTROL_SHUTDOWN);
        match served {
            Ok(()) => ExitCode::from(EXIT_OK),
            Err(reason) => fail(&reason),
        }
    }
}

const CONTROL_SHUTDOWN: Duration = Duration::from_secs(2);

/// Runs the server from its start to the end of the drain.
///
/// # Errors
/// The reason why it cannot start, or why the counters could not be saved at the end.
async fn serve(loader: ConfigLoader, snapshot: ConfigSnapshot, control_start: ControlStart<'_>) -> Result<(), String> {
    let mut store = store::OpenStore::open(&snapshot.config.store, &snapshot.config.data_dir)?;
    let result = serve_from(&mut store, loader, snapshot, control_start).await;
    if result.is_err() {
        // It may have been registered before the start failed.
        store.counters().deregister().await;
    }
    let closed = store.close();
    result?;
    closed
}

/// The same with an open store.
async fn serve_from(
    store: &mut store::OpenStore,
    loader: ConfigLoader,
    snapshot: ConfigSnapshot,
    control_start: ControlStart<'_>,
) -> Result<(), String> {
    let control_runtime = control_start.runtime;
    let ConfigSnapshot {
        config,
        rules,
        raw,
        missing,
        quarantined: apart,
        ..
    } = snapshot;
    let tls = match &config.tls {
        Some(files) => Some(Arc::new(Tls::load(files.clone()).map_err(|error| error.to_string())?)),
        None => None,
    };
    let mut front_ends = FrontEnds::new();
    let http = front_ends.bind("http", config.http.as_ref()).await?;
    let grpc = front_ends.bind("grpc", config.grpc.as_ref()).await?;
    let resp = front_ends.bind("resp", config.resp.as_ref()).await?;
    let debug = front_ends.bind("debug", config.debug.as_ref()).await?;
    let admin = control_plane::bind(&mut front_ends, &config, control_runtime).await?;
    if front_ends.bound().is_empty() {
        return Err("no front end is enabled; give server.http, server.grpc or server.resp an address".into());
    }
    open_files::raise_limit(config.limits.connections);
    let mut signals = Signals::listen().map_err(|error| format!("cannot install signal handlers: {error}"))?;
    let gate = Arc::new(Gate::new(rules, store.counters()));
    gate.compat().set_modes(config.ratelimit_modes.clone());
    start_without_files(&gate, &missing);
    report_quarantined(&gate, &apart);

    let reload_requested = Arc::new(Notify::new());
    let keyring = config.tokens.clone().map(|tokens| Arc::new(Keyring::new(tokens)));
    let resp_password = config.resp_password.clone();
    let resp_password = resp_password.map(|password| Arc::new(Keyring::new(password)));
    let live = LiveSettings {
        gate: Arc::clone(&gate),
        started_with: raw,
        store: config.store.clone(),
        control: config.control.clone(),
        admin: config.admin_settings.clone(),
        alerts: config.alerts.clone(),
        otlp: config.otlp.clone(),
        tokens: keyring.clone(),
        resp_password: resp_password.clone(),
    };
    let loader = Arc::new(Mutex::new(loader));
    let control = tokio::select! {
        () = signals.stop_requested(&reload_requested) => {
            tracing::info!("stopped before the start was complete");
            // It may have been registered just now.
            store.counters().deregister().await;
            return Ok(());
        }
        control = async {
            let control = control_plane::start(&config, &gate, &loader, control_start);
            tokio::join!(control, store.wait_until_answered()).0
        } => control?,
    };
    let is_waiting = mark_waiting(&control, &gate);
    let mut follower = control_plane::follow(&control, control_runtime);
    let alerts = control_plane::watch_alerts(&mut follower, &admin, &control, &gate, &config, control_runtime);
    gate.metrics().process.measure_workers(Handle::current());
    control_plane::export_telemetry(&mut follower, &control, &gate, &config, control_runtime);
    let source = FileSource::new(loader, Arc::clone(&reload_requested), move |snapshot| {
        live.apply(snapshot);
    });
    let reloader = tokio::spawn(Reloader::new(source).run(Arc::clone(&gate)));
    let maintenance = tokio::spawn(store.maintain());
    let certificates = tls.clone().map(|tls| tokio::spawn(tls.watch()));

    let tls_for = |listener| tls.clone().filter(|_| config.has_tls(listener));
    if let Some(listener) = resp {
        let settings = resp_settings(&config, tls_for("resp"), keyring.clone(), resp_password);
        let serve = resp::serve(listener, Arc::clone(&gate), settings, front_ends.stopping());
        front_ends.spawn("resp", serve);
    }
    if let Some(listener) = http {
        let settings = http_settings("http", &config, tls_for("http"), keyring.clone());
        let serve = http::serve(listener, Arc::clone(&gate), settings, front_ends.stopping());
        front_ends.spawn("http", serve);
    }
    if let Some(listener) = debug {
        let settings = http_settings("debug", &config, tls_for("debug"), keyring.clone());
        let serve = http::serve_debug(listener, Arc::clone(&gate), settings, front_ends.stopping());
        front_ends.spawn("debug", serve);
    }
    if let Some(listener) = grpc {
        let settings = grpc_settings(&config, tls_for("grpc"), keyring);
        let serve = grpc::serve(listener, Arc::clone(&gate), settings, front_ends.stopping());
        front_ends.spawn("grpc", serve);
    }
    let admin_tls = tls_for("admin");
    let parts = control_plane::AdminParts {
        control: &control,
        gate: &gate,
        alerts: &alerts,
    };
    let admin = control_plane::serve_admin(admin, parts, &config, admin_tls, &mut front_ends, control_runtime).await?;
    // At once and not after the drain: the others take over now.
    let departure = {
        let (stopping, counters) = (front_ends.stopping(), store.counters());
        let (control, control_runtime) = (control.clone(), control_runtime.clone());
        tokio::spawn(async move {
            stopping.await;
            let leaving = control_runtime.spawn(async move { control.leave().await });
            counters.deregister().await;
            // A panic in it is logged, and its status expires.
            let _ = leaving.await;
        })
    };
    let sample = banner::SampleCheck::for_rules(&gate.active_rules());
    banner::print(front_ends.bound(), &config, admin.as_ref(), &sample);
    let readiness = advance_when_ready(is_waiting, &control, &gate);

    let result = front_ends
        .run(&gate, &mut signals, &reload_requested, config.drain)
        .await;
    drop(follower);
    for task in [Some(reloader), Some(maintenance), readiness, certificates]
        .into_iter()
        .flatten()
    {
        task.abort();
    }
    // A panic in it is logged, and the lease expires.
    let _ = departure.await;
    result?;
    tracing::info!("stopped");
    Ok(())
}

/// Records that managed rules are expected and none are in use. Before anything is served, so that `/readyz` always has the reason.
fn mark_waiting(control: &Control, gate: &Gate) -> bool {
    let is_waiting = control.is_waiting();
    if is_waiting {
        let error = control
            .status()
            .error
            .unwrap_or_else(|| "the database does not answer".to_owned());
        tracing::warn!(
            error,
            "waiting for rules; not ready until they are there, or `control.start_without` is set"
        );
        gate.mark_managed_missing(&format!("waiting for rules: {error}"));
    }
    is_waiting
}

/// Makes the server ready: at once, or in the returned task once the managed rules are in use.
fn advance_when_ready(is_waiting: bool, control: &Control, gate: &Arc<Gate>) -> Option<JoinHandle<()>> {
    if !is_waiting {
        gate.advance_phase(Phase::Ready);
        banner::print_ready();
        return None;
    }
    let (control, gate) = (control.clone(), Arc::clone(gate));
    Some(tokio::spawn(async move {
        control.wait_ready().await;
        gate.mark_managed_present();
        gate.advance_phase(Phase::Ready);
        banner::print_ready();
        tracing::info!("managed rules are in use; ready");
    }))
}

/// Reports the files that a server starts without.
fn start_without_files(gate: &Gate, missing: &[Problem]) {
    if missing.is_empty() {
        return;
    }
    let errors = error_lines(missing);
    for error in &errors {
        tracing::error!("{error}");
    }
    tracing::warn!(
        "starting without these files; calls fail with `no rate limit configuration loaded` until they can be read"
    );
    gate.mark_rules_missing(&errors.join("\n"));
}

fn resp_settings(
    config: &Config,
    tls: Option<Arc<Tls>>,
    tokens: Option<Arc<Keyring>>,
    password: Option<Arc<Keyring>>,
) -> RespSettings {
    let defaults = RespSettings::default();
    RespSettings {
        password,
        tokens,
        tls,
        connections: config.limits.connections,
        connections_per_address: config.limits.connections_per_address,
        command_timeout: config.limits.header_timeout,
        unread_timeout: config.limits.idle_timeout,
        idle_timeout: config.resp_idle_timeout.unwrap_or(defaults.idle_timeout),
        drain: config.drain,
    }
}

fn http_settings(listener: &str, config: &Config, tls: Option<Arc<Tls>>, tokens: Option<Arc<Keyring>>) -> HttpSettings {
    HttpSettings {
        headers: config.headers,
        retry_after: config.retry_after,
        limits: config.limits,
        tls,
        tokens,
        anonymous_rights: config.anonymous_rights(listener),
        forward: config.forward.clone(),
        drain: config.drain,
    }
}

fn grpc_settings(config: &Config, tls: Option<Arc<Tls>>, tokens: Option<Arc<Keyring>>) -> GrpcSettings {
    GrpcSettings {
        headers: config.headers,
        tls,
        tokens,
        connections: config.limits.connections,
        connections_per_address: config.limits.connections_per_address,
        streams: config.limits.streams,
        header_bytes: config.limits.header_bytes,
        header_timeout: config.limits.header_timeout,
        call_timeout: config.limits.body_timeout,
        drain: config.drain,
        ..GrpcSettings::default()
    }
}
