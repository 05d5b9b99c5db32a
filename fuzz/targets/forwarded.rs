//! Any lines as the headers of a forward-auth request: the client address and the attributes, or an error.
//!
//! The first digit selects the gateway, the rest of its line is the path after the domain, and each other line is a header:
//! its first digit selects the name. Parsing takes no more memory than twice the input plus 64 KiB.
#![no_main]

mod counting;

use http::{HeaderMap, HeaderValue, Request};
use libfuzzer_sys::fuzz_target;
use std::net::{IpAddr, Ipv4Addr};
use tollgate::server::http::forward::{Forward, ForwardPath, Gateway, RequestField};

const NAMES: [&str; 9] = [
    "x-forwarded-for",
    "x-forwarded-uri",
    "x-forwarded-method",
    "x-forwarded-host",
    "x-original-uri",
    "x-original-method",
    "x-real-ip",
    "host",
    "x-merchant-id",
];
/// Trusted, and not.
const PEERS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
];

fn digit(byte: u8) -> usize {
    usize::from(byte.wrapping_sub(b'0'))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((gateway, bytes)) = bytes.split_first() else { return };
    let (_, gateway) = Gateway::NAMES[digit(*gateway) % Gateway::NAMES.len()];
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let rest = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let mut headers = HeaderMap::new();
    for line in lines.take(100) {
        if let Some((name, value)) = line.split_first()
            && let Ok(value) = HeaderValue::from_bytes(value)
        {
            headers.append(NAMES[digit(*name) % NAMES.len()], value);
        }
    }
    let mut request = Request::new(());
    *request.headers_mut() = headers;
    let head = request.into_parts().0;

    let mut attributes = Forward::default_attributes();
    attributes.push(("merchant".into(), RequestField::from_name("header:x-merchant-id").unwrap()));
    let forward = Forward {
        gateway,
        attributes,
        trusted_proxies: ["10.0.0.0/8".parse().unwrap()].into_iter().collect(),
    };
    for peer in PEERS {
        let extracted = counting::bounded(bytes, || {
            let extracted = forward.extract(&head, &rest, peer);
            extracted.inspect(|extracted| drop(extracted.attributes()))
        });
        let Ok(extracted) = extracted else { continue };
        let attributes = extracted.attributes();
        let all: usize = attributes.iter().map(|attribute| attribute.value.len()).sum();
        assert!(all <= 3 * bytes.len() + 64, "no more is extracted than was sent");
        for attribute in &attributes {
            match attribute.name {
                "ip" => {
                    let address: IpAddr = std::str::from_utf8(attribute.value).unwrap().parse().unwrap();
                    assert_eq!(address, address.to_canonical());
                    assert!(peer != PEERS[1] || address == peer, "headers of an untrusted peer are ignored");
                }
                "path" => {
                    let path = attribute.value;
                    assert!(!path.contains(&b'?') && !path.contains(&b'#') && !path.is_empty());
                    let segments = path.split(|byte| *byte == b'/');
                    let is_plain = |segment: &[u8]| !matches!(segment, b"." | b"..");
                    assert!(!path.starts_with(b"/") || segments.clone().all(is_plain));
                    assert!(!path.starts_with(b"/") || !path.windows(2).any(|pair| pair == b"//"));
                }
                "host" => assert!(!attribute.value.iter().any(u8::is_ascii_uppercase)),
                _ => {}
            }
        }
    }
    if let Some(target) = ForwardPath::parse(&format!("/v1/forward/{rest}")) {
        assert!(!target.domain.is_empty() && (target.rest.is_empty() || target.rest.starts_with('/')));
    }
});
