//! Generated requests: no server error, and no response that the OpenAPI document does not describe.

use crate::fixture::{ADMIN, AdminServer};
use crate::rules::add_rule;
use crate::tables::set_row;
use std::path::Path;
use std::process::Command;

#[test]
fn generated_requests_find_no_server_error_and_no_violation_of_the_document() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // It installs schemathesis first where that was not done yet.
    let server = AdminServer::start();
    set_row(&server, "m_1", "5/min");
    add_rule(&server);
    let url = format!("http://{}", server.address);
    let output = Command::new(root.join("scripts/schemathesis"))
        .args([
            &url,
            ADMIN,
            "--seed=1",
            "--max-examples=10",
            "--phases=coverage,fuzzing",
            "--no-color",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Every operation but those of logins and the stream, which does not end.
    assert!(text.contains("Tested: 53") && text.contains("✅ Fuzzing"), "{text}");
}
