use super::*;
use proptest::prelude::*;

/// Gateways on the machine itself, in a network of their own, and in two of IPv6.
fn trusted() -> Networks {
    let networks = ["127.0.0.0/8", "10.0.0.0/8", "fd00::/8", "2001:db8:ffff::/48"];
    networks.into_iter().map(|network| network.parse().unwrap()).collect()
}

const GATEWAY: &str = "10.0.0.1";

/// The peer of a request, its header line by line, and the client address.
const TABLE: [(&str, &[&str], &str); 74] = [
    // Headers of an untrusted peer are ignored.
    ("192.0.2.9", &[], "192.0.2.9"),
    ("192.0.2.9", &["1.2.3.4"], "192.0.2.9"),
    ("192.0.2.9", &["10.0.0.1"], "192.0.2.9"),
    ("192.0.2.9", &["127.0.0.1"], "192.0.2.9"),
    ("192.0.2.9", &["1.2.3.4, 10.0.0.1"], "192.0.2.9"),
    ("192.0.2.9", &["garbage"], "192.0.2.9"),
    ("2001:db8::9", &["1.2.3.4"], "2001:db8::9"),
    ("::ffff:192.0.2.9", &["1.2.3.4"], "192.0.2.9"),
    ("11.0.0.1", &["1.2.3.4"], "11.0.0.1"),
    ("0.0.0.0", &["1.2.3.4"], "0.0.0.0"),
    // One who is trusted names his client.
    (GATEWAY, &["1.2.3.4"], "1.2.3.4"),
    ("127.0.0.1", &["1.2.3.4"], "1.2.3.4"),
    ("::ffff:10.0.0.1", &["1.2.3.4"], "1.2.3.4"),
    ("fd00::1", &["1.2.3.4"], "1.2.3.4"),
    (GATEWAY, &["2001:db8::1"], "2001:db8::1"),
    (GATEWAY, &["  1.2.3.4\t"], "1.2.3.4"),
    // Without a word of it the request is his own.
    (GATEWAY, &[], GATEWAY),
    (GATEWAY, &[""], GATEWAY),
    (GATEWAY, &[" "], GATEWAY),
    (GATEWAY, &[",", " , "], GATEWAY),
    // From the right: what a client wrote stands before what was written behind it.
    (GATEWAY, &["9.9.9.9, 1.2.3.4"], "1.2.3.4"),
    (GATEWAY, &["127.0.0.1, 1.2.3.4"], "1.2.3.4"),
    (GATEWAY, &["10.0.0.1, 1.2.3.4"], "1.2.3.4"),
    (GATEWAY, &["9.9.9.9,1.2.3.4"], "1.2.3.4"),
    (GATEWAY, &["9.9.9.9,,1.2.3.4"], "1.2.3.4"),
    (GATEWAY, &["9.9.9.9, 1.2.3.4,"], "1.2.3.4"),
    (GATEWAY, &["9.9.9.9, 1.2.3.4, , "], "1.2.3.4"),
    (GATEWAY, &["garbage, 1.2.3.4"], "1.2.3.4"),
    (GATEWAY, &["<script>, ::, 1.2.3.4"], "1.2.3.4"),
    (GATEWAY, &["\"9.9.9.9, 1.2.3.4"], "1.2.3.4"),
    // Past proxies that are trusted.
    (GATEWAY, &["1.2.3.4, 10.0.0.7"], "1.2.3.4"),
    (GATEWAY, &["1.2.3.4, 10.0.0.7, 127.0.0.1"], "1.2.3.4"),
    (GATEWAY, &["9.9.9.9, 1.2.3.4, 10.0.0.7, 10.9.9.9"], "1.2.3.4"),
    (GATEWAY, &["9.9.9.9, 10.0.0.7, 1.2.3.4"], "1.2.3.4"),
    (GATEWAY, &["1.2.3.4, fd00::7"], "1.2.3.4"),
    (GATEWAY, &["1.2.3.4, 2001:db8:ffff::7"], "1.2.3.4"),
    (GATEWAY, &["1.2.3.4, ::ffff:10.0.0.7"], "1.2.3.4"),
    (GATEWAY, &["1.2.3.4, [::ffff:10.0.0.7]:443"], "1.2.3.4"),
    (GATEWAY, &["1.2.3.4, 10.0.0.7:8080"], "1.2.3.4"),
    (GATEWAY, &["2001:db8::1, 10.0.0.7"], "2001:db8::1"),
    // If nobody else is named, the first of them is who asked.
    (GATEWAY, &["10.0.0.7"], "10.0.0.7"),
    (GATEWAY, &["10.0.0.8, 10.0.0.7"], "10.0.0.8"),
    (GATEWAY, &["127.0.0.1"], "127.0.0.1"),
    // Several lines are one list.
    (GATEWAY, &["9.9.9.9", "1.2.3.4"], "1.2.3.4"),
    (GATEWAY, &["1.2.3.4", "10.0.0.7"], "1.2.3.4"),
    (GATEWAY, &["9.9.9.9, 1.2.3.4", "10.0.0.7, 10.0.0.8"], "1.2.3.4"),
    (GATEWAY, &["1.2.3.4", ""], "1.2.3.4"),
    (GATEWAY, &["garbage", "1.2.3.4"], "1.2.3.4"),
    // Ports, brackets and zones are not the address.
    (GATEWAY, &["1.2.3.4:5678"], "1.2.3.4"),
    (GATEWAY, &["[2001:db8::1]"], "2001:db8::1"),
    (GATEWAY, &["[2001:db8::1]:5678"], "2001:db8::1"),
    (GATEWAY, &["2001:DB8:0:0::1"], "2001:db8::1"),
    (GATEWAY, &["fe80::1%eth0"], "fe80::1"),
    (GATEWAY, &["[fe80::1%25eth0]:443"], "fe80::1"),
    (GATEWAY, &["[fe80::1%eth0.7]:443"], "fe80::1"),
    (GATEWAY, &["::ffff:1.2.3.4"], "1.2.3.4"),
    (GATEWAY, &["::ffff:102:304"], "1.2.3.4"),
    (GATEWAY, &["[::ffff:1.2.3.4]:80"], "1.2.3.4"),
    // What is no address where one must be tells nothing.
    (GATEWAY, &["unknown"], GATEWAY),
    (GATEWAY, &["_hidden"], GATEWAY),
    (GATEWAY, &["1.2.3.4, garbage"], GATEWAY),
    (GATEWAY, &["1.2.3.4, garbage, 10.0.0.7"], GATEWAY),
    (GATEWAY, &["1.2.3"], GATEWAY),
    (GATEWAY, &["01.2.3.4"], GATEWAY),
    (GATEWAY, &["1.2.3.256"], GATEWAY),
    (GATEWAY, &["0x1.2.3.4"], GATEWAY),
    (GATEWAY, &["16909060"], GATEWAY),
    (GATEWAY, &["1.2.3.4:"], GATEWAY),
    (GATEWAY, &["1.2.3.4:65536"], GATEWAY),
    (GATEWAY, &["1.2.3.4:+80"], GATEWAY),
    (GATEWAY, &["[1.2.3.4]"], GATEWAY),
    (GATEWAY, &["[2001:db8::1"], GATEWAY),
    (GATEWAY, &["1.2.3.4%eth0", "fe80::1%"], GATEWAY),
    (GATEWAY, &["for=1.2.3.4;proto=https"], GATEWAY),
];

