//! The database is away, belongs to another process, is another one, or there is none.

use crate::access::{PASSWORD, login};
use crate::fixture::{ADMIN, AdminServer, OPERATOR, Storage};
use crate::rules::{RULE, add_rule};
use crate::tables::set_row;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tollgate_test_kit::eventually;
use tollgate_test_kit::postgres::Postgres;

#[test]
fn while_the_database_is_away_reads_answer_writes_are_refused_and_a_forget_is_audited_later() {
    // Of its own: it is frozen.
    let postgres = Arc::new(Postgres::start());
    let server = AdminServer::over(&Storage::Postgres(Arc::clone(&postgres)));
    set_row(&server, "m_1", "5/min");
    let tag = add_rule(&server);
    let user = json!({ "name": "anna", "role": "operator", "password": PASSWORD });
    server.by_admin("POST", "/v1/users").json(&user).expect(201);
    let cookie = login(&server, "anna");
    server.request("GET", "/v1/me").page(&cookie).expect(200);
    postgres.freeze();
    for target in [
        "/v1/status",
        "/v1/rules",
        "/v1/rule?id=search",
        "/v1/overrides",
        "/v1/attributes",
        "/v1/instances",
        "/v1/store",
    ] {
        server.get(target).expect(200);
    }
    assert_eq!(
        server.get("/v1/overrides").expect(200).json()["items"][0]["terms"],
        "5/min"
    );
    // A session that was seen within the last minute stays valid; another one is not.
    server.request("GET", "/v1/me").page(&cookie).expect(200);
    let unknown = format!("tollgate_{}=unknown", server.address.port());
    server
        .request("GET", "/v1/me")
        .page(&unknown)
        .refused(503, "database-unavailable");
    let body = json!({ "terms": "6/min" });
    let put = server
        .by_admin("PUT", "/v1/override?rule=plan&merchant=m_2")
        .if_absent()
        .json(&body);
    let refused = put.expect(503);
    assert_eq!(
        (refused.json()["code"].clone(), refused.header("retry-after")),
        (json!("database-unavailable"), Some("1"))
    );
    let rule = json!({ "yaml": RULE.replace("10/", "11/") });
    server
        .by_admin("PUT", "/v1/rule?id=search")
        .if_match(&tag)
        .json(&rule)
        .refused(503, "database-unavailable");
    server.get("/v1/users").refused(503, "database-unavailable");
    let forget = json!({ "attributes": { "merchant": "m_1" }, "reason": "during the outage" });
    server
        .request("POST", "/v1/forget")
        .token(OPERATOR)
        .json(&forget)
        .expect(200);
    postgres.thaw();
    eventually("the audit entry is written", || {
        let audit = server.get("/v1/audit?action=forget").send();
        audit.status == 200 && audit.json()["items"][0]["reason"] == "during the outage"
    });
    eventually("writes are done again", || {
        let put = server
            .by_admin("PUT", "/v1/override?rule=plan&merchant=m_3")
            .if_absent()
            .json(&body);
        [201, 412].contains(&put.send().status)
    });
    assert_eq!(server.get("/v1/audit/verify").expect(200).json()["ok"], true);
}

#[test]
fn all_calls_of_a_write_share_the_deadline_of_one() {
    let postgres = Arc::new(Postgres::start());
    let server = AdminServer::over(&Storage::Postgres(Arc::clone(&postgres)));
    set_row(&server, "m_1", "5/min");
    let tag = add_rule(&server);
    postgres.freeze();
    // Each reads the item before it writes it: the time of two calls passed until it was refused.
    let put_row = server
        .by_admin("PUT", "/v1/override?rule=plan&merchant=m_1")
        .if_match("*")
        .json(&json!({ "terms": "6/min", "reason": "test" }));
    let put_rule = server
        .by_admin("PUT", "/v1/rule?id=search")
        .if_match(&tag)
        .json(&json!({ "yaml": RULE.replace("10/", "11/") }));
    let rollback = server
        .by_admin("POST", "/v1/rollback")
        .if_match("*")
        .header("Idempotency-Key", "a")
        .json(&json!({ "reason": "test" }));
    for write in [put_row, put_rule, rollback] {
        let two_calls = {
            let database = server.control.database().unwrap().clone();
            server.runtime.spawn(async move {
                for _ in 0..2 {
                    assert!(database.head().await.is_err(), "a frozen database answers");
                }
            })
        };
        write.refused(503, "database-unavailable");
        assert!(
            !two_calls.is_finished(),
            "the write waited as long as two calls of the database"
        );
        server.runtime.block_on(two_calls).unwrap();
    }
}

