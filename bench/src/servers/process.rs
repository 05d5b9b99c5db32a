//! Server processes, each on its core, ended by process id.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running server. Ends when it is dropped.
pub(crate) struct Server {
    child: Child,
}

/// Ticks per second in `/proc/PID/stat`: fixed on Linux for user space.
const TICKS: f64 = 100.0;

impl Server {
    /// Starts `command` on one core.
    pub(crate) fn start(command: &mut Command, core: usize) -> Result<Self, String> {
        let mut pinned = Command::new("taskset");
        pinned.arg("-c").arg(core.to_string()).arg(command.get_program());
        pinned.args(command.get_args());
        let child = pinned.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("cannot start {command:?}: {error}"))?;
        Ok(Self { child })
    }

    /// Its CPU time. `taskset` executes the program in its own process, so the process is the server.
    pub(crate) fn cpu(&self) -> Result<Duration, String> {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(&path).map_err(|error| format!("the server is gone: {path}: {error}"))?;
        // The name may contain spaces; the fields after it do not.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
        match (ticks(11), ticks(12)) {
            (Some(user), Some(system)) => Ok(Duration::from_secs_f64((user + system) / TICKS)),
            _ => Err(format!("cannot read {path}")),
        }
    }
}

impl Server {
    /// Its resident bytes.
    pub(crate) fn resident(&self) -> Result<u64, String> {
        self.status("VmRSS:")
    }

    /// The peak of its resident bytes.
    pub(crate) fn peak_resident(&self) -> Result<u64, String> {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> Result<u64, String> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path).map_err(|error| format!("the server is gone: {path}: {error}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        kilobytes
            .map(|kilobytes| kilobytes * 1024)
            .ok_or_else(|| format!("cannot read {path}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Pins this process, and the threads it starts later, to one core.
pub(crate) fn pin_self(core: usize) -> Result<(), String> {
    pin(std::process::id(), core)
}

/// Pins a process with its threads to one core.
pub(crate) fn pin(process: u32, core: usize) -> Result<(), String> {
    let mut taskset = Command::new("taskset");
    taskset
        .args(["-a", "-p", "-c"])
        .arg(core.to_string())
        .arg(process.to_string());
    finish(taskset.stdout(Stdio::null()), "server and load need a core each")
}

/// The path of this program.
pub(crate) fn this_binary() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))
}

/// Builds the product with the Cargo profile of this program, and returns its path. The environment variable `BENCH_PROGRAM` names
/// one that is built already.
pub(crate) fn build_product() -> Result<PathBuf, String> {
    if let Some(program) = std::env::var_os("BENCH_PROGRAM") {
        return Ok(PathBuf::from(program));
    }
    let this = this_binary()?;
    let built = this.parent().ok_or("this program has no parent directory")?;
    let target = built.parent().ok_or("this program is not in a target directory")?;
    // The output directory has the name of its profile, with this exception.
    let profile = match built.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(profile) => profile,
    };
    let mut build = Command::new("cargo");
    build
        .args(["build", "--profile", profile, "--package", "tollgate", "--target-dir"])
        .arg(target);
    finish(&mut build, "the product cannot be built")?;
    Ok(built.join("tollgate"))
}

/// An address on loopback with a free port.
pub(crate) fn free_address() -> Result<SocketAddr, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| format!("no free port: {error}"))?;
    listener.local_addr().map_err(|error| format!("no free port: {error}"))
}

/// Runs a command to its end.
pub(crate) fn finish(command: &mut Command, otherwise: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{otherwise}: {command:?} ended with {status}")),
        Err(error) => Err(format!("{otherwise}: {command:?}: {error}")),
    }
}
