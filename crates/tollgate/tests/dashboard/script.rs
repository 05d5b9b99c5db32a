//! Scripts for Node that drive Chromium.

use crate::server::DashboardServer;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a script of this folder against a server; what it prints is the message of its failure.
pub(crate) fn run(name: &str, server: &DashboardServer) {
    let target = target_folder();
    let browser = target.join("browser");
    let is_installed = browser.join("chromium").exists() && browser.join("node_modules/playwright-core").exists();
    assert!(is_installed, "no browser in {}: run scripts/browser", browser.display());
    let mut command = Command::new("node");
    command
        .arg(Path::new("tests/dashboard").join(name))
        .env("TOLLGATE_BROWSER", &browser)
        .env("TOLLGATE_PICTURES", target.join("dashboard"))
        .env("TOLLGATE_ADMIN", server.admin_url())
        .env("TOLLGATE_HTTP", server.line("http: "))
        .env("TOLLGATE_SETUP", server.code("setup"))
        .env("TOLLGATE_VIEW", server.code("view"));
    succeed(command);
}

/// Runs Node with these arguments, in the folder of the crate.
pub(crate) fn node(args: &[&str]) {
    let mut command = Command::new("node");
    command.args(args);
    succeed(command);
}

#[expect(clippy::print_stdout, reason = "the figures of a page")]
fn succeed(mut command: Command) {
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let output = output.expect("node can be run: scripts/browser installs it");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}", output.status);
}

/// The folder `target` of the workspace, where `scripts/browser` installs; other folders of Cargo's make no difference to it.
pub(crate) fn target_folder() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    workspace
        .canonicalize()
        .expect("the crate is in a workspace")
        .join("target")
}
