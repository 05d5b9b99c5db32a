//! Variables of the listeners and their certificates.

use super::EnvReader;
use tollgate_limiter::core::yaml::{Node, NodeKind};

impl EnvReader<'_> {
    pub(super) fn server(&mut self) {
        self.listen("http", ("HOST", "PORT"), 8080);
        self.listen("debug", ("DEBUG_HOST", "DEBUG_PORT"), 6070);
        match self.find("GRPC_UDS") {
            Some(path) => self.put(
                &["server", "grpc"],
                "GRPC_UDS",
                NodeKind::Text(format!("unix:{path}").into()),
            ),
            None => self.listen("grpc", ("GRPC_HOST", "GRPC_PORT"), 8081),
        }
        // envoyproxy/ratelimit has no such port, and on many machines a Redis uses the default one.
        self.put(
            &["server", "resp"],
            super::RUNTIME_ROOT,
            NodeKind::Text("disabled".into()),
        );
        if self.flag("GRPC_SERVER_USE_TLS") == Some(true) {
            self.tls();
        }
    }

    /// Sets a listen address. The defaults listen on all interfaces, as its users rely on.
    fn listen(&mut self, key: &str, (host, port): (&str, &str), default: u16) {
        let number = match self.find(port).map(str::parse::<u16>) {
            None => default,
            Some(Ok(number)) => number,
            Some(Err(_)) => {
                let hint = format!("write for example `{port}={default}`");
                return self.error(port, "expected the number of a port", hint);
            }
        };
        let address = self.find(host).unwrap_or("0.0.0.0");
        let bare = address.trim_start_matches('[').trim_end_matches(']');
        let address = if bare.contains(':') {
            format!("[{bare}]")
        } else {
            bare.to_owned()
        };
        let is_address = address == "localhost" || bare.parse::<std::net::IpAddr>().is_ok();
        if !is_address {
            let hint = format!("write an IP address of this machine: `{host}=0.0.0.0`");
            return self.error(host, "expected an IP address", hint);
        }
        let variable = if self.find(port).is_none() && self.find(host).is_some() {
            host
        } else {
            port
        };
        self.put(
            &["server", key],
            variable,
            NodeKind::Text(format!("{address}:{number}").into()),
        );
    }

    /// Sets TLS for gRPC only: probes use the HTTP port without it.
    fn tls(&mut self) {
        for (name, key) in [
            ("GRPC_SERVER_TLS_CERT", "cert"),
            ("GRPC_SERVER_TLS_KEY", "key"),
            ("GRPC_CLIENT_TLS_CACERT", "client_ca"),
            ("GRPC_CLIENT_TLS_SAN", "client_names"),
        ] {
            match self.find(name) {
                Some(value) => self.put(&["server", "tls", key], name, NodeKind::Text(value.into())),
                None if matches!(key, "cert" | "key") => {
                    let hint = format!("write for example `{name}=/certs/{key}.pem`");
                    self.error(name, "GRPC_SERVER_USE_TLS needs a certificate and its key", hint);
                }
                None => {}
            }
        }
        let location = self.location("GRPC_SERVER_USE_TLS");
        let kind = NodeKind::Text("grpc".into());
        let only = NodeKind::List(vec![Node { location, kind }]);
        self.put(&["server", "tls", "only"], "GRPC_SERVER_USE_TLS", only);
    }
}
