use super::*;
use http::{HeaderValue, Request};
use proptest::prelude::*;
use std::net::Ipv6Addr;
use tollgate_limiter::core::network::Networks;

fn head(uri: &str, headers: &[(&'static str, &[u8])]) -> Parts {
    let mut request = Request::builder().uri(uri).body(()).expect("a request");
    for (name, value) in headers {
        let value = HeaderValue::from_bytes(value).expect("a value");
        request.headers_mut().append(*name, value);
    }
    request.into_parts().0
}

fn bytes(extractor: &impl KeyExtractor, head: &Parts, peer: Option<IpAddr>) -> Option<Vec<u8>> {
    extractor.key(head, peer).map(|key| key.as_bytes().to_vec())
}

#[test]
fn a_key_is_what_the_request_says() {
    let head = head(
        "http://Example.COM:8080/v1//a/../%63harges?x=1",
        &[("x-api-key", b"k_1"), ("x-api-key", b"k_2")],
    );
    assert_eq!(bytes(&header("x-api-key"), &head, None).as_deref(), Some(&b"k_1"[..]));
    assert_eq!(bytes(&header("x-other"), &head, None), None);
    assert_eq!(bytes(&path(), &head, None).as_deref(), Some(&b"/v1/charges"[..]));
    assert_eq!(bytes(&method(), &head, None).as_deref(), Some(&b"GET"[..]));
    assert_eq!(bytes(&host(), &head, None).as_deref(), Some(&b"example.com"[..]));
    assert_eq!(bytes(&client_ip(Networks::default()), &head, None), None);
}

#[test]
fn a_caller_does_not_choose_a_part_of_its_host() {
    let of_header = |value: &[u8]| bytes(&host(), &head("/", &[("host", value)]), None).expect("a host");
    for (written, expected) in [
        ("Example.COM:8080", "example.com"),
        ("a@Example.COM:8080", "example.com"),
        ("a:b@example.com.", "example.com"),
        ("a@[::1]:80", "[::1]"),
    ] {
        assert_eq!(of_header(written.as_bytes()), expected.as_bytes(), "{written}");
        let head = head(&format!("http://{written}/"), &[("host", b"other")]);
        assert_eq!(
            bytes(&host(), &head, None).as_deref(),
            Some(expected.as_bytes()),
            "{written}"
        );
    }
    for (written, expected) in [
        ("a@b@example.com", "example.com"),
        ("@example.com", "example.com"),
        ("a@", ""),
    ] {
        assert_eq!(normalize_host(written.as_bytes()), expected.as_bytes(), "{written}");
    }
}

#[test]
fn a_network_of_ipv6_is_one_client() {
    let head = head("/", &[]);
    let key = |bits: u8, address: &str| {
        let extractor = client_ip(Networks::default()).ipv6_prefix(bits);
        bytes(&extractor, &head, Some(address.parse().expect("an address"))).expect("a key")
    };
    assert_eq!(key(64, "2001:db8::1"), key(64, "2001:db8::ffff:1"));
    assert_ne!(key(64, "2001:db8::1"), key(64, "2001:db8:0:1::1"));
    assert_ne!(key(128, "2001:db8::1"), key(128, "2001:db8::2"));
    assert_eq!(key(0, "2001:db8::1"), key(0, "fe80::2"));
    assert_eq!(key(64, "::ffff:192.0.2.1"), key(64, "192.0.2.1"));
    assert_eq!(key(64, "192.0.2.1"), [192, 0, 2, 1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100_000))]

    #[test]
    fn no_byte_of_a_header_changes_the_key_of_a_peer_that_is_not_trusted(
        peer in any::<u128>(),
        forged in proptest::collection::vec("[ -~]{0,40}", 0..3),
    ) {
        let peer = IpAddr::V6(Ipv6Addr::from(peer | 1 << 127));
        let trusted = Networks::parse(["10.0.0.0/8", "127.0.0.0/8"]).expect("networks");
        let forged: Vec<(&str, &[u8])> = forged.iter().map(|value| ("x-forwarded-for", value.as_bytes())).collect();
        let extractor = client_ip(trusted);
        let plain = bytes(&extractor, &head("/", &[]), Some(peer));
        prop_assert!(plain.is_some());
        prop_assert_eq!(bytes(&extractor, &head("/", &forged), Some(peer)), plain);
    }
}
