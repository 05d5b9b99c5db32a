//! Protection of browsers: the host a request names, and the page it comes from.

use crate::server::admin::problem::AdminProblem;
use crate::server::admin::settings::{AdminOptions, ExternalUrl};
use crate::server::net::listen::Address;
use hyper::header::{HOST, HeaderName, ORIGIN};
use hyper::{HeaderMap, Method, Uri};
use std::net::IpAddr;

/// The hosts and origins that requests may name.
#[derive(Clone, Debug)]
pub(in crate::server::admin) struct BrowserGuard {
    /// None: a Unix socket.
    port: Option<u16>,
    ip: Option<IpAddr>,
    is_tls: bool,
    external: Option<ExternalUrl>,
}

impl BrowserGuard {
    pub(in crate::server::admin) fn new(options: &AdminOptions) -> Self {
        let ip = match &options.address {
            Address::Tcp(address) => Some(address.ip()),
            Address::Unix(_) => None,
        };
        Self {
            port: options.address.port(),
            ip,
            is_tls: options.tls.is_some(),
            external: options.settings.external_url.clone(),
        }
    }

    /// True if a client reaches the server over TLS, its own or a proxy's: then cookies are `Secure`.
    pub(in crate::server::admin) fn is_secure(&self) -> bool {
        self.is_tls || self.external.as_ref().is_some_and(|external| external.is_https)
    }

    /// The name of the session cookie.
    pub(in crate::server::admin) fn cookie_name(&self) -> String {
        match (self.is_secure(), self.port) {
            (true, _) => "__Host-tollgate".to_owned(),
            (false, Some(port)) => format!("tollgate_{port}"),
            (false, None) => "tollgate".to_owned(),
        }
    }

    /// Rejects a host that is not ours: a page that resolves its own name to our address must not reach us.
    pub(in crate::server::admin) fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), AdminProblem> {
        match named_host(uri, headers) {
            Some(host) if self.is_known(host) => Ok(()),
            _ => Err(AdminProblem::forbidden(
                "host",
                "this server has another name; use its address, localhost, or the name in `admin.external_url`",
            )),
        }
    }

    /// Rejects a request that changes something and was not made by our own page. One with a bearer token needs no check: a
    /// browser does not send it by itself.
    pub(in crate::server::admin) fn check_origin(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), AdminProblem> {
        if method.is_safe() {
            return Ok(());
        }
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let same_site = text(&SEC_FETCH_SITE);
        let is_same = match (same_site, text(&ORIGIN)) {
            (Some(site), _) => site == "same-origin",
            (None, Some(origin)) => self.is_own_origin(origin, named_host(uri, headers).unwrap_or_default()),
            (None, None) => false,
        };
        match is_same && text(&X_TOLLGATE) == Some("1") {
            true => Ok(()),
            false => Err(AdminProblem::forbidden(
                "origin",
                "a change without a bearer token needs `X-Tollgate: 1` and the `Origin` of this server",
            )),
        }
    }

    fn is_own_origin(&self, origin: &str, host: &str) -> bool {
        let external = self.external.as_ref();
        let is_secure = match external.filter(|external| external.authority.eq_ignore_ascii_case(host)) {
            Some(external) => external.is_https,
            None => self.is_tls,
        };
        let scheme = if is_secure { "https" } else { "http" };
        !host.is_empty() && origin.eq_ignore_ascii_case(&format!("{scheme}://{host}"))
    }

    fn is_known(&self, host: &str) -> bool {
        if self
            .external
            .as_ref()
            .is_some_and(|external| external.authority.eq_ignore_ascii_case(host))
        {
            return true;
        }
        let (name, port) = split(host);
        let has_port = match (port, self.port) {
            (_, None) => true,
            (Some(port), Some(own)) => port.parse() == Ok(own),
            (None, Some(own)) => own == if self.is_tls { 443 } else { 80 },
        };
        if !has_port {
            return false;
        }
        if name.eq_ignore_ascii_case("localhost") {
            return true;
        }
        match name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            Ok(ip) if ip.to_canonical().is_loopback() => true,
            Ok(ip) => self.ip.is_some_and(|own| own == ip || own.is_unspecified()),
            Err(_) => false,
        }
    }
}

/// The host that a request names: one, in its target or in its header.
fn named_host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Option<&'r str> {
    let mut hosts = headers.get_all(HOST).iter();
    match (uri.authority(), hosts.next(), hosts.next()) {
        (_, _, Some(_)) | (None, None, None) => None,
        (Some(authority), ..) => Some(authority.as_str()),
        (None, Some(host), None) => host.to_str().ok(),
    }
}

/// The host and the port of an authority.
fn split(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (authority, None),
    }
}

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const X_TOLLGATE: HeaderName = HeaderName::from_static("x-tollgate");

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(external: Option<&str>) -> BrowserGuard {
        BrowserGuard {
            port: Some(8090),
            ip: "127.0.0.1".parse().ok(),
            is_tls: false,
            external: external.map(|authority| ExternalUrl {
                is_https: true,
                authority: authority.to_owned(),
            }),
        }
    }

    #[test]
    fn only_own_hosts_are_accepted() {
        let guard = guard(Some("gate.example"));
        for host in [
            "127.0.0.1:8090",
            "localhost:8090",
            "[::1]:8090",
            "gate.example",
            "GATE.example",
        ] {
            assert!(guard.is_known(host), "{host}");
        }
        for host in [
            "evil.example:8090",
            "127.0.0.1",
            "127.0.0.1:80",
            "10.0.0.1:8090",
            "",
            "gate.example.evil",
        ] {
            assert!(!guard.is_known(host), "{host}");
        }
    }

    #[test]
    fn a_change_needs_the_own_origin_and_the_header() {
        let guard = guard(None);
        let check = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(HeaderName::from_static(name), value.parse().unwrap());
            }
            guard
                .check_origin(&Method::POST, &Uri::from_static("/"), &headers)
                .is_ok()
        };
        let host = ("host", "127.0.0.1:8090");
        assert!(check(&[host, ("origin", "http://127.0.0.1:8090"), ("x-tollgate", "1")]));
        assert!(check(&[host, ("sec-fetch-site", "same-origin"), ("x-tollgate", "1")]));
        assert!(!check(&[host, ("origin", "http://127.0.0.1:8090")]));
        assert!(!check(&[host, ("origin", "http://evil.example"), ("x-tollgate", "1")]));
        assert!(!check(&[
            host,
            ("sec-fetch-site", "same-site"),
            ("origin", "http://127.0.0.1:8090"),
            ("x-tollgate", "1")
        ]));
        assert!(!check(&[host, ("x-tollgate", "1")]));
        assert!(
            guard
                .check_origin(&Method::GET, &Uri::from_static("/"), &HeaderMap::new())
                .is_ok()
        );
    }
}
