//! One gate behind all front ends.

use std::net::SocketAddr;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tollgate::server::gate::{Gate, Phase};
use tollgate::server::grpc::{self, GrpcSettings};
use tollgate::server::headers::Dialects;
use tollgate::server::http::{self, Forward, Gateway, HttpSettings, RequestField, UnknownDomainPolicy};
use tollgate::server::net::listen::{Address, Listener};
use tollgate::server::resp::{self, RespSettings};
use tollgate::server::store::AnyStore;
use tollgate_limiter::core::network::Networks;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::{ParserOptions, RuleSet, RulesParser};
use tollgate_limiter::core::yaml;
use tollgate_test_kit::one_thread_runtime;

/// Forward-auth settings that read each attribute from a header of its name.
fn forward() -> Forward {
    let header = |name: &str| (name.into(), RequestField::from_name(&format!("header:{name}")).unwrap());
    Forward {
        gateway: Gateway::Traefik,
        attributes: ["protocol", "user", "tier", "path", "points"].map(header).to_vec(),
        trusted_proxies: Networks::default(),
        unknown_domain: UnknownDomainPolicy::Deny,
    }
}

pub(crate) struct TestServer {
    pub(crate) gate: Arc<Gate>,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) runtime: Runtime,
}

impl TestServer {
    pub(crate) fn start(rules: &str, store: impl FnOnce() -> AnyStore) -> Self {
        let node = yaml::parse(&Origin::new("rules.yaml", format!("rules:{rules}"))).unwrap();
        let mut reader = RulesParser::new(ParserOptions::default());
        reader.add_file(&node);
        let rules = reader.finish().unwrap_or_else(|problems| panic!("{problems:?}")).rules;
        Self::serve(rules, Dialects::default(), store)
    }

    /// With headers of these dialects.
    pub(crate) fn serve(rules: RuleSet, headers: Dialects, store: impl FnOnce() -> AnyStore) -> Self {
        let runtime = one_thread_runtime();
        // The shared store spawns its connection when it is created.
        let gate = runtime.block_on(async { Arc::new(Gate::new(rules, store())) });
        gate.advance_phase(Phase::Ready);
        let bind = || {
            let listener = runtime
                .block_on(Listener::bind(&"127.0.0.1:0".parse().unwrap()))
                .unwrap();
            let Ok(Address::Tcp(address)) = listener.address() else {
                panic!("a TCP listener has a TCP address")
            };
            (listener, address)
        };
        let ((listener, http), (calls, grpc), (commands, resp)) = (bind(), bind(), bind());
        let never = std::future::pending;
        runtime.spawn(http::serve(
            listener,
            Arc::clone(&gate),
            HttpSettings {
                headers,
                forward: Some(forward()),
                ..HttpSettings::default()
            },
            never(),
        ));
        runtime.spawn(resp::serve(
            commands,
            Arc::clone(&gate),
            RespSettings::default(),
            never(),
        ));
        let settings = GrpcSettings {
            headers,
            ..GrpcSettings::default()
        };
        runtime.spawn(grpc::serve(calls, Arc::clone(&gate), settings, never()));
        Self {
            gate,
            http,
            grpc,
            resp,
            runtime,
        }
    }
}
