//! One request of the admin API, and its response, which is held against the OpenAPI document.

use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};
use tollgate_test_kit::http::{Answer, Client};

/// A request. It has a connection of its own.
#[derive(Clone)]
pub(crate) struct Request {
    address: SocketAddr,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(address: SocketAddr, method: &str, target: &str) -> Self {
        Self {
            address,
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn token(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    /// As our own page sends it, with the cookie of a session.
    pub(crate) fn page(self, cookie: &str) -> Self {
        let request = self.header("Sec-Fetch-Site", "same-origin").header("X-Tollgate", "1");
        match cookie {
            "" => request,
            cookie => request.header("Cookie", cookie),
        }
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        let request = self.header("Content-Type", "application/json");
        request.body(body.to_string())
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn if_match(self, tag: &str) -> Self {
        self.header("If-Match", tag)
    }

    pub(crate) fn if_absent(self) -> Self {
        self.header("If-None-Match", "*")
    }

    /// Sends it as it is, and checks the response.
    pub(crate) fn send(&self) -> Answer {
        let answer = self.send_unchecked();
        check(&self.method, &self.target, &answer);
        answer
    }

    /// Sends it, and requires a status.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Answer {
        let answer = self.send();
        assert_eq!(
            answer.status, status,
            "{} {}: {}",
            self.method, self.target, answer.body
        );
        answer
    }

    /// Sends it, and requires one of these statuses.
    #[track_caller]
    pub(crate) fn expect_one_of(&self, statuses: &[u16]) -> Answer {
        let answer = self.send();
        assert!(
            statuses.contains(&answer.status),
            "{} {}: {} {}",
            self.method,
            self.target,
            answer.status,
            answer.body
        );
        answer
    }

    /// Sends it, and requires an error of this status and code.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) -> Value {
        let answer = self.expect(status);
        let problem = answer.json();
        assert_eq!(
            problem["code"], code,
            "{} {}: {}",
            self.method, self.target, answer.body
        );
        problem
    }

    /// Sends it to a path that the document need not have.
    pub(crate) fn send_unchecked(&self) -> Answer {
        let mut client = Client::connect(self.address);
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", self.body.len()));
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        client.send(bytes);
        client.answer()
    }
}

impl Request {
    /// Sends it, and returns the status; the response to HEAD has a length and no body.
    pub(crate) fn send_unchecked_head(&self) -> u16 {
        let text = self.send_for_head();
        text.split(' ')
            .nth(1)
            .unwrap_or_else(|| panic!("{text}"))
            .parse()
            .unwrap()
    }

    /// Sends it as the last request of its connection, and returns the head of the response.
    pub(crate) fn send_for_head(&self) -> String {
        let mut client = Client::connect(self.address);
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
            self.method, self.target, self.address
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        client.send(head + "\r\n");
        let text = client.rest();
        text.split_once("\r\n\r\n")
            .map_or(text.clone(), |(head, _)| head.to_owned())
    }
}

/// The value of `Set-Cookie` up to its attributes: what a browser sends back.
pub(crate) fn cookie_of(answer: &Answer) -> String {
    let set = answer.header("set-cookie").expect("a login sets a cookie");
    set.split(';').next().unwrap().to_owned()
}

/// One member of each element of a list.
#[track_caller]
pub(crate) fn column<'a>(list: &'a Value, member: &str) -> Vec<&'a Value> {
    list.as_array().unwrap().iter().map(|item| &item[member]).collect()
}

/// A text as part of a query.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte);
    let each = text.bytes().map(|byte| match plain(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    each.collect()
}

/// The OpenAPI document, from the first server that was asked.
pub(crate) fn document(address: SocketAddr) -> Arc<Value> {
    static DOCUMENT: Mutex<Option<Arc<Value>>> = Mutex::new(None);
    let mut document = DOCUMENT.lock().unwrap();
    let read = || Arc::new(Request::new(address, "GET", "/v1/openapi.json").send_unchecked().json());
    Arc::clone(document.get_or_insert_with(read))
}

type Validators = HashMap<String, Arc<jsonschema::Validator>>;

static VALIDATORS: LazyLock<Mutex<Validators>> = LazyLock::new(Mutex::default);
static CHECKED: LazyLock<Mutex<Option<Arc<Value>>>> = LazyLock::new(Mutex::default);

/// Makes the document known to the checks of responses.
pub(crate) fn use_document(address: SocketAddr) {
    let document = document(address);
    *CHECKED.lock().unwrap() = Some(document);
}

/// Holds a response against the document.
#[track_caller]
fn check(method: &str, target: &str, answer: &Answer) {
    let Some(document) = CHECKED.lock().unwrap().clone() else {
        panic!("a server of the fixture makes the document known")
    };
    let path = target.split('?').next().unwrap();
    let responses = &document["paths"][path][method.to_ascii_lowercase()]["responses"];
    assert!(responses.is_object(), "{method} {path} is not described");
    let exact = answer.status.to_string();
    let range = format!("{}XX", answer.status / 100);
    let name = if responses.get(&exact).is_some() { exact } else { range };
    let response = &responses[&name];
    assert!(
        response.is_object(),
        "{method} {path}: {} is not described: {}",
        answer.status,
        answer.body
    );
    let Some(content) = response.get("content") else {
        assert_eq!(answer.body, "", "{method} {path}: a body that is not described");
        return;
    };
    let kind = answer.header("content-type").unwrap_or_default();
    let kind = kind.split(';').next().unwrap();
    let schema = &content[kind]["schema"];
    assert!(
        schema.is_object(),
        "{method} {path} {name}: the type {kind:?} is not described"
    );
    let instance = match kind.ends_with("json") && kind != "application/x-ndjson" {
        true => answer.json(),
        false => json!(answer.body),
    };
    let key = format!("{method} {path} {name} {kind}");
    let validator = {
        let mut known = VALIDATORS.lock().unwrap();
        let compile = || {
            let whole = json!({ "allOf": [schema], "components": document["components"] });
            Arc::new(jsonschema::draft202012::new(&whole).unwrap())
        };
        Arc::clone(known.entry(key.clone()).or_insert_with(compile))
    };
    let errors: Vec<String> = validator
        .iter_errors(&instance)
        .map(|error| format!("{error} at {}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{key}: {errors:#?}\n{}", answer.body);
}
