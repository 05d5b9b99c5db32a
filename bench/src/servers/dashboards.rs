//! OB5: Tollgate with and without open dashboards. Both servers have an admin API and run on the first core at the same time, under the
//! same load; the dashboards have the second core, with the load. Only what the server does for them is measured: no browser draws.

use super::compare::Alternation;
use super::managed::{CostOptions, CpuCost};
use super::{FrontEnd, http, process};
use crate::control::{ADMIN_TOKEN, ADMIN_TOKEN_SHA256};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The result of the comparison.
pub(crate) struct DashboardCost {
    pub(crate) cpu: CpuCost,
    /// Bytes of events that dashboards read.
    pub(crate) read: u64,
}

/// Checks with open dashboards, as a part of those without.
pub(crate) const GOAL: f64 = 0.95;
/// Open dashboards, each of a browser of its own.
pub(crate) const DASHBOARDS: usize = 5;
/// Reads of a page now and then, beside the stream.
const PAGES: [&str; 3] = [
    "/v1/series?scope=rules&sort=denied&limit=8",
    "/v1/top?minutes=15",
    "/v1/status",
];
const PAGE_INTERVAL: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(20);

/// The dashboards, and the server that they look at.
struct Dashboards {
    /// None: it has not started.
    server: Mutex<Option<SocketAddr>>,
    is_over: AtomicBool,
    read: AtomicU64,
}

pub(crate) fn measure(tollgate: &Path, options: &CostOptions) -> Result<DashboardCost, String> {
    process::pin_self(1)?;
    let folder = std::env::temp_dir().join(format!("tollgate-bench-dashboards-{}", std::process::id()));
    let config = folder.join("tollgate.yaml");
    let write = || {
        std::fs::create_dir_all(&folder)?;
        let admin = format!("admin: {{ tokens: [{{ name: bench, sha256: {ADMIN_TOKEN_SHA256}, role: admin }}] }}\n");
        std::fs::write(&config, format!("{admin}{}", http::RULES))
    };
    write().map_err(|error| format!("cannot write {}: {error}", folder.display()))?;
    let check = http::check();
    let alternation = Alternation {
        name: "HTTP, open dashboards",
        requests: &check,
        connections: 50,
        rounds: options.rounds,
        seconds: options.seconds,
    };
    let dashboards = Dashboards {
        server: Mutex::default(),
        is_over: AtomicBool::new(false),
        read: AtomicU64::new(0),
    };
    let command = |address, admin: SocketAddr| {
        let mut command = super::serve(tollgate, &config, FrontEnd::Http, address);
        command.arg("--set").arg(format!("server.admin={admin}"));
        command
            .arg("--set")
            .arg(format!("data_dir={}", folder.join(admin.port().to_string()).display()));
        command
    };
    let measured = thread::scope(|scope| {
        for _ in 0..DASHBOARDS {
            scope.spawn(|| dashboards.stream());
            scope.spawn(|| dashboards.pages());
        }
        let without = |address| command(address, free_address());
        let with = |address| {
            let admin = free_address();
            *dashboards.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(admin);
            command(address, admin)
        };
        let measured = alternation.run_both([&without, &with]);
        dashboards.is_over.store(true, Ordering::Relaxed);
        measured
    });
    // A leftover folder does no harm.
    let _ = std::fs::remove_dir_all(&folder);
    let [without, with] = measured?;
    if without.errors() + with.errors() > 0 {
        return Err(format!("{} checks failed", without.errors() + with.errors()));
    }
    Ok(DashboardCost {
        cpu: CpuCost::of(&with, &without),
        read: dashboards.read.load(Ordering::Relaxed),
    })
}

/// A free address; one that cannot be bound fails when the server starts.
fn free_address() -> SocketAddr {
    process::free_address().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0)))
}

impl Dashboards {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// A request to the server; none while there is no server.
    fn send(&self, path: &str) -> Option<TcpStream> {
        let address = (*self.server.lock().unwrap_or_else(PoisonError::into_inner))?;
        let mut stream = TcpStream::connect(address).ok()?;
        // So that the end of the run is noticed.
        stream.set_read_timeout(Some(Duration::from_secs(3))).ok()?;
        let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {ADMIN_TOKEN}\r\n\r\n");
        stream.write_all(head.as_bytes()).ok()?;
        Some(stream)
    }

    /// Reads events, of one server after the other.
    fn stream(&self) {
        let mut bytes = [0; 16 << 10];
        while !self.is_over() {
            let opened = self.send("/v1/stream?decisions=1&rules=default/api");
            let Some(mut stream) = opened else {
                thread::sleep(RETRY);
                continue;
            };
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                self.read.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
    }

    /// Reads what pages show beside the stream.
    fn pages(&self) {
        while !self.is_over() {
            for path in PAGES {
                if let Some(mut stream) = self.send(path) {
                    let _ = stream.read(&mut [0; 4 << 10]);
                }
            }
            for _ in 0..50 {
                if !self.is_over() {
                    thread::sleep(PAGE_INTERVAL / 50);
                }
            }
        }
    }
}
