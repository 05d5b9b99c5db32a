//! Keys of limits, extracted from requests.
//!
//! The caller chooses the bytes that an extractor reads, unless a proxy or an authentication layer in front of this one has
//! checked it. [`client_ip`] alone decides whom to trust.

mod client_address;
mod client_ip;
mod normal_form;
mod request_key;

pub use self::client_address::client_address;
pub use self::client_ip::{ClientIp, client_ip};
pub use self::normal_form::{normalize_host, normalize_path, unescape};
pub use self::request_key::RequestKey;

use http::header::{HOST, HeaderName};
use http::request::Parts;
use std::borrow::Cow;
use std::net::IpAddr;

/// Extracts the key of a limit from a request.
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the key. None if the request has none: then the limit does not apply.
    ///
    /// `peer` is the address of the other end of the connection, if the layer knows it.
    fn key<'h>(&self, head: &'h Parts, peer: Option<IpAddr>) -> Option<RequestKey<'h>>;

    /// Returns the value of an attribute, as rules write it. The key, unless that is not text.
    fn attribute<'h>(&self, head: &'h Parts, peer: Option<IpAddr>) -> Option<Cow<'h, [u8]>> {
        self.key(head, peer).map(RequestKey::into_bytes)
    }
}

/// Extracts the first value of a header.
#[derive(Clone, Debug)]
pub struct HeaderKey(HeaderName);

/// Extracts the path in its normal form, without the query.
#[derive(Clone, Copy, Debug)]
pub struct PathKey;

/// Extracts the method.
#[derive(Clone, Copy, Debug)]
pub struct MethodKey;

/// Extracts the host in lower case, without user and port.
#[derive(Clone, Copy, Debug)]
pub struct HostKey;

/// Extracts what a function returns.
#[derive(Clone, Copy, Debug)]
pub struct KeyFn<F>(F);

/// Extracts the first value of a header.
///
/// # Panics
/// If the name is not a header name in lower case.
pub const fn header(name: &'static str) -> HeaderKey {
    HeaderKey(HeaderName::from_static(name))
}

/// Extracts the path, without the query, in its normal form: `/v1/%63harges` and `/v1//charges` are `/v1/charges`.
pub const fn path() -> PathKey {
    PathKey
}

/// Extracts the method.
pub const fn method() -> MethodKey {
    MethodKey
}

/// Extracts the host in lower case, without user and port: of `:authority`, or of the `Host` header.
pub const fn host() -> HostKey {
    HostKey
}

/// Extracts what a function returns.
///
/// ```
/// use tollgate_tower::extract::{KeyExtractor, key_fn};
///
/// #[derive(Clone)]
/// struct Merchant(String);
/// let merchant = key_fn(|head| Some(head.extensions.get::<Merchant>()?.0.clone()));
///
/// let request = http::Request::builder().extension(Merchant("m_42".into())).body(()).unwrap();
/// let (head, ()) = request.into_parts();
/// assert_eq!(merchant.key(&head, None).unwrap().as_bytes(), b"m_42");
/// ```
pub const fn key_fn<F, T>(function: F) -> KeyFn<F>
where
    F: Fn(&Parts) -> Option<T> + Send + Sync + 'static,
    T: Into<Vec<u8>>,
{
    KeyFn(function)
}

impl KeyExtractor for HeaderKey {
    fn key<'h>(&self, head: &'h Parts, _: Option<IpAddr>) -> Option<RequestKey<'h>> {
        head.headers
            .get(&self.0)
            .map(|value| RequestKey::from(value.as_bytes()))
    }
}

impl KeyExtractor for PathKey {
    fn key<'h>(&self, head: &'h Parts, _: Option<IpAddr>) -> Option<RequestKey<'h>> {
        Some(normalize_path(head.uri.path().as_bytes()).into())
    }
}

impl KeyExtractor for MethodKey {
    fn key<'h>(&self, head: &'h Parts, _: Option<IpAddr>) -> Option<RequestKey<'h>> {
        Some(RequestKey::from(head.method.as_str().as_bytes()))
    }
}

impl KeyExtractor for HostKey {
    fn key<'h>(&self, head: &'h Parts, _: Option<IpAddr>) -> Option<RequestKey<'h>> {
        let authority = head.uri.authority().map(|authority| authority.host().as_bytes());
        let host = authority.or_else(|| head.headers.get(HOST).map(|value| value.as_bytes()))?;
        Some(normalize_host(host).into())
    }
}

impl<F, T> KeyExtractor for KeyFn<F>
where
    F: Fn(&Parts) -> Option<T> + Send + Sync + 'static,
    T: Into<Vec<u8>>,
{
    fn key<'h>(&self, head: &'h Parts, _: Option<IpAddr>) -> Option<RequestKey<'h>> {
        (self.0)(head).map(|key| RequestKey::from(key.into()))
    }
}

#[cfg(test)]
mod tests;
