//! Principals and sessions.

mod idempotency;

pub(super) use idempotency::{KEPT_MS, committed_revision, remember, remember_commit};

use super::Database;
use super::connection::{ResultRow, parameters};
use super::error::{DatabaseError, DatabaseResult};
use super::writer::WriteRequest;
use super::writer::ledger::{AuditDraft, Ledger};
use crate::control::model::{Author, Digest, Principal, PrincipalKind, Role, Session};

impl Database {
    /// Adds a principal.
    ///
    /// # Errors
    /// [`DatabaseError::Exists`] if its name or id is taken; an unavailable or full database.
    pub async fn add_principal(&self, principal: Principal, author: &Author) -> DatabaseResult<()> {
        let request = WriteRequest::AddPrincipal(Box::new(principal), author.clone());
        self.write(request).await?.done()
    }

    /// Adds the first principal.
    ///
    /// # Errors
    /// [`DatabaseError::Exists`] if there is any principal; an unavailable or full database.
    pub async fn add_first_principal(&self, principal: Principal, author: &Author) -> DatabaseResult<()> {
        let request = WriteRequest::AddFirstPrincipal(Box::new(principal), author.clone());
        self.write(request).await?.done()
    }

    /// Disables a principal and ends its sessions.
    ///
    /// # Errors
    /// [`DatabaseError::Missing`] if there is no enabled principal with this id; an unavailable or full database.
    pub async fn disable_principal(&self, id: &str, author: &Author) -> DatabaseResult<()> {
        let request = WriteRequest::DisablePrincipal(id.to_owned(), author.clone());
        self.write(request).await?.done()
    }

    /// Records the last use of a principal.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn touch_principal(&self, id: &str, at: u64) -> DatabaseResult<()> {
        self.write(WriteRequest::TouchPrincipal(id.to_owned(), at))
            .await?
            .done()
    }

    /// Returns all principals, by name.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn principals(&self) -> DatabaseResult<Vec<Principal>> {
        let sql =
            "SELECT id, kind, name, role, domains, secret, created_at, created_by, expires_at, seen_at, disabled_at
                   FROM principal ORDER BY name";
        self.list(sql, &[], principal_of).await
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
        let sql =
            "SELECT id, kind, name, role, domains, secret, created_at, created_by, expires_at, seen_at, disabled_at
                   FROM principal WHERE name = $1";
        Ok(self.list(sql, parameters![name], principal_of).await?.pop())
    }

    /// Returns the principal with this id.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn principal_by_id(&self, id: &str) -> DatabaseResult<Option<Principal>> {
        let sql =
            "SELECT id, kind, name, role, domains, secret, created_at, created_by, expires_at, seen_at, disabled_at
                   FROM principal WHERE id = $1";
        Ok(self.list(sql, parameters![id], principal_of).await?.pop())
    }

    /// Adds a session. Audited as `login`.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn add_session(&self, session: Session, author: &Author) -> DatabaseResult<()> {
        let request = WriteRequest::AddSession(Box::new(session), author.clone());
        self.write(request).await?.done()
    }

    /// Returns the session with this hash.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn session(&self, id_hash: &Digest) -> DatabaseResult<Option<Session>> {
        let sql = "SELECT id_hash, principal, created_at, seen_at, expires_at, address FROM session WHERE id_hash = $1";
        Ok(self.list(sql, parameters![id_hash], session_of).await?.pop())
    }

    /// Returns all sessions, the newest first.
    ///
    /// # Errors
    /// An unavailable or damaged database.
    pub async fn sessions(&self) -> DatabaseResult<Vec<Session>> {
        let sql = "SELECT id_hash, principal, created_at, seen_at, expires_at, address FROM session
                   ORDER BY created_at DESC, id_hash LIMIT 10000";
        self.list(sql, &[], session_of).await
    }

    /// Records the last request of a session.
    ///
    /// # Errors
    /// An unavailable or full database.
    pub async fn touch_session(&self, id_hash: &Digest, at: u64) -> DatabaseResult<()> {
        self.write(WriteRequest::TouchSession(*id_hash, at)).await?.done()
    }

    /// Ends a session. Audited as `logout`.
    ///
    /// # Errors
    /// [`DatabaseError::Missing`] if it does not exist; an unavailable or full database.
    pub async fn delete_session(&self, id_hash: &Digest, author: &Author) -> DatabaseResult<()> {
        let request = WriteRequest::DeleteSession(*id_hash, author.clone());
        self.write(request).await?.done()
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
    audit(ledger, author, &action, &principal.name, ("", &after.to_string())).await
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
    let sql = "SELECT id, kind, name, role, domains, secret, created_at, created_by, expires_at, seen_at, disabled_at
               FROM principal WHERE id = $1 AND disabled_at = 0";
    let Some(row) = ledger.connection.fetch_one(sql, parameters![id]).await? else {
        return Err(DatabaseError::Missing(format!("an enabled principal {id}")));
    };
    let principal = principal_of(&row)?;
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
    audit(ledger, author, action, &principal.name, ("", "")).await
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
    audit(ledger, author, "login", &author.actor, ("", "")).await
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
    audit(ledger, author, "logout", &author.actor, ("", "")).await
}

pub(super) async fn delete_sessions_of(ledger: &mut Ledger, principal: &str, author: &Author) -> DatabaseResult<u64> {
    let sql = "DELETE FROM session WHERE principal = $1";
    let count = ledger.connection.execute(sql, parameters![principal]).await?;
    if count > 0 {
        audit(ledger, author, "session.delete", principal, ("", &count.to_string())).await?;
    }
    Ok(count)
}

async fn audit(
    ledger: &mut Ledger,
    author: &Author,
    action: &str,
    target: &str,
    (before, after): (&str, &str),
) -> DatabaseResult<()> {
    ledger
        .audit(AuditDraft {
            author,
            action,
            target,
            before,
            after,
            revision: 0,
        })
        .await?;
    Ok(())
}

fn principal_of(row: &ResultRow) -> DatabaseResult<Principal> {
    Ok(Principal {
        id: row.text(0)?,
        kind: row.parsed(1, |name| match name {
            "user" => Some(PrincipalKind::User),
            "token" => Some(PrincipalKind::Token),
            _ => None,
        })?,
        name: row.text(2)?,
        role: row.parsed(3, |name| match name {
            "viewer" => Some(Role::Viewer),
            "operator" => Some(Role::Operator),
            "editor" => Some(Role::Editor),
            "admin" => Some(Role::Admin),
            _ => None,
        })?,
        domains: row.parsed(4, |text| serde_json::from_str(text).ok())?,
        secret: row.text(5)?,
        created_at: row.number(6)?,
        created_by: row.text(7)?,
        expires_at: row.number(8)?,
        seen_at: row.number(9)?,
        disabled_at: row.number(10)?,
    })
}

fn session_of(row: &ResultRow) -> DatabaseResult<Session> {
    Ok(Session {
        id_hash: row.parsed(0, Digest::parse)?,
        principal: row.text(1)?,
        created_at: row.number(2)?,
        seen_at: row.number(3)?,
        expires_at: row.number(4)?,
        address: row.text(5)?,
    })
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
