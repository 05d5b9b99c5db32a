//! The test kit of the product: a server for one test on a port of its own, and clients that speak its protocols by bytes.
//!
//! A crate, so that every test target uses the same code. Only tests depend on it.

#![expect(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by a panic, and the names say what the helpers do"
)]

pub mod certificates;
mod folder;
pub mod grpc;
mod grpc_client;
pub mod http;
mod http_client;
pub mod postgres;
mod program;
pub mod resp;
mod resp_client;
mod server;
pub mod table;

/// The arguments of an Envoy with the file `envoy.yaml`.
pub const ENVOY_ARGUMENTS: [&str; 7] = [
    "-c",
    "envoy.yaml",
    "--disable-hot-restart",
    "--concurrency",
    "1",
    "-l",
    "warning",
];

pub use folder::TestFolder;
pub use program::run_to_end;
pub use server::{
    TestServer, assert_metrics, eventually, eventually_within, manual_clock, memory_store, one_thread_runtime,
    redis_store, rule_set,
};
