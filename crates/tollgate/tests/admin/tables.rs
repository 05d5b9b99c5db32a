//! Override rows and subject attributes: items, lists, imports and exports.

use crate::client::{column, encoded};
use crate::fixture::AdminServer;
use serde_json::{Value, json};
use tollgate_test_kit::eventually;

/// Sets a row of `plan` and returns its tag.
pub(crate) fn set_row(server: &AdminServer, merchant: &str, terms: &str) -> String {
    let target = format!("/v1/override?rule=plan&merchant={}", encoded(merchant));
    let body = json!({ "terms": terms });
    let answer = server.create(&target, &body).expect(201);
    // A write is acknowledged before a busy instance has applied it.
    let revision = answer.json()["revision"].as_u64().unwrap();
    eventually("the row is applied", || {
        server.get("/v1/status").expect(200).json()["revision"].as_u64() >= Some(revision)
    });
    answer.header("etag").unwrap().to_owned()
}

fn set_attribute(server: &AdminServer, subject: &str, value: &str) {
    let target = format!("/v1/attribute?source=merchant&subject={}&name=tier", encoded(subject));
    server.create(&target, &json!({ "value": value })).expect(201);
}

#[test]
fn a_row_is_created_read_changed_and_deleted() {
    for server in AdminServer::over_both() {
        let target = "/v1/override?rule=plan&merchant=m_42";
        let body = json!({ "terms": "20/min burst 5", "note": "sale", "until": "2099-12-01", "reason": "ticket 7" });
        let created = server.create(target, &body).expect(201);
        let row = created.json();
        assert_eq!(created.header("etag"), row["etag"].as_str());
        assert_eq!(row["etag"], format!("\"e{}-r{}\"", row["epoch"], row["revision"]));
        assert_eq!(
            (&row["expires_at"], &row["orphan"], &row["rejected"]),
            (&json!(4_099_766_400_000_u64), &json!(false), &Value::Null)
        );
        // The subject as JSON names the same row.
        let subject = encoded("{\"merchant\":\"m_42\"}");
        let read = server
            .get(&format!("/v1/override?domain=default&rule=plan&subject={subject}"))
            .expect(200);
        assert_eq!(read.json(), row);
        assert_eq!(read.header("etag"), created.header("etag"));

        let tag = created.header("etag").unwrap();
        let body = json!({ "terms": "30/min" });
        let changed = server.by_admin("PUT", target).if_match(tag).json(&body).expect(200);
        assert!(changed.json()["revision"].as_u64() > row["revision"].as_u64());
        server
            .by_admin("DELETE", target)
            .if_match(changed.header("etag").unwrap())
            .expect(204);
        server.get(target).refused(404, "not-found");
        server
            .by_admin("DELETE", target)
            .if_match("*")
            .refused(400, "reason-required");
        server
            .by_admin("DELETE", &format!("{target}&reason=x"))
            .if_match("*")
            .refused(404, "not-found");
    }
}

#[test]
fn a_row_of_an_equal_meaning_is_no_change() {
    for server in AdminServer::over_both() {
        let tag = set_row(&server, "m_1", "60/min");
        let revision = server.get("/v1/status").send().json()["revision"].clone();
        for terms in ["60/min", " 60/min ", "60 / minute", "60/1min"] {
            let body = json!({ "terms": terms });
            let request = server
                .by_admin("PUT", "/v1/override?rule=plan&merchant=m_1")
                .if_match(&tag)
                .json(&body);
            let answer = request.send();
            // A way to write it that is none is an error, and nothing else.
            assert!([200, 422].contains(&answer.status), "{terms}: {}", answer.body);
            if answer.status == 200 {
                assert_eq!(answer.header("etag"), Some(tag.as_str()), "{terms}");
            }
        }
        let same = json!({ "terms": " 60/min " });
        server
            .by_admin("PUT", "/v1/override?rule=plan&merchant=m_1")
            .if_match(&tag)
            .json(&same)
            .expect(200);
        assert_eq!(server.get("/v1/status").send().json()["revision"], revision);
    }
}

