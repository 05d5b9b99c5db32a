//! `tollgate serve`: settings and rules are read, everything is put together, and then it answers until it is told to stop.

mod banner;
mod files;
mod fronts;
mod log;
mod memory;
mod primary;
mod shared;
mod signals;
mod store;

use self::fronts::Fronts;
use self::signals::Signals;
use super::{DONE, refuse};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::sync::Notify;
use tollgate::config::{Config, Loaded, Settings, Sources, variables};
use tollgate::reload::{Reloads, faults, leave_apart, one_line};
use tollgate::server::gate::{Gate, Phase};
use tollgate::server::grpc::{self, GrpcSettings};
use tollgate::server::http::{self, HttpSettings};
use tollgate::server::resp::{self, RespSettings};
use tollgate::server::tls::Tls;
use tollgate::server::tokens::Keyring;
use tollgate_limiter::core::problem::Problem;

/// What can be typed after `tollgate serve`.
#[derive(clap::Args)]
pub(crate) struct Serve {
    /// The settings. Without it: ./tollgate.yaml if there is one, else defaults and quickstart rules
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where counters are kept, instead of what the settings say
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// One setting, over the file and the environment: server.http=127.0.0.1:9000
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Serve {
    pub(crate) fn run(self) -> ExitCode {
        let mut settings = Settings::new(Sources {
            file: self.config,
            variables: variables(),
            store: self.store,
            set: self.set,
        });
        let loaded = match settings.load() {
            Ok(loaded) => loaded,
            Err(problems) => {
                let errors: usize = problems.iter().map(Problem::error_count).sum();
                let list: String = problems.iter().map(|problem| format!("\n{problem}")).collect();
                return refuse(&format!("{errors} to mend before it can start:\n{list}"));
            }
        };
        log::begin(loaded.config.log, loaded.config.log_format);
        if !loaded.written.of_ratelimit.is_empty() {
            tracing::info!("RUNTIME_ROOT is set: the environment of envoyproxy/ratelimit is taken as settings");
        }
        for warning in loaded.written.notes.iter().chain(&loaded.warnings) {
            tracing::warn!("{}", one_line(warning));
        }
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return refuse(&format!("cannot start threads: {error}")),
        };
        match runtime.block_on(serve(settings, loaded)) {
            Ok(()) => ExitCode::from(DONE),
            Err(reason) => refuse(&reason),
        }
    }
}

