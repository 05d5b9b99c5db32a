//! Connections, for every front end alike: listeners, TLS, limits on connections and memory, idle timeouts, drain.
//!
//! `http_client.rs` is the other side: commands, webhooks and the exporter of metrics call servers.
//!
//! A front end implements `accept::FrontEnd` and hands each of its connections to `serve_connection`. It knows bytes
//! and requests; everything here knows neither.

pub(super) mod accept;
pub mod authority_io;
mod connection;
pub(crate) mod http_client;
pub(super) mod idle;
pub mod listen;
pub(super) mod memory_budget;
mod per_ip;
pub(super) mod prefixed_io;
pub(super) mod sensor_io;
pub mod tls;

pub(super) use connection::{ConnectionHandle, StageReceiver, TimeoutAction, idle_grace, serve_connection};

/// The methods of `AsyncWrite` for a wrapper that writes straight to its field `stream`.
macro_rules! write_through {
    () => {
        fn poll_write(
            self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            bytes: &[u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::pin::Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
        }

        fn poll_write_vectored(
            self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            slices: &[std::io::IoSlice<'_>],
        ) -> std::task::Poll<std::io::Result<usize>> {
            std::pin::Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
        }

        fn is_write_vectored(&self) -> bool {
            self.stream.is_write_vectored()
        }

        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::pin::Pin::new(&mut self.get_mut().stream).poll_flush(cx)
        }

        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::pin::Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
        }
    };
}
use write_through;
