use super::*;
use hyper::Request;

fn text(bytes: Cow<'_, [u8]>) -> String {
    String::from_utf8(bytes.into_owned()).unwrap()
}

#[test]
fn all_spellings_of_a_path_are_one() {
    for (uri, expected) in [
        ("/", "/"),
        ("", "/"),
        ("/v1/charges", "/v1/charges"),
        ("/v1/charges?a=/../b", "/v1/charges"),
        ("/v1/charges#a", "/v1/charges"),
        ("?a=1", "/"),
        ("/v1/%63harges", "/v1/charges"),
        ("/%76%31/charges", "/v1/charges"),
        ("/v1/./charges", "/v1/charges"),
        ("/v1/x/../charges", "/v1/charges"),
        ("/v1/x/%2e%2E/charges", "/v1/charges"),
        ("/../../v1/charges", "/v1/charges"),
        ("//v1///charges", "/v1/charges"),
        ("/v1/charges/", "/v1/charges/"),
        ("/v1/charges/.", "/v1/charges/"),
        ("/v1/charges/x/..", "/v1/charges/"),
        ("/v1/a%2fb%3f", "/v1/a%2Fb%3F"),
        ("/v1/%zz%4", "/v1/%zz%4"),
        ("/v1/100%", "/v1/100%"),
        ("/v1/%25%36%33", "/v1/%2563"),
        ("/v1/caf%c3%a9", "/v1/caf%C3%A9"),
        ("/V1/Charges", "/V1/Charges"),
        ("/.well-known/x", "/.well-known/x"),
        ("/a...b/..c", "/a...b/..c"),
        ("http://shop.example/v1/charges?a", "/v1/charges"),
        ("http://shop.example", "/"),
        ("*", "*"),
    ] {
        assert_eq!(text(normalize_path(uri.as_bytes())), expected, "{uri}");
    }
}

#[test]
fn all_spellings_of_a_host_are_one() {
    for (value, expected) in [
        ("shop.example", "shop.example"),
        ("Shop.EXAMPLE", "shop.example"),
        ("shop.example:8443", "shop.example"),
        ("shop.example:", "shop.example"),
        ("shop.example.", "shop.example"),
        ("shop.example.:443", "shop.example"),
        ("[2001:DB8::1]:80", "[2001:db8::1]"),
        ("[2001:db8::1]", "[2001:db8::1]"),
        ("", ""),
    ] {
        assert_eq!(text(normalize_host(value.as_bytes())), expected, "{value}");
    }
}

#[test]
fn every_gateway_has_one_place_for_each_part() {
    let head = || {
        let mut request = Request::builder().method("PUT").uri("/v1/forward/api/own/path?q");
        for (name, value) in [
            ("host", "own.example"),
            ("x-forwarded-method", "POST"),
            ("x-forwarded-uri", "/forwarded?a=1"),
            ("x-forwarded-host", "forwarded.example"),
            ("x-original-method", "PATCH"),
            ("x-original-uri", "/original?a=1"),
            ("x-original-host", "original.example"),
        ] {
            request = request.header(name, value);
        }
        request.body(()).unwrap().into_parts().0
    };
    let forwarded = ("POST", "/forwarded", "forwarded.example", "x-forwarded-for");
    for (gateway, expected) in [
        (Gateway::Traefik, forwarded),
        (Gateway::Caddy, forwarded),
        (Gateway::Haproxy, forwarded),
        (Gateway::Nginx, ("PATCH", "/original", "own.example", "x-real-ip")),
        (Gateway::Envoy, ("PUT", "/own/path", "own.example", "x-forwarded-for")),
    ] {
        let head = head();
        let original = OriginalRequest::new(gateway, &head, "/own/path");
        let (method, uri) = (original.method().unwrap().unwrap(), original.path().unwrap().unwrap());
        let said = (text(method), text(uri), text(original.host().unwrap().unwrap()));
        let (method, uri, host, client) = expected;
        assert_eq!(
            said,
            (method.to_owned(), uri.to_owned(), host.to_owned()),
            "{gateway:?}"
        );
        assert_eq!(original.client_header(), client);
    }
}

#[test]
fn what_a_gateway_does_not_say_is_not_there_and_what_is_said_twice_is_refused() {
    let of = |lines: &[(&'static str, &'static str)]| {
        let mut request = Request::builder().uri("/v1/forward/api");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let head = request.body(()).unwrap().into_parts().0;
        let original = OriginalRequest::new(Gateway::Traefik, &head, "");
        let path = original.path().map(|path| path.map(text));
        path.map_err(|problem| problem.status.as_u16())
    };
    assert_eq!(of(&[]), Ok(None));
    assert_eq!(of(&[("x-original-uri", "/a")]), Ok(None));
    assert_eq!(of(&[("x-forwarded-uri", "")]), Ok(Some("/".to_owned())));
    assert_eq!(of(&[("x-forwarded-uri", "/a"), ("x-forwarded-uri", "/b")]), Err(400));
}

#[test]
fn over_http2_the_host_stands_in_the_address() {
    let request = Request::builder().uri("http://Shop.example:443/v1/forward/api/a");
    let head = request.body(()).unwrap().into_parts().0;
    let original = OriginalRequest::new(Gateway::Envoy, &head, "/a");
    assert_eq!(original.host().unwrap().map(text).as_deref(), Some("shop.example"));
}
