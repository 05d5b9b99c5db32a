//! The control plane and the admin API of a server: on a runtime of their own, so that no decision waits for them, and supervised, so
//! that a panic in them ends neither the server nor the work.

use super::banner::AdminLines;
use super::front_ends::FrontEnds;
use crate::alerts::{AlertOptions, Alerts};
use crate::config::{Config, StoreSettings};
use crate::control::{Control, ControlOptions, DatabaseChoice};
use crate::rule_source::SharedLoader;
use crate::server::admin::{Admin, AdminOptions};
use crate::server::gate::Gate;
use crate::server::net::listen::{Address, Listener};
use crate::server::net::tls::Tls;
use crate::server::telemetry::otlp::{MetricsExporter, SpanExporter};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{self, Handle, Runtime};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate_limiter::store::redis::ConfigCache;

/// The listener of the admin API.
pub(super) enum AdminListener {
    /// Bound.
    Bound(Listener, Address),
    /// The default address cannot be bound: the line that says so.
    Unavailable(String),
    /// Disabled in the settings.
    Disabled,
}

/// The parts of the server that the admin API shows and changes.
pub(super) struct AdminParts<'a> {
    pub(super) control: &'a Control,
    pub(super) gate: &'a Arc<Gate>,
    pub(super) alerts: &'a Alerts,
}

/// The runtime of the control plane and the admin API.
///
/// # Errors
/// No thread can be started.
pub(super) fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("control")
        .enable_all()
        .build()
}

/// Binds the admin API. Its default address may be taken: a second server in the same place starts without it.
///
/// # Errors
/// A configured address that cannot be bound, with the next step.
pub(super) async fn bind(
    front_ends: &mut FrontEnds,
    config: &Config,
    runtime: &Handle,
) -> Result<AdminListener, String> {
    let Some(address) = config.admin.clone() else {
        return Ok(AdminListener::Disabled);
    };
    let wanted = address.clone();
    // A listener belongs to the runtime that it was bound on.
    let bound = runtime.spawn(async move { Listener::bind(&wanted).await }).await;
    let bound = bound.unwrap_or_else(|error| Err(io::Error::other(error)));
    match front_ends.bound_listener("admin", &address, bound) {
        Ok((listener, address)) => Ok(AdminListener::Bound(listener, address)),
        Err((error, _)) if !config.admin_is_configured => Ok(AdminListener::Unavailable(match error.kind() {
            io::ErrorKind::AddrInUse => format!("{address} is in use"),
            _ => format!("{address}: {error}"),
        })),
        Err((_, text)) => Err(text),
    }
}

/// Arguments of the start of the control plane that are no settings.
#[derive(Clone, Copy)]
pub(super) struct ControlStart<'r> {
    pub(super) runtime: &'r Handle,
    /// The format of rules that it writes, and the newest that it reads.
    pub(super) format: u32,
}

/// Starts the control plane with the rules of the disk or the database.
///
/// # Errors
/// Settings that cannot be used, or a configured data directory that another process has, or that is not writable.
pub(super) async fn start(
    config: &Config,
    gate: &Arc<Gate>,
    loader: &SharedLoader,
    start: ControlStart<'_>,
) -> Result<Control, String> {
    let settings = config.control.clone();
    // Managed rules may come over a shared store only.
    let has_cache = matches!(config.store, StoreSettings::Redis(_));
    let follows_cache = settings.options.secret.is_some() || settings.database == DatabaseChoice::None;
    let options = ControlOptions {
        is_managed: has_cache && follows_cache,
        format: start.format,
        ..settings.options
    };
    let cache = match &config.store {
        StoreSettings::Redis(redis) => Some(ConfigCache::new(redis.options()?)),
        StoreSettings::Memory(_) => None,
    };
    let (data_dir, gate, loader) = (config.data_dir.clone(), Arc::clone(gate), Arc::clone(loader));
    let control = async move { Control::start(&settings.database, &data_dir, options, gate, loader, cache).await };
    match start.runtime.spawn(control).await {
        Ok(started) => started,
        Err(error) => Err(format!("the control plane cannot start: {error}")),
    }
}

/// Follows the database without end. Ends with the returned set.
pub(super) fn follow(control: &Control, runtime: &Handle) -> JoinSet<()> {
    let control = control.clone();
    let mut tasks = JoinSet::new();
    let follow = supervise("control plane", move || control.clone().run());
    tasks.spawn_on(follow, runtime);
    tasks
}

/// Starts alerts: watched without end on the runtime of the control plane, in a task of the set.
pub(super) fn watch_alerts(
    tasks: &mut JoinSet<()>,
    admin: &AdminListener,
    control: &Control,
    gate: &Arc<Gate>,
    config: &Config,
    runtime: &Handle,
) -> Alerts {
    let external_url = match (&config.admin_settings.external_url, admin) {
        (Some(url), _) => url.to_string(),
        (None, AdminListener::Bound(_, address @ Address::Tcp(_))) => {
            let scheme = if config.has_tls("admin") { "https" } else { "http" };
            format!("{scheme}://{address}")
        }
        (None, _) => String::new(),
    };
    let options = AlertOptions {
        settings: config.alerts.clone(),
        subjects: config.admin_settings.subjects,
        external_url,
    };
    let alerts = Alerts::new(Arc::clone(gate), control.clone(), options);
    let watched = alerts.clone();
    let watch = supervise("alerts", move || {
        let alerts = watched.clone();
        async move { alerts.run().await }
    });
    tasks.spawn_on(watch, runtime);
    alerts
}

