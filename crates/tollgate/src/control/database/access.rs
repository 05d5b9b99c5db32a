//! Principals and sessions.

mod idempotency;

pub(super) use idempotency::{KEPT_MS, committed_revision, remember, remember_commit};

use super::Database;
use super::connection::{ResultRow, parameters};
use super::error::{DatabaseError, DatabaseResult};
use super::query::Select;
use super::query::record::{Column, Record as _, record};
use super::writer::WriteRequest;
use super::writer::ledger::Ledger;
use crate::control::model::{Author, Digest, Principal, PrincipalKind, Role, Session};
use sqlx::AssertSqlSafe;

/// Sessions that are listed.
const SESSIONS_MAX: usize = 10_000;

impl Database {
    /// Adds a principal.
    ///
    /// # Errors
    /// [`DatabaseError::Exists`] if its name or id is taken; an unavailable or full database.
    pub async fn add_principal(&self, principal: Principal, author: &Author) -> DatabaseResult<()> {
        let request = WriteRequest::AddPrincipal(Box::new(principal), author.clone());
        self.change(request).await
    }

    /// Adds the first principal.
    ///
    /// # Errors
    /// [`DatabaseError::Exists`] if there is any principal; an unavailable or full database.
    pub async fn add_first_principal(&self, principal: Principal, author: &Author) -> DatabaseResult<()> {
        let request = WriteRequest::AddFirstPrincipal(Box::new(principal), author.clone());
        self.change(request).await
    }

    /// Disables a principal and ends its sessions.
    ///
    /// # Errors
    /// [`DatabaseError::Missing`] if there is no enabled principal with this id; an unavailable or full database.
    pub async fn disable_principal(&self, id: &str, author: &Author) -> DatabaseResult<()> {
        let request = WriteRequest::DisablePrincipal(id.to_owned(), author.clone());
        self.change(request).await
    }

    /// Records the last use of a principal.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn touch_principal(&self, id: &str, at: u64) -> DatabaseResult<()> {
        self.change(WriteRequest::TouchPrincipal(id.to_owned(), at)).await
    }

    /// Returns all principals, by name.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn principals(&self) -> DatabaseResult<Vec<Principal>> {
        let sql = format!("{} ORDER BY name", Principal::select());
        self.records((sql, Vec::new())).await
    }

    /// True if there is any principal, enabled or not.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn has_principals(&self) -> DatabaseResult<bool> {
        let found = self.list("SELECT id FROM principal LIMIT 1", &[], |row| row.text(0));
        Ok(!found.await?.is_empty())
    }

    /// Returns the principal with this name.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn principal_by_name(&self, name: &str) -> DatabaseResult<Option<Principal>> {
        self.record_where("name = ", name, "name").await
    }

    /// Returns the principal with this id.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn principal_by_id(&self, id: &str) -> DatabaseResult<Option<Principal>> {
        self.record_where("id = ", id, "id").await
    }

    /// Adds a session. Audited as `login`.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn add_session(&self, session: Session, author: &Author) -> DatabaseResult<()> {
        let request = WriteRequest::AddSession(Box::new(session), author.clone());
        self.change(request).await
    }

    /// Returns the session with this hash.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn session(&self, id_hash: &Digest) -> DatabaseResult<Option<Session>> {
        self.record_where("id_hash = ", id_hash, "id_hash").await
    }

    /// Returns all sessions, the newest first.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn sessions(&self) -> DatabaseResult<Vec<Session>> {
        let select = Select::records::<Session>();
        self.records(select.order_by("created_at DESC, id_hash", SESSIONS_MAX))
            .await
    }

    /// Records the last request of a session.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn touch_session(&self, id_hash: &Digest, at: u64) -> DatabaseResult<()> {
        self.change(WriteRequest::TouchSession(*id_hash, at)).await
    }

    /// Ends a session. Audited as `logout`.
    ///
    /// # Errors
    /// [`DatabaseError::Missing`] if it does not exist; an unavailable or full database.
    pub async fn delete_session(&self, id_hash: &Digest, author: &Author) -> DatabaseResult<()> {
        let request = WriteRequest::DeleteSession(*id_hash, author.clone());
        self.change(request).await
    }

    /// Ends all sessions of a principal and returns their number.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn delete_sessions_of(&self, principal: &str, author: &Author) -> DatabaseResult<u64> {
        let request = WriteRequest::DeleteSessionsOf(principal.to_owned(), author.clone());
        self.write(request).await?.count()
    }
}

pub(super) async fn add_principal(ledger: &mut Ledger, principal: &Principal, author: &Author) -> DatabaseResult<()> {
    // Orders those who add the same name.
    ledger.head().await?;
    let taken = ledger
        .connection
        .fetch_one(
            "SELECT id FROM principal WHERE name = $1 OR id = $2 LIMIT 1",
            parameters![&principal.name, &principal.id],
        )
        .await?;
    if taken.is_some() {
        return Err(DatabaseError::Exists(principal.name.clone()));
    }
    let domains = serde_json::to_string(&principal.domains).expect("a list of texts");
    ledger
        .connection
        .execute(
            "INSERT INTO principal (id, kind, name, role, domains, secret, created_at, created_by, expires_at, seen_at,
             disabled_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            parameters![
                &principal.id,
                kind_name(principal.kind),
                &principal.name,
                role_name(principal.role),
                &domains,
                &principal.secret,
                principal.created_at,
                &principal.created_by,
                principal.expires_at,
                principal.seen_at,
                principal.disabled_at,
            ],
        )
        .await?;
    let action = format!("{}.add", kind_name(principal.kind));
    // Without its secret.
    let after = serde_json::json!({
        "id": principal.id, "role": principal.role, "domains": principal.domains, "expires_at": principal.expires_at,
    });
    ledger
        .note(author, &action, &principal.name, ("", &after.to_string()))
        .await
}

