//! The gRPC front end: a server and a client.

pub use crate::grpc_client::{Answer, Client, SHOULD_RATE_LIMIT, descriptor, framed, hits, request_for};

use crate::server::{TestServer, front_end, manual_clock, memory_store, rule_set};
use tollgate::compat::ratelimit::CompatModes;
use tollgate::server::gate::Gate;
use tollgate::server::grpc::{self, GrpcSettings};
use tollgate::server::headers::Dialects;
use tollgate_limiter::core::problem::Origin;
use tollgate_limiter::core::rules::ratelimit::{self, DescriptorFiles, RatelimitOptions};
use tollgate_limiter::core::rules::{ParserOptions, RulesParser};

/// A server of Envoy's rate limit service.
pub type GrpcServer = TestServer<Grpc>;

front_end!(Grpc, GrpcSettings, grpc::serve);

impl GrpcServer {
    /// With the default settings, without headers to add.
    pub fn start(rules: &str) -> Self {
        Self::start_with(rules, settings())
    }

    /// With a file of envoyproxy/ratelimit.
    pub fn start_ratelimit(file: &str, options: RatelimitOptions) -> Self {
        let node = ratelimit::parse(&Origin::new("shop.yaml", file)).unwrap_or_else(|problems| panic!("{problems:?}"));
        let mut files = DescriptorFiles::new(false);
        files.add_file(&node);
        let (descriptors, _) = files.finish().unwrap_or_else(|problems| panic!("{problems:?}"));
        let mut parser = RulesParser::new(ParserOptions::default());
        parser.set_descriptors(descriptors, options);
        Self::over_memory(parser.finish().unwrap().rules, settings())
    }

    /// Without the rules it was configured with, and so not healthy.
    pub fn start_without_rules() -> Self {
        let clock = manual_clock();
        let gate = || {
            let gate = Gate::new(rule_set(""), memory_store(&clock));
            gate.compat().set_modes(CompatModes {
                healthy_with_rules: true,
                ..CompatModes::default()
            });
            gate.mark_rules_missing("no file fits this pattern");
            gate
        };
        Self::serve(gate, &clock, settings())
    }

    pub fn connect(&self) -> Client<'_> {
        Client::connect(&self.runtime, self.address)
    }
}

/// The defaults, without headers to add: tests of those ask for them.
pub fn settings() -> GrpcSettings {
    GrpcSettings {
        headers: Dialects::NONE,
        ..GrpcSettings::default()
    }
}
