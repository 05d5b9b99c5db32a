//! The HTTP client of the commands that call a running server: one request, over TCP, TLS or a Unix socket.

use crate::server::net::http_client::{HttpUrl, NOT_HTTP, exchange, native_roots, tls_connector};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The server to call, and the credentials.
#[derive(clap::Args)]
pub(crate) struct ServerArgs {
    /// The server's address: http://…, https://… or unix:/path
    #[arg(
        long,
        env = "TOLLGATE_URL",
        default_value = "http://127.0.0.1:8080",
        value_name = "URL"
    )]
    url: String,
    /// Token for the server, if it requires one. Other users of this machine see it in `ps`: prefer --token-file
    #[arg(long, env = "TOLLGATE_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
    /// File whose first line is the token
    #[arg(long, env = "TOLLGATE_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file of certificate authorities to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// The response of the server.
#[derive(Debug)]
pub(crate) struct ServerResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The reason why there is no response, and the next step.
#[derive(Debug)]
pub(crate) struct ClientError(String);

/// The media type of the response.
#[derive(Clone, Copy)]
pub(crate) enum OutputFormat {
    Json,
    Text,
}

/// One request to a server, before it has an address.
pub(crate) struct Call {
    pub(crate) method: Method,
    /// The path with its query.
    pub(crate) path: String,
    pub(crate) headers: Vec<(HeaderName, String)>,
    pub(crate) body: Bytes,
    /// The timeout of the request, connecting included.
    pub(crate) timeout: Duration,
}

/// A server and the credential for it.
pub(crate) struct Endpoint<'a> {
    pub(crate) url: &'a str,
    pub(crate) token: Option<String>,
    /// Certificate authorities to trust instead of the system's.
    pub(crate) ca: Option<&'a Path>,
    /// The flag and the variable that set the address, for messages.
    pub(crate) address_source: &'static str,
}

impl ServerArgs {
    /// Posts JSON to a path of the server and returns its response.
    pub(crate) fn post(
        &self,
        path: &str,
        body: &serde_json::Value,
        format: OutputFormat,
    ) -> Result<ServerResponse, ClientError> {
        let source = "--token-file, TOLLGATE_TOKEN_FILE, TOLLGATE_TOKEN";
        let endpoint = Endpoint {
            url: &self.url,
            token: read_token(self.token.as_deref(), self.token_file.as_deref(), source)?,
            ca: self.ca.as_deref(),
            address_source: "--url or TOLLGATE_URL",
        };
        endpoint.call(Call {
            method: Method::POST,
            path: path.to_owned(),
            headers: vec![
                (CONTENT_TYPE, "application/json".to_owned()),
                (ACCEPT, format.media_type().to_owned()),
            ],
            body: Bytes::from(body.to_string()),
            timeout: REQUEST_TIMEOUT,
        })
    }
}

/// The token itself, or the first line of its file. `source` names the ways to give one.
pub(crate) fn read_token(
    token: Option<&str>,
    file: Option<&Path>,
    source: &str,
) -> Result<Option<String>, ClientError> {
    // Deployment tools set variables that they have no value for.
    let token = token.filter(|token| !token.trim().is_empty());
    let file = match (token, file) {
        (Some(_), Some(_)) => {
            let text = format!("both a token and a token file are given; keep one of {source}");
            return Err(ClientError(text));
        }
        (token, None) => return Ok(token.map(str::to_owned)),
        (None, Some(file)) => file,
    };
    let failure = |text: &dyn fmt::Display| ClientError(format!("token file {}: {text}", file.display()));
    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(TOKEN_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| failure(&error))?;
    match text.lines().next().map(str::trim) {
        Some(token) if !token.is_empty() => Ok(Some(token.to_owned())),
        _ => Err(failure(&"its first line is empty; write the token into it")),
    }
}