#[test]
fn a_row_with_a_misspelt_attribute_is_stored_with_a_warning() {
    let server = AdminServer::start();
    let put = |target: &str| {
        let body = json!({ "terms": "5/min", "allow_orphan": true });
        server
            .by_admin("PUT", target)
            .if_absent()
            .json(&body)
            .expect(201)
            .json()
    };
    let row = put("/v1/override?rule=plan&merchnat=m_1");
    let warning = &row["warnings"][0];
    assert!(
        warning["text"].as_str().unwrap().contains("`merchnat` may be misspelt"),
        "{row}"
    );
    assert_eq!(
        (&warning["severity"], &warning["hint"], &warning["line"]),
        (&json!("warning"), &json!("did you mean `merchant`?"), &Value::Null)
    );
    // One that rules use, and one that is like none of them, are what they are.
    for target in [
        "/v1/override?rule=plan&merchant=m_1",
        "/v1/override?rule=plan&merchant=m_1&region=eu",
        "/v1/override?rule=of-later&merchant=m_1",
    ] {
        assert_eq!(put(target)["warnings"], Value::Null, "{target}");
    }
    let lines = "domain,rule,subject,terms,note,expires_at\n\
                 default,plan,merchant=m_2,5/min,,\n\
                 default,plan,merchnat=m_2,5/min,,\n\
                 shop,shop-plan,mercahnt=m_2,5/min,,\n\
                 default,plan,merchnat=m_3,5/min,,\n";
    let import = server
        .by_admin("POST", "/v1/overrides/import")
        .header("Content-Type", "text/csv");
    let imported = import.body(lines).expect(200).json();
    let warned: Vec<(&Value, &Value)> = imported["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|warning| (&warning["line"], &warning["hint"]))
        .collect();
    let meant = json!("did you mean `merchant`?");
    assert_eq!(warned, [(&json!(3), &meant), (&json!(4), &meant)], "one for each name");
}

#[test]
fn rows_that_cannot_be_are_refused_with_problems() {
    let server = AdminServer::start();
    let put = |target: &str, body: &Value| server.create(target, body);
    let target = "/v1/override?rule=plan&merchant=m_1";
    let invalid = put(target, &json!({ "terms": "lots" })).refused(422, "invalid");
    assert_eq!(invalid["problems"][0]["severity"], "error");
    put("/v1/override?rule=nowhere&merchant=m_1", &json!({ "terms": "5/min" })).refused(404, "not-found");
    let orphan = json!({ "terms": "5/min", "allow_orphan": true });
    assert_eq!(
        put("/v1/override?rule=nowhere&merchant=m_1", &orphan)
            .expect(201)
            .json()["orphan"],
        true
    );
    put(target, &json!({ "terms": "0/min" })).refused(400, "reason-required");
    put(target, &json!({ "terms": "0/min", "reason": "abuse" })).expect(201);
    for body in [
        json!({ "terms": "5/min", "expires_at": 1 }),
        json!({ "terms": "5/min", "until": "yesterday" }),
        json!({ "terms": "5/min", "until": "2001-01-01" }),
        json!({ "terms": "5/min", "until": "2099-01-01", "expires_at": 4_099_852_800_000_u64 }),
        json!({ "terms": 5 }),
        json!({}),
    ] {
        put("/v1/override?rule=plan&merchant=m_2", &body).refused(400, "malformed");
    }
    put("/v1/override?rule=plan", &json!({ "terms": "5/min" })).refused(400, "malformed");
    put("/v1/override?rule=plan&subject=%7B", &json!({ "terms": "5/min" })).refused(400, "malformed");
    put("/v1/override?merchant=m_2", &json!({ "terms": "5/min" })).refused(400, "malformed");
}

/// What one way in accepts and another one, or the rules, do not would be acknowledged and then have no effect.
#[test]
fn rows_and_attributes_beyond_their_bounds_are_refused_by_every_way_in() {
    let server = AdminServer::start();
    let text = |length: usize| "x".repeat(length);
    let subject = |count: usize| -> Value {
        let pairs = (0..count).map(|number| (format!("a{number}"), json!("v")));
        Value::Object(pairs.collect())
    };
    let named = |name: String, value: String| Value::Object([(name, json!(value))].into_iter().collect());
    let refuse = |put: (&str, Value), import: (&str, Value), expected: &str| {
        let (target, body) = put;
        let single = server.by_admin("PUT", target).if_absent().json(&body);
        let (target, line) = import;
        let several = server.by_admin("POST", target).body(line.to_string());
        for request in [single, several] {
            let problem = request.refused(422, "invalid")["problems"][0].clone();
            let said = format!("{} {}", problem["text"], problem["hint"]);
            assert!(said.contains(expected), "`{expected}` is not in {said}");
        }
    };
    for (subject, terms, note, expected) in [
        (subject(9), text(3), String::new(), "1 to 8 attributes"),
        (named(text(257), text(1)), text(3), String::new(), "256 bytes"),
        (
            named("merchant".to_owned(), text(1_025)),
            text(3),
            String::new(),
            "1024",
        ),
        (subject(1), text(1_025), String::new(), "1024"),
        (subject(1), "5/min".to_owned(), text(501), "500 bytes"),
    ] {
        let target = format!("/v1/override?rule=plan&subject={}", encoded(&subject.to_string()));
        let body = json!({ "terms": terms, "note": note });
        let row = json!({ "rule": "plan", "subject": subject, "terms": terms, "note": note });
        refuse((&target, body), ("/v1/overrides/import", row), expected);
        // A row without a rule has the same bounds.
        let target = target.replace("rule=plan", "rule=nowhere");
        let body = json!({ "terms": terms, "note": note, "allow_orphan": true });
        let orphan = server.by_admin("PUT", &target).if_absent().json(&body);
        orphan.refused(422, "invalid");
    }
    for (source, subject, name, value, expected) in [
        (text(257), text(1), text(1), text(1), "256 bytes"),
        (text(1), text(1_025), text(1), text(1), "1024"),
        (text(1), text(1), text(257), text(1), "256 bytes"),
        (text(1), text(1), text(1), text(1_025), "1024"),
        (text(1), text(1), text(1), String::new(), "without control characters"),
    ] {
        let target = format!("/v1/attribute?source={source}&subject={subject}&name={name}");
        let line = json!({ "source": source, "subject": subject, "name": name, "value": value });
        refuse(
            (&target, json!({ "value": value })),
            ("/v1/attributes/import", line),
            expected,
        );
    }
    assert_eq!(server.get("/v1/overrides").expect(200).json()["items"], json!([]));
    assert_eq!(server.get("/v1/attributes").expect(200).json()["items"], json!([]));
}

#[test]
fn rows_are_listed_in_pages_and_filtered_on_the_server() {
    for server in AdminServer::over_both() {
        for number in 0..7 {
            set_row(&server, &format!("m_{number}"), "5/min");
        }
        let body = json!({ "terms": "5/min", "note": "A Note", "until": "2099-01-01" });
        server
            .create("/v1/override?domain=shop&rule=shop-plan&merchant=zed", &body)
            .expect(201);
        let mut seen = Vec::new();
        let mut after = String::new();
        loop {
            let page = server.get(&format!("/v1/overrides?limit=3{after}")).expect(200).json();
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= 3);
            seen.extend(
                items
                    .iter()
                    .map(|row| row["subject"]["merchant"].as_str().unwrap().to_owned()),
            );
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!(seen, ["m_0", "m_1", "m_2", "m_3", "m_4", "m_5", "m_6", "zed"]);
        let count = |target: &str| server.count(target);
        assert_eq!(count("/v1/overrides?domain=shop"), 1);
        assert_eq!(count("/v1/overrides?rule=plan"), 7);
        assert_eq!(count("/v1/overrides?q=m_3"), 1);
        assert_eq!(count("/v1/overrides?q=a%20note"), 1);
        assert_eq!(count("/v1/overrides?q=%25"), 0);
        assert_eq!(count("/v1/overrides?expiring=true"), 1);
        for wrong in [
            "limit=0",
            "limit=1001",
            "limit=x",
            "after=zz",
            "after=00",
            "nothing=1",
            "expiring=maybe",
            "expiring=",
            "limit=1&limit=2",
        ] {
            server.get(&format!("/v1/overrides?{wrong}")).refused(400, "malformed");
        }
    }
}

#[test]
fn rows_without_their_rule_are_listed_page_by_page() {
    let server = AdminServer::start();
    let mut lines = String::new();
    for number in 0..1_500 {
        lines.push_str(&format!(
            "{{\"rule\":\"plan\",\"subject\":{{\"merchant\":\"m_{number}\"}},\"terms\":\"5/min\"}}\n"
        ));
    }
    let import = server.by_admin("POST", "/v1/overrides/import");
    import.body(lines).expect(200);
    let body = json!({ "terms": "5/min", "allow_orphan": true });
    for target in [
        "rule=gone&merchant=m_1",
        "rule=retired&merchant=m_2",
        "rule=retired&merchant=m_3",
    ] {
        let put = server.by_admin("PUT", &format!("/v1/override?{target}"));
        put.if_absent().json(&body).expect(201);
    }
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = server
            .get(&format!("/v1/overrides?orphans=true&limit=2{after}"))
            .expect(200)
            .json();
        let items = page["items"].as_array().unwrap();
        assert!(
            items.len() <= 2 && items.iter().all(|row| row["orphan"] == true),
            "{items:?}"
        );
        found.extend(items.iter().map(|row| row["subject"]["merchant"].clone()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(found, ["m_1", "m_2", "m_3"]);
    let all = server.get("/v1/overrides?orphans=false&limit=1000").expect(200).json();
    assert_eq!(all["items"].as_array().unwrap().len(), 1_000);
    server.get("/v1/overrides?orphans=perhaps").refused(400, "malformed");
}

#[test]
fn an_export_is_imported_again_in_both_forms() {
    for server in AdminServer::over_both() {
        let strange = [
            "=cmd()",
            "+1",
            "-1",
            "@x",
            "a,b",
            "say \"hi\"",
            "two\nlines",
            "é",
            "'=x",
        ];
        for (number, note) in strange.iter().enumerate() {
            let target = format!("/v1/override?rule=plan&merchant={}", encoded(&format!("m {number},\"")));
            let body = json!({ "terms": "5/min", "note": note, "until": "2099-01-01" });
            server.create(&target, &body).expect(201);
        }
        for format in ["ndjson", "csv"] {
            let exported = server.get(&format!("/v1/overrides/export?format={format}")).expect(200);
            if format == "csv" {
                assert!(
                    exported.body.contains("'=cmd()")
                        && exported.body.contains("'@x")
                        && exported.body.contains("'+1")
                        && exported.body.contains("'-1"),
                    "{}",
                    exported.body
                );
            }
            let rows = |server: &AdminServer| {
                let items = server.get("/v1/overrides").expect(200).json()["items"].clone();
                let each = items
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|row| json!([row["subject"], row["note"], row["terms"], row["expires_at"]]));
                each.collect::<Vec<Value>>()
            };
            let other = AdminServer::start();
            let target = format!("/v1/overrides/import?format={format}&reason=copy");
            let imported = other
                .by_admin("POST", &target)
                .body(exported.body.clone())
                .expect(200)
                .json();
            assert_eq!(
                (&imported["rows"], &imported["changed"], &imported["revisions"]),
                (&json!(9), &json!(9), &json!(1))
            );
            assert_eq!(rows(&other), rows(&server), "{format}");
            let again = other.by_admin("POST", &target).body(exported.body).expect(200).json();
            assert_eq!(
                (&again["changed"], &again["revision"]),
                (&json!(0), &imported["revision"])
            );
        }
        let first = server.get("/v1/overrides/export?limit=4").expect(200);
        assert_eq!(first.body.lines().count(), 4);
        let next = first.header("x-tollgate-next").unwrap();
        assert_eq!(
            server
                .get(&format!("/v1/overrides/export?after={next}"))
                .expect(200)
                .body
                .lines()
                .count(),
            5
        );
        let audit = server.get("/v1/audit?action=export").expect(200).json();
        assert_eq!(audit["items"].as_array().unwrap().len(), 4, "every export is audited");
    }
}

#[test]
fn an_import_is_done_as_a_whole_or_not_at_all_and_names_every_bad_line() {
    for server in AdminServer::over_both() {
        let row = |merchant: &str, terms: &str| {
            json!({ "rule": "plan", "subject": { "merchant": merchant }, "terms": terms }).to_string()
        };
        let lines = [
            row("a", "5/min"),
            row("b", "lots"),
            "{".to_owned(),
            String::new(),
            row("c", "many"),
        ];
        let import = |query: &str, body: &str| {
            server
                .by_admin("POST", &format!("/v1/overrides/import?{query}"))
                .body(body.to_owned())
        };
        let bad = import("", &lines.join("\n")).refused(422, "invalid");
        let found = column(&bad["problems"], "line");
        assert_eq!(found, [3], "what cannot be read is reported first");
        let lines = [row("a", "5/min"), row("b", "lots"), String::new(), row("c", "many")];
        let bad = import("", &lines.join("\n")).refused(422, "invalid");
        let found = column(&bad["problems"], "line");
        assert_eq!(found, [2, 4]);
        assert_eq!(server.get("/v1/overrides").expect(200).json()["items"], json!([]));
        import("", "").refused(400, "malformed");
        import("format=xml", "").refused(400, "malformed");
        import("format=csv", "rule,subject,terms,colour\n").refused(400, "malformed");
        import(
            "",
            &json!({ "subject": { "merchant": "a" }, "terms": "1/min" }).to_string(),
        )
        .refused(400, "malformed");
        import("", &row("a", "0/min")).refused(400, "reason-required");
        let too_many = vec![row("a", "5/min"); 10_001].join("\n");
        import("", &too_many).refused(413, "too-large");

        let many: Vec<String> = (0..1_200).map(|number| row(&format!("m_{number}"), "5/min")).collect();
        let dry = import("dry_run=true", &many.join("\n")).expect(200).json();
        assert_eq!((&dry["dry_run"], &dry["rows"]), (&json!(true), &json!(1_200)));
        assert_eq!(server.get("/v1/overrides").expect(200).json()["items"], json!([]));
        let done = import("", &many.join("\n")).expect(200).json();
        assert_eq!(
            (&done["changed"], &done["revisions"]),
            (&json!(1_200), &json!(3)),
            "one revision per 500"
        );
        let csv = "subject,terms\nmerchant=m_1,\nmerchant=m_2,7/min\n";
        let done = import("format=csv&rule=plan", csv).expect(200).json();
        assert_eq!(done["changed"], 2);
        server
            .get("/v1/override?rule=plan&merchant=m_1")
            .refused(404, "not-found");
        assert_eq!(
            server.get("/v1/override?rule=plan&merchant=m_2").expect(200).json()["terms"],
            "7/min"
        );
    }
}

#[test]
fn attributes_are_set_listed_deleted_imported_and_exported() {
    for server in AdminServer::over_both() {
        set_attribute(&server, "m_42", "enterprise");
        set_attribute(&server, "m_43", "=free");
        let target = "/v1/attribute?source=merchant&subject=m_42&name=tier";
        let read = server.get(target).expect(200);
        assert_eq!(
            (read.json()["value"].clone(), read.json()["actor"].clone()),
            (json!("enterprise"), json!("admin"))
        );
        let tag = read.header("etag").unwrap();
        let same = server
            .by_admin("PUT", target)
            .if_match(tag)
            .json(&json!({ "value": "enterprise" }))
            .expect(200);
        assert_eq!(same.header("etag"), Some(tag));
        let dry = server.by_admin("PUT", &format!("{target}&dry_run=true")).if_match(tag);
        assert_eq!(
            dry.json(&json!({ "value": "free" })).expect(200).json()["dry_run"],
            true
        );
        assert_eq!(server.get(target).expect(200).header("etag"), Some(tag));
        server
            .by_admin("PUT", target)
            .if_match(tag)
            .json(&json!({ "value": "" }))
            .refused(422, "invalid");
        let count = |query: &str| server.count(&format!("/v1/attributes?{query}"));
        assert_eq!(
            (
                count(""),
                count("source=merchant"),
                count("source=user"),
                count("subject=m_42"),
                count("q=ENTER")
            ),
            (2, 2, 0, 1, 1)
        );
        let first = server.get("/v1/attributes?limit=1").expect(200).json();
        let next = first["next"].as_str().unwrap();
        assert_eq!(
            server
                .get(&format!("/v1/attributes?limit=1&after={next}"))
                .expect(200)
                .json()["items"][0]["subject"],
            "m_43"
        );
        for format in ["csv", "ndjson"] {
            let exported = server
                .get(&format!("/v1/attributes/export?format={format}"))
                .expect(200)
                .body;
            assert_eq!(exported.contains("'=free"), format == "csv");
            let other = AdminServer::start();
            let import = other.by_admin("POST", &format!("/v1/attributes/import?format={format}"));
            assert_eq!(import.body(exported).expect(200).json()["changed"], 2);
            assert_eq!(
                other
                    .get("/v1/attribute?source=merchant&subject=m_43&name=tier")
                    .expect(200)
                    .json()["value"],
                "=free"
            );
        }
        server
            .by_admin("DELETE", &format!("{target}&dry_run=true"))
            .if_match(tag)
            .expect(204);
        server.by_admin("DELETE", target).if_match(tag).expect(204);
        server.get(target).refused(404, "not-found");
        server
            .by_admin("DELETE", target)
            .if_match(tag)
            .refused(404, "not-found");
        server
            .get("/v1/attribute?source=merchant&subject=m_42")
            .refused(400, "malformed");
    }
}
