//! A running `tollgate serve` with a control plane, and the commands that call it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use tollgate_test_kit::TestFolder;

/// A server with a control plane, on ports of its own.
pub(crate) struct ControlServer {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// The lines it printed up to `ready`.
    pub(crate) banner: String,
    pub(crate) token: String,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl ControlServer {
    pub(crate) fn start(folder: &TestFolder) -> Self {
        Self::start_with(folder, &[])
    }

    /// The same with further settings, `name=value`.
    pub(crate) fn start_with(folder: &TestFolder, settings: &[&str]) -> Self {
        let settings = ["data_dir=data"].iter().chain(settings);
        let flags: Vec<&str> = settings.flat_map(|setting| ["--set", setting]).collect();
        Self::start_with_flags(folder, &flags)
    }

    /// The same with these flags.
    pub(crate) fn start_with_flags(folder: &TestFolder, flags: &[&str]) -> Self {
        let mut server = Self::spawn(serve(folder, &[&["--set", "server.admin=127.0.0.1:0"], flags].concat()));
        server.read_until("ready");
        server
    }

    /// A server that may not be ready yet.
    pub(crate) fn spawn(command: Command) -> Self {
        Self::spawn_with(command, Stdio::null())
    }

    /// The same with a file for its log.
    pub(crate) fn spawn_logging(command: Command, log: fs::File) -> Self {
        Self::spawn_with(command, log.into())
    }

    fn spawn_with(mut command: Command, log: Stdio) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the program can be run");
        let stdout = BufReader::new(child.stdout.take().expect("it is a pipe"));
        Self {
            child,
            stdout,
            banner: String::new(),
            token: String::new(),
        }
    }

    /// Reads what it prints up to a line with this start.
    pub(crate) fn read_until(&mut self, start: &str) {
        let mut line = String::new();
        while !line.starts_with(start) {
            line.clear();
            let read = self.stdout.read_line(&mut line).expect("it writes UTF-8");
            assert!(read > 0, "it ended before it was ready: {}", self.banner);
            self.banner.push_str(&line);
        }
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) fn stop(&mut self) {
        let id = self.child.id().to_string();
        let asked = Command::new("kill").args(["-TERM", &id]).status();
        assert!(asked.is_ok_and(|asked| asked.success()), "it runs");
        let status = self.child.wait().expect("it is a child");
        assert_eq!(status.code(), Some(0), "it ends well");
    }

    /// The text after a label of the banner.
    pub(crate) fn line(&self, label: &str) -> &str {
        let found = self.banner.lines().find_map(|line| line.strip_prefix(label));
        found.unwrap_or_else(|| panic!("no {label} in {}", self.banner))
    }

    pub(crate) fn setup_code(&self) -> String {
        let link = self.line("setup: ");
        link.split_once("#setup=")
            .unwrap_or_else(|| panic!("{link}"))
            .1
            .to_owned()
    }

    pub(crate) fn admin_url(&self) -> String {
        let link = self.line("admin: ");
        link.split(['#', ' '])
            .next()
            .unwrap_or(link)
            .trim_end_matches('/')
            .to_owned()
    }

    /// Runs a command against this server.
    pub(crate) fn run(&self, folder: &TestFolder, args: &[&str]) -> CommandOutput {
        self.run_as(folder, &self.token, args)
    }

    /// The same with another token.
    pub(crate) fn run_as(&self, folder: &TestFolder, token: &str, args: &[&str]) -> CommandOutput {
        let mut command = client(folder, &self.admin_url(), token, args);
        output(command.env("TOLLGATE_URL", self.line("http: ")))
    }

    /// Makes the first token, which all commands use from then on.
    pub(crate) fn set_up(&mut self, folder: &TestFolder, name: &str) {
        let text = self.succeed(folder, &["token", "add", name, "--setup", &self.setup_code()]);
        self.token = secret(&text, "token: ");
    }

    /// The same for a command that must succeed; returns what it printed.
    pub(crate) fn succeed(&self, folder: &TestFolder, args: &[&str]) -> String {
        let output = self.run(folder, args);
        assert_eq!(output.code, Some(0), "{args:?}: {output:?}");
        output.stdout
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The text after a label in the output of a command.
pub(crate) fn secret(text: &str, label: &str) -> String {
    let found = text.lines().find_map(|line| line.strip_prefix(label));
    found.unwrap_or_else(|| panic!("no {label} in {text}")).to_owned()
}

/// Runs a command against an admin API.
pub(crate) fn run_at(folder: &TestFolder, url: &str, token: &str, args: &[&str]) -> CommandOutput {
    output(&mut client(folder, url, token, args))
}

/// The same with input.
pub(crate) fn run_with_input(folder: &TestFolder, url: &str, input: &str, args: &[&str]) -> CommandOutput {
    folder.write("input", input);
    let file = fs::File::open(folder.path().join("input")).expect("it was written");
    output(client(folder, url, "tgt_a_b", args).stdin(file))
}

fn client(folder: &TestFolder, url: &str, token: &str, args: &[&str]) -> Command {
    let mut command = command(folder);
    command
        .args(args)
        .env("TOLLGATE_ADMIN_URL", url)
        .env("TOLLGATE_ADMIN_TOKEN", token);
    command
}

/// `tollgate serve` with one front end and these flags.
pub(crate) fn serve(folder: &TestFolder, flags: &[&str]) -> Command {
    let mut command = command(folder);
    command.args(["serve", "--set", "server.http=127.0.0.1:0"]).args(flags);
    for name in [
        "TOLLGATE_SERVER__GRPC",
        "TOLLGATE_SERVER__RESP",
        "TOLLGATE_SERVER__DEBUG",
    ] {
        command.env(name, "disabled");
    }
    command
}

/// Runs a command to its end.
pub(crate) fn output(command: &mut Command) -> CommandOutput {
    let output = command.output().expect("the program can be run");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it writes UTF-8");
    CommandOutput {
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// The program in a folder, with settings from the test and from nowhere else.
fn command(folder: &TestFolder) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.current_dir(folder.path()).stdin(Stdio::null());
    for name in [
        "TOLLGATE_TOKEN",
        "TOLLGATE_TOKEN_FILE",
        "TOLLGATE_ADMIN_URL",
        "TOLLGATE_ADMIN_TOKEN",
    ] {
        command.env_remove(name);
    }
    command
}
