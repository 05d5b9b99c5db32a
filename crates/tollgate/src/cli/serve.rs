//! `tollgate serve`: loads settings and rules, opens the store, starts the front ends, and drains them on a stop signal.

mod banner;
mod front_ends;
mod log;
mod memory_store;
mod open_files;
mod primary_file;
mod shared_store;
mod signals;
mod store;

use self::front_ends::FrontEnds;
use self::signals::Signals;
use super::{EXIT_OK, fail};
use crate::config::{Config, Sources, variables};
use crate::control::{Control, ControlOptions, DatabaseChoice};
use crate::reload::{LiveSettings, Reloader, error_lines, one_line, report_quarantined};
use crate::rule_source::{ConfigLoader, ConfigSnapshot, FileSource, SharedLoader};
use crate::server::auth::tokens::Keyring;
use crate::server::gate::{Gate, Phase};
use crate::server::grpc::{self, GrpcSettings};
use crate::server::http::{self, HttpSettings};
use crate::server::net::tls::Tls;
use crate::server::resp::{self, RespSettings};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
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
        match runtime.block_on(serve(loader, snapshot)) {
            Ok(()) => ExitCode::from(EXIT_OK),
            Err(reason) => fail(&reason),
        }
    }
}

/// Runs the server from its start to the end of the drain.
///
/// # Errors
/// The reason why it cannot start, or why the counters could not be saved at the end.
async fn serve(loader: ConfigLoader, snapshot: ConfigSnapshot) -> Result<(), String> {
    let ConfigSnapshot {
        config,
        rules,
        raw,
        missing,
        quarantined: apart,
        ..
    } = snapshot;
    let mut store = store::OpenStore::open(&config.store, &config.data_dir)?;
    let tls = match &config.tls {
        Some(files) => Some(Arc::new(Tls::load(files.clone()).map_err(|error| error.to_string())?)),
        None => None,
    };
    let mut front_ends = FrontEnds::new();
    let http = front_ends.bind("http", config.http.as_ref()).await?;
    let grpc = front_ends.bind("grpc", config.grpc.as_ref()).await?;
    let resp = front_ends.bind("resp", config.resp.as_ref()).await?;
    let debug = front_ends.bind("debug", config.debug.as_ref()).await?;
    if front_ends.bound().is_empty() {
        return Err("no front end is enabled; give server.http, server.grpc or server.resp an address".into());
    }
    open_files::raise_limit(config.limits.connections);
    let mut signals = Signals::listen().map_err(|error| format!("cannot install signal handlers: {error}"))?;
    let sample = banner::SampleCheck::for_rules(&rules);
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
        tokens: keyring.clone(),
        resp_password: resp_password.clone(),
    };
    tokio::select! {
        () = signals.stop_requested(&reload_requested) => {
            tracing::info!("stopped before the start was complete");
            // It may have been registered just now.
            store.counters().deregister().await;
            return store.close();
        }
        () = store.wait_until_answered() => {}
    }
    let loader = Arc::new(Mutex::new(loader));
    let control = start_control(&config, &gate, &loader).await?;
    let follower = tokio::spawn(control.clone().run());
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
    // At once and not after the drain: the others take over now.
    let departure = {
        let (stopping, counters) = (front_ends.stopping(), store.counters());
        tokio::spawn(async move {
            stopping.await;
            counters.deregister().await;
        })
    };
    let readiness = advance_when_ready(&control, &gate);
    banner::print(front_ends.bound(), &config, &sample);

    let result = front_ends
        .run(&gate, &mut signals, &reload_requested, config.drain)
        .await;
    let tasks = [
        Some(reloader),
        Some(maintenance),
        Some(follower),
        readiness,
        certificates,
    ];
    for task in tasks.into_iter().flatten() {
        task.abort();
    }
    // A panic in it is logged, and the lease expires.
    let _ = departure.await;
    let closed = store.close();
    result?;
    tracing::info!("stopped");
    closed
}

/// Starts the control plane with the rules of the disk or the database. Without either it costs nothing.
async fn start_control(config: &Config, gate: &Arc<Gate>, loader: &SharedLoader) -> Result<Control, String> {
    let (choice, options) = (DatabaseChoice::DataDir, ControlOptions::default());
    let (gate, loader) = (Arc::clone(gate), Arc::clone(loader));
    Control::start(&choice, &config.data_dir, options, gate, loader).await
}

/// Makes the server ready: at once, or in the returned task once the managed rules are in use.
fn advance_when_ready(control: &Control, gate: &Arc<Gate>) -> Option<JoinHandle<()>> {
    if !control.is_waiting() {
        gate.advance_phase(Phase::Ready);
        return None;
    }
    let error = control
        .status()
        .error
        .unwrap_or_else(|| "the database does not answer".to_owned());
    tracing::warn!(
        error,
        "waiting for rules; not ready until they are there, or `control.start_without` is set"
    );
    gate.mark_rules_missing(&format!("waiting for rules: {error}"));
    let (control, gate) = (control.clone(), Arc::clone(gate));
    Some(tokio::spawn(async move {
        control.wait_ready().await;
        gate.mark_rules_present();
        gate.advance_phase(Phase::Ready);
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