pub(super) async fn add_first_principal(
    ledger: &mut Ledger,
    principal: &Principal,
    author: &Author,
) -> DatabaseResult<()> {
    ledger.head().await?;
    let any = ledger
        .connection
        .fetch_one("SELECT id FROM principal LIMIT 1", &[])
        .await?;
    if any.is_some() {
        return Err(DatabaseError::Exists("a principal".to_owned()));
    }
    add_principal(ledger, principal, author).await
}

pub(super) async fn disable_principal(ledger: &mut Ledger, id: &str, author: &Author) -> DatabaseResult<()> {
    ledger.head().await?;
    let sql = format!("{} WHERE id = $1 AND disabled_at = 0", Principal::select());
    let Some(row) = ledger.connection.fetch_one(AssertSqlSafe(sql), parameters![id]).await? else {
        return Err(DatabaseError::Missing(format!("an enabled principal {id}")));
    };
    let principal = Principal::read(&row)?;
    let now = ledger.now;
    ledger
        .connection
        .execute(
            "UPDATE principal SET disabled_at = $1 WHERE id = $2",
            parameters![now, id],
        )
        .await?;
    ledger
        .connection
        .execute("DELETE FROM session WHERE principal = $1", parameters![id])
        .await?;
    let action = match principal.kind {
        PrincipalKind::User => "user.disable",
        PrincipalKind::Token => "token.revoke",
    };
    ledger.note(author, action, &principal.name, ("", "")).await
}

pub(super) async fn touch_principal(ledger: &mut Ledger, id: &str, at: u64) -> DatabaseResult<()> {
    let sql = "UPDATE principal SET seen_at = $1 WHERE id = $2 AND seen_at < $1";
    ledger.connection.execute(sql, parameters![at, id]).await?;
    Ok(())
}

pub(super) async fn add_session(ledger: &mut Ledger, session: &Session, author: &Author) -> DatabaseResult<()> {
    ledger
        .connection
        .execute(
            "INSERT INTO session (id_hash, principal, created_at, seen_at, expires_at, address) VALUES ($1, $2, $3, $4, $5, $6)",
            parameters![
                &session.id_hash,
                &session.principal,
                session.created_at,
                session.seen_at,
                session.expires_at,
                &session.address,
            ],
        )
        .await?;
    ledger.note(author, "login", &author.actor, ("", "")).await
}

pub(super) async fn touch_session(ledger: &mut Ledger, id_hash: &Digest, at: u64) -> DatabaseResult<()> {
    let sql = "UPDATE session SET seen_at = $1 WHERE id_hash = $2 AND seen_at < $1";
    ledger.connection.execute(sql, parameters![at, id_hash]).await?;
    Ok(())
}

pub(super) async fn delete_session(ledger: &mut Ledger, id_hash: &Digest, author: &Author) -> DatabaseResult<()> {
    let sql = "DELETE FROM session WHERE id_hash = $1";
    if ledger.connection.execute(sql, parameters![id_hash]).await? == 0 {
        return Err(DatabaseError::Missing("the session".to_owned()));
    }
    ledger.note(author, "logout", &author.actor, ("", "")).await
}

pub(super) async fn delete_sessions_of(ledger: &mut Ledger, principal: &str, author: &Author) -> DatabaseResult<u64> {
    let sql = "DELETE FROM session WHERE principal = $1";
    let count = ledger.connection.execute(sql, parameters![principal]).await?;
    if count > 0 {
        ledger
            .note(author, "session.delete", principal, ("", &count.to_string()))
            .await?;
    }
    Ok(count)
}

record!(
    Principal, "principal": id, kind, name, role, domains, secret, created_at, created_by, expires_at, seen_at, disabled_at
);
record!(Session, "session": id_hash, principal, created_at, seen_at, expires_at, address);

impl Column for PrincipalKind {
    fn read(row: &ResultRow, column: usize) -> DatabaseResult<Self> {
        row.parsed(column, |name| match name {
            "user" => Some(Self::User),
            "token" => Some(Self::Token),
            _ => None,
        })
    }
}

impl Column for Role {
    fn read(row: &ResultRow, column: usize) -> DatabaseResult<Self> {
        row.parsed(column, |name| match name {
            "viewer" => Some(Self::Viewer),
            "operator" => Some(Self::Operator),
            "editor" => Some(Self::Editor),
            "admin" => Some(Self::Admin),
            _ => None,
        })
    }
}

const fn kind_name(kind: PrincipalKind) -> &'static str {
    match kind {
        PrincipalKind::User => "user",
        PrincipalKind::Token => "token",
    }
}

const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Viewer => "viewer",
        Role::Operator => "operator",
        Role::Editor => "editor",
        Role::Admin => "admin",
    }
}
