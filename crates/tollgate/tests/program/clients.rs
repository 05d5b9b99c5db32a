//! The clients of docs/clients.md, as they are written there, against a server.

use crate::docs::blocks;
use crate::test_server::TestServer;
use std::process::Command;

const CLIENTS: &str = include_str!("../../../../docs/clients.md");
const LINES_MAX: usize = 15;

/// Four calls against a limit of two in two seconds, and one by a caller that is banned, with too little budget for a retry.
const PYTHON: &str = r#"
import sys
def check(_):
    body = b'{"attributes":{"user":"u_1"}}'
    return call(urllib.request.Request(sys.argv[1] + "/v1/check", body)).status
print([check(0) for _ in range(4)])
request = urllib.request.Request(sys.argv[1] + "/v1/check", b'{"attributes":{"user":"banned"}}')
budget = 8
try:
    call(request)
except urllib.error.HTTPError as error:
    print(error.code, budget)
"#;

const JAVASCRIPT: &str = r#"
const check = async (user) => {
  const options = { method: "POST", body: JSON.stringify({ attributes: { user } }) };
  return (await call(process.argv[2] + "/v1/check", options)).status;
};
(async () => {
  const statuses = [];
  for (let n = 0; n < 4; n++) statuses.push(await check("u_1"));
  console.log("[" + statuses.join(", ") + "]");
  budget = 8;
  const status = await check("banned");
  console.log(status, budget);
})();
"#;

#[test]
fn the_python_client_waits_as_long_as_it_is_asked_to() {
    runs("python", "client.py", "python3", PYTHON);
}

#[test]
fn the_javascript_client_waits_as_long_as_it_is_asked_to() {
    runs("js", "client.js", "node", JAVASCRIPT);
}

fn runs(language: &str, file: &str, program: &str, calls: &str) {
    let client = blocks(CLIENTS, language).next().expect("the page has this client");
    assert!(client.lines().count() <= LINES_MAX, "{} lines", client.lines().count());
    let rules = "rules:\n- { id: api, per: user, limit: 2/2s }\n- { id: none, when: { user: banned }, limit: 0/min }\n";
    let (folder, server) = TestServer::with_settings(rules);
    let script = folder.path().join(file);
    std::fs::write(&script, format!("{client}\n{calls}")).expect("a file can be written");
    let mut command = Command::new(program);
    command.arg(&script).arg(server.url());
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; scripts/clients installs it"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        text,
        "[200, 200, 200, 200]\n429 9\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Each wait was long enough: one denial at most of each call beyond the burst, and that of the last.
    let metrics = server.get("/metrics").body;
    let denied = metrics
        .lines()
        .filter(|line| line.starts_with("tollgate_decisions_total") && line.contains("\"deny\""))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum::<u64>();
    assert!((2..=3).contains(&denied), "{denied} denials: {metrics}");
}
