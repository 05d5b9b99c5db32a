//! HTTP as a client: addresses, certificate authorities and one exchange, for the commands that call a server and for the servers
//! that call others. It uses hyper's client connection; a pooled client would need connectors for TLS and Unix sockets that no
//! dependency brings, and would choose the address it connects to by itself.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::http::uri::Authority;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::error::Error;
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

/// A parsed `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpUrl {
    /// The name that the certificate must have; none: without TLS.
    pub(crate) tls_name: Option<ServerName<'static>>,
    /// The host as written, an IPv6 address in brackets.
    pub(crate) host: String,
    /// The port, that of the scheme if none is written.
    pub(crate) port: u16,
    /// Host and port as written, for the header `Host`.
    pub(crate) authority: String,
    /// The path with its query.
    pub(crate) target: String,
}

/// The reason why a URL of another scheme, or of none, is rejected.
pub(crate) const NOT_HTTP: &str = "it must start with http:// or https://";

/// The reason why an exchange failed.
pub(crate) type ExchangeError = Box<dyn Error + Send + Sync>;

impl HttpUrl {
    /// Parses a URL without user, password and fragment.
    ///
    /// # Errors
    /// The reason why it cannot be called. It does not repeat the URL, which may hold a secret.
    pub(crate) fn parse(url: &str) -> Result<Self, &'static str> {
        if url.contains('@') {
            return Err("it must contain no user and no password");
        }
        let uri: Uri = url.parse().map_err(|_| "not a URL")?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(NOT_HTTP);
        };
        if url.contains('#') {
            return Err("it must have no fragment");
        }
        let host = authority.host();
        let name = host.trim_start_matches('[').trim_end_matches(']');
        if name.is_empty() {
            return Err("it has no host");
        }
        let port = port(authority)?;
        let (default_port, tls_name) = match scheme {
            "http" => (80, None),
            "https" => {
                let name = ServerName::try_from(name.to_owned());
                (
                    443,
                    Some(name.map_err(|_| "not a host name that a certificate can have")?),
                )
            }
            _ => return Err(NOT_HTTP),
        };
        Ok(Self {
            tls_name,
            host: host.to_owned(),
            port: port.unwrap_or(default_port),
            authority: authority.to_string(),
            target: uri.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string),
        })
    }

    /// Host and port, to connect to.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// The port as written, `None` if there is no colon. hyper's own accessor has no port for `:99999`, `:abc` and `:` either, and the
/// request, with its token, would go to the scheme's default port: another server.
fn port(authority: &Authority) -> Result<Option<u16>, &'static str> {
    let written = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
    let Some(digits) = written.strip_prefix(':') else {
        return if written.is_empty() { Ok(None) } else { Err("not a URL") };
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse() {
        Ok(number @ 1..) if is_number => Ok(Some(number)),
        _ => Err("the port must be a number from 1 to 65535"),
    }
}

/// The certificate authorities that this machine trusts, read once there are any. It reads files: on a runtime, use
/// [`read_native_roots`].
pub(crate) fn native_roots() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let read = || {
        let mut roots = RootCertStore::empty();
        let (_, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    };
    roots_once(&ROOTS, read)
}

/// The same, read on a thread that may wait for a disk.
pub(crate) async fn read_native_roots() -> Arc<RootCertStore> {
    let read = tokio::task::spawn_blocking(native_roots).await;
    // A runtime that stops has no such thread; then nothing is trusted.
    read.unwrap_or_else(|_| Arc::new(RootCertStore::empty()))
}

/// The set that is kept, or else the one that is read now. An empty set is not kept: the files may be there later.
fn roots_once(kept: &OnceLock<Arc<RootCertStore>>, read: impl FnOnce() -> RootCertStore) -> Arc<RootCertStore> {
    if let Some(roots) = kept.get() {
        return Arc::clone(roots);
    }
    let roots = Arc::new(read());
    match roots.is_empty() {
        true => roots,
        false => Arc::clone(kept.get_or_init(|| roots)),
    }
}

/// A connector for servers with a certificate of these authorities, and the application protocol to agree on.
///
/// # Errors
/// TLS has no protocol version in common with itself.
pub(crate) fn tls_connector(roots: Arc<RootCertStore>, protocols: &[&[u8]]) -> Result<TlsConnector, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Sends one request over HTTP/1.1 and reads a response of at most so many bytes. The connection ends with the returned future.
///
/// # Errors
/// The connection was lost, or the response is longer.
pub(crate) async fn exchange<S>(
    stream: S,
    request: Request<Full<Bytes>>,
    bytes_max: usize,
) -> Result<Response<Bytes>, ExchangeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (response, _connection) = send(stream, request).await?;
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, bytes_max).collect().await?.to_bytes();
    Ok(Response::from_parts(parts, body))
}

/// Sends one request over HTTP/1.1 and returns the status of its response, whose body is not read.
///
/// # Errors
/// The connection was lost.
pub(crate) async fn exchange_status<S>(stream: S, request: Request<Full<Bytes>>) -> Result<StatusCode, ExchangeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (response, _connection) = send(stream, request).await?;
    Ok(response.status())
}

/// Sends one request over HTTP/1.1. The connection ends with the returned task.
async fn send<S>(stream: S, request: Request<Full<Bytes>>) -> Result<(Response<Incoming>, JoinSet<()>), ExchangeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut tasks = JoinSet::new();
    // Its errors are those of the request.
    tasks.spawn(async move {
        let _ = connection.await;
    });
    Ok((sender.send_request(request).await?, tasks))
}

/// Does the same as [`exchange`] over HTTP/2, with prior knowledge. Returns the trailers too, which gRPC ends a call with.
///
/// # Errors
/// The connection was lost, or the response is longer.
pub(crate) async fn exchange_http2<S>(
    stream: S,
    request: Request<Full<Bytes>>,
    bytes_max: usize,
) -> Result<(Response<Bytes>, hyper::HeaderMap), ExchangeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ = connection.await;
    });
    let response = sender.send_request(request).await?;
    let (parts, body) = response.into_parts();
    let collected = Limited::new(body, bytes_max).collect().await?;
    let trailers = collected.trailers().cloned().unwrap_or_default();
    Ok((Response::from_parts(parts, collected.to_bytes()), trailers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::{Der, TrustAnchor};

    #[test]
    fn authorities_are_kept_once_there_are_any() {
        let kept = OnceLock::new();
        assert!(roots_once(&kept, RootCertStore::empty).is_empty());
        let read = || RootCertStore {
            roots: vec![TrustAnchor {
                subject: Der::from_slice(b"subject"),
                subject_public_key_info: Der::from_slice(b"key"),
                name_constraints: None,
            }],
        };
        assert_eq!(roots_once(&kept, read).len(), 1);
        assert_eq!(roots_once(&kept, RootCertStore::empty).len(), 1);
    }
}
