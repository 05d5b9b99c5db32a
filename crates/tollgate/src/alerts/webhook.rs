//! Webhooks: the receivers of alerts, and one signed delivery to one of them.
//!
//! The name of a receiver is resolved once, every address is checked, and the connection goes to an address that was checked. So a
//! webhook cannot be used to reach what only this machine reaches. Redirects are not followed.

mod address;
mod body;
mod outbox;

pub(super) use self::body::{Envelope, render};
pub(super) use self::outbox::Outbox;

use self::address::is_public;
use crate::server::net::http_client::{HttpUrl, exchange_status, read_native_roots, tls_connector};
use bytes::Bytes;
use hmac::{Hmac, Mac};
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use sha2::Sha256;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout};

/// A receiver of alerts, as the operator configured it.
#[derive(Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Its name.
    pub name: String,
    /// Its URL.
    pub url: WebhookUrl,
    /// The secret that messages to it are signed with.
    pub secret: WebhookSecret,
    /// True if it may have an address that only this network reaches, and be called without TLS.
    pub allow_private: bool,
}

/// The URL of a webhook. It may contain a secret, so it is in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookUrl(HttpUrl);

/// The secret of a webhook. Its text is in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Box<str>);

/// The result of one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The status of the response; none if there was none.
    pub status: Option<u16>,
    /// The time that it took.
    pub elapsed: Duration,
    /// The reason why it was not delivered.
    pub error: Option<String>,
}

/// The longest time of a delivery, the resolution of its name included.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time of a connection to one of its addresses.
const ADDRESS_TIMEOUT: Duration = Duration::from_millis(1_500);

impl WebhookUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// The reason why it cannot be called.
    pub fn parse(text: &str, allow_private: bool) -> Result<Self, &'static str> {
        let url = HttpUrl::parse(text)?;
        match url.tls_name.is_some() || allow_private {
            true => Ok(Self(url)),
            false => Err("it must start with https://; http:// needs `allow_private: true`"),
        }
    }
}

impl WebhookSecret {
    /// The least number of characters.
    pub const CHARACTERS_MIN: usize = 16;

    /// A secret that is long enough; none if it is not.
    pub fn new(text: &str) -> Option<Self> {
        (text.chars().count() >= Self::CHARACTERS_MIN).then(|| Self(text.into()))
    }

    /// The signature of a body that is sent at a Unix time in seconds: `t=…,v1=…`.
    fn sign(&self, at: u64, body: &[u8]) -> String {
        format!("t={at},v1={}", self.code(&[at.to_string().as_bytes(), b".", body]))
    }

    /// The code of a text in several parts, in hexadecimal.
    fn code(&self, parts: &[&[u8]]) -> String {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(self.0.as_bytes()).expect("any length is a key");
        for part in parts {
            mac.update(part);
        }
        let code = mac.finalize().into_bytes();
        code.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Delivery {
    /// True if the receiver rejected the message: another try will not help, unless the receiver changes.
    fn is_rejected(&self) -> bool {
        self.status
            .is_some_and(|status| (400..500).contains(&status) && ![408, 429].contains(&status))
    }
}

impl Webhook {
    /// Sends one message and returns what became of it. `now` is Unix time in milliseconds.
    pub async fn deliver(&self, body: Bytes, now: u64) -> Delivery {
        let started = Instant::now();
        let result = match timeout(TIMEOUT, self.exchange(body, now / 1_000)).await {
            Ok(result) => result,
            Err(_) => Err(format!("no response within {} s", TIMEOUT.as_secs())),
        };
        let elapsed = started.elapsed();
        let (status, error) = match result {
            Ok(status) if status.is_success() => (Some(status.as_u16()), None),
            Ok(status) if status.is_redirection() => (
                Some(status.as_u16()),
                Some(format!("status {status}: redirects are not followed")),
            ),
            Ok(status) => (Some(status.as_u16()), Some(format!("status {status}"))),
            Err(error) => (None, Some(error)),
        };
        Delivery { status, elapsed, error }
    }

    async fn exchange(&self, body: Bytes, at: u64) -> Result<StatusCode, String> {
        let url = &self.url.0;
        let request = Request::builder()
            .method(Method::POST)
            .uri(&url.target)
            .header(HOST, &url.authority)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("tollgate/", env!("CARGO_PKG_VERSION")))
            .header(SIGNATURE, self.secret.sign(at, &body))
            .body(Full::new(body))
            .map_err(|_| "its URL cannot be requested".to_owned())?;
        let stream = self.connect().await?;
        let interrupted = |error| format!("the connection was lost: {error}");
        // A receiver that has accepted a message may take its time for the rest of its answer.
        let status = match &url.tls_name {
            None => exchange_status(stream, request).await,
            Some(name) => {
                let connector = tls_connector(read_native_roots().await, &[]).map_err(|error| error.to_string())?;
                let stream = connector.connect(name.clone(), stream).await;
                let stream = stream.map_err(|error| format!("TLS handshake failed: {error}"))?;
                exchange_status(stream, request).await
            }
        };
        status.map_err(interrupted)
    }

    async fn connect(&self) -> Result<TcpStream, String> {
        connect_to_one(&self.addresses().await?, ADDRESS_TIMEOUT).await
    }

    /// The addresses of the receiver. One that is not public rejects all of them: which one is used must not depend on their order.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let found = lookup_host(self.url.0.endpoint()).await;
        let found = found.map_err(|error| format!("its name cannot be resolved: {error}"))?;
        let addresses: Vec<SocketAddr> = found.take(ADDRESSES_MAX).collect();
        let is_refused = |address: &&SocketAddr| !self.allow_private && !is_public(address.ip());
        match addresses.iter().find(is_refused).map(SocketAddr::ip) {
            None => Ok(addresses),
            Some(address) => Err(refusal(address)),
        }
    }
}

