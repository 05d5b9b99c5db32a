//! The lines on stdout when a server is up: its addresses, a check to try, and `ready`.

use crate::config::Config;
use crate::server::admin::AdminLinks;
use crate::server::net::listen::Address;
use serde_json::{Map, Value};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use tollgate_limiter::core::rules::{Attempt, RuleSet, Test};

/// A check for a new user to try, one that matches a rule.
pub(super) struct SampleCheck(Value);

impl SampleCheck {
    /// An attempt that matches the first rule with a `per`, as far as its conditions can be guessed.
    pub(super) fn for_rules(rules: &RuleSet) -> Self {
        let mut attributes = Map::new();
        let mut body = Map::new();
        if let Some(rule) = rules.rules().iter().find(|rule| !rule.per().is_empty()) {
            for dimension in rule.per() {
                attributes.insert(dimension.attribute().to_owned(), "alice".into());
            }
            for condition in rule.when() {
                if let Test::OneOf(values) = condition.test()
                    && let Some(value) = values.first()
                {
                    attributes.insert(condition.attribute().to_owned(), (**value).into());
                }
            }
            if rule.domain() != Attempt::DOMAIN {
                body.insert("domain".into(), rule.domain().into());
            }
        }
        body.insert("attributes".into(), attributes.into());
        Self(body.into())
    }
}

/// The lines about the admin API.
pub(super) enum AdminLines {
    /// Its address, and the codes of the links.
    Serving(Address, AdminLinks),
    /// The reason why it has none.
    Unavailable(String),
}

/// Prints the addresses, and a check to try.
pub(super) fn print(bound: &[(&str, Address)], config: &Config, admin: Option<&AdminLines>, sample: &SampleCheck) {
    write(&text(bound, config, admin, sample));
}

/// Prints the last line. After it the server is ready for requests.
pub(super) fn print_ready() {
    write("ready\n");
}

fn write(text: &str) {
    let mut out = io::stdout().lock();
    // The server runs with stdout closed too.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn text(bound: &[(&str, Address)], config: &Config, admin: Option<&AdminLines>, sample: &SampleCheck) -> String {
    let mut text = String::new();
    for (name, address) in bound.iter().filter(|(name, _)| *name != "admin") {
        let scheme = match (*name, config.has_tls(name)) {
            ("http" | "debug", true) => "https://",
            ("http" | "debug", false) => "http://",
            ("resp", true) => "rediss://",
            ("resp", false) => "redis://",
            _ => "",
        };
        let scheme = if matches!(address, Address::Tcp(_)) { scheme } else { "" };
        text.push_str(&format!("{name}: {scheme}{address}\n"));
    }
    if let Some(admin) = admin {
        text.push_str(&admin_lines(admin, config));
    }
    if let Some((_, address)) = bound.iter().find(|(name, _)| *name == "http") {
        text.push_str(&format!("try: {}\n", curl(address, config, sample)));
    }
    text
}

/// The links of the admin API. A code is in the fragment, so that no access log sees it.
fn admin_lines(admin: &AdminLines, config: &Config) -> String {
    let (address, links) = match admin {
        AdminLines::Serving(address, links) => (address, links),
        AdminLines::Unavailable(reason) => return format!("admin: disabled ({reason})\n"),
    };
    let scheme = if config.has_tls("admin") { "https" } else { "http" };
    let base = match address {
        Address::Tcp(address) => format!("{scheme}://{}/", reachable(*address)),
        Address::Unix(_) => address.to_string(),
    };
    let mut text = match &links.view {
        Some(code) => format!("admin: {base}#view={code}\n"),
        None => format!("admin: {base}\n"),
    };
    if let Some(code) = &links.setup {
        text.push_str(&format!("setup: {base}#setup={code}\n"));
    }
    text
}

/// An address for a client on this machine: a wildcard is reached over loopback.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// The check as a command for a shell.
fn curl(http: &Address, config: &Config, sample: &SampleCheck) -> String {
    let scheme = if config.has_tls("http") { "https" } else { "http" };
    let target = match http {
        Address::Tcp(address) => format!("{scheme}://{}", reachable(*address)),
        Address::Unix(path) => format!("--unix-socket {} {scheme}://localhost", path.display()),
    };
    let token = if config.tokens.is_some() {
        "-H \"authorization: Bearer $TOKEN\" "
    } else {
        ""
    };
    let body = sample.0.to_string().replace('\'', "\\u0027");
    format!("curl -i {token}{target}/v1/check -d '{body}'")
}
