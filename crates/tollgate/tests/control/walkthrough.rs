//! Does what `docs/control-plane.md` says, step by step, and compares every output with the one the page shows.

use crate::page::{self, Step};
use crate::program::ControlServer;
use std::process::{Command, Stdio};
use tollgate_limiter::testing::servers::{Server, ServerKind};
use tollgate_test_kit::TestFolder;
use tollgate_test_kit::postgres::Postgres;

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/control-plane.md");
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A reader at a shell.
struct Reader {
    folder: TestFolder,
    servers: Vec<ControlServer>,
    /// Texts of the page, and what they are in this run.
    names: Vec<(String, String)>,
    /// The last secret that a command printed.
    secret: String,
    token: String,
}

impl Reader {
    fn new() -> Self {
        Self {
            folder: TestFolder::new(),
            servers: Vec::new(),
            names: Vec::new(),
            secret: String::new(),
            token: String::new(),
        }
    }

    fn follow(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::File { name, text } => self.folder.write(&name, &self.actual(&text)),
                Step::Command { command, output } => {
                    let found = self.run(&command, &output);
                    let found = self
                        .names
                        .iter()
                        .fold(found, |text, (shown, real)| text.replace(real, shown));
                    assert!(
                        page::matches(&output, &found),
                        "$ {command}\nthe page shows:\n{output}\nfound:\n{found}"
                    );
                }
            }
        }
    }

    fn actual(&self, text: &str) -> String {
        self.names
            .iter()
            .fold(text.to_owned(), |text, (shown, real)| text.replace(shown, real))
    }

    /// Does what a command says. `shown` is the output that the page has for it.
    fn run(&mut self, command: &str, shown: &str) -> String {
        if let Some(flags) = command.strip_prefix("tollgate serve") {
            return self.serve(flags, shown);
        }
        if command.starts_with("export TOLLGATE_ADMIN_TOKEN=") {
            self.token.clone_from(&self.secret);
            return String::new();
        }
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_tollgate"));
        let programs = program.parent().expect("it is in a folder").display();
        // A reader says yes to every question.
        self.folder.write(".input", "y\n");
        let script = format!("PATH={programs}:$PATH\n{{ {}\n}} 2>&1", self.actual(command));
        let mut shell = Command::new("sh");
        if let Some(first) = self.servers.first() {
            shell.env("TOLLGATE_URL", first.line("http: "));
            shell.env("TOLLGATE_ADMIN_URL", first.admin_url());
        }
        let output = shell
            .args(["-c", &script])
            .current_dir(self.folder.path())
            .env("TOLLGATE_ADMIN_TOKEN", &self.token)
            .stdin(self.folder.open(".input"))
            .stderr(Stdio::inherit())
            .output()
            .expect("there is a shell");
        let text = String::from_utf8(output.stdout).expect("it writes UTF-8");
        if let Some(secret) = text.lines().find_map(|line| line.strip_prefix("token: ")) {
            self.secret = secret.to_owned();
        }
        // The answer is not part of what the program prints, but of what a reader sees.
        text.replace("[y/N] ", "[y/N] y\n")
    }

    /// Starts a server on free ports, whatever ports the page names.
    fn serve(&mut self, flags: &str, shown: &str) -> String {
        let flags: Vec<&str> = flags.split_whitespace().collect();
        let free: Vec<String> = flags
            .iter()
            .map(|flag| match flag.split_once("=127.0.0.1:") {
                Some((name, _)) => format!("{name}=127.0.0.1:0"),
                None => (*flag).to_owned(),
            })
            .collect();
        let server =
            ControlServer::start_with_flags(&self.folder, &free.iter().map(String::as_str).collect::<Vec<_>>());
        for (setting, label, default) in [("server.http=", "http: ", "8080"), ("server.admin=", "admin: ", "8090")] {
            let shown = flags.iter().find_map(|flag| flag.strip_prefix(setting));
            let shown = shown.map_or_else(|| format!("127.0.0.1:{default}"), str::to_owned);
            let real = server.line(label).trim_start_matches("http://");
            let real = real.split('/').next().unwrap_or(real).to_owned();
            self.names.push((shown, real));
        }
        let code = shown.lines().find_map(|line| line.split_once("#setup="));
        self.names
            .extend(code.map(|(_, code)| (code.to_owned(), server.setup_code())));
        let banner = server.banner.clone();
        self.servers.push(server);
        banner
    }
}

#[test]
fn the_walkthrough_of_the_page_goes_as_it_is_written() {
    let mut reader = Reader::new();
    let steps = page::steps(&page(), &["From a file to a managed rule", "From Git"]);
    assert!(steps.len() > 15, "the page has a walkthrough: {steps:?}");
    reader.follow(steps);
}

#[test]
fn the_fleet_of_the_page_shares_one_postgresql() {
    let postgres = Postgres::shared();
    let redis = Server::start(ServerKind::Redis70);
    let mut reader = Reader::new();
    for (shown, real) in [
        ("postgres://tollgate@127.0.0.1/tollgate", postgres.create_database()),
        ("redis://127.0.0.1:6379/0", redis.url()),
    ] {
        reader.names.push((shown.to_owned(), real));
    }
    reader.follow(page::steps(&page(), &["A fleet with PostgreSQL"]));
    assert_eq!(reader.servers.len(), 2);
}
