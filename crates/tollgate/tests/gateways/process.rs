//! Programs that a test starts, and ends by their process.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tollgate_test_kit::TestFolder;

/// A running program. Ends when it is dropped.
pub(crate) struct Process(Child);

impl Process {
    /// Runs it in a folder, with what it says in a file there.
    pub(crate) fn spawn(mut command: Command, folder: &TestFolder, log: &str) -> Self {
        let create_log = || File::create(folder.path().join(log)).expect("there is room for a log");
        let out = create_log();
        let err = out.try_clone().expect("a file has several handles");
        let child = command
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}")))
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Ends it, as a crash would.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The log of a program, as far as it is written.
pub(crate) fn read_log(folder: &TestFolder, name: &str) -> String {
    let bytes = std::fs::read(folder.path().join(name)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A gateway as `scripts/gateways` left it.
pub(crate) fn gateway(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = root.join("target/gateways").join(name);
    assert!(
        program.exists(),
        "{name} is not installed: no {}; run scripts/gateways once",
        program.display()
    );
    program
}

/// A port that nobody listens on now.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    listener.expect("there are free ports").port()
}