#[test]
fn the_client_is_the_last_address_that_no_trusted_proxy_has() {
    for (peer, lines, expected) in TABLE {
        let lines = lines.iter().map(|line| line.as_bytes());
        let found = client_address(peer.parse().unwrap(), lines.clone(), &trusted());
        assert_eq!(found.to_string(), expected, "{peer} says {lines:?}");
    }
}

#[test]
fn nobody_is_trusted_unless_somebody_says_so() {
    for (peer, lines, _) in TABLE {
        let peer: IpAddr = peer.parse().unwrap();
        let lines = lines.iter().map(|line| line.as_bytes());
        assert_eq!(client_address(peer, lines, &Networks::default()), peer.to_canonical());
    }
}

#[test]
fn what_is_long_is_no_address_and_costs_no_more_than_its_length() {
    let (peer, long) = (GATEWAY.parse().unwrap(), "1".repeat(1 << 20));
    let commas = ",".repeat(1 << 20) + "1.2.3.4" + &",".repeat(1 << 20);
    assert_eq!(client_address(peer, [long.as_bytes()].into_iter(), &trusted()), peer);
    assert_eq!(
        client_address(peer, [commas.as_bytes()].into_iter(), &trusted()).to_string(),
        "1.2.3.4"
    );
}

/// An address that nobody trusts.
fn stranger() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4((0xC000_0000 | bits >> 3).into())),
        any::<u32>().prop_map(|bits| IpAddr::V6(std::net::Ipv4Addr::from(0xC000_0000 | bits >> 3).to_ipv6_mapped())),
        any::<u128>().prop_map(|bits| IpAddr::V6((0x2A00 << 112 | bits >> 16).into())),
    ]
}

/// Bytes that addresses and lists of them are made of, and any others.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        "[0-9a-f:., \\[\\]%]{0,24}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..24),
        any::<std::net::Ipv4Addr>().prop_map(|address| address.to_string().into_bytes()),
        any::<Ipv6Addr>().prop_map(|address| format!("[{address}]:80").into_bytes()),
        Just(b"10.0.0.7".to_vec()),
    ];
    proptest::collection::vec(piece, 0..5).prop_map(|pieces| pieces.join(&b", "[..]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Whatever a client sends, what its proxy writes behind it is the answer.
    #[test]
    fn nothing_that_stands_before_the_client_changes_who_it_is(
        forged in proptest::collection::vec(line(), 0..4),
        client in stranger(),
    ) {
        let behind = client.to_string();
        let lines = forged.iter().map(Vec::as_slice).chain([behind.as_bytes()]);
        let found = client_address(GATEWAY.parse().unwrap(), lines.collect::<Vec<_>>().into_iter(), &trusted());
        prop_assert_eq!(found, client.to_canonical());
    }
}
