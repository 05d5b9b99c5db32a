//! A paced `reqwest::Client`.

use super::pacing::{Exchange, Pacing, PacingError, repeatability};
use reqwest::{Client, ClientBuilder, Request, Response};
use rustls::crypto::{CryptoProvider, ring};
use std::fmt;
use tollgate_limiter::core::protect::RetryDecision;
use tollgate_limiter::store::Store;
use tollgate_limiter::store::memory::Memory;

/// A `reqwest::Client` that waits instead of being denied, and retries within a budget. Cheap to clone: all clones share
/// the pace.
///
/// ```no_run
/// use tollgate_limiter::Limiter;
/// use tollgate_tower::client::{PacerLayer, PacingClient};
///
/// # async fn call() -> Result<(), Box<dyn std::error::Error>> {
/// let pace = PacerLayer::new(Limiter::in_memory()).learn();
/// let client = PacingClient::new(PacingClient::builder().build()?, pace.pacing());
/// let request = client.inner().get("http://127.0.0.1:8080/").build()?;
/// let response = client.execute(request).await?;
/// # Ok(())
/// # }
/// ```
pub struct PacingClient<S: Store = Memory> {
    client: Client,
    pacing: Pacing<S>,
}

impl PacingClient {
    /// The builder of a client to pace. Its TLS uses the cryptography that the program installed in rustls; if it
    /// installed none, this installs `ring`.
    pub fn builder() -> ClientBuilder {
        if CryptoProvider::get_default().is_none() {
            // Lost against another thread: that one's is installed.
            let _ = ring::default_provider().install_default();
        }
        Client::builder()
    }
}

impl<S: Store> PacingClient<S> {
    /// This client at this pace: see [`PacerLayer::pacing`](super::PacerLayer::pacing).
    pub fn new(client: Client, pacing: Pacing<S>) -> Self {
        Self { client, pacing }
    }

    /// The client, which builds requests. What it sends itself is not paced.
    pub fn inner(&self) -> &Client {
        &self.client
    }

    /// Its pace.
    pub fn pacing(&self) -> &Pacing<S> {
        &self.pacing
    }

    /// Sends a request, after a wait if its limits ask for one, and again where that helps. A request with a streamed
    /// body is sent once.
    ///
    /// # Errors
    /// A wait above `max_wait` before the request was ever sent, or the last error of the client.
    pub async fn execute(&self, request: Request) -> Result<Response, PacingError<reqwest::Error>> {
        let host = request.url().host_str().unwrap_or_default().to_owned();
        let host = request
            .url()
            .port()
            .map_or(host.clone(), |port| format!("{host}:{port}"));
        let mut request = request;
        let mut attempt = 1;
        let mut last = None;
        loop {
            let sent = match (self.pacing.clear(&host).await, last.take()) {
                (Ok(sent), _) => sent,
                // It was sent, and this is what came back.
                (Err(_), Some(result)) => return result,
                (Err(wait), None) => return Err(PacingError::TooLong { wait }),
            };
            let copy = request.try_clone();
            let repeatability = repeatability(request.method(), request.headers(), copy.is_some());
            let result = self.client.execute(request).await;
            let response = result.as_ref().ok();
            let decision = sent.end(&Exchange {
                attempt,
                repeatability,
                response: response.map(|response| (response.status(), response.headers())),
            });
            match (decision, copy) {
                (RetryDecision::Retry(wait), Some(copy)) => {
                    last = Some(result.map_err(PacingError::Service));
                    tokio::time::sleep(wait.into()).await;
                    request = copy;
                    attempt += 1;
                }
                _ => return result.map_err(PacingError::Service),
            }
        }
    }
}

impl<S: Store> Clone for PacingClient<S> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            pacing: self.pacing.clone(),
        }
    }
}

impl<S: Store> fmt::Debug for PacingClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacingClient").finish_non_exhaustive()
    }
}