/// Starts sending metrics and spans to the collector of the settings, if there is one, in tasks of the set. On the runtime of the
/// control plane: a slow collector delays no decision.
pub(super) fn export_telemetry(
    tasks: &mut JoinSet<()>,
    control: &Control,
    gate: &Arc<Gate>,
    config: &Config,
    runtime: &Handle,
) {
    let Some(settings) = &config.otlp else { return };
    let instance = control.status().instance;
    if let Some(exporter) = MetricsExporter::new(Arc::clone(gate), settings, &instance).map(Arc::new) {
        let export = supervise("export of metrics", move || {
            let exporter = Arc::clone(&exporter);
            async move { exporter.run().await }
        });
        tasks.spawn_on(export, runtime);
    }
    if let Some(exporter) = SpanExporter::new(Arc::clone(gate), settings, &instance).map(Arc::new) {
        let export = supervise("export of traces", move || {
            let exporter = Arc::clone(&exporter);
            async move { exporter.run().await }
        });
        tasks.spawn_on(export, runtime);
    }
}

/// Serves the admin API until the front ends stop. Returns the lines for the operator.
///
/// # Errors
/// Other machines could reach it, and it is not protected.
pub(super) async fn serve_admin(
    listener: AdminListener,
    parts: AdminParts<'_>,
    config: &Config,
    tls: Option<Arc<Tls>>,
    front_ends: &mut FrontEnds,
    runtime: &Handle,
) -> Result<Option<AdminLines>, String> {
    let AdminParts { control, gate, alerts } = parts;
    let (listener, address) = match listener {
        AdminListener::Bound(listener, address) => (listener, address),
        AdminListener::Unavailable(reason) => return Ok(Some(AdminLines::Unavailable(reason))),
        AdminListener::Disabled => return Ok(None),
    };
    let options = AdminOptions {
        settings: config.admin_settings.clone(),
        address: address.clone(),
        tls,
        drain: config.drain,
        alerts: alerts.clone(),
        decisions: Handle::current(),
    };
    let admin = Arc::new(Admin::new(Arc::clone(gate), control.clone(), options));
    let checked = Arc::clone(&admin);
    // The database is used on its own runtime only.
    let checked = runtime.spawn(async move {
        checked.check_exposure().await?;
        Ok::<_, String>(checked.links().await)
    });
    let links = match checked.await {
        Ok(links) => links?,
        Err(error) => return Err(format!("the admin API cannot start: {error}")),
    };
    let stop = front_ends.stop_signal();
    let mut listener = Some(listener);
    let lines = AdminLines::Serving(address.clone(), links);
    let serve = supervise("admin API", move || {
        let (admin, listener, address) = (Arc::clone(&admin), listener.take(), address.clone());
        let (mut stop, mut stop_waiting) = (stop.clone(), stop.clone());
        async move {
            let listener = match listener {
                Some(listener) => listener,
                None => tokio::select! {
                    listener = bind_again(&address) => listener,
                    _ = stop_waiting.wait_for(|stop| *stop) => return,
                },
            };
            let stopping = async move {
                // The sender is dropped only when all is over.
                let _ = stop.wait_for(|stop| *stop).await;
            };
            admin.serve(listener, stopping).await;
        }
    });
    let mut tasks = JoinSet::new();
    tasks.spawn_on(serve, runtime);
    front_ends.spawn("admin", async move {
        tasks.join_next().await;
    });
    Ok(Some(lines))
}

/// Binds the address of a listener that was lost.
async fn bind_again(address: &Address) -> Listener {
    loop {
        match Listener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => tracing::error!(%address, %error, "cannot listen again; retrying"),
        }
        sleep(RESTART_WAIT).await;
    }
}

/// Runs a task until it returns. One that panics is logged and started again, after a wait that doubles while it does so at once.
async fn supervise<F>(name: &'static str, mut start: impl FnMut() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut wait = RESTART_WAIT;
    loop {
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        tasks.spawn(start());
        match tasks.join_next().await {
            Some(Err(error)) if error.is_panic() => {
                if started.elapsed() > RESTART_WAIT_MAX {
                    wait = RESTART_WAIT;
                }
                tracing::error!(task = name, %error, ?wait, "a task panicked; decisions go on; starting it again");
                sleep(wait).await;
                wait = (wait * 2).min(RESTART_WAIT_MAX);
            }
            _ => return,
        }
    }
}

const WORKERS: usize = 1;
/// For rules that are compiled, passwords that are hashed, and files.
const BLOCKING_THREADS: usize = 4;
const RESTART_WAIT: Duration = Duration::from_millis(500);
const RESTART_WAIT_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn a_task_that_panics_is_started_again_and_one_that_returns_is_not() {
        let starts = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&starts);
        supervise("test", move || {
            let start = count.fetch_add(1, Ordering::Relaxed);
            async move { assert!(start > 0, "injected") }
        })
        .await;
        assert_eq!(starts.load(Ordering::Relaxed), 2);
    }
}
