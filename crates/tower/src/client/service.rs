//! The service: waits, sends, and sends again.

use super::layer::HostOf;
use super::pacing::{Exchange, Pacing, PacingError, repeatability};
use super::repeat::RepeatBody;
use http::{Request, Response};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use tollgate_limiter::core::protect::RetryDecision;
use tollgate_limiter::store::Store;
use tower_service::Service;

/// A client that keeps to limits. Made by [`PacerLayer`](super::PacerLayer).
pub struct PacedService<T, S: Store, C> {
    service: T,
    pacing: Pacing<S>,
    host: HostOf,
    repeat: C,
}

impl<T, S: Store, C> PacedService<T, S, C> {
    pub(super) fn new(service: T, pacing: Pacing<S>, host: HostOf, repeat: C) -> Self {
        Self {
            service,
            pacing,
            host,
            repeat,
        }
    }

    /// Its pace, for what is learned elsewhere than in headers.
    pub fn pacing(&self) -> &Pacing<S> {
        &self.pacing
    }
}

impl<T, S, C, B, R> Service<Request<B>> for PacedService<T, S, C>
where
    T: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    T::Future: Send,
    T::Error: Send,
    S: Store + 'static,
    C: RepeatBody<B> + Clone + Send + Sync + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = PacingError<T::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(cx).map_err(PacingError::Service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was polled ready goes along; a clone stays.
        let clone = self.service.clone();
        let service = std::mem::replace(&mut self.service, clone);
        let (parts, body) = request.into_parts();
        let host = (self.host)(&parts);
        let send = Attempts {
            service,
            pacing: self.pacing.clone(),
            repeat: self.repeat.clone(),
            host,
        };
        Box::pin(send.run(Request::from_parts(parts, body)))
    }
}

/// The attempts of one request.
struct Attempts<T, S: Store, C> {
    service: T,
    pacing: Pacing<S>,
    repeat: C,
    host: String,
}

impl<T, S: Store, C> Attempts<T, S, C> {
    async fn run<B, R>(mut self, request: Request<B>) -> Result<Response<R>, PacingError<T::Error>>
    where
        T: Service<Request<B>, Response = Response<R>>,
        C: RepeatBody<B>,
    {
        let mut request = request;
        let mut attempt = 1;
        let mut last = None;
        loop {
            let sent = match (self.pacing.clear(&self.host).await, last.take()) {
                // The connection of the last response is free once it is dropped, and the service may need that.
                (Ok(sent), _) => sent,
                // It was sent, and this is what came back.
                (Err(_), Some(result)) => return result,
                (Err(wait), None) => return Err(PacingError::TooLong { wait }),
            };
            if attempt > 1 {
                poll_fn(|cx| self.service.poll_ready(cx))
                    .await
                    .map_err(PacingError::Service)?;
            }
            let copy = self.copy(&request);
            let repeatability = repeatability(request.method(), request.headers(), copy.is_some());
            let result = self.service.call(request).await;
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

    fn copy<B>(&self, request: &Request<B>) -> Option<Request<B>>
    where
        C: RepeatBody<B>,
    {
        let mut copy = Request::new(self.repeat.copy(request.body())?);
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        *copy.headers_mut() = request.headers().clone();
        *copy.extensions_mut() = request.extensions().clone();
        Some(copy)
    }
}

impl<T: Clone, S: Store, C: Clone> Clone for PacedService<T, S, C> {
    fn clone(&self) -> Self {
        Self {
            service: self.service.clone(),
            pacing: self.pacing.clone(),
            host: self.host.clone(),
            repeat: self.repeat.clone(),
        }
    }
}

impl<T: fmt::Debug, S: Store, C> fmt::Debug for PacedService<T, S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacedService")
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}