/// From the first to the last request.
///
/// # Errors
/// What keeps it from starting, or from keeping the counters at the end.
async fn serve(settings: Settings, loaded: Loaded) -> Result<(), String> {
    let Loaded {
        config,
        rules,
        written,
        missing,
        apart,
        ..
    } = loaded;
    let mut store = store::Opened::open(&config.store, &config.data_dir)?;
    let tls = match &config.tls {
        Some(files) => Some(Arc::new(Tls::load(files.clone()).map_err(|error| error.to_string())?)),
        None => None,
    };
    let mut fronts = Fronts::new();
    let http = fronts.bind("http", config.http.as_ref()).await?;
    let grpc = fronts.bind("grpc", config.grpc.as_ref()).await?;
    let resp = fronts.bind("resp", config.resp.as_ref()).await?;
    let debug = fronts.bind("debug", config.debug.as_ref()).await?;
    if fronts.bound().is_empty() {
        return Err("no front end is left to listen".into());
    }
    files::raise_limit(config.bounds.connections);
    let mut signals = Signals::listen().map_err(|error| format!("cannot listen to signals: {error}"))?;
    let hint = banner::Hint::of(&rules);
    let gate = Arc::new(Gate::new(rules, store.counters()));
    gate.compat().set_modes(config.envoy.clone());
    begin_without(&gate, &missing);
    leave_apart(&gate, &apart);

    let asked = Arc::new(Notify::new());
    let keyring = config.tokens.clone().map(|tokens| Arc::new(Keyring::new(tokens)));
    let reloads = Reloads::new(
        settings,
        written,
        config.store.clone(),
        keyring.clone(),
        Arc::clone(&asked),
    );
    let watcher = tokio::spawn(reloads.watch(Arc::clone(&gate)));
    let keeper = tokio::spawn(store.look().await);
    let certificates = tls.clone().map(|tls| tokio::spawn(tls.watch()));

    let tls_of = |listener| tls.clone().filter(|_| config.has_tls(listener));
    if let Some(listener) = resp {
        let settings = resp_settings(&config, tls_of("resp"), keyring.clone());
        let serve = resp::serve(listener, Arc::clone(&gate), settings, fronts.stopping());
        fronts.open("resp", serve);
    }
    if let Some(listener) = http {
        let settings = http_settings("http", &config, tls_of("http"), keyring.clone());
        let serve = http::serve(listener, Arc::clone(&gate), settings, fronts.stopping());
        fronts.open("http", serve);
    }
    if let Some(listener) = debug {
        let settings = http_settings("debug", &config, tls_of("debug"), keyring.clone());
        let serve = http::serve_debug(listener, Arc::clone(&gate), settings, fronts.stopping());
        fronts.open("debug", serve);
    }
    if let Some(listener) = grpc {
        let settings = grpc_settings(&config, tls_of("grpc"), keyring);
        let serve = grpc::serve(listener, Arc::clone(&gate), settings, fronts.stopping());
        fronts.open("grpc", serve);
    }
    gate.enter(Phase::Ready);
    banner::print(fronts.bound(), &config, &hint);

    let ended = fronts.run(&gate, &mut signals, &asked, config.drain).await;
    for task in [Some(watcher), Some(keeper), certificates].into_iter().flatten() {
        task.abort();
    }
    store.leave().await;
    let kept = store.close();
    ended?;
    tracing::info!("stopped");
    kept
}

/// Says which files a server starts without.
fn begin_without(gate: &Gate, missing: &[Problem]) {
    if missing.is_empty() {
        return;
    }
    let faults = faults(missing);
    for fault in &faults {
        tracing::error!("{fault}");
    }
    tracing::warn!(
        "starting without these files: calls fail with `no rate limit configuration loaded` until they can be read"
    );
    gate.begin_without_rules(&faults.join("\n"));
}

fn resp_settings(config: &Config, tls: Option<Arc<Tls>>, tokens: Option<Arc<Keyring>>) -> RespSettings {
    let defaults = RespSettings::default();
    RespSettings {
        password: config
            .resp_password
            .clone()
            .map(|password| Arc::new(Keyring::new(password))),
        tokens,
        tls,
        connections: config.bounds.connections,
        connections_per_address: config.bounds.connections_per_address,
        command_timeout: config.bounds.header_timeout,
        unread_timeout: config.bounds.idle_timeout,
        idle_timeout: config.resp_idle_timeout.unwrap_or(defaults.idle_timeout),
        drain: config.drain,
    }
}

fn http_settings(listener: &str, config: &Config, tls: Option<Arc<Tls>>, tokens: Option<Arc<Keyring>>) -> HttpSettings {
    HttpSettings {
        headers: config.headers,
        retry_after: config.retry_after,
        bounds: config.bounds,
        tls,
        tokens,
        strangers: config.rights_of_strangers(listener),
        forward: config.forward.clone(),
        drain: config.drain,
    }
}

fn grpc_settings(config: &Config, tls: Option<Arc<Tls>>, tokens: Option<Arc<Keyring>>) -> GrpcSettings {
    GrpcSettings {
        headers: config.headers,
        tls,
        tokens,
        connections: config.bounds.connections,
        connections_per_address: config.bounds.connections_per_address,
        streams: config.bounds.streams,
        header_bytes: config.bounds.header_bytes,
        header_timeout: config.bounds.header_timeout,
        call_timeout: config.bounds.body_timeout,
        drain: config.drain,
        ..GrpcSettings::default()
    }
}