impl Endpoint<'_> {
    /// Makes one request.
    pub(crate) fn call(&self, call: Call) -> Result<ServerResponse, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| ClientError(format!("cannot start a runtime: {error}")))?;
        let timeout = call.timeout;
        runtime.block_on(async {
            tokio::time::timeout(timeout, self.exchange(call))
                .await
                .unwrap_or_else(|_| {
                    Err(ClientError(format!(
                        "{} did not respond within {} seconds; is this URL a tollgate server?",
                        self.url,
                        timeout.as_secs()
                    )))
                })
        })
    }

    async fn exchange(&self, call: Call) -> Result<ServerResponse, ClientError> {
        let target = Target::parse(self.url)?;
        let invalid = |error: &dyn fmt::Display| ClientError(format!("{}: {error}", self.url));
        let mut request = Request::builder()
            .method(call.method)
            .uri(format!("{}{}", target.base, call.path))
            .header(HOST, &target.host)
            .body(Full::new(call.body))
            .map_err(|error| invalid(&error))?;
        for (name, value) in call.headers {
            let value = HeaderValue::try_from(value).map_err(|error| invalid(&error))?;
            request.headers_mut().insert(name, value);
        }
        if let Some(token) = &self.token {
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))
                .map_err(|_| ClientError("the token has characters that are not allowed in a header".into()))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        match &target.transport {
            Transport::Plain(authority) => self.send(self.connect(authority).await?, request).await,
            Transport::Tls(authority, name) => {
                let connector = tls_connector(roots(self.ca)?, &[]).map_err(|error| ClientError(error.to_string()))?;
                let stream = self.connect(authority).await?;
                let stream = connector
                    .connect(name.clone(), stream)
                    .await
                    .map_err(|error| {
                        ClientError(format!(
                            "TLS handshake with {} failed: {error}; does --ca name the authority that signed its certificate?",
                            self.url
                        ))
                    })?;
                self.send(stream, request).await
            }
            #[cfg(unix)]
            Transport::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path)
                    .await
                    .map_err(|error| self.connect_error(&error))?;
                self.send(stream, request).await
            }
        }
    }

    async fn connect(&self, authority: &str) -> Result<TcpStream, ClientError> {
        TcpStream::connect(authority)
            .await
            .map_err(|error| self.connect_error(&error))
    }

    fn connect_error(&self, error: &std::io::Error) -> ClientError {
        ClientError(format!(
            "cannot connect to {}: {error}; is the server running (`tollgate serve`)? set another address with {}",
            self.url, self.address_source
        ))
    }

    async fn send<S>(&self, stream: S, request: Request<Full<Bytes>>) -> Result<ServerResponse, ClientError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let interrupted = |error: &dyn fmt::Display| {
            ClientError(format!(
                "{} closed the connection: {error}; is this URL a tollgate server?",
                self.url
            ))
        };
        let response = exchange(stream, request, RESPONSE_BYTES_MAX).await;
        let (parts, body) = response.map_err(|error| interrupted(&error))?.into_parts();
        Ok(ServerResponse {
            status: parts.status,
            headers: parts.headers,
            body,
        })
    }
}

impl OutputFormat {
    fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Text => "text/plain",
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A parsed server URL.
struct Target {
    transport: Transport,
    host: String,
    /// The prefix of every path, without a trailing slash.
    base: String,
}

enum Transport {
    Plain(String),
    Tls(String, ServerName<'static>),
    #[cfg(unix)]
    Unix(PathBuf),
}

impl Target {
    fn parse(url: &str) -> Result<Self, ClientError> {
        let invalid = |reason: &str| {
            ClientError(format!(
                "invalid server URL `{url}`: {reason}; write for example http://127.0.0.1:8080"
            ))
        };
        #[cfg(unix)]
        if let Some(path) = url.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(invalid("the path of the socket is missing"));
            }
            return Ok(Self {
                transport: Transport::Unix(path.into()),
                host: "localhost".into(),
                base: String::new(),
            });
        }
        // Not repeated in the message, which ends up in logs.
        if url.contains('@') {
            return Err(ClientError(
                "invalid server URL: it must contain no user and no password; pass a token with --token-file or TOLLGATE_TOKEN, \
                 and write for example http://127.0.0.1:8080"
                    .into(),
            ));
        }
        let parsed = HttpUrl::parse(url).map_err(|reason| match reason {
            NOT_HTTP => invalid("it must start with http://, https:// or unix:"),
            reason => invalid(reason),
        })?;
        let path = match parsed.target.contains('?') {
            false => &*parsed.target,
            true => return Err(invalid("it must have no query")),
        };
        Ok(Self {
            base: path.trim_end_matches('/').to_owned(),
            transport: match &parsed.tls_name {
                Some(name) => Transport::Tls(parsed.endpoint(), name.clone()),
                None => Transport::Plain(parsed.endpoint()),
            },
            host: parsed.authority,
        })
    }
}

fn roots(ca: Option<&Path>) -> Result<Arc<RootCertStore>, ClientError> {
    let Some(file) = ca else {
        return Ok(native_roots());
    };
    let mut roots = RootCertStore::empty();
    let unreadable = |error: &dyn fmt::Display| ClientError(format!("{}: {error}", file.display()));
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unreadable(&error))? {
        let certificate = certificate.map_err(|error| unreadable(&error))?;
        roots.add(certificate).map_err(|error| unreadable(&error))?;
    }
    if roots.is_empty() {
        return Err(unreadable(&"contains no certificate"));
    }
    Ok(Arc::new(roots))
}

/// The timeout of a request, connecting included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes read of a token file.
const TOKEN_BYTES_MAX: u64 = 64 << 10;

/// The most bytes read of a response: an explanation of very many rules is long.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests;