#[test]
fn without_a_database_everything_is_read_and_nothing_is_written() {
    let server = AdminServer::over(&Storage::None);
    for target in [
        "/v1/status",
        "/v1/rules",
        "/v1/overrides",
        "/v1/attributes",
        "/v1/rule?id=plan",
    ] {
        server.get(target).expect(200);
    }
    for target in ["/v1/users", "/v1/versions", "/v1/audit", "/v1/rule/history?id=plan"] {
        server.get(target).refused(409, "no-database");
    }
    let body = json!({ "terms": "5/min" });
    server
        .by_admin("PUT", "/v1/override?rule=plan&merchant=m_1")
        .if_absent()
        .json(&body)
        .refused(409, "no-database");
    server
        .by_admin("PUT", "/v1/rule?id=search")
        .if_absent()
        .json(&json!({ "yaml": RULE }))
        .refused(409, "no-database");
    server
        .by_admin("POST", "/v1/users")
        .json(&json!({ "name": "a", "role": "viewer" }))
        .refused(409, "no-database");
    let login = json!({ "name": "a", "password": PASSWORD });
    server
        .request("POST", "/v1/session")
        .page("")
        .json(&login)
        .refused(409, "no-database");
    let forget = json!({ "attributes": { "merchant": "m_1" } });
    server.by_admin("POST", "/v1/forget").json(&forget).expect(200);
}

#[test]
fn a_database_of_another_process_is_not_written() {
    let owner = AdminServer::start();
    let other = owner.beside();
    set_row(&owner, "m_1", "5/min");
    let body = json!({ "terms": "6/min" });
    let put = other
        .by_admin("PUT", "/v1/override?rule=plan&merchant=m_2")
        .if_absent()
        .json(&body);
    put.refused(409, "other-database");
    let user = json!({ "name": "a", "role": "viewer", "password": PASSWORD });
    other
        .by_admin("POST", "/v1/users")
        .json(&user)
        .refused(409, "other-database");
    owner.by_admin("POST", "/v1/users").json(&user).expect(201);
    let login = json!({ "name": "a", "password": PASSWORD });
    other
        .request("POST", "/v1/session")
        .page("")
        .json(&login)
        .refused(409, "other-database");
}

#[test]
fn a_database_that_lacks_what_is_applied_is_not_written() {
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to).unwrap();
        for name in ["control.db", "control.db-wal", "control.db-shm"] {
            match from.join(name).exists() {
                true => drop(fs::copy(from.join(name), to.join(name)).unwrap()),
                false => drop(fs::remove_file(to.join(name))),
            }
        }
    };
    let server = AdminServer::start();
    set_row(&server, "m_1", "5/min");
    let backup = server.data().join("backup");
    let server = server.restart(|data| copy(data, &backup));
    set_row(&server, "m_2", "5/min");
    let revision = server.get("/v1/status").expect(200).json()["revision"].clone();
    let server = server.restart(|data| copy(&backup, data));
    let body = json!({ "terms": "6/min" });
    let put = server
        .by_admin("PUT", "/v1/override?rule=plan&merchant=m_3")
        .if_absent()
        .json(&body);
    put.refused(409, "database-regressed");
    let status = server.get("/v1/status").expect(200).json();
    assert_eq!(status["revision"], revision, "nothing goes back");
    assert_eq!(
        server.request("GET", "/v1/me").token(ADMIN).expect(200).json()["name"],
        "admin"
    );
    let adopt = |query: &str, reason: &str| {
        let body = json!({ "reason": reason });
        server.by_admin("POST", &format!("/v1/adopt{query}")).json(&body)
    };
    adopt("", "").refused(400, "reason-required");
    let dry = adopt("?dry_run=true", "restored").expect(200).json();
    assert_eq!((&dry["dry_run"], &dry["epoch"]), (&json!(true), &status["epoch"]));
    let adopted = adopt("", "restored").expect(200).json();
    assert!(adopted["epoch"].as_u64() > status["epoch"].as_u64() && adopted["revision"].as_u64() > revision.as_u64());
    eventually("the new epoch is applied", || {
        server.get("/v1/status").expect(200).json()["epoch"] == adopted["epoch"]
    });
    put.expect(201);
}
