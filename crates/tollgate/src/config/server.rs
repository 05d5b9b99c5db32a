//! `server`: addresses of the front ends, TLS, and limits on connections.

mod response_headers;

use super::reader::SettingsReader;
use crate::compat::ratelimit::exposure;
use crate::server::http::HttpLimits;
use crate::server::net::listen::Address;
use crate::server::net::tls::TlsFiles;
use std::time::Duration;
use tollgate_limiter::core::problem::{Location, Problem};
use tollgate_limiter::core::quantity;
use tollgate_limiter::core::yaml::{Node, NodeKind};

/// The section, validated.
#[derive(Default)]
pub(super) struct ServerSettings {
    pub(super) http: ListenAddress,
    pub(super) grpc: ListenAddress,
    pub(super) resp: ListenAddress,
    pub(super) debug: ListenAddress,
    pub(super) admin: ListenAddress,
    pub(super) tls: Option<TlsFiles>,
    pub(super) tls_only: Option<Vec<&'static str>>,
    pub(super) limits: HttpLimits,
    pub(super) resp_idle_timeout: Option<Duration>,
}

/// The address of a front end, and its location unless it is the default. `None` if it is disabled.
pub(super) type ListenAddress = Option<(Address, Option<Location>)>;

impl SettingsReader<'_> {
    /// Reads the section. Only files of `ratelimit` open the debug port by default.
    pub(super) fn server(&mut self, node: Option<&Node>, has_ratelimit_files: bool) -> ServerSettings {
        let fields = node.and_then(|node| node.fields("`server`", &KEYS, &mut self.problems));
        let find = |key| fields.as_ref()?.value(key);
        let mut server = ServerSettings {
            http: self.listen(find("http"), HTTP),
            grpc: self.listen(find("grpc"), GRPC),
            resp: self.listen(find("resp"), RESP),
            debug: match (find("debug"), has_ratelimit_files) {
                (None, false) => None,
                (node, _) => self.listen(node, DEBUG),
            },
            admin: self.listen(find("admin"), ADMIN),
            ..ServerSettings::default()
        };
        // The admin API alone is a control service, if it is configured; the default alone is no reason to run.
        let has_admin = matches!(server.admin, Some((_, Some(_))));
        let listeners = [&server.http, &server.grpc, &server.resp];
        if let (true, Some(node)) = (listeners.into_iter().all(Option::is_none) && !has_admin, find("http"))
            && node.scalar() == Some(DISABLED)
        {
            self.problems
                .error_with(&node.location, "no front end is enabled", "give one of them an address");
        }
        if let Some(node) = find("tls") {
            server.tls = self.tls(node);
            server.tls_only = self.tls_only(node);
        }
        if let Some(node) = find("limits") {
            self.limits(node, &mut server);
        }
        server
    }

    /// Rejects listeners that other machines reach without authentication. Returns those that are exposed all the same,
    /// because they come from the environment of `ratelimit`. The admin API is no part of this: it always authenticates, and
    /// needs an admin of its database, which is checked at the start.
    pub(super) fn check_exposure(
        &mut self,
        server: &ServerSettings,
        has_tokens: bool,
        has_password: bool,
    ) -> Vec<&'static str> {
        let requires_client_certificates = server.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let mut exposed = Vec::new();
        if has_tokens {
            return exposed;
        }
        let has_client_certificates = |name: &str| {
            requires_client_certificates && server.tls_only.as_ref().is_none_or(|only| only.contains(&name))
        };
        let password = "set a password (`auth: { resp_password: … }`), or ";
        let listeners = [
            ("http", &server.http, false, ""),
            ("grpc", &server.grpc, false, ""),
            ("resp", &server.resp, has_password, password),
            ("debug", &server.debug, false, ""),
        ];
        for (name, listen, is_guarded, alternative) in listeners {
            if let (Some((address, Some(location))), false) = (listen, is_guarded || has_client_certificates(name))
                && !address.is_local()
            {
                if self.raw.is_from_ratelimit_env(location) {
                    self.warn_exposed(name, address, location);
                    exposed.push(name);
                    continue;
                }
                self.problems.error_with(
                    location,
                    format!("other machines can reach {address}, and no authentication is configured"),
                    format!(
                        "{alternative}configure tokens (`auth: {{ tokens_file: tokens.yaml }}`), or require client certificates \
                         (`server: {{ tls: {{ cert: …, key: …, client_ca: … }} }}`), or listen on 127.0.0.1"
                    ),
                );
            }
        }
        exposed
    }

    /// Warns of a listener that is as open as `ratelimit`'s.
    fn warn_exposed(&mut self, name: &str, address: &Address, location: &Location) {
        let (text, hint) = exposure::warning(name, address);
        self.problems.push(Problem::warning(location, text).with_hint(hint));
    }

    fn listen(&mut self, node: Option<&Node>, default: &str) -> ListenAddress {
        match node {
            Some(node) => self.address(node).map(|address| (address, Some(node.location.clone()))),
            None => default.parse().ok().map(|address| (address, None)),
        }
    }

    /// `None` if it is disabled or invalid.
    fn address(&mut self, node: &Node) -> Option<Address> {
        let text = node.text("an address, or `disabled`", &mut self.problems)?;
        if text == DISABLED {
            return None;
        }
        match text.parse() {
            Ok(Address::Unix(path)) => Some(Address::Unix(self.raw.base_dir_of(&node.location).join(path))),
            Ok(address) => Some(address),
            Err(_) => {
                let hint = match (text.strip_prefix(':').unwrap_or(text).parse::<u16>(), &node.kind) {
                    (Ok(port), _) => format!("did you mean `127.0.0.1:{port}`?"),
                    (_, NodeKind::Bool(false)) => format!("did you mean `{DISABLED}`?"),
                    _ => format!(
                        "write an IP address and a port, such as `127.0.0.1:8080` or `[::1]:8080`, or `unix:/path`, \
                         or `{DISABLED}`"
                    ),
                };
                self.problems
                    .error_with(&node.location, format!("invalid address `{}`", truncate(text)), hint);
                None
            }
        }
    }

    fn tls(&mut self, node: &Node) -> Option<TlsFiles> {
        let fields = node.fields(
            "`tls`",
            &["cert", "key", "client_ca", "client_names", "only"],
            &mut self.problems,
        )?;
        let certificate = fields.require("`tls`", "cert", "cert: server.pem", &mut self.problems);
        let key = fields.require("`tls`", "key", "key: server.key", &mut self.problems);
        let client_ca = fields
            .find("client_ca")
            .map(|node| self.path(node, "a certificate file"));
        let client_names = fields.find("client_names").map(|node| self.client_names(node));
        if let (Some(node), None) = (fields.find("client_names"), &client_ca) {
            self.problems.error_with(
                &node.location,
                "`client_names` has no effect: clients are not asked for certificates",
                "name the authority of client certificates: `client_ca: clients.pem`",
            );
        }
        Some(TlsFiles {
            certificate: self.path(certificate?, "a certificate file")?,
            key: self.path(key?, "a private key file")?,
            client_ca: match client_ca {
                Some(path) => Some(path?),
                None => None,
            },
            client_names: match client_names {
                Some(names) => Some(names?),
                None => None,
            },
        })
    }

    /// The listeners with TLS, if not all of them.
    fn tls_only(&mut self, node: &Node) -> Option<Vec<&'static str>> {
        let NodeKind::Map(entries) = &node.kind else {
            return None;
        };
        let (_, only) = entries.iter().find(|(key, _)| &*key.text == "only")?;
        let names = only.one_or_more().iter();
        names
            .map(|node| node.keyword("a listener", &LISTENERS, &mut self.problems))
            .collect()
    }

    fn client_names(&mut self, node: &Node) -> Option<Box<[Box<str>]>> {
        let names = node.one_or_more().iter();
        let names: Option<Vec<Box<str>>> = names
            .map(|node| {
                node.text("a name in a client certificate", &mut self.problems)
                    .map(Box::from)
            })
            .collect();
        if names.as_ref().is_some_and(Vec::is_empty) {
            let hint = "list at least one name, or remove `client_names`";
            self.problems
                .error_with(&node.location, "no client would be accepted", hint);
        }
        names.map(Vec::into_boxed_slice)
    }

    fn limits(&mut self, node: &Node, server: &mut ServerSettings) {
        let limits = &mut server.limits;
        let Some(fields) = node.fields("`limits`", &LIMITS, &mut self.problems) else {
            return;
        };
        let problems = &mut self.problems;
        let mut count = |key: &str, range: std::ops::RangeInclusive<u64>| {
            let node = fields.value(key)?;
            node.integer("a number", range, problems)
        };
        if let Some(connections) = count("connections", 1..=1_000_000) {
            limits.connections = usize::try_from(connections).unwrap_or(usize::MAX);
        }
        if let Some(connections) = count("connections_per_address", 1..=1_000_000) {
            limits.connections_per_address = usize::try_from(connections).unwrap_or(usize::MAX);
        }
        if let Some(headers) = count("headers", 1..=1_000) {
            limits.headers = usize::try_from(headers).unwrap_or(usize::MAX);
        }
        if let Some(streams) = count("streams", 1..=10_000) {
            limits.streams = u32::try_from(streams).unwrap_or(u32::MAX);
        }
        if let Some(node) = fields.value("header_bytes")
            && let Some(bytes) = node.read("a number of bytes", quantity::parse_size, &mut self.problems)
        {
            match usize::try_from(bytes) {
                Ok(bytes) if (8 << 10..=1 << 20).contains(&bytes) => limits.header_bytes = bytes,
                _ => self
                    .problems
                    .error_with(&node.location, "out of range", "write from `8KiB` to `1MiB`"),
            }
        }
        for (key, timeout) in [
            ("header_timeout", &mut limits.header_timeout),
            ("idle_timeout", &mut limits.idle_timeout),
            ("body_timeout", &mut limits.body_timeout),
        ] {
            if let Some(node) = fields.value(key)
                && let Some(duration) = self.duration(node, TIMEOUT_MAX)
            {
                *timeout = duration;
            }
        }
        server.resp_idle_timeout = fields
            .value("resp_idle_timeout")
            .and_then(|node| self.duration(node, RESP_IDLE_MAX));
    }
}

/// The start of a text.
fn truncate(text: &str) -> String {
    text.chars().take(60).collect()
}

pub(super) const LIMITS: [&str; 9] = [
    "connections",
    "connections_per_address",
    "headers",
    "header_bytes",
    "header_timeout",
    "idle_timeout",
    "body_timeout",
    "streams",
    "resp_idle_timeout",
];

pub(super) const KEYS: [&str; 7] = ["http", "grpc", "resp", "admin", "debug", "tls", "limits"];

/// The names for `tls.only`.
pub(super) const LISTENERS: [(&str, &str); 5] = [
    ("http", "http"),
    ("grpc", "grpc"),
    ("resp", "resp"),
    ("admin", "admin"),
    ("debug", "debug"),
];

const HTTP: &str = "127.0.0.1:8080";
const GRPC: &str = "127.0.0.1:8081";
const RESP: &str = "127.0.0.1:6380";
const ADMIN: &str = "127.0.0.1:8090";
const DEBUG: &str = "127.0.0.1:6070";
const DISABLED: &str = "disabled";
const TIMEOUT_MAX: Duration = Duration::from_secs(3_600);
/// Clients of this protocol keep their connections open.
const RESP_IDLE_MAX: Duration = Duration::from_secs(30 * 86_400);
