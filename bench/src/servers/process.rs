//! Servers as processes of their own, each on its core, ended by its process id.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running server. Ends when it is dropped.
pub(crate) struct Server {
    child: Child,
}

/// How many ticks of `/proc/PID/stat` make a second: fixed on Linux for what programs see.
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

    /// The processor time it has used. `taskset` becomes the program it starts, so the process is the server's.
    pub(crate) fn cpu(&self) -> Result<Duration, String> {
        let path = format!("/proc/{}/stat", self.child.id());
        let stat = std::fs::read_to_string(&path).map_err(|error| format!("the server is gone: {path}: {error}"))?;
        // The name may hold spaces; what follows it does not.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
        match (ticks(11), ticks(12)) {
            (Some(user), Some(system)) => Ok(Duration::from_secs_f64((user + system) / TICKS)),
            _ => Err(format!("cannot read {path}")),
        }
    }
}

impl Server {
    /// The bytes of it that are in memory.
    pub(crate) fn resident(&self) -> Result<u64, String> {
        self.status("VmRSS:")
    }

    /// The most that ever were.
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
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Moves this process, and the threads it is yet to start, to one core.
pub(crate) fn pin_self(core: usize) -> Result<(), String> {
    pin(std::process::id(), core)
}

/// Moves a process with its threads to one core.
pub(crate) fn pin(process: u32, core: usize) -> Result<(), String> {
    let mut taskset = Command::new("taskset");
    taskset
        .args(["-a", "-p", "-c"])
        .arg(core.to_string())
        .arg(process.to_string());
    finish(taskset.stdout(Stdio::null()), "server and load need a core each")
}

/// Runs a command to its end.
pub(crate) fn finish(command: &mut Command, otherwise: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{otherwise}: {command:?} ended with {status}")),
        Err(error) => Err(format!("{otherwise}: {command:?}: {error}")),
    }
}
