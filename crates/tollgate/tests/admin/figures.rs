//! Figures of the running server: time series, the event stream, checks from the dashboard.

use crate::client::cookie_of;
use crate::fixture::{ADMIN, AdminServer, OPERATOR, SHOP_EDITOR, SHOP_OPERATOR, Storage, VIEWER};
use crate::rules::add_rule;
use crate::tables::set_row;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use tollgate_test_kit::eventually;

/// Checks of the domain `default`, or another, as the dashboard makes them.
fn check(server: &AdminServer, domain: &str, merchant: &str, times: usize) -> Value {
    let body = json!({ "domain": domain, "attributes": { "merchant": merchant } });
    let mut last = Value::Null;
    for _ in 0..times {
        last = server.by_admin("POST", "/v1/try").json(&body).expect(200).json();
    }
    last
}

/// A server whose counters are sampled: what was counted before the first reading is in no second.
fn sampled() -> AdminServer {
    let server = AdminServer::start();
    eventually("a second is complete", || {
        !values(&server.get("/v1/series").expect(200).json(), "allowed").is_empty()
    });
    server
}

/// The values of a line, without those that have no data.
fn values(series: &Value, name: &str) -> Vec<u64> {
    let mut lines = series["series"].as_array().unwrap().iter();
    let line = lines.find(|line| line["name"] == name).unwrap();
    line["values"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_u64)
        .collect()
}

fn sum(series: &Value, name: &str) -> u64 {
    values(series, name).iter().sum()
}

#[test]
fn decisions_appear_in_the_series_of_all_and_of_their_rule() {
    let server = sampled();
    let last = check(&server, "default", "m_1", 103);
    assert_eq!((&last["allowed"], &last["rule"]), (&json!(false), &json!("plan")));
    check(&server, "shop", "m_1", 4);
    let series = |query: &str| server.get(&format!("/v1/series?{query}")).expect(200).json();
    eventually("the last second is complete", || {
        let totals = series("range=5m");
        (sum(&totals, "allowed"), sum(&totals, "denied")) == (104, 3)
    });
    let totals = series("");
    assert_eq!(
        (&totals["step_ms"], &totals["scope"]),
        (&json!(1_000), &json!("instance"))
    );
    assert_eq!(totals["series"][0]["values"].as_array().unwrap().len(), 300);
    assert_eq!(totals["latency"]["decision_p99_us"].as_array().unwrap().len(), 300);
    let latencies = totals["latency"]["decision_p99_us"].as_array().unwrap().iter();
    assert!(latencies.filter_map(Value::as_u64).all(|us| us > 0));
    assert_eq!(sum(&series("by=source"), "memory"), 107);
    let rule = series("rule=plan");
    assert_eq!(
        (sum(&rule, "allowed"), sum(&rule, "denied"), sum(&rule, "shadow_denied")),
        (100, 3, 0)
    );
    assert_eq!(sum(&series("domain=shop&rule=shop-plan"), "allowed"), 4);
    assert_eq!(sum(&series("domain=shop"), "allowed"), 4);
    for (range, step, length) in [("1h", 10_000, 360), ("24h", 60_000, 1_440)] {
        let series = series(&format!("range={range}"));
        assert_eq!(series["step_ms"], step);
        assert_eq!(series["series"][1]["values"].as_array().unwrap().len(), length);
        assert_eq!(series["start"].as_u64().unwrap() % step, 0);
    }
    for (query, field) in [
        ("range=1d", "range"),
        ("by=rule", "by"),
        ("by=source&rule=plan", "by"),
        ("by=source&domain=shop", "by"),
        ("scope=all", "scope"),
        ("scope=rules&sort=name", "sort"),
    ] {
        let problem = server.get(&format!("/v1/series?{query}")).refused(400, "malformed");
        assert_eq!(problem["field"], field, "{query}");
    }
    server.get("/v1/series?rule=nobody").refused(404, "not-found");
}

