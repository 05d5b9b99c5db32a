//! A running `tollgate serve` with a dashboard, on ports and in a folder of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A server; its folder goes with it.
pub(crate) struct DashboardServer {
    child: Child,
    banner: String,
    folder: PathBuf,
}

impl DashboardServer {
    /// Starts it with further settings, `name=value`.
    pub(crate) fn start(settings: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tollgate-dashboard-{}-{count}", std::process::id()));
        fs::create_dir_all(&folder).expect("there is space for a folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("serve").current_dir(&folder);
        let own = [
            "data_dir=data",
            "server.admin=127.0.0.1:0",
            "server.http=127.0.0.1:0",
            "server.grpc=disabled",
            "server.resp=disabled",
            "server.debug=disabled",
        ];
        for setting in own.iter().chain(settings) {
            command.args(["--set", setting]);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("the program can be run");
        let mut stdout = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut banner = String::new();
        while !banner.ends_with("ready\n") {
            let read = stdout.read_line(&mut banner).expect("it writes UTF-8");
            assert!(read > 0, "it ended before it was ready: {banner}");
        }
        Self { child, banner, folder }
    }

    /// The text after a label of what it printed.
    pub(crate) fn line(&self, label: &str) -> &str {
        let found = self.banner.lines().find_map(|line| line.strip_prefix(label));
        found.unwrap_or_else(|| panic!("no {label} in {}", self.banner))
    }

    pub(crate) fn admin_url(&self) -> &str {
        let link = self.line("admin: ");
        link.split('#').next().unwrap_or(link).trim_end_matches('/')
    }

    /// The code of a printed link.
    pub(crate) fn code(&self, name: &str) -> &str {
        let mark = format!("#{name}=");
        let found = self.banner.lines().find_map(|line| line.split_once(&mark));
        found.unwrap_or_else(|| panic!("no {name} code in {}", self.banner)).1
    }
}

impl Drop for DashboardServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