/// Connects to the first address that answers within a time each: one that drops packets must not use up the time of all.
async fn connect_to_one(addresses: &[SocketAddr], each: Duration) -> Result<TcpStream, String> {
    let mut error = "its name has no address".to_owned();
    for address in addresses {
        match timeout(each, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(failed)) => error = format!("cannot connect: {failed}"),
            Err(_) => error = "cannot connect: no answer".to_owned(),
        }
    }
    Err(error)
}

fn refusal(address: IpAddr) -> String {
    format!("its address {address} is not public; set `allow_private: true` if it is meant")
}

const SIGNATURE: &str = "x-tollgate-signature";
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("name", &self.name)
            .field("allow_private", &self.allow_private)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Webhook {
    /// A webhook that needs no permission.
    fn sample(url: &str, secret: &str) -> Self {
        Self {
            name: "ops".into(),
            url: WebhookUrl::parse(url, false).expect("a URL"),
            secret: WebhookSecret::new(secret).expect("long enough"),
            allow_private: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_signed_with_its_time() {
        let secret = WebhookSecret::new("0123456789abcdef").expect("it is long enough");
        // printf '1700000000.{}' | openssl dgst -sha256 -hmac 0123456789abcdef
        assert_eq!(
            secret.sign(1_700_000_000, b"{}"),
            "t=1700000000,v1=e4f8e2ecae2295b2ddb2f0b5584c8275e226c0ebe9b3b819e70156bb67122e3e"
        );
        assert!(WebhookSecret::new("0123456789abcde").is_none());
    }

    #[test]
    fn a_webhook_without_tls_needs_permission() {
        assert!(WebhookUrl::parse("https://hooks.example/x?token=1", false).is_ok());
        assert!(WebhookUrl::parse("http://127.0.0.1:9/", true).is_ok());
        for url in [
            "http://hooks.example/",
            "ftp://hooks.example",
            "hooks.example",
            "https://u:p@hooks.example",
        ] {
            assert!(WebhookUrl::parse(url, false).is_err(), "{url}");
        }
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        let ephemeral = "127.0.0.1:0".parse().expect("an address");
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(ephemeral).expect("a port");
        // Beyond its backlog, which nobody empties, the first packet of a connection is dropped.
        let full = socket.listen(1).expect("it listens");
        let full_address = full.local_addr().expect("an address");
        let mut held = Vec::new();
        while let Ok(stream) = timeout(Duration::from_millis(300), TcpStream::connect(full_address)).await {
            held.push(stream);
            assert!(held.len() < 100, "its backlog has no end");
        }
        let open = tokio::net::TcpListener::bind(ephemeral).await.expect("a port");
        let open_address = open.local_addr().expect("an address");
        let addresses = [full_address, open_address];
        let connected = connect_to_one(&addresses, Duration::from_millis(300)).await;
        assert_eq!(connected.expect("one answers").peer_addr().ok(), Some(open_address));
        let error = connect_to_one(&addresses[..1], Duration::from_millis(50)).await;
        assert_eq!(error.err().as_deref(), Some("cannot connect: no answer"));
    }

    #[test]
    fn no_debug_text_has_a_secret() {
        let webhook = Webhook::sample("https://hooks.example/hunter2", "hunter2hunter2hunter2");
        assert!(!format!("{webhook:?}").contains("hunter2"));
    }
}
