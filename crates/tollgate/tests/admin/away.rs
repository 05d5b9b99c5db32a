//! The database is unavailable, belongs to another process, is another one, or there is none.

use crate::access::{PASSWORD, login};
use crate::client::Request;
use crate::fixture::{ADMIN, AdminServer, OPERATOR, Storage, tokens};
use crate::rules::{RULE, add_rule};
use crate::tables::set_row;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tollgate::control::DatabaseChoice;
use tollgate_test_kit::eventually;
use tollgate_test_kit::http::Answer;
use tollgate_test_kit::postgres::Postgres;

/// A server over a PostgreSQL of its own, which can be frozen; and the entity tag of its rule.
fn with_a_row_and_a_rule() -> (Arc<Postgres>, AdminServer, String) {
    let postgres = Arc::new(Postgres::start());
    let server = AdminServer::over(&Storage::Postgres(Arc::clone(&postgres)));
    set_row(&server, "m_1", "5/min");
    let tag = add_rule(&server);
    (postgres, server, tag)
}

#[test]
fn while_the_database_is_away_reads_answer_writes_are_refused_and_a_forget_is_audited_later() {
    let (postgres, server, tag) = with_a_row_and_a_rule();
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
    let put = server.create("/v1/override?rule=plan&merchant=m_2", &body);
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
        let put = server.create("/v1/override?rule=plan&merchant=m_3", &body);
        [201, 412].contains(&put.send().status)
    });
    assert_eq!(server.get("/v1/audit/verify").expect(200).json()["ok"], true);
}

#[test]
fn all_calls_of_a_write_share_the_deadline_of_one() {
    let (postgres, server, tag) = with_a_row_and_a_rule();
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
fn a_late_answer_of_the_database_still_ends_a_token_and_a_session() {
    let postgres = Postgres::shared();
    let mut url = String::new();
    let server = AdminServer::with(&Storage::Postgres(postgres), |options| {
        options.settings.tokens = tokens();
        if let DatabaseChoice::Postgres(of_database) = &options.choice {
            url.clone_from(of_database);
        }
    });
    let other = server.beside();
    for (name, kind) in [("anna", "users"), ("ci", "tokens")] {
        let body = match kind {
            "users" => json!({ "name": name, "role": "operator", "password": PASSWORD }),
            _ => json!({ "name": name, "role": "operator" }),
        };
        let created = server.by_admin("POST", &format!("/v1/{kind}")).json(&body).expect(201);
        let request = match kind {
            "users" => other.request("GET", "/v1/me").page(&login(&other, name)),
            _ => other
                .request("GET", "/v1/me")
                .token(created.json()["token"].as_str().unwrap()),
        };
        request.expect(200);
        server
            .by_admin("DELETE", &format!("/v1/{kind}?name={name}"))
            .expect(204);
        let table = if kind == "users" { "session" } else { "principal" };
        let answer = answer_behind_lock(&server, &url, table, request);
        assert_eq!(answer.status, 401, "{kind}: {}", answer.body);
    }
}

/// The answer to a request that waits for a lock of a table, for longer than any but the whole wait of a call.
fn answer_behind_lock(server: &AdminServer, url: &str, table: &str, request: Request) -> Answer {
    let mut locking = server.runtime.block_on(PgConnection::connect(url)).unwrap();
    let mut execute = |sql: String| {
        let query = sqlx::query(AssertSqlSafe(sql)).execute(&mut locking);
        server.runtime.block_on(query).unwrap();
    };
    execute("BEGIN".to_owned());
    execute(format!("LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"));
    let (sender, answered) = mpsc::channel();
    std::thread::spawn(move || sender.send(request.send_unchecked()));
    let early = answered.recv_timeout(Duration::from_millis(700)).ok();
    execute("ROLLBACK".to_owned());
    early.unwrap_or_else(|| answered.recv().unwrap())
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
        .create("/v1/override?rule=plan&merchant=m_1", &body)
        .refused(409, "no-database");
    server
        .create("/v1/rule?id=search", &json!({ "yaml": RULE }))
        .refused(409, "no-database");
    server
        .by_admin("POST", "/v1/users")
        .json(&json!({ "name": "a", "role": "viewer" }))
        .refused(409, "no-database");
    let login = json!({ "name": "a", "password": PASSWORD });
    server.post_page("/v1/session", &login).refused(409, "no-database");
    let forget = json!({ "attributes": { "merchant": "m_1" } });
    server.by_admin("POST", "/v1/forget").json(&forget).expect(200);
}

#[test]
fn a_database_of_another_process_is_not_written() {
    let owner = AdminServer::start();
    let other = owner.beside();
    set_row(&owner, "m_1", "5/min");
    let body = json!({ "terms": "6/min" });
    let put = other.create("/v1/override?rule=plan&merchant=m_2", &body);
    put.refused(409, "other-database");
    let user = json!({ "name": "a", "role": "viewer", "password": PASSWORD });
    other
        .by_admin("POST", "/v1/users")
        .json(&user)
        .refused(409, "other-database");
    owner.by_admin("POST", "/v1/users").json(&user).expect(201);
    let login = json!({ "name": "a", "password": PASSWORD });
    other.post_page("/v1/session", &login).refused(409, "other-database");
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
    let put = server.create("/v1/override?rule=plan&merchant=m_3", &body);
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
