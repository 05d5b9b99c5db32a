//! The first run: the links that the server prints, who gets in by them, and what keeps the admin API from starting.

use crate::http::{get, post};
use crate::program::{CommandOutput, ControlServer, output, run_at, serve};
use std::fs;
use std::net::TcpListener;
use tollgate_test_kit::TestFolder;

/// Everything that is in a folder.
fn entries(folder: &TestFolder) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).expect("it exists");
    entries
        .map(|entry| entry.expect("it can be read").file_name().into_string().expect("UTF-8"))
        .collect()
}

fn setup_body(code: &str, name: &str) -> String {
    format!(r#"{{"code":"{code}","name":"{name}","password":"correct horse battery"}}"#)
}

/// The code of the printed link.
fn view_body(server: &ControlServer) -> String {
    let link = server.line("admin: ");
    let (_, code) = link.split_once("#view=").unwrap_or_else(|| panic!("{link}"));
    format!(r#"{{"view":"{code}"}}"#)
}

/// A server that ends at once.
fn refused(folder: &TestFolder, flags: &[&str]) -> CommandOutput {
    let ended = output(&mut serve(folder, flags));
    assert_eq!(ended.code, Some(2), "{flags:?}: {ended:?}");
    ended
}

/// Runs a command that opens the database itself.
fn run_offline(folder: &TestFolder, args: &[&str]) -> CommandOutput {
    let args = [args, &["--offline", "--set", "data_dir=data"]].concat();
    run_at(folder, "", "", &args)
}

#[test]
fn nothing_is_written_before_the_first_change_and_the_printed_addresses_answer() {
    let folder = TestFolder::new();
    let mut server = ControlServer::start_with_flags(&folder, &[]);
    let url = server.admin_url();
    assert!(
        server.line("setup: ").starts_with(&format!("{url}/#setup=")),
        "{}",
        server.banner
    );
    assert_eq!(get(&url, "/", "").status, 200);
    assert_eq!(get(&url, "/v1/livez", "").status, 200);
    let ready = get(server.line("http: "), "/readyz", "");
    assert_eq!(
        (ready.status, &ready.json()["rules"]["source"]),
        (200, &"file".into()),
        "{ready:?}"
    );

    // Reading, looking and failing change nothing.
    let session = post(&url, "/v1/session", "", &view_body(&server));
    let cookie = format!("cookie: {}", session.cookie());
    for path in ["/v1/status", "/v1/rules", "/v1/overrides", "/v1/versions"] {
        assert_eq!(get(&url, path, &cookie).status, 200, "{path}");
    }
    assert_eq!(
        post(&url, "/v1/setup", "", &setup_body("AAAA-AAAA-AAAA", "eve")).status,
        403
    );
    assert_eq!(entries(&folder), [""; 0]);

    assert_eq!(
        post(&url, "/v1/setup", "", &setup_body(&server.setup_code(), "anna")).status,
        201
    );
    assert_eq!(entries(&folder), ["tollgate-data"]);
    server.stop();
}

#[test]
fn the_setup_link_creates_exactly_one_admin_and_is_void_afterwards() {
    let folder = TestFolder::new();
    let mut server = ControlServer::start(&folder);
    let (url, code) = (server.admin_url(), server.setup_code());
    let view = post(&url, "/v1/session", "", &view_body(&server));
    let cookie = format!("cookie: {}", view.cookie());
    assert_eq!(get(&url, "/v1/me", &cookie).status, 200);

    // Four at once, with the right code: below the limit on guesses.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let posts: Vec<_> = (0..4)
            .map(|number| {
                let (url, body) = (&url, setup_body(&code, &format!("admin-{number}")));
                scope.spawn(move || post(url, "/v1/setup", "", &body).status)
            })
            .collect();
        posts.into_iter().map(|post| post.join().expect("it answers")).collect()
    });
    let created = statuses.iter().filter(|status| **status == 201).count();
    assert_eq!(created, 1, "{statuses:?}");
    assert!(
        statuses.iter().all(|status| [201, 409].contains(status)),
        "{statuses:?}"
    );

    assert_eq!(post(&url, "/v1/setup", "", &setup_body(&code, "eve")).status, 409);
    assert_eq!(
        post(&url, "/v1/session", "", &view_body(&server)).status,
        401,
        "the view code is void"
    );
    assert_eq!(get(&url, "/v1/me", &cookie).status, 401, "so is the session by it");
    server.stop();

    // A later start prints no code.
    let server = ControlServer::start(&folder);
    assert!(!server.banner.contains('#'), "{}", server.banner);
    assert!(!server.banner.contains("setup: "), "{}", server.banner);
}

