//! Plain HTTP to one address, for what no command does.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The cookie it sets, as a client sends it back.
    pub(crate) fn cookie(&self) -> String {
        let line = self.head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        let line = line.unwrap_or_else(|| panic!("no cookie: {self:?}"));
        line.split(';').next().unwrap_or_default().to_owned()
    }
}

pub(crate) fn get(url: &str, path: &str, header: &str) -> Response {
    request(url, "GET", path, header, "")
}

/// A post as the page of the server makes it.
pub(crate) fn post(url: &str, path: &str, header: &str, body: &str) -> Response {
    let header = format!("x-tollgate: 1\r\norigin: {url}\r\ncontent-type: application/json\r\n{header}");
    request(url, "POST", path, &header, body)
}

pub(crate) fn request(url: &str, method: &str, path: &str, header: &str, body: &str) -> Response {
    let address = url.strip_prefix("http://").unwrap_or_else(|| panic!("{url}"));
    let mut stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{url}: {error}"));
    let timeout = stream.set_read_timeout(Some(Duration::from_secs(30)));
    timeout.expect("a timeout can be set");
    let separator = if header.is_empty() || header.ends_with("\r\n") {
        ""
    } else {
        "\r\n"
    };
    let text = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {}\r\n{header}{separator}\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Response {
        status: status.unwrap_or_else(|| panic!("{head}")),
        head: head.to_owned(),
        body: body.to_owned(),
    }
}
