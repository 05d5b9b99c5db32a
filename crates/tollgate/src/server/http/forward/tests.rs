use super::*;
use hyper::{HeaderMap, Request, header::HeaderValue};
use proptest::prelude::*;

fn forward(gateway: Gateway, attributes: &[(&str, &str)], trusted: &[&str]) -> Forward {
    let part = |text: &str| RequestField::from_name(text).unwrap();
    Forward {
        gateway,
        attributes: attributes
            .iter()
            .map(|&(name, text)| (name.into(), part(text)))
            .collect(),
        trusted_proxies: trusted.iter().map(|network| network.parse().unwrap()).collect(),
        unknown_domain: UnknownDomainPolicy::default(),
    }
}

fn head(headers: HeaderMap) -> Parts {
    let mut request = Request::new(());
    *request.headers_mut() = headers;
    request.into_parts().0
}

#[test]
fn the_domain_is_the_first_segment_whatever_follows_it() {
    for (path, expected) in [
        ("/v1/forward/api", Some(("api", "", DenyStatus::Plain))),
        ("/v1/forward-403/api", Some(("api", "", DenyStatus::Forbidden))),
        ("/v1/forward/api/", Some(("api", "/", DenyStatus::Plain))),
        (
            "/v1/forward/api/v1/items",
            Some(("api", "/v1/items", DenyStatus::Plain)),
        ),
        ("/v1/forward/api//other", Some(("api", "//other", DenyStatus::Plain))),
        (
            "/v1/forward/api/../other",
            Some(("api", "/../other", DenyStatus::Plain)),
        ),
        ("/v1/forward/api%2Fv2/x", Some(("api/v2", "/x", DenyStatus::Plain))),
        ("/v1/forward/%C3%A9t%c3%a9", Some(("été", "", DenyStatus::Plain))),
        ("/v1/forward/{domain}", Some(("{domain}", "", DenyStatus::Plain))),
        ("/v1/forward/", None),
        ("/v1/forward//api", None),
        ("/v1/forward", None),
        ("/v1/forward/%ff", None),
        ("/v1/forwards/api", None),
        ("/v1/forward-429/api", None),
    ] {
        let target = ForwardPath::parse(path);
        let said = target
            .as_ref()
            .map(|target| (&*target.domain, target.rest, target.deny_status));
        assert_eq!(said, expected, "{path}");
    }
}

#[test]
fn a_part_is_written_in_one_of_five_ways() {
    let merchant = RequestField::Header(HeaderName::from_static("x-merchant-id"));
    for (text, expected) in [
        ("path", Some(RequestField::Path)),
        ("method", Some(RequestField::Method)),
        ("host", Some(RequestField::Host)),
        ("client_ip", Some(RequestField::ClientIp)),
        ("header:X-Merchant-Id", Some(merchant)),
        ("header:", None),
        ("header:a b", None),
        ("Path", None),
        ("query", None),
        ("", None),
    ] {
        assert_eq!(RequestField::from_name(text), expected, "{text}");
    }
}

#[test]
fn rules_see_what_the_settings_name_and_nothing_else() {
    let all = [
        ("merchant", "header:x-merchant-id"),
        ("endpoint", "path"),
        ("ip", "client_ip"),
        ("tag", "header:x-tag"),
    ];
    let forward = forward(Gateway::Caddy, &all, &["127.0.0.1/32"]);
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("x-merchant-id", "m_1"),
        ("x-forwarded-uri", "/v1/charges?cost=0"),
        ("x-forwarded-for", "2001:db8::1"),
        ("x-forwarded-method", "POST"),
        ("x-tag", "one"),
        ("x-tag", "two"),
        ("x-cost", "0"),
    ] {
        headers.append(name, HeaderValue::from_static(value));
    }
    let head = head(headers);
    let seen = forward
        .extract(&head, "/ignored", "127.0.0.1".parse().unwrap())
        .unwrap();
    let of = |name: &'static str, value: &'static str| Attribute {
        name,
        value: value.as_bytes(),
    };
    assert_eq!(
        seen.attributes(),
        [
            of("merchant", "m_1"),
            of("endpoint", "/v1/charges"),
            of("ip", "2001:db8::1"),
            of("tag", "one"),
            of("tag", "two"),
        ]
    );
}

/// Any value a header can have.
fn value() -> impl Strategy<Value = HeaderValue> {
    let piece = prop_oneof![
        "[0-9a-f:., \\[\\]%]{0,32}".prop_map(String::into_bytes),
        proptest::collection::vec(prop_oneof![Just(9_u8), 32..=126_u8, 128..=255_u8], 0..48),
        any::<IpAddr>().prop_map(|address| address.to_string().into_bytes()),
        Just(b"127.0.0.1, 10.0.0.1".to_vec()),
    ];
    piece.prop_map(|bytes| HeaderValue::from_bytes(&bytes).unwrap())
}

/// Every header that some gateway or other names a client in.
const NAMES: [&str; 12] = [
    "x-forwarded-for",
    "x-real-ip",
    "forwarded",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-forwarded",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-original-forwarded-for",
    "via",
    "connection",
];

/// An address that nobody trusts.
fn stranger() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4((0xC000_0000 | bits >> 3).into())),
        any::<u32>().prop_map(|bits| IpAddr::V6(std::net::Ipv4Addr::from(0xC000_0000 | bits >> 3).to_ipv6_mapped())),
        any::<u128>().prop_map(|bits| IpAddr::V6((0x2A00 << 112 | bits >> 16).into())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100_000))]

    #[test]
    fn no_byte_of_a_header_changes_the_key_of_a_peer_that_is_not_trusted(
        gateway in proptest::sample::select(Gateway::NAMES.to_vec()),
        lines in proptest::collection::vec((proptest::sample::select(NAMES.to_vec()), value()), 0..6),
        peer in stranger(),
    ) {
        let trusted = ["127.0.0.0/8", "10.0.0.0/8", "fd00::/8"];
        let forward = forward(gateway.1, &[("ip", "client_ip")], &trusted);
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, value);
        }
        let head = head(headers);
        let seen = forward.extract(&head, "/", peer);
        let own = peer.to_canonical().to_string();
        prop_assert_eq!(seen, Ok(ExtractedAttributes(vec![("ip", Cow::Borrowed(own.as_bytes()))])));
    }
}