#[test]
fn a_table_has_all_rules_with_their_last_minute() {
    let server = sampled();
    check(&server, "default", "m_1", 101);
    check(&server, "shop", "m_1", 102);
    let table = |query: &str| server.get(&format!("/v1/series?scope=rules{query}")).expect(200).json();
    eventually("the last second is complete", || {
        let items = table("")["items"].take();
        items[0]["checks"] == 102 && items[1]["checks"] == 101
    });
    assert_eq!(
        table(""),
        json!({ "window_ms": 60_000, "after": null, "items": [
            { "domain": "shop", "rule": "shop-plan", "checks": 102, "denied": 52, "shadow_denied": 0,
              "utilization": { "50": 24, "80": 15, "95": 8, "100": 3, "denied": 52 } },
            { "domain": "default", "rule": "plan", "checks": 101, "denied": 1, "shadow_denied": 0,
              "utilization": { "50": 49, "80": 30, "95": 15, "100": 6, "denied": 1 } },
        ] })
    );
    assert_eq!(table("&domain=default")["items"].as_array().unwrap().len(), 1);
    assert_eq!(table("&q=SHOP")["items"][0]["rule"], "shop-plan");
    assert_eq!(table("&sort=denied")["items"][0]["rule"], "shop-plan");
    let first = table("&limit=1");
    let second = table(&format!("&limit=1&after={}", first["after"].as_str().unwrap()));
    assert_eq!(
        (&second["items"][0]["rule"], &second["after"]),
        (&json!("plan"), &Value::Null)
    );
    let metrics = server.gate.metrics_text();
    for line in [
        "tollgate_limit_utilization_total{rule=\"plan\",band=\"50\"} 49",
        "tollgate_limit_utilization_total{rule=\"shop-plan\",domain=\"shop\",band=\"denied\"} 52",
        "tollgate_decisions_total{rule=\"plan\",result=\"deny\",source=\"memory\",protocol=\"admin\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}

#[test]
fn a_caller_of_some_domains_sees_their_figures_only() {
    let server = sampled();
    check(&server, "default", "m_1", 7);
    check(&server, "shop", "m_1", 2);
    let get = |query: &str| server.request("GET", &format!("/v1/series{query}")).token(SHOP_EDITOR);
    eventually("the last second is complete", || {
        sum(&get("").expect(200).json(), "allowed") == 2
    });
    assert_eq!(get("").expect(200).json()["latency"], Value::Null);
    get("?by=source").refused(400, "malformed");
    get("?domain=default").refused(403, "domain");
    get("?rule=plan").refused(403, "domain");
    let table = get("?scope=rules").expect(200).json();
    assert_eq!(table["items"].as_array().unwrap().len(), 1);
    let body = json!({ "attributes": { "merchant": "m" } });
    let attempt = |token: &str, body: &Value| server.request("POST", "/v1/try").token(token).json(body);
    attempt(SHOP_OPERATOR, &body).refused(403, "domain");
    attempt(
        SHOP_OPERATOR,
        &json!({ "domain": "shop", "attributes": { "merchant": "m" } }),
    )
    .expect(200);
    attempt(VIEWER, &body).refused(403, "forbidden");
    attempt(OPERATOR, &body).expect(200);
    attempt(OPERATOR, &json!({ "attributes": [] })).refused(400, "malformed");
}

#[test]
fn variants_of_an_experiment_are_counted_apart() {
    let server = sampled();
    let yaml = "id: trial\nper: merchant\nlimit: 2/h\nexperiment: { share: 50%, limit: 1/h }\n";
    let body = json!({ "yaml": yaml, "reason": "try" });
    server.create("/v1/rule?id=trial", &body).expect(201);
    // Within the limit of the other rule of this domain.
    for merchant in 0..40 {
        check(&server, "default", &format!("m_{merchant}"), 2);
    }
    let series = server.get("/v1/series?rule=trial").expect(200).json();
    let [control, experiment] = ["control", "experiment"].map(|name| &series["variants"][name]);
    assert_eq!(
        (&control["limit"], &experiment["limit"]),
        (&json!("2/h"), &json!("1/h"))
    );
    let numbers = |variant: &Value| {
        (
            variant["allowed"].as_u64().unwrap(),
            variant["denied"].as_u64().unwrap(),
        )
    };
    let ((allowed, denied), (tried, refused)) = (numbers(control), numbers(experiment));
    assert_eq!(allowed + denied + tried + refused, 80);
    assert_eq!(denied, 0, "the limit of the control is enough");
    assert!(
        tried > 0 && refused == tried,
        "each second check of the experiment is denied: {series}"
    );
    let plain = server.get("/v1/series?rule=plan").expect(200).json();
    assert_eq!(plain["variants"], Value::Null);
}

#[test]
fn changes_of_rules_are_marks_of_the_series() {
    for storage in Storage::both() {
        let server = AdminServer::over(&storage);
        set_row(&server, "m_secret_1", "5/min");
        add_rule(&server);
        let marks = |query: &str, token: &str| {
            let request = server.request("GET", &format!("/v1/series?{query}")).token(token);
            request.expect(200).json()["marks"].clone()
        };
        let all = marks("range=1h", ADMIN);
        let kinds: Vec<&str> = all
            .as_array()
            .unwrap()
            .iter()
            .map(|mark| mark["kind"].as_str().unwrap())
            .collect();
        assert_eq!(kinds, ["row", "publish"]);
        assert_eq!(
            (&all[1]["actor"], &all[1]["text"], &all[1]["revision"]),
            (&json!("admin"), &json!("new"), &json!(2))
        );
        assert_eq!(marks("rule=plan", ADMIN).as_array().unwrap().len(), 2);
        assert_eq!(
            marks("domain=shop&rule=shop-plan", ADMIN),
            json!([all[1]]),
            "the row is of another rule"
        );
        assert_eq!(marks("", SHOP_EDITOR), json!([]), "both are of other domains");
        assert_eq!(marks("", VIEWER)[0]["text"], "");
    }
}

/// The cookie of a viewer who follows the printed link.
fn view_cookie(server: &AdminServer) -> String {
    let code = server.links.view.clone().unwrap();
    let login = server.request("POST", "/v1/session").page("");
    cookie_of(&login.json(&json!({ "view": code })).expect(200))
}

#[test]
fn a_viewer_of_the_printed_link_can_check_while_the_rules_are_built_in() {
    let quickstart = AdminServer::with(&Storage::Sqlite, |options| options.file_layer = String::new());
    let cookie = view_cookie(&quickstart);
    let body = json!({ "attributes": { "ip": "192.0.2.1" } });
    let attempt = |server: &AdminServer, cookie: &str| server.request("POST", "/v1/try").page(cookie).json(&body);
    let checked = attempt(&quickstart, &cookie).expect(200).json();
    assert_eq!(checked["allowed"], true, "{checked}");
    attempt(&quickstart, "").refused(401, "unauthorized");
    for _ in 0..600 {
        if attempt(&quickstart, &cookie).expect_one_of(&[200, 429]).status == 429 {
            attempt(&quickstart, &cookie).refused(429, "too-many-requests");
            let own = AdminServer::fresh();
            attempt(&own, &view_cookie(&own)).refused(403, "forbidden");
            return;
        }
    }
    panic!("checks are not limited");
}

#[test]
fn the_subjects_that_are_refused_most_are_listed_with_bounds() {
    let server = sampled();
    check(&server, "default", "m_secret_1", 104);
    check(&server, "default", "m_secret_2", 102);
    check(&server, "shop", "m_shop", 51);
    let top = |query: &str, token: &str| {
        let request = server.request("GET", &format!("/v1/top?{query}")).token(token);
        request.expect(200).json()
    };
    let item = |domain: &str, rule: &str, subject: &str, count: u64, share_ppm: u64| {
        json!({ "domain": domain, "rule": rule, "subject": { "merchant": subject }, "lower": count, "upper": count,
                "share_ppm": share_ppm })
    };
    let shop = item("shop", "shop-plan", "m_shop", 1, 1_000_000);
    let expected = json!([
        item("default", "plan", "m_secret_1", 4, 666_666),
        item("default", "plan", "m_secret_2", 2, 333_333),
        shop,
    ]);
    eventually("the last second is collected", || top("", ADMIN)["items"] == expected);
    assert_eq!(top("", ADMIN)["instances"], 1);
    assert_eq!(top("limit=1", ADMIN)["items"], json!([expected[0]]));
    assert_eq!(
        top("domain=shop&rule=shop-plan&minutes=2", ADMIN)["items"],
        json!([shop])
    );
    assert_eq!(top("", SHOP_EDITOR)["items"], json!([shop]));
    let masked = top("", VIEWER);
    assert_eq!(masked["items"][0]["subject"], json!({ "merchant": "m_***" }));
    assert!(!masked.to_string().contains("secret"), "{masked}");
    server.get("/v1/top?minutes=31").refused(400, "malformed");
    server.get("/v1/top?minutes=0").refused(400, "malformed");
}

/// An open event stream.
struct Events {
    lines: BufReader<TcpStream>,
    head: String,
}

struct Event {
    id: u64,
    name: String,
    data: Value,
}

impl Events {
    fn open(server: &AdminServer, query: &str, token: &str, headers: &str) -> Self {
        Self::of(
            server,
            &format!("{query} HTTP/1.1\r\nAuthorization: Bearer {token}\r\n{headers}"),
        )
    }

    fn of(server: &AdminServer, target_and_headers: &str) -> Self {
        Self::over(TcpStream::connect(server.address).unwrap(), server, target_and_headers)
    }

    fn over(mut stream: TcpStream, server: &AdminServer, target_and_headers: &str) -> Self {
        stream
            .set_read_timeout(Some(std::time::Duration::from_secs(20)))
            .unwrap();
        let request = format!("GET /v1/stream{target_and_headers}Host: {}\r\n\r\n", server.address);
        stream.write_all(request.as_bytes()).unwrap();
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(lines.read_line(&mut head).unwrap(), 0, "{head}");
        }
        Self { lines, head }
    }

    /// The next event; none: the stream has ended.
    fn next(&mut self) -> Option<Event> {
        let (mut id, mut name) = (0, String::new());
        loop {
            let mut line = String::new();
            // Lengths of chunks are lines that no field is on; the last one is 0.
            match self.lines.read_line(&mut line) {
                Ok(0) => return None,
                Ok(_) if line == "0\r\n" => return None,
                Ok(_) => {}
                Err(error) => panic!("no event came: {error}"),
            }
            if let Some(value) = line.strip_prefix("id: ") {
                id = value.trim().parse().unwrap();
            } else if let Some(value) = line.strip_prefix("event: ") {
                name = value.trim().to_owned();
            } else if let Some(value) = line.strip_prefix("data: ") {
                let data = serde_json::from_str(value).unwrap();
                return Some(Event { id, name, data });
            }
        }
    }

    fn until(&mut self, name: &str, is: impl Fn(&Value) -> bool) -> Event {
        loop {
            let event = self.next().unwrap_or_else(|| panic!("it ended before {name}"));
            if event.name == name && is(&event.data) {
                return event;
            }
        }
    }
}

#[test]
fn a_stream_has_totals_rules_decisions_and_revisions() {
    let server = sampled();
    let mut events = Events::open(&server, "?rules=default/plan&decisions=1", ADMIN, "");
    assert!(
        events.head.contains("text/event-stream") && events.head.starts_with("HTTP/1.1 200"),
        "{}",
        events.head
    );
    events.until("totals", |_| true);
    assert!(server.gate.metrics_text().contains("tollgate_stream_clients 1"));
    check(&server, "default", "m_secret_4711", 101);
    let denied = events.until("decision", |decision| decision["allowed"] == false);
    assert_eq!(
        (
            &denied.data["rule"],
            &denied.data["protocol"],
            &denied.data["attributes"]
        ),
        (&json!("plan"), &json!("admin"), &json!({ "merchant": "m_secret_4711" }))
    );
    assert!(denied.data["retry_after_ms"].as_u64().unwrap() > 0);
    add_rule(&server);
    let revision = events.until("revision", |_| true);
    assert_eq!(
        (
            &revision.data["kind"],
            &revision.data["actor"],
            &revision.data["text"],
            &revision.data["revision"]
        ),
        (&json!("publish"), &json!("admin"), &json!("new"), &json!(1))
    );
    let mut checks = 0;
    while checks < 20 {
        check(&server, "default", "m_2", 10);
        let rules = events.until("rules", |_| true);
        checks += rules.data["items"][0]["checks"].as_u64().unwrap();
    }
    // What was missed comes again, in order, and then what is new.
    let mut again = Events::open(
        &server,
        "?decisions=1",
        ADMIN,
        &format!("Last-Event-ID: {}\r\n", denied.id),
    );
    let first = again.next().unwrap();
    assert!(first.id > denied.id && first.name != "resync");
    let same = again.until("revision", |_| true);
    assert_eq!((same.id, same.data), (revision.id, revision.data));
    let mut unknown = Events::open(&server, "", ADMIN, "Last-Event-ID: 1\r\n");
    assert_eq!(unknown.next().unwrap().name, "resync");
    drop((events, again, unknown));
    eventually("the streams have ended", || {
        server.gate.metrics_text().contains("tollgate_stream_clients 0")
    });
}

#[test]
fn a_stream_shows_what_its_caller_may_see() {
    let server = sampled();
    let mut viewer = Events::open(&server, "?decisions=1&filter=secret", VIEWER, "");
    let mut plain = Events::open(&server, "?decisions=1&filter=plan", VIEWER, "");
    let mut shop = Events::open(
        &server,
        "?decisions=1&rules=default/plan,shop/shop-plan",
        SHOP_EDITOR,
        "",
    );
    plain.until("totals", |_| true);
    check(&server, "default", "m_secret_4711", 3);
    let masked = plain.until("decision", |_| true);
    assert_eq!(masked.data["attributes"], json!({ "merchant": "m_***" }));
    add_rule(&server);
    check(&server, "shop", "m_shop", 3);
    let (mut has_decision, mut allowed) = (false, 0);
    while !has_decision || allowed < 3 {
        let event = shop.next().unwrap();
        let text = event.data.to_string();
        assert!(!text.contains("secret") && !text.contains("\"default\""), "{text}");
        match event.name.as_str() {
            "decision" => {
                assert_eq!(event.data["attributes"], json!({ "merchant": "m_shop" }));
                has_decision = true;
            }
            "totals" => {
                assert_eq!(event.data["sources"], json!({}));
                allowed += event.data["allowed"].as_u64().unwrap();
            }
            "revision" => assert_eq!((&event.data["actor"], &event.data["text"]), (&json!(""), &json!(""))),
            _ => {}
        }
    }
    assert_eq!(allowed, 3);
    // A search for a subject would tell whether it exists.
    loop {
        let event = viewer.next().unwrap();
        assert_ne!(event.name, "decision", "{}", event.data);
        if event.name == "revision" {
            break;
        }
    }
}

#[test]
fn a_stream_ends_with_its_session_and_with_the_server() {
    let mut server = sampled();
    let user = json!({ "name": "eve", "role": "viewer", "password": "a password of eve" });
    server.by_admin("POST", "/v1/users").json(&user).expect(201);
    let login = json!({ "name": "eve", "password": "a password of eve" });
    let login = server.request("POST", "/v1/session").page("").json(&login).expect(200);
    let cookie = cookie_of(&login);
    let mut events = Events::of(&server, &format!(" HTTP/1.1\r\nCookie: {cookie}\r\n"));
    events.until("totals", |_| true);
    server.request("DELETE", "/v1/session").page(&cookie).expect(204);
    while events.next().is_some() {}
    let mut events = Events::open(&server, "", VIEWER, "");
    events.until("totals", |_| true);
    server.stop();
    while events.next().is_some() {}
}

#[test]
fn streams_of_one_token_are_bounded() {
    let server = sampled();
    let mut streams: Vec<Events> = (0..8).map(|_| Events::open(&server, "", VIEWER, "")).collect();
    assert!(streams.iter().all(|stream| stream.head.starts_with("HTTP/1.1 200")));
    let refused = Events::open(&server, "", VIEWER, "");
    assert!(refused.head.starts_with("HTTP/1.1 503"), "{}", refused.head);
    // Others have places of their own.
    let mut other = Events::open(&server, "", OPERATOR, "");
    other.until("totals", |_| true);
    streams.pop();
    eventually("a place is free again", || {
        Events::open(&server, "", VIEWER, "").head.starts_with("HTTP/1.1 200")
    });
}

#[test]
fn too_many_checks_of_one_caller_are_told_when_to_come_again() {
    let server = AdminServer::start();
    let body = json!({ "domain": "default", "attributes": { "merchant": "m_1" } });
    let check = || server.request("POST", "/v1/try").token(OPERATOR).json(&body).send();
    // 300 a minute, of which one may begin in between.
    let denied = (0..601).map(|_| check()).find(|answer| answer.status != 200);
    let denied = denied.expect("one is denied");
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("60")));
    assert_eq!(denied.json()["code"], "too-many-requests");
}
