//! What a server says on stdout when it is up: where it listens, something to try, and that it is ready.

use serde_json::{Map, Value};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tollgate::config::Config;
use tollgate::server::net::listen::Address;
use tollgate_limiter::core::rules::{Attempt, RuleSet, Test};

/// A first check to try, one that meets a rule.
pub(super) struct SampleCheck(Value);

impl SampleCheck {
    /// An attempt that the first rule with subjects is met by, as far as can be guessed.
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

/// Prints it. Whoever reads the last line may send requests.
pub(super) fn print(bound: &[(&str, Address)], config: &Config, sample: &SampleCheck) {
    let text = text(bound, config, sample);
    let mut out = io::stdout().lock();
    // Nobody may be listening, and the server serves all the same.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn text(bound: &[(&str, Address)], config: &Config, sample: &SampleCheck) -> String {
    let mut text = String::new();
    for (name, address) in bound {
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
    if let Some((_, address)) = bound.iter().find(|(name, _)| *name == "http") {
        text.push_str(&format!("try: {}\n", curl(address, config, sample)));
    }
    text + "ready\n"
}

/// A line that asks, to be pasted into a shell.
fn curl(http: &Address, config: &Config, sample: &SampleCheck) -> String {
    let scheme = if config.has_tls("http") { "https" } else { "http" };
    let target = match http {
        Address::Tcp(address) => {
            // An address that stands for all is reached by the one that is always there.
            let mut reachable = *address;
            match address.ip() {
                IpAddr::V4(ip) if ip.is_unspecified() => reachable.set_ip(Ipv4Addr::LOCALHOST.into()),
                IpAddr::V6(ip) if ip.is_unspecified() => reachable.set_ip(Ipv6Addr::LOCALHOST.into()),
                _ => {}
            }
            format!("{scheme}://{reachable}")
        }
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
