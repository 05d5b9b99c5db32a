//! One request to a running server, for the commands that ask one.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Whom to ask, and as whom.
#[derive(clap::Args)]
pub(crate) struct Server {
    /// The server's address: http://…, https://… or unix:/path
    #[arg(
        long,
        env = "TOLLGATE_URL",
        default_value = "http://127.0.0.1:8080",
        value_name = "URL"
    )]
    url: String,
    /// The token to ask with, if the server wants one
    #[arg(long, env = "TOLLGATE_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
    /// Certificates (PEM) to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// Why nothing came back, and what to try.
#[derive(Debug)]
pub(crate) struct Silence(String);

/// How an answer is wanted.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    Json,
    Text,
}

impl Server {
    /// Posts JSON to a path of the server and waits for the answer.
    pub(crate) fn post(&self, path: &str, body: &serde_json::Value, form: Form) -> Result<Answer, Silence> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Silence(format!("cannot start: {error}")))?;
        runtime.block_on(async {
            let asked = self.ask(path, body.to_string(), form);
            tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| {
                Err(Silence(format!(
                    "{} did not answer within {} seconds; is it a tollgate?",
                    self.url,
                    PATIENCE.as_secs()
                )))
            })
        })
    }

    async fn ask(&self, path: &str, body: String, form: Form) -> Result<Answer, Silence> {
        let target = Target::parse(&self.url)?;
        let mut request = Request::post(format!("{}{path}", target.base))
            .header(CONTENT_TYPE, "application/json")
            .header(HOST, &target.host)
            .header(ACCEPT, form.media_type())
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Silence(format!("{}: {error}", self.url)))?;
        if let Some(token) = &self.token {
            let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim()))
                .map_err(|_| Silence("the token has characters that no header can carry".into()))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        match &target.way {
            Way::Plain(authority) => self.send(connect(authority, &self.url).await?, request).await,
            Way::Tls(authority, name) => {
                let roots = roots(self.ca.as_deref())?;
                let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
                let config = ClientConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .map_err(|error| Silence(error.to_string()))?
                    .with_root_certificates(roots)
                    .with_no_client_auth();
                let stream = connect(authority, &self.url).await?;
                let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
                    .connect(name.clone(), stream)
                    .await
                    .map_err(|error| {
                        Silence(format!(
                            "no safe connection to {}: {error}; does --ca name the authority that signed its certificate?",
                            self.url
                        ))
                    })?;
                self.send(stream, request).await
            }
            #[cfg(unix)]
            Way::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path)
                    .await
                    .map_err(|error| unreachable_at(&self.url, &error))?;
                self.send(stream, request).await
            }
        }
    }

    async fn send<S>(&self, stream: S, request: Request<Full<Bytes>>) -> Result<Answer, Silence>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let odd = |error: &dyn fmt::Display| Silence(format!("{} broke off: {error}; is it a tollgate?", self.url));
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| odd(&error))?;
        // Ends with the sender; what goes wrong in it, the sender hears.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        let response = sender.send_request(request).await.map_err(|error| odd(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| odd(&error))?
            .to_bytes();
        Ok(Answer { status, body })
    }
}

impl Form {
    fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Text => "text/plain",
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A URL taken apart.
struct Target {
    way: Way,
    host: String,
    /// What stands before every path, without a slash at its end.
    base: String,
}

enum Way {
    Plain(String),
    Tls(String, ServerName<'static>),
    #[cfg(unix)]
    Unix(PathBuf),
}

impl Target {
    fn parse(url: &str) -> Result<Self, Silence> {
        let bad = |why: &str| {
            Silence(format!(
                "`{url}` is not a server's address: {why}; write for example http://127.0.0.1:8080"
            ))
        };
        #[cfg(unix)]
        if let Some(path) = url.strip_prefix("unix:") {
            return Ok(Self {
                way: Way::Unix(path.into()),
                host: "localhost".into(),
                base: String::new(),
            });
        }
        let uri: Uri = url.parse().map_err(|_| bad("it cannot be read"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(bad("it does not begin with http:// or https://"));
        };
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(bad("give a token with --token, and nothing behind a `?`"));
        }
        let to = |port: u16| format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(port));
        let way = match scheme {
            "http" => Way::Plain(to(80)),
            "https" => {
                let name = authority
                    .host()
                    .trim_start_matches('[')
                    .trim_end_matches(']')
                    .to_owned();
                Way::Tls(
                    to(443),
                    ServerName::try_from(name).map_err(|_| bad("no certificate can be for that host"))?,
                )
            }
            _ => return Err(bad("it does not begin with http:// or https://")),
        };
        Ok(Self {
            way,
            host: authority.to_string(),
            base: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

async fn connect(authority: &str, url: &str) -> Result<TcpStream, Silence> {
    TcpStream::connect(authority)
        .await
        .map_err(|error| unreachable_at(url, &error))
}

fn unreachable_at(url: &str, error: &std::io::Error) -> Silence {
    Silence(format!(
        "cannot reach {url}: {error}; is the server running (`tollgate serve`)? Another address goes into --url or TOLLGATE_URL"
    ))
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, Silence> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(file) => {
            let unread = |error: &dyn fmt::Display| Silence(format!("{}: {error}", file.display()));
            for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unread(&error))? {
                let certificate = certificate.map_err(|error| unread(&error))?;
                roots.add(certificate).map_err(|error| unread(&error))?;
            }
            if roots.is_empty() {
                return Err(unread(&"has no certificate in it"));
            }
        }
        None => {
            let (_, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    Ok(roots)
}

/// How long an answer may take in all.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer that is read: an explanation of very many rules.
const ANSWER_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_where_to_go_and_under_which_name() {
        for (url, to, host, base) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", "127.0.0.1:8080", ""),
            ("http://gate", "gate:80", "gate", ""),
            ("https://gate/", "gate:443", "gate", ""),
            ("https://[::1]:9/limits/", "[::1]:9", "[::1]:9", "/limits"),
            ("unix:/run/tollgate.sock", "/run/tollgate.sock", "localhost", ""),
        ] {
            let target = Target::parse(url).unwrap_or_else(|silence| panic!("{url}: {silence}"));
            let way = match target.way {
                Way::Plain(authority) | Way::Tls(authority, _) => authority,
                Way::Unix(path) => path.display().to_string(),
            };
            assert_eq!(
                (way.as_str(), target.host.as_str(), target.base.as_str()),
                (to, host, base),
                "{url}"
            );
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_an_example() {
        for url in [
            "",
            "127.0.0.1:8080",
            "ftp://gate",
            "http://u:p@gate",
            "http://gate?x",
            "http://a b",
        ] {
            let Err(silence) = Target::parse(url) else {
                panic!("{url} was taken");
            };
            assert!(silence.to_string().contains("http://127.0.0.1:8080"), "{silence}");
        }
    }
}
