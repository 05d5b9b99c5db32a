//! Principals, sessions and idempotency keys.

use crate::fixture::{START_MS, author, on_both};
use tollgate::control::chain::digest_of;
use tollgate::control::database::{AuditFilter, Database, DatabaseError, IdempotencyKey, StoredResponse};
use tollgate::control::model::{Principal, PrincipalKind, Role, Session};

const SECRET: &str = "canary-6f1d0c";

fn principal(name: &str) -> Principal {
    Principal {
        id: format!("id-{name}"),
        kind: PrincipalKind::User,
        name: name.to_owned(),
        role: Role::Editor,
        domains: vec!["default".to_owned(), "o'brien \"x\"".to_owned()],
        secret: SECRET.to_owned(),
        created_at: START_MS,
        created_by: "setup".to_owned(),
        expires_at: 0,
        seen_at: 0,
        disabled_at: 0,
    }
}

/// Opens a session of a principal of this name.
async fn log_in(database: &Database, id: &str, name: &str) {
    let session = session(id, &format!("id-{name}"));
    database.add_session(session, &author(name)).await.unwrap();
}

fn session(id: &str, principal: &str) -> Session {
    Session {
        id_hash: digest_of(id.as_bytes()),
        principal: principal.to_owned(),
        created_at: START_MS,
        seen_at: START_MS,
        expires_at: START_MS + 1_000,
        address: "127.0.0.1".to_owned(),
    }
}

#[test]
fn names_of_principals_are_unique() {
    on_both(async |_, database| {
        database
            .add_first_principal(principal("ada"), &author("setup"))
            .await
            .unwrap();
        let again = database.add_first_principal(principal("bob"), &author("setup")).await;
        assert!(matches!(again, Err(DatabaseError::Exists(_))), "setup works once");
        assert_eq!(
            database.add_principal(principal("ada"), &author("ada")).await,
            Err(DatabaseError::Exists("ada".to_owned()))
        );
        database.add_principal(principal("bob"), &author("ada")).await.unwrap();
        assert_eq!(
            database.principals().await.unwrap(),
            [principal("ada"), principal("bob")]
        );
        assert_eq!(database.principal_by_name("bob").await.unwrap(), Some(principal("bob")));
        assert_eq!(
            database.principal_by_id("id-ada").await.unwrap(),
            Some(principal("ada"))
        );
        assert_eq!(database.principal_by_id("ada").await.unwrap(), None);
        database.touch_principal("id-ada", START_MS + 5).await.unwrap();
        assert_eq!(
            database.principal_by_id("id-ada").await.unwrap().unwrap().seen_at,
            START_MS + 5
        );
    });
}

#[test]
fn one_of_two_first_principals_wins() {
    on_both(async |storage, database| {
        let other = storage.open();
        let (ada, eve) = (author("ada"), author("eve"));
        let (first, second) = tokio::join!(
            database.add_first_principal(principal("ada"), &ada),
            other.add_first_principal(principal("eve"), &eve),
        );
        assert_ne!(first.is_ok(), second.is_ok(), "{first:?} {second:?}");
        assert_eq!(database.principals().await.unwrap().len(), 1);
    });
}

#[test]
fn disabling_a_principal_ends_its_sessions() {
    on_both(async |_, database| {
        database
            .add_principal(principal("ada"), &author("setup"))
            .await
            .unwrap();
        log_in(&database, "1", "ada").await;
        log_in(&database, "2", "ada").await;
        log_in(&database, "3", "bob").await;
        assert_eq!(database.sessions().await.unwrap().len(), 3);
        let first = digest_of(b"1");
        database.touch_session(&first, START_MS + 7).await.unwrap();
        database.touch_session(&first, START_MS + 3).await.unwrap();
        assert_eq!(database.session(&first).await.unwrap().unwrap().seen_at, START_MS + 7);
        database.delete_session(&first, &author("ada")).await.unwrap();
        assert_eq!(database.session(&first).await.unwrap(), None);
        let again = database.delete_session(&first, &author("ada")).await;
        assert!(matches!(again, Err(DatabaseError::Missing(_))));

        database.disable_principal("id-ada", &author("setup")).await.unwrap();
        assert_eq!(database.sessions().await.unwrap(), [session("3", "id-bob")]);
        assert_eq!(
            database.principal_by_id("id-ada").await.unwrap().unwrap().disabled_at,
            START_MS
        );
        let again = database.disable_principal("id-ada", &author("setup")).await;
        assert!(matches!(again, Err(DatabaseError::Missing(_))));
        assert_eq!(database.delete_sessions_of("id-bob", &author("setup")).await, Ok(1));

        let audit = database.audit(&AuditFilter::default(), None, 100).await.unwrap();
        let actions: Vec<_> = audit.iter().rev().map(|entry| entry.action.as_str()).collect();
        assert_eq!(
            actions,
            [
                "user.add",
                "login",
                "login",
                "login",
                "logout",
                "user.disable",
                "session.delete"
            ]
        );
        assert!(!format!("{audit:?}").contains(SECRET));
        assert!(database.verify_audit(None).await.unwrap().is_intact());
    });
}

#[test]
fn an_idempotency_key_belongs_to_one_request_of_one_principal() {
    on_both(async |_, database| {
        let key = |principal: &str, request: &str| IdempotencyKey {
            principal: principal.to_owned(),
            key_hash: digest_of(b"key"),
            request_digest: digest_of(request.as_bytes()),
        };
        let response = StoredResponse {
            status: 201,
            body: "{}".to_owned(),
        };
        assert_eq!(database.idempotent(&key("ada", "a")).await, Ok(None));
        database.remember_response(&key("ada", "a"), &response).await.unwrap();
        assert_eq!(database.idempotent(&key("ada", "a")).await, Ok(Some(response)));
        assert_eq!(
            database.idempotent(&key("ada", "b")).await,
            Err(DatabaseError::KeyReused)
        );
        assert_eq!(database.idempotent(&key("bob", "b")).await, Ok(None));
    });
}
