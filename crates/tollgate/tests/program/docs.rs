//! What the pages under `docs/` say of the server, held against a running one.

use crate::test_server::{Response, TestServer};
use tollgate_limiter::testing::servers::{Server as Redis, ServerKind};
use tollgate_test_kit::TestFolder;

const HTTP: &str = include_str!("../../../../docs/http.md");
const METRICS: &str = include_str!("../../../../docs/metrics.md");

/// Stands for any text in what is expected.
const ANYTHING: &str = "…";

#[test]
fn every_exchange_of_the_http_page_goes_as_it_is_written() {
    let rules = blocks(HTTP, "yaml").next().expect("the page has rules");
    let (_folder, server) = TestServer::with_settings(rules);
    let mut checked = 0;
    for block in blocks(HTTP, "http") {
        for exchange in exchanges(block) {
            let response = if exchange.method == "GET" {
                server.get(exchange.path)
            } else {
                server.post(exchange.path, exchange.body)
            };
            exchange.check(&response);
            checked += 1;
        }
    }
    assert!(checked >= 19, "only {checked} exchanges were found");
}

#[test]
fn the_metrics_page_names_every_metric_and_no_other() {
    let redis = Redis::start(ServerKind::Redis70);
    let text: String = [&[][..], &["--store", &redis.url()]]
        .map(|store| {
            let folder = TestFolder::with("shop.yaml", "domain: shop");
            let server = TestServer::start(&folder, &[&["--set", "envoy_rules=shop.yaml"], store].concat());
            server.check("{\"user\":\"u_1\"}");
            server.get("/metrics").body
        })
        .concat();
    let served: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| match kind {
            "counter" => format!("{}_total", name.trim_end_matches("_total")),
            _ => name.to_owned(),
        })
        .collect();
    let mut documented: Vec<&str> = METRICS
        .lines()
        .filter_map(|line| line.strip_prefix("| `tollgate_"))
        .filter_map(|line| line.split('`').next())
        .collect();
    let mut served: Vec<&str> = served
        .iter()
        .filter_map(|name| name.strip_prefix("tollgate_"))
        .collect();
    documented.sort_unstable();
    served.sort_unstable();
    served.dedup();
    assert_eq!(documented, served);
}

#[test]
fn a_gateway_that_leaves_a_header_out_is_warned_about_once_for_each() {
    let (_folder, server) =
        TestServer::with_settings("forward_auth: { gateway: caddy }\nrules: [{ id: r, per: ip, limit: 9/h }]\n");
    for _ in 0..2 {
        let headers = "x-forwarded-method: GET\r\n";
        assert_eq!(server.post_with("/v1/forward/default", "", headers).status, 200);
        assert_eq!(server.post_with("/v1/forward/default", "", "").status, 200);
    }
    for header in ["x-forwarded-method", "x-forwarded-uri", "x-forwarded-host"] {
        server.wait_for(header, 1);
        let log = server.log();
        assert_eq!(log.matches(header).count(), 1, "{header}: {log}");
    }
}

/// One request of a page, and what comes back.
struct Exchange<'p> {
    method: &'p str,
    path: &'p str,
    body: &'p str,
    status: u16,
    headers: Vec<(&'p str, &'p str)>,
    response: &'p str,
}

impl Exchange<'_> {
    fn check(&self, response: &Response) {
        let request = format!("{} {} {}", self.method, self.path, self.body);
        assert_eq!(response.status, self.status, "{request}: {}", response.body);
        for (name, expected) in &self.headers {
            let value = response.headers.iter().find(|(known, _)| known == name);
            let value = value.unwrap_or_else(|| panic!("{request}: no {name} in {:?}", response.headers));
            assert!(
                fits(expected, &value.1),
                "{request}: {name} is {}, not {expected}",
                value.1
            );
        }
        assert!(
            fits(self.response, &response.body),
            "{request}: {} is not {}",
            response.body,
            self.response
        );
    }
}

/// The code blocks of one language.
pub(crate) fn blocks<'p>(page: &'p str, language: &str) -> impl Iterator<Item = &'p str> {
    let fence = format!("```{language}\n");
    let mut rest = page;
    std::iter::from_fn(move || {
        let (_, block) = rest.split_once(&fence)?;
        let (block, after) = block.split_once("\n```")?;
        rest = after;
        Some(block)
    })
}

/// Requests and answers take turns, with an empty line between any two. An answer begins with its status, then come
/// headers, then the body.
fn exchanges(block: &str) -> impl Iterator<Item = Exchange<'_>> {
    let parts: Vec<&str> = block.split("\n\n").collect();
    assert!(parts.len().is_multiple_of(2), "a request without an answer: {block}");
    let (pairs, _) = parts.as_chunks();
    let pairs: Vec<[&str; 2]> = pairs.to_vec();
    pairs.into_iter().map(|[request, response]| {
        let (head, body) = request.split_once('\n').unwrap_or((request, ""));
        let (method, path) = head.split_once(' ').expect("a method and a path");
        let (status, mut rest) = response.split_once('\n').expect("a status and what follows");
        let mut headers = Vec::new();
        while let Some((line, after)) = rest.split_once('\n')
            && let Some(field) = line.split_once(": ")
        {
            headers.push(field);
            rest = after;
        }
        Exchange {
            method,
            path,
            body,
            status: status.parse().expect("a status"),
            headers,
            response: rest,
        }
    })
}

/// Whether `text` is what is expected, with anything where that says so.
fn fits(expected: &str, text: &str) -> bool {
    let mut parts = expected.split(ANYTHING);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[test]
fn anything_is_anything_and_the_rest_is_itself() {
    for expected in ["abc", "a…", "…c", "a…c", "…b…", "…"] {
        assert!(fits(expected, "abc"), "{expected}");
    }
    for expected in ["ab", "a…d", "…x…", ""] {
        assert!(!fits(expected, "abc"), "{expected}");
    }
    assert!(fits("…", ""));
}