#[test]
fn the_printed_link_makes_a_viewer_who_changes_nothing() {
    let folder = TestFolder::new();
    let server = ControlServer::start(&folder);
    let url = server.admin_url();
    assert_eq!(
        get(&url, "/v1/status", "").status,
        401,
        "without it nobody sees anything"
    );
    assert_eq!(post(&url, "/v1/session", "", r#"{"view":"AAAA-AAAA"}"#).status, 401);
    let session = post(&url, "/v1/session", "", &view_body(&server));
    let cookie = format!("cookie: {}", session.cookie());
    let me = get(&url, "/v1/me", &cookie).json();
    assert_eq!(
        (&me["role"], &me["setup_open"]),
        (&"viewer".into(), &true.into()),
        "{me}"
    );
    let body = r#"{"name":"eve","role":"admin"}"#;
    assert_eq!(post(&url, "/v1/users", &cookie, body).status, 403);
    assert!(!folder.path().join("data").exists());
}

#[test]
fn a_taken_default_address_disables_the_admin_api_and_a_taken_configured_one_ends_the_start() {
    let folder = TestFolder::new();
    // Another program may have it: then it is taken as well.
    let _default = TcpListener::bind("127.0.0.1:8090");
    let mut server = ControlServer::spawn(serve(&folder, &[]));
    server.read_until("ready");
    assert_eq!(server.line("admin: "), "disabled (127.0.0.1:8090 is in use)");
    assert_eq!(get(server.line("http: "), "/readyz", "").status, 200);
    server.stop();

    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it is bound");
    let ended = refused(&folder, &["--set", &format!("server.admin={address}")]);
    assert!(
        ended.stderr.contains(&format!("cannot listen on {address}")),
        "{ended:?}"
    );

    let mut server = ControlServer::spawn(serve(&folder, &["--set", "server.admin=disabled"]));
    server.read_until("ready");
    assert!(!server.banner.contains("admin"), "{}", server.banner);
}

#[test]
fn an_address_that_others_reach_needs_tls_and_an_admin() {
    let folder = TestFolder::new();
    let open = ["--set", "server.admin=0.0.0.0:0", "--set", "data_dir=data"];
    let ended = refused(&folder, &open);
    assert!(ended.stderr.contains("without TLS"), "{ended:?}");
    let proxied = [&open[..], &["--set", "admin.external_url=https://gate.example"]].concat();
    let ended = refused(&folder, &proxied);
    assert!(ended.stderr.contains("tollgate user add --offline"), "{ended:?}");
    assert_eq!(entries(&folder), [""; 0], "a failed start writes nothing");

    let added = run_offline(&folder, &["user", "add", "anna"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    assert!(added.stdout.starts_with("anna: admin\npassword: "), "{added:?}");
    let mut server = ControlServer::spawn(serve(&folder, &proxied));
    server.read_until("ready");
    assert!(!server.banner.contains("setup: "), "{}", server.banner);

    // The password works, and the database is the server's while it runs.
    let password = added.stdout.lines().find_map(|line| line.strip_prefix("password: "));
    let body = format!(r#"{{"name":"anna","password":"{}"}}"#, password.expect("it is printed"));
    assert_eq!(post(&server.admin_url(), "/v1/session", "", &body).status, 200);
    let added = run_offline(&folder, &["token", "add", "ci"]);
    assert_eq!(added.code, Some(2), "{added:?}");
    assert!(added.stderr.contains("has locked"), "{added:?}");
    server.stop();
    let again = run_offline(&folder, &["user", "add", "anna"]);
    assert_eq!(again.code, Some(1), "{again:?}");
}

#[test]
fn a_token_of_the_settings_works_without_a_database() {
    let folder = TestFolder::new();
    // The SHA-256 of `a token of the settings`.
    folder.write(
        "tokens.yaml",
        "tokens: [{ name: ci, sha256: SHA, role: admin }]\n"
            .replace("SHA", TOKEN_SHA256)
            .as_str(),
    );
    let none = [
        "--set",
        "control.database=none",
        "--set",
        "admin.tokens_file=tokens.yaml",
    ];
    let server = ControlServer::start_with_flags(&folder, &none);
    let url = server.admin_url();
    assert!(
        !server.banner.contains("setup: ") && !server.banner.contains('#'),
        "{}",
        server.banner
    );
    let bearer = "authorization: Bearer a token of the settings";
    let me = get(&url, "/v1/me", bearer);
    assert_eq!(
        (&me.json()["name"], &me.json()["role"]),
        (&"ci".into(), &"admin".into()),
        "{me:?}"
    );
    let refused = post(&url, "/v1/users", bearer, r#"{"name":"eve","role":"viewer"}"#);
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (409, &"no-database".into()),
        "{refused:?}"
    );
    assert_eq!(get(&url, "/v1/me", "authorization: Bearer another").status, 401);
    assert_eq!(entries(&folder), ["tokens.yaml"]);
}

const TOKEN_SHA256: &str = "38344f39d0e3b32c4378e869a84b47fc0a50efcb65aa6ee92dfa00a9c0e4febd";
