//! A server that is not a control plane, or a bad one: it answers every request as the test says.

use crate::program::{CommandOutput, run_at};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use tollgate_test_kit::TestFolder;

/// Runs until the test ends.
pub(crate) struct StubServer {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl StubServer {
    /// Answers with the bytes that `reply` returns for the method and the path, such as `POST /v1/plan`.
    pub(crate) fn start(reply: impl Fn(&str) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &reply, &seen);
            }
        });
        Self { url, requests }
    }

    /// Runs a command against it, without a token.
    pub(crate) fn run(&self, folder: &TestFolder, args: &[&str]) -> CommandOutput {
        run_at(folder, &self.url, "", args)
    }

    /// The heads of all requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no test panics with it").clone()
    }
}

/// A connection has one request: the program opens one for each.
fn serve(mut stream: TcpStream, reply: &impl Fn(&str) -> Vec<u8>, seen: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.parse::<u64>())?
            .ok()
    });
    let mut body = Vec::new();
    // The program may close before it has sent all.
    let _ = reader.take(length.unwrap_or(0)).read_to_end(&mut body);
    let target = head.lines().next().unwrap_or_default();
    let target = target.split(['?', ' ']).take(2).collect::<Vec<_>>().join(" ");
    let bytes = reply(&target);
    seen.lock().expect("no test panics with it").push(head);
    // It may not wait for the reply.
    let _ = stream.write_all(&bytes);
}

/// A response with a JSON body.
pub(crate) fn json(status: &str, body: &str) -> Vec<u8> {
    response(status, "application/json", body)
}

pub(crate) fn response(status: &str, media_type: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
