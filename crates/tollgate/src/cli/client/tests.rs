use super::*;

#[test]
fn an_address_says_where_to_go_and_under_which_name() {
    for (url, address, host, base) in [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", "127.0.0.1:8080", ""),
        ("http://gate", "gate:80", "gate", ""),
        ("https://gate/", "gate:443", "gate", ""),
        ("http://gate:65535", "gate:65535", "gate:65535", ""),
        ("http://gate:1/limits", "gate:1", "gate:1", "/limits"),
        ("http://[::1]", "[::1]:80", "[::1]", ""),
        ("https://[::1]:9/limits/", "[::1]:9", "[::1]:9", "/limits"),
        ("unix:/run/tollgate.sock", "/run/tollgate.sock", "localhost", ""),
    ] {
        let target = Target::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        let destination = match target.transport {
            Transport::Plain(authority) | Transport::Tls(authority, _) => authority,
            Transport::Unix(path) => path.display().to_string(),
        };
        assert_eq!(
            (destination.as_str(), target.host.as_str(), target.base.as_str()),
            (address, host, base),
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
        "http://gate#:8080",
        "http://gate:99999",
        "http://gate:65536",
        "http://gate:-1",
        "http://gate:+80",
        "http://gate:0",
        "http://gate:abc",
        "http://gate:",
        "http://gate:/limits",
        "http://gate:80:80",
        "https://gate:99999/limits",
        "https://gate:",
        "http://[::1]:99999",
        "http://[::1]:",
        "http://[::1]80",
        "http://[::1",
        "http://::1:8080",
        "http://",
        "http://:8080",
        "http://[]:8080",
        "http:///limits",
        "unix:",
    ] {
        let Err(error) = Target::parse(url) else {
            panic!("{url} was taken");
        };
        assert!(error.to_string().contains("http://127.0.0.1:8080"), "{error}");
        assert!(!error.to_string().contains("u:p"), "{error}");
    }
}
